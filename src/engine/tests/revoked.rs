//! The fate of undelivered holds, and of those that stay: each sequence with one fate.

use super::given::with_clients;
use crate::command::error::{COUNTED_UNCONFIRMED, DEMOTED, GRANT_UNCONFIRMED, RAISED_UNCONFIRMED};
use crate::engine::blocked_clients::Stage;
use crate::engine::confirm;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::lock::types::Mode;
#[cfg(feature = "sabotage")]
use crate::sabotage::{Rule, without};
use crate::sim::server::inside::{PartBuf, Slot};
use crate::sim::server::sim::{Sim, at, words};

/// A primary that confirms by its only replica.
pub(super) fn that_confirms() -> Sim {
    let sim = with_clients(4);
    sim.confirms();
    sim
}

/// The replica has everything that was carried out so far, and says so.
pub(super) fn acknowledges(sim: &mut Sim) {
    let offset = sim.inside.borrow().offset;
    sim.inside.borrow_mut().replicas.insert(1, ("replica:1", offset));
    assert!(sim.rests());
}

/// Time passes, and all is done that follows.
pub(super) fn passes(sim: &mut Sim, ms: u64) {
    sim.passes(ms);
    assert!(sim.rests());
}

/// The mode of `k`, and its holders with their counts.
pub(super) fn held(sim: &Sim) -> (Mode, Vec<(String, u32)>) {
    let lock_key = at(0, "k");
    let seen = sim.look(std::slice::from_ref(&lock_key)).remove(&lock_key).unwrap();
    let holders =
        seen.holders.iter().map(|hold| (String::from_utf8_lossy(&hold.owner).into_owned(), hold.count));
    (seen.kind.unwrap_or(Mode::Exclusive), holders.collect())
}

pub(super) fn by(mode: Mode, owner: &str, count: u32) -> (Mode, Vec<(String, u32)>) {
    (mode, vec![(owner.to_owned(), count)])
}

pub(super) const NOBODY: (Mode, Vec<(String, u32)>) = (Mode::Exclusive, Vec::new());

pub(super) fn is_told(sim: &Sim, handle: u64, error: &str) -> bool {
    let told = sim.answers.iter().find(|(answered, _)| *answered == handle);
    told.is_some_and(|(_, parts)| *parts == [PartBuf::Error(error.to_owned())])
}

pub(super) fn is_refused(sim: &Sim, handle: u64) -> bool {
    is_told(sim, handle, GRANT_UNCONFIRMED)
}

pub(super) fn is_granted(sim: &Sim, handle: u64) -> bool {
    let told = sim.answers.iter().find(|(answered, _)| *answered == handle);
    told.is_some_and(|(_, parts)| matches!(parts[..], [PartBuf::Integer(_)]))
}

/// A grant was not confirmed, and cannot be revoked, because the server accepts no writes.
pub(super) fn cannot_revoke(sim: &mut Sim) {
    let grant = sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    sim.refuses_writes.set(true);
    passes(sim, 1_001);
    assert!(is_told(sim, grant, GRANT_UNCONFIRMED));
    sim.answers.clear();
    assert_eq!(held(sim), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn what_was_to_be_revoked_is_though_nothing_has_to_be_confirmed_any_more() {
    // The lock stayed held until its lease expired, by an owner that did not know.
    let mut sim = that_confirms();
    cannot_revoke(&mut sim);
    sim.confirms_no_more();
    passes(&mut sim, 1_001);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1), "nothing is written yet");
    sim.refuses_writes.set(false);
    passes(&mut sim, 101);
    assert_eq!(held(&sim), NOBODY);
    // From here on each reply comes with its request.
    sim.number("LOCK.ACQUIRE k bob PX 30000");
    assert_eq!(held(&sim), by(Mode::Exclusive, "bob", 1));
}

/// The cluster is down, or up again.
fn is_down(sim: &Sim, is_down: bool) {
    sim.inside.borrow_mut().is_cluster_down = is_down;
}

