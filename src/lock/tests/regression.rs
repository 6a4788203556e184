//! Bugs that the random lives and the model found. Each has a test named after it.

use super::input::Input;
use super::judge::Judge;
use super::server::At;
use super::world::World;
use crate::lock::types::Token;

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
fn a_grant_that_its_owner_knows_of_is_not_taken_back() -> Result<(), String> {
    let release = Input::Release { at: K, owner: "alice", token: None };
    let all = [acquire("alice", 1), acquire("bob", 2), acquire("carol", 3), release, Input::Close(2)];
    live(&[&all[..], &[acquire("bob", 4), Input::Pump]].concat())?;
    let renew = Input::Renew { at: K, owner: "bob", token: None, lease_ms: 30_000, client: 4 };
    live(&[&all[..], &[renew, Input::Pump]].concat())
}

/// Bob waits, and a RESTORE makes him hold: `Table::check` itself says that this must not be.
#[test]
fn an_owner_does_not_wait_for_what_it_holds() -> Result<(), String> {
    let token = Token::new(2_000_000).ok_or("no token")?;
    let payload = Input::Payload { name: "k", owner: "bob", token, left_ms: 30_000 };
    live(&[acquire("alice", 1), acquire("bob", 2), payload, Input::Restore(K), Input::Pump])
}

/// A RESTORE brought bob's hold while he waited, so his wait was answered; that answer got lost. Whoever
/// made the payload knows of the hold all the same: it must not be taken back (G10).
#[test]
fn a_restored_hold_is_not_taken_back() -> Result<(), String> {
    let token = Token::new(2_000_000).ok_or("no token")?;
    let payload = Input::Payload { name: "k", owner: "bob", token, left_ms: 30_000 };
    let told = [
        acquire("alice", 1),
        acquire("bob", 2),
        acquire("carol", 3),
        payload,
        Input::Restore(K),
        Input::Pump,
    ];
    live(&[&told[..], &[Input::Close(2), Input::Pump]].concat())
}
