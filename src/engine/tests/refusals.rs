//! Refused requests, and the clients that receive the refusal.

use super::given::with_clients;
use super::revoked::acknowledges;
use crate::command::error::{
    CANNOT_CONFIRM, CANNOT_WAIT, GRANT_UNCONFIRMED, KEPT_UNCONFIRMED, LONGER_THAN_QUARANTINE, MAY_EVICT,
    NO_CONNECTION, READ_ONLY, RENEWAL_UNCONFIRMED,
};
use crate::engine::describe::Value;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{confirm, lazy_subscribe};
use crate::sim::server::inside::PartBuf;
use crate::sim::server::sim::{Said, Sim, set_number, words};

const WITHIN_A_SCRIPT: Flags = Flags {
    is_replica: false,
    is_loading: false,
    is_fact: false,
    is_cluster: false,
    has_aof: false,
    denies_blocking: true,
    is_script: true,
};

fn refused(text: &str) -> Vec<PartBuf> {
    vec![PartBuf::Error(text.to_owned())]
}

fn that_confirms() -> Sim {
    let sim = with_clients(3);
    sim.confirms();
    sim
}

/// A server of a group of which a majority must confirm, in the quarantine of its start.
fn of_majority(group_size: i64) -> Sim {
    let sim = Sim::started_as(Flags::default(), |sim| {
        let settings = &sim.shared().settings;
        settings.set_confirm(2);
        set_number(settings, "group-size", group_size);
        set_number(settings, "quarantine", 1_000);
    });
    (1..=4).for_each(|client| sim.connect(client));
    sim
}

fn has_a_replica(sim: &mut Sim) {
    acknowledges(sim);
    confirm::replica_changed(sim);
}

#[test]
fn the_log_of_a_server_says_at_load_that_locks_might_be_evicted() {
    for (evicts, is_allowed, lines) in
        [(false, false, 0), (false, true, 0), (true, true, 0), (true, false, 1)]
    {
        let sim = Sim::started();
        sim.shared().may_evict.set(evicts);
        sim.switches("allow-eviction", is_allowed);
        sim.logged();
        lazy_subscribe::warn_of_eviction(&sim);
        assert_eq!(sim.logged().len(), lines, "{evicts} {is_allowed}");
    }
}

#[test]
fn no_lock_is_granted_where_it_might_be_evicted() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE old alice PX 30000");
    sim.inside.borrow_mut().evicts = true;
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    lazy_subscribe::look_around(&sim);
    sim.logged();
    for _ in 0..2 {
        assert_eq!(sim.error("LOCK.ACQUIRE l alice PX 30000"), MAY_EVICT);
        assert_eq!(sim.error("LOCK.MACQUIRE 2 l m alice PX 30000"), MAY_EVICT);
    }
    assert_eq!(sim.logged(), [MAY_EVICT], "once");
    sim.switches("allow-eviction", true);
    sim.number("LOCK.ACQUIRE l alice PX 30000");
    sim.switches("allow-eviction", false);
    lazy_subscribe::look_at_eviction(&sim);
    sim.error("LOCK.ACQUIRE m alice PX 30000");
    assert_eq!(sim.logged(), [MAY_EVICT], "once for each configuration");
    sim.inside.borrow_mut().evicts = false;
    lazy_subscribe::look_at_eviction(&sim);
    sim.number("LOCK.ACQUIRE m alice PX 30000");
    assert!(sim.logged().is_empty());
}

#[test]
fn who_waits_is_refused_too_where_locks_might_be_evicted_now() {
    let mut sim = with_clients(3);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let (one, several) = (
        sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0"),
        sim.waits(3, "LOCK.MACQUIRE 2 k l carol PX 30000 BLOCK 0"),
    );
    sim.inside.borrow_mut().evicts = true;
    lazy_subscribe::look_at_eviction(&sim);
    assert_eq!(sim.logged(), [MAY_EVICT]);
    assert!(sim.rests() && sim.answers.is_empty(), "they may wait until the policy is another one");
    assert_eq!(sim.number("LOCK.RELEASE k alice"), 1);
    assert!(sim.rests());
    assert_eq!(sim.answers, [(one, refused(MAY_EVICT)), (several, refused(MAY_EVICT))]);
    assert!(sim.logged().is_empty(), "once");
}

