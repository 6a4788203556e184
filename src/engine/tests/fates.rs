//! The fate of a hold in each sequence of requests of its owner, and of replies that are sent or dropped.

use super::given::with_clients;
use super::revoked::{
    NOBODY, acknowledges, by, cannot_revoke, held, is_granted, is_refused, is_told, passes, that_confirms,
};
use crate::command::error::{COUNTED_UNCONFIRMED, KEPT_UNCONFIRMED, RENEWAL_UNCONFIRMED};
use crate::engine::flags::Flags;
use crate::engine::{confirm, events};
use crate::lock::effect::Event;
use crate::lock::types::Mode;
use crate::sim::server::inside::{PartBuf, Published};
use crate::sim::server::world::{World, at};

/// The events published for locks.
fn published(world: &World) -> Vec<Event> {
    let inside = world.inside.borrow();
    let of_lock = |published: &Published| match published {
        Published::Lock(_, event) => Some(*event),
        Published::Key(..) | Published::All(_) => None,
    };
    inside.published.iter().filter_map(of_lock).collect()
}

/// The remaining lease of Alice on `k`, in milliseconds.
fn left_ms(world: &World) -> u64 {
    let lock_key = at(0, "k");
    world.look(std::slice::from_ref(&lock_key))[&lock_key].holders[0].left_ms
}

/// The only replica goes.
fn loses_replica(world: &mut World) {
    world.inside.borrow_mut().replicas.clear();
    confirm::replica_changed(world);
}

/// `k` is held, and Bob's request for it is granted, but not sent yet.
fn with_reply_under_way(options: &str) -> World {
    let mut world = with_clients(4);
    world.number("LOCK.ACQUIRE k alice PX 60000");
    world.waits(2, &format!("LOCK.ACQUIRE k bob PX 60000 BLOCK 0{options}"));
    world.number("LOCK.RELEASE k alice");
    assert_eq!(held(&world), by(Mode::Exclusive, "bob", 1));
    world
}

#[test]
fn a_renewal_that_is_not_confirmed_delivers_nothing() {
    let mut world = that_confirms();
    let grant = world.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let renewal = world.waits(2, "LOCK.RENEW k alice PX 60000");
    passes(&mut world, 1_001);
    assert!(is_refused(&world, grant) && is_told(&world, renewal, RENEWAL_UNCONFIRMED));
    assert_eq!(held(&world), NOBODY);
}

#[test]
fn a_renewal_that_is_confirmed_delivers_the_hold() {
    let mut world = that_confirms();
    world.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let renewal = world.waits(2, "LOCK.RENEW k alice PX 60000");
    world.disconnect(1);
    acknowledges(&mut world);
    assert!(is_granted(&world, renewal));
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1));
    assert_eq!(world.state().table.undelivered(), 0);
}

#[test]
fn what_waits_to_be_revoked_is_neither_adopted_nor_made_longer_if_nothing_can_be_confirmed() {
    let mut world = that_confirms();
    cannot_revoke(&mut world);
    let before = left_ms(&world);
    loses_replica(&mut world);
    for request in
        ["LOCK.ACQUIRE k alice PX 60000", "LOCK.RENEW k alice PX 60000", "LOCK.MACQUIRE 1 k alice PX 60000"]
    {
        assert!(world.error(request).starts_with("NOREPLICAS "), "{request}");
        assert_eq!(left_ms(&world), before, "{request}");
    }
    world.refuses_writes.set(false);
    passes(&mut world, 101);
    assert_eq!(held(&world), NOBODY);
}

#[test]
fn what_waits_to_be_revoked_is_adopted_by_the_same_request() {
    for request in
        ["LOCK.ACQUIRE k alice PX 20000", "LOCK.RENEW k alice PX 60000", "LOCK.MACQUIRE 1 k alice PX 1000"]
    {
        let mut world = that_confirms();
        cannot_revoke(&mut world);
        world.refuses_writes.set(false);
        let again = world.waits(1, request);
        acknowledges(&mut world);
        assert!(is_granted(&world, again), "{request}: {:?}", world.answers);
        passes(&mut world, 101);
        assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1), "{request}");
    }
}