/// This client closes while the cluster is down. The owner's grant stays as long as that.
fn goes_when_the_cluster_is_up(sim: &mut Sim, client: u64, owner: &str) {
    is_down(sim, true);
    sim.disconnect(client);
    assert!(sim.rests());
    assert_eq!(held(sim), by(Mode::Exclusive, owner, 1));
    is_down(sim, false);
    passes(sim, 1_001);
    assert_eq!(held(sim), NOBODY);
}

#[test]
fn what_was_to_be_revoked_while_the_cluster_was_down_is_revoked_when_it_is_up_again() {
    // G8: the lock stayed held until its lease expired, by an owner that did not know.
    let mut sim = that_confirms();
    let grant = sim.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    is_down(&sim, true);
    passes(&mut sim, 1_001);
    assert!(is_told(&sim, grant, GRANT_UNCONFIRMED), "{:?}", sim.answers);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1));
    passes(&mut sim, 5_000);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1), "nobody knows yet whose it is");
    is_down(&sim, false);
    passes(&mut sim, 1_001);
    assert_eq!(held(&sim), NOBODY);
}

#[test]
fn an_unconfirmed_undelivered_grant_while_the_cluster_is_down_is_revoked_later() {
    let mut sim = that_confirms();
    sim.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    goes_when_the_cluster_is_up(&mut sim, 1, "alice");
}

#[test]
fn an_owner_that_asks_again_when_the_cluster_is_up_keeps_what_was_to_be_revoked() {
    // G1: an owner that receives a grant has the lock.
    let mut sim = that_confirms();
    sim.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    is_down(&sim, true);
    passes(&mut sim, 1_001);
    is_down(&sim, false);
    sim.answers.clear();
    let again = sim.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    acknowledges(&mut sim);
    assert!(is_granted(&sim, again), "{:?}", sim.answers);
    passes(&mut sim, 5_000);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1));
}

#[test]
fn pending_revocations_of_a_lock_that_left_with_its_slot_are_forgotten_when_it_is_removed() {
    let mut sim = that_confirms();
    sim.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    sim.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
    passes(&mut sim, 1_001);
    let undelivered = |sim: &Sim| sim.state().table.undelivered();
    assert_eq!(undelivered(&sim), 1, "its key is still here");
    assert!(sim.take(&at(0, "k")).is_some());
    passes(&mut sim, 1_001);
    assert_eq!(undelivered(&sim), 0);
    assert!(sim.is_idle());
}

#[test]
fn an_undelivered_grant_is_revoked_when_the_cluster_is_up_again() {
    // G8
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 60000");
    sim.waits(2, "LOCK.ACQUIRE k bob PX 60000 BLOCK 0");
    sim.number("LOCK.RELEASE k alice");
    goes_when_the_cluster_is_up(&mut sim, 2, "bob");
}

#[test]
fn readers_receive_a_running_lease_though_the_cluster_was_down_when_its_connection_closed() {
    // G13
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 60000 KEEPALIVE");
    assert!(sim.rests());
    let is_told = |sim: &Sim| {
        let inside = sim.inside.borrow();
        inside.stream.iter().any(|told| told.words.last().is_some_and(|word| word == b"RUNS"))
    };
    is_down(&sim, true);
    sim.disconnect(1);
    assert!(sim.rests());
    assert!(!is_told(&sim));
    is_down(&sim, false);
    passes(&mut sim, 1_001);
    assert!(is_told(&sim));
    assert!(sim.is_idle());
}

#[test]
fn an_owner_that_asks_again_before_that_receives_and_keeps_it() {
    // G1: an owner that receives a grant has the lock.
    for request in ["LOCK.ACQUIRE k alice PX 30000", "LOCK.RENEW k alice PX 30000"] {
        let mut sim = that_confirms();
        cannot_revoke(&mut sim);
        sim.confirms_no_more();
        sim.refuses_writes.set(false);
        sim.number(request);
        passes(&mut sim, 101);
        assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1), "{request}");
        sim.number("LOCK.ACQUIRE other bob PX 30000");
    }
}

