//! Tokens only rise (G4), whatever happens to the locks, the files and the clock.
//!
//! The wall clock would hide a lost token clock, because it is later after a restart anyway. So the first server runs
//! half an hour in the future, and the server that has its data afterwards does not.

use redis::Value;

use crate::aof::rewrite;
use crate::server::topology::follow;
use crate::server::wall_clock::{WallClock, now_us};
use crate::server::{Builder, Client, Server, await_that};

const AHEAD_S: i64 = 1800;

fn in_the_future(clock: &WallClock) -> Builder {
    clock.set_ahead(AHEAD_S);
    Server::build().clock(clock).module("max-token-lead 86400000")
}

/// The ways in which the last lock can go before the server does.
const ENDS: [&str; 6] = ["held", "released", "deleted", "flushed", "expired", "overwritten"];

/// Takes a lock and ends it in this way. Gives its token, which is from the future.
fn take_and_end(client: &mut Client, end: &str) -> i64 {
    let lease = if end == "expired" { 40 } else { 600_000 };
    let token = client.acquire("stock", "alice", lease);
    assert!(token > now_us() + (AHEAD_S - 60) * 1_000_000, "the clock is not ahead: {token}");
    match end {
        "released" => assert_eq!(client.release("stock", "alice"), 1),
        "deleted" => assert_eq!(client.int("DEL stock"), 1),
        "flushed" => assert_eq!(client.text("FLUSHALL"), "OK"),
        "expired" => await_that("the lease has run out", || client.int("EXISTS stock") == 0),
        "overwritten" => assert_eq!(client.text("SET stock x"), "OK"),
        _ => assert_eq!(end, "held"),
    }
    token
}

/// Restarts the server in the present after each way to end a lock, and has a token minted.
fn survives_restarts(start: impl Fn(&WallClock) -> Server, save: impl Fn(&mut Client)) {
    for end in ENDS {
        let clock = WallClock::ahead(0);
        let mut server = start(&clock);
        let token = take_and_end(&mut server.client(), end);
        save(&mut server.client());
        server.stop();
        clock.set_ahead(0);
        server.start_again();
        let next = server.client().acquire("other", "bob", 1000);
        assert!(next > token, "{end}: the token {next} came after {token}");
    }
}

// G4
#[test]
fn tokens_rise_after_a_restart_from_an_rdb_file() {
    survives_restarts(|clock| in_the_future(clock).start(), |client| drop(client.call("SAVE")));
}

fn with_aof(clock: &WallClock, preamble: &str) -> Server {
    in_the_future(clock).set("appendonly", "yes").set("aof-use-rdb-preamble", preamble).start()
}

// G4
#[test]
fn tokens_rise_after_a_restart_from_an_append_only_file() {
    survives_restarts(|clock| with_aof(clock, "no"), |_| {});
}

// G4
#[test]
fn tokens_rise_after_a_restart_from_a_file_rewritten_with_a_preamble() {
    survives_restarts(|clock| with_aof(clock, "yes"), rewrite);
}

// G4
#[test]
fn tokens_rise_after_a_restart_from_a_file_rewritten_without_a_preamble() {
    survives_restarts(|clock| with_aof(clock, "no"), rewrite);
}

// G4: several starts and rewrites, each with its own way to pass the clock on.
#[test]
fn tokens_rise_through_a_chain_of_restarts_and_rewrites() {
    let clock = WallClock::ahead(0);
    let mut server = with_aof(&clock, "no");
    let mut newest = take_and_end(&mut server.client(), "released");
    clock.set_ahead(0);
    for round in 0..3 {
        rewrite(&mut server.client());
        server.restart();
        rewrite(&mut server.client());
        server.restart();
        let mut client = server.client();
        let token = client.acquire("stock", "alice", 600_000);
        assert!(token > newest, "round {round}: {token} after {newest}");
        client.release("stock", "alice");
        newest = token;
    }
}

