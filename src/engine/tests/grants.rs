//! The records of a grant, the clients that block for one, and locks of old clients.

use super::given::{bytes, with_clients};
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{answers, legacy};
use crate::sim::server::inside::PartBuf;
use crate::sim::server::world::{World, at};

/// The first words of the last record.
fn told_last(world: &World) -> String {
    let inside = world.inside.borrow();
    inside.stream.last().map_or_else(String::new, |told| String::from_utf8_lossy(&told.words[0]).into_owned())
}

#[test]
fn a_grant_is_replicated_as_it_was_asked_where_that_is_enough() {
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE first alice PX 30000");
    world.number("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(told_last(&world), "LOCK.ACQUIRE");
    assert!(matches!(
        world.told("LOCK.ACQUIRE l * PX 30000")[..],
        [PartBuf::Array(2), PartBuf::Bytes(_), PartBuf::Integer(_)]
    ));
    assert_eq!(told_last(&world), "LOCK.APPLY", "they would mint another owner");
    world.number("LOCK.MACQUIRE 2 m n alice PX 30000");
    assert_eq!(told_last(&world), "LOCK.MACQUIRE");
    assert!(matches!(world.told("LOCK.MACQUIRE 2 o p * PX 30000")[..], [PartBuf::Array(2), ..]));
    assert_eq!(told_last(&world), "LOCK.APPLY", "they would mint another owner");
}

#[test]
fn readers_of_a_node_receive_the_mode_of_each_lock() {
    let mut world = World::started_as(Flags { is_cluster: true, ..Flags::default() }, |_| ());
    world.connect(1);
    for text in [
        "LOCK.ACQUIRE a alice PX 30000",
        "LOCK.ACQUIRE b alice PX 30000",
        "LOCK.MACQUIRE 2 c d alice PX 9000",
    ] {
        world.number(text);
        assert_eq!(told_last(&world), "LOCK.APPLY", "{text}");
    }
}

#[test]
fn a_client_that_cannot_block_leaves_the_queue_with_nothing() {
    let mut world = with_clients(2);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.inside.borrow_mut().blocks_nobody = true;
    assert_eq!(world.told("LOCK.ACQUIRE k bob PX 30000 BLOCK 0"), [PartBuf::Null]);
    assert!(world.rests());
    assert_eq!(world.field("waiters"), crate::engine::describe::Value::Number(0));
}

#[test]
fn what_cannot_wait_for_replicas_is_revoked() {
    let mut world = with_clients(2);
    world.confirms();
    world.inside.borrow_mut().blocks_nobody = true;
    assert!(world.error("LOCK.ACQUIRE k bob PX 30000").starts_with("NOREPLICAS"));
    assert!(world.rests());
    assert_eq!(world.told("EXISTS k"), [PartBuf::Integer(0)]);
}

#[test]
fn a_string_with_a_time_to_live_is_its_owners_lock() {
    let mut world = with_clients(2);
    world.switches("legacy-strings", true);
    world.told("SET old alice PX 30000");
    assert_eq!(world.told("LOCK.ACQUIRE old bob PX 30000"), [PartBuf::Null]);
    assert_eq!(world.told("LOCK.RENEW old bob PX 30000"), [PartBuf::Integer(0)]);
    assert_eq!(world.told("LOCK.RELEASE old alice"), [PartBuf::Integer(1)]);
    assert_eq!(world.told("GET old"), [PartBuf::Null]);
}

#[test]
fn a_waiter_for_a_string_is_next_when_the_key_changes() {
    let mut world = with_clients(2);
    world.switches("legacy-strings", true);
    world.told("SET old alice PX 30000");
    legacy::key_changed(&world, b"old");
    assert!(world.is_idle(), "nobody waits");
    let handle = world.waits(2, "LOCK.ACQUIRE old bob PX 30000 BLOCK 0");
    assert!(world.rests());
    world.told("DEL old");
    legacy::key_changed(&world, b"old");
    assert!(world.rests());
    assert!(matches!(&world.answers[..], [(answered, _)] if *answered == handle));
}

#[test]
fn a_connection_whose_answer_was_lost_is_closed() {
    for loses_answers in [false, true] {
        let mut world = with_clients(2);
        world.shared().loses_answers.set(loses_answers);
        world.number("LOCK.ACQUIRE k alice PX 30000");
        let handle = world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        assert_eq!(world.number("LOCK.RELEASE k alice"), 1);
        answers::disconnected(&world, handle);
        crate::engine::pump::run(&world);
        assert_eq!(world.inside.borrow().connected.contains(&2), !loses_answers);
    }
}

#[test]
fn a_waiter_receives_the_owner_that_was_minted_for_it() {
    let mut world = with_clients(2);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.waits(2, "LOCK.ACQUIRE k * PX 30000 BLOCK 0");
    world.number("LOCK.RELEASE k alice");
    assert!(world.rests());
    let minted = bytes("00000000-0000-4000-8000-000000000001");
    assert!(
        matches!(&world.answers[0].1[..], [PartBuf::Array(2), owner, PartBuf::Integer(_)] if *owner == minted)
    );
}

#[test]
fn a_string_that_is_renewed_lives_as_long_here_as_at_readers() {
    let mut world = with_clients(1);
    world.switches("legacy-strings", true);
    world.told("SET old alice PX 30000");
    world.passes(1_000);
    assert_eq!(world.told("LOCK.RENEW old alice PX 50000"), [PartBuf::Integer(1)]);
    let until_ms = 1_700_000_001_000_u64 + 50_000;
    let inside = world.inside.borrow();
    assert_eq!(inside.keys[&at(0, "old")].until_ms, Some(until_ms));
    let told = inside.stream.last().expect("it is told");
    let wanted = [b"PEXPIREAT".to_vec(), b"old".to_vec(), until_ms.to_string().into_bytes()];
    assert_eq!(told.words[..], wanted);
}

#[test]
fn a_grant_that_the_server_drops_goes_to_the_next_waiter() {
    let mut world = with_clients(3);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    let carol = world.waits(3, "LOCK.ACQUIRE k carol PX 30000 BLOCK 0");
    world.cut_off(2);
    assert_eq!(world.number("LOCK.RELEASE k alice"), 1);
    assert!(world.rests());
    assert!(matches!(&world.answers[..], [(handle, _)] if *handle == carol), "{:?}", world.answers);
}

#[test]
fn a_release_with_a_token_of_nobodys_ends_a_wait_and_no_hold() {
    let mut world = with_clients(3);
    world.number("LOCK.ACQUIRE k bob PX 30000 SHARED");
    let waits = world.waits(2, "LOCK.ACQUIRE k alice PX 30000 BLOCK 0");
    assert_eq!(world.number("LOCK.RELEASE k alice TOKEN 1"), 0);
    assert!(world.rests());
    assert_eq!(world.answers, [(waits, vec![PartBuf::Null])]);
    assert_eq!(world.number("LOCK.RELEASE k bob"), 1);
}

#[test]
fn a_grant_that_was_sent_stays_though_the_connection_closes() {
    // In the turn in which it was sent, after the reply, and in the next one.
    for is_next_turn in [false, true] {
        let mut world = with_clients(3);
        world.number("LOCK.ACQUIRE k alice PX 30000");
        let bob = world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        world.waits(3, "LOCK.ACQUIRE k carol PX 30000 BLOCK 0");
        assert_eq!(world.number("LOCK.RELEASE k alice"), 1);
        if is_next_turn {
            world.send_answers();
            world.cut_off(2);
        } else {
            world.quit(2);
        }
        world.send_answers();
        assert!(world.rests());
        assert!(matches!(&world.answers[..], [(handle, _)] if *handle == bob), "{:?}", world.answers);
    }
}

#[test]
fn a_server_reports_its_turns_while_locks_are_passed_on() {
    let mut world = with_clients(2);
    let is_told = |world: &World| {
        let is_told = world.inside.borrow().tells_of_turns;
        assert_eq!(is_told, world.shared().hears_turns.is_set());
        is_told
    };
    for _ in 0..2 {
        world.number("LOCK.ACQUIRE k alice PX 30000");
        world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
        world.send_answers();
        assert!(!is_told(&world), "nobody was granted anything that waited");
        world.number("LOCK.RELEASE k alice");
        world.send_answers();
        for turns in 0..2 {
            assert!(is_told(&world), "{turns}: there may be another grant soon");
            world.turn();
        }
        (0..3).for_each(|_| world.turn());
        assert!(!is_told(&world));
        world.number("LOCK.RELEASE k bob");
    }
}

#[test]
fn a_server_that_asks_replicas_reports_its_turns_all_the_time() {
    let mut world = with_clients(2);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    world.number("LOCK.RELEASE k alice");
    world.send_answers();
    world.confirms();
    (0..5).for_each(|_| world.turn());
    assert!(world.inside.borrow().tells_of_turns);
    assert!(world.is_idle(), "the pump has nothing to do");
}
