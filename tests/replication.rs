//! Every event of a lock, on a primary, a replica of it, and a replica of that replica. All have the same locks with
//! the same tokens (G13), and the replicas decide nothing.

use crate::server::client::{as_int, as_list};
use crate::server::topology::{Chain, assert_agree, await_caught_up, digest, follow, locks, state};
use crate::server::wall_clock::{WallClock, now_us};
use crate::server::{Server, await_that, let_pass, millis, patient};
use crate::{aof, workload};

// G13
#[test]
fn taking_renewing_and_releasing_look_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    let token = client.acquire("stock", "alice", 60_000);
    chain.agree();
    for server in [&chain.replica, &chain.leaf] {
        let hold = server.client().hold("stock").expect("the replica has the lock");
        assert_eq!((hold.owner.as_str(), hold.token), ("alice", token));
        assert!((1..=60_000).contains(&hold.lease_left_ms), "{hold:?}");
    }
    assert_eq!(client.acquire("stock", "alice", 90_000), token, "a retry");
    chain.agree();
    assert_eq!(client.renew("stock", "alice", 500_000), 1);
    chain.agree();
    assert!(chain.leaf.client().hold("stock").unwrap().lease_left_ms > 400_000);
    assert_eq!(client.renew("stock", "alice", 1000), 1);
    chain.agree();
    assert!(chain.leaf.client().hold("stock").unwrap().lease_left_ms <= 1000);
    assert_eq!(client.int(&format!("LOCK.RENEW stock alice PX 60000 TOKEN {token}")), 1);
    assert_eq!(client.int(&format!("LOCK.RELEASE stock alice TOKEN {token}")), 1);
    chain.agree();
    assert_eq!(chain.leaf.client().int("DBSIZE"), 0);
}

// G13
#[test]
fn what_is_refused_changes_nothing_anywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    client.acquire("stock", "alice", 60_000);
    client.call("SET string x");
    chain.agree();
    let before = state(&chain.leaf);
    assert_eq!(client.try_acquire("stock", "bob", 1000), None);
    assert_eq!(client.release("stock", "bob"), 0);
    assert_eq!(client.renew("stock", "bob", 1000), 0);
    assert_eq!(client.int("LOCK.RELEASE stock alice TOKEN 1"), 0);
    client.refused("LOCK.ACQUIRE string alice PX 1000");
    client.refused("LOCK.ACQUIRE stock alice PX 0");
    client.refused("COPY stock other");
    chain.agree();
    assert_eq!(state(&chain.leaf), before);
}

// G13, G3, G6
#[test]
fn handing_over_looks_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    for (key, freed_by) in [
        ("released", "LOCK.RELEASE released alice"),
        ("deleted", "DEL deleted"),
        ("unlinked", "UNLINK unlinked"),
        ("expired", "LOCK.RENEW expired alice PX 60"),
        ("timed-by-user", "PEXPIRE timed-by-user 60"),
        ("past", "PEXPIRE past -1"),
    ] {
        client.acquire(key, "alice", 600_000);
        let waiters = ["bob", "carol"].map(|owner| chain.primary.in_queue(key, owner, 600_000));
        chain.agree();
        client.call(freed_by);
        let token = waiters[0].granted();
        chain.agree();
        let hold = chain.leaf.client().hold(key).unwrap();
        assert_eq!((hold.owner.as_str(), hold.token), ("bob", token), "{key}");
        client.release(key, "bob");
        assert!(waiters[1].granted() > token);
        chain.agree();
    }
    assert_eq!(chain.leaf.client().waiters("released"), 0, "lines are the primary's alone");
    client.acquire("overwritten", "alice", 600_000);
    let waiter = chain.primary.in_queue("overwritten", "bob", 600_000);
    client.call("SET overwritten x");
    assert!(waiter.refused().starts_with("WRONGTYPE "));
    chain.agree();
    assert_eq!(chain.leaf.client().text("GET overwritten"), "x");
}

// G13, G3
#[test]
fn leases_that_run_out_and_waits_in_vain_look_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    for number in 0..50 {
        client.acquire(&format!("short-{number}"), "alice", 20 + number);
    }
    client.acquire("stock", "alice", 600_000);
    chain.primary.waiter("LOCK.ACQUIRE stock bob PX 60000 BLOCK 100").timed_out();
    await_that("the short leases have run out", || client.int("DBSIZE") == 1);
    chain.agree();
    assert_eq!(chain.leaf.client().int("DBSIZE"), 1);
}

