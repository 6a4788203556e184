//! Slots that leave a node of a cluster: waiters there are sent on, and leases that came with them.

use super::given::with_clients;
use crate::command::error::{CROSS_SLOT, SLOT_IS_MOVING};
use crate::command::slot::slot_of;
use crate::engine::commands;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::sim::server::inside::{PartBuf, Slot};
use crate::sim::server::world::World;

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

fn node(clients: u64) -> World {
    let world = World::started_as(Flags { is_cluster: true, ..Flags::default() }, |_| ());
    (1..=clients).for_each(|client| world.connect(client));
    world
}

/// These keys go to another node, with their slots.
fn leave(world: &World, names: &[&'static str]) {
    let mut inside = world.inside.borrow_mut();
    inside.slots = names.iter().map(|name| (*name, Slot::Elsewhere)).collect();
}

/// The cron runs, and the work that follows.
fn looks(world: &mut World) -> usize {
    world.cron();
    assert!(world.rests(), "the event loop goes round and round");
    world.answers.len()
}

#[test]
fn waiters_of_slots_that_left_are_redirected_some_at_a_time() {
    let mut world = node(8);
    for (name, client) in NAMES.iter().zip(2..) {
        world.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
        world.waits(client, &format!("LOCK.ACQUIRE {name} bob PX 30000 BLOCK 0"));
    }
    assert_eq!(looks(&mut world), 0);
    leave(&world, &NAMES[1..]);
    let mut sent_on = 0;
    for _ in 0..8 {
        let now = looks(&mut world);
        assert!(now - sent_on <= 2, "at most two at a time");
        sent_on = now;
    }
    assert_eq!(sent_on, 6);
    let is_moved = |part: &PartBuf| matches!(part, PartBuf::Error(text) if text.starts_with("MOVED ") && text.ends_with(" host:1"));
    assert!(world.answers.iter().all(|(_, parts)| parts.len() == 1 && parts.iter().all(is_moved)));
    assert_eq!(world.with(|state| state.table.waiters()), Some(1), "one slot is still here");
}

#[test]
fn a_waiter_is_redirected_wherever_its_queue_stands_among_others() {
    for name in NAMES {
        let mut world = node(8);
        for (name, client) in NAMES.iter().zip(2..) {
            world.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
            world.waits(client, &format!("LOCK.ACQUIRE {name} bob PX 30000 BLOCK 0"));
        }
        leave(&world, &[name]);
        let looks = (1..9).find(|_| looks(&mut world) == 1);
        // Two queues are examined each time.
        assert!(looks.is_some_and(|looks| looks <= 4), "{name}: {looks:?}");
    }
}

#[test]
fn a_server_without_slots_looks_at_its_queues_as_long_as_there_are_any() {
    let mut world = World::started();
    (1..3).for_each(|client| world.connect(client));
    world.number("LOCK.ACQUIRE a alice PX 30000");
    assert!(world.rests());
    world.cron();
    assert!(world.is_idle(), "nobody waits");
    world.waits(2, "LOCK.ACQUIRE a bob PX 30000 BLOCK 0");
    for _ in 0..3 {
        assert!(world.rests());
        world.cron();
        assert!(!world.is_idle(), "the key's time to live may be over");
    }
    assert_eq!(world.with(|state| state.table.waiters()), Some(1));
}

#[test]
fn a_node_without_queues_looks_at_nothing() {
    let mut world = node(1);
    world.number("LOCK.ACQUIRE a alice PX 30000");
    assert!(world.rests());
    world.cron();
    assert!(world.is_idle());
}

/// A node that has loaded leases that connections of another life keep alive, some of slots that are elsewhere.
fn with_kept_leases(names: &[&str], is_cluster: bool, elsewhere: &[&'static str]) -> World {
    let mut before = World::started();
    before.connect(1);
    for name in names {
        before.number(&format!("LOCK.ACQUIRE {name} alice PX 1000 KEEPALIVE"));
    }
    let mut world = World::started_as(Flags { is_cluster, ..Flags::default() }, |_| ());
    world.connect(1);
    leave(&world, elsewhere);
    world.read_files(&before.save(), &[]).expect("it is read");
    assert!(world.rests());
    world
}

fn held(world: &World) -> usize {
    world.with(|state| state.table.holds()).expect("nobody is within the engine")
}

#[test]
fn a_lease_that_a_connection_of_another_life_kept_runs_out() {
    let mut world = with_kept_leases(&["a", "b", "c"], false, &[]);
    world.cron();
    assert!(world.rests());
    assert_eq!(held(&world), 3);
    world.passes(1_000);
    assert!(world.rests());
    assert_eq!(held(&world), 0);
}

#[test]
fn a_kept_lease_is_paused_until_its_slot_is_this_nodes() {
    // Some are examined each time. The locks whose slots are elsewhere come last, or first.
    for elsewhere in [&NAMES[3..], &NAMES[..4]] {
        let mut world = with_kept_leases(&NAMES, true, elsewhere);
        for _ in 0..9 {
            looks(&mut world);
        }
        world.passes(1_000);
        assert!(world.rests());
        assert_eq!(held(&world), 4, "those of this node are over, and not {elsewhere:?}");
        leave(&world, &[]);
        for _ in 0..9 {
            looks(&mut world);
        }
        world.passes(999);
        assert!(world.rests());
        assert_eq!(held(&world), 4, "they run from here on");
        world.passes(1);
        assert!(world.rests());
        assert_eq!(held(&world), 0);
    }
}

#[test]
fn a_request_for_several_locks_is_sent_on_when_one_of_them_left() {
    let mut world = node(2);
    world.number("LOCK.ACQUIRE b alice PX 1000");
    let handle = world.waits(2, "LOCK.MACQUIRE 2 a b bob PX 30000 BLOCK 0");
    leave(&world, &["a"]);
    world.number("LOCK.RELEASE b alice");
    for _ in 0..3 {
        looks(&mut world);
    }
    let moved = PartBuf::Error(format!("MOVED {} host:1", slot_of(b"a")));
    assert_eq!(world.answers, [(handle, vec![moved])]);
}

/// Commands for which the server has checked only the first key.
#[test]
fn keys_that_cannot_be_used_together_are_refused() {
    let mut world = node(1);
    let macquire = |world: &mut World, names: &str| match &world
        .told(&format!("LOCK.MACQUIRE 2 {names} alice PX 1000"))[..]
    {
        [PartBuf::Error(error)] => error.clone(),
        parts => format!("{parts:?}"),
    };
    assert!(!macquire(&mut world, "a b").starts_with("CROSSSLOT"), "the server has seen to it");
    world.inside.borrow_mut().sees_first_key_alone = true;
    assert_eq!(macquire(&mut world, "a b"), CROSS_SLOT);
    assert_eq!(world.error("LOCK.MACQUIRE 3 {c}x {c}y a alice PX 1000"), CROSS_SLOT);
    assert!(macquire(&mut world, "{c}x {c}y").starts_with("[Integer("));
    leave(&world, &["{c}z"]);
    assert_eq!(macquire(&mut world, "{c}x {c}z"), SLOT_IS_MOVING);
    let token = world.number("LOCK.FENCE {c}x");
    for (key, refusal) in
        [("{c}z", Some(SLOT_IS_MOVING)), ("d", Some(CROSS_SLOT)), ("{c}x", None), ("{c}y", None)]
    {
        let number = token.to_string();
        let words = [number.as_bytes(), b"GET", key.as_bytes()];
        world.inside.borrow_mut().reply.clear();
        let may_run = commands::exec(&world, b"{c}x", &words).is_some();
        assert_eq!(may_run, refusal.is_none(), "{key}");
        let wanted: Vec<_> = refusal.map(|text| PartBuf::Error(text.to_owned())).into_iter().collect();
        assert_eq!(world.inside.borrow().reply, wanted, "{key}");
    }
}

#[test]
fn a_server_without_a_cluster_lets_any_keys_be_used_together() {
    let mut world = with_clients(1);
    world.inside.borrow_mut().sees_first_key_alone = true;
    assert!(matches!(world.told("LOCK.MACQUIRE 2 a b alice PX 1000")[..], [PartBuf::Integer(_), ..]));
}

#[test]
fn a_lock_that_left_with_its_slot_is_not_broken() {
    let mut world = node(1);
    world.number("LOCK.ACQUIRE a alice PX 30000");
    world.number("LOCK.ACQUIRE b alice PX 30000");
    leave(&world, &["a"]);
    let gone = world.take(&crate::sim::server::world::at(0, "a"));
    assert!(gone.is_some());
    assert!(world.rests());
    assert!(world.logged().is_empty());
    world.told("DEL b");
    assert!(world.rests());
    assert_eq!(world.logged().len(), 1);
    // The same if the server delivers no events.
    world.inside.borrow_mut().is_unheard = true;
    crate::engine::first_use::look_for_listeners(&world);
    leave(&world, &[]);
    world.number("LOCK.ACQUIRE a alice PX 30000");
    leave(&world, &["a"]);
    world.take(&crate::sim::server::world::at(0, "a"));
    assert!(world.rests());
    assert!(world.logged().is_empty());
}
