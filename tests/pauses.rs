//! Times at which the server must not write: a module that writes then without checking aborts the server. So no lock
//! is granted and no hold ends, and afterwards nothing is forgotten (CONTRACT 4).

use crate::aof::rewrite;
use crate::server::client::CLOSED;
use crate::server::topology::{await_caught_up, await_link, follow};
use crate::server::{Client, Server, Waiter, await_that, let_pass, millis};

/// Longer than any test: pauses are ended by the test.
const LONG_MS: u32 = 600_000;

/// A server with a lock whose lease runs out in two seconds, and a waiter for it.
fn server_with_heir() -> (Server, Client, Waiter) {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("short", "alice", 2000);
    let heir = server.in_queue("short", "bob", 600_000);
    (server, client, heir)
}

// G3, G6
#[test]
fn nothing_ends_and_nothing_is_granted_while_writes_are_paused() {
    let (mut server, mut client, heir) = server_with_heir();
    client.acquire("unattended", "alice", 2000);
    client.call(&format!("CLIENT PAUSE {LONG_MS} WRITE"));
    heir.waits_for(millis(2500));
    assert_eq!(client.int("EXISTS unattended short"), 2);
    assert!(server.is_alive());
    client.call("CLIENT UNPAUSE");
    heir.granted();
    await_that("the lock that nobody asks for is gone", || client.int("EXISTS unattended") == 0);
}

// G3, G6: this pause ends unprompted, and no client can ask anything meanwhile.
#[test]
fn nothing_is_granted_while_everything_is_paused() {
    let (mut server, mut client, heir) = server_with_heir();
    client.acquire("unattended", "alice", 2000);
    let impatient = server.waiter("LOCK.ACQUIRE short carol PX 1000 BLOCK 2500");
    client.await_waiters("short", 2);
    client.call("CLIENT PAUSE 4500 ALL");
    heir.waits_for(millis(3500));
    heir.granted();
    impatient.timed_out();
    await_that("the lock that nobody asks for is gone", || client.int("EXISTS unattended") == 0);
    assert!(server.is_alive());
}

// G7: a nil reply is not a write.
#[test]
fn a_wait_ends_on_time_while_writes_are_paused() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("stock", "alice", 600_000);
    let waiter = server.waiter("LOCK.ACQUIRE stock bob PX 1000 BLOCK 500");
    client.await_waiters("stock", 1);
    client.call(&format!("CLIENT PAUSE {LONG_MS} WRITE"));
    waiter.timed_out();
    assert_eq!(client.waiters("stock"), 0);
    client.call("CLIENT UNPAUSE");
}

// G8, G10: a waiter that leaves during the pause is not granted after it.
#[test]
fn a_waiter_that_leaves_while_writes_are_paused_is_not_granted() {
    let (server, mut client, heir) = server_with_heir();
    let next = server.in_queue("short", "carol", 600_000);
    client.call(&format!("CLIENT PAUSE {LONG_MS} WRITE"));
    heir.waits_for(millis(2500));
    client.call(&format!("CLIENT KILL ID {}", heir.client_id));
    client.await_waiters("short", 1);
    client.call("CLIENT UNPAUSE");
    next.granted();
    assert_eq!(client.owner("short").as_deref(), Some("carol"));
}

// G6: commands wait for the end of the pause too, and free their locks then.
#[test]
fn commands_held_up_by_a_pause_free_locks_after_it() {
    for line in ["LOCK.RELEASE stock alice", "DEL stock", "FLUSHALL", "FLUSHDB ASYNC", "SWAPDB 0 1"] {
        let server = Server::start();
        let mut client = server.client();
        client.acquire("stock", "alice", 600_000);
        let heir = server.in_queue("stock", "bob", 600_000);
        client.call(&format!("CLIENT PAUSE {LONG_MS} WRITE"));
        let freeing = server.waiter(line);
        heir.waits_for(millis(100));
        client.call("CLIENT UNPAUSE");
        assert!(freeing.answer().is_ok());
        heir.granted();
    }
}

