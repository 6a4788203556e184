//! The content of the server's log.

use super::given::with_clients;
use crate::engine::describe::Value;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{confirm, server_events};
use crate::sim::server::sim::Sim;

const TOO_MANY: &str = "redislock.group-size is 2, and this shard has";

/// Replicas connect, and the server reports it.
fn have_replicas(sim: &Sim, names: &[&'static str]) {
    let replicas = names.iter().zip(1..).map(|(name, number)| (number, (*name, 0))).collect();
    sim.inside.borrow_mut().replicas = replicas;
    confirm::replica_changed(sim);
}

#[test]
fn a_quarantine_is_logged_when_it_begins_and_when_it_ends() {
    let mut sim = Sim::started_as(Flags::default(), |sim| {
        crate::sim::server::sim::set_number(&sim.shared().settings, "quarantine", 1_000);
    });
    let begun =
        "quarantine: no new lock is granted for 1000 milliseconds, because this server has just started";
    assert!(matches!(&sim.logged()[..], [line] if line.starts_with(begun)));
    assert_eq!(sim.field("quarantine_left_ms"), Value::Number(1_000));
    sim.passes(999);
    server_events::woken(&sim);
    assert!(sim.rests() && sim.logged().is_empty());
    assert_eq!(sim.field("quarantine_left_ms"), Value::Number(1));
    sim.passes(1);
    assert!(sim.rests());
    assert_eq!(sim.logged(), ["quarantine: it is over, locks are granted again"]);
    server_events::woken(&sim);
    assert!(sim.rests() && sim.logged().is_empty(), "once");
    server_events::promoted(&sim);
    let lines = sim.logged();
    assert!(matches!(&lines[..], [line] if line.contains("was promoted")), "{lines:?}");
}

#[test]
fn a_quarantine_ends_without_a_request() {
    let mut sim = Sim::started_as(Flags::default(), |sim| {
        crate::sim::server::sim::set_number(&sim.shared().settings, "quarantine", 1_000);
    });
    sim.logged();
    sim.passes(1_000);
    assert!(sim.rests());
    assert_eq!(sim.logged(), ["quarantine: it is over, locks are granted again"]);
}

#[test]
fn a_quarantine_that_is_called_off_is_logged_at_once() {
    let mut sim = Sim::started_as(Flags::default(), |sim| {
        crate::sim::server::sim::set_number(&sim.shared().settings, "quarantine", 1_000);
    });
    sim.logged();
    sim.sets("quarantine", 0);
    assert!(sim.rests());
    assert_eq!(sim.logged(), ["quarantine: it is over, locks are granted again"]);
}

#[test]
fn locks_that_are_broken_from_outside_are_logged_in_one_line() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.told("DEL k");
    assert!(sim.rests());
    let told = "broken from outside: lock 'k' in database 0: the key was";
    assert!(matches!(&sim.logged()[..], [line] if line.starts_with(told)));
    for name in ["a", "b", "c", "d"] {
        sim.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    sim.told("FLUSHALL SYNC");
    assert!(sim.rests());
    let heard = sim.logged();
    assert!(
        matches!(&heard[..], [line] if line.contains(" in database 0 and 3 more: the key was")),
        "{heard:?}"
    );
    // The log has the same lines if the server delivers no events, and then only the first lock is named.
    sim.shared().events_are_heard.set(false);
    for name in ["a", "b", "c", "d"] {
        sim.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    sim.told("FLUSHALL SYNC");
    assert!(sim.rests());
    assert_eq!(sim.logged(), heard);
    sim.shared().events_are_heard.set(true);
    // An end that a client requests is not logged.
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.number("LOCK.RELEASE k alice");
    assert!(sim.rests() && sim.logged().is_empty());
}

#[test]
fn a_data_set_far_ahead_of_the_clock_is_logged() {
    let loaded_with = |lead_us: u64| {
        let sim = Sim::started();
        let last = sim.wall_us() + lead_us;
        server_events::loading(&sim);
        crate::engine::type_callbacks::load_clock(&sim, last, 0).expect("it is a number");
        server_events::loaded(&sim);
        sim.logged()
    };
    assert!(loaded_with(60_000_000).is_empty());
    let lines = loaded_with(60_000_001);
    assert!(
        matches!(&lines[..], [line] if line.starts_with("the loaded tokens are 60 seconds ahead")),
        "{lines:?}"
    );
    assert!(matches!(&loaded_with(120_000_000)[..], [line] if line.contains(" 120 seconds ")));
}

#[test]
fn more_replicas_than_the_group_has_are_logged_when_they_connect() {
    let sim = with_clients(1);
    sim.confirms();
    sim.logged();
    have_replicas(&sim, &["replica:1", "replica:2"]);
    let lines = sim.logged();
    assert!(matches!(&lines[..], [line] if line.starts_with(&format!("{TOO_MANY} 3 nodes"))), "{lines:?}");
    assert_eq!(sim.field("confirm_replicas_too_many"), Value::Number(1));
    have_replicas(&sim, &["replica:1", "replica:2"]);
    assert!(sim.logged().is_empty(), "it is known");
    have_replicas(&sim, &["replica:1", "replica:2", "replica:3"]);
    let lines = sim.logged();
    assert!(matches!(&lines[..], [line] if line.starts_with(&format!("{TOO_MANY} 4 nodes"))), "{lines:?}");
    have_replicas(&sim, &["replica:1"]);
    assert!(sim.logged().is_empty());
    assert_eq!(sim.field("confirm_replicas_too_many"), Value::Number(0));
    assert_eq!(sim.field("confirm_replicas_missing"), Value::Number(0));
    have_replicas(&sim, &[]);
    assert_eq!(sim.field("confirm_replicas_missing"), Value::Number(1));
    // It does not matter if nothing is confirmed.
    sim.confirms_no_more();
    have_replicas(&sim, &["replica:1", "replica:2", "replica:3"]);
    assert!(sim.logged().is_empty());
}

#[test]
fn a_server_that_does_not_list_its_replicas_is_logged_once() {
    let sim = with_clients(1);
    sim.passes_and_looks(2_000);
    sim.confirms();
    sim.logged();
    sim.inside.borrow_mut().is_silent = true;
    sim.passes_and_looks(999);
    assert!(sim.logged().is_empty(), "once a second");
    sim.passes_and_looks(1);
    let silence = "the server does not answer ROLE (is it renamed?): nothing can be confirmed";
    assert_eq!(sim.logged(), [silence]);
    sim.passes_and_looks(1_000);
    assert!(sim.logged().is_empty(), "it is known");
    sim.inside.borrow_mut().is_silent = false;
    sim.passes_and_looks(1_000);
    sim.inside.borrow_mut().is_silent = true;
    sim.passes_and_looks(1_000);
    assert_eq!(sim.logged(), [silence], "again");
    sim.flags.set(Flags { is_replica: true, ..Flags::default() });
    sim.inside.borrow_mut().is_silent = false;
    sim.passes_and_looks(1_000);
    assert!(sim.logged().is_empty(), "a replica has none");
}

#[test]
fn replicas_without_an_event_are_found_within_a_second() {
    let sim = with_clients(1);
    sim.confirms();
    assert_eq!(sim.field("confirm_replicas"), Value::Number(1));
    sim.inside.borrow_mut().replicas.insert(2, ("replica:2", 0));
    sim.passes_and_looks(999);
    assert_eq!(sim.field("confirm_replicas"), Value::Number(1));
    sim.passes_and_looks(1);
    assert_eq!(sim.field("confirm_replicas"), Value::Number(2));
}

#[test]
fn a_server_that_does_not_report_its_replicas_confirms_nothing() {
    let sim = with_clients(1);
    sim.inside.borrow_mut().is_deaf = true;
    sim.confirms();
    assert_eq!(sim.logged(), ["the server does not tell about its replicas: nothing is confirmed"]);
    assert!(!sim.shared().hears_replicas.is_set());
    let sim = with_clients(1);
    assert!(!sim.shared().hears_replicas.is_set(), "it costs every turn a little");
    sim.confirms();
    assert!(sim.logged().is_empty() && sim.shared().hears_replicas.is_set());
}

impl Sim {
    /// Time passes, and the server's cron comes by.
    fn passes_and_looks(&self, ms: u64) {
        {
            let mut inside = self.inside.borrow_mut();
            inside.boot_us += ms * 1000;
            inside.wall_us += ms * 1000;
        }
        self.cron();
    }
}

/// A server that must have grants confirmed, has no replicas to confirm them, and is in a quarantine: requests wait,
/// and none can be granted.
fn in_a_quarantine_without_replicas(clients: u64) -> Sim {
    let sim = Sim::started_as(Flags::default(), |sim| {
        let settings = &sim.shared().settings;
        settings.set_confirm(1);
        crate::sim::server::sim::set_number(settings, "group-size", 2);
        crate::sim::server::sim::set_number(settings, "quarantine", 60_000);
    });
    (1..=clients).for_each(|client| sim.connect(client));
    sim
}

#[test]
fn requests_that_come_and_go_leave_no_notes_behind_while_nothing_can_be_granted() {
    let mut sim = in_a_quarantine_without_replicas(3);
    let notes = |sim: &Sim| sim.with(|state| state.table.tasks()).expect("nobody is within it");
    sim.waits(3, "LOCK.MACQUIRE 2 x y cid PX 30000 BLOCK 0");
    for count in 0..100 {
        // The first one leaves, so the second may be next: that is noted.
        let keys = format!("k{count} l{count}");
        sim.waits(1, &format!("LOCK.MACQUIRE 2 {keys} ann PX 30000 BLOCK 0"));
        sim.waits(2, &format!("LOCK.MACQUIRE 2 {keys} bob PX 30000 BLOCK 0"));
        assert!(sim.rests());
        sim.client_unblock(1);
        assert!(sim.rests());
        sim.client_unblock(2);
        assert!(sim.rests());
        assert!(notes(&sim) <= 8, "{} notes after {count}", notes(&sim));
    }
    // Requests that still wait are examined as soon as that is of use.
    let told = sim.answers.len();
    sim.passes(60_000);
    sim.inside.borrow_mut().replicas.insert(1, ("replica:1", 0));
    confirm::replica_changed(&sim);
    assert!(sim.rests());
    assert_eq!(notes(&sim), 0);
    assert_eq!((told, sim.field("holds")), (200, Value::Number(2)));
}