#[test]
fn nothing_counts_and_no_token_is_raised_where_grants_are_confirmed() {
    let mut sim = that_confirms();
    assert_eq!(sim.error("LOCK.ACQUIRE k alice PX 30000 REENTRANT"), COUNTED_UNCONFIRMED);
    assert_eq!(sim.error("LOCK.RENEW k alice PX 30000 RAISE 1"), RAISED_UNCONFIRMED);
}

/// Returns whether an owner still holds the lock that the reply to its second request names, though the first one was
/// given up.
fn keeps_the_hold_of_a_later_request() -> bool {
    let mut sim = that_confirms();
    sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    let again = sim.waits(2, "LOCK.ACQUIRE k alice PX 30000");
    sim.disconnect(1);
    assert!(sim.rests());
    acknowledges(&mut sim);
    is_granted(&sim, again) && held(&sim) == by(Mode::Exclusive, "alice", 1)
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
    let mut sim = that_confirms();
    sim.told("SET text words");
    let reader = sim.waits(1, "LOCK.ACQUIRE k alice PX 30000 SHARED");
    acknowledges(&mut sim);
    assert!(is_granted(&sim, reader));
    sim.inside.borrow_mut().replicas.clear();
    confirm::replica_changed(&sim);
    assert!(sim.rests());
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
            let told = sim.error(&format!("{request}{options}"));
            assert!(told.starts_with(code), "{request}{options}: {told}");
        }
    }
    assert_eq!(held(&sim), by(Mode::Shared, "alice", 1));
    assert_eq!(sim.with(|state| state.table.waiters()), Some(0));
}

#[test]
fn replicas_are_not_asked_while_slots_leave_as_a_whole() {
    let mut sim = that_confirms();
    crate::engine::server_events::slots_leave(&sim);
    let handle = sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    assert!(sim.rests());
    assert_eq!(sim.inside.borrow().asked, 0, "a question is nobody's key");
    crate::engine::server_events::slots_have_left_or_stay(&sim);
    assert!(sim.rests());
    assert_eq!(sim.inside.borrow().asked, 1);
    acknowledges(&mut sim);
    assert!(is_granted(&sim, handle));
}

#[test]
fn readers_receive_a_cut_lease_though_nothing_can_be_confirmed() {
    // G13: a replica that is promoted then would keep a lock for a client that has disconnected.
    for refuses_writes in [false, true] {
        let mut sim = that_confirms();
        let grant = sim.waits(1, "LOCK.ACQUIRE k alice PX 60000 EPHEMERAL 5000");
        acknowledges(&mut sim);
        assert!(is_granted(&sim, grant));
        sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        sim.inside.borrow_mut().replicas.clear();
        confirm::replica_changed(&sim);
        sim.refuses_writes.set(refuses_writes);
        let before = sim.inside.borrow().stream.len();
        sim.disconnect(1);
        assert!(sim.rests());
        let cut = |sim: &Sim| {
            let inside = sim.inside.borrow();
            let told = inside.stream[before..].iter().map(|told| told.words.clone());
            let told: Vec<_> = told.filter(|words| words.iter().any(|word| word == b"5000")).collect();
            told.len()
        };
        assert_eq!(cut(&sim), usize::from(!refuses_writes));
        sim.refuses_writes.set(false);
        passes(&mut sim, 0);
        passes(&mut sim, 60);
        assert_eq!(cut(&sim), 1, "they are told once");
        assert_eq!(sim.with(|state| state.table.tasks_without_grant()), Some(0));
        passes(&mut sim, 5_000);
        assert_eq!(held(&sim), NOBODY);
    }
}

