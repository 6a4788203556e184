//! The content of INFO, and that counting for it costs nothing.

use super::given::with_clients;
use crate::engine::describe::{Value, fields};
use crate::engine::flags::Flags;
use crate::engine::{events, pump, values};
use crate::sim::server::world::{World, words};

fn number(world: &World, name: &str) -> u64 {
    match world.field(name) {
        Value::Number(number) => number,
        Value::Text(text) => panic!("{name}: {text}"),
    }
}

fn text(world: &World, name: &str) -> String {
    match world.field(name) {
        Value::Text(text) => text,
        Value::Number(number) => panic!("{name}: {number}"),
    }
}

#[test]
fn info_tells_what_has_happened_and_what_is() {
    let mut world = with_clients(3);
    let token = world.number("LOCK.ACQUIRE a alice PX 30000");
    world.number("LOCK.ACQUIRE s alice PX 30000 SHARED");
    world.number("LOCK.ACQUIRE s bob PX 30000 SHARED");
    world.waits(2, "LOCK.ACQUIRE a bob PX 30000 BLOCK 7");
    world.waits(3, "LOCK.ACQUIRE a carol PX 30000 BLOCK 0");
    world.passes(7);
    assert!(world.rests());
    let counts = ["locks", "holds", "waiters", "grants", "timeouts", "releases"];
    assert_eq!(counts.map(|name| number(&world, name)), [2, 3, 1, 3, 1, 0]);
    world.number("LOCK.RELEASE a alice");
    assert!(world.rests());
    assert_eq!(counts.map(|name| number(&world, name)), [2, 3, 0, 4, 1, 1]);
    assert_eq!(number(&world, "contended_grants"), 1);
    assert!(number(&world, "last_token") > token);
    let (p50, max) = (number(&world, "wait_ms_p50"), number(&world, "wait_ms_max"));
    assert!(p50 >= 7 && max >= 7, "{p50} {max}");
    let histogram = text(&world, "hold_ms_histogram");
    assert!(histogram.contains("le_inf=1,sum=7"), "{histogram}");
    assert_eq!(text(&world, "role"), "primary");
    let names: Vec<&str> = fields(&world).into_iter().map(|(name, _)| name).collect();
    assert_eq!((names.len(), names[0], names[names.len() - 1]), (34, "role", "top_contended"));
}

#[test]
fn info_tells_what_confirms_and_how_often_it_did() {
    let mut world = with_clients(2);
    assert_eq!(text(&world, "confirm"), "local");
    world.confirms();
    assert_eq!((text(&world, "confirm").as_str(), number(&world, "group_size")), ("all", 2));
    world.waits(1, "LOCK.ACQUIRE a alice PX 30000");
    assert_eq!(number(&world, "confirm_waits"), 1);
    let offset = world.inside.borrow().offset;
    world.inside.borrow_mut().replicas.insert(1, ("replica:1", offset));
    assert!(world.rests());
    world.waits(1, "LOCK.ACQUIRE b alice PX 30000");
    world.passes(1_001);
    assert!(world.rests());
    let counts = ["confirm_waits", "confirm_successes", "confirm_failures", "confirm_replicas"];
    assert_eq!(counts.map(|name| number(&world, name)), [0, 1, 1, 1]);
}

#[test]
fn a_replica_says_so_and_has_no_quarantine() {
    let world = World::started();
    world.sets("quarantine", 1_000);
    events::promoted(&world);
    assert_eq!(number(&world, "quarantine_left_ms"), 1_000);
    world.flags.set(Flags { is_replica: true, ..Flags::default() });
    events::demoted(&world);
    assert_eq!((text(&world, "role").as_str(), number(&world, "quarantine_left_ms")), ("replica", 0));
}

