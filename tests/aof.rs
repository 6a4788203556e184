//! The append-only file: replaying it restores the same locks, with or without an RDB preamble, rewritten or not.

use std::fs::OpenOptions;
use std::path::PathBuf;

use crate::server::topology::{locks, state};
use crate::server::{Client, Lease, Server, await_that, let_pass, millis};
use crate::workload;

const PREAMBLES: [&str; 2] = ["yes", "no"];

fn server_with_aof(preamble: &str) -> Server {
    Server::build().set("appendonly", "yes").set("aof-use-rdb-preamble", preamble).start()
}

fn await_written(client: &mut Client) {
    await_that("the file is written", || client.info("persistence", "aof_rewrite_in_progress") == "0");
}

/// Rewrites the file, and waits until that is done.
pub fn rewrite(client: &mut Client) {
    let count = |client: &mut Client| client.info("persistence", "aof_rewrites").parse::<u32>().unwrap();
    // A replica that has just connected rewrites its file unprompted.
    await_written(client);
    let before = count(client);
    await_that("a rewrite begins", || client.ask("BGREWRITEAOF").is_ok());
    await_that("the rewrite has begun", || count(client) > before);
    await_written(client);
    assert_eq!(client.info("persistence", "aof_last_bgrewrite_status"), "ok");
}

/// One of everything that can happen to a lock.
fn live_a_little(server: &Server) {
    let mut client = server.client();
    client.acquire("held", "alice", 600_000);
    client.acquire("renewed", "alice", 1000);
    client.renew("renewed", "alice", 600_000);
    client.try_acquire("held", "bob", 1000);
    client.acquire("released", "alice", 600_000);
    client.release("released", "alice");
    client.acquire("expired", "alice", 30);
    client.acquire("deleted", "alice", 600_000);
    client.call("DEL deleted");
    client.acquire("old-name", "alice", 600_000);
    client.call("RENAME old-name new-name");
    client.call("LOCK.ACQUIRE nobody-knows * PX 600000");
    client.acquire("moved", "alice", 600_000);
    client.call("MOVE moved 1");
    for (name, freed_by) in [("passed-on", "LOCK.RELEASE passed-on alice"), ("broken", "DEL broken")] {
        client.acquire(name, "alice", 600_000);
        let waiter = server.in_queue(name, "bob", 600_000);
        client.call(freed_by);
        waiter.granted();
    }
    client.acquire("written", "alice", 600_000);
    let waiter = server.in_queue("written", "bob", 600_000);
    client.call("SET written x");
    assert!(waiter.refused().starts_with("WRONGTYPE "));
    client.acquire("inherited", "alice", 40);
    server.in_queue("inherited", "bob", 600_000).granted();
    client.call("EVAL return{redis.call('LOCK.ACQUIRE','scripted','alice','PX','600000')} 0");
    client.call("MULTI");
    client.call("LOCK.ACQUIRE together-1 alice PX 600000");
    client.call("LOCK.ACQUIRE together-2 alice PX 600000");
    client.call("EXEC");
    await_that("the short lease has run out", || client.int("EXISTS expired") == 0);
}

// G13
#[test]
fn a_replayed_file_gives_the_same_locks() {
    for preamble in PREAMBLES {
        let mut server = server_with_aof(preamble);
        live_a_little(&server);
        let before = state(&server);
        assert_eq!(before.0.len(), 9, "{:?}", before.0);
        server.restart();
        assert_eq!(state(&server), before, "preamble {preamble}");
        // A restarted server rewrites the data that it has read as well as before.
        server.restart();
        assert_eq!(state(&server), before, "preamble {preamble}, twice");
    }
}

// G13
#[test]
fn a_rewritten_file_gives_the_same_locks() {
    for preamble in PREAMBLES {
        let mut server = server_with_aof(preamble);
        live_a_little(&server);
        rewrite(&mut server.client());
        let before = state(&server);
        server.restart();
        assert_eq!(state(&server), before, "preamble {preamble}");
        server.client().release("held", "alice");
        rewrite(&mut server.client());
        let before = state(&server);
        server.restart();
        assert_eq!(state(&server), before, "preamble {preamble}, twice");
    }
}

// G13: half of a rewritten file was written by a child from a snapshot, the other half by its parent.
#[test]
fn a_file_rewritten_under_load_gives_the_same_locks() {
    for preamble in PREAMBLES {
        let mut server = server_with_aof(preamble);
        workload::during(&server, 11, 400, || {
            let mut client = server.client();
            for _ in 0..4 {
                rewrite(&mut client);
            }
        });
        let before = state(&server);
        assert!(!before.0.is_empty());
        server.restart();
        assert_eq!(state(&server), before, "preamble {preamble}");
    }
}