// G7: an acquire that arrives during the pause is carried out after it.
#[test]
fn an_acquire_that_arrives_during_a_pause_is_answered_after_it() {
    let server = Server::start();
    let mut client = server.client();
    client.call(&format!("CLIENT PAUSE {LONG_MS} WRITE"));
    let acquire = server.waiter("LOCK.ACQUIRE stock alice PX 60000 BLOCK 0");
    let try_it = server.waiter("LOCK.ACQUIRE stock bob PX 500");
    acquire.waits_for(millis(100));
    client.call("CLIENT UNPAUSE");
    let answers = [acquire.timed_answer().0, try_it.answer()];
    let granted = answers.iter().filter(|answer| matches!(answer, Ok(redis::Value::Int(_)))).count();
    assert!(granted >= 1, "{answers:?}");
}

// G7: or their connection is closed.
#[test]
fn a_shutdown_closes_the_connections_of_waiters_and_ends_well() {
    for is_busy in [false, true] {
        let (mut server, client, heir) = server_with_heir();
        let waiters: Vec<_> =
            (0..20).map(|n| server.in_queue("short", &format!("owner-{n}"), 1000)).collect();
        if is_busy {
            // Timers that are due at the same moment as the shutdown.
            server.client().send("LOCK.RELEASE short alice");
        }
        drop(client);
        server.stop();
        for waiter in waiters.iter().chain([&heir]) {
            if let Err(reason) = waiter.answer() {
                assert!(reason.starts_with(CLOSED) || reason.starts_with("UNBLOCKED"), "{reason}");
            } else {
                assert!(is_busy, "granted though nothing was freed");
            }
        }
    }
}

/// A primary whose replica has stopped listening, and has not got the latest.
fn with_lagging_replica() -> (Server, Server) {
    let (primary, replica) = (Server::start(), Server::start());
    follow(&replica, &primary);
    primary.client().acquire("held", "alice", 600_000);
    await_caught_up(&primary, &replica);
    replica.freeze();
    primary.client().acquire("short", "alice", 1500);
    (primary, replica)
}

// While it waits for its replica the server has paused writes, and would abort at any write.
#[test]
fn a_shutdown_that_waits_for_a_replica_grants_nothing() {
    let (mut primary, replica) = with_lagging_replica();
    let heir = primary.in_queue("short", "bob", 600_000);
    let shutdown = primary.waiter("SHUTDOWN NOSAVE");
    heir.waits_for(millis(2200));
    replica.thaw();
    let status = primary.await_end();
    assert!(status.success(), "{status}");
    heir.turned_away();
    assert!(shutdown.refused().starts_with(CLOSED));
    let mut client = replica.client();
    assert_eq!(client.int("EXISTS held short"), 2, "nothing ended during the shutdown");
}

// G6: and if the shutdown is called off, the postponed work is done.
#[test]
fn a_shutdown_called_off_lets_grants_continue() {
    let (mut primary, replica) = with_lagging_replica();
    let heir = primary.in_queue("short", "bob", 600_000);
    let shutdown = primary.waiter("SHUTDOWN NOSAVE");
    heir.waits_for(millis(2200));
    primary.client().call("SHUTDOWN ABORT");
    assert!(shutdown.answer().is_err());
    heir.granted();
    assert!(primary.is_alive());
    replica.thaw();
    await_link(&replica);
    await_caught_up(&primary, &replica);
    assert_eq!(replica.client().owner("short").as_deref(), Some("bob"));
}

// G13: a server that follows may be paused too, by a user or from when it was the primary. It would abort as a primary
// would. The records for its new file wait.
#[test]
fn a_paused_replica_that_rewrites_its_file_lives_on() {
    let primary = Server::start();
    let mut replica = Server::build().set("appendonly", "yes").start();
    follow(&replica, &primary);
    primary.client().acquire("held", "alice", 600_000);
    await_caught_up(&primary, &replica);
    let mut client = replica.client();
    client.call(&format!("CLIENT PAUSE {LONG_MS} WRITE"));
    lives_on(&mut client, &mut replica, &primary);
}

