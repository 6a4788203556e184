//! The content of INFO, and that counting for it costs nothing.

use super::given::with_clients;
use crate::engine::describe::{Value, fields};
use crate::engine::flags::Flags;
use crate::engine::{pump, server_events, type_callbacks};
use crate::sim::server::sim::{Sim, words};

fn number(sim: &Sim, name: &str) -> u64 {
    match sim.field(name) {
        Value::Number(number) => number,
        Value::Text(text) => panic!("{name}: {text}"),
    }
}

fn text(sim: &Sim, name: &str) -> String {
    match sim.field(name) {
        Value::Text(text) => text,
        Value::Number(number) => panic!("{name}: {number}"),
    }
}

#[test]
fn info_tells_what_has_happened_and_what_is() {
    let mut sim = with_clients(3);
    let token = sim.number("LOCK.ACQUIRE a alice PX 30000");
    sim.number("LOCK.ACQUIRE s alice PX 30000 SHARED");
    sim.number("LOCK.ACQUIRE s bob PX 30000 SHARED");
    sim.waits(2, "LOCK.ACQUIRE a bob PX 30000 BLOCK 7");
    sim.waits(3, "LOCK.ACQUIRE a carol PX 30000 BLOCK 0");
    sim.passes(7);
    assert!(sim.rests());
    let counts = ["locks", "holds", "waiters", "grants", "timeouts", "releases"];
    assert_eq!(counts.map(|name| number(&sim, name)), [2, 3, 1, 3, 1, 0]);
    sim.number("LOCK.RELEASE a alice");
    assert!(sim.rests());
    assert_eq!(counts.map(|name| number(&sim, name)), [2, 3, 0, 4, 1, 1]);
    assert_eq!(number(&sim, "contended_grants"), 1);
    assert!(number(&sim, "last_token") > token);
    let (p50, max) = (number(&sim, "wait_ms_p50"), number(&sim, "wait_ms_max"));
    assert!(p50 >= 7 && max >= 7, "{p50} {max}");
    let histogram = text(&sim, "hold_ms_histogram");
    assert!(histogram.contains("le_inf=1,sum=7"), "{histogram}");
    assert_eq!(text(&sim, "role"), "primary");
    let names: Vec<&str> = fields(&sim).into_iter().map(|(name, _)| name).collect();
    assert_eq!((names.len(), names[0], names[names.len() - 1]), (34, "role", "top_contended"));
}

#[test]
fn info_tells_what_confirms_and_how_often_it_did() {
    let mut sim = with_clients(2);
    assert_eq!(text(&sim, "confirm"), "local");
    sim.confirms();
    assert_eq!((text(&sim, "confirm").as_str(), number(&sim, "group_size")), ("all", 2));
    sim.waits(1, "LOCK.ACQUIRE a alice PX 30000");
    assert_eq!(number(&sim, "confirm_waits"), 1);
    let offset = sim.inside.borrow().offset;
    sim.inside.borrow_mut().replicas.insert(1, ("replica:1", offset));
    assert!(sim.rests());
    sim.waits(1, "LOCK.ACQUIRE b alice PX 30000");
    sim.passes(1_001);
    assert!(sim.rests());
    let counts = ["confirm_waits", "confirm_successes", "confirm_failures", "confirm_replicas"];
    assert_eq!(counts.map(|name| number(&sim, name)), [0, 1, 1, 1]);
}

#[test]
fn a_replica_says_so_and_has_no_quarantine() {
    let sim = Sim::started();
    sim.sets("quarantine", 1_000);
    server_events::promoted(&sim);
    assert_eq!(number(&sim, "quarantine_left_ms"), 1_000);
    sim.flags.set(Flags { is_replica: true, ..Flags::default() });
    server_events::demoted(&sim);
    assert_eq!((text(&sim, "role").as_str(), number(&sim, "quarantine_left_ms")), ("replica", 0));
}

#[test]
fn info_names_the_locks_that_are_asked_for_most() {
    let mut sim = with_clients(3);
    sim.number("LOCK.ACQUIRE a alice PX 30000");
    sim.told("LOCK.ACQUIRE a bob PX 30000");
    assert_eq!(text(&sim, "top_contended"), "", "nobody wants names");
    sim.sets("top-contended", 5);
    sim.told("LOCK.ACQUIRE a bob PX 30000");
    sim.waits(2, "LOCK.ACQUIRE a bob PX 30000 BLOCK 0");
    sim.told("LOCK.MACQUIRE 2 a b carol PX 30000");
    sim.number("LOCK.ACQUIRE c alice PX 30000");
    assert_eq!(text(&sim, "top_contended"), "db=0,name=a,count=3,error=0;db=0,name=b,count=1,error=0");
    sim.sets("top-contended", 0);
    assert_eq!(text(&sim, "top_contended"), "");
}

#[test]
fn locks_freed_by_another_thread_are_forgotten_bit_by_bit() {
    let mut sim = with_clients(1);
    for name in ["a", "b", "c", "d", "e"] {
        sim.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    sim.told("FLUSHALL ASYNC");
    assert!(sim.rests());
    sim.free_late();
    sim.cron();
    assert!(sim.rests());
    assert!(!pump::has_dead(&sim));
    assert_eq!(number(&sim, "locks"), 0);
}

#[test]
fn a_payload_does_not_run_away_with_the_clock_of_tokens() {
    // G14
    let mut from = with_clients(1);
    from.passes(60_000);
    from.number("LOCK.ACQUIRE k alice PX 30000");
    let payload = from.dump(&crate::sim::server::sim::at(0, "k")).expect("it is there");
    let restore = words(&format!("RESTORE k {payload}"));
    let taken_by = |flags: Flags, set: &dyn Fn(&Sim)| {
        let mut sim = Sim::started_as(flags, |_| ());
        sim.connect(1);
        set(&sim);
        let reply = sim.told_as(flags, restore.clone());
        reply == [crate::sim::server::inside::PartBuf::Ok]
    };
    let (primary, replica) =
        (Flags::default(), Flags { is_replica: true, is_fact: true, ..Flags::default() });
    let loading = Flags { is_loading: true, is_fact: true, ..Flags::default() };
    let close = |sim: &Sim| sim.sets("max-token-lead", 59_999);
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
        let payload = from.dump(&crate::sim::server::sim::at(0, "k")).expect("it is there");
        let flags = Flags { is_replica: true, is_fact: true, ..Flags::default() };
        let mut sim = Sim::started_as(flags, |_| ());
        sim.told_as(flags, words(&format!("RESTORE k {payload}")))
            == [crate::sim::server::inside::PartBuf::Ok]
    };
    let two_days = 2 * 86_400_000;
    assert!(taken_after(two_days));
    assert!(!taken_after(two_days + 1));
}

#[test]
fn a_lock_takes_memory() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let lock =
        sim.inside.borrow().keys[&crate::sim::server::sim::at(0, "k")].value.lock().expect("it is one");
    assert!(type_callbacks::memory(&sim, lock) > 16);
}

#[test]
fn locks_freed_by_another_thread_are_not_counted_and_the_pump_forgets_them() {
    let mut sim = with_clients(1);
    for name in ["a", "b", "c", "d", "e"] {
        sim.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    assert!(sim.rests());
    let gone = std::mem::take(&mut sim.inside.borrow_mut().keys);
    sim.leave_to_thread(gone.into_values().map(|entry| entry.value));
    sim.free_late();
    assert_eq!((number(&sim, "locks"), pump::has_dead(&sim)), (1, true), "nobody waits for it");
    assert_eq!((number(&sim, "locks"), pump::has_dead(&sim)), (0, false));
}
