//! `examples/redlock.rs` over five servers without knowledge of each other. `tests/python/test_redlock.py` tests the
//! rules of `docs/concepts/redlock.md` in more ways.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[path = "../examples/redlock.rs"]
#[allow(dead_code)] // Its `main` is for people.
mod example;

use crate::server::wall_clock::WallClock;
use crate::server::{Server, await_that, let_pass, millis, patient};
use example::{Redlock, now};

const LONG: Duration = Duration::from_secs(600);
/// A time-out that no server needs which runs.
const PATIENT: Duration = Duration::from_secs(10);

fn five() -> Vec<Server> {
    (0..5).map(|_| Server::start()).collect()
}

fn quarantined_five() -> Vec<Server> {
    let servers: Vec<Server> = (0..5).map(|_| Server::build().module("quarantine 1000").start()).collect();
    for server in &servers {
        let mut client = server.client();
        await_that("the quarantine of the start is over", || {
            client.info("redislock", "redislock_quarantine_left_ms") == "0"
        });
    }
    servers
}

fn addresses(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect()
}

/// A client that reaches these servers, of five.
fn reaching(servers: &[Server], numbers: &[usize], timeout: Duration) -> Redlock {
    let mut addresses = addresses(servers);
    for (number, address) in addresses.iter_mut().enumerate() {
        if !numbers.contains(&number) {
            // Nobody listens there.
            *address = "127.0.0.1:1".into();
        }
    }
    Redlock::new(&addresses, patient(timeout)).unwrap()
}

fn redlock(servers: &[Server]) -> Redlock {
    reaching(servers, &[0, 1, 2, 3, 4], PATIENT)
}

/// The number of servers on which the token is live.
fn live(servers: &[Server], key: &str, token: i64) -> usize {
    servers.iter().filter(|server| server.client().fence(key) == Some(token)).count()
}

fn keys(servers: &[Server]) -> i64 {
    servers.iter().map(|server| server.client().int("DBSIZE")).sum()
}

#[test]
fn the_example_does_what_it_says() {
    let servers = five();
    assert!(example::run(&addresses(&servers)).unwrap());
    assert_eq!(keys(&servers), 0);
}

#[test]
fn a_minority_may_be_down_and_without_a_majority_nothing_is_left() {
    let mut servers = five();
    servers[1].kill();
    servers[4].kill();
    let mut redlock = redlock(&servers);
    let (up, mut three) = ([0, 2, 3], Vec::new());
    let guard = redlock.acquire("door", LONG).unwrap();
    for number in up {
        three.push(servers[number].client().fence("door"));
    }
    assert_eq!(three, [Some(guard.token()); 3]);
    drop(guard);
    for number in up {
        assert_eq!(servers[number].client().int("DBSIZE"), 0);
    }
    servers[0].kill();
    let refusal = redlock.acquire_within(3, "door", LONG).err().expect("two of five are none").to_string();
    assert!(refusal.contains("Connection refused"), "{refusal}");
    for number in [2, 3] {
        assert_eq!(servers[number].client().int("DBSIZE"), 0);
        assert_eq!(servers[number].client().info("redislock", "redislock_grants"), "4");
    }
}

#[test]
fn a_majority_that_has_the_token_renews_the_lock() {
    let servers = five();
    let mut redlock = redlock(&servers);
    let mut guard = redlock.acquire("door", LONG).unwrap();
    let longest = LONG - LONG / 100;
    assert!(guard.left() <= longest);
    for number in [0, 1] {
        servers[number].client().call("DEL door");
    }
    assert!(guard.extend());
    for server in &servers {
        server.client().call("CLIENT KILL TYPE normal");
    }
    assert!(guard.extend(), "connections that were closed meanwhile are made anew");
    servers[2].client().call("DEL door");
    assert!(!guard.extend());
    assert!(guard.left() > LONG / 2, "what was promised before still is");
    assert_eq!(keys(&servers), 2, "a renewal makes no hold");
}

