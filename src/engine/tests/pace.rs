//! The work done in one turn of the event loop, and that the rest is not forgotten.

use super::given::with_clients;
use crate::command::error::DEMOTED;
use crate::engine::clients::REPLIES_PER_TURN;
use crate::engine::server::Server;
use crate::engine::{events, outbox, pump, work};
use crate::lock::effect::Event;
use crate::sim::server::inside::{PartBuf, Published};
use crate::sim::server::world::{World, at};

fn held(world: &World) -> usize {
    world.with(|state| state.table.holds()).expect("nobody is within the engine")
}

fn waiters(world: &World) -> usize {
    world.with(|state| state.table.waiters()).expect("nobody is within the engine")
}

/// Many leases end together.
fn with_leases(count: usize, clients: u64) -> World {
    let mut world = with_clients(clients);
    for number in 0..count {
        world.number(&format!("LOCK.ACQUIRE lease{number} alice PX 1000"));
    }
    assert!(world.rests());
    world
}

#[test]
fn a_long_run_of_the_pump_yields_to_the_event_loop_and_comes_back() {
    let mut world = with_leases(40, 1);
    world.passes(1_005);
    world.us_per_look.set(300);
    events::woken(&world);
    let (mut before, mut turns) = (40, 0);
    while before > 0 {
        world.turn();
        let left = held(&world);
        assert!(before - left < 40, "all in one turn");
        (before, turns) = (left, turns + 1);
        assert!(turns < 200);
    }
    world.us_per_look.set(0);
    assert!(world.rests());
}

#[test]
fn a_server_with_nothing_to_do_is_not_woken() {
    let world = with_clients(1);
    pump::run(&world);
    assert_eq!(world.with(|state| state.wake.alarm.at), Some(None));
}

#[test]
fn a_run_does_all_that_there_is_time_for() {
    let mut world = with_leases(40, 1);
    world.passes(1_005);
    events::woken(&world);
    world.turn();
    assert_eq!(held(&world), 0);
}

#[test]
fn waiters_time_out_before_a_backlog_of_expired_leases() {
    let mut world = with_leases(40, 2);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 1001");
    world.passes(1_001);
    world.us_per_look.set(300);
    events::woken(&world);
    world.turn();
    assert!(held(&world) > 20 && waiters(&world) == 1, "the leases came first");
    world.turn();
    assert!(held(&world) > 10 && waiters(&world) == 0, "{} leases", held(&world));
    world.turn();
    assert!(matches!(&world.answers[..], [(_, parts)] if parts[..] == [PartBuf::Null]));
}

