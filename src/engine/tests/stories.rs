//! Each promise, in a few steps.

use crate::command::error::GRANT_UNCONFIRMED;
use crate::engine::clients::REPLIES_PER_TURN;
use crate::engine::events;
use crate::sim::server::inside::PartBuf;
use crate::sim::server::world::{Said, World, at};

fn with_clients(clients: u64) -> World {
    let world = World::started();
    (1..=clients).for_each(|client| world.connect(client));
    world
}

/// A primary that confirms by its only replica.
fn that_confirms() -> World {
    let world = with_clients(3);
    world.confirms();
    world
}

fn later(said: Said) -> u64 {
    match said {
        Said::Later(handle) => handle,
        Said::Now(parts) => panic!("it was replied {parts:?}"),
    }
}

fn is_held(world: &World, name: &str) -> bool {
    let lock_key = at(0, name);
    !world.look(std::slice::from_ref(&lock_key))[&lock_key].holders.is_empty()
}

#[test]
fn a_lease_and_a_time_to_live_that_end_at_once_leave_nothing() {
    // G15
    let mut world = with_clients(1);
    world.send(1, 0, "LOCK.ACQUIRE c alice PX 60000");
    let until = 1_700_000_000_000_u64 + 90_000;
    world.send(1, 0, &format!("PEXPIREAT c {until}"));
    world.passes(100_000);
    assert!(world.rests());
    let view = world.look(&[at(0, "c")]);
    assert_eq!(world.counts_are_right(&view), Ok(()));
}

