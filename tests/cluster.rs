//! Slots: the location of a lock, and the fate of its waiters when it moves.

use crate::server::client::{CLOSED, as_text};
use crate::server::topology::{assert_agree, await_caught_up, await_link};
use crate::server::{Client, Lease, Server, await_that, let_pass, millis};

const SLOTS: u32 = 16_384;

fn node() -> Server {
    Server::build().set("cluster-enabled", "yes").set("cluster-require-full-coverage", "no").start()
}

fn await_cluster(server: &Server) {
    let mut client = server.client();
    await_that("the cluster is up", || {
        let info = client.text("CLUSTER INFO");
        info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
    });
}

/// Two nodes with half of the slots each.
struct Two {
    nodes: [Server; 2],
    ids: [String; 2],
}

impl Two {
    fn start() -> Two {
        let nodes = [node(), node()];
        nodes[0].client().call(&format!("CLUSTER ADDSLOTSRANGE 0 {}", SLOTS / 2 - 1));
        nodes[1].client().call(&format!("CLUSTER ADDSLOTSRANGE {} {}", SLOTS / 2, SLOTS - 1));
        nodes[1].client().call("CLUSTER SET-CONFIG-EPOCH 2");
        nodes[0].client().call(&format!("CLUSTER MEET 127.0.0.1 {} {}", nodes[1].port, nodes[1].bus_port()));
        nodes.iter().for_each(await_cluster);
        let ids = nodes.each_ref().map(|node| node.client().text("CLUSTER MYID"));
        Two { nodes, ids }
    }

    /// A name whose slot is the first node's.
    fn key(&self) -> (String, i64) {
        let mut client = self.nodes[0].client();
        (0..)
            .map(|number| format!("stock-{number}"))
            .map(|key| (slot(&mut client, &key), key))
            .find_map(|(slot, key)| (slot < i64::from(SLOTS / 2)).then_some((key, slot)))
            .unwrap()
    }

    /// Moves a slot with one key from the first node to the second, as tools have always done it.
    fn start_moving(&self, slot: i64) {
        self.nodes[1].client().call(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.ids[0]));
        self.nodes[0].client().call(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.ids[1]));
    }

    fn migrate(&self, key: &str) {
        let migrate = format!("MIGRATE 127.0.0.1 {} {key} 0 10000", self.nodes[1].port);
        assert_eq!(self.nodes[0].client().text(&migrate), "OK");
    }

    fn finish_moving(&self, slot: i64) {
        for node in self.nodes.iter().rev() {
            node.client().call(&format!("CLUSTER SETSLOT {slot} NODE {}", self.ids[1]));
        }
    }
}

fn slot(client: &mut Client, key: &str) -> i64 {
    client.int(&format!("CLUSTER KEYSLOT {key}"))
}

fn is_redirection(error: &str) -> bool {
    ["MOVED", "ASK", "TRYAGAIN"].iter().any(|code| error.starts_with(code))
}

#[test]
fn a_cluster_of_one_node_works_like_a_single_server() {
    let server = node();
    server.client().call(&format!("CLUSTER ADDSLOTSRANGE 0 {}", SLOTS - 1));
    await_cluster(&server);
    let mut client = server.client();
    let token = client.acquire("stock", "alice", 60_000);
    let waiters = ["bob", "carol", "dave"].map(|owner| server.in_queue("stock", owner, 60_000));
    client.release("stock", "alice");
    assert!(waiters[0].granted() > token);
    client.call("DEL stock");
    waiters[1].granted();
    client.renew("stock", "carol", 50);
    waiters[2].granted();
    assert_eq!(client.owner("stock").as_deref(), Some("dave"));
    assert!(client.text("CLUSTER INFO").contains("cluster_state:ok"));
}

#[test]
fn a_lock_of_another_nodes_slot_is_redirected() {
    let two = Two::start();
    let (key, slot) = two.key();
    let mut wrong = two.nodes[1].client();
    for line in [
        format!("LOCK.ACQUIRE {key} alice PX 1000 BLOCK 0"),
        format!("LOCK.RELEASE {key} alice"),
        format!("LOCK.RENEW {key} alice PX 1000"),
        format!("LOCK.FENCE {key}"),
        format!("LOCK.INFO {key}"),
    ] {
        let error = wrong.refused(&line);
        let wanted = format!("MOVED {slot} 127.0.0.1:{}", two.nodes[0].port);
        assert!(error.starts_with(&wanted), "{line}: {error}");
    }
    let mut right = two.nodes[0].client();
    assert!(right.acquire(&key, "alice", 60_000) > 0);
}

