//! The records of a grant, the clients that block for one, and locks of old clients.

use super::given::{bytes, with_clients};
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{legacy, replies};
use crate::sim::server::inside::PartBuf;
use crate::sim::server::sim::{Sim, at};

/// The first words of the last record.
fn told_last(sim: &Sim) -> String {
    let inside = sim.inside.borrow();
    inside.stream.last().map_or_else(String::new, |told| String::from_utf8_lossy(&told.words[0]).into_owned())
}

#[test]
fn a_grant_is_replicated_as_it_was_asked_where_that_is_enough() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE first alice PX 30000");
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(told_last(&sim), "LOCK.ACQUIRE");
    assert!(matches!(
        sim.told("LOCK.ACQUIRE l * PX 30000")[..],
        [PartBuf::Array(2), PartBuf::Bytes(_), PartBuf::Integer(_)]
    ));
    assert_eq!(told_last(&sim), "LOCK.APPLY", "they would mint another owner");
    sim.number("LOCK.MACQUIRE 2 m n alice PX 30000");
    assert_eq!(told_last(&sim), "LOCK.MACQUIRE");
    assert!(matches!(sim.told("LOCK.MACQUIRE 2 o p * PX 30000")[..], [PartBuf::Array(2), ..]));
    assert_eq!(told_last(&sim), "LOCK.APPLY", "they would mint another owner");
}

#[test]
fn readers_of_a_node_receive_the_mode_of_each_lock() {
    let mut sim = Sim::started_as(Flags { is_cluster: true, ..Flags::default() }, |_| ());
    sim.connect(1);
    for text in [
        "LOCK.ACQUIRE a alice PX 30000",
        "LOCK.ACQUIRE b alice PX 30000",
        "LOCK.MACQUIRE 2 c d alice PX 9000",
    ] {
        sim.number(text);
        assert_eq!(told_last(&sim), "LOCK.APPLY", "{text}");
    }
}

#[test]
fn a_client_that_cannot_block_leaves_the_queue_with_nothing() {
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.inside.borrow_mut().blocks_nobody = true;
    assert_eq!(sim.told("LOCK.ACQUIRE k bob PX 30000 BLOCK 0"), [PartBuf::Null]);
    assert!(sim.rests());
    assert_eq!(sim.field("waiters"), crate::engine::describe::Value::Number(0));
}

#[test]
fn what_cannot_wait_for_replicas_is_revoked() {
    let mut sim = with_clients(2);
    sim.confirms();
    sim.inside.borrow_mut().blocks_nobody = true;
    assert!(sim.error("LOCK.ACQUIRE k bob PX 30000").starts_with("NOREPLICAS"));
    assert!(sim.rests());
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(0)]);
}

#[test]
fn a_string_with_a_time_to_live_is_its_owners_lock() {
    let mut sim = with_clients(2);
    sim.switches("legacy-strings", true);
    sim.told("SET old alice PX 30000");
    assert_eq!(sim.told("LOCK.ACQUIRE old bob PX 30000"), [PartBuf::Null]);
    assert_eq!(sim.told("LOCK.RENEW old bob PX 30000"), [PartBuf::Integer(0)]);
    assert_eq!(sim.told("LOCK.RELEASE old alice"), [PartBuf::Integer(1)]);
    assert_eq!(sim.told("GET old"), [PartBuf::Null]);
}

#[test]
fn a_waiter_for_a_string_is_next_when_the_key_changes() {
    let mut sim = with_clients(2);
    sim.switches("legacy-strings", true);
    sim.told("SET old alice PX 30000");
    legacy::key_changed(&sim, b"old");
    assert!(sim.is_idle(), "nobody waits");
    let handle = sim.waits(2, "LOCK.ACQUIRE old bob PX 30000 BLOCK 0");
    assert!(sim.rests());
    sim.told("DEL old");
    legacy::key_changed(&sim, b"old");
    assert!(sim.rests());
    assert!(matches!(&sim.answers[..], [(answered, _)] if *answered == handle));
}

#[test]
fn a_waiter_for_a_string_leaves_when_strings_are_no_locks_any_longer() {
    let mut sim = with_clients(2);
    sim.switches("legacy-strings", true);
    sim.told("SET old alice PX 30000");
    let handle = sim.waits(2, "LOCK.ACQUIRE old bob PX 30000 BLOCK 0");
    assert!(sim.rests());
    sim.switches("legacy-strings", false);
    assert!(sim.rests());
    let [(answered, reply)] = &sim.answers[..] else { panic!("{:?}", sim.answers) };
    assert_eq!(*answered, handle);
    assert!(matches!(&reply[..], [PartBuf::Error(error)] if error.starts_with("WRONGTYPE")), "{reply:?}");
}

