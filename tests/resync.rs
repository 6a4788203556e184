//! Replicas that connect or reconnect while locks change.

use crate::server::topology::{assert_agree, await_caught_up, await_link, follow, locks};
use crate::server::{Lease, Server, await_that};
use crate::workload;

// G13: by a file or without one, loaded into an empty server or alongside its old data.
#[test]
fn a_replica_that_arrives_under_load_agrees() {
    let loads = ["disabled", "on-empty-db", "swapdb"];
    for (round, load) in loads.into_iter().enumerate() {
        let primary = Server::start();
        let old_data = Server::build().set("repl-diskless-load", load).start();
        old_data.client().acquire("old", "somebody", 600_000);
        old_data.client().acquire("lock-1", "somebody", 600_000);
        let with_file = Server::build().set("repl-diskless-load", load).start();
        let mut client = primary.client();
        workload::during(&primary, 61 + round as u64, 150, || {
            client.call("CONFIG SET repl-diskless-sync yes");
            follow(&old_data, &primary);
            client.call("CONFIG SET repl-diskless-sync no");
            follow(&with_file, &primary);
        });
        assert_agree(&primary, &[&old_data, &with_file]);
        assert_eq!(old_data.client().hold("old"), None, "{load}");
        // And it keeps agreeing.
        workload::run(&primary, 71 + round as u64, 50);
        assert_agree(&primary, &[&old_data, &with_file]);
    }
}

fn full_and_partial(primary: &Server) -> (u32, u32) {
    let mut client = primary.client();
    let full = client.info("stats", "sync_full").parse().unwrap();
    (full, client.info("stats", "sync_partial_ok").parse().unwrap())
}

/// The number of times that the server itself threw away the state from which a replica continues. Redis 8 and Valkey
/// run a primary's FLUSHDB on a thread of the replica, and a link that is cut in that moment is not kept.
fn links_not_kept(replica: &Server) -> u32 {
    replica.log().matches("not possible (no cached master)").count() as u32
}

// G13
#[test]
fn a_replica_that_lost_its_link_continues_where_it_was() {
    let primary = Server::start();
    let replica = Server::start();
    follow(&replica, &primary);
    primary.client().acquire("stock", "alice", 600_000);
    await_caught_up(&primary, &replica);
    let (full, partial) = full_and_partial(&primary);
    let not_kept = links_not_kept(&replica);
    for round in 0..3 {
        workload::during(&primary, 80 + round, 60, || {
            replica.client().call("CLIENT KILL TYPE master");
        });
        await_link(&replica);
        assert_agree(&primary, &[&replica]);
    }
    let (full_after, partial_after) = full_and_partial(&primary);
    let not_kept = links_not_kept(&replica) - not_kept;
    assert!(not_kept < 3, "each of the links was cut in the middle of a flush");
    assert_eq!(full_after, full + not_kept, "it never had to start over");
    assert!(partial_after + not_kept >= partial + 3, "{partial_after} after {partial}");
}

// G13: a restarted replica reads its own file and continues in the stream from there.
#[test]
fn a_restarted_replica_continues_where_its_file_ends() {
    let primary = Server::start();
    let address = format!("127.0.0.1 {}", primary.port);
    let mut replica = Server::build().set("replicaof", &address).start();
    await_link(&replica);
    let (full, partial) = full_and_partial(&primary);
    for round in 0..2 {
        workload::run(&primary, 120 + round, 60);
        await_caught_up(&primary, &replica);
        replica.save_and_stop();
        workload::during(&primary, 130 + round, 40, || replica.start_again());
        await_link(&replica);
        assert_agree(&primary, &[&replica]);
    }
    assert_eq!(full_and_partial(&primary), (full, partial + 2), "it never had to start over");
}

