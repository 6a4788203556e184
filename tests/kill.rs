//! `kill -9` under load. An answered command has taken effect, and its effect is there after a restart.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use crate::server::client::as_int;
use crate::server::{Client, Server, await_that, let_pass, millis};
use crate::workload::Dice;

const CONNECTIONS: usize = 4;
/// The least number of locks that a round leaves held: half of those it takes.
const HELD_MIN: i64 = 40;

/// The replies to one connection until it lost the server.
#[derive(Default)]
struct Told {
    /// Granted, and not asked to be released: (key, owner) and token.
    held: BTreeMap<(String, String), i64>,
    /// Answered that they were released: they must not come back. Key and token.
    released: Vec<(String, i64)>,
    tokens: Vec<i64>,
}

/// Takes locks, and releases some of them, until the server is gone.
fn take_until_it_dies(mut client: Client, name: &str, seed: u64) -> Told {
    let mut told = Told::default();
    let mut dice = Dice::new(seed);
    for number in 0.. {
        let (key, owner) = (format!("lock-{name}-{number}"), format!("owner-{name}-{number}"));
        let Ok(answer) = client.ask(&format!("LOCK.ACQUIRE {key} {owner} PX 600000")) else { break };
        let token = as_int(&answer).expect("nobody else wants it");
        told.tokens.push(token);
        if dice.below(2) == 0 {
            told.held.insert((key, owner), token);
            continue;
        }
        match client.ask(&format!("LOCK.RELEASE {key} {owner}")) {
            Ok(answer) => {
                assert_eq!(answer, Value::Int(1));
                told.released.push((key, token));
            }
            // Sent, and never answered: it may be either.
            Err(_) => break,
        }
    }
    told
}

/// Runs the load, kills the server in the middle of it, and returns all replies.
fn kill_under_load(server: &mut Server, round: u64, during: impl FnOnce(&mut Client)) -> Vec<Told> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let client = server.client();
                let name = format!("{round}-{number}");
                let seed = round * 100 + number as u64;
                scope.spawn(move || take_until_it_dies(client, &name, seed))
            })
            .collect();
        let mut client = server.client();
        let before = client.int("DBSIZE");
        await_that("there is load", || client.int("DBSIZE") > before + HELD_MIN);
        during(&mut client);
        server.kill();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

fn assert_nothing_lost(client: &mut Client, told: &[Told]) {
    for told in told {
        for ((key, owner), token) in &told.held {
            let hold = client.hold(key).unwrap_or_else(|| panic!("{key} of {owner} is lost"));
            assert_eq!((&hold.owner, hold.token), (owner, *token));
        }
        for (key, token) in &told.released {
            assert_eq!(client.int(&format!("LOCK.FENCE {key} {token}")), 0, "{key} was released");
        }
    }
}

fn survives_kills(preamble: &str, during: impl Fn(&mut Client)) {
    let settings = Server::build().set("appendonly", "yes").set("appendfsync", "always");
    let mut server = settings.set("aof-use-rdb-preamble", preamble).start();
    let mut tokens = BTreeSet::new();
    let mut all_told = Vec::new();
    for round in 0..3 {
        let told = kill_under_load(&mut server, round, &during);
        server.start_again();
        let mut client = server.client();
        let newest = tokens.last().copied().unwrap_or(0);
        for token in told.iter().flat_map(|told| &told.tokens) {
            assert!(*token > newest, "{token} was minted after {newest}");
        }
        for token in told.iter().flat_map(|told| &told.tokens) {
            assert!(tokens.insert(*token), "two grants have the token {token}");
        }
        all_told.extend(told);
        assert_nothing_lost(&mut client, &all_told);
        let next = client.acquire(&format!("after-{round}"), "zoe", 600_000);
        assert!(next > *tokens.last().unwrap(), "{next} came after {:?}", tokens.last());
        tokens.insert(next);
    }
    assert!(tokens.len() > 100, "the load was none: {}", tokens.len());
}

// G4, G13
#[test]
fn no_answered_grant_is_lost_and_no_token_comes_twice() {
    survives_kills("yes", |_| let_pass(millis(500)));
}

// G4, G13: killed while the file is being rewritten, or just after.
#[test]
fn no_answered_grant_is_lost_while_the_file_is_rewritten() {
    survives_kills("no", |client| {
        client.call("CONFIG SET rdb-key-save-delay 100");
        for _ in 0..5 {
            let_pass(millis(100));
            let _ = client.ask("BGREWRITEAOF");
        }
    });
}

// G4, G13: waiters too: one that received the lock holds it.
#[test]
fn a_grant_out_of_the_line_is_on_disk_before_it_is_answered() {
    let mut server = Server::build().set("appendonly", "yes").set("appendfsync", "always").start();
    for round in 0..5 {
        let mut client = server.client();
        client.acquire("released", &format!("alice-{round}"), 600_000);
        client.acquire("expired", &format!("alice-{round}"), 100);
        let heirs = ["released", "expired"].map(|key| server.in_queue(key, &format!("bob-{round}"), 600_000));
        client.send(&format!("LOCK.RELEASE released alice-{round}"));
        let tokens = heirs.each_ref().map(crate::server::Waiter::granted);
        server.kill();
        server.start_again();
        let mut client = server.client();
        for (key, token) in ["released", "expired"].into_iter().zip(tokens) {
            let hold = client.hold(key).unwrap_or_else(|| panic!("{key} is lost"));
            assert_eq!((hold.owner, hold.token), (format!("bob-{round}"), token));
            client.release(key, &format!("bob-{round}"));
        }
    }
}
