//! The work done in one turn of the event loop, and that the rest is not forgotten.

use super::given::with_clients;
use crate::command::error::DEMOTED;
use crate::engine::blocked_clients::REPLIES_PER_TURN;
use crate::engine::server::Server;
use crate::engine::{outbox, pump, schedule, server_events};
use crate::lock::effect::Event;
use crate::sim::server::inside::{PartBuf, Published};
use crate::sim::server::sim::{Sim, at};

fn held(sim: &Sim) -> usize {
    sim.with(|state| state.table.holds()).expect("nobody is within the engine")
}

fn waiters(sim: &Sim) -> usize {
    sim.with(|state| state.table.waiters()).expect("nobody is within the engine")
}

/// Many leases end together.
fn with_leases(count: usize, clients: u64) -> Sim {
    let mut sim = with_clients(clients);
    for number in 0..count {
        sim.number(&format!("LOCK.ACQUIRE lease{number} alice PX 1000"));
    }
    assert!(sim.rests());
    sim
}

#[test]
fn a_long_run_of_the_pump_yields_to_the_event_loop_and_comes_back() {
    let mut sim = with_leases(40, 1);
    sim.passes(1_005);
    sim.us_per_look.set(300);
    server_events::woken(&sim);
    let (mut before, mut turns) = (40, 0);
    while before > 0 {
        sim.turn();
        let left = held(&sim);
        assert!(before - left < 40, "all in one turn");
        (before, turns) = (left, turns + 1);
        assert!(turns < 200);
    }
    sim.us_per_look.set(0);
    assert!(sim.rests());
}

#[test]
fn a_server_with_nothing_to_do_is_not_woken() {
    let sim = with_clients(1);
    pump::run(&sim);
    assert_eq!(sim.with(|state| state.wake.alarm.at), Some(None));
}

#[test]
fn a_run_does_all_that_there_is_time_for() {
    let mut sim = with_leases(40, 1);
    sim.passes(1_005);
    server_events::woken(&sim);
    sim.turn();
    assert_eq!(held(&sim), 0);
}

#[test]
fn waiters_time_out_before_a_backlog_of_expired_leases() {
    let mut sim = with_leases(40, 2);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 1001");
    sim.passes(1_001);
    sim.us_per_look.set(300);
    server_events::woken(&sim);
    sim.turn();
    assert!(held(&sim) > 20 && waiters(&sim) == 1, "the leases came first");
    sim.turn();
    assert!(held(&sim) > 10 && waiters(&sim) == 0, "{} leases", held(&sim));
    sim.turn();
    assert!(matches!(&sim.answers[..], [(_, parts)] if parts[..] == [PartBuf::Null]));
}

