//! What a RESTORE makes of those who wait for the lock that it writes over.

use super::given::with_clients;
use super::inside::PartBuf;
use super::world::{World, at};

/// What a payload says of a lock that this takes.
fn payload_of(acquires: &[&str]) -> String {
    let mut world = with_clients(1);
    for acquire in acquires {
        world.number(acquire);
    }
    world.dump(&at(0, "k")).expect("it is there")
}

fn restores(world: &mut World, payload: &str) {
    world.send(4, 0, &format!("RESTORE k {payload}"));
    assert!(world.rests());
}

/// Bob holds the lock, carol waits for it, and alice behind her by this request. Then it is written over. Returns what
/// carol and alice wait by.
fn restored_over(payload: &str, request: &str) -> (World, u64, u64) {
    let mut world = with_clients(4);
    world.number("LOCK.ACQUIRE k bob PX 60000");
    let carol = world.waits(2, "LOCK.ACQUIRE k carol PX 60000 BLOCK 0");
    let alice = world.waits(3, request);
    restores(&mut world, payload);
    (world, carol, alice)
}

#[test]
fn the_only_holder_upgrades_when_the_waiter_ahead_of_it_leaves() {
    // G6: it waited until its own restored lease was over.
    let payload = payload_of(&["LOCK.ACQUIRE k alice PX 60000 SHARED"]);
    let mut world = with_clients(4);
    world.number("LOCK.ACQUIRE k bob PX 60000");
    world.waits(2, "LOCK.ACQUIRE k carol PX 60000 BLOCK 5000");
    let alice = world.waits(3, "LOCK.ACQUIRE k alice PX 60000 BLOCK 0");
    restores(&mut world, &payload);
    world.close(2);
    assert!(world.rests());
    assert_eq!(told(&world, alice).as_deref(), Some("granted"));
}

fn releases(world: &mut World, owner: &str) {
    world.number(&format!("LOCK.RELEASE k {owner}"));
    assert!(world.rests());
}

/// What a client that waited was told, or `None` while it waits.
fn told(world: &World, handle: u64) -> Option<String> {
    let (_, parts) = world.answers.iter().find(|(answered, _)| *answered == handle)?;
    Some(match &parts[..] {
        [PartBuf::Integer(_)] => "granted".to_owned(),
        [PartBuf::Error(error)] => error.split(' ').next().unwrap_or_default().to_owned(),
        other => format!("{other:?}"),
    })
}

#[test]
fn a_reader_that_waits_to_hold_alone_stands_ahead_as_one_that_asks_now() {
    // G9: it waited at the end of the queue until its own restored lease was over.
    let payload =
        payload_of(&["LOCK.ACQUIRE k alice PX 60000 SHARED", "LOCK.ACQUIRE k dave PX 60000 SHARED"]);
    let (mut world, carol, alice) = restored_over(&payload, "LOCK.ACQUIRE k alice PX 60000 BLOCK 0");
    assert_eq!(told(&world, alice), None, "dave holds, too");
    releases(&mut world, "dave");
    assert_eq!((told(&world, alice).as_deref(), told(&world, carol)), (Some("granted"), None));
    releases(&mut world, "alice");
    assert_eq!(told(&world, carol).as_deref(), Some("granted"));
}

#[test]
fn of_two_readers_that_wait_to_hold_alone_the_first_one_goes_on_waiting() {
    let payload = payload_of(&["LOCK.ACQUIRE k bob PX 60000 SHARED", "LOCK.ACQUIRE k alice PX 60000 SHARED"]);
    let mut world = with_clients(4);
    world.number("LOCK.ACQUIRE k carol PX 60000");
    let alice = world.waits(2, "LOCK.ACQUIRE k alice PX 60000 BLOCK 0");
    let bob = world.waits(3, "LOCK.ACQUIRE k bob PX 60000 BLOCK 0");
    restores(&mut world, &payload);
    assert_eq!((told(&world, alice), told(&world, bob).as_deref()), (None, Some("DEADLOCK")));
    releases(&mut world, "bob");
    assert_eq!(told(&world, alice).as_deref(), Some("granted"));
}

#[test]
fn a_holder_that_waits_to_read_is_granted_that_at_once() {
    let payload = payload_of(&["LOCK.ACQUIRE k alice PX 60000"]);
    let (mut world, carol, alice) = restored_over(&payload, "LOCK.ACQUIRE k alice PX 60000 SHARED BLOCK 0");
    assert_eq!((told(&world, alice).as_deref(), told(&world, carol)), (Some("granted"), None));
    releases(&mut world, "alice");
    assert_eq!(told(&world, carol).as_deref(), Some("granted"));
}

#[test]
fn a_waiter_that_a_restore_gives_a_permit_is_told_of_the_other_kind() {
    for few in [1, 20] {
        let mut acquires = vec!["LOCK.ACQUIRE k alice PX 60000 LIMIT 30".to_owned()];
        acquires.extend((0..few).map(|n| format!("LOCK.ACQUIRE k other{n} PX 60000 LIMIT 30")));
        let payload = payload_of(&acquires.iter().map(String::as_str).collect::<Vec<_>>());
        let (world, carol, alice) = restored_over(&payload, "LOCK.ACQUIRE k alice PX 60000 BLOCK 0");
        assert_eq!((told(&world, alice).as_deref(), told(&world, carol)), (Some("LOCKKIND"), None), "{few}");
    }
}

#[test]
fn a_waiter_that_holds_one_of_very_many_is_told_at_once() {
    let mut acquires: Vec<String> = (0..20).map(|n| format!("LOCK.ACQUIRE k o{n} PX 60000 SHARED")).collect();
    acquires.push("LOCK.ACQUIRE k alice PX 60000 SHARED".to_owned());
    let payload = payload_of(&acquires.iter().map(String::as_str).collect::<Vec<_>>());
    let (world, carol, alice) = restored_over(&payload, "LOCK.ACQUIRE k alice PX 60000 SHARED BLOCK 0");
    assert_eq!((told(&world, alice).as_deref(), told(&world, carol)), (Some("granted"), None));
}
