//! Slots that leave a node of a cluster: waiters there are sent on, and leases that came with them.

use super::given::with_clients;
use crate::command::error::{CROSS_SLOT, SLOT_IS_MOVING};
use crate::command::slot::slot_of;
use crate::engine::commands;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::sim::server::inside::{PartBuf, Slot};
use crate::sim::server::sim::Sim;

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

fn node(clients: u64) -> Sim {
    let sim = Sim::started_as(Flags { is_cluster: true, ..Flags::default() }, |_| ());
    (1..=clients).for_each(|client| sim.connect(client));
    sim
}

/// These keys go to another node, with their slots.
fn leave(sim: &Sim, names: &[&'static str]) {
    let mut inside = sim.inside.borrow_mut();
    inside.slots = names.iter().map(|name| (*name, Slot::Elsewhere)).collect();
}

/// The cron runs, and the work that follows.
fn looks(sim: &mut Sim) -> usize {
    sim.cron();
    assert!(sim.rests(), "the event loop goes round and round");
    sim.answers.len()
}

#[test]
fn waiters_of_slots_that_left_are_redirected_some_at_a_time() {
    let mut sim = node(8);
    for (name, client) in NAMES.iter().zip(2..) {
        sim.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
        sim.waits(client, &format!("LOCK.ACQUIRE {name} bob PX 30000 BLOCK 0"));
    }
    assert_eq!(looks(&mut sim), 0);
    leave(&sim, &NAMES[1..]);
    let mut sent_on = 0;
    for _ in 0..8 {
        let now = looks(&mut sim);
        assert!(now - sent_on <= 2, "at most two at a time");
        sent_on = now;
    }
    assert_eq!(sent_on, 6);
    let is_moved = |part: &PartBuf| matches!(part, PartBuf::Error(text) if text.starts_with("MOVED ") && text.ends_with(" host:1"));
    assert!(sim.answers.iter().all(|(_, parts)| parts.len() == 1 && parts.iter().all(is_moved)));
    assert_eq!(sim.with(|state| state.table.waiters()), Some(1), "one slot is still here");
}

#[test]
fn a_waiter_is_redirected_wherever_its_queue_stands_among_others() {
    for name in NAMES {
        let mut sim = node(8);
        for (name, client) in NAMES.iter().zip(2..) {
            sim.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
            sim.waits(client, &format!("LOCK.ACQUIRE {name} bob PX 30000 BLOCK 0"));
        }
        leave(&sim, &[name]);
        let looks = (1..9).find(|_| looks(&mut sim) == 1);
        // Two queues are examined each time.
        assert!(looks.is_some_and(|looks| looks <= 4), "{name}: {looks:?}");
    }
}

#[test]
fn a_server_without_slots_looks_at_its_queues_as_long_as_there_are_any() {
    let mut sim = Sim::started();
    (1..3).for_each(|client| sim.connect(client));
    sim.number("LOCK.ACQUIRE a alice PX 30000");
    assert!(sim.rests());
    sim.cron();
    assert!(sim.is_idle(), "nobody waits");
    sim.waits(2, "LOCK.ACQUIRE a bob PX 30000 BLOCK 0");
    for _ in 0..3 {
        assert!(sim.rests());
        sim.cron();
        assert!(!sim.is_idle(), "the key's time to live may be over");
    }
    assert_eq!(sim.with(|state| state.table.waiters()), Some(1));
}

#[test]
fn a_node_without_queues_looks_at_nothing() {
    let mut sim = node(1);
    sim.number("LOCK.ACQUIRE a alice PX 30000");
    assert!(sim.rests());
    sim.cron();
    assert!(sim.is_idle());
}

/// A node that has loaded leases that connections of another life keep alive, some of slots that are elsewhere.
fn with_kept_leases(names: &[&str], is_cluster: bool, elsewhere: &[&'static str]) -> Sim {
    let mut before = Sim::started();
    before.connect(1);
    for name in names {
        before.number(&format!("LOCK.ACQUIRE {name} alice PX 1000 KEEPALIVE"));
    }
    let mut sim = Sim::started_as(Flags { is_cluster, ..Flags::default() }, |_| ());
    sim.connect(1);
    leave(&sim, elsewhere);
    sim.read_files(&before.save(), &[]).expect("it is read");
    assert!(sim.rests());
    sim
}

fn held(sim: &Sim) -> usize {
    sim.with(|state| state.table.holds()).expect("nobody is within the engine")
}

#[test]
fn a_lease_that_a_connection_of_another_life_kept_runs_out() {
    let mut sim = with_kept_leases(&["a", "b", "c"], false, &[]);
    sim.cron();
    assert!(sim.rests());
    assert_eq!(held(&sim), 3);
    sim.passes(1_000);
    assert!(sim.rests());
    assert_eq!(held(&sim), 0);
}

#[test]
fn a_kept_lease_is_paused_until_its_slot_is_this_nodes() {
    // Some are examined each time. The locks whose slots are elsewhere come last, or first.
    for elsewhere in [&NAMES[3..], &NAMES[..4]] {
        let mut sim = with_kept_leases(&NAMES, true, elsewhere);
        for _ in 0..9 {
            looks(&mut sim);
        }
        sim.passes(1_000);
        assert!(sim.rests());
        assert_eq!(held(&sim), 4, "those of this node are over, and not {elsewhere:?}");
        leave(&sim, &[]);
        for _ in 0..9 {
            looks(&mut sim);
        }
        sim.passes(999);
        assert!(sim.rests());
        assert_eq!(held(&sim), 4, "they run from here on");
        sim.passes(1);
        assert!(sim.rests());
        assert_eq!(held(&sim), 0);
    }
}

#[test]
fn a_kept_lease_runs_only_from_when_its_slot_is_back() {
    let mut sim = with_kept_leases(&NAMES, true, &NAMES[..4]);
    let looks_at_all = |sim: &mut Sim| (0..9).for_each(|_| _ = looks(sim));
    looks_at_all(&mut sim);
    sim.passes(500);
    leave(&sim, &[]);
    looks_at_all(&mut sim);
    for (ms, wanted) in [(500, 4), (499, 4), (1, 0)] {
        sim.passes(ms);
        assert!(sim.rests());
        assert_eq!(held(&sim), wanted);
    }
}

#[test]
fn a_request_for_several_locks_is_sent_on_when_one_of_them_left() {
    let mut sim = node(2);
    sim.number("LOCK.ACQUIRE b alice PX 1000");
    let handle = sim.waits(2, "LOCK.MACQUIRE 2 a b bob PX 30000 BLOCK 0");
    leave(&sim, &["a"]);
    sim.number("LOCK.RELEASE b alice");
    for _ in 0..3 {
        looks(&mut sim);
    }
    let moved = PartBuf::Error(format!("MOVED {} host:1", slot_of(b"a")));
    assert_eq!(sim.answers, [(handle, vec![moved])]);
}

/// Commands for which the server has checked only the first key.
#[test]
fn keys_that_cannot_be_used_together_are_refused() {
    let mut sim = node(1);
    let macquire =
        |sim: &mut Sim, names: &str| match &sim.told(&format!("LOCK.MACQUIRE 2 {names} alice PX 1000"))[..] {
            [PartBuf::Error(error)] => error.clone(),
            parts => format!("{parts:?}"),
        };
    assert!(!macquire(&mut sim, "a b").starts_with("CROSSSLOT"), "the server has seen to it");
    sim.inside.borrow_mut().sees_first_key_alone = true;
    assert_eq!(macquire(&mut sim, "a b"), CROSS_SLOT);
    assert_eq!(sim.error("LOCK.MACQUIRE 3 {c}x {c}y a alice PX 1000"), CROSS_SLOT);
    assert!(macquire(&mut sim, "{c}x {c}y").starts_with("[Integer("));
    leave(&sim, &["{c}z"]);
    assert_eq!(macquire(&mut sim, "{c}x {c}z"), SLOT_IS_MOVING);
    let token = sim.number("LOCK.FENCE {c}x");
    for (key, refusal) in
        [("{c}z", Some(SLOT_IS_MOVING)), ("d", Some(CROSS_SLOT)), ("{c}x", None), ("{c}y", None)]
    {
        let number = token.to_string();
        let words = [number.as_bytes(), b"GET", key.as_bytes()];
        sim.inside.borrow_mut().reply.clear();
        let may_run = commands::exec(&sim, b"{c}x", &words).is_some();
        assert_eq!(may_run, refusal.is_none(), "{key}");
        let wanted: Vec<_> = refusal.map(|text| PartBuf::Error(text.to_owned())).into_iter().collect();
        assert_eq!(sim.inside.borrow().reply, wanted, "{key}");
    }
}

#[test]
fn a_server_without_a_cluster_lets_any_keys_be_used_together() {
    let mut sim = with_clients(1);
    sim.inside.borrow_mut().sees_first_key_alone = true;
    assert!(matches!(sim.told("LOCK.MACQUIRE 2 a b alice PX 1000")[..], [PartBuf::Integer(_), ..]));
}

#[test]
fn a_lock_that_left_with_its_slot_is_not_broken() {
    let mut sim = node(1);
    sim.number("LOCK.ACQUIRE a alice PX 30000");
    sim.number("LOCK.ACQUIRE b alice PX 30000");
    leave(&sim, &["a"]);
    let gone = sim.take(&crate::sim::server::sim::at(0, "a"));
    assert!(gone.is_some());
    assert!(sim.rests());
    assert!(sim.logged().is_empty());
    sim.told("DEL b");
    assert!(sim.rests());
    assert_eq!(sim.logged().len(), 1);
    // The same if the server delivers no events.
    sim.inside.borrow_mut().is_unheard = true;
    crate::engine::lazy_subscribe::look_for_listeners(&sim);
    leave(&sim, &[]);
    sim.number("LOCK.ACQUIRE a alice PX 30000");
    leave(&sim, &["a"]);
    sim.take(&crate::sim::server::sim::at(0, "a"));
    assert!(sim.rests());
    assert!(sim.logged().is_empty());
}