#[test]
fn a_rule_that_was_changed_refuses_no_request_and_warns_of_nothing() {
    let mut sim = that_confirms();
    cannot_revoke(&mut sim);
    let _ = sim.logged();
    sim.confirms_no_more();
    sim.sets("group-size", 0);
    let logged = sim.logged();
    assert!(logged.iter().all(|line| !line.contains("not safe")), "{logged:?}");
    sim.refuses_writes.set(false);
    // In MULTI, say.
    let flags = Flags { denies_blocking: true, ..sim.flags.get() };
    for command in
        ["LOCK.ACQUIRE k alice PX 30000", "LOCK.RENEW k alice PX 30000", "LOCK.ACQUIRE l bob PX 30000"]
    {
        let told = sim.told_as(flags, words(command));
        assert!(matches!(told[..], [PartBuf::Integer(_)]), "{command}: {told:?}");
    }
    passes(&mut sim, 101);
    assert_eq!(held(&sim), by(Mode::Exclusive, "alice", 1), "the owner that was told of it keeps it");
    assert_eq!(pending(&sim), (0, 2));
}

/// A primary, and the handles of `count` clients whose grants wait for its only replica.
fn with_pending(count: u64) -> (Sim, Vec<u64>) {
    let mut sim = with_clients(count);
    sim.confirms();
    let waits = |client| sim.waits(client, &format!("LOCK.ACQUIRE k{client} o{client} PX 30000"));
    let handles = (1..=count).map(waits).collect();
    assert!(sim.rests());
    (sim, handles)
}

/// The number of waits for replicas, and of holds.
fn pending(sim: &Sim) -> (usize, usize) {
    sim.with(|state| (state.confirm.all.len(), state.table.holds())).expect("nobody is within the engine")
}

/// The number of these clients that wait for replicas, as far as they know.
fn confirming(sim: &Sim, handles: &[u64]) -> usize {
    let waits = |handle| {
        sim.with(|state| matches!(state.clients.stage(handle), Some(Stage::Confirming(..)))) == Some(true)
    };
    handles.iter().filter(|&&handle| waits(handle)).count()
}

#[test]
fn grants_that_fail_together_are_answered_some_in_a_turn() {
    // G7, G16
    for is_lost in [true, false] {
        let (mut sim, handles) = with_pending(12);
        if is_lost {
            sim.inside.borrow_mut().replicas.clear();
            confirm::replica_changed(&sim);
        } else {
            sim.passes(1_001);
        }
        let (mut before, mut turns) = (12, 0);
        while before > 0 {
            sim.turn();
            let (now, held) = pending(&sim);
            assert!(before - now <= 3, "{is_lost}: {now} wait, {before} did");
            assert!(held >= now, "{is_lost}: {held} hold, {now} wait");
            (before, turns) = (now, turns + 1);
            assert!(turns < 40, "{is_lost}");
        }
        assert!(sim.rests());
        assert_eq!(pending(&sim), (0, 0));
        assert_eq!(sim.answers.len(), 12);
        assert!(handles.iter().all(|&handle| is_refused(&sim, handle)), "{:?}", sim.answers);
    }
}

#[test]
fn waits_for_replicas_of_a_demoted_server_are_answered_some_in_a_turn() {
    // G7, G16
    for is_promoted in [false, true] {
        let (mut sim, mut handles) = with_pending(14);
        sim.takes_role(true);
        assert!(confirming(&sim, &handles) >= 11, "{} wait", confirming(&sim, &handles));
        // One is unblocked, one closes its connection.
        sim.client_unblock(14);
        assert_eq!(sim.answers.pop(), Some((handles[13], vec![PartBuf::Error(DEMOTED.to_owned())])));
        sim.disconnect(13);
        handles.truncate(12);
        if is_promoted {
            sim.takes_role(false);
        }
        let mut before = confirming(&sim, &handles);
        for _ in 0..9 {
            sim.turn();
            let now = confirming(&sim, &handles);
            assert!(before - now <= 3, "{now} wait, {before} did");
            before = now;
        }
        assert!(sim.rests());
        assert_eq!((before, sim.answers.len()), (0, 12));
        assert!(handles.iter().all(|&handle| is_told(&sim, handle, DEMOTED)), "{:?}", sim.answers);
        assert_eq!(pending(&sim), (0, 14), "what they hold is not revoked here");
    }
}