#[test]
fn a_turn_ends_a_limited_number_of_waits_while_writes_pause() {
    let clients = 3 * REPLIES_PER_TURN as u64;
    let mut world = with_clients(clients + 1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    for client in 2..clients + 2 {
        world.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 5"));
    }
    assert!(world.rests());
    world.is_paused.set(true);
    world.passes(5);
    pump::run(&world);
    assert_eq!(waiters(&world), 2 * REPLIES_PER_TURN);
    assert!(world.rests());
    assert_eq!((waiters(&world), world.answers.len()), (0, 3 * REPLIES_PER_TURN));
}

#[test]
fn a_turn_of_a_primary_ends_a_limited_number_of_waits() {
    let clients = 3 * REPLIES_PER_TURN as u64;
    let mut world = with_clients(clients + 1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    for client in 2..clients + 2 {
        world.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 5"));
    }
    assert!(world.rests());
    world.passes(5);
    pump::run(&world);
    assert_eq!(waiters(&world), 2 * REPLIES_PER_TURN);
    assert!(world.rests());
    assert_eq!((waiters(&world), world.answers.len()), (0, 3 * REPLIES_PER_TURN));
}

#[test]
fn many_come_in_or_are_refused_during_several_turns() {
    for (how, may_take) in [(" SHARED", true), ("", false)] {
        let mut world = with_clients(301);
        world.number("LOCK.ACQUIRE k alice PX 30000");
        for client in 2..302 {
            world.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 0{how}"));
            if !may_take {
                world.inside.borrow_mut().forbidden.insert(client);
            }
        }
        assert!(world.rests());
        world.us_per_look.set(300);
        world.number("LOCK.RELEASE k alice");
        let (mut before, mut turns) = (waiters(&world), 0);
        assert_eq!(before, 236);
        while before > 0 {
            world.turn();
            let left = waiters(&world);
            assert!((1..=64).contains(&(before - left)), "{left} wait, and {before} did");
            (before, turns) = (left, turns + 1);
        }
        assert!(turns > 1, "all in one turn");
        world.us_per_look.set(0);
        assert!(world.rests());
        assert_eq!((held(&world), world.answers.len()), (if may_take { 300 } else { 0 }, 300));
    }
}

#[test]
fn a_lock_freed_by_another_thread_lets_its_waiters_in() {
    let mut world = with_clients(2);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    let handle = world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    assert!(world.rests());
    let gone = world.inside.borrow_mut().keys.remove(&at(0, "k"));
    world.leave_to_thread(gone.into_iter().map(|entry| entry.value));
    world.free_late();
    world.cron();
    assert!(world.rests());
    assert!(matches!(&world.answers[..], [(answered, parts)]
        if *answered == handle && matches!(parts[..], [PartBuf::Integer(_)])));
}

#[test]
fn an_undelivered_grant_is_revoked_before_leases_end() {
    let mut world = with_clients(3);
    world.number("LOCK.ACQUIRE lease alice PX 1000");
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    // The leases are sorted by their ends: the first search for due leases finds an expired one.
    world.passes(999);
    assert!(world.rests());
    world.number("LOCK.RELEASE k alice");
    world.inside.borrow_mut().connected.remove(&2);
    world.send_answers();
    world.passes(6);
    let before = world.inside.borrow().published.len();
    pump::run(&world);
    let published = world.inside.borrow().published[before..].to_vec();
    let expected =
        [Published::Lock(at(0, "k"), Event::Released), Published::Lock(at(0, "lease"), Event::Expired)];
    assert_eq!(published, expected);
}

#[test]
fn events_are_published_until_the_turn_has_taken_long() {
    let flushed = || {
        let mut world = with_leases(7, 1);
        world.told("FLUSHALL SYNC");
        let before = world.inside.borrow().published.len();
        (world, before)
    };
    let (world, before) = flushed();
    assert!(outbox::publish_some(&world, || false), "there was time for all");
    assert!(world.inside.borrow().published.len() >= before + 7);
    let (world, before) = flushed();
    assert!(!outbox::publish_some(&world, || true), "there is more");
    let published = world.inside.borrow().published.len();
    assert!(published <= before + 2, "{published}, {before} before");
}

#[test]
fn a_run_that_does_not_begin_is_asked_for_again() {
    let mut world = with_clients(1);
    assert!(world.rests());
    let is_due = |world: &World| std::mem::take(&mut world.inside.borrow_mut().pump_is_due);
    work::request(&world);
    assert!(is_due(&world), "and it is lost");
    world.passes(19);
    work::request(&world);
    world.cron();
    assert!(!is_due(&world) && !work::is_late(&world), "it may still begin");
    world.passes(1);
    assert!(work::is_late(&world));
    world.cron();
    assert!(is_due(&world));
}

/// A server with two locks that alice holds, and the handles of the `count` clients that wait for both.
fn with_waiters(count: u64) -> (World, Vec<u64>) {
    let mut world = with_clients(count + 2);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.number("LOCK.ACQUIRE l alice PX 30000");
    let waits = |client| world.waits(client, &format!("LOCK.MACQUIRE 2 k l o{client} PX 30000 BLOCK 50"));
    let handles = (2..count + 2).map(waits).collect();
    assert!(world.rests());
    (world, handles)
}

/// The handles of the clients that were notified so far that the server was demoted, in that order. No client received
/// anything else.
fn sent_away(world: &World) -> Vec<u64> {
    let is_told = |parts: &[PartBuf]| matches!(parts, [PartBuf::Error(text)] if text == DEMOTED);
    assert!(world.answers.iter().all(|(_, parts)| is_told(parts)), "{:?}", world.answers);
    world.answers.iter().map(|(handle, _)| *handle).collect()
}

#[test]
fn those_who_wait_at_a_server_that_is_demoted_are_sent_away_a_few_in_a_turn() {
    // G7, G16
    let (mut world, handles) = with_waiters(9);
    world.takes_role(true);
    assert_eq!(waiters(&world), 0, "nobody is in a queue");
    let (mut told, mut turns) = (0, 0);
    while told < handles.len() {
        world.turn();
        let now = sent_away(&world).len();
        assert!(now - told <= 3, "{now} told, {told} before");
        (told, turns) = (now, turns + 1);
        assert!(turns < 20, "{told} are told");
    }
    assert!((4..=5).contains(&turns), "in {turns} turns");
    assert!(world.rests());
    assert_eq!(sent_away(&world), handles, "first come first");
}

#[test]
fn a_turn_of_those_who_are_sent_away_ends_when_it_has_taken_long() {
    let (mut world, handles) = with_waiters(4);
    world.us_per_look.set(3_000);
    world.takes_role(true);
    world.send_answers();
    assert_eq!(sent_away(&world), handles[..1]);
    world.us_per_look.set(0);
    assert!(world.rests());
    assert_eq!(sent_away(&world), handles);
}

#[test]
fn nothing_that_happens_meanwhile_finds_those_who_are_sent_away() {
    // G6, G7
    for is_promoted in [false, true] {
        let (mut world, mut handles) = with_waiters(9);
        let records = world.inside.borrow().offset;
        world.takes_role(true);
        // The data set is replaced, their waiting time has passed, and the leases have expired.
        world.told("FLUSHALL SYNC");
        world.passes(30_001);
        // One closes its connection, one is unblocked as if its time were over.
        world.disconnect(9);
        world.client_unblock(8);
        assert_eq!(world.answers.pop(), Some((handles[6], vec![PartBuf::Null])));
        handles.drain(6..8);
        if is_promoted {
            world.takes_role(false);
            world.client.set(None);
            // An owner that asks again gets a free lock, no matter who waited before.
            world.number("LOCK.ACQUIRE k o10 PX 30000");
        }
        let granted = world.with(|state| state.table.holds());
        assert!(world.rests());
        assert_eq!(sent_away(&world), handles, "{is_promoted}");
        assert_eq!(world.with(|state| state.table.holds()), granted);
        assert_eq!(world.inside.borrow().offset, records + 1 + u64::from(is_promoted), "the flush, and it");
        assert_eq!(world.with(|state| state.clients.blocked()), Some(0));
    }
}

#[test]
fn a_new_waiter_is_served_while_waiters_of_two_earlier_terms_are_rejected() {
    let (mut world, mut first) = with_waiters(5);
    world.takes_role(true);
    world.takes_role(false);
    (20..31).for_each(|client| world.connect(client));
    let mut waits = |client: u64| world.waits(client, &format!("LOCK.ACQUIRE k n{client} PX 30000 BLOCK 0"));
    // Their numbers are none of those who are left.
    let second: Vec<u64> = [20, 21, 22, 23, 24].map(&mut waits).into();
    world.takes_role(true);
    world.takes_role(false);
    let third = world.waits(30, "LOCK.ACQUIRE k new PX 30000 BLOCK 0");
    world.number("LOCK.RELEASE k alice");
    assert!(world.rests());
    let (granted, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut world.answers).into_iter().partition(|(handle, _)| *handle == third);
    assert!(
        matches!(&granted[..], [(_, parts)] if matches!(parts[..], [PartBuf::Integer(_)])),
        "{granted:?}"
    );
    world.answers = others;
    first.extend(second);
    assert_eq!(sent_away(&world), first);
}

#[test]
fn the_last_of_those_who_are_let_in_by_a_command_is_answered_in_the_next_turn() {
    let clients = REPLIES_PER_TURN as u64 + 1;
    let mut world = with_clients(clients + 1);
    for client in 1..=clients {
        world.number(&format!("LOCK.ACQUIRE k{client} alice PX 30000"));
        world.waits(client + 1, &format!("LOCK.ACQUIRE k{client} bob PX 30000 BLOCK 0"));
    }
    assert!(world.rests());
    (1..=clients).for_each(|client| _ = world.number(&format!("LOCK.RELEASE k{client} alice")));
    world.turn();
    assert_eq!(world.answers.len(), REPLIES_PER_TURN);
    world.turn();
    world.turn();
    assert_eq!(world.answers.len(), REPLIES_PER_TURN + 1);
}
