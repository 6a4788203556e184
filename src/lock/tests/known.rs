//! Bugs of the core that are known and not yet mended.
//!
//! Each has a test that shows it, ignored until it is mended, and an arm of [`is_known_bug`] that keeps
//! the random lives and the model clear of it. To mend one: delete its arm, take `ignore` off its test,
//! and pin the new numbers of states in `model.rs`.

use super::input::Input;
use super::judge::Judge;
use super::server::At;
use super::world::World;
use crate::lock::types::Token;

/// Whether this would run into a known bug.
pub(super) fn is_known_bug(input: &Input, world: &World, judge: &Judge) -> bool {
    match *input {
        // An undelivered grant is taken back although its owner was told of it by another answer.
        Input::Acquire { at, owner, .. } | Input::Renew { at, owner, .. } => {
            judge.promises.get(&at).is_some_and(|promise| promise.is_ownerless && promise.owner == owner)
        }
        // An owner can be made to hold what it waits for.
        Input::Restore(at) => world.would_restore_a_waiter(at),
        _ => false,
    }
}

const K: At = At::new(0, "k");

const fn acquire(owner: &'static str, client: u64) -> Input {
    Input::Acquire { at: K, owner, lease_ms: 30_000, wait: Some(0), client, minted: false }
}

/// Lets all this happen before the judge.
fn live(inputs: &[Input]) -> Result<(), String> {
    let (mut world, mut judge) = (World::new(1_000_000, 1_000_000), Judge::default());
    for input in inputs {
        let out = world.step(input)?;
        judge.judge(input, &out, &world)?;
        world.check().map_err(|wrong| format!("{input:?}: {wrong}"))?;
    }
    Ok(())
}

/// Bob's grant is on its way when his first connection closes; he has asked again on a second one and was
/// told that the lock is his. It must not be taken away from him (G1, G9, G10).
#[test]
#[ignore = "Table::take_back does not ask whether the owner was told meanwhile"]
fn a_grant_that_its_owner_knows_of_is_not_taken_back() -> Result<(), String> {
    let release = Input::Release { at: K, owner: "alice", token: None };
    let all = [acquire("alice", 1), acquire("bob", 2), acquire("carol", 3), release, Input::Close(2)];
    live(&[&all[..], &[acquire("bob", 4), Input::Pump]].concat())?;
    let renew = Input::Renew { at: K, owner: "bob", token: None, lease_ms: 30_000, client: 4 };
    live(&[&all[..], &[renew, Input::Pump]].concat())
}

/// Bob waits, and a RESTORE makes him hold: `Table::check` itself says that this must not be.
#[test]
#[ignore = "Table::load leaves the waiting request of the owner in line"]
fn an_owner_does_not_wait_for_what_it_holds() -> Result<(), String> {
    let token = Token::new(2_000_000).ok_or("no token")?;
    let payload = Input::Payload { name: "k", owner: "bob", token, left_ms: 30_000 };
    live(&[acquire("alice", 1), acquire("bob", 2), payload, Input::Restore(K), Input::Pump])
}
