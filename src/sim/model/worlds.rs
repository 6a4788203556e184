//! The small worlds that [`crate::sim::model`] searches in full, or to a depth.
//!
//! # Which tests catch which seeded bugs
//!
//! Each bug was put into a copy of the core by hand, once, before the models ran on the engine, and the tests were
//! run. F is a test of single facts (`reader.rs`), S the stories, P the random lives, 1 to 3 the first models below.
//! Each row lists all tests that caught its bug. Only one bug survived: a reader that shortens a lease at a retry. It
//! cannot matter: a retry is sent only if it makes the lease longer on the primary, and it arrives later.
//!
//! | broken | how | caught by |
//! |---|---|---|
//! | G1 | the pump grants a held lock | S P 1 2 3 |
//! | G1 | an acquire takes a lock that another owner holds | S P 1 2 3 |
//! | G1 | a payload restored under another name keeps its hold | S P |
//! | G2 | a lease ends 1 ms early | S P 1 |
//! | G2 | a retry shortens the lease | S P 1 |
//! | G2 | the remaining lease is rounded down in a dump | P |
//! | G3 | a renewal, or a retry, leaves the old deadline | P 1 |
//! | G3 | the pump checks leases only if no request has a timeout | S P 1 |
//! | G4 | tokens follow the wall clock back | S P |
//! | G4 | a restored token does not raise the clock | S P 3 |
//! | G4 | a snapshot does not raise the clock, or lowers it | S P 3 |
//! | G4 | a reader does not keep a token from the stream | S P 1 2 3 |
//! | G5 | a newcomer takes a free lock past the queue | S P 1 2 |
//! | G5 | the last in the queue is granted first | S P 1 |
//! | G5 | a retry goes to the end of the queue | S P 1 |
//! | G6 | a broken hold is not noted for the pump | S P 1 2 3 |
//! | G6 | SWAPDB, or a lazy FLUSHALL, is not noted | S P 2 |
//! | G6 | a queue is not examined again after refused writes | S P |
//! | G6 | a note is never removed from its queue | S P |
//! | G6 | the queue stops at a request that may not be granted | S P |
//! | G6 | a release deletes the key, and the queue with it | S P 1 2 3 |
//! | G7 | a timeout, or a withdrawal, is not answered | S P 1 |
//! | G7 | a request that was replaced is not answered | S P 1 2 3 |
//! | G7 | a timeout is answered twice | S P 1 |
//! | G7 | a request that waited too long is granted | S P 1 |
//! | G7 | a request that took over an entry has no timeout | P 1 |
//! | G7 | demotion forgets the queues | S P 3 |
//! | G8 | a closed connection stays in the queue | S P 1 |
//! | G8 | an undelivered grant is kept | S P 1 |
//! | G9 | a retry gets a new token | S P 1 2 3 |
//! | G9 | a repeated request is in the queue twice | S P 1 2 3 |
//! | G9 | a holder that repeats its request waits for itself | S P 1 2 3 |
//! | G9 | a wait continues after a RESTORE of a held lock | S P 3 |
//! | G9 | a request that took over an entry keeps the old lease | S P |
//! | G10 | any owner releases | F S P 1 2 3 |
//! | G10 | the token that a release names is not checked | F S P 1 |
//! | G10 | another token revokes a hold | P 1 |
//! | G10 | a grant that its owner has received by now is revoked | P 1 |
//! | G10 | SWAPDB breaks the locks of every database | S P |
//! | G10 | a closed connection ends a hold | P |
//! | G10 | a renamed lock keeps its hold | S P 2 3 |
//! | G13 | a jump of the clock is replicated as the request | S P 3 |
//! | G13 | the same owner's grant after its lease is replicated as the request | P 1 2 |
//! | G13 | an expiry, or a revoked grant, is not replicated | S P 1 |
//! | G13 | a renewal, or a longer retry, is not replicated | S P 1 |
//! | G13 | no token is named in a new file, or in a replica's | S P 3 |
//! | G13 | a restored token counts as replicated | S P 3 |
//! | G13 | a reader counts from its newest token, or from an older life's | P 3 |
//! | G13 | an empty lock keeps its old lock key | S P 2 |
//! | G13 | the end of a hold ends any hold at its key | F |
//!
//! Locks of all kinds, likewise: S the stories, P the random lives, D `deadlocks.rs`, C `holder_lists.rs`. Their
//! models were written later.
//!
//! | G1 | a reader is granted alongside a writer, or one more than the limit; kinds need not agree | S D P |
//! | G1 | a reservation keeps no permit free | S D P |
//! | G3 | the end of a lease in a large list is not checked | C |
//! | G5 | a reader passes a waiting writer | S D P |
//! | G5 | a reservation for the whole lock is passed | D P |
//! | G6 | only one reader of a batch is granted; a downgrade grants no request | S D P |
//! | G6 | a request that leaves several queues is not noted; one for several is never noted | S D P |
//! | G8 | a grant of several locks is not revoked at all keys | D P |
//! | G9 | a retry by a reader is a second hold; in a large list | S D P; C |
//! | G10 | a release with a count ends the hold; any token releases a reader | S P |
//! | G10 | the end of one lease of many ends all | S D P |
//! | G11 | no wait is refused; several wait for any of their locks | S D P |
//! | G11 | a request for several ahead, or a writer between readers, is ignored | S D P |
//! | G11 | a semaphore waits for all of its holders; an owner needs all that it waits for | D P |
//! | G12 | several are taken when one of them is free, or wait in one queue only | S D P |
//! | G13 | readers do not count; a dump forgets the count, or the binding | S P |
//! | G13 | several are replicated for each key; a closed connection is not replicated | S P |
//! | G4 | several that are downgraded get a new token | S P, and the model of several |
//! | G6 | a request after one for several that was redirected is not noted | `regression.rs` alone |
//! | CONTRACT 2 | a retry does not move the binding of a grant of the same step | `regression.rs` alone |
//! | CONTRACT 2 | EPHEMERAL does not cut; KEEPALIVE runs; orphaned holds last forever | S P |
//! | CONTRACT 2 | a binding does not move | P |
//! | CONTRACT 2 | a reservation lasts longer | S P |
//!
//! Holds with undelivered grants, likewise: S the stories, P the random lives, U their model, E
//! `engine/tests/fates.rs`.
//!
//! | G1 | a hold is revoked while a reply that names it is outstanding | U P E |
//! | G8 | nothing is revoked | S U P E |
//! | CONTRACT 6 | the shortcuts are not closed, or open again after a quarantine | S U P |
//! | G6 | a reservation blocks a holder of the lock after it | `regression.rs` alone |
//! | G9 | a waiter that a RESTORE made a holder in another mode, or one of many, keeps waiting | P |