// G13, G6
#[test]
fn renaming_moving_and_swapping_look_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    for (key, freed_by) in [("old", "RENAME old new"), ("moved", "MOVE moved 1")] {
        client.acquire(key, "alice", 600_000);
        let waiter = chain.primary.in_queue(key, "bob", 600_000);
        client.call(freed_by);
        waiter.granted();
        chain.agree();
        assert_eq!(chain.leaf.client().owner(key).as_deref(), Some("bob"));
    }
    assert_eq!(chain.leaf.client().hold("new"), None);
    client.acquire("new", "carol", 600_000);
    chain.agree();
    client.call("RENAME new old");
    chain.agree();

    client.acquire("swapped", "alice", 600_000);
    let waiter = chain.primary.in_queue("swapped", "bob", 600_000);
    client.call("SWAPDB 0 1");
    waiter.granted();
    chain.agree();
    client.call("SWAPDB 0 1");
    chain.agree();
    client.acquire("swapped", "dave", 600_000);
    chain.agree();
}

// G13, G6: both names are freed by it, the old one by going away and the new one by being overwritten.
#[test]
fn renaming_one_lock_onto_another_frees_both() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    client.acquire("old", "alice", 600_000);
    client.acquire("new", "carol", 600_000);
    let heirs = ["old", "new"].map(|key| chain.primary.in_queue(key, &format!("heir-of-{key}"), 600_000));
    client.call("RENAME old new");
    assert_ne!(heirs[0].granted(), heirs[1].granted());
    chain.agree();
    for key in ["old", "new"] {
        assert_eq!(chain.leaf.client().owner(key), Some(format!("heir-of-{key}")));
    }
}

// G13, G4: a hold that has expired, though nothing has cleared it away yet: the server is busy with a transaction.
#[test]
fn an_expired_hold_has_ended_within_a_transaction() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    for line in [
        "MULTI",
        "LOCK.ACQUIRE stock alice PX 1",
        "DEBUG SLEEP 0.004",
        "LOCK.FENCE stock",
        "LOCK.RENEW stock alice PX 600000",
        "LOCK.RELEASE stock alice",
        "LOCK.ACQUIRE stock bob PX 1",
        "DEBUG SLEEP 0.004",
        "LOCK.RELEASE stock bob",
    ] {
        client.call(line);
    }
    let answers = client.call("EXEC");
    let answers: Vec<Option<i64>> = as_list(&answers).iter().map(as_int).collect();
    assert!(matches!(answers[..], [Some(_), _, None, Some(0), Some(0), Some(_), _, Some(0)]), "{answers:?}");
    chain.agree();
    assert_eq!(chain.leaf.client().int("DBSIZE"), 0);
}

// G13, G4: asked again for the same owner, it is a new hold and no retry, and a replica must not take it for one. The
// sleep is too short for the tokens to jump to the wall clock, which would give it away to the replica anyway.
#[test]
fn a_new_hold_of_the_owner_after_its_hold_has_expired_is_no_retry() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    for owner in ["alice", "alice", "alice", "bob"] {
        for line in [
            "MULTI".to_string(),
            "LOCK.ACQUIRE stock alice PX 1".to_string(),
            "DEBUG SLEEP 0.003".to_string(),
            format!("LOCK.ACQUIRE stock {owner} PX 600000"),
        ] {
            client.call(&line);
        }
        let answers = client.call("EXEC");
        let tokens: Vec<Option<i64>> = as_list(&answers).iter().map(as_int).collect();
        assert!(tokens[0].is_some() && tokens[0] < tokens[2], "{answers:?}");
        chain.agree();
        assert_eq!(chain.leaf.client().fence("stock"), tokens[2]);
        assert_eq!(client.release("stock", owner), 1);
    }
}

// G13, G6
#[test]
fn flushing_looks_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    for flush in ["FLUSHDB", "FLUSHALL", "FLUSHALL SYNC", "FLUSHALL ASYNC", "FLUSHDB ASYNC"] {
        client.acquire("stock", "alice", 600_000);
        client.acquire("other", "alice", 600_000);
        let waiter = chain.primary.in_queue("stock", "bob", 600_000);
        client.call(flush);
        waiter.granted();
        chain.agree();
        assert_eq!(locks(&chain.leaf).len(), 1, "{flush}");
        client.release("stock", "bob");
    }
}