// G1, G13: for those who wait, a key that moves away looks like one that was deleted. It was not.
#[test]
fn a_lock_moves_with_its_slot_and_waiters_are_redirected() {
    let two = Two::start();
    let (key, slot) = two.key();
    let mut source = two.nodes[0].client();
    let token = source.acquire(&key, "alice", 60_000);
    let lease = Lease::read(&mut source, &key);
    let waiters = ["bob", "carol"].map(|owner| two.nodes[0].in_queue(&key, owner, 60_000));
    two.start_moving(slot);
    two.migrate(&key);
    let_pass(millis(200));
    two.finish_moving(slot);
    for waiter in &waiters {
        let error = waiter.refused();
        assert!(is_redirection(&error), "{error}");
    }
    let mut target = two.nodes[1].client();
    lease.assert_kept(&mut target, 60_000);
    assert_eq!(target.owner(&key).as_deref(), Some("alice"));
    assert!(target.acquire(&format!("{{{key}}}other"), "bob", 1000) > token);
    // It is a lock like any other there.
    let heir = two.nodes[1].in_queue(&key, "bob", 60_000);
    assert_eq!(target.release(&key, "alice"), 1);
    assert!(heir.granted() > token);
    assert!(two.nodes.map(|mut node| node.is_alive()) == [true, true]);
}

// G3: on the node where the lock is, whichever it is.
#[test]
fn a_lease_runs_out_after_the_move() {
    let two = Two::start();
    let (key, slot) = two.key();
    let old = two.nodes[0].client().acquire(&key, "alice", 3000);
    two.start_moving(slot);
    two.migrate(&key);
    two.finish_moving(slot);
    let heir = two.nodes[1].in_queue(&key, "bob", 60_000);
    assert!(heir.granted() > old);
}

// G7: the server itself does not notify them in every version.
#[test]
fn waiters_of_a_node_that_loses_its_role_are_turned_away() {
    let nodes = [node(), node()];
    nodes[0].client().call(&format!("CLUSTER ADDSLOTSRANGE 0 {}", SLOTS - 1));
    nodes[1].client().call("CLUSTER SET-CONFIG-EPOCH 2");
    nodes[0].client().call(&format!("CLUSTER MEET 127.0.0.1 {} {}", nodes[1].port, nodes[1].bus_port()));
    nodes.iter().for_each(await_cluster);
    let id = nodes[0].client().text("CLUSTER MYID");
    let mut heir = nodes[1].client();
    await_that("it knows its primary", || heir.ask(&format!("CLUSTER REPLICATE {id}")).is_ok());
    await_link(&nodes[1]);

    let mut client = nodes[0].client();
    let token = client.acquire("held", "alice", 600_000);
    let short = client.acquire("short", "alice", 5000);
    let waiters = ["held", "short"].map(|key| nodes[0].in_queue(key, "bob", 600_000));
    await_caught_up(&nodes[0], &nodes[1]);
    heir.call("CLUSTER FAILOVER TAKEOVER");
    for waiter in &waiters {
        let reason = waiter.refused();
        let is_known =
            is_redirection(&reason) || reason.starts_with("UNBLOCKED") || reason.starts_with(CLOSED);
        assert!(is_known, "{reason}");
    }
    assert_eq!(heir.fence("held"), Some(token));
    assert!(nodes[1].in_queue("short", "carol", 600_000).granted() > short);
    await_link(&nodes[0]);
    assert_agree(&nodes[1], &[&nodes[0]]);
}

// G7: only the slot moved, not the lock: there is nothing left here to wait for.
#[test]
fn waiters_of_a_slot_that_is_given_away_are_redirected() {
    let two = Two::start();
    let (key, slot) = two.key();
    let mut source = two.nodes[0].client();
    source.acquire(&key, "alice", 60_000);
    let waiter = two.nodes[0].in_queue(&key, "bob", 60_000);
    two.start_moving(slot);
    waiter.waits_for(millis(100));
    source.release(&key, "alice");
    let_pass(millis(200));
    // Handed on while the key was there, it is still this node's. Once the key has gone, a new one is the other's.
    if waiter.is_answered() && source.int(&format!("EXISTS {key}")) == 1 {
        waiter.granted();
        source.release(&key, "bob");
        two.finish_moving(slot);
    } else {
        two.finish_moving(slot);
        let error = waiter.refused();
        assert!(is_redirection(&error), "{error}");
    }
    let reply = two.nodes[1].client().ask(&format!("LOCK.ACQUIRE {key} carol PX 1000"));
    assert!(reply.as_ref().is_ok_and(|value| as_text(value).is_some()), "{reply:?}");
}
