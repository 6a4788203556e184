//! The fate of a hold in each sequence of requests of its owner, and of replies that are sent or dropped.

use super::given::with_clients;
use super::revoked::{
    NOBODY, acknowledges, by, cannot_revoke, held, is_granted, is_refused, is_told, passes, that_confirms,
};
use crate::command::error::{COUNTED_UNCONFIRMED, KEPT_UNCONFIRMED, RENEWAL_UNCONFIRMED};
use crate::engine::flags::Flags;
use crate::engine::{confirm, server_events};
use crate::lock::effect::Event;
use crate::lock::types::Mode;
use crate::sim::server::inside::{PartBuf, Published};
use crate::sim::server::sim::{Sim, at};

/// The events published for locks.
fn published(sim: &Sim) -> Vec<Event> {
    let inside = sim.inside.borrow();
    let of_lock = |published: &Published| match published {
        Published::Lock(_, event) => Some(*event),
        Published::Key(..) | Published::All(_) => None,
    };
    inside.published.iter().filter_map(of_lock).collect()
}

/// The remaining lease of Alice on `k`, in milliseconds.
fn left_ms(sim: &Sim) -> u64 {
    let lock_key = at(0, "k");
    sim.look(std::slice::from_ref(&lock_key))[&lock_key].holders[0].left_ms
}

/// The only replica goes.
fn loses_replica(sim: &mut Sim) {
    sim.inside.borrow_mut().replicas.clear();
    confirm::replica_changed(sim);
}

/// `k` is held, and Bob's request for it is granted, but not sent yet.
fn with_reply_under_way(options: &str) -> Sim {
    let mut sim = with_clients(4);
    sim.number("LOCK.ACQUIRE k alice PX 60000");
    sim.waits(2, &format!("LOCK.ACQUIRE k bob PX 60000 BLOCK 0{options}"));
    sim.number("LOCK.RELEASE k alice");
    assert_eq!(held(&sim), by(Mode::Exclusive, "bob", 1));
    sim
}

#[test]
fn a_renewal_that_is_not_confirmed_delivers_nothing() {
    let mut sim = that_confirms();
    let grant = sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let renewal = sim.waits(2, "LOCK.RENEW k alice PX 60000");
    passes(&mut sim, 1_001);
    assert!(is_refused(&sim, grant) && is_told(&sim, renewal, RENEWAL_UNCONFIRMED));
    assert_eq!(held(&sim), NOBODY);
}

#[test]
fn a_renewal_that_is_confirmed_delivers_the_hold() {
    let mut sim = that_confirms();
    sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let renewal = sim.waits(2, "LOCK.RENEW k alice PX 60000");
    sim.disconnect(1);
    acknowledges(&mut sim);
    assert!(is_granted(&sim, renewal));
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1));
    assert_eq!(sim.state().table.undelivered(), 0);
}

#[test]
fn what_waits_to_be_revoked_is_neither_adopted_nor_made_longer_if_nothing_can_be_confirmed() {
    let mut sim = that_confirms();
    cannot_revoke(&mut sim);
    let before = left_ms(&sim);
    loses_replica(&mut sim);
    for request in
        ["LOCK.ACQUIRE k alice PX 60000", "LOCK.RENEW k alice PX 60000", "LOCK.MACQUIRE 1 k alice PX 60000"]
    {
        assert!(sim.error(request).starts_with("NOREPLICAS "), "{request}");
        assert_eq!(left_ms(&sim), before, "{request}");
    }
    sim.refuses_writes.set(false);
    passes(&mut sim, 101);
    assert_eq!(held(&sim), NOBODY);
}

#[test]
fn what_waits_to_be_revoked_is_adopted_by_the_same_request() {
    for request in
        ["LOCK.ACQUIRE k alice PX 20000", "LOCK.RENEW k alice PX 60000", "LOCK.MACQUIRE 1 k alice PX 1000"]
    {
        let mut sim = that_confirms();
        cannot_revoke(&mut sim);
        sim.refuses_writes.set(false);
        let again = sim.waits(1, request);
        acknowledges(&mut sim);
        assert!(is_granted(&sim, again), "{request}: {:?}", sim.answers);
        passes(&mut sim, 101);
        assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1), "{request}");
    }
}