#[test]
fn no_client_runs_away_with_the_clock_of_tokens() {
    // G14
    let mut sim = with_clients(1);
    sim.sets("max-token-lead", 1_000);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let highest = 1_700_000_001_000_000_u64;
    let error = sim.error(&format!("LOCK.RENEW k alice PX 30000 RAISE {}", highest + 1));
    assert!(error.starts_with(&format!("ERR RAISE must be an integer from 1 to {highest}:")), "{error}");
    assert_eq!(sim.number(&format!("LOCK.RENEW k alice PX 30000 RAISE {highest}")), 1);
    assert_eq!(sim.number("LOCK.FENCE k"), highest);
}

#[test]
fn what_can_never_be_confirmed_is_refused() {
    let mut sim = that_confirms();
    let is_in_a_step = Flags { denies_blocking: true, ..Flags::default() };
    let acquire = words("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(sim.told_as(is_in_a_step, acquire), refused(CANNOT_WAIT));
    assert_eq!(sim.told_as(is_in_a_step, words("LOCK.MACQUIRE 2 a b alice PX 30000")), refused(CANNOT_WAIT));
    assert_eq!(sim.error("LOCK.ACQUIRE k alice PX 30000 KEEPALIVE"), KEPT_UNCONFIRMED);
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(0)]);
    sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(sim.told_as(is_in_a_step, words("LOCK.RENEW k alice PX 30000")), refused(CANNOT_WAIT));
    sim.inside.borrow_mut().replicas.clear();
    crate::engine::confirm::replica_changed(&sim);
    assert_eq!(sim.send(2, 0, "LOCK.RENEW k alice PX 30000"), Said::Now(refused(CANNOT_CONFIRM)));
    assert_eq!(sim.send(2, 0, "LOCK.ACQUIRE other bob PX 30000"), Said::Now(refused(CANNOT_CONFIRM)));
}

#[test]
fn a_quarantine_lasts_until_the_replicas_that_are_connected_count() {
    let mut sim = of_majority(3);
    let early = sim.waits(2, "LOCK.ACQUIRE k alice PX 900 BLOCK 0");
    sim.passes(300);
    has_a_replica(&mut sim);
    sim.passes(900);
    assert!(sim.rests());
    // A replica counts when it has been connected for a quarantine and 10 ms.
    assert!(sim.error("LOCK.ACQUIRE l bob PX 900").starts_with("QUARANTINE "));
    assert_eq!(sim.field("quarantine_left_ms"), Value::Number(110));
    let late = [
        sim.waits(3, "LOCK.ACQUIRE l bob PX 900 BLOCK 0"),
        sim.waits(4, "LOCK.MACQUIRE 2 m n carol PX 900 BLOCK 0"),
    ];
    sim.passes(109);
    assert!(sim.rests() && sim.answers.is_empty());
    sim.passes(1);
    assert!(sim.rests());
    acknowledges(&mut sim);
    let mut granted: Vec<u64> = sim.answers.iter().map(|(handle, _)| *handle).collect();
    granted.sort_unstable();
    assert_eq!(granted, [early, late[0], late[1]]);
    assert!(!sim.answers.iter().any(|(_, reply)| matches!(reply[..], [PartBuf::Error(_), ..])));
}

#[test]
fn a_quarantine_that_lasts_for_replicas_ends_with_the_need_for_them() {
    let waits = || {
        let mut sim = of_majority(3);
        sim.passes(300);
        has_a_replica(&mut sim);
        let waiter = sim.waits(2, "LOCK.ACQUIRE k alice PX 900 BLOCK 0");
        sim.passes(900);
        assert!(sim.rests() && sim.answers.is_empty());
        (sim, waiter)
    };
    let (mut sim, waiter) = waits();
    sim.confirms_no_more();
    assert!(sim.rests() && sim.answers.iter().any(|(handle, _)| *handle == waiter), "it waits for replicas");
    let (mut sim, _) = waits();
    sim.inside.borrow_mut().replicas.clear();
    confirm::replica_changed(&sim);
    assert!(sim.rests());
    assert_eq!(sim.error("LOCK.ACQUIRE l bob PX 900"), CANNOT_CONFIRM);
}

#[test]
fn a_quarantine_ends_in_time_where_too_few_replicas_are_connected() {
    let mut sim = of_majority(5);
    sim.passes(300);
    has_a_replica(&mut sim);
    sim.passes(700);
    assert!(sim.rests());
    assert_eq!(sim.send(2, 0, "LOCK.ACQUIRE k bob PX 900 BLOCK 0"), Said::Now(refused(CANNOT_CONFIRM)));
}