#[test]
fn what_waits_to_be_revoked_goes_first_if_its_owner_asks_for_something_else() {
    for (request, mode) in [
        ("LOCK.ACQUIRE k alice PX 20000 SHARED", Mode::Shared),
        ("LOCK.ACQUIRE k alice PX 20000 LIMIT 2", Mode::Limit(2)),
        ("LOCK.MACQUIRE 2 k l alice PX 20000", Mode::Exclusive),
    ] {
        let mut world = that_confirms();
        cannot_revoke(&mut world);
        world.refuses_writes.set(false);
        let first_token = world.number("LOCK.FENCE k");
        let again = world.waits(1, request);
        acknowledges(&mut world);
        assert!(is_granted(&world, again), "{request}: {:?}", world.answers);
        assert_eq!(held(&world), by(mode, "alice", 1), "{request}");
        assert!(world.number("LOCK.FENCE k") > first_token, "{request}");
    }
    // A release ends it.
    let mut world = that_confirms();
    cannot_revoke(&mut world);
    world.refuses_writes.set(false);
    assert_eq!(world.number("LOCK.RELEASE k alice"), 1);
    assert_eq!(held(&world), NOBODY);
    passes(&mut world, 101);
    assert_eq!(world.state().table.undelivered(), 0);
}

#[test]
fn a_waiter_comes_before_an_owner_whose_hold_is_revoked_by_its_other_request() {
    let mut world = that_confirms();
    let waiting = world.waits(2, "LOCK.ACQUIRE other bob PX 30000");
    acknowledges(&mut world);
    assert!(is_granted(&world, waiting));
    world.answers.clear();
    cannot_revoke(&mut world);
    let waiting = world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    world.refuses_writes.set(false);
    assert_eq!(world.told("LOCK.ACQUIRE k alice PX 30000 SHARED"), [PartBuf::Null]);
    acknowledges(&mut world);
    assert!(is_granted(&world, waiting));
    assert_eq!(held(&world), by(Mode::Exclusive, "bob", 1));
}

/// A hold that was delivered, and that its owner asks to be otherwise, which is not confirmed.
fn fails_to_change(grant: &str, request: &str) -> World {
    let mut world = that_confirms();
    let grant = world.waits(1, grant);
    acknowledges(&mut world);
    assert!(is_granted(&world, grant));
    world.answers.clear();
    let change = world.waits(2, request);
    passes(&mut world, 1_001);
    assert!(!is_granted(&world, change), "{request}");
    world
}

#[test]
fn what_an_accepted_request_has_set_stays_though_it_is_not_confirmed() {
    let grant = "LOCK.ACQUIRE k alice PX 30000";
    let world = fails_to_change(grant, "LOCK.RENEW k alice PX 9000");
    assert_eq!(left_ms(&world), 9_000 - 1_001, "the shorter lease");
    let world = fails_to_change(grant, "LOCK.ACQUIRE k alice PX 60000");
    assert_eq!(left_ms(&world), 60_000 - 1_001, "the longer lease");
    let mut world = fails_to_change(grant, "LOCK.ACQUIRE k alice PX 30000 SHARED");
    world.answers.clear();
    assert_eq!(held(&world), by(Mode::Shared, "alice", 1), "readers may be in");
    let reader = world.waits(3, "LOCK.ACQUIRE k bob PX 30000 SHARED");
    acknowledges(&mut world);
    assert!(is_granted(&world, reader));
    // The tie to a connection stays where it was moved to.
    for (closes, left) in [(1, 30_000 - 1_001), (2, 5_000)] {
        let mut world = fails_to_change("LOCK.ACQUIRE k alice PX 30000 EPHEMERAL 5000", grant);
        world.disconnect(closes);
        assert_eq!(left_ms(&world), left, "{closes} closes");
    }
}

#[test]
fn a_grant_that_is_dropped_with_its_connection_ends_once() {
    // G15: EPHEMERAL 0 cuts the lease at the same time.
    for options in ["", " EPHEMERAL 0"] {
        let mut world = with_reply_under_way(options);
        let before = published(&world).len();
        world.disconnect(2);
        assert!(world.rests());
        assert_eq!(held(&world), NOBODY, "{options}");
        let ends = published(&world).split_off(before);
        assert!(matches!(ends[..], [Event::Released | Event::Expired]), "{options}: {ends:?}");
        assert_eq!(world.state().table.undelivered(), 0);
    }
}

