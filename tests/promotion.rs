//! Changes of role: holds survive, leases end in time, waiters are notified, and a replica grants nothing.

use std::time::Instant;

use crate::server::topology::{Chain, assert_agree, await_caught_up, await_link, follow, locks};
use crate::server::{Lease, Server, await_that, let_pass, millis};
use crate::workload;

struct Pair {
    primary: Server,
    replica: Server,
}

impl Pair {
    fn start() -> Pair {
        let pair = Pair { primary: Server::start(), replica: Server::start() };
        follow(&pair.replica, &pair.primary);
        pair
    }

    /// The primary dies, the replica takes its place.
    fn fail_over(&mut self) {
        await_caught_up(&self.primary, &self.replica);
        self.primary.kill();
        promote(&self.replica);
    }
}

fn promote(server: &Server) {
    server.client().call("REPLICAOF NO ONE");
}

// G2, G4, G13
#[test]
fn a_promoted_replica_keeps_holds_and_continues_to_count() {
    let mut pair = Pair::start();
    let mut client = pair.primary.client();
    let token = client.acquire("stock", "alice", 60_000);
    let newest = client.acquire("other", "alice", 60_000);
    let lease = Lease::read(&mut client, "stock");
    pair.fail_over();
    let mut client = pair.replica.client();
    lease.assert_kept(&mut client, 60_000);
    assert_eq!(client.try_acquire("stock", "bob", 1000), None);
    assert_eq!(client.try_acquire("stock", "alice", 1000), Some(token), "a retry at the new primary");
    assert_eq!(client.int(&format!("LOCK.RENEW stock alice PX 50000 TOKEN {token}")), 1);
    assert!(client.acquire("third", "bob", 60_000) > newest);
    assert_eq!(client.release("stock", "alice"), 1);
}

// G2, G3: the deadlines of its primary are the new primary's own.
#[test]
fn leases_run_out_on_a_promoted_replica() {
    let mut pair = Pair::start();
    let mut client = pair.primary.client();
    let asked_at = Instant::now();
    let old = client.acquire("stock", "alice", 1500);
    client.acquire("unattended", "alice", 1500);
    pair.fail_over();
    let waiter = pair.replica.in_queue("stock", "bob", 60_000);
    let (answer, at) = waiter.timed_answer();
    let token = crate::server::client::as_int(&answer.unwrap()).unwrap();
    assert!(token > old);
    assert!(at - asked_at >= millis(1499), "the lease was cut short: {:?}", at - asked_at);
    let mut client = pair.replica.client();
    await_that("the lock that nobody asks for is gone", || client.int("EXISTS unattended") == 0);
}

// G3: leases that expired while no primary could say so.
#[test]
fn a_lease_that_ran_out_before_the_promotion_ends_with_it() {
    let mut pair = Pair::start();
    pair.primary.client().acquire("stock", "alice", 1500);
    await_caught_up(&pair.primary, &pair.replica);
    pair.primary.kill();
    let_pass(millis(1800));
    let mut client = pair.replica.client();
    assert_eq!(client.int("EXISTS stock"), 1, "a replica keeps it");
    promote(&pair.replica);
    await_that("the lock is gone", || client.int("EXISTS stock") == 0);
    client.acquire("stock", "bob", 1000);
}

// G3: with many of them, and with waiters that come at once.
#[test]
fn many_leases_run_out_on_a_promoted_replica() {
    let mut pair = Pair::start();
    let mut client = pair.primary.client();
    for number in 0..500 {
        client.acquire(&format!("lock-{number}"), "alice", 300 + number);
    }
    pair.fail_over();
    let mut client = pair.replica.client();
    await_that("all leases have run out", || client.int("DBSIZE") == 0);
}

// G7, and no grant on a replica.
#[test]
fn waiters_of_a_primary_that_becomes_a_replica_are_turned_away() {
    let old = Server::start();
    let new = Server::start();
    let mut client = old.client();
    client.acquire("held", "alice", 600_000);
    client.acquire("short", "alice", 1000);
    let waiters: Vec<_> = (0..5).map(|n| old.in_queue("held", &format!("bob-{n}"), 600_000)).collect();
    let heir = old.in_queue("short", "carol", 600_000);
    old.client().call(&format!("REPLICAOF 127.0.0.1 {}", new.port));
    waiters.iter().for_each(crate::server::Waiter::turned_away);
    heir.turned_away();
    await_link(&old);
    assert_agree(&new, &[&old]);
    assert!(locks(&old).is_empty());
    // Nor later, when the lease that it waited for would have run out, nor when the server is a primary again.
    let_pass(millis(1200));
    promote(&old);
    let_pass(millis(100));
    assert!(locks(&old).is_empty(), "{:?}", locks(&old));
    let mut client = old.client();
    assert_eq!(client.waiters("held"), 0);
    client.acquire("held", "dave", 600_000);
}