use crate::lock::tests::tuning::Lowered;
use crate::lock::token::JUMP_US;
use crate::lock::types::{Binding, Mode};
#[cfg(feature = "sabotage")]
use crate::sabotage::Rule;
#[cfg(feature = "sabotage")]
use crate::sim::model::wrong_without;
use crate::sim::model::{ANY_DEPTH, K, K1, LEASE_MS, M, Model, Move, check, moves_of, plain};
use crate::sim::single::input::{How, Input};
use crate::sim::single::server::Lazy;

/// Three owners, two connections each, one lock: everything that a client can do.
fn one_lock_model(depth: usize) -> Model {
    let mut moves = moves_of(0..3, |who| {
        vec![
            Move::Acquire { who, at: K, wait: Some(0), connection: 0, how: How::PLAIN },
            Move::Acquire { who, at: K, wait: Some(0), connection: 1, how: How::PLAIN },
            Move::Acquire { who, at: K, wait: Some(1), connection: 0, how: How::PLAIN },
            Move::Acquire { who, at: K, wait: Some(3), connection: 0, how: How::PLAIN },
            Move::Acquire { who, at: K, wait: None, connection: 0, how: How::PLAIN },
            Move::Release { who, at: K },
            Move::ReleaseStale { who, at: K },
            Move::Renew { who, at: K, lease_ms: 1, connection: 0 },
            Move::Renew { who, at: K, lease_ms: 4, connection: 0 },
            Move::Close { who, connection: 0 },
            Move::Close { who, connection: 1 },
        ]
    });
    moves.extend(plain(&[Input::Pass(1000), Input::Pump, Input::Del(K), Input::Set(K)]));
    Model { begin: vec![Input::NewReplica(0), Input::Pump], moves, depth }
}