/// A paused replica rewrites its file, and follows its primary again after the pause.
fn lives_on(client: &mut Client, replica: &mut Server, primary: &Server) {
    rewrite(client);
    let_pass(millis(100));
    assert!(replica.is_alive());
    client.call("CLIENT UNPAUSE");
    primary.client().acquire("later", "bob", 600_000);
    await_caught_up(primary, replica);
    assert_eq!(client.owner("later").as_deref(), Some("bob"));
}

// The same where the primary of before is still paused when it follows its heir.
#[test]
fn a_primary_that_was_paused_for_its_failover_lives_on_as_a_replica() {
    let mut before = Server::build().set("appendonly", "yes").start();
    let after = Server::start();
    follow(&after, &before);
    before.client().acquire("held", "alice", 600_000);
    await_caught_up(&before, &after);
    let mut client = before.client();
    client.call(&format!("CLIENT PAUSE {LONG_MS} WRITE"));
    after.client().call("REPLICAOF NO ONE");
    follow(&before, &after);
    lives_on(&mut client, &mut before, &after);
}

// CONTRACT 4: a grant out of the line passes no check of the server's, so the module makes it.
#[test]
fn nothing_is_granted_while_there_are_too_few_replicas() {
    let (primary, mut client, heir) = server_with_heir();
    client.call("CONFIG SET min-replicas-to-write 1");
    heir.waits_for(millis(2500));
    assert!(client.refused("LOCK.ACQUIRE other carol PX 1000").starts_with("NOREPLICAS"));
    let replica = Server::start();
    follow(&replica, &primary);
    heir.granted();
    await_caught_up(&primary, &replica);
    assert_eq!(replica.client().owner("short").as_deref(), Some("bob"));
}

// G7: a client that waits while writes are refused still gets nil at its time.
#[test]
fn a_wait_ends_on_time_while_there_are_too_few_replicas() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("stock", "alice", 1000);
    let waiter = server.waiter("LOCK.ACQUIRE stock bob PX 1000 BLOCK 1500");
    client.await_waiters("stock", 1);
    client.call("CONFIG SET min-replicas-to-write 1");
    waiter.timed_out();
    client.call("CONFIG SET min-replicas-to-write 0");
    await_that("the lock is free", || client.try_acquire("stock", "carol", 1000).is_some());
}

// CONTRACT 4: the server refuses writes because it could not save, so nothing is granted until it can.
#[test]
fn nothing_is_granted_while_the_disk_fails() {
    let (server, mut client, heir) = server_with_heir();
    let mut config = redis::cmd("CONFIG");
    config.arg("SET").arg("save").arg("3600 1000000");
    client.call_command(&config);
    // A directory that is no longer there.
    std::fs::create_dir(server.directory().join("gone")).unwrap();
    client.call("CONFIG SET dir gone");
    std::fs::remove_dir(server.directory().join("gone")).unwrap();
    client.call("BGSAVE");
    await_that("it fails to save", || client.info("persistence", "rdb_last_bgsave_status") == "err");
    assert!(client.refused("SET x y").starts_with("MISCONF"));
    heir.waits_for(millis(2500));
    client.call("CONFIG SET stop-writes-on-bgsave-error no");
    heir.granted();
}

// G3: a server that slept (its process was stopped) catches up at once.
#[test]
fn a_server_that_was_stopped_ends_leases_when_it_continues() {
    let (mut server, mut client, heir) = server_with_heir();
    client.acquire("unattended", "alice", 2000);
    server.freeze();
    let_pass(millis(2500));
    server.thaw();
    heir.granted();
    await_that("the lock that nobody asks for is gone", || client.int("EXISTS unattended") == 0);
    assert!(server.is_alive());
}

// A command that keeps the server busy is a pause as well.
#[test]
fn leases_and_waits_end_after_a_long_command() {
    let (server, mut client, heir) = server_with_heir();
    client.acquire("held", "alice", 600_000);
    let impatient = server.waiter("LOCK.ACQUIRE held carol PX 1000 BLOCK 500");
    client.await_waiters("held", 1);
    client.call("DEBUG SLEEP 2.2");
    impatient.timed_out();
    heir.granted();
}
