//! Steps of the wall clock on a running server: they do not affect leases and waits (G2), and tokens do not fall
//! (G4).

use std::time::Instant;

use crate::server::wall_clock::WallClock;
use crate::server::{Lease, Server, await_that, let_pass, millis};

fn server_with(clock: &WallClock) -> Server {
    Server::build().clock(clock).start()
}

// G2
#[test]
fn a_step_of_the_wall_clock_neither_ends_nor_extends_a_lease() {
    let clock = WallClock::ahead(0);
    let server = server_with(&clock);
    let mut client = server.client();
    let token = client.acquire("stock", "alice", 60_000);
    let waiter = server.in_queue("stock", "bob", 60_000);
    let lease = Lease::read(&mut client, "stock");
    for step in [3600, -3600, 86_400, -86_400, 0] {
        clock.set_ahead(step);
        waiter.waits_for(millis(100));
        lease.assert_kept(&mut client, 60_000);
        assert_eq!(client.fence("stock"), Some(token));
    }
}

// G3: the server's own timers stop for as long as the clock was set back.
#[test]
fn leases_end_on_time_though_the_wall_clock_was_set_back() {
    let clock = WallClock::ahead(0);
    let server = server_with(&clock);
    let mut client = server.client();
    client.acquire("stock", "alice", 1000);
    client.acquire("unattended", "alice", 1000);
    let earliest = Instant::now() + millis(900);
    let waiter = server.in_queue("stock", "bob", 60_000);
    clock.set_ahead(-3600);
    let (answer, at) = waiter.timed_answer();
    assert!(matches!(answer, Ok(redis::Value::Int(_))), "{answer:?}");
    assert!(at >= earliest, "the lease was cut short");
    await_that("the lock that nobody asks for is gone", || client.int("EXISTS unattended") == 0);
    // And so do leases that begin after the step.
    client.acquire("later", "alice", 100);
    await_that("the later lock is gone", || client.int("EXISTS later") == 0);
}

// G3, G6: set back in the moment between a cause and its effect, when something is due already.
#[test]
fn what_is_due_when_the_wall_clock_is_set_back_is_done() {
    let clock = WallClock::ahead(0);
    let server = server_with(&clock);
    let mut client = server.client();
    client.acquire("stock", "alice", 600_000);
    client.acquire("unattended", "alice", 200);
    let heir = server.in_queue("stock", "bob", 600_000);
    for line in ["MULTI", "DEL stock", "DEBUG SLEEP 1"] {
        client.call(line);
    }
    // The lock is free, and for a second the server cannot hand it over.
    client.send("EXEC");
    let_pass(millis(500));
    clock.set_ahead(-3600);
    heir.granted();
    let mut client = server.client();
    await_that("the lock that nobody asks for is gone", || client.int("EXISTS unattended") == 0);
    // Setting it right again leaves the server's own timers as they are: one that is overdue now is due in an
    // hour, and those after it are not checked.
    clock.set_ahead(0);
    for round in 0..5 {
        client.acquire("after", &format!("alice-{round}"), 30);
        await_that("the lock of afterwards is gone", || client.int("EXISTS after") == 0);
    }
}

// G7
#[test]
fn waits_end_on_time_though_the_wall_clock_was_set() {
    for step in [3600, -3600] {
        let clock = WallClock::ahead(0);
        let server = server_with(&clock);
        let mut client = server.client();
        client.acquire("stock", "alice", 600_000);
        let waiter = server.waiter("LOCK.ACQUIRE stock bob PX 1000 BLOCK 1000");
        client.await_waiters("stock", 1);
        clock.set_ahead(step);
        let (answer, at) = waiter.timed_answer();
        assert_eq!(answer, Ok(redis::Value::Nil));
        assert!(at - waiter.sent_at >= millis(990), "step {step}: after {:?}", at - waiter.sent_at);
        assert_eq!(client.waiters("stock"), 0);
    }
}

// G4
#[test]
fn tokens_rise_while_the_wall_clock_is_set_back_and_forth() {
    let clock = WallClock::ahead(0);
    let server = server_with(&clock);
    let mut client = server.client();
    let mut newest = 0;
    for step in [0, -10, 3600, 0, -3600, 20, 7200, -7200] {
        clock.set_ahead(step);
        for number in 0..50 {
            let token = client.acquire("stock", "alice", 60_000);
            assert!(token > newest, "step {step}, grant {number}: {token} after {newest}");
            client.release("stock", "alice");
            newest = token;
        }
    }
}

// Tokens can be read as a time of day, unless the clock was set back.
#[test]
fn a_token_is_the_wall_clock_in_microseconds() {
    let clock = WallClock::ahead(1000);
    let server = server_with(&clock);
    let mut client = server.client();
    let token = client.acquire("stock", "alice", 60_000);
    let ahead = token - crate::server::wall_clock::now_us();
    assert!((940_000_000..1_000_100_000).contains(&ahead), "{ahead} us ahead instead of 1000 s");
    let_pass(millis(300));
    let later = client.acquire("other", "alice", 60_000);
    assert!(later - token >= 250_000, "the tokens follow the clock: {token}, {later}");
}
