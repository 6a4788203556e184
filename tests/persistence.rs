//! RDB files: saved locks are restored, with the same tokens and no shorter leases.

use std::time::Instant;

use crate::server::topology::{digest, locks, state};
use crate::server::wall_clock::WallClock;
use crate::server::{Lease, Server, await_that, let_pass, millis};

const MINUTE_MS: i64 = 60_000;

// G13
#[test]
fn a_saved_lock_comes_back_with_its_owner_token_and_lease() {
    let mut server = Server::start();
    let mut client = server.client();
    let token = client.acquire("stock", "alice", 60_000);
    let lease = Lease::read(&mut client, "stock");
    let before = state(&server);
    client.call("SAVE");
    server.restart();

    let mut client = server.client();
    assert_eq!(state(&server), before);
    assert_eq!(client.fence("stock"), Some(token));
    assert_eq!(client.owner("stock").as_deref(), Some("alice"));
    lease.assert_kept(&mut client, MINUTE_MS);
    // It is as good as it was: its owner can use it, others cannot.
    assert_eq!(client.try_acquire("stock", "bob", 1000), None);
    assert_eq!(client.release("stock", "bob"), 0);
    assert_eq!(client.try_acquire("stock", "alice", 1000), Some(token));
    assert_eq!(client.release("stock", "alice"), 1);
}

// G13
#[test]
fn names_and_owners_of_any_bytes_come_back() {
    let mut server = Server::start();
    let mut client = server.client();
    let all_bytes: Vec<u8> = (0..=255).collect();
    let mut acquire = redis::cmd("LOCK.ACQUIRE");
    acquire.arg(&all_bytes).arg(&all_bytes).arg("PX").arg(60_000);
    let token = client.call_command(&acquire);
    assert_ne!(token, redis::Value::Nil);
    client.call("SAVE");
    let before = digest(&server);
    server.restart();

    let mut client = server.client();
    assert_eq!(digest(&server), before);
    assert_eq!(client.call_command(&acquire), token, "the owner is recognised");
    let mut release = redis::cmd("LOCK.RELEASE");
    release.arg(&all_bytes).arg(&all_bytes);
    assert_eq!(client.call_command(&release), redis::Value::Int(1));
}

// G13
#[test]
fn thousands_of_locks_in_several_databases_come_back() {
    let mut server = Server::start();
    let mut client = server.client();
    for db in [0, 1, 15] {
        client.select(db);
        for number in 0..1000 {
            client.acquire(&format!("lock-{number}"), &format!("owner-{db}-{number}"), 600_000);
        }
    }
    let before = state(&server);
    assert_eq!(before.0.len(), 3000);
    client.call("SAVE");
    server.restart();
    assert_eq!(state(&server), before);
}

// G3: the deadlines of loaded locks are armed.
#[test]
fn a_loaded_lease_expires_and_the_next_in_line_gets_the_lock() {
    let mut server = Server::start();
    let mut client = server.client();
    let lost = client.acquire("stock", "alice", 4000);
    client.acquire("unattended", "alice", 4000);
    let lease_ends = Instant::now() + millis(4000);
    client.call("SAVE");
    server.restart();

    let mut client = server.client();
    let waiter = server.in_queue("stock", "bob", 60_000);
    let token = waiter.granted();
    assert!(token > lost);
    // A generous millisecond for the clocks' different ticks: G2.
    assert!(Instant::now() + millis(1) >= lease_ends - millis(50), "the lease was cut short");
    await_that("the lock that nobody asks for is gone", || client.int("EXISTS unattended") == 0);
    assert_eq!(client.owner("stock").as_deref(), Some("bob"));
}

// G2: the remaining lease is not computed with the wall clock, which may have been set meanwhile.
#[test]
fn a_wall_clock_set_while_the_server_was_down_shortens_no_lease() {
    for step in [3600, -3600] {
        let clock = WallClock::ahead(0);
        let mut server = Server::build().clock(&clock).start();
        let mut client = server.client();
        client.acquire("stock", "alice", 60_000);
        let lease = Lease::read(&mut client, "stock");
        client.call("SAVE");
        server.stop();
        clock.set_ahead(step);
        server.start_again();
        lease.assert_kept(&mut server.client(), MINUTE_MS);
    }
}

// G10: nothing that ended comes back, and nothing that was broken.
#[test]
fn what_had_ended_before_the_save_does_not_come_back() {
    let mut server = Server::start();
    let mut client = server.client();
    for name in ["released", "deleted", "expired", "renamed", "moved", "overwritten"] {
        let lease = if name == "expired" { 50 } else { 60_000 };
        client.acquire(name, "alice", lease);
    }
    client.release("released", "alice");
    client.call("DEL deleted");
    client.call("RENAME renamed new-name");
    client.call("MOVE moved 1");
    client.call("SET overwritten x");
    await_that("the lease has run out", || client.int("EXISTS expired") == 0);
    let before = digest(&server);
    client.call("SAVE");
    server.restart();

    let mut client = server.client();
    assert_eq!(digest(&server), before, "empty locks are the same too");
    assert!(locks(&server).is_empty(), "{:?}", locks(&server));
    for name in ["released", "deleted", "expired", "renamed", "new-name", "moved"] {
        client.acquire(name, "bob", 60_000);
    }
    assert_eq!(client.text("GET overwritten"), "x");
    client.select(1);
    client.acquire("moved", "bob", 60_000);
}