// G13, G4: a restarted primary continues its own stream, and its replica with it.
#[test]
fn the_replica_of_a_restarted_primary_continues_where_it_was() {
    let mut primary = Server::start();
    let replica = Server::start();
    follow(&replica, &primary);
    workload::run(&primary, 140, 60);
    let token = primary.client().acquire("stock", "alice", 600_000);
    await_caught_up(&primary, &replica);
    primary.save_and_stop();
    primary.start_again();
    follow(&replica, &primary);
    assert_eq!(full_and_partial(&primary).0, 0, "the replica need not start over");
    assert!(primary.client().acquire("next", "alice", 600_000) > token);
    workload::run(&primary, 141, 60);
    assert_agree(&primary, &[&replica]);
}

// G13: the replicas of a replica that is promoted stay with it, without a new copy of the data.
#[test]
fn replicas_of_a_promoted_replica_continue_where_they_were() {
    let primary = Server::start();
    let (heir, sibling, leaf) = (Server::start(), Server::start(), Server::start());
    follow(&heir, &primary);
    follow(&sibling, &primary);
    follow(&leaf, &heir);
    workload::run(&primary, 91, 60);
    assert_agree(&primary, &[&heir, &sibling, &leaf]);
    heir.client().call("REPLICAOF NO ONE");
    follow(&sibling, &heir);
    follow(&primary, &heir);
    workload::run(&heir, 92, 60);
    assert_agree(&heir, &[&primary, &sibling, &leaf]);
    // The leaf got the data when it arrived, and never again.
    assert_eq!(full_and_partial(&heir).0, 1);
}

// G13, G2
#[test]
fn leases_are_not_shortened_by_a_full_resynchronisation() {
    for diskless in ["yes", "no"] {
        let primary = Server::build().set("repl-diskless-sync", diskless).start();
        let mut client = primary.client();
        client.acquire("stock", "alice", 60_000);
        let lease = Lease::read(&mut client, "stock");
        let (replica, leaf) = (Server::start(), Server::start());
        follow(&replica, &primary);
        follow(&leaf, &replica);
        lease.assert_kept(&mut replica.client(), 60_000);
        lease.assert_kept(&mut leaf.client(), 60_000);
    }
}

// G13: a replica that starts over again and again, with a load on its primary all the time.
#[test]
fn many_full_resynchronisations_under_load_agree() {
    let primary = Server::start();
    let replica = Server::start();
    let leaf = Server::start();
    follow(&leaf, &replica);
    workload::during(&primary, 101, 100, || {
        for _ in 0..4 {
            follow(&replica, &primary);
            replica.client().call("REPLICAOF NO ONE");
            // It has data of its own: it cannot just continue.
            replica.client().acquire("own", "replica", 600_000);
        }
        follow(&replica, &primary);
    });
    assert_agree(&primary, &[&replica, &leaf]);
    assert!(!locks(&leaf).is_empty());
}

// A snapshot for a replica is taken while waiters and leases continue.
#[test]
fn waiters_and_leases_continue_while_a_replica_is_served() {
    for diskless in ["yes", "no"] {
        let primary = Server::build().set("repl-diskless-sync", diskless).start();
        let replica = Server::start();
        let mut client = primary.client();
        for number in 0..200 {
            client.call(&format!("SET filler-{number} x"));
        }
        client.acquire("short", "alice", 200);
        client.acquire("stock", "alice", 600_000);
        let heir = primary.in_queue("short", "bob", 600_000);
        let next = primary.in_queue("stock", "carol", 600_000);
        client.call("CONFIG SET rdb-key-save-delay 4000");
        replica.client().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
        await_that("the copy is being made", || client.info("persistence", "rdb_bgsave_in_progress") == "1");
        client.release("stock", "alice");
        let given = [heir.granted(), next.granted()];
        client.call("CONFIG SET rdb-key-save-delay 0");
        await_link(&replica);
        assert_agree(&primary, &[&replica]);
        let mut there = replica.client();
        assert_eq!([there.fence("short"), there.fence("stock")], given.map(Some));
    }
}
