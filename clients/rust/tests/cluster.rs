//! A cluster of two nodes, of which one hands a slot to the other.

mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, Server, eventually};
use redislock_client::{Error, Locks};
use tokio::task::JoinSet;

struct Cluster {
    nodes: [Server; 2],
}

impl Cluster {
    async fn start() -> Self {
        let settings = ["--cluster-enabled", "yes", "--cluster-port", "0", "--cluster-node-timeout", "5000"];
        let nodes = [Server::with(&settings), Server::with(&settings)];
        for (node, slots) in nodes.iter().zip([["0", "8191"], ["8192", "16383"]]) {
            node.ask::<String>(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
        }
        nodes[0].ask::<String>(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port.to_string()]);
        for node in &nodes {
            let is_up = || node.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
            eventually("the cluster is up", || {
                is_up() && node.ask::<String>(&["CLUSTER", "NODES"]).lines().count() == 2
            })
            .await;
        }
        Self { nodes }
    }

    /// Moves the slot of this name, with all that is in it, from the first node to the second.
    fn hand_over(&self, name: &str) {
        let [from, to] = &self.nodes;
        let ids = self.nodes.each_ref().map(|node| node.ask::<String>(&["CLUSTER", "MYID"]));
        let slot = from.ask::<u16>(&["CLUSTER", "KEYSLOT", name]).to_string();
        to.ask::<String>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
        from.ask::<String>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
        from.ask::<String>(&["MIGRATE", "127.0.0.1", &to.port.to_string(), name, "0", "5000"]);
        for node in [to, from] {
            node.ask::<String>(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
        }
    }
}

/// As many wait for a lock as have connections of the server's queue to themselves, and its slot moves. All must be
/// served soon, whether this program holds the lock or another one.
async fn all_are_served_though_the_slot_moves(is_ours: bool) {
    const WAITERS: usize = 16;
    let cluster = Cluster::start().await;
    let [from, to] = &cluster.nodes;
    // Its slot is one of the first node's.
    let name = "b";
    let locks = Locks::builder().cluster([to.url()]).build().unwrap();
    let guard = if is_ours {
        Some(locks.lock(name).acquire().await.unwrap())
    } else {
        from.ask::<u64>(&["LOCK.ACQUIRE", name, "another", "PX", "60000"]);
        None
    };
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = locks.lock(name).wait(PATIENCE);
        tasks.spawn(async move { lock.acquire().await?.release().await });
    }
    eventually("they wait", || from.waiters(name) == WAITERS as i64).await;
    cluster.hand_over(name);
    eventually("they wait there", || to.waiters(name) == WAITERS as i64).await;
    let began = Instant::now();
    match guard {
        Some(guard) => guard.release().await.unwrap(),
        None => assert_eq!(to.ask::<u64>(&["LOCK.RELEASE", name, "another"]), 1),
    }
    for ended in tasks.join_all().await {
        ended.unwrap();
    }
    // A waiter that is not called asks again after 1.7 s.
    assert!(began.elapsed() < Duration::from_secs(5), "{WAITERS} were served in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_follow_this_clients_lock_to_its_new_node() {
    all_are_served_though_the_slot_moves(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_follow_another_clients_lock_to_its_new_node() {
    all_are_served_though_the_slot_moves(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_moves_is_renewed_on_its_new_node() {
    let cluster = Cluster::start().await;
    let lease = Duration::from_secs(2);
    let locks = Locks::builder().cluster([cluster.nodes[1].url()]).build().unwrap();
    let guard = locks.lock("b").lease(lease).acquire().await.unwrap();
    cluster.hand_over("b");
    tokio::time::sleep(2 * lease).await;
    assert!(guard.check().is_ok(), "it lives though its lease is over twice");
    let held = cluster.nodes[1].ask::<u64>(&["LOCK.FENCE", "b", &guard.token().to_string()]);
    assert_eq!(held, 1, "the new node knows it");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_named_as_a_server_fails_at_once() {
    let cluster = Cluster::start().await;
    // "foo" is in a slot of the second node.
    let locks = cluster.nodes[0].locks();
    for lock in [locks.lock("foo"), locks.many(["{foo}1", "{foo}2"])] {
        let refused = lock.wait(PATIENCE).acquire().await.unwrap_err();
        assert!(
            matches!(&refused, Error::ServerRefused { message, .. } if message.contains("builder().cluster")),
            "{refused}"
        );
    }
    for node in &cluster.nodes {
        node.locks().ping().await.unwrap(); // whichever has the slot
    }
}