#[test]
fn an_empty_lock_that_came_back_can_be_deleted() {
    let mut server = Server::start();
    let mut client = server.client();
    client.acquire("old", "alice", 60_000);
    client.call("RENAME old new");
    client.call("SAVE");
    server.restart();
    let mut client = server.client();
    assert_eq!(client.fence("new"), None);
    assert_eq!(client.call("LOCK.INFO new"), redis::Value::Nil);
    assert_eq!(client.int("DEL new"), 1);
    assert_eq!(client.int("DBSIZE"), 0);
}

// G13
#[test]
fn debug_reload_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for number in 0..100 {
        client.acquire(&format!("lock-{number}"), "alice", 600_000);
    }
    client.call("RENAME lock-0 elsewhere");
    client.call("PEXPIRE lock-1 500000");
    let before = state(&server);
    let lease = Lease::read(&mut client, "lock-7");
    for _ in 0..3 {
        client.call("DEBUG RELOAD");
        assert_eq!(state(&server), before);
        lease.assert_kept(&mut client, 600_000);
    }
    assert!(client.int("PTTL lock-1") > 400_000);
}

// G1, G6: for a moment the lock's key is not there, and no waiter may take that for a free lock.
#[test]
fn a_wait_ends_when_debug_reload_brings_the_lock_back() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire("stock", "alice", 600_000);
    let waiter = server.in_queue("stock", "bob", 60_000);
    client.call("DEBUG RELOAD");
    assert!(waiter.refused().starts_with("UNBLOCKED a lock came to this key"));
    assert_eq!(client.fence("stock"), Some(token));
    assert_eq!(client.waiters("stock"), 0);
    assert_eq!(client.owner("stock").as_deref(), Some("alice"));
}

// G6: loading freed the locks that the file does not have.
#[test]
fn a_waiter_is_granted_a_lock_that_the_loaded_file_does_not_have() {
    let server = Server::start();
    let mut client = server.client();
    client.call("SAVE");
    client.acquire("stock", "alice", 600_000);
    let waiter = server.in_queue("stock", "bob", 60_000);
    client.call("DEBUG RELOAD NOSAVE");
    waiter.granted();
    assert_eq!(client.owner("stock").as_deref(), Some("bob"));
}

// G3: deadlines of before the reload mean nothing any more, those of the file count.
#[test]
fn leases_still_run_out_after_debug_reload() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("short", "alice", 700);
    client.acquire("long", "alice", 600_000);
    client.call("DEBUG RELOAD");
    await_that("the short lease has run out", || client.int("EXISTS short") == 0);
    assert_eq!(client.owner("long").as_deref(), Some("alice"));
    // Taken again under the same name while an old deadline is near: it does not apply to the new hold.
    client.acquire("again", "alice", 300);
    client.call("DEBUG RELOAD");
    client.release("again", "alice");
    client.acquire("again", "bob", 600_000);
    let_pass(millis(500));
    assert_eq!(client.owner("again").as_deref(), Some("bob"));
}

#[test]
fn a_server_that_never_had_a_lock_saves_and_restarts() {
    let mut server = Server::start();
    server.client().call("SET plain x");
    server.client().call("SAVE");
    server.restart();
    assert_eq!(server.client().text("GET plain"), "x");
}

// The snapshot is written by a child process while its parent continues.
#[test]
fn a_background_save_holds_what_was_held_when_it_began() {
    let mut server = Server::start();
    let mut client = server.client();
    let token = client.acquire("stock", "alice", 600_000);
    client.call("CONFIG SET rdb-key-save-delay 200000");
    client.call("BGSAVE");
    client.release("stock", "alice");
    client.acquire("stock", "bob", 600_000);
    await_that("the snapshot is written", || client.info("persistence", "rdb_bgsave_in_progress") == "0");
    server.kill();
    server.start_again();
    let mut client = server.client();
    assert_eq!(client.owner("stock").as_deref(), Some("alice"));
    assert_eq!(client.fence("stock"), Some(token));
}

// G13: equal digests mean something only if different holds have different ones.
#[test]
fn the_digest_tells_holds_apart() {
    let server = Server::start();
    let mut client = server.client();
    let mut digests = std::collections::BTreeSet::new();
    for owner in ["alice", "alice", "bob"] {
        client.acquire("stock", owner, 60_000);
        let value = client.call("DEBUG DIGEST-VALUE stock");
        let value = crate::server::client::as_list(&value).first().and_then(crate::server::client::as_text);
        assert!(digests.insert((digest(&server), value.clone())), "{owner}'s hold looks like one before it");
        client.renew("stock", owner, 90_000);
        assert!(digests.contains(&(digest(&server), value)), "the lease is no part of it: it runs");
        client.release("stock", owner);
    }
    client.acquire("stock", "carol", 60_000);
    client.call("RENAME stock other");
    assert!(digests.insert((digest(&server), None)));
    assert_ne!(digest(&server), "0".repeat(40), "an empty lock is something");
}