#[test]
fn what_waits_to_be_revoked_goes_first_if_its_owner_asks_for_something_else() {
    for (request, mode) in [
        ("LOCK.ACQUIRE k alice PX 20000 SHARED", Mode::Shared),
        ("LOCK.ACQUIRE k alice PX 20000 LIMIT 2", Mode::Limit(2)),
        ("LOCK.MACQUIRE 2 k l alice PX 20000", Mode::Exclusive),
    ] {
        let mut sim = that_confirms();
        cannot_revoke(&mut sim);
        sim.refuses_writes.set(false);
        let first_token = sim.number("LOCK.FENCE k");
        let again = sim.waits(1, request);
        acknowledges(&mut sim);
        assert!(is_granted(&sim, again), "{request}: {:?}", sim.answers);
        assert_eq!(held(&sim), by(mode, "alice", 1), "{request}");
        assert!(sim.number("LOCK.FENCE k") > first_token, "{request}");
    }
    // A release ends it.
    let mut sim = that_confirms();
    cannot_revoke(&mut sim);
    sim.refuses_writes.set(false);
    assert_eq!(sim.number("LOCK.RELEASE k alice"), 1);
    assert_eq!(held(&sim), NOBODY);
    passes(&mut sim, 101);
    assert_eq!(sim.state().table.undelivered(), 0);
}

#[test]
fn a_waiter_comes_before_an_owner_whose_hold_is_revoked_by_its_other_request() {
    let mut sim = that_confirms();
    let waiting = sim.waits(2, "LOCK.ACQUIRE other bob PX 30000");
    acknowledges(&mut sim);
    assert!(is_granted(&sim, waiting));
    sim.answers.clear();
    cannot_revoke(&mut sim);
    let waiting = sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    sim.refuses_writes.set(false);
    assert_eq!(sim.told("LOCK.ACQUIRE k alice PX 30000 SHARED"), [PartBuf::Null]);
    acknowledges(&mut sim);
    assert!(is_granted(&sim, waiting));
    assert_eq!(held(&sim), by(Mode::Exclusive, "bob", 1));
}

/// A hold that was delivered, and that its owner asks to be otherwise, which is not confirmed.
fn fails_to_change(grant: &str, request: &str) -> Sim {
    let mut sim = that_confirms();
    let grant = sim.waits(1, grant);
    acknowledges(&mut sim);
    assert!(is_granted(&sim, grant));
    sim.answers.clear();
    let change = sim.waits(2, request);
    passes(&mut sim, 1_001);
    assert!(!is_granted(&sim, change), "{request}");
    sim
}

#[test]
fn what_an_accepted_request_has_set_stays_though_it_is_not_confirmed() {
    let grant = "LOCK.ACQUIRE k alice PX 30000";
    let sim = fails_to_change(grant, "LOCK.RENEW k alice PX 9000");
    assert_eq!(left_ms(&sim), 9_000 - 1_001, "the shorter lease");
    let sim = fails_to_change(grant, "LOCK.ACQUIRE k alice PX 60000");
    assert_eq!(left_ms(&sim), 60_000 - 1_001, "the longer lease");
    let mut sim = fails_to_change(grant, "LOCK.ACQUIRE k alice PX 30000 SHARED");
    sim.answers.clear();
    assert_eq!(held(&sim), by(Mode::Shared, "alice", 1), "readers may be in");
    let reader = sim.waits(3, "LOCK.ACQUIRE k bob PX 30000 SHARED");
    acknowledges(&mut sim);
    assert!(is_granted(&sim, reader));
    // The tie to a connection stays where it was moved to.
    for (closes, left) in [(1, 30_000 - 1_001), (2, 5_000)] {
        let mut sim = fails_to_change("LOCK.ACQUIRE k alice PX 30000 EPHEMERAL 5000", grant);
        sim.disconnect(closes);
        assert_eq!(left_ms(&sim), left, "{closes} closes");
    }
}

#[test]
fn a_grant_that_is_dropped_with_its_connection_ends_once() {
    // G15: EPHEMERAL 0 cuts the lease at the same time.
    for options in ["", " EPHEMERAL 0"] {
        let mut sim = with_reply_under_way(options);
        let before = published(&sim).len();
        sim.disconnect(2);
        assert!(sim.rests());
        assert_eq!(held(&sim), NOBODY, "{options}");
        let ends = published(&sim).split_off(before);
        assert!(matches!(ends[..], [Event::Released | Event::Expired]), "{options}: {ends:?}");
        assert_eq!(sim.state().table.undelivered(), 0);
    }
}