// G4
#[test]
fn tokens_rise_after_debug_reload_and_debug_loadaof() {
    let clock = WallClock::ahead(0);
    let server = with_aof(&clock, "yes");
    let mut client = server.client();
    let mut newest = 0;
    for end in ENDS {
        for reload in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
            let token = take_and_end(&mut client, end);
            assert!(token > newest);
            clock.set_ahead(0);
            client.call(reload);
            newest = client.acquire("other", "bob", 600_000);
            assert!(newest > token, "{reload}, {end}: {newest} after {token}");
            clock.set_ahead(AHEAD_S);
            client.call("FLUSHALL");
        }
    }
}

// G4: the data set is replaced by one that does not know the tokens granted before.
#[test]
fn a_full_resynchronisation_does_not_lower_the_clock() {
    let clock = WallClock::ahead(0);
    let server = in_the_future(&clock).start();
    let token = take_and_end(&mut server.client(), "released");
    clock.set_ahead(0);
    let primary = Server::start();
    primary.client().acquire("stock", "carol", 600_000);
    follow(&server, &primary);
    server.client().call("REPLICAOF NO ONE");
    let next = server.client().acquire("other", "bob", 1000);
    assert!(next > token, "{next} came after {token}");
}

// G4: a promoted replica mints higher tokens than its primary did, though no lock is left that has them.
#[test]
fn tokens_rise_on_a_replica_that_is_promoted() {
    for is_there_from_the_start in [true, false] {
        let clock = WallClock::ahead(0);
        let primary = in_the_future(&clock).start();
        let replica = Server::start();
        if is_there_from_the_start {
            follow(&replica, &primary);
        }
        let token = take_and_end(&mut primary.client(), "flushed");
        if !is_there_from_the_start {
            follow(&replica, &primary);
        }
        crate::server::topology::await_caught_up(&primary, &replica);
        replica.client().call("REPLICAOF NO ONE");
        let next = replica.client().acquire("other", "bob", 1000);
        assert!(next > token, "{next} came after {token}");
    }
}

fn restore(client: &mut Client, key: &str, payload: &Value) -> Result<Value, String> {
    let Value::BulkString(payload) = payload else { panic!("not a payload: {payload:?}") };
    let mut restore = redis::cmd("RESTORE");
    restore.arg(key).arg(0).arg(payload);
    client.ask_command(&restore)
}

// G4, G14
#[test]
fn a_restored_token_raises_the_clock_but_not_beyond_the_permitted_lead() {
    let clock = WallClock::ahead(0);
    let source = in_the_future(&clock).start();
    let token = source.client().acquire("stock", "alice", 600_000);
    let payload = source.client().call("DUMP stock");

    let server = Server::start();
    let mut client = server.client();
    let own = client.acquire("other", "bob", 600_000);
    let before = client.text("DEBUG DIGEST");
    let answer = restore(&mut client, "stock", &payload);
    assert!(answer.is_err(), "half an hour is more than the permitted minute: {answer:?}");
    assert_eq!(client.text("DEBUG DIGEST"), before);
    let next = client.acquire("third", "bob", 600_000);
    assert!(own < next && next < token, "{own} {next} {token}");

    client.call("CONFIG SET redislock.max-token-lead 86400000");
    restore(&mut client, "stock", &payload).unwrap();
    assert_eq!(client.fence("stock"), Some(token));
    assert!(client.acquire("fourth", "bob", 600_000) > token);
}

// G4: also by a lock that is empty, because it has another name now.
#[test]
fn a_lock_restored_under_another_name_is_empty() {
    let clock = WallClock::ahead(0);
    let source = in_the_future(&clock).start();
    let token = source.client().acquire("stock", "alice", 600_000);
    let payload = source.client().call("DUMP stock");
    let server = Server::build().module("max-token-lead 86400000").start();
    let mut client = server.client();
    restore(&mut client, "other", &payload).unwrap();
    assert_eq!(client.fence("other"), None);
    assert_eq!(client.call("LOCK.INFO other"), Value::Nil);
    assert_ne!(client.acquire("other", "bob", 1000), token);
}
