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

fn is_granted(world: &World, handle: u64) -> bool {
    let told = world.answers.iter().find(|(answered, _)| *answered == handle);
    told.is_some_and(|(_, parts)| matches!(parts[..], [PartBuf::Integer(_)]))
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
    assert!(is_granted(&world, alice), "{:?}", world.answers);
}