// The primary that it must follow does not exist: it is a replica all the same.
#[test]
fn a_replica_without_a_primary_grants_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("stock", "alice", 2000);
    let waiter = server.in_queue("stock", "bob", 600_000);
    client.call("REPLICAOF 127.0.0.1 1");
    waiter.turned_away();
    let_pass(millis(2500));
    let mut client = server.client();
    assert_eq!(client.int("EXISTS stock"), 1, "only its primary could say that the lease ended");
    promote(&server);
    await_that("the lease ends with the promotion", || client.int("EXISTS stock") == 0);
    client.acquire("stock", "carol", 1000);
}

// G13, G3: back and forth, and nothing of an old role is left in the new one.
#[test]
fn two_servers_take_turns() {
    let pair = Pair::start();
    let (mut primary, mut replica) = (&pair.primary, &pair.replica);
    let mut newest = 0;
    for round in 0..6 {
        let mut client = primary.client();
        let token = client.acquire(&format!("lock-{round}"), "alice", 600_000);
        assert!(token > newest, "round {round}: {token} after {newest}");
        newest = token;
        client.acquire("short", "alice", 150);
        let heir = primary.in_queue("short", "bob", 150);
        newest = newest.max(heir.granted());
        await_that("the short leases have run out", || client.int("EXISTS short") == 0);
        let waiter = primary.in_queue(&format!("lock-{round}"), "carol", 600_000);
        assert_agree(primary, &[replica]);

        promote(replica);
        follow(primary, replica);
        waiter.turned_away();
        (primary, replica) = (replica, primary);
        assert_agree(primary, &[replica]);
        assert_eq!(locks(primary).len(), round + 1);
    }
}

// G13
#[test]
fn a_chain_works_on_after_its_middle_was_promoted() {
    let chain = Chain::start();
    workload::run(&chain.primary, 111, 60);
    chain.agree();
    promote(&chain.replica);
    workload::run(&chain.replica, 112, 60);
    assert_agree(&chain.replica, &[&chain.leaf]);
    follow(&chain.primary, &chain.leaf);
    workload::run(&chain.replica, 113, 60);
    assert_agree(&chain.replica, &[&chain.leaf, &chain.primary]);
}

// The planned change of roles, in which the old primary stops writing and waits for the new one.
#[test]
fn a_planned_failover_turns_waiters_away_and_leases_run_on() {
    let pair = Pair::start();
    let mut client = pair.primary.client();
    let asked_at = Instant::now();
    let old = client.acquire("short", "alice", 2500);
    let held = client.acquire("held", "alice", 600_000);
    let waiters = [pair.primary.in_queue("short", "bob", 1000), pair.primary.in_queue("held", "bob", 1000)];
    client.call("FAILOVER");
    await_that("the roles are changed", || pair.replica.client().info("replication", "role") == "master");
    waiters.iter().for_each(crate::server::Waiter::turned_away);
    let mut client = pair.replica.client();
    assert_eq!(client.fence("held"), Some(held));
    let heir = pair.replica.in_queue("short", "carol", 600_000);
    assert!(heir.granted() > old);
    assert!(asked_at.elapsed() >= millis(2499), "the lease was cut short");
    await_link(&pair.primary);
    assert_agree(&pair.replica, &[&pair.primary]);
}

// A failover that cannot end: the old primary writes nothing, so it grants nothing, until it is called off.
#[test]
fn a_failover_in_progress_puts_grants_off() {
    let mut pair = Pair::start();
    let mut client = pair.primary.client();
    client.acquire("stock", "alice", 600_000);
    await_caught_up(&pair.primary, &pair.replica);
    pair.replica.freeze();
    client.acquire("short", "alice", 1500);
    let heir = pair.primary.in_queue("short", "bob", 600_000);
    let impatient = pair.primary.waiter("LOCK.ACQUIRE stock carol PX 1000 BLOCK 2000");
    client.await_waiters("stock", 1);
    client.call("FAILOVER TIMEOUT 100000");
    await_that("the failover waits", || {
        client.info("replication", "master_failover_state") == "waiting-for-sync"
    });
    heir.waits_for(millis(2500));
    impatient.timed_out();
    assert!(pair.primary.is_alive());
    client.call("FAILOVER ABORT");
    heir.granted();
    pair.replica.thaw();
    assert_agree(&pair.primary, &[&pair.replica]);
}

// The server delivers events to the module only once the module is used. The module asks for the state of the time
// before.
#[test]
fn the_first_use_finds_the_role_that_the_server_has_by_then() {
    let pair = Pair::start();
    let role = |server: &Server| server.client().info("redislock", "redislock_role");
    assert_eq!((role(&pair.primary), role(&pair.replica)), ("primary".to_string(), "replica".to_string()));
    promote(&pair.replica);
    follow(&pair.primary, &pair.replica);
    assert_eq!((role(&pair.primary), role(&pair.replica)), ("replica".to_string(), "primary".to_string()));
    let refused = pair.primary.client().refused("LOCK.ACQUIRE stock alice PX 1000");
    assert!(refused.contains("READONLY"), "{refused}");
    let waiter = {
        pair.replica.client().acquire("stock", "alice", 300);
        pair.replica.in_queue("stock", "bob", 600_000)
    };
    waiter.granted();
    assert_agree(&pair.replica, &[&pair.primary]);
}