// G13: the same process, which has memories that a new one has not.
#[test]
fn a_file_loaded_into_the_running_server_changes_nothing() {
    let server = server_with_aof("yes");
    for seed in [21, 22, 23] {
        workload::run(&server, seed, 200);
        let before = state(&server);
        server.client().call("DEBUG LOADAOF");
        assert_eq!(state(&server), before);
    }
    live_on(&server);
}

/// The loaded locks are in working order.
fn live_on(server: &Server) {
    let mut client = server.client();
    client.acquire("fresh", "alice", 50);
    server.in_queue("fresh", "bob", 600_000).granted();
}

// G13, G4: the first grants in a new file, which says nothing yet of the tokens before them.
#[test]
fn grants_in_the_moment_of_a_rewrite_have_the_same_tokens() {
    for preamble in PREAMBLES {
        let mut server = server_with_aof(preamble);
        let mut client = server.client();
        // In one go, so that nothing comes between.
        let mut pipe = redis::pipe();
        for line in [
            "LOCK.ACQUIRE gone alice PX 600000",
            "LOCK.RELEASE gone alice",
            "BGREWRITEAOF",
            "LOCK.ACQUIRE first alice PX 600000",
            "LOCK.ACQUIRE second alice PX 600000",
        ] {
            let mut words = line.split(' ');
            pipe.cmd(words.next().unwrap());
            for word in words {
                pipe.arg(word);
            }
        }
        client.run_pipe(&pipe);
        await_written(&mut client);
        let before = state(&server);
        server.restart();
        assert_eq!(state(&server), before, "preamble {preamble}");
    }
}

// G13, G2
#[test]
fn a_lease_read_from_the_file_is_no_shorter_than_it_was() {
    for preamble in PREAMBLES {
        for is_rewritten in [false, true] {
            let mut server = server_with_aof(preamble);
            let mut client = server.client();
            client.acquire("stock", "alice", 5_000);
            client.renew("stock", "alice", 60_000);
            client.acquire("other", "alice", 60_000);
            if is_rewritten {
                rewrite(&mut client);
            }
            let leases = ["stock", "other"].map(|key| Lease::read(&mut client, key));
            server.restart();
            for lease in leases {
                lease.assert_kept(&mut server.client(), 60_000);
            }
        }
    }
}

// G3: nothing expires while the file is read, and everything that is due does after it.
#[test]
fn a_lease_that_ran_out_while_the_server_was_down_ends_soon_after_its_start() {
    let mut server = server_with_aof("no");
    let mut client = server.client();
    let old = client.acquire("stock", "alice", 300);
    server.kill();
    let_pass(millis(400));
    server.start_again();
    let waiter = server.waiter("LOCK.ACQUIRE stock bob PX 60000 BLOCK 0");
    assert!(waiter.granted() > old);
    server.restart();
    assert_eq!(server.client().owner("stock").as_deref(), Some("bob"));
}

// A record that was only half written when the power failed is not a lock.
#[test]
fn a_record_cut_off_in_the_middle_is_dropped() {
    let mut server = Server::build().set("appendonly", "yes").set("appendfsync", "always").start();
    let mut client = server.client();
    let token = client.acquire("whole", "alice", 600_000);
    client.acquire("half", "alice", 600_000);
    server.kill();
    let file = OpenOptions::new().write(true).open(newest_increment(&server)).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 7).unwrap();
    server.start_again();
    let mut client = server.client();
    assert_eq!(locks(&server).len(), 1);
    assert_eq!(client.fence("whole"), Some(token));
    assert!(client.acquire("half", "bob", 600_000) > token);
}

fn newest_increment(server: &Server) -> PathBuf {
    let files = std::fs::read_dir(server.directory().join("appendonlydir")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().unwrap()
}

// The child that rewrites has a copy of everything, and must not act on any of it.
#[test]
fn waiters_and_leases_continue_while_the_file_is_rewritten() {
    for preamble in PREAMBLES {
        let mut server = server_with_aof(preamble);
        let mut client = server.client();
        for number in 0..200 {
            client.call(&format!("SET filler-{number} x"));
        }
        client.acquire("stock", "alice", 600_000);
        // A rewrite that takes a second, as those of large data sets do.
        client.call("CONFIG SET rdb-key-save-delay 5000");
        client.call("BGREWRITEAOF");
        client.acquire("short", "alice", 50);
        let heir = server.in_queue("short", "bob", 600_000);
        let next = server.in_queue("stock", "carol", 600_000);
        client.release("stock", "alice");
        heir.granted();
        next.granted();
        client.call("CONFIG SET rdb-key-save-delay 0");
        await_written(&mut client);
        let before = state(&server);
        assert_eq!(before.0.len(), 2);
        server.kill();
        server.start_again();
        assert_eq!(state(&server), before, "preamble {preamble}");
    }
}