/// Puts bugs of the core and of the engine back, one at a time: the first states of a model reveal them.
#[cfg(feature = "sabotage")]
#[test]
fn bugs_that_are_put_back_are_found() {
    let rules = [
        Rule::OwnerCheck,
        Rule::Fifo,
        Rule::ExpiryLate,
        Rule::WakeUp,
        Rule::TokenOrder,
        Rule::Replicas,
        Rule::PumpAsked,
    ];
    let of_one_lock = rules.into_iter().map(|rule| (rule, one_lock_model(5)));
    let of_readers = [(Rule::LeaverWakes, readers_and_writers_model(4))];
    for (rule, model) in of_one_lock.chain(of_readers) {
        let wrong = wrong_without(rule, &model);
        let wrong =
            wrong.unwrap_or_else(|| panic!("{rule:?} can be left out, and the model does not notice"));
        println!("{rule:?}: {}", wrong.lines().next().unwrap_or(""));
    }
}

#[test]
fn one_lock() -> Result<(), String> {
    let sometimes = [
        "broken",
        "expired and passed on",
        "granted out of the line",
        "left the line",
        "release refused",
        "renewed",
        "renewed, shorter",
        "replaced",
        "retried",
        "retried, lease kept",
        "taken back",
        "taken back and passed on",
        "timed out",
        "withdrawn",
        "wrong type",
    ];
    check(&one_lock_model(ANY_DEPTH), 1469, &sometimes)
}

/// Two owners, two names, two databases: everything that other clients can do to keys.
#[test]
fn keys_that_go_and_come() -> Result<(), String> {
    let mut moves = moves_of(0..2, |who| {
        // An owner that waits for several locks needs as many connections.
        let on = |at, connection| Move::Acquire { who, at, wait: Some(0), connection, how: How::PLAIN };
        vec![on(K, 0), on(M, 1), on(K1, 2), Move::Release { who, at: K }]
    });
    moves.extend(plain(&[
        Input::Del(K),
        Input::Set(K),
        Input::Rename(K, M),
        Input::Rename(M, K),
        Input::Move(K, 1),
        Input::Swap(0, 1),
        Input::Flush(None, Lazy::No),
        Input::Flush(Some(0), Lazy::Yes),
        Input::Free,
        Input::Pass(LEASE_MS * 1000),
        Input::Pump,
    ]));
    let model = Model { begin: vec![Input::NewReplica(0)], moves, depth: 7 };
    // In none of these states do two owners wait for each other: the second of them is refused.
    let sometimes =
        ["broken", "deadlock", "expired and passed on", "granted out of the line", "waited", "withdrawn"];
    check(&model, 7534, &sometimes)
}

/// Two owners, one lock, and every reader of its stream: replicas, files, files of replicas.
#[test]
fn readers_and_clocks() -> Result<(), String> {
    let mut moves = moves_of(0..2, |who| {
        vec![
            Move::Acquire { who, at: K, wait: Some(0), connection: 0, how: How::PLAIN },
            Move::Release { who, at: K },
        ]
    });
    moves.extend([Move::WallAhead(JUMP_US), Move::WallAhead(JUMP_US - 1), Move::PayloadAhead(5)]);
    moves.extend(plain(&[
        Input::Wall(0),
        Input::Restore(K),
        Input::NewReplica(100),
        Input::NewFile,
        Input::NewFileOfReplica,
        Input::Promote(0),
        Input::Pump,
    ]));
    let model = Model { begin: vec![], moves, depth: ANY_DEPTH };
    let sometimes = ["demoted", "granted out of the line", "promoted", "restored"];
    check(&model, 4_938, &sometimes)
}

/// An acquire that waits, on the owner's first connection.
const fn wait_for(who: usize, how: How) -> Move {
    Move::Acquire { who, at: K, wait: Some(0), connection: 0, how }
}

const SHARED: How = How::of(Mode::Shared);
const ONE_OF_TWO: How = How::of(Mode::Limit(2));