// G6: though the old value is freed by another thread, later.
#[test]
fn a_lazy_flush_hands_over_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let mut times: Vec<_> = (0..9)
        .map(|_| {
            client.acquire("stock", "alice", 600_000);
            let waiter = server.in_queue("stock", "bob", 600_000);
            let start = std::time::Instant::now();
            client.call("FLUSHALL ASYNC");
            let (answer, at) = waiter.timed_answer();
            assert!(answer.is_ok(), "{answer:?}");
            client.release("stock", "bob");
            at - start
        })
        .collect();
    times.sort();
    // A fraction of a millisecond is usual; the server's own housekeeping comes ten times a second.
    assert!(times[4] < patient(millis(25)), "{times:?}");
}

// G13
#[test]
fn restored_locks_look_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    client.acquire("stock", "alice", 600_000);
    let redis::Value::BulkString(payload) = client.call("DUMP stock") else { panic!() };
    let restore = |client: &mut crate::server::Client, key: &str| {
        let mut command = redis::cmd("RESTORE");
        command.arg(key).arg(0).arg(&payload).arg("REPLACE");
        client.call_command(&command);
        chain.agree();
    };
    restore(&mut client, "stock");
    assert_eq!(chain.leaf.client().owner("stock").as_deref(), Some("alice"));
    client.release("stock", "alice");
    restore(&mut client, "stock");
    restore(&mut client, "another-name");
    assert_eq!(chain.leaf.client().hold("another-name"), None);
    client.acquire("another-name", "bob", 600_000);
    chain.agree();
    restore(&mut client, "another-name");
}

// G13: in a transaction or a script a blocking acquire does not block, there as little as here.
#[test]
fn transactions_and_scripts_look_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    client.acquire("taken", "alice", 600_000);
    for line in [
        "MULTI",
        "LOCK.ACQUIRE a bob PX 600000",
        "LOCK.ACQUIRE b bob PX 600000 BLOCK 0",
        "LOCK.ACQUIRE taken bob PX 600000 BLOCK 0",
        "LOCK.RELEASE a bob",
        "LOCK.ACQUIRE a carol PX 600000",
        "LOCK.ACQUIRE c * PX 600000",
        "EXEC",
    ] {
        client.call(line);
    }
    chain.agree();
    let mut script = redis::cmd("EVAL");
    script.arg(
        "for i = 1, 20 do \
           redis.call('LOCK.ACQUIRE', 'scripted-' .. i, 'owner-' .. i, 'PX', 600000) \
           if i % 3 == 0 then redis.call('LOCK.RELEASE', 'scripted-' .. i, 'owner-' .. i) end \
           if i % 5 == 0 then redis.call('DEL', 'scripted-' .. i) end \
         end \
         return redis.call('LOCK.ACQUIRE', 'scripted-1', '*', 'PX', 600000)",
    );
    script.arg(0);
    assert_eq!(client.call_command(&script), redis::Value::Nil);
    chain.agree();
    assert_eq!(locks(&chain.leaf).len(), 4 + 11, "{:?}", locks(&chain.leaf));
}

// G13: the owner that the server minted is the replica's too, not another fresh one.
#[test]
fn an_owner_minted_by_the_server_is_the_same_everywhere() {
    let chain = Chain::start();
    let mut client = chain.primary.client();
    for number in 0..20 {
        client.call(&format!("LOCK.ACQUIRE lock-{number} * PX 600000"));
    }
    chain.agree();
    assert_eq!(locks(&chain.leaf).len(), 20);
}

// G13
#[test]
fn a_random_load_leaves_the_same_locks_everywhere() {
    let chain = Chain::start();
    for seed in [31, 32] {
        workload::run(&chain.primary, seed, 400);
        chain.agree();
    }
    assert!(!locks(&chain.leaf).is_empty());
}

// Two databases' records in one stream, each after a SELECT of its own.
#[test]
fn grants_in_several_databases_go_to_the_right_ones() {
    let chain = Chain::start();
    let mut waiters = Vec::new();
    for db in [3, 0, 7, 1] {
        let mut client = chain.primary.client();
        client.select(db);
        client.acquire("stock", "alice", 2500);
        let mut blocked = chain.primary.client();
        blocked.select(db);
        let line = format!("LOCK.ACQUIRE stock bob-{db} PX 600000 BLOCK 0");
        waiters.push(crate::server::Waiter::start(blocked, &line));
        client.await_waiters("stock", 1);
    }
    for waiter in &waiters {
        waiter.granted();
    }
    chain.agree();
    for (place, (owner, _)) in locks(&chain.leaf) {
        assert_eq!(owner, format!("bob-{}", place.0));
    }
}

