//! Two requests of one owner that one step grants, where grants are confirmed: the hold goes on under the second token.
//!
//! That takes a lease that is over, and a command that ends it before the pump does.

use super::inside::PartBuf;
use super::undone::{acknowledges, is_granted, is_refused, passes, that_confirms};
use super::world::{World, at};

/// A primary on which bob holds this lock for `ms` milliseconds, confirmed, in this way.
fn bob_holds(name: &str, ms: u64, option: &str) -> World {
    let mut world = that_confirms();
    let bob = world.waits(1, &format!("LOCK.ACQUIRE {name} bob PX {ms} {option}"));
    acknowledges(&mut world);
    assert!(is_granted(&world, bob));
    world.answers.clear();
    world
}

/// The owners that hold this lock.
fn owners(world: &World, name: &str) -> Vec<String> {
    let lock_key = at(0, name);
    let seen = world.look(std::slice::from_ref(&lock_key)).remove(&lock_key).unwrap();
    seen.holders.iter().map(|hold| String::from_utf8_lossy(&hold.owner).into_owned()).collect()
}

const NOBODY: [&str; 0] = [];

#[test]
fn a_hold_ends_that_began_and_was_upgraded_in_one_step_if_nobody_confirms_either() {
    // CONTRACT 6: it stayed for the whole lease, though both requests had been refused.
    let mut world = bob_holds("k", 1_000, "");
    let shared = world.waits(2, "LOCK.ACQUIRE k alice PX 30000 SHARED BLOCK 0");
    assert!(world.rests());
    world.passes(1_001);
    let alone = world.waits(3, "LOCK.ACQUIRE k alice PX 30000 BLOCK 0");
    assert_eq!(owners(&world, "k"), ["alice"]);
    passes(&mut world, 1_002);
    assert!(is_refused(&world, shared) && is_refused(&world, alone), "{:?}", world.answers);
    assert_eq!(owners(&world, "k"), NOBODY);
}

#[test]
fn a_renewal_in_whose_step_an_upgrade_is_granted_keeps_the_hold() {
    // CONTRACT 6: it was answered 1, and nobody held the lock by then.
    let mut world = bob_holds("k", 700, "SHARED");
    world.waits(2, "LOCK.ACQUIRE k alice PX 30000 SHARED");
    world.waits(3, "LOCK.ACQUIRE k alice PX 30000 BLOCK 0");
    world.turn();
    world.passes(701);
    let renewal = world.waits(4, "LOCK.RENEW k alice PX 30000");
    world.turn();
    world.close(2);
    world.close(3);
    for _ in 0..5 {
        world.turn();
    }
    assert_eq!(owners(&world, "k"), ["alice"], "the renewal waits for it");
    acknowledges(&mut world);
    assert_eq!(world.answers, [(renewal, vec![PartBuf::Integer(1)])]);
    assert_eq!(owners(&world, "k"), ["alice"]);
}

#[test]
fn a_renewal_in_whose_step_an_upgrade_is_granted_ends_with_it_if_nobody_confirms_either() {
    // CONTRACT 6
    let mut world = bob_holds("k", 700, "SHARED");
    let shared = world.waits(2, "LOCK.ACQUIRE k alice PX 30000 SHARED");
    let alone = world.waits(3, "LOCK.ACQUIRE k alice PX 30000 BLOCK 0");
    world.passes(701);
    world.waits(4, "LOCK.RENEW k alice PX 30000");
    passes(&mut world, 1_002);
    assert!(is_refused(&world, shared) && is_refused(&world, alone), "{:?}", world.answers);
    assert_eq!(owners(&world, "k"), NOBODY);
}