#[test]
fn what_another_module_calls_neither_waits_for_a_lock_nor_for_replicas() {
    // A client that no connection has runs it, and the server lets it be blocked.
    const CALLER: u64 = 98;
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    for text in ["LOCK.ACQUIRE k bob PX 30000 BLOCK 0", "LOCK.MACQUIRE 2 k l bob PX 30000 BLOCK 0"] {
        assert_eq!(sim.send(CALLER, 0, text), Said::Now(vec![PartBuf::Null]), "{text}");
    }
    assert_eq!(sim.number("LOCK.RELEASE k alice"), 1);
    sim.confirms();
    for text in
        ["LOCK.ACQUIRE k bob PX 30000", "LOCK.MACQUIRE 2 k l bob PX 30000", "LOCK.RENEW k bob PX 30000"]
    {
        assert_eq!(sim.send(CALLER, 0, text), Said::Now(refused(CANNOT_WAIT)), "{text}");
    }
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(0)]);
}

#[test]
fn a_renewal_that_changes_nothing_waits_for_no_replica() {
    let mut sim = that_confirms();
    assert_eq!(sim.number("LOCK.RENEW k alice PX 30000"), 0);
    sim.told("SET text t");
    assert!(sim.error("LOCK.RENEW text alice PX 30000").starts_with("WRONGTYPE"));
    assert!(sim.error("LOCK.RELEASE text alice").starts_with("WRONGTYPE"));
}

#[test]
fn a_hold_is_bound_to_a_connection_of_a_client_only() {
    let mut sim = with_clients(1);
    let bound = words("LOCK.ACQUIRE k alice PX 30000 EPHEMERAL 0");
    assert_eq!(sim.told_as(WITHIN_A_SCRIPT, bound.clone()), refused(NO_CONNECTION));
    assert_eq!(sim.run(Some(9), 0, bound, Flags::default()), Said::Now(refused(NO_CONNECTION)), "it is gone");
    sim.number("LOCK.ACQUIRE k alice PX 30000 EPHEMERAL 0");
    sim.cron();
    sim.passes(10);
    assert!(sim.rests());
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(1)], "its connection is open");
    sim.disconnect(1);
    assert!(sim.rests());
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(0)]);
}

#[test]
fn a_hold_that_was_not_bound_is_bound_when_its_owner_asks_again() {
    let mut sim = with_clients(1);
    let token = sim.number("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(sim.number("LOCK.ACQUIRE k alice PX 30000 EPHEMERAL 0"), token);
    sim.disconnect(1);
    assert!(sim.rests());
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(0)]);
}

#[test]
fn no_request_waits_if_its_client_cannot_be_blocked() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(sim.told_as(WITHIN_A_SCRIPT, words("LOCK.ACQUIRE k bob PX 30000 BLOCK 0")), [PartBuf::Null]);
    assert_eq!(
        sim.told_as(WITHIN_A_SCRIPT, words("LOCK.MACQUIRE 1 k bob PX 30000 BLOCK 0")),
        [PartBuf::Null]
    );
    assert_eq!(sim.with(|state| state.table.waiters()), Some(0));
}

#[test]
fn a_replica_grants_and_ends_nothing() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let replica = Flags { is_replica: true, ..Flags::default() };
    sim.flags.set(replica);
    crate::engine::server_events::demoted(&sim);
    for text in [
        "LOCK.ACQUIRE l alice PX 30000",
        "LOCK.MACQUIRE 2 l m alice PX 30000",
        "LOCK.RELEASE k alice",
        "LOCK.RENEW k alice PX 30000",
        "LOCK.EXEC k 7 GET x",
    ] {
        assert_eq!(sim.error(text), READ_ONLY, "{text}");
    }
    let fact = Flags { is_fact: true, ..replica };
    for text in [
        "LOCK.ACQUIRE l alice",
        "LOCK.ACQUIRE l * PX 30000",
        "LOCK.MACQUIRE 2 l m * PX 30000",
        "LOCK.RELEASE k",
        "LOCK.RENEW k alice",
        "LOCK.EXEC k 7 GET x",
        "LOCK.APPLY k WHAT",
    ] {
        assert_eq!(sim.told_as(fact, words(text)), refused("ERR malformed redislock record"), "{text}");
    }
}