#[test]
fn info_names_the_locks_that_are_asked_for_most() {
    let mut world = with_clients(3);
    world.number("LOCK.ACQUIRE a alice PX 30000");
    world.told("LOCK.ACQUIRE a bob PX 30000");
    assert_eq!(text(&world, "top_contended"), "", "nobody wants names");
    world.sets("top-contended", 5);
    world.told("LOCK.ACQUIRE a bob PX 30000");
    world.waits(2, "LOCK.ACQUIRE a bob PX 30000 BLOCK 0");
    world.told("LOCK.MACQUIRE 2 a b carol PX 30000");
    world.number("LOCK.ACQUIRE c alice PX 30000");
    assert_eq!(text(&world, "top_contended"), "db=0,name=a,count=3,error=0;db=0,name=b,count=1,error=0");
    world.sets("top-contended", 0);
    assert_eq!(text(&world, "top_contended"), "");
}

#[test]
fn locks_freed_by_another_thread_are_forgotten_bit_by_bit() {
    let mut world = with_clients(1);
    for name in ["a", "b", "c", "d", "e"] {
        world.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    world.told("FLUSHALL ASYNC");
    assert!(world.rests());
    world.free_late();
    world.cron();
    assert!(world.rests());
    assert!(!pump::has_dead(&world));
    assert_eq!(number(&world, "locks"), 0);
}

#[test]
fn a_payload_does_not_run_away_with_the_clock_of_tokens() {
    // G14
    let mut from = with_clients(1);
    from.passes(60_000);
    from.number("LOCK.ACQUIRE k alice PX 30000");
    let payload = from.dump(&crate::sim::server::world::at(0, "k")).expect("it is there");
    let restore = words(&format!("RESTORE k {payload}"));
    let taken_by = |flags: Flags, set: &dyn Fn(&World)| {
        let mut world = World::started_as(flags, |_| ());
        world.connect(1);
        set(&world);
        let reply = world.told_as(flags, restore.clone());
        reply == [crate::sim::server::inside::PartBuf::Ok]
    };
    let (primary, replica) =
        (Flags::default(), Flags { is_replica: true, is_fact: true, ..Flags::default() });
    let loading = Flags { is_loading: true, is_fact: true, ..Flags::default() };
    let close = |world: &World| world.sets("max-token-lead", 59_999);
    assert!(taken_by(primary, &|_| ()), "just as far as it may be");
    assert!(!taken_by(primary, &close));
    assert!(taken_by(replica, &close), "what a primary sends has passed the primary's bound");
    assert!(taken_by(loading, &close), "a file is believed");
}

#[test]
fn a_replica_accepts_only_what_a_primary_may_send() {
    // G14
    let taken_after = |ms: u64| {
        let mut from = with_clients(1);
        from.passes(ms);
        from.number("LOCK.ACQUIRE k alice PX 30000");
        let payload = from.dump(&crate::sim::server::world::at(0, "k")).expect("it is there");
        let flags = Flags { is_replica: true, is_fact: true, ..Flags::default() };
        let mut world = World::started_as(flags, |_| ());
        world.told_as(flags, words(&format!("RESTORE k {payload}")))
            == [crate::sim::server::inside::PartBuf::Ok]
    };
    let two_days = 2 * 86_400_000;
    assert!(taken_after(two_days));
    assert!(!taken_after(two_days + 1));
}

#[test]
fn a_lock_takes_memory() {
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    let lock =
        world.inside.borrow().keys[&crate::sim::server::world::at(0, "k")].value.lock().expect("it is one");
    assert!(values::memory(&world, lock) > 16);
}

#[test]
fn locks_freed_by_another_thread_are_not_counted_and_the_pump_forgets_them() {
    let mut world = with_clients(1);
    for name in ["a", "b", "c", "d", "e"] {
        world.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    assert!(world.rests());
    let gone = std::mem::take(&mut world.inside.borrow_mut().keys);
    world.leave_to_thread(gone.into_values().map(|entry| entry.value));
    world.free_late();
    assert_eq!((number(&world, "locks"), pump::has_dead(&world)), (1, true), "nobody waits for it");
    assert_eq!((number(&world, "locks"), pump::has_dead(&world)), (0, false));
}