#[test]
fn each_hold_of_a_request_for_several_has_its_own_fate() {
    let mut world = that_confirms();
    let both = world.waits(1, "LOCK.MACQUIRE 2 k l alice PX 30000");
    passes(&mut world, 900);
    let one = world.waits(2, "LOCK.ACQUIRE k alice PX 30000");
    passes(&mut world, 200);
    assert!(is_refused(&world, both));
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1), "a reply is outstanding for it");
    assert_eq!(world.told("EXISTS l"), [PartBuf::Integer(0)]);
    acknowledges(&mut world);
    assert!(is_granted(&world, one));
    passes(&mut world, 5_000);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn a_delivered_count_stays_when_the_reply_before_it_is_dropped() {
    let mut world = with_reply_under_way(" REENTRANT");
    world.number("LOCK.ACQUIRE k bob PX 60000 REENTRANT");
    assert_eq!(held(&world), by(Mode::Exclusive, "bob", 2));
    world.disconnect(2);
    assert!(world.rests());
    assert_eq!(held(&world), by(Mode::Exclusive, "bob", 2));
}

#[test]
fn an_owner_that_adopts_an_undelivered_hold_counts_from_there() {
    let mut world = with_reply_under_way(" REENTRANT");
    world.disconnect(2);
    world.send_answers();
    let before = world.inside.borrow().stream.len();
    world.number("LOCK.ACQUIRE k bob PX 60000 REENTRANT");
    assert!(world.rests());
    assert_eq!(held(&world), by(Mode::Exclusive, "bob", 1));
    // A replica that reads the request word for word would count.
    let inside = world.inside.borrow();
    assert!(
        inside.stream[before..].iter().all(|told| told.words[0] != b"LOCK.ACQUIRE"),
        "{:?}",
        inside.stream
    );
}

#[test]
fn another_owner_that_was_granted_the_lock_since_keeps_it() {
    // G1, G10
    let mut world = with_reply_under_way("");
    let next = world.waits(3, "LOCK.ACQUIRE k eve PX 60000 BLOCK 0");
    world.disconnect(2);
    assert_eq!(world.number("LOCK.RELEASE k bob"), 1);
    assert!(world.rests());
    assert!(is_granted(&world, next));
    passes(&mut world, 5_000);
    assert_eq!(held(&world), by(Mode::Exclusive, "eve", 1));
    assert_eq!(world.state().table.undelivered(), 0);
}

#[test]
fn what_a_demoted_server_was_to_revoke_is_delivered() {
    let mut world = that_confirms();
    cannot_revoke(&mut world);
    let flags = world.flags.get();
    world.flags.set(Flags { is_replica: true, ..flags });
    events::demoted(&world);
    world.flags.set(flags);
    events::promoted(&world);
    world.refuses_writes.set(false);
    passes(&mut world, 5_000);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1));
    assert_eq!(world.state().table.undelivered(), 0);
}

#[test]
fn a_wait_for_replicas_ends_at_once_when_none_are_required() {
    let mut world = that_confirms();
    let grant = world.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let renewal = world.waits(2, "LOCK.RENEW k alice PX 60000");
    assert!(world.rests());
    world.confirms_no_more();
    assert!(world.rests());
    assert!(is_granted(&world, grant) && is_granted(&world, renewal));
    passes(&mut world, 5_000);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn a_waiter_for_reentrant_or_keepalive_is_refused_at_its_turn_if_grants_are_confirmed_by_then() {
    for (option, reason) in [("REENTRANT", COUNTED_UNCONFIRMED), ("KEEPALIVE", KEPT_UNCONFIRMED)] {
        let mut world = with_clients(4);
        world.number("LOCK.ACQUIRE k alice PX 60000");
        let waiting = world.waits(2, &format!("LOCK.ACQUIRE k bob PX 60000 BLOCK 0 {option}"));
        world.confirms();
        world.number("LOCK.RELEASE k alice");
        acknowledges(&mut world);
        assert!(is_told(&world, waiting, reason), "{:?}", world.answers);
        assert_eq!(held(&world), NOBODY);
    }
}