#[test]
fn a_quarantine_that_is_set_while_somebody_waits_bounds_its_lease() {
    let mut sim = with_clients(3);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let long = sim.waits(2, "LOCK.ACQUIRE k bob PX 10001 BLOCK 0");
    let short = sim.waits(3, "LOCK.ACQUIRE k carol PX 10000 BLOCK 0");
    sim.sets("quarantine", 10_000);
    assert_eq!(sim.number("LOCK.RELEASE k alice"), 1);
    assert!(sim.rests());
    assert_eq!(sim.answers[0], (long, refused(LONGER_THAN_QUARANTINE)));
    assert!(
        matches!(&sim.answers[1], (handle, parts) if *handle == short && matches!(parts[..], [PartBuf::Integer(_)]))
    );
}

#[test]
fn no_request_is_granted_while_writes_are_refused() {
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 1000");
    sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    sim.refuses_writes.set(true);
    sim.passes(1_001);
    assert!(sim.rests());
    assert!(sim.answers.is_empty());
    sim.refuses_writes.set(false);
    sim.passes(50);
    assert!(sim.rests());
    assert_eq!(sim.answers.len(), 1);
}

#[test]
fn no_request_is_granted_while_nothing_can_be_confirmed() {
    let mut sim = that_confirms();
    sim.sets("quarantine", 0);
    sim.sets("quarantine", 1);
    let holder = sim.waits(1, "LOCK.ACQUIRE k alice PX 1");
    assert!(sim.rests());
    let (offset, name) = (sim.inside.borrow().offset, "replica:1");
    sim.inside.borrow_mut().replicas.insert(1, (name, offset));
    assert!(sim.rests());
    assert_eq!(sim.answers[0].0, holder);
    sim.waits(2, "LOCK.ACQUIRE k bob PX 1 BLOCK 0");
    sim.inside.borrow_mut().replicas.clear();
    crate::engine::confirm::replica_changed(&sim);
    sim.passes(10);
    assert!(sim.rests(), "the event loop goes round and round");
    assert_eq!(sim.answers.len(), 1, "{:?}", sim.answers);
    assert_eq!(sim.with(|state| state.table.waiters()), Some(1));
}

#[test]
fn a_grant_that_cannot_be_confirmed_fails_at_once() {
    let mut sim = with_clients(1);
    sim.shared().holds_back.set(true);
    let handle = sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    assert!(sim.rests());
    let [(answered, parts)] = &sim.answers[..] else { panic!("{:?}", sim.answers) };
    assert!(*answered == handle && matches!(parts[..], [PartBuf::Error(_)]), "{parts:?}");
    assert_eq!(sim.field("confirm_failures"), crate::engine::describe::Value::Number(1));
}

#[test]
fn replicas_are_asked_once_for_each_grant_and_not_while_nothing_is_written() {
    let mut sim = that_confirms();
    let asked = |sim: &Sim| sim.inside.borrow().asked;
    sim.is_paused.set(true);
    sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    sim.turn();
    assert_eq!(asked(&sim), 0);
    sim.is_paused.set(false);
    sim.turn();
    sim.turn();
    sim.turn();
    assert_eq!(asked(&sim), 1);
}

#[test]
fn a_wait_for_a_replica_that_leaves_fails_at_once() {
    let mut sim = that_confirms();
    let handle = sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    sim.turn();
    sim.inside.borrow_mut().replicas.clear();
    assert!(sim.rests());
    assert_eq!(sim.answers, [(handle, refused(GRANT_UNCONFIRMED))]);
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(0)]);
}

#[test]
fn a_renewal_that_a_replica_leaves_unconfirmed_fails_at_once() {
    let mut sim = that_confirms();
    sim.waits(1, "LOCK.ACQUIRE k alice PX 30000");
    assert!(sim.rests());
    let offset = sim.inside.borrow().offset;
    sim.inside.borrow_mut().replicas.insert(1, ("replica:1", offset));
    assert!(sim.rests());
    let handle = sim.waits(1, "LOCK.RENEW k alice PX 40000");
    sim.turn();
    sim.inside.borrow_mut().replicas.clear();
    assert!(sim.rests());
    assert_eq!(sim.answers[1..], [(handle, refused(RENEWAL_UNCONFIRMED))]);
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(1)]);
}
