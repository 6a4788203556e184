//! Each promise, in a few steps.

use crate::command::error::GRANT_UNCONFIRMED;
use crate::engine::blocked_clients::REPLIES_PER_TURN;
use crate::engine::server_events;
use crate::sim::server::inside::PartBuf;
use crate::sim::server::sim::{Said, Sim, at};

fn with_clients(clients: u64) -> Sim {
    let sim = Sim::started();
    (1..=clients).for_each(|client| sim.connect(client));
    sim
}

/// A primary that confirms by its only replica.
fn that_confirms() -> Sim {
    let sim = with_clients(3);
    sim.confirms();
    sim
}

fn later(said: Said) -> u64 {
    match said {
        Said::Later(handle) => handle,
        Said::Now(parts) => panic!("it was replied {parts:?}"),
    }
}

fn is_held(sim: &Sim, name: &str) -> bool {
    let lock_key = at(0, name);
    !sim.look(std::slice::from_ref(&lock_key))[&lock_key].holders.is_empty()
}

#[test]
fn a_lease_and_a_time_to_live_that_end_at_once_leave_nothing() {
    // G15
    let mut sim = with_clients(1);
    sim.send(1, 0, "LOCK.ACQUIRE c alice PX 60000");
    let until = 1_700_000_000_000_u64 + 90_000;
    sim.send(1, 0, &format!("PEXPIREAT c {until}"));
    sim.passes(100_000);
    assert!(sim.rests());
    let view = sim.look(&[at(0, "c")]);
    assert_eq!(sim.counts_are_right(&view), Ok(()));
}