#[test]
fn each_hold_of_a_request_for_several_has_its_own_fate() {
    let mut sim = that_confirms();
    let both = sim.waits(1, "LOCK.MACQUIRE 2 k l alice PX 30000");
    passes(&mut sim, 900);
    let one = sim.waits(2, "LOCK.ACQUIRE k alice PX 30000");
    passes(&mut sim, 200);
    assert!(is_refused(&sim, both));
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1), "a reply is outstanding for it");
    assert_eq!(sim.told("EXISTS l"), [PartBuf::Integer(0)]);
    acknowledges(&mut sim);
    assert!(is_granted(&sim, one));
    passes(&mut sim, 5_000);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn a_delivered_count_stays_when_the_reply_before_it_is_dropped() {
    let mut sim = with_reply_under_way(" REENTRANT");
    sim.number("LOCK.ACQUIRE k bob PX 60000 REENTRANT");
    assert_eq!(held(&sim), by(Mode::Exclusive, "bob", 2));
    sim.disconnect(2);
    assert!(sim.rests());
    assert_eq!(held(&sim), by(Mode::Exclusive, "bob", 2));
}

#[test]
fn an_owner_that_adopts_an_undelivered_hold_counts_from_there() {
    let mut sim = with_reply_under_way(" REENTRANT");
    sim.disconnect(2);
    sim.send_answers();
    let before = sim.inside.borrow().stream.len();
    sim.number("LOCK.ACQUIRE k bob PX 60000 REENTRANT");
    assert!(sim.rests());
    assert_eq!(held(&sim), by(Mode::Exclusive, "bob", 1));
    // A replica that reads the request word for word would count.
    let inside = sim.inside.borrow();
    assert!(
        inside.stream[before..].iter().all(|told| told.words[0] != b"LOCK.ACQUIRE"),
        "{:?}",
        inside.stream
    );
}

#[test]
fn another_owner_that_was_granted_the_lock_since_keeps_it() {
    // G1, G10
    let mut sim = with_reply_under_way("");
    let next = sim.waits(3, "LOCK.ACQUIRE k eve PX 60000 BLOCK 0");
    sim.disconnect(2);
    assert_eq!(sim.number("LOCK.RELEASE k bob"), 1);
    assert!(sim.rests());
    assert!(is_granted(&sim, next));
    passes(&mut sim, 5_000);
    assert_eq!(held(&sim), by(Mode::Exclusive, "eve", 1));
    assert_eq!(sim.state().table.undelivered(), 0);
}

#[test]
fn what_a_demoted_server_was_to_revoke_is_delivered() {
    let mut sim = that_confirms();
    cannot_revoke(&mut sim);
    let flags = sim.flags.get();
    sim.flags.set(Flags { is_replica: true, ..flags });
    server_events::demoted(&sim);
    sim.flags.set(flags);
    server_events::promoted(&sim);
    sim.refuses_writes.set(false);
    passes(&mut sim, 5_000);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1));
    assert_eq!(sim.state().table.undelivered(), 0);
}

#[test]
fn a_wait_for_replicas_ends_at_once_when_none_are_required() {
    let mut sim = that_confirms();
    let grant = sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let renewal = sim.waits(2, "LOCK.RENEW k alice PX 60000");
    assert!(sim.rests());
    sim.confirms_no_more();
    assert!(sim.rests());
    assert!(is_granted(&sim, grant) && is_granted(&sim, renewal));
    passes(&mut sim, 5_000);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn a_waiter_for_reentrant_or_keepalive_is_refused_at_its_turn_if_grants_are_confirmed_by_then() {
    for (option, reason) in [("REENTRANT", COUNTED_UNCONFIRMED), ("KEEPALIVE", KEPT_UNCONFIRMED)] {
        let mut sim = with_clients(4);
        sim.number("LOCK.ACQUIRE k alice PX 60000");
        let waiting = sim.waits(2, &format!("LOCK.ACQUIRE k bob PX 60000 BLOCK 0 {option}"));
        sim.confirms();
        sim.number("LOCK.RELEASE k alice");
        acknowledges(&mut sim);
        assert!(is_told(&sim, waiting, reason), "{:?}", sim.answers);
        assert_eq!(held(&sim), NOBODY);
    }
}
