//! The replies of commands that take no lock.

use super::given::{bytes, with_clients};
use crate::engine::flags::Flags;
use crate::sim::server::inside::PartBuf;
use crate::sim::server::sim::{Said, words};

const WRONG_TYPE: &str = "WRONGTYPE";

#[test]
fn fence_returns_the_live_token_or_whether_this_one_is() {
    let mut sim = with_clients(1);
    assert_eq!(sim.told("LOCK.FENCE k"), [PartBuf::Null]);
    let token = sim.number("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(sim.number("LOCK.FENCE k"), token);
    assert_eq!(sim.number(&format!("LOCK.FENCE k {token}")), 1);
    assert_eq!(sim.number(&format!("LOCK.FENCE k {}", token + 1)), 0);
    sim.told("SET text t");
    assert!(sim.error("LOCK.FENCE text").starts_with(WRONG_TYPE));
    assert!(sim.error("LOCK.FENCE k x").starts_with("ERR token must be"));
}

#[test]
fn exec_runs_a_command_under_the_live_token_only() {
    let mut sim = with_clients(1);
    let token = sim.number("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(sim.told(&format!("LOCK.EXEC k {token} SET x 1")), [PartBuf::Ok]);
    assert_eq!(sim.told("GET x"), [bytes("1")]);
    assert!(sim.error(&format!("LOCK.EXEC k {} SET x 2", token - 1)).starts_with("FENCED"));
    assert!(sim.error("LOCK.EXEC x 7 SET x 2").starts_with(WRONG_TYPE));
    assert!(sim.error("LOCK.EXEC k 7").starts_with("ERR syntax error"));
    assert_eq!(sim.told("GET x"), [bytes("1")]);
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let mut sim = with_clients(1);
    for text in [
        "LOCK.ACQUIRE k alice",
        "LOCK.MACQUIRE 0 alice PX 9000",
        "LOCK.RELEASE k",
        "LOCK.RENEW k alice PX 0",
        "LOCK.INFO k x",
    ] {
        assert!(sim.error(text).starts_with("ERR "), "{text}");
    }
}

/// The entry of a waiter in LOCK.INFO.
fn waiter(owner: &str, mode: &str, client: Option<u64>) -> Vec<PartBuf> {
    let mut said = vec![PartBuf::Map(5), bytes("owner"), bytes(owner), bytes("mode"), bytes(mode)];
    said.extend([bytes("waited-ms"), PartBuf::Integer(40), bytes("state")]);
    said.extend([bytes(if client.is_some() { "blocked" } else { "queued" }), bytes("client-id")]);
    said.push(client.map_or(PartBuf::Null, PartBuf::Integer));
    said
}

#[test]
fn info_tells_who_holds_a_lock_and_who_waits_for_it() {
    let mut sim = with_clients(2);
    assert_eq!(sim.told("LOCK.INFO k"), [PartBuf::Null]);
    let token = sim.number("LOCK.ACQUIRE k alice PX 30000 EPHEMERAL 500");
    sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 SHARED BLOCK 0");
    assert_eq!(sim.told("LOCK.ACQUIRE k carol PX 30000 QUEUE 500"), [PartBuf::Null]);
    sim.passes(40);
    let mut wanted = vec![PartBuf::Map(6), bytes("kind"), bytes("exclusive"), bytes("limit"), PartBuf::Null];
    wanted.extend([
        bytes("holds"),
        PartBuf::Integer(1),
        bytes("holders"),
        PartBuf::Array(1),
        PartBuf::Map(8),
    ]);
    wanted.extend([bytes("owner"), bytes("alice"), bytes("token"), PartBuf::Integer(token)]);
    wanted.extend([bytes("lease-left-ms"), PartBuf::Integer(29_960), bytes("held-ms"), PartBuf::Integer(40)]);
    wanted.extend([bytes("count"), PartBuf::Integer(1), bytes("client-id"), PartBuf::Integer(1)]);
    wanted.extend([bytes("keepalive"), PartBuf::Bool(false), bytes("ephemeral-ms"), PartBuf::Integer(500)]);
    wanted.extend([bytes("waiters"), PartBuf::Integer(2), bytes("queue"), PartBuf::Array(2)]);
    wanted.extend(waiter("bob", "shared", Some(2)));
    wanted.extend(waiter("carol", "exclusive", None));
    assert_eq!(sim.told("LOCK.INFO k"), wanted);
    sim.told("SET text t");
    assert!(sim.error("LOCK.INFO text").starts_with(WRONG_TYPE));
}

#[test]
fn info_tells_how_many_may_hold_a_semaphore() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE s alice PX 30000 LIMIT 3");
    let told = sim.told("LOCK.INFO s");
    assert_eq!(told[1..5], [bytes("kind"), bytes("limit"), bytes("limit"), PartBuf::Integer(3)]);
}

#[test]
fn a_string_that_counts_as_a_lock_is_shown_with_its_owner() {
    let mut sim = with_clients(1);
    sim.told("SET old alice PX 30000");
    assert!(sim.error("LOCK.INFO old").starts_with(WRONG_TYPE));
    sim.switches("legacy-strings", true);
    let told = sim.told("LOCK.INFO old");
    assert!(told.contains(&bytes("alice")), "{told:?}");
    assert_eq!(sim.told("LOCK.ACQUIRE old bob PX 30000"), [PartBuf::Null]);
    sim.told("SET text t");
    assert!(sim.error("LOCK.INFO text").starts_with(WRONG_TYPE), "it has no time to live");
}

#[test]
fn heldby_tells_what_an_owner_holds_and_waits_for() {
    let mut sim = with_clients(2);
    let token = sim.number("LOCK.ACQUIRE a alice PX 30000");
    sim.number("LOCK.ACQUIRE b bob PX 30000");
    sim.waits(2, "LOCK.ACQUIRE b alice PX 30000 SHARED BLOCK 0");
    let one = |name: &str, how: &str, kind: &str| [PartBuf::Array(5), bytes(name), bytes(how), bytes(kind)];
    let mut wanted = vec![PartBuf::Array(2)];
    wanted.extend(one("a", "held", "exclusive"));
    wanted.extend([PartBuf::Integer(token), PartBuf::Integer(30_000)]);
    wanted.extend(one("b", "waiting", "shared"));
    wanted.extend([PartBuf::Null, PartBuf::Null]);
    assert_eq!(sim.told("LOCK.HELDBY alice"), wanted);
    assert_eq!(sim.told("LOCK.HELDBY nobody"), [PartBuf::Array(0)]);
}

#[test]
fn the_clock_of_tokens_follows_what_a_file_says_and_no_client() {
    let mut sim = with_clients(1);
    assert_eq!(sim.told("LOCK.TICK"), [PartBuf::Ok]);
    assert!(sim.error("LOCK.TICK 1 1").starts_with("ERR this command belongs"));
    assert!(sim.error("LOCK.APPLY k EMPTY").starts_with("ERR this command belongs"));
    // With a key alone it is a question of the module's own, which has no connection.
    assert!(sim.error("LOCK.APPLY k").starts_with("ERR this command belongs"));
    let own = sim.run(None, 0, words("LOCK.APPLY k"), Flags::default());
    assert_eq!(own, Said::Now(vec![PartBuf::Ok]));
    let fact = Flags { is_fact: true, ..Flags::default() };
    let ahead = 1_700_000_500_000_000_u64;
    assert_eq!(sim.told_as(fact, words(&format!("LOCK.TICK {ahead} 0"))), [PartBuf::Ok]);
    assert!(sim.number("LOCK.ACQUIRE k alice PX 30000") > ahead);
    assert!(matches!(&sim.told_as(fact, words("LOCK.TICK x 0"))[..], [PartBuf::Error(_)]));
}

#[test]
fn an_empty_lock_is_created_only_where_no_key_is() {
    let mut sim = with_clients(1);
    let fact = Flags { is_fact: true, ..Flags::default() };
    assert_eq!(sim.told_as(fact, words("LOCK.APPLY k EMPTY")), [PartBuf::Ok]);
    assert_eq!(sim.told("EXISTS k"), [PartBuf::Integer(1)]);
    assert_eq!(sim.told("LOCK.FENCE k"), [PartBuf::Null]);
    let token = sim.number("LOCK.ACQUIRE k alice PX 30000");
    assert_eq!(sim.told_as(fact, words("LOCK.APPLY k EMPTY")), [PartBuf::Ok]);
    assert_eq!(sim.number("LOCK.FENCE k"), token, "it is held");
}