#[test]
fn a_grant_is_answered_when_the_replica_has_it() {
    let mut sim = that_confirms();
    let handle = later(sim.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    assert!(sim.rests());
    assert!(is_held(&sim, "k") && sim.answers.is_empty(), "nobody has acknowledged it");
    let offset = sim.inside.borrow().offset;
    sim.inside.borrow_mut().replicas.insert(1, ("replica:1", offset));
    assert!(sim.rests());
    let [(answered, parts)] = &sim.answers[..] else { panic!("{:?}", sim.answers) };
    assert!(*answered == handle && matches!(parts[..], [PartBuf::Integer(_)]), "{parts:?}");
    assert!(sim.inside.borrow().asked > 0, "the replica was asked");
}

#[test]
fn an_unconfirmed_grant_is_reported_and_revoked() {
    // G8
    let mut sim = that_confirms();
    let handle = later(sim.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    assert!(sim.rests());
    sim.passes(1_001);
    assert!(sim.rests());
    assert_eq!(sim.answers, [(handle, vec![PartBuf::Error(GRANT_UNCONFIRMED.to_owned())])]);
    assert!(!is_held(&sim, "k"));
    // Nor does one whose client has disconnected stay.
    later(sim.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    sim.disconnect(1);
    assert!(sim.rests());
    assert!(!is_held(&sim, "k") && sim.inside.borrow().blocked.is_empty());
}

/// While something cannot be revoked, and another grant waits for its replica.
fn rests_while_nothing_is_written(forbid: impl Fn(&Sim, bool)) {
    let mut sim = that_confirms();
    later(sim.send(1, 0, "LOCK.ACQUIRE a alice PX 30000"));
    sim.passes(500);
    later(sim.send(2, 0, "LOCK.ACQUIRE b bob PX 30000"));
    assert!(sim.rests());
    forbid(&sim, true);
    sim.passes(501);
    assert!(sim.rests(), "the event loop goes round and round");
    assert!(matches!(&sim.answers[..], [(_, parts)] if matches!(parts[..], [PartBuf::Error(_)])));
    assert!(is_held(&sim, "a") && is_held(&sim, "b"));
    forbid(&sim, false);
    // It looks again on its own.
    sim.passes(50);
    assert!(sim.rests());
    assert!(!is_held(&sim, "a") && is_held(&sim, "b"));
}

#[test]
fn what_cannot_be_revoked_yet_does_not_keep_the_server_busy() {
    // G8
    rests_while_nothing_is_written(|sim, is_paused| sim.is_paused.set(is_paused));
    rests_while_nothing_is_written(|sim, refuses| sim.refuses_writes.set(refuses));
}

#[test]
fn waits_for_replicas_end_when_the_primary_is_demoted() {
    // G7
    let mut sim = that_confirms();
    let handle = later(sim.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    let waiting = later(sim.send(2, 0, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0"));
    assert!(sim.rests());
    let flags = crate::engine::flags::Flags { is_replica: true, ..Default::default() };
    sim.flags.set(flags);
    server_events::demoted(&sim);
    assert!(sim.rests());
    let mut told: Vec<u64> = sim.answers.iter().map(|(handle, _)| *handle).collect();
    told.sort_unstable();
    assert_eq!(told, [handle, waiting]);
    let is_unblocked =
        |parts: &[PartBuf]| matches!(parts, [PartBuf::Error(text)] if text.starts_with("UNBLOCKED"));
    assert!(sim.answers.iter().all(|(_, parts)| is_unblocked(parts)), "{:?}", sim.answers);
}

#[test]
fn one_turn_answers_a_limited_number_and_the_next_turn_the_rest() {
    let clients = REPLIES_PER_TURN.get() as u64 + 50;
    let mut sim = with_clients(clients + 1);
    sim.send(clients + 1, 0, "LOCK.ACQUIRE k writer PX 30000");
    for client in 1..=clients {
        later(sim.send(client, 0, &format!("LOCK.ACQUIRE k r{client} PX 30000 SHARED BLOCK 0")));
    }
    sim.send(clients + 1, 0, "LOCK.RELEASE k writer");
    sim.turn();
    assert_eq!(sim.answers.len(), REPLIES_PER_TURN.get());
    // A client that waits for its turn leaves: its grant is revoked.
    sim.disconnect(clients);
    assert!(sim.rests());
    assert_eq!(sim.answers.len() as u64, clients - 1);
    let lock_key = at(0, "k");
    assert_eq!(sim.look(std::slice::from_ref(&lock_key))[&lock_key].holders.len() as u64, clients - 1);
    // In order.
    let handles: Vec<u64> = sim.answers.iter().map(|(handle, _)| *handle).collect();
    assert!(handles.is_sorted());
}

#[test]
fn a_client_that_is_unblocked_leaves_at_once_and_lets_others_in() {
    // G6
    let mut sim = with_clients(4);
    sim.send(1, 0, "LOCK.ACQUIRE k reader PX 30000 SHARED");
    let writer = later(sim.send(2, 0, "LOCK.ACQUIRE k writer PX 30000 BLOCK 0"));
    let second = later(sim.send(3, 0, "LOCK.ACQUIRE k second PX 30000 SHARED BLOCK 0"));
    sim.client_unblock(2);
    assert!(sim.rests());
    assert_eq!(sim.answers[0], (writer, vec![PartBuf::Null]));
    assert_eq!(sim.answers[1].0, second);
}

#[test]
fn a_client_that_is_unblocked_before_replicas_confirm_gets_an_error() {
    let mut sim = that_confirms();
    let handle = later(sim.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    sim.client_unblock(1);
    assert_eq!(sim.answers, [(handle, vec![PartBuf::Error(GRANT_UNCONFIRMED.to_owned())])]);
    assert!(sim.rests());
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(0)], "it is revoked");
}

#[test]
fn a_paused_replica_records_the_tokens_in_its_new_file_after_the_pause() {
    // G13: a replica may be paused by a user, or from when it was the primary.
    let mut sim = with_clients(1);
    sim.send(1, 0, "LOCK.ACQUIRE k alice PX 30000");
    assert!(sim.rests());
    let ticks = |sim: &Sim| {
        let inside = sim.inside.borrow();
        inside.file.iter().filter(|told| told.words.first().is_some_and(|word| word == b"LOCK.TICK")).count()
    };
    let flags = crate::engine::flags::Flags { is_replica: true, has_aof: true, ..Default::default() };
    sim.flags.set(flags);
    server_events::demoted(&sim);
    assert!(sim.rests());
    sim.is_paused.set(true);
    server_events::forked(&sim);
    assert!(sim.rests());
    sim.passes(1000);
    assert!(sim.rests(), "the event loop goes round and round");
    assert_eq!(ticks(&sim), 0);
    sim.is_paused.set(false);
    // It looks again on its own.
    sim.passes(10);
    assert!(sim.rests());
    assert_eq!(ticks(&sim), 1);
}
