//! The fate of undelivered holds, and of those that stay: each sequence with one fate.

use super::given::with_clients;
use crate::command::error::{COUNTED_UNCONFIRMED, DEMOTED, GRANT_UNCONFIRMED, RAISED_UNCONFIRMED};
use crate::engine::clients::Stage;
use crate::engine::confirm;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::lock::types::Mode;
#[cfg(feature = "sabotage")]
use crate::sabotage::{Rule, without};
use crate::sim::server::inside::{PartBuf, Slot};
use crate::sim::server::world::{World, at, words};

/// A primary that confirms by its only replica.
pub(super) fn that_confirms() -> World {
    let world = with_clients(4);
    world.confirms();
    world
}

/// The replica has everything that was carried out so far, and says so.
pub(super) fn acknowledges(world: &mut World) {
    let offset = world.inside.borrow().offset;
    world.inside.borrow_mut().replicas.insert(1, ("replica:1", offset));
    assert!(world.rests());
}

/// Time passes, and all is done that follows.
pub(super) fn passes(world: &mut World, ms: u64) {
    world.passes(ms);
    assert!(world.rests());
}

/// The mode of `k`, and its holders with their counts.
pub(super) fn held(world: &World) -> (Mode, Vec<(String, u32)>) {
    let lock_key = at(0, "k");
    let seen = world.look(std::slice::from_ref(&lock_key)).remove(&lock_key).unwrap();
    let holders =
        seen.holders.iter().map(|hold| (String::from_utf8_lossy(&hold.owner).into_owned(), hold.count));
    (seen.kind.unwrap_or(Mode::Exclusive), holders.collect())
}

pub(super) fn by(mode: Mode, owner: &str, count: u32) -> (Mode, Vec<(String, u32)>) {
    (mode, vec![(owner.to_owned(), count)])
}

pub(super) const NOBODY: (Mode, Vec<(String, u32)>) = (Mode::Exclusive, Vec::new());

pub(super) fn is_told(world: &World, handle: u64, error: &str) -> bool {
    let told = world.answers.iter().find(|(answered, _)| *answered == handle);
    told.is_some_and(|(_, parts)| *parts == [PartBuf::Error(error.to_owned())])
}

pub(super) fn is_refused(world: &World, handle: u64) -> bool {
    is_told(world, handle, GRANT_UNCONFIRMED)
}

pub(super) fn is_granted(world: &World, handle: u64) -> bool {
    let told = world.answers.iter().find(|(answered, _)| *answered == handle);
    told.is_some_and(|(_, parts)| matches!(parts[..], [PartBuf::Integer(_)]))
}

/// A grant was not confirmed, and cannot be revoked, because the server accepts no writes.
pub(super) fn cannot_revoke(world: &mut World) {
    let grant = world.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    world.refuses_writes.set(true);
    passes(world, 1_001);
    assert!(is_told(world, grant, GRANT_UNCONFIRMED));
    world.answers.clear();
    assert_eq!(held(world), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn what_was_to_be_revoked_is_though_nothing_has_to_be_confirmed_any_more() {
    // The lock stayed held until its lease expired, by an owner that did not know.
    let mut world = that_confirms();
    cannot_revoke(&mut world);
    world.confirms_no_more();
    passes(&mut world, 1_001);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1), "nothing is written yet");
    world.refuses_writes.set(false);
    passes(&mut world, 101);
    assert_eq!(held(&world), NOBODY);
    // From here on each reply comes with its request.
    world.number("LOCK.ACQUIRE k bob PX 30000");
    assert_eq!(held(&world), by(Mode::Exclusive, "bob", 1));
}

/// The cluster is down, or up again.
fn is_down(world: &World, is_down: bool) {
    world.inside.borrow_mut().is_cluster_down = is_down;
}

/// This client closes while the cluster is down. The owner's grant stays as long as that.
fn goes_when_the_cluster_is_up(world: &mut World, client: u64, owner: &str) {
    is_down(world, true);
    world.disconnect(client);
    assert!(world.rests());
    assert_eq!(held(world), by(Mode::Exclusive, owner, 1));
    is_down(world, false);
    passes(world, 1_001);
    assert_eq!(held(world), NOBODY);
}