/// Three owners, one lock: readers and writers that change places, leave, and are late.
fn readers_and_writers_model(depth: usize) -> Model {
    let mut moves = moves_of(0..3, |who| {
        vec![
            wait_for(who, How::PLAIN),
            Move::Acquire { who, at: K, wait: Some(0), connection: 1, how: SHARED },
            Move::Acquire { who, at: K, wait: None, connection: 2, how: How::PLAIN },
            Move::Release { who, at: K },
            Move::Close { who, connection: 0 },
        ]
    });
    moves.extend(plain(&[Input::Pass(1000), Input::Pump, Input::Del(K)]));
    Model { begin: vec![Input::NewReplica(0), Input::Pump], moves, depth }
}

fn readers_and_writers_states(states: usize) -> Result<(), String> {
    let model = readers_and_writers_model(ANY_DEPTH);
    let sometimes = [
        "broken",
        "downgraded",
        "expired and passed on",
        "granted beside others",
        "one of several released",
        "held otherwise",
        "taken back",
    ];
    check(&model, states, &sometimes)
}

#[test]
fn readers_and_writers() -> Result<(), String> {
    readers_and_writers_states(416)
}

/// Readers and writers, where three holders make a large list: found by their owners, and ended only by the pump.
#[test]
fn readers_and_writers_where_three_are_many() -> Result<(), String> {
    Lowered::FEW.during(|| readers_and_writers_states(416))
}

/// Readers and writers where one step serves one waiter, and the pump the others.
#[test]
fn readers_and_writers_who_are_served_one_by_one() -> Result<(), String> {
    Lowered::ONE_SERVED.during(|| readers_and_writers_states(427))
}

/// Three owners and a semaphore of two. One of them requests it with a limit of three, another as an exclusive lock.
fn one_of_two_states(states: usize) -> Result<(), String> {
    let mut moves = moves_of(0..3, |who| {
        vec![
            wait_for(who, ONE_OF_TWO),
            Move::Acquire { who, at: K, wait: Some(0), connection: 1, how: ONE_OF_TWO },
            wait_for(who, How::of(Mode::Limit(3))),
            Move::Release { who, at: K },
            Move::ReleaseStale { who, at: K },
            Move::Close { who, connection: 0 },
        ]
    });
    moves.extend(plain(&[Input::Pass(1000), Input::Pump]));
    let model = Model { begin: vec![Input::NewReplica(0)], moves, depth: 9 };
    check(&model, states, &["granted out of the line", "one of several released"])
}

#[test]
fn one_of_two() -> Result<(), String> {
    one_of_two_states(362)
}

/// Three owners and one lock, which each of them may hold at most twice.
#[test]
fn a_lock_held_twice_at_most() -> Result<(), String> {
    let counted = How { is_reentrant: true, ..How::PLAIN };
    let mut moves = moves_of(0..3, |who| {
        vec![
            wait_for(who, counted),
            Move::Acquire { who, at: K, wait: Some(0), connection: 1, how: counted },
            Move::Release { who, at: K },
            Move::ReleaseStale { who, at: K },
            Move::Close { who, connection: 0 },
        ]
    });
    moves.extend(plain(&[Input::Pass(1000), Input::Pump]));
    let model = Model { begin: vec![Input::NewReplica(0)], moves, depth: 9 };
    let sometimes = ["granted out of the line", "held once more", "one count released"];
    Lowered::TWICE.during(|| check(&model, 181, &sometimes))
}

/// Three owners, two locks, acquired alone and together.
fn both_or_none_states(states: usize, sometimes: &[&str]) -> Result<(), String> {
    let mut moves = moves_of(0..3, |who| {
        let on = |at, connection, how| Move::Acquire { who, at, wait: Some(0), connection, how };
        vec![
            on(K, 0, How::PLAIN),
            on(M, 1, SHARED),
            Move::AcquireBoth { who, wait: Some(0), is_shared: false },
            Move::AcquireBoth { who, wait: Some(0), is_shared: true },
            Move::Release { who, at: K },
            Move::Release { who, at: M },
            Move::Close { who, connection: 0 },
        ]
    });
    moves.extend(plain(&[Input::Del(K), Input::Pass(LEASE_MS * 1000), Input::Pump]));
    let model = Model { begin: vec![Input::NewReplica(0)], moves, depth: 6 };
    check(&model, states, &[&["granted several out of the line", "taken back"], sometimes].concat())
}