#[test]
fn a_turn_ends_a_limited_number_of_waits_while_writes_pause() {
    let clients = 3 * REPLIES_PER_TURN.get() as u64;
    let mut sim = with_clients(clients + 1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    for client in 2..clients + 2 {
        sim.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 5"));
    }
    assert!(sim.rests());
    sim.is_paused.set(true);
    sim.passes(5);
    pump::run(&sim);
    assert_eq!(waiters(&sim), 2 * REPLIES_PER_TURN.get());
    assert!(sim.rests());
    assert_eq!((waiters(&sim), sim.answers.len()), (0, 3 * REPLIES_PER_TURN.get()));
}

#[test]
fn a_turn_of_a_primary_ends_a_limited_number_of_waits() {
    let clients = 3 * REPLIES_PER_TURN.get() as u64;
    let mut sim = with_clients(clients + 1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    for client in 2..clients + 2 {
        sim.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 5"));
    }
    assert!(sim.rests());
    sim.passes(5);
    pump::run(&sim);
    assert_eq!(waiters(&sim), 2 * REPLIES_PER_TURN.get());
    assert!(sim.rests());
    assert_eq!((waiters(&sim), sim.answers.len()), (0, 3 * REPLIES_PER_TURN.get()));
}

#[test]
fn many_come_in_or_are_refused_during_several_turns() {
    for (how, may_take) in [(" SHARED", true), ("", false)] {
        let mut sim = with_clients(301);
        sim.number("LOCK.ACQUIRE k alice PX 30000");
        for client in 2..302 {
            sim.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 0{how}"));
            if !may_take {
                sim.inside.borrow_mut().forbidden.insert(client);
            }
        }
        assert!(sim.rests());
        sim.us_per_look.set(300);
        sim.number("LOCK.RELEASE k alice");
        let (mut before, mut turns) = (waiters(&sim), 0);
        assert_eq!(before, 236);
        while before > 0 {
            sim.turn();
            let left = waiters(&sim);
            assert!((1..=64).contains(&(before - left)), "{left} wait, and {before} did");
            (before, turns) = (left, turns + 1);
        }
        assert!(turns > 1, "all in one turn");
        sim.us_per_look.set(0);
        assert!(sim.rests());
        assert_eq!((held(&sim), sim.answers.len()), (if may_take { 300 } else { 0 }, 300));
    }
}

#[test]
fn a_lock_freed_by_another_thread_lets_its_waiters_in() {
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let handle = sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    assert!(sim.rests());
    let gone = sim.inside.borrow_mut().keys.remove(&at(0, "k"));
    sim.leave_to_thread(gone.into_iter().map(|entry| entry.value));
    sim.free_late();
    sim.cron();
    assert!(sim.rests());
    assert!(matches!(&sim.answers[..], [(answered, parts)]
        if *answered == handle && matches!(parts[..], [PartBuf::Integer(_)])));
}

#[test]
fn an_undelivered_grant_is_revoked_before_leases_end() {
    let mut sim = with_clients(3);
    sim.number("LOCK.ACQUIRE lease alice PX 1000");
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    // The leases are sorted by their ends: the first search for due leases finds an expired one.
    sim.passes(999);
    assert!(sim.rests());
    sim.number("LOCK.RELEASE k alice");
    sim.inside.borrow_mut().connected.remove(&2);
    sim.send_answers();
    sim.passes(6);
    let before = sim.inside.borrow().published.len();
    pump::run(&sim);
    let published = sim.inside.borrow().published[before..].to_vec();
    let expected =
        [Published::Lock(at(0, "k"), Event::Released), Published::Lock(at(0, "lease"), Event::Expired)];
    assert_eq!(published, expected);
}

#[test]
fn events_are_published_until_the_turn_has_taken_long() {
    let flushed = || {
        let mut sim = with_leases(7, 1);
        sim.told("FLUSHALL SYNC");
        let before = sim.inside.borrow().published.len();
        (sim, before)
    };
    let (sim, before) = flushed();
    assert!(outbox::publish_some(&sim, || false), "there was time for all");
    assert!(sim.inside.borrow().published.len() >= before + 7);
    let (sim, before) = flushed();
    assert!(!outbox::publish_some(&sim, || true), "there is more");
    let published = sim.inside.borrow().published.len();
    assert!(published <= before + 2, "{published}, {before} before");
}

#[test]
fn a_run_that_does_not_begin_is_asked_for_again() {
    let mut sim = with_clients(1);
    assert!(sim.rests());
    let is_due = |sim: &Sim| std::mem::take(&mut sim.inside.borrow_mut().pump_is_due);
    schedule::request(&sim);
    assert!(is_due(&sim), "and it is lost");
    sim.passes(19);
    schedule::request(&sim);
    sim.cron();
    assert!(!is_due(&sim) && !schedule::is_late(&sim), "it may still begin");
    sim.passes(1);
    assert!(schedule::is_late(&sim));
    sim.cron();
    assert!(is_due(&sim));
}

/// A server with two locks that alice holds, and the handles of the `count` clients that wait for both.
fn with_waiters(count: u64) -> (Sim, Vec<u64>) {
    let mut sim = with_clients(count + 2);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.number("LOCK.ACQUIRE l alice PX 30000");
    let waits = |client| sim.waits(client, &format!("LOCK.MACQUIRE 2 k l o{client} PX 30000 BLOCK 50"));
    let handles = (2..count + 2).map(waits).collect();
    assert!(sim.rests());
    (sim, handles)
}

/// The handles of the clients that were notified so far that the server was demoted, in that order. No client received
/// anything else.
fn sent_away(sim: &Sim) -> Vec<u64> {
    let is_told = |parts: &[PartBuf]| matches!(parts, [PartBuf::Error(text)] if text == DEMOTED);
    assert!(sim.answers.iter().all(|(_, parts)| is_told(parts)), "{:?}", sim.answers);
    sim.answers.iter().map(|(handle, _)| *handle).collect()
}

#[test]
fn those_who_wait_at_a_server_that_is_demoted_are_sent_away_a_few_in_a_turn() {
    // G7, G16
    let (mut sim, handles) = with_waiters(9);
    sim.takes_role(true);
    assert_eq!(waiters(&sim), 0, "nobody is in a queue");
    let (mut told, mut turns) = (0, 0);
    while told < handles.len() {
        sim.turn();
        let now = sent_away(&sim).len();
        assert!(now - told <= 3, "{now} told, {told} before");
        (told, turns) = (now, turns + 1);
        assert!(turns < 20, "{told} are told");
    }
    assert!((4..=5).contains(&turns), "in {turns} turns");
    assert!(sim.rests());
    assert_eq!(sent_away(&sim), handles, "first come first");
}

#[test]
fn a_turn_of_those_who_are_sent_away_ends_when_it_has_taken_long() {
    let (mut sim, handles) = with_waiters(4);
    sim.us_per_look.set(3_000);
    sim.takes_role(true);
    sim.send_answers();
    assert_eq!(sent_away(&sim), handles[..1]);
    sim.us_per_look.set(0);
    assert!(sim.rests());
    assert_eq!(sent_away(&sim), handles);
}

#[test]
fn nothing_that_happens_meanwhile_finds_those_who_are_sent_away() {
    // G6, G7
    for is_promoted in [false, true] {
        let (mut sim, mut handles) = with_waiters(9);
        let records = sim.inside.borrow().offset;
        sim.takes_role(true);
        // The data set is replaced, their waiting time has passed, and the leases have expired.
        sim.told("FLUSHALL SYNC");
        sim.passes(30_001);
        // One closes its connection, one is unblocked as if its time were over.
        sim.disconnect(9);
        sim.client_unblock(8);
        assert_eq!(sim.answers.pop(), Some((handles[6], vec![PartBuf::Null])));
        handles.drain(6..8);
        if is_promoted {
            sim.takes_role(false);
            sim.client.set(None);
            // An owner that asks again gets a free lock, no matter who waited before.
            sim.number("LOCK.ACQUIRE k o10 PX 30000");
        }
        let granted = sim.with(|state| state.table.holds());
        assert!(sim.rests());
        assert_eq!(sent_away(&sim), handles, "{is_promoted}");
        assert_eq!(sim.with(|state| state.table.holds()), granted);
        assert_eq!(sim.inside.borrow().offset, records + 1 + u64::from(is_promoted), "the flush, and it");
        assert_eq!(sim.with(|state| state.clients.blocked()), Some(0));
    }
}

#[test]
fn a_new_waiter_is_served_while_waiters_of_two_earlier_terms_are_rejected() {
    let (mut sim, mut first) = with_waiters(5);
    sim.takes_role(true);
    sim.takes_role(false);
    (20..31).for_each(|client| sim.connect(client));
    let mut waits = |client: u64| sim.waits(client, &format!("LOCK.ACQUIRE k n{client} PX 30000 BLOCK 0"));
    // Their numbers are none of those who are left.
    let second: Vec<u64> = [20, 21, 22, 23, 24].map(&mut waits).into();
    sim.takes_role(true);
    sim.takes_role(false);
    let third = sim.waits(30, "LOCK.ACQUIRE k new PX 30000 BLOCK 0");
    sim.number("LOCK.RELEASE k alice");
    assert!(sim.rests());
    let (granted, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut sim.answers).into_iter().partition(|(handle, _)| *handle == third);
    assert!(
        matches!(&granted[..], [(_, parts)] if matches!(parts[..], [PartBuf::Integer(_)])),
        "{granted:?}"
    );
    sim.answers = others;
    first.extend(second);
    assert_eq!(sent_away(&sim), first);
}

#[test]
fn the_last_of_those_who_are_let_in_by_a_command_is_answered_in_the_next_turn() {
    let clients = REPLIES_PER_TURN.get() as u64 + 1;
    let mut sim = with_clients(clients + 1);
    for client in 1..=clients {
        sim.number(&format!("LOCK.ACQUIRE k{client} alice PX 30000"));
        sim.waits(client + 1, &format!("LOCK.ACQUIRE k{client} bob PX 30000 BLOCK 0"));
    }
    assert!(sim.rests());
    (1..=clients).for_each(|client| _ = sim.number(&format!("LOCK.RELEASE k{client} alice")));
    sim.turn();
    assert_eq!(sim.answers.len(), REPLIES_PER_TURN.get());
    sim.turn();
    sim.turn();
    assert_eq!(sim.answers.len(), REPLIES_PER_TURN.get() + 1);
}