#[test]
fn a_grant_is_answered_when_the_replica_has_it() {
    let mut world = that_confirms();
    let handle = later(world.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    assert!(world.rests());
    assert!(is_held(&world, "k") && world.answers.is_empty(), "nobody has acknowledged it");
    let offset = world.inside.borrow().offset;
    world.inside.borrow_mut().replicas.insert(1, ("replica:1", offset));
    assert!(world.rests());
    let [(answered, parts)] = &world.answers[..] else { panic!("{:?}", world.answers) };
    assert!(*answered == handle && matches!(parts[..], [PartBuf::Integer(_)]), "{parts:?}");
    assert!(world.inside.borrow().asked > 0, "the replica was asked");
}

#[test]
fn an_unconfirmed_grant_is_reported_and_revoked() {
    // G8
    let mut world = that_confirms();
    let handle = later(world.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    assert!(world.rests());
    world.passes(1_001);
    assert!(world.rests());
    assert_eq!(world.answers, [(handle, vec![PartBuf::Error(GRANT_UNCONFIRMED.to_owned())])]);
    assert!(!is_held(&world, "k"));
    // Nor does one whose client has disconnected stay.
    later(world.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    world.disconnect(1);
    assert!(world.rests());
    assert!(!is_held(&world, "k") && world.inside.borrow().blocked.is_empty());
}

/// While something cannot be revoked, and another grant waits for its replica.
fn rests_while_nothing_is_written(forbid: impl Fn(&World, bool)) {
    let mut world = that_confirms();
    later(world.send(1, 0, "LOCK.ACQUIRE a alice PX 30000"));
    world.passes(500);
    later(world.send(2, 0, "LOCK.ACQUIRE b bob PX 30000"));
    assert!(world.rests());
    forbid(&world, true);
    world.passes(501);
    assert!(world.rests(), "the event loop goes round and round");
    assert!(matches!(&world.answers[..], [(_, parts)] if matches!(parts[..], [PartBuf::Error(_)])));
    assert!(is_held(&world, "a") && is_held(&world, "b"));
    forbid(&world, false);
    // It looks again on its own.
    world.passes(50);
    assert!(world.rests());
    assert!(!is_held(&world, "a") && is_held(&world, "b"));
}

#[test]
fn what_cannot_be_revoked_yet_does_not_keep_the_server_busy() {
    // G8
    rests_while_nothing_is_written(|world, is_paused| world.is_paused.set(is_paused));
    rests_while_nothing_is_written(|world, refuses| world.refuses_writes.set(refuses));
}

#[test]
fn waits_for_replicas_end_when_the_primary_is_demoted() {
    // G7
    let mut world = that_confirms();
    let handle = later(world.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    let waiting = later(world.send(2, 0, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0"));
    assert!(world.rests());
    let flags = crate::engine::flags::Flags { is_replica: true, ..Default::default() };
    world.flags.set(flags);
    events::demoted(&world);
    assert!(world.rests());
    let mut told: Vec<u64> = world.answers.iter().map(|(handle, _)| *handle).collect();
    told.sort_unstable();
    assert_eq!(told, [handle, waiting]);
    let is_unblocked =
        |parts: &[PartBuf]| matches!(parts, [PartBuf::Error(text)] if text.starts_with("UNBLOCKED"));
    assert!(world.answers.iter().all(|(_, parts)| is_unblocked(parts)), "{:?}", world.answers);
}

#[test]
fn one_turn_answers_a_limited_number_and_the_next_turn_the_rest() {
    let clients = REPLIES_PER_TURN as u64 + 50;
    let mut world = with_clients(clients + 1);
    world.send(clients + 1, 0, "LOCK.ACQUIRE k writer PX 30000");
    for client in 1..=clients {
        later(world.send(client, 0, &format!("LOCK.ACQUIRE k r{client} PX 30000 SHARED BLOCK 0")));
    }
    world.send(clients + 1, 0, "LOCK.RELEASE k writer");
    world.turn();
    assert_eq!(world.answers.len(), REPLIES_PER_TURN);
    // A client that waits for its turn leaves: its grant is revoked.
    world.disconnect(clients);
    assert!(world.rests());
    assert_eq!(world.answers.len() as u64, clients - 1);
    let lock_key = at(0, "k");
    assert_eq!(world.look(std::slice::from_ref(&lock_key))[&lock_key].holders.len() as u64, clients - 1);
    // In order.
    let handles: Vec<u64> = world.answers.iter().map(|(handle, _)| *handle).collect();
    assert!(handles.is_sorted());
}

#[test]
fn a_client_that_is_unblocked_leaves_at_once_and_lets_others_in() {
    // G6
    let mut world = with_clients(4);
    world.send(1, 0, "LOCK.ACQUIRE k reader PX 30000 SHARED");
    let writer = later(world.send(2, 0, "LOCK.ACQUIRE k writer PX 30000 BLOCK 0"));
    let second = later(world.send(3, 0, "LOCK.ACQUIRE k second PX 30000 SHARED BLOCK 0"));
    world.client_unblock(2);
    assert!(world.rests());
    assert_eq!(world.answers[0], (writer, vec![PartBuf::Null]));
    assert_eq!(world.answers[1].0, second);
}

#[test]
fn a_client_that_is_unblocked_before_replicas_confirm_gets_an_error() {
    let mut world = that_confirms();
    let handle = later(world.send(1, 0, "LOCK.ACQUIRE k alice PX 30000"));
    world.client_unblock(1);
    assert_eq!(world.answers, [(handle, vec![PartBuf::Error(GRANT_UNCONFIRMED.to_owned())])]);
    assert!(world.rests());
    assert_eq!(world.told("EXISTS k"), [PartBuf::Integer(0)], "it is revoked");
}

#[test]
fn a_paused_replica_records_the_tokens_in_its_new_file_after_the_pause() {
    // G13: a replica may be paused by a user, or from when it was the primary.
    let mut world = with_clients(1);
    world.send(1, 0, "LOCK.ACQUIRE k alice PX 30000");
    assert!(world.rests());
    let ticks = |world: &World| {
        let inside = world.inside.borrow();
        inside.file.iter().filter(|told| told.words.first().is_some_and(|word| word == b"LOCK.TICK")).count()
    };
    let flags = crate::engine::flags::Flags { is_replica: true, has_aof: true, ..Default::default() };
    world.flags.set(flags);
    events::demoted(&world);
    assert!(world.rests());
    world.is_paused.set(true);
    events::forked(&world);
    assert!(world.rests());
    world.passes(1000);
    assert!(world.rests(), "the event loop goes round and round");
    assert_eq!(ticks(&world), 0);
    world.is_paused.set(false);
    // It looks again on its own.
    world.passes(10);
    assert!(world.rests());
    assert_eq!(ticks(&world), 1);
}