// The classic flaw: one holds a bare majority, of which a server forgets; another finds a majority too.
#[test]
fn a_restart_without_memory_makes_two_holders_and_the_token_tells() {
    let mut servers = five();
    let mut early = reaching(&servers, &[0, 1, 2], PATIENT);
    let first = early.acquire("door", LONG).unwrap();
    servers[2].kill();
    servers[2].start_again();
    let mut late = reaching(&servers, &[2, 3, 4], PATIENT);
    let second = late.acquire("door", LONG).unwrap();
    assert!(first.left() > millis(0) && second.left() > millis(0));
    assert!(second.token() > first.token());
    assert_eq!((live(&servers, "door", first.token()), live(&servers, "door", second.token())), (2, 3));
}

// T5
#[test]
fn with_a_quarantine_a_restart_without_memory_grants_no_request() {
    let mut servers = quarantined_five();
    let mut early = reaching(&servers, &[0, 1, 2], PATIENT);
    let first = early.acquire("door", millis(1000)).unwrap();
    let until = now() + first.left();
    servers[2].kill();
    servers[2].start_again();
    let mut late = reaching(&servers, &[2, 3, 4], PATIENT);
    let refusal = late.acquire_within(1, "door", millis(1000)).err().map(|error| error.to_string());
    assert!(refusal.is_some_and(|refusal| refusal.contains("QUARANTINE")) || now() > until);
    let second = late.acquire("door", millis(1000)).unwrap();
    assert!(now() > until, "before the first one's time was over");
    assert!(second.token() > first.token());
}

#[test]
fn a_frozen_server_costs_its_time_out_and_grants_too_late() {
    let servers = five();
    let (timeout, lease) = (patient(millis(500)), patient(millis(3000)));
    let mut redlock = reaching(&servers, &[0, 1, 2, 3, 4], timeout);
    // All connections are there.
    drop(redlock.acquire("door", lease).unwrap());
    servers[4].freeze();
    let began = Instant::now();
    let guard = redlock.acquire_within(1, "door", lease).unwrap();
    assert!(began.elapsed() >= timeout);
    assert!(guard.left() + began.elapsed() <= lease, "the time-out is no part of the validity");
    drop(guard);
    servers[4].thaw();
    let mut client = servers[4].client();
    await_that("it grants what nobody waits for", || client.info("redislock", "redislock_grants") == "2");
    await_that("a release or the lease ends that", || keys(&servers) == 0);
    let guard = redlock.acquire("door", lease).unwrap();
    assert_eq!(live(&servers, "door", guard.token()), 5, "the replies are those to these requests");
}

// The second round: the highest token of a majority alone can be lower than that of the majority before.
#[test]
fn tokens_rise_though_one_clock_is_ahead() {
    let clock = WallClock::ahead(30);
    let mut servers = vec![Server::build().clock(&clock).start()];
    servers.extend((1..5).map(|_| Server::start()));
    let mut newest = 0;
    for numbers in [[0, 1, 2], [2, 3, 4], [1, 3, 4], [0, 3, 4]] {
        let mut redlock = reaching(&servers, &numbers, PATIENT);
        let guard = redlock.acquire("door", LONG).unwrap();
        assert!(guard.token() > newest, "{numbers:?}: {} after {newest}", guard.token());
        newest = guard.token();
    }
    // So far ahead that the others refuse its tokens: then it goes without it.
    clock.set_ahead(3600);
    let_pass(millis(50)); // A server looks at that clock every 10 ms, if it is asked for tokens.
    let mut redlock = redlock(&servers);
    let guard = redlock.acquire("door", LONG).unwrap();
    assert!(guard.token() > newest);
    assert_eq!(live(&servers, "door", guard.token()), 4);
}

#[test]
fn threads_take_turns_while_a_server_is_lost() {
    let servers = five();
    let addresses = addresses(&servers);
    let (inside, tokens) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let servers = Mutex::new(servers);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut redlock = Redlock::new(&addresses, patient(PATIENT)).unwrap();
                for _ in 0..5 {
                    let guard = redlock.acquire_within(1000, "door", LONG).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else is inside");
                    let mut tokens = tokens.lock().unwrap();
                    tokens.push(guard.token());
                    if tokens.len() == 10 {
                        servers.lock().unwrap()[3].kill();
                    }
                    drop(tokens);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    let tokens = tokens.into_inner().unwrap();
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}