#[test]
fn what_was_to_be_revoked_while_the_cluster_was_down_is_revoked_when_it_is_up_again() {
    // G8: the lock stayed held until its lease expired, by an owner that did not know.
    let mut world = that_confirms();
    let grant = world.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    is_down(&world, true);
    passes(&mut world, 1_001);
    assert!(is_told(&world, grant, GRANT_UNCONFIRMED), "{:?}", world.answers);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1));
    passes(&mut world, 5_000);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1), "nobody knows yet whose it is");
    is_down(&world, false);
    passes(&mut world, 1_001);
    assert_eq!(held(&world), NOBODY);
}

#[test]
fn an_unconfirmed_undelivered_grant_while_the_cluster_is_down_is_revoked_later() {
    let mut world = that_confirms();
    world.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    goes_when_the_cluster_is_up(&mut world, 1, "alice");
}

#[test]
fn an_owner_that_asks_again_when_the_cluster_is_up_keeps_what_was_to_be_revoked() {
    // G1: an owner that receives a grant has the lock.
    let mut world = that_confirms();
    world.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    is_down(&world, true);
    passes(&mut world, 1_001);
    is_down(&world, false);
    world.answers.clear();
    let again = world.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    acknowledges(&mut world);
    assert!(is_granted(&world, again), "{:?}", world.answers);
    passes(&mut world, 5_000);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn pending_revocations_of_a_lock_that_left_with_its_slot_are_forgotten_when_it_is_removed() {
    let mut world = that_confirms();
    world.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    world.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
    passes(&mut world, 1_001);
    let undelivered = |world: &World| world.state().table.undelivered();
    assert_eq!(undelivered(&world), 1, "its key is still here");
    assert!(world.take(&at(0, "k")).is_some());
    passes(&mut world, 1_001);
    assert_eq!(undelivered(&world), 0);
    assert!(world.is_idle());
}

#[test]
fn an_undelivered_grant_is_revoked_when_the_cluster_is_up_again() {
    // G8
    let mut world = with_clients(2);
    world.number("LOCK.ACQUIRE k alice PX 60000");
    world.waits(2, "LOCK.ACQUIRE k bob PX 60000 BLOCK 0");
    world.number("LOCK.RELEASE k alice");
    goes_when_the_cluster_is_up(&mut world, 2, "bob");
}

#[test]
fn readers_receive_a_running_lease_though_the_cluster_was_down_when_its_connection_closed() {
    // G13
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE k alice PX 60000 KEEPALIVE");
    assert!(world.rests());
    let is_told = |world: &World| {
        let inside = world.inside.borrow();
        inside.stream.iter().any(|told| told.words.last().is_some_and(|word| word == b"RUNS"))
    };
    is_down(&world, true);
    world.disconnect(1);
    assert!(world.rests());
    assert!(!is_told(&world));
    is_down(&world, false);
    passes(&mut world, 1_001);
    assert!(is_told(&world));
    assert!(world.is_idle());
}

#[test]
fn an_owner_that_asks_again_before_that_receives_and_keeps_it() {
    // G1: an owner that receives a grant has the lock.
    for request in ["LOCK.ACQUIRE k alice PX 30000", "LOCK.RENEW k alice PX 30000"] {
        let mut world = that_confirms();
        cannot_revoke(&mut world);
        world.confirms_no_more();
        world.refuses_writes.set(false);
        world.number(request);
        passes(&mut world, 101);
        assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1), "{request}");
        world.number("LOCK.ACQUIRE other bob PX 30000");
    }
}

#[test]
fn nothing_counts_and_no_token_is_raised_where_grants_are_confirmed() {
    let mut world = that_confirms();
    assert_eq!(world.error("LOCK.ACQUIRE k alice PX 30000 REENTRANT"), COUNTED_UNCONFIRMED);
    assert_eq!(world.error("LOCK.RENEW k alice PX 30000 RAISE 1"), RAISED_UNCONFIRMED);
}

/// Returns whether an owner still holds the lock that the reply to its second request names, though the first one was
/// given up.
fn keeps_the_hold_of_a_later_request() -> bool {
    let mut world = that_confirms();
    world.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let again = world.waits(2, "LOCK.ACQUIRE k alice PX 30000");
    world.disconnect(1);
    assert!(world.rests());
    acknowledges(&mut world);
    is_granted(&world, again) && held(&world) == by(Mode::Exclusive, "alice", 1)
}

