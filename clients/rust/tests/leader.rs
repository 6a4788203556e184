//! Elections, and what goes wrong with them.

mod common;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, Server, eventually};
use redislock_client::Error;
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_dropped_resigns() {
    let server = Server::start();
    let locks = server.locks();
    let leader = locks.leader("job").lease(SECOND).stand().unwrap();
    leader.elected().await.unwrap();
    drop(leader);
    eventually("nobody leads", || !server.is_held("job")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn senseless_options_of_a_leader_are_refused() {
    let server = Server::start();
    let locks = server.locks();
    for candidate in [locks.leader("job").lease(Duration::from_millis(10)), locks.leader("")] {
        let refused = candidate.stand().unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    }
    let candidate = locks.leader("job");
    let outside = std::thread::spawn(|| candidate.stand().map(drop)).join().unwrap().unwrap_err();
    assert!(matches!(outside, Error::Invalid { .. }), "{outside}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_the_server_is_reported_once_and_tried_again() {
    let server = Server::bare();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    let candidate = server.locks().leader("job").on_error(move |error| {
        told.lock().unwrap().push(error.to_string());
    });
    let leader = candidate.stand().unwrap();
    let refused = timeout(PATIENCE, leader.elected()).await.unwrap().unwrap_err();
    assert!(matches!(refused, Error::ModuleMissing { .. }), "{refused}");
    assert!(leader.is_standing() && leader.hold().is_none());
    tokio::time::sleep(SECOND).await; // for several attempts
    assert_eq!(*heard.lock().unwrap(), [refused.to_string()]);
    server.load_module();
    eventually("it leads", || leader.is_leading()).await;
    assert!(leader.elected().await.unwrap().token() > 0);
    leader.resign().await;
    assert!(!server.is_held("job"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_work_gives_the_lock_up_and_is_reported() {
    let server = Server::start();
    let (locks, heard) = (server.locks(), Arc::new(Mutex::new(Vec::new())));
    let told = heard.clone();
    let candidate = locks.leader("job").on_error(move |error| told.lock().unwrap().push(error.to_string()));
    let leader = candidate.on_elected(async |_| panic!("on purpose")).stand().unwrap();
    eventually("it stands no more", || !leader.is_standing()).await;
    eventually("nobody leads", || !server.is_held("job")).await;
    let ended = timeout(PATIENCE, leader.elected()).await.unwrap().unwrap_err();
    assert!(matches!(ended, Error::Invalid { .. }), "{ended}");
    assert!(ended.to_string().contains("'job'") && ended.to_string().contains("on purpose"), "{ended}");
    assert_eq!(*heard.lock().unwrap(), [ended.to_string()]);
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_learns_that_the_locks_are_closed() {
    let server = Server::start();
    let (locks, other) = (server.locks(), server.locks());
    let first = other.leader("job").on_elected(async |_| pending().await).stand().unwrap();
    first.elected().await.unwrap();
    let second = Arc::new(locks.leader("job").stand().unwrap());
    let waits = tokio::spawn({
        let second = second.clone();
        async move { second.elected().await }
    });
    eventually("it waits", || server.waiters("job") == 1).await;
    locks.close().await;
    let ended = timeout(PATIENCE, waits).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    eventually("it stands no more", || !second.is_standing()).await;
    assert!(first.is_standing());
}
