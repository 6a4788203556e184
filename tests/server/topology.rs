//! A primary and its replicas, and the question whether they agree.

use std::collections::BTreeMap;

use super::client::{as_list, as_text};
use super::{Client, Server, await_some, await_that};

/// Every lock that is held: where it is, and its owner and token.
pub type Locks = BTreeMap<(u32, String), (String, i64)>;

/// A primary, a replica of it, and a replica of that replica.
pub struct Chain {
    pub primary: Server,
    pub replica: Server,
    pub leaf: Server,
}

impl Chain {
    pub fn start() -> Chain {
        let chain = Chain { primary: Server::start(), replica: Server::start(), leaf: Server::start() };
        follow(&chain.replica, &chain.primary);
        follow(&chain.leaf, &chain.replica);
        chain
    }

    #[track_caller]
    pub fn agree(&self) {
        assert_agree(&self.primary, &[&self.replica, &self.leaf]);
    }
}

/// Makes a server a replica, and waits until it has its primary's data.
#[track_caller]
pub fn follow(replica: &Server, primary: &Server) {
    replica.client().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
    await_link(replica);
}

#[track_caller]
pub fn await_link(replica: &Server) {
    let mut client = replica.client();
    await_that("the replica is linked", || client.info("replication", "master_link_status") == "up");
}

pub fn offset(client: &mut Client) -> i64 {
    client.info("replication", "master_repl_offset").parse().unwrap()
}

/// Waits until a replica has got all that its primary has written so far.
#[track_caller]
pub fn await_caught_up(primary: &Server, replica: &Server) {
    let (mut ahead, mut behind) = (primary.client(), replica.client());
    await_that("the replica has caught up", || {
        behind.info("replication", "master_link_status") == "up" && offset(&mut behind) >= offset(&mut ahead)
    });
}

/// Every lock held on a server, in every database.
pub fn locks(server: &Server) -> Locks {
    let mut client = server.client();
    // So that a replica in a cluster answers too; elsewhere it is an error.
    let _ = client.ask("READONLY");
    let keyspace = client.text("INFO keyspace");
    let numbers =
        keyspace.lines().filter_map(|line| line.strip_prefix("db")?.split(':').next()?.parse().ok());
    let mut locks = Locks::new();
    for db in numbers {
        client.select(db);
        for key in lock_keys(&mut client) {
            if let Some(hold) = client.hold(&key) {
                locks.insert((db, key), (hold.owner, hold.token));
            }
        }
    }
    locks
}

fn lock_keys(client: &mut Client) -> Vec<String> {
    let mut keys = Vec::new();
    let mut cursor = "0".to_string();
    loop {
        let page = client.call(&format!("SCAN {cursor} COUNT 1000 TYPE redislock"));
        let page = as_list(&page);
        keys.extend(as_list(&page[1]).iter().filter_map(as_text));
        cursor = as_text(&page[0]).unwrap();
        if cursor == "0" {
            return keys;
        }
    }
}

pub fn digest(server: &Server) -> String {
    server.client().text("DEBUG DIGEST")
}

/// G13: a replica that has caught up is the same. It compares all holds, then the digest of everything, at one point
/// of the stream.
#[track_caller]
pub fn assert_agree(primary: &Server, replicas: &[&Server]) {
    let mut client = primary.client();
    let (wanted, found) = await_some("the primary rests while it is compared", || {
        let before = offset(&mut client);
        replicas.iter().for_each(|replica| await_caught_up(primary, replica));
        let wanted = state(primary);
        let found: Vec<_> = replicas.iter().map(|replica| state(replica)).collect();
        (offset(&mut client) == before).then_some((wanted, found))
    });
    for state in found {
        assert_eq!(state, wanted, "a replica differs from its primary");
    }
}

/// The locks, and the digest of all data.
pub fn state(server: &Server) -> (Locks, String) {
    (locks(server), digest(server))
}