#[test]
fn a_hold_is_not_revoked_while_a_later_request_waits_for_it() {
    // G1: an owner that receives a grant has the lock.
    assert!(keeps_the_hold_of_a_later_request());
}

#[cfg(feature = "sabotage")]
#[test]
fn a_hold_is_revoked_too_early_where_that_rule_is_left_out() {
    assert!(!without(Some(Rule::Outstanding), keeps_the_hold_of_a_later_request));
}

#[test]
fn acquire_names_the_first_reason_in_the_documented_order() {
    // CONTRACT 9: WRONGTYPE, LOCKKIND, LOCKHELD, NOREPLICAS.
    let mut world = that_confirms();
    world.told("SET text words");
    let reader = world.waits(1, "LOCK.ACQUIRE k alice PX 30000 SHARED");
    acknowledges(&mut world);
    assert!(is_granted(&world, reader));
    world.inside.borrow_mut().replicas.clear();
    confirm::replica_changed(&world);
    assert!(world.rests());
    for options in ["", " BLOCK 0", " QUEUE 1000"] {
        for (request, code) in [
            ("LOCK.ACQUIRE text alice PX 30000", "WRONGTYPE "),
            ("LOCK.ACQUIRE k alice PX 30000 LIMIT 2", "LOCKKIND "),
            ("LOCK.ACQUIRE k bob PX 30000 LIMIT 2", "LOCKKIND "),
            ("LOCK.ACQUIRE k alice PX 30000", "LOCKHELD 'k' "),
            ("LOCK.ACQUIRE k alice PX 30000 SHARED", "NOREPLICAS "),
            ("LOCK.ACQUIRE k bob PX 30000", "NOREPLICAS "),
            ("LOCK.ACQUIRE other alice PX 30000", "NOREPLICAS "),
        ] {
            let told = world.error(&format!("{request}{options}"));
            assert!(told.starts_with(code), "{request}{options}: {told}");
        }
    }
    assert_eq!(held(&world), by(Mode::Shared, "alice", 1));
    assert_eq!(world.with(|state| state.table.waiters()), Some(0));
}

#[test]
fn replicas_are_not_asked_while_slots_leave_as_a_whole() {
    let mut world = that_confirms();
    crate::engine::events::slots_leave(&world);
    let handle = world.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    assert!(world.rests());
    assert_eq!(world.inside.borrow().asked, 0, "a question is nobody's key");
    crate::engine::events::slots_have_left_or_stay(&world);
    assert!(world.rests());
    assert_eq!(world.inside.borrow().asked, 1);
    acknowledges(&mut world);
    assert!(is_granted(&world, handle));
}

#[test]
fn readers_receive_a_cut_lease_though_nothing_can_be_confirmed() {
    // G13: a replica that is promoted then would keep a lock for a client that has disconnected.
    for refuses_writes in [false, true] {
        let mut world = that_confirms();
        let grant = world.waits(1, "LOCK.ACQUIRE k alice PX 60000 EPHEMERAL 5000");
        acknowledges(&mut world);
        assert!(is_granted(&world, grant));
        world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        world.inside.borrow_mut().replicas.clear();
        confirm::replica_changed(&world);
        world.refuses_writes.set(refuses_writes);
        let before = world.inside.borrow().stream.len();
        world.disconnect(1);
        assert!(world.rests());
        let cut = |world: &World| {
            let inside = world.inside.borrow();
            let told = inside.stream[before..].iter().map(|told| told.words.clone());
            let told: Vec<_> = told.filter(|words| words.iter().any(|word| word == b"5000")).collect();
            told.len()
        };
        assert_eq!(cut(&world), usize::from(!refuses_writes));
        world.refuses_writes.set(false);
        passes(&mut world, 0);
        passes(&mut world, 60);
        assert_eq!(cut(&world), 1, "they are told once");
        assert_eq!(world.with(|state| state.table.tasks_without_grant()), Some(0));
        passes(&mut world, 5_000);
        assert_eq!(held(&world), NOBODY);
    }
}

