//! Independent servers, of which too few answer.

mod common;

use std::time::{Duration, Instant};

use common::{NOWHERE, PATIENCE, Server, independent};
use redislock_client::{Error, Locks};
use tokio::time::timeout;

/// A grant may take so long that a busy machine is not late.
const LEASE: Duration = Duration::from_secs(60);

fn is_unreached(error: &Error) -> bool {
    matches!(error, Error::ConnectionFailed { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_servers_that_are_down_is_told_so() {
    let three = Locks::builder().independent(NOWHERE).build().unwrap();
    let fenced = three.fence("k", 1).await.unwrap_err();
    assert!(is_unreached(&fenced), "{fenced}");
    let cluster = Locks::builder().cluster(NOWHERE).build().unwrap();
    let watched = Locks::builder().sentinel(NOWHERE, "group").build().unwrap();
    for locks in [three, cluster, watched] {
        let held = locks.held_by("me").await;
        assert!(held.as_ref().is_err_and(is_unreached), "{held:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_answers_for_all() {
    let mut servers = [Server::start(), Server::start(), Server::start()];
    let locks = independent(servers.each_ref());
    let guard = locks.lock("k").owner("me").lease(LEASE).wait(PATIENCE).acquire().await.unwrap();
    servers[2].kill();
    locks.fence("k", guard.token()).await.unwrap();
    let dead = locks.fence("k", guard.token() - 1).await;
    assert!(matches!(dead, Err(Error::Fenced { .. })), "{dead:?}");
    assert_eq!(locks.held_by(guard.owner()).await.unwrap(), [b"k"]);
    servers[1].kill();
    for told in [locks.fence("k", guard.token()).await, locks.held_by("me").await.map(drop)] {
        assert!(told.as_ref().is_err_and(is_unreached), "{told:?}");
    }
    let released = guard.release().await;
    assert!(released.as_ref().is_err_and(is_unreached), "{released:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_without_the_module_is_told_at_once() {
    let servers = [Server::start(), Server::bare(), Server::bare()];
    let locks = independent(servers.each_ref());
    let lock = locks.lock("k").lease(LEASE);
    for lock in [lock.clone(), lock.clone().wait(PATIENCE), lock.wait(Duration::ZERO)] {
        let refused = timeout(PATIENCE / 2, lock.acquire()).await.unwrap().unwrap_err();
        assert!(matches!(refused, Error::ModuleMissing { .. }), "{refused}");
    }
    for told in [locks.fence("k", 1).await, locks.held_by("me").await.map(drop)] {
        assert!(matches!(told, Err(Error::ModuleMissing { .. })), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_without_end_gives_up_when_a_majority_is_out_of_reach() {
    let server = Server::start();
    let locks = Locks::builder().independent([&server.url(), NOWHERE[0], NOWHERE[1]]).build().unwrap();
    let began = Instant::now();
    let refused = timeout(2 * PATIENCE, locks.lock("k").acquire()).await.unwrap().unwrap_err();
    assert!(is_unreached(&refused), "{refused}");
    assert!(began.elapsed() > Duration::from_secs(9), "{:?}", began.elapsed());
}

#[test]
fn one_server_counts_but_once() {
    let addresses = ["redis://127.0.0.1:6379", "redis://127.0.0.1:6380", "redis://:secret@127.0.0.1:6379/1"];
    let refused = Locks::builder().independent(addresses).build().unwrap_err().to_string();
    assert_eq!(refused, "independent servers must differ: 127.0.0.1:6379 is named twice");
}