#[test]
fn both_or_none() -> Result<(), String> {
    both_or_none_states(3344, &["deadlock"])
}

/// Both or none, where a search for deadlocks ends after three holders or requests, and misses some.
#[test]
fn both_or_none_with_searches_of_three_steps() -> Result<(), String> {
    Lowered::steps(3).during(|| both_or_none_states(3938, &["deadlock", "deadlock beyond the search"]))
}

/// Two owners with two connections each, whose holds are bound to them. The server is lost, and a replica promoted.
#[test]
fn connections_that_close() -> Result<(), String> {
    let cut = How { binding: Binding { ephemeral_ms: Some(1), ..Binding::NONE }, ..How::PLAIN };
    let kept = How { binding: Binding { is_keepalive: true, ..Binding::NONE }, ..SHARED };
    let mut moves = moves_of(0..2, |who| {
        let ask = |connection, how| Move::Acquire { who, at: K, wait: Some(0), connection, how };
        vec![
            ask(0, cut),
            ask(0, kept),
            ask(1, How::PLAIN),
            ask(1, SHARED),
            Move::Renew { who, at: K, lease_ms: 3, connection: 1 },
            Move::Release { who, at: K },
            Move::Close { who, connection: 0 },
            Move::Close { who, connection: 1 },
        ]
    });
    moves.extend(plain(&[Input::Pass(1000), Input::Pump, Input::NewReplica(0), Input::Promote(0)]));
    let model = Model { begin: vec![], moves, depth: 7 };
    let sometimes = ["downgraded", "held otherwise", "promoted"];
    check(&model, 4_221, &sometimes)
}

/// Three owners that have a reservation, or wait on a connection.
fn reservations_states(states: usize) -> Result<(), String> {
    let reserved = |how| How { is_reservation: true, ..how };
    let mut moves = moves_of(0..3, |who| {
        let ask = |wait, how| Move::Acquire { who, at: K, wait: Some(wait), connection: 0, how };
        vec![
            ask(2, reserved(How::PLAIN)),
            ask(2, reserved(SHARED)),
            Move::Acquire { who, at: K, wait: Some(0), connection: 1, how: SHARED },
            Move::Acquire { who, at: K, wait: None, connection: 0, how: How::PLAIN },
            Move::Release { who, at: K },
        ]
    });
    moves.extend(plain(&[Input::Pass(1000), Input::Pump]));
    let model = Model { begin: vec![Input::NewReplica(0)], moves, depth: ANY_DEPTH };
    let sometimes = ["place in line", "place lapsed", "place withdrawn", "took its place"];
    check(&model, states, &sometimes)
}

#[test]
fn reservations() -> Result<(), String> {
    reservations_states(1442)
}

/// Reservations, where three holders make a large list: found by their owners, and ended only by the pump. There are
/// more states, because a newcomer may find an expired lease and stay in the queue until the pump runs.
#[test]
fn reservations_where_three_are_many() -> Result<(), String> {
    Lowered::FEW.during(|| reservations_states(1444))
}

/// Three owners, one lock: confirmations of grants fail, at once or later, in any order.
fn grants_that_are_not_confirmed_states(states: usize) -> Result<(), String> {
    let mut moves = moves_of(0..3, |who| {
        vec![
            wait_for(who, How::PLAIN),
            Move::Acquire { who, at: K, wait: Some(0), connection: 1, how: SHARED },
            Move::Release { who, at: K },
        ]
    });
    moves.extend([Move::FailNewest, Move::FailOldest]);
    moves.extend(plain(&[Input::Confirmed, Input::Pump, Input::Pass(LEASE_MS * 1000)]));
    let model = Model { begin: vec![Input::NewReplica(0), Input::Confirm(true)], moves, depth: 7 };
    let sometimes = ["taken back", "taken back and passed on", "retried after an undelivered grant"];
    check(&model, states, &sometimes)
}

#[test]
fn grants_that_are_not_confirmed() -> Result<(), String> {
    grants_that_are_not_confirmed_states(1363)
}

/// Unconfirmed grants, where three holders make a large list.
#[test]
fn grants_that_are_not_confirmed_where_three_are_many() -> Result<(), String> {
    Lowered::FEW.during(|| grants_that_are_not_confirmed_states(1363))
}