#[test]
fn a_connection_whose_answer_was_lost_is_closed() {
    for loses_answers in [false, true] {
        let mut sim = with_clients(2);
        sim.shared().loses_answers.set(loses_answers);
        sim.number("LOCK.ACQUIRE k alice PX 30000");
        let handle = sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        assert_eq!(sim.number("LOCK.RELEASE k alice"), 1);
        replies::disconnected(&sim, handle);
        crate::engine::pump::run(&sim);
        assert_eq!(sim.inside.borrow().connected.contains(&2), !loses_answers);
    }
}

#[test]
fn a_waiter_receives_the_owner_that_was_minted_for_it() {
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.waits(2, "LOCK.ACQUIRE k * PX 30000 BLOCK 0");
    sim.number("LOCK.RELEASE k alice");
    assert!(sim.rests());
    let minted = bytes("00000000-0000-4000-8000-000000000001");
    assert!(
        matches!(&sim.answers[0].1[..], [PartBuf::Array(2), owner, PartBuf::Integer(_)] if *owner == minted)
    );
}

#[test]
fn a_string_that_is_renewed_lives_as_long_here_as_at_readers() {
    let mut sim = with_clients(1);
    sim.switches("legacy-strings", true);
    sim.told("SET old alice PX 30000");
    sim.passes(1_000);
    assert_eq!(sim.told("LOCK.RENEW old alice PX 50000"), [PartBuf::Integer(1)]);
    let until_ms = 1_700_000_001_000_u64 + 50_000;
    let inside = sim.inside.borrow();
    assert_eq!(inside.keys[&at(0, "old")].until_ms, Some(until_ms));
    let told = inside.stream.last().expect("it is told");
    let wanted = [b"PEXPIREAT".to_vec(), b"old".to_vec(), until_ms.to_string().into_bytes()];
    assert_eq!(told.words[..], wanted);
}

#[test]
fn a_grant_that_the_server_drops_goes_to_the_next_waiter() {
    let mut sim = with_clients(3);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    let carol = sim.waits(3, "LOCK.ACQUIRE k carol PX 30000 BLOCK 0");
    sim.cut_off(2);
    assert_eq!(sim.number("LOCK.RELEASE k alice"), 1);
    assert!(sim.rests());
    assert!(matches!(&sim.answers[..], [(handle, _)] if *handle == carol), "{:?}", sim.answers);
}

#[test]
fn a_release_with_a_token_of_nobodys_ends_a_wait_and_no_hold() {
    let mut sim = with_clients(3);
    sim.number("LOCK.ACQUIRE k bob PX 30000 SHARED");
    let waits = sim.waits(2, "LOCK.ACQUIRE k alice PX 30000 BLOCK 0");
    assert_eq!(sim.number("LOCK.RELEASE k alice TOKEN 1"), 0);
    assert!(sim.rests());
    assert_eq!(sim.answers, [(waits, vec![PartBuf::Null])]);
    assert_eq!(sim.number("LOCK.RELEASE k bob"), 1);
}

#[test]
fn a_grant_that_was_sent_stays_though_the_connection_closes() {
    // In the turn in which it was sent, after the reply, and in the next one.
    for is_next_turn in [false, true] {
        let mut sim = with_clients(3);
        sim.number("LOCK.ACQUIRE k alice PX 30000");
        let bob = sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        sim.waits(3, "LOCK.ACQUIRE k carol PX 30000 BLOCK 0");
        assert_eq!(sim.number("LOCK.RELEASE k alice"), 1);
        if is_next_turn {
            sim.send_answers();
            sim.cut_off(2);
        } else {
            sim.quit(2);
        }
        sim.send_answers();
        assert!(sim.rests());
        assert!(matches!(&sim.answers[..], [(handle, _)] if *handle == bob), "{:?}", sim.answers);
    }
}

#[test]
fn a_server_reports_its_turns_while_locks_are_passed_on() {
    let mut sim = with_clients(2);
    let is_told = |sim: &Sim| {
        let is_told = sim.inside.borrow().tells_of_turns;
        assert_eq!(is_told, sim.shared().hears_turns.is_set());
        is_told
    };
    for _ in 0..2 {
        sim.number("LOCK.ACQUIRE k alice PX 30000");
        sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        sim.send_answers();
        assert!(!is_told(&sim), "nobody was granted anything that waited");
        sim.number("LOCK.RELEASE k alice");
        sim.send_answers();
        for turns in 0..2 {
            assert!(is_told(&sim), "{turns}: there may be another grant soon");
            sim.turn();
        }
        (0..3).for_each(|_| sim.turn());
        assert!(!is_told(&sim));
        sim.number("LOCK.RELEASE k bob");
    }
}

#[test]
fn a_server_that_asks_replicas_reports_its_turns_all_the_time() {
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    sim.number("LOCK.RELEASE k alice");
    sim.send_answers();
    sim.confirms();
    (0..5).for_each(|_| sim.turn());
    assert!(sim.inside.borrow().tells_of_turns);
    assert!(sim.is_idle(), "the pump has nothing to do");
}
