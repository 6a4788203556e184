//! A lock whose grant waits for replicas leaves with its slot, and comes back. Its owner may have been told of it where it
//! was meanwhile.

use super::inside::{Slot, Told};
use super::undone::{is_refused, passes, that_confirms};
use super::world::{World, at, words};
use crate::engine::server::Server;
use crate::lock::types::{LockKey, Token};

/// Alice has a grant that nobody has confirmed, under this token.
fn granted() -> (World, u64, String) {
    let mut world = that_confirms();
    let grant = world.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    let token = world.look(&[at(0, "k")])[&at(0, "k")].holders[0].token;
    (world, grant, token.expect("it has one").to_string())
}

/// Its slot leaves, with the lock. Returns what goes to another node.
fn leaves(world: &mut World) -> String {
    let payload = world.dump(&at(0, "k")).expect("it is there");
    world.sim.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
    assert!(world.sim.take(&at(0, "k")).is_some());
    assert!(world.rests());
    payload
}

/// It comes back: a key at a time, or as the stream of a slot brings it.
fn comes_back(world: &mut World, payload: &str, token: &str, is_streamed: bool) {
    world.sim.inside.borrow_mut().slots = Vec::new();
    if is_streamed {
        world.apply(&Told { db: 0, words: words(&format!("LOCK.APPLY k HOLD {token} 60000 alice")) });
    } else {
        world.told(&format!("RESTORE k {payload}"));
    }
    assert!(world.rests());
}

fn holds(world: &World) -> bool {
    world.look(&[at(0, "k")])[&at(0, "k")].holders.iter().any(|holder| *holder.owner == *b"alice")
}

#[test]
fn a_grant_that_nobody_confirms_is_not_undone_when_its_lock_has_come_back() {
    // G1: another owner would have been granted the lock.
    for is_streamed in [false, true] {
        let (mut world, grant, token) = granted();
        let payload = leaves(&mut world);
        comes_back(&mut world, &payload, &token, is_streamed);
        passes(&mut world, 1_001);
        assert!(is_refused(&world, grant));
        passes(&mut world, 5_000);
        assert!(holds(&world), "{is_streamed}");
    }
}

#[test]
fn what_could_not_be_undone_in_time_is_not_undone_when_its_lock_has_come_back() {
    for is_streamed in [false, true] {
        let (mut world, _, token) = granted();
        world.sim.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
        passes(&mut world, 1_001);
        assert!(world.sim.state().confirm.all.has_undo(), "its key is still here");
        let payload = leaves(&mut world);
        comes_back(&mut world, &payload, &token, is_streamed);
        passes(&mut world, 5_000);
        assert!(holds(&world), "{is_streamed}");
    }
}

#[test]
fn what_began_of_other_holds_is_undone_though_a_lock_comes_back() {
    let (mut world, grant, token) = granted();
    for (name, owner) in [("k", "bob"), ("other", "alice")] {
        let token = Token::new(token.parse().expect("a number")).expect("it is valid");
        let lock_key = LockKey { db: 0, name: name.as_bytes() };
        world.sim.with(|state| state.confirm.all.came_back(lock_key, owner.as_bytes(), token));
    }
    passes(&mut world, 1_001);
    assert!(is_refused(&world, grant));
    assert!(!holds(&world));
}
