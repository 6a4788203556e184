//! The content of the server's log.

use super::given::with_clients;
use crate::engine::describe::Value;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{confirm, events};
use crate::sim::server::world::World;

const TOO_MANY: &str = "redislock.group-size is 2, and this shard has";

/// Replicas connect, and the server reports it.
fn have_replicas(world: &World, names: &[&'static str]) {
    let replicas = names.iter().zip(1..).map(|(name, number)| (number, (*name, 0))).collect();
    world.inside.borrow_mut().replicas = replicas;
    confirm::replica_changed(world);
}

#[test]
fn a_quarantine_is_logged_when_it_begins_and_when_it_ends() {
    let mut world = World::started_as(Flags::default(), |world| {
        crate::sim::server::world::set_number(&world.shared().settings, "quarantine", 1_000);
    });
    let begun =
        "quarantine: no new lock is granted for 1000 milliseconds, because this server has just started";
    assert!(matches!(&world.logged()[..], [line] if line.starts_with(begun)));
    assert_eq!(world.field("quarantine_left_ms"), Value::Number(1_000));
    world.passes(999);
    events::woken(&world);
    assert!(world.rests() && world.logged().is_empty());
    assert_eq!(world.field("quarantine_left_ms"), Value::Number(1));
    world.passes(1);
    assert!(world.rests());
    assert_eq!(world.logged(), ["quarantine: it is over, locks are granted again"]);
    events::woken(&world);
    assert!(world.rests() && world.logged().is_empty(), "once");
    events::promoted(&world);
    let lines = world.logged();
    assert!(matches!(&lines[..], [line] if line.contains("was promoted")), "{lines:?}");
}

#[test]
fn a_quarantine_ends_without_a_request() {
    let mut world = World::started_as(Flags::default(), |world| {
        crate::sim::server::world::set_number(&world.shared().settings, "quarantine", 1_000);
    });
    world.logged();
    world.passes(1_000);
    assert!(world.rests());
    assert_eq!(world.logged(), ["quarantine: it is over, locks are granted again"]);
}

#[test]
fn a_quarantine_that_is_called_off_is_logged_at_once() {
    let mut world = World::started_as(Flags::default(), |world| {
        crate::sim::server::world::set_number(&world.shared().settings, "quarantine", 1_000);
    });
    world.logged();
    world.sets("quarantine", 0);
    assert!(world.rests());
    assert_eq!(world.logged(), ["quarantine: it is over, locks are granted again"]);
}

#[test]
fn locks_that_are_broken_from_outside_are_logged_in_one_line() {
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.told("DEL k");
    assert!(world.rests());
    let told = "broken from outside: lock 'k' in database 0: the key was";
    assert!(matches!(&world.logged()[..], [line] if line.starts_with(told)));
    for name in ["a", "b", "c", "d"] {
        world.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    world.told("FLUSHALL SYNC");
    assert!(world.rests());
    let heard = world.logged();
    assert!(
        matches!(&heard[..], [line] if line.contains(" in database 0 and 3 more: the key was")),
        "{heard:?}"
    );
    // The log has the same lines if the server delivers no events, and then only the first lock is named.
    world.shared().events_are_heard.set(false);
    for name in ["a", "b", "c", "d"] {
        world.number(&format!("LOCK.ACQUIRE {name} alice PX 30000"));
    }
    world.told("FLUSHALL SYNC");
    assert!(world.rests());
    assert_eq!(world.logged(), heard);
    world.shared().events_are_heard.set(true);
    // An end that a client requests is not logged.
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.number("LOCK.RELEASE k alice");
    assert!(world.rests() && world.logged().is_empty());
}

#[test]
fn a_data_set_far_ahead_of_the_clock_is_logged() {
    let loaded_with = |lead_us: u64| {
        let world = World::started();
        let last = world.wall_us() + lead_us;
        events::loading(&world);
        crate::engine::values::load_clock(&world, last, 0).expect("it is a number");
        events::loaded(&world);
        world.logged()
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
    let world = with_clients(1);
    world.confirms();
    world.logged();
    have_replicas(&world, &["replica:1", "replica:2"]);
    let lines = world.logged();
    assert!(matches!(&lines[..], [line] if line.starts_with(&format!("{TOO_MANY} 3 nodes"))), "{lines:?}");
    assert_eq!(world.field("confirm_replicas_too_many"), Value::Number(1));
    have_replicas(&world, &["replica:1", "replica:2"]);
    assert!(world.logged().is_empty(), "it is known");
    have_replicas(&world, &["replica:1", "replica:2", "replica:3"]);
    let lines = world.logged();
    assert!(matches!(&lines[..], [line] if line.starts_with(&format!("{TOO_MANY} 4 nodes"))), "{lines:?}");
    have_replicas(&world, &["replica:1"]);
    assert!(world.logged().is_empty());
    assert_eq!(world.field("confirm_replicas_too_many"), Value::Number(0));
    assert_eq!(world.field("confirm_replicas_missing"), Value::Number(0));
    have_replicas(&world, &[]);
    assert_eq!(world.field("confirm_replicas_missing"), Value::Number(1));
    // It does not matter if nothing is confirmed.
    world.confirms_no_more();
    have_replicas(&world, &["replica:1", "replica:2", "replica:3"]);
    assert!(world.logged().is_empty());
}

#[test]
fn a_server_that_does_not_list_its_replicas_is_logged_once() {
    let world = with_clients(1);
    world.passes_and_looks(2_000);
    world.confirms();
    world.logged();
    world.inside.borrow_mut().is_silent = true;
    world.passes_and_looks(999);
    assert!(world.logged().is_empty(), "once a second");
    world.passes_and_looks(1);
    let silence = "the server does not answer ROLE (is it renamed?): nothing can be confirmed";
    assert_eq!(world.logged(), [silence]);
    world.passes_and_looks(1_000);
    assert!(world.logged().is_empty(), "it is known");
    world.inside.borrow_mut().is_silent = false;
    world.passes_and_looks(1_000);
    world.inside.borrow_mut().is_silent = true;
    world.passes_and_looks(1_000);
    assert_eq!(world.logged(), [silence], "again");
    world.flags.set(Flags { is_replica: true, ..Flags::default() });
    world.inside.borrow_mut().is_silent = false;
    world.passes_and_looks(1_000);
    assert!(world.logged().is_empty(), "a replica has none");
}

#[test]
fn replicas_without_an_event_are_found_within_a_second() {
    let world = with_clients(1);
    world.confirms();
    assert_eq!(world.field("confirm_replicas"), Value::Number(1));
    world.inside.borrow_mut().replicas.insert(2, ("replica:2", 0));
    world.passes_and_looks(999);
    assert_eq!(world.field("confirm_replicas"), Value::Number(1));
    world.passes_and_looks(1);
    assert_eq!(world.field("confirm_replicas"), Value::Number(2));
}

#[test]
fn a_server_that_does_not_report_its_replicas_confirms_nothing() {
    let world = with_clients(1);
    world.inside.borrow_mut().is_deaf = true;
    world.confirms();
    assert_eq!(world.logged(), ["the server does not tell about its replicas: nothing is confirmed"]);
    assert!(!world.shared().hears_replicas.is_set());
    let world = with_clients(1);
    assert!(!world.shared().hears_replicas.is_set(), "it costs every turn a little");
    world.confirms();
    assert!(world.logged().is_empty() && world.shared().hears_replicas.is_set());
}

impl World {
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
fn in_a_quarantine_without_replicas(clients: u64) -> World {
    let world = World::started_as(Flags::default(), |world| {
        let settings = &world.shared().settings;
        settings.set_confirm(1);
        crate::sim::server::world::set_number(settings, "group-size", 2);
        crate::sim::server::world::set_number(settings, "quarantine", 60_000);
    });
    (1..=clients).for_each(|client| world.connect(client));
    world
}

#[test]
fn requests_that_come_and_go_leave_no_notes_behind_while_nothing_can_be_granted() {
    let mut world = in_a_quarantine_without_replicas(3);
    let notes = |world: &World| world.with(|state| state.table.tasks()).expect("nobody is within it");
    world.waits(3, "LOCK.MACQUIRE 2 x y cid PX 30000 BLOCK 0");
    for count in 0..100 {
        // The first one leaves, so the second may be next: that is noted.
        let keys = format!("k{count} l{count}");
        world.waits(1, &format!("LOCK.MACQUIRE 2 {keys} ann PX 30000 BLOCK 0"));
        world.waits(2, &format!("LOCK.MACQUIRE 2 {keys} bob PX 30000 BLOCK 0"));
        assert!(world.rests());
        world.client_unblock(1);
        assert!(world.rests());
        world.client_unblock(2);
        assert!(world.rests());
        assert!(notes(&world) <= 8, "{} notes after {count}", notes(&world));
    }
    // Requests that still wait are examined as soon as that is of use.
    let told = world.answers.len();
    world.passes(60_000);
    world.inside.borrow_mut().replicas.insert(1, ("replica:1", 0));
    confirm::replica_changed(&world);
    assert!(world.rests());
    assert_eq!(notes(&world), 0);
    assert_eq!((told, world.field("holds")), (200, Value::Number(2)));
}
