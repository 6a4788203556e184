//! Bugs that the random lives and the model found. Each has a test named after it.

use crate::lock::types::{Binding, Mode, Token};
use crate::sim::checkers::judge::Judge;
use crate::sim::single::input::{How, Input, Keys, Reply};
use crate::sim::single::server::At;
use crate::sim::single::world::World;

const K: At = At::new(0, "k");

const fn acquire(owner: &'static str, client: u64) -> Input {
    Input::Acquire { at: K, owner, lease_ms: 30_000, wait: Some(0), client, minted: false, how: How::PLAIN }
}

/// Runs these inputs before the judge.
fn live(inputs: &[Input]) -> Result<(), String> {
    let (mut world, mut judge) = (World::new(1_000_000, 1_000_000), Judge::default());
    for input in inputs {
        let out = world.step(input)?;
        judge.judge(input, &out, &world)?;
        world.check().map_err(|wrong| format!("{input:?}: {wrong}"))?;
    }
    Ok(())
}

/// Bob's grant is under way when his first connection closes. He has repeated his request on a second one and
/// received the lock. It must not be revoked (G1, G9, G10).
#[test]
fn a_grant_that_its_owner_knows_of_is_not_taken_back() -> Result<(), String> {
    let release = Input::Release { at: K, owner: "alice", token: None };
    let all = [acquire("alice", 1), acquire("bob", 2), acquire("carol", 3), release, Input::Close(2)];
    live(&[&all[..], &[acquire("bob", 4), Input::Pump]].concat())?;
    let renew = Input::Renew { at: K, owner: "bob", token: None, raise: None, lease_ms: 30_000, client: 4 };
    live(&[&all[..], &[renew, Input::Pump]].concat())
}

/// Bob waits, and a RESTORE makes him a holder: `Table::check` itself rejects that state.
#[test]
fn an_owner_does_not_wait_for_what_it_holds() -> Result<(), String> {
    let token = Token::new(2_000_000).ok_or("no token")?;
    let payload =
        Input::Payload { name: "k", owner: "bob", token, left_ms: 30_000, how: How::PLAIN, beside: None };
    live(&[acquire("alice", 1), acquire("bob", 2), payload, Input::Restore(K), Input::Pump])
}

/// Bob waits for the exclusive lock, carol waits after him to share it, and a RESTORE makes her one of two readers.
/// She receives the grant, though no request passes bob (G9).
#[test]
fn an_owner_behind_another_does_not_wait_for_what_it_holds() -> Result<(), String> {
    let token = Token::new(2_000_000).ok_or("no token")?;
    let (how, beside) = (How::of(Mode::Shared), Some("dave"));
    let payload = Input::Payload { name: "k", owner: "carol", token, left_ms: 30_000, how, beside };
    let waits = [acquire("alice", 1), acquire("bob", 2), read("carol", 3, Some(0))];
    live(&[&waits[..], &[payload, Input::Restore(K), Input::Pump]].concat())
}