#[test]
fn a_rule_that_was_changed_refuses_no_request_and_warns_of_nothing() {
    let mut world = that_confirms();
    cannot_revoke(&mut world);
    let _ = world.logged();
    world.confirms_no_more();
    world.sets("group-size", 0);
    let logged = world.logged();
    assert!(logged.iter().all(|line| !line.contains("not safe")), "{logged:?}");
    world.refuses_writes.set(false);
    // In MULTI, say.
    let flags = Flags { denies_blocking: true, ..world.flags.get() };
    for command in
        ["LOCK.ACQUIRE k alice PX 30000", "LOCK.RENEW k alice PX 30000", "LOCK.ACQUIRE l bob PX 30000"]
    {
        let told = world.told_as(flags, words(command));
        assert!(matches!(told[..], [PartBuf::Integer(_)]), "{command}: {told:?}");
    }
    passes(&mut world, 101);
    assert_eq!(held(&world), by(Mode::Exclusive, "alice", 1), "the owner that was told of it keeps it");
    assert_eq!(pending(&world), (0, 2));
}

/// A primary, and the handles of `count` clients whose grants wait for its only replica.
fn with_pending(count: u64) -> (World, Vec<u64>) {
    let mut world = with_clients(count);
    world.confirms();
    let waits = |client| world.waits(client, &format!("LOCK.ACQUIRE k{client} o{client} PX 30000"));
    let handles = (1..=count).map(waits).collect();
    assert!(world.rests());
    (world, handles)
}

/// The number of waits for replicas, and of holds.
fn pending(world: &World) -> (usize, usize) {
    world.with(|state| (state.confirm.all.len(), state.table.holds())).expect("nobody is within the engine")
}

/// The number of these clients that wait for replicas, as far as they know.
fn confirming(world: &World, handles: &[u64]) -> usize {
    let waits = |handle| {
        world.with(|state| matches!(state.clients.stage(handle), Some(Stage::Confirming(..)))) == Some(true)
    };
    handles.iter().filter(|&&handle| waits(handle)).count()
}

#[test]
fn grants_that_fail_together_are_answered_some_in_a_turn() {
    // G7, G16
    for is_lost in [true, false] {
        let (mut world, handles) = with_pending(12);
        if is_lost {
            world.inside.borrow_mut().replicas.clear();
            confirm::replica_changed(&world);
        } else {
            world.passes(1_001);
        }
        let (mut before, mut turns) = (12, 0);
        while before > 0 {
            world.turn();
            let (now, held) = pending(&world);
            assert!(before - now <= 3, "{is_lost}: {now} wait, {before} did");
            assert!(held >= now, "{is_lost}: {held} hold, {now} wait");
            (before, turns) = (now, turns + 1);
            assert!(turns < 40, "{is_lost}");
        }
        assert!(world.rests());
        assert_eq!(pending(&world), (0, 0));
        assert_eq!(world.answers.len(), 12);
        assert!(handles.iter().all(|&handle| is_refused(&world, handle)), "{:?}", world.answers);
    }
}

#[test]
fn waits_for_replicas_of_a_demoted_server_are_answered_some_in_a_turn() {
    // G7, G16
    for is_promoted in [false, true] {
        let (mut world, mut handles) = with_pending(14);
        world.takes_role(true);
        assert!(confirming(&world, &handles) >= 11, "{} wait", confirming(&world, &handles));
        // One is unblocked, one closes its connection.
        world.client_unblock(14);
        assert_eq!(world.answers.pop(), Some((handles[13], vec![PartBuf::Error(DEMOTED.to_owned())])));
        world.disconnect(13);
        handles.truncate(12);
        if is_promoted {
            world.takes_role(false);
        }
        let mut before = confirming(&world, &handles);
        for _ in 0..9 {
            world.turn();
            let now = confirming(&world, &handles);
            assert!(before - now <= 3, "{now} wait, {before} did");
            before = now;
        }
        assert!(world.rests());
        assert_eq!((before, world.answers.len()), (0, 12));
        assert!(handles.iter().all(|&handle| is_told(&world, handle, DEMOTED)), "{:?}", world.answers);
        assert_eq!(pending(&world), (0, 14), "what they hold is not revoked here");
    }
}