// A replica answers questions and refuses the rest, writable or not.
#[test]
fn a_replica_reads_locks_and_writes_none() {
    let primary = Server::start();
    let replica = Server::start();
    follow(&replica, &primary);
    let token = primary.client().acquire("stock", "alice", 600_000);
    await_caught_up(&primary, &replica);
    let mut client = replica.client();
    let before = state(&replica);
    for is_read_only in ["yes", "no"] {
        client.call(&format!("CONFIG SET replica-read-only {is_read_only}"));
        assert_eq!(client.fence("stock"), Some(token));
        assert_eq!(client.int(&format!("LOCK.FENCE stock {token}")), 1);
        assert_eq!(client.int(&format!("LOCK.FENCE stock {}", token + 1)), 0);
        assert_eq!(client.owner("stock").as_deref(), Some("alice"));
        for line in [
            "LOCK.ACQUIRE stock bob PX 1000",
            "LOCK.ACQUIRE stock alice PX 1000",
            "LOCK.ACQUIRE other bob PX 1000 BLOCK 100",
            "LOCK.RELEASE stock alice",
            "LOCK.RENEW stock alice PX 1000",
        ] {
            let error = client.refused(line);
            assert!(error.starts_with("READONLY"), "{line}: {error}");
        }
    }
    assert_eq!(state(&replica), before);
    assert_agree(&primary, &[&replica]);
}

// G13: only the primary says when a lease has ended.
#[test]
fn a_replica_keeps_a_hold_until_the_record_of_its_end() {
    let primary = Server::start();
    let replica = Server::start();
    follow(&replica, &primary);
    primary.client().acquire("stock", "alice", 1500);
    await_caught_up(&primary, &replica);
    let before = digest(&replica);
    primary.freeze();
    let_pass(millis(2000));
    let mut client = replica.client();
    assert_eq!(client.int("EXISTS stock"), 1);
    assert_eq!(digest(&replica), before);
    primary.thaw();
    await_that("the primary says that the lease has ended", || client.int("EXISTS stock") == 0);
    assert_agree(&primary, &[&replica]);
}

// G13, G4: a server that was once ahead of its new primary takes the tokens as they come, and remembers its own.
#[test]
fn a_replica_with_a_clock_ahead_has_its_primarys_tokens_and_tops_its_own_after_promotion() {
    let clock = WallClock::ahead(1800);
    let proud = Server::build().clock(&clock).start();
    let own = proud.client().acquire("stock", "alice", 600_000);
    clock.set_ahead(0);
    let primary = Server::start();
    let leaf = Server::start();
    primary.client().acquire("before", "bob", 600_000);
    follow(&proud, &primary);
    follow(&leaf, &proud);
    assert_agree(&primary, &[&proud, &leaf]);
    for number in 0..30 {
        let token = primary.client().acquire(&format!("lock-{number}"), "bob", 600_000);
        assert!(token < now_us() + 1_000_000, "the primary has its own clock");
    }
    workload::run(&primary, 41, 50);
    assert_agree(&primary, &[&proud, &leaf]);

    proud.client().call("REPLICAOF NO ONE");
    for number in 0..5 {
        let token = proud.client().acquire(&format!("after-{number}"), "carol", 600_000);
        assert!(token > own, "{token} came after {own}");
        assert_agree(&proud, &[&leaf]);
    }
    follow(&primary, &proud);
    assert_agree(&proud, &[&leaf, &primary]);
}

// G13: the file of a replica is as good as that of its primary.
#[test]
fn a_replicas_own_append_only_file_gives_the_same_locks() {
    for preamble in ["yes", "no"] {
        let primary = Server::start();
        let aof = Server::build().set("appendonly", "yes").set("aof-use-rdb-preamble", preamble);
        let mut replica = aof.start();
        workload::run(&primary, 51, 50);
        follow(&replica, &primary);
        let leaf = Server::start();
        follow(&leaf, &replica);
        workload::during(&primary, 52, 100, || aof::rewrite(&mut replica.client()));
        workload::run(&primary, 53, 50);
        // Records for that file alone are not passed on.
        assert_agree(&primary, &[&replica, &leaf]);
        let before = state(&primary);
        let newest = primary.client().acquire("newest", "zoe", 600_000);
        primary.client().release("newest", "zoe");
        await_caught_up(&primary, &replica);
        // It starts as a primary: nothing in its file says otherwise.
        replica.restart();
        assert_eq!(state(&replica), before, "preamble {preamble}");
        assert!(replica.client().acquire("newest", "zoe", 600_000) > newest);
    }
}