/// A RESTORE brought bob's hold while he waited, so his wait was answered, and that answer was lost. The client that
/// made the payload knows of the hold all the same: it must not be revoked (G10).
#[test]
fn a_restored_hold_is_not_taken_back() -> Result<(), String> {
    let token = Token::new(2_000_000).ok_or("no token")?;
    let payload =
        Input::Payload { name: "k", owner: "bob", token, left_ms: 30_000, how: How::PLAIN, beside: None };
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

/// Alice's lease ends, bob's waiting request is granted and his retry on another connection arrives, all in one step.
/// The hold is bound to the newer connection, and does not end with the older one.
#[test]
fn a_retry_moves_the_binding_of_a_grant_of_the_same_step() -> Result<(), String> {
    let binding = Binding { ephemeral_ms: Some(0), ..Binding::NONE };
    let short = Input::Acquire {
        at: K,
        owner: "alice",
        lease_ms: 10,
        wait: None,
        client: 1,
        minted: false,
        how: How::PLAIN,
    };
    let bound = Input::Acquire {
        at: K,
        owner: "bob",
        lease_ms: 30_000,
        wait: Some(0),
        client: 2,
        minted: false,
        how: How { binding, ..How::PLAIN },
    };
    live(&[
        short,
        bound,
        Input::Pass(20_000),
        acquire("bob", 3),
        Input::Close(2),
        Input::Pump,
        Input::Close(3),
        Input::Pump,
    ])
}

/// Carol waits for two locks, and bob after her for one of them, which is free. The slot of the other one moves away,
/// and she is redirected. Bob is next (G6), although no other event ever comes.
#[test]
fn a_waiter_after_a_redirected_request_for_several_is_next() -> Result<(), String> {
    let m = At::new(0, "m");
    let short = Input::Acquire {
        at: K,
        owner: "alice",
        lease_ms: 10,
        wait: None,
        client: 1,
        minted: false,
        how: How::PLAIN,
    };
    let both = Input::AcquireMany {
        keys: Keys::of(&[K, m]),
        owner: "carol",
        lease_ms: 30_000,
        wait: Some(0),
        client: 3,
        minted: false,
        is_shared: false,
    };
    let behind = Input::Acquire {
        at: m,
        owner: "bob",
        lease_ms: 30_000,
        wait: Some(0),
        client: 2,
        minted: false,
        how: How::PLAIN,
    };
    live(&[short, both, behind, Input::Elsewhere(K, true), Input::Pass(20_000), Input::Pump])
}

/// A lease expires while the slot is elsewhere, so its end is postponed. When the slot has come back, bob has the
/// lock, with a lease that his connection pauses. Nothing is due when the other lease would have been checked again.
#[test]
fn a_paused_lease_is_not_due_where_another_one_was_postponed() -> Result<(), String> {
    let kept = How { binding: Binding { is_keepalive: true, ..Binding::NONE }, ..How::PLAIN };
    let ask = |owner, lease_ms, client, how| Input::Acquire {
        at: K,
        owner,
        lease_ms,
        wait: None,
        client,
        minted: false,
        how,
    };
    live(&[
        ask("alice", 10, 1, How::PLAIN),
        Input::Elsewhere(K, true),
        Input::Pass(20_000),
        Input::Pump,
        Input::Elsewhere(K, false),
        ask("bob", 10, 2, kept),
        Input::Pass(200_000),
        Input::Pump,
    ])
}

/// Returns a plain request for a shared lock.
const fn read(owner: &'static str, client: u64, wait: Option<u64>) -> Input {
    let how = How::of(Mode::Shared);
    Input::Acquire { at: K, owner, lease_ms: 30_000, wait, client, minted: false, how }
}

/// Dave holds the lock, carol has a shared reservation, alice waits after it, and then dave for this lock and another
/// one, both shared: he would make room for himself. (He waits elsewhere, too, or he and alice would wait for each
/// other.) When alice leaves, he is next (G6), as he would be if he made the request then.
#[test]
fn a_waiter_that_holds_the_lock_passes_a_reservation() -> Result<(), String> {
    let [m, n] = ["m", "n"].map(|name| At::new(0, name));
    let wait = Some(0);
    let elsewhere = |owner, client| Input::Acquire {
        at: n,
        owner,
        lease_ms: 30_000,
        wait,
        client,
        minted: false,
        how: How::PLAIN,
    };
    let how = How { is_reservation: true, ..How::of(Mode::Shared) };
    let reservation = Input::Acquire {
        at: K,
        owner: "carol",
        lease_ms: 30_000,
        wait: Some(30_000),
        client: 3,
        minted: false,
        how,
    };
    let both = Input::AcquireMany {
        keys: Keys::of(&[K, m]),
        owner: "dave",
        lease_ms: 30_000,
        wait,
        client: 4,
        minted: false,
        is_shared: true,
    };
    let all =
        [elsewhere("bob", 2), elsewhere("dave", 5), acquire("dave", 4), reservation, acquire("alice", 1)];
    live(&[&all[..], &[both, Input::Close(1), Input::Pump]].concat())
}

/// Dave waits for two locks. Ann's lease of one expires in the millisecond in which dave's request for the other is
/// examined, and that step ends it. Carol, who is ahead of dave there, must be granted it in the same run (G6).
#[test]
fn a_waiter_is_granted_when_a_look_at_several_locks_ends_the_lease() -> Result<(), String> {
    const L: At = At::new(0, "l");
    let take = |at, owner, lease_ms, client| Input::Acquire {
        at,
        owner,
        lease_ms,
        wait: Some(0),
        client,
        minted: false,
        how: How::PLAIN,
    };
    let both = Input::AcquireMany {
        keys: Keys::of(&[K, L]),
        owner: "dave",
        lease_ms: 30_000,
        wait: Some(0),
        client: 4,
        minted: false,
        is_shared: false,
    };
    let inputs = [
        take(L, "bob", 10, 2),
        Input::Pass(300),
        take(K, "ann", 10, 1),
        take(K, "carol", 30_000, 3),
        both,
        // From here on, bob's lease is known to have expired, and ann's has expired without being found.
        Input::Pass(10_200),
        Input::Pump,
    ];
    let mut world = World::new(1_000_000, 1_000_000);
    for input in &inputs {
        world.step(input)?;
    }
    let held = world.server.saved(K).map(|saved| saved.holds[0].owner.to_vec());
    assert_eq!(held.as_deref(), Some(&b"carol"[..]));
    Ok(())
}

/// Alice holds as long as her connection 1 is open. She is granted the whole lock over another connection, which
/// closes before the grant is delivered. Her earlier lease is paused, and must not end before the grant is revoked
/// (G2, G10).
#[test]
fn a_paused_hold_stays_paused_after_a_lost_grant() -> Result<(), String> {
    let (mut world, mut judge) = (World::new(1_000_000, 1_000_000), Judge::default());
    let shared = How::of(Mode::Shared);
    let kept = How { binding: Binding { is_keepalive: true, ..Binding::NONE }, ..shared };
    let acquire = |owner, client, wait, how| Input::Acquire {
        at: K,
        owner,
        lease_ms: 5,
        wait,
        client,
        minted: false,
        how,
    };
    let inputs = [
        acquire("alice", 1, None, kept),
        acquire("bob", 2, None, shared),
        acquire("alice", 3, Some(0), How::PLAIN),
        Input::Release { at: K, owner: "bob", token: None },
        Input::Close(3),
        Input::Pass(6_000),
        acquire("carol", 4, None, How::PLAIN),
        Input::Pump,
    ];
    let mut replies = Vec::new();
    for input in &inputs {
        let out = world.step(input)?;
        judge.judge(input, &out, &world)?;
        world.check()?;
        replies.push(out.reply);
    }
    assert_eq!(replies[6], Reply::Busy, "alice holds the lock");
    assert_eq!(replies[0], Reply::Granted(world.server.live_token(K).ok_or("alice holds nothing")?));
    Ok(())
}

/// Cem has reserved bob's lock, and has not polled in time. Bob may wait for cem's lock: cem no longer waits for
/// anything, though the pump has not run since (G11).
#[test]
fn a_reservation_that_has_lapsed_is_no_wait_of_a_deadlock() -> Result<(), String> {
    let (mut world, mut judge) = (World::new(1_000_000, 1_000_000), Judge::default());
    let m = At::new(0, "m");
    let acquire = |owner, at, client, wait, is_reservation| {
        let how = How { is_reservation, ..How::PLAIN };
        Input::Acquire { at, owner, lease_ms: 30_000, wait, client, minted: false, how }
    };
    let inputs = [
        acquire("bob", K, 1, None, false),
        acquire("cem", m, 2, None, false),
        acquire("cem", K, 2, Some(5), true),
        Input::Pass(6_000),
        acquire("bob", m, 1, Some(0), false),
    ];
    for input in &inputs {
        let out = world.step(input)?;
        assert!(!matches!(out.reply, Reply::Refused(_)), "{input:?}: {:?}", out.reply);
        judge.judge(input, &out, &world)?;
    }
    Ok(())
}

/// Ann has reserved a permit of a semaphore, and a RESTORE makes her hold the exclusive lock. She requests that and
/// another one. She would wait among requests of another kind, for which others would be refused later (LOCKKIND).
#[test]
fn who_holds_one_of_several_does_not_wait_there_among_those_of_another_kind() -> Result<(), String> {
    let (mut world, mut judge) = (World::new(1_000_000, 1_000_000), Judge::default());
    let token = Token::new(2_000_000).ok_or("no token")?;
    let m = At::new(0, "m");
    let take = |owner, at, client, wait, how| {
        let lease_ms = 30_000;
        Input::Acquire { at, owner, lease_ms, wait, client, minted: false, how }
    };
    let place = How { is_reservation: true, ..How::of(Mode::Limit(2)) };
    let (keys, owner) = (Keys::of(&[K, m]), "ann");
    let inputs = [
        take("bob", K, 1, None, How::of(Mode::Limit(2))),
        take("cem", K, 2, None, How::of(Mode::Limit(2))),
        take("dee", m, 3, None, How::PLAIN),
        take(owner, K, 4, Some(9), place),
        Input::Payload { name: "k", owner, token, left_ms: 30_000, how: How::PLAIN, beside: None },
        Input::Restore(K),
        Input::AcquireMany {
            keys,
            owner,
            lease_ms: 9,
            wait: Some(0),
            client: 4,
            minted: false,
            is_shared: false,
        },
    ];
    for input in &inputs {
        let out = world.step(input)?;
        judge.judge(input, &out, &world)?;
        world.check().map_err(|wrong| format!("{input:?}: {wrong}"))?;
    }
    Ok(())
}
