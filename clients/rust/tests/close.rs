//! Closing in a bounded time, and the locks under which a thread still works.

mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, Server, eventually, work_on_a_thread};
use redislock_client::{Error, Loss};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn is_lost_by_close<T>(ended: &Result<T, Error>) -> bool {
    matches!(ended, Err(Error::LockLost { reason: Loss::Close, .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn close_renews_and_then_gives_up_a_lock_under_which_a_thread_works() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.lock("guard").acquire().await.unwrap();
    let working = work_on_a_thread(locks.lock("k").lease(SECOND), 3 * SECOND).await;
    let closing = tokio::spawn(async move { locks.close().await });
    eventually("no work goes on under the guard", || !server.is_held("guard")).await;
    assert_eq!(guard.loss(), Some(Loss::Close));
    sleep(2 * SECOND).await;
    assert!(server.is_held("k") && !closing.is_finished());
    assert!(is_lost_by_close(&working.await.unwrap()));
    closing.await.unwrap();
    assert!(!server.is_held("k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn close_is_bounded_and_leaves_a_lock_under_which_a_thread_works_its_lease() {
    let server = Server::start();
    let locks = server.locks();
    let working = work_on_a_thread(locks.lock("k"), 3 * SECOND).await;
    let began = Instant::now();
    locks.close_timeout(SECOND / 5).await;
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    assert!(is_lost_by_close(&working.await.unwrap()));
    sleep(SECOND / 5).await;
    assert!(server.is_held("k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn close_without_time_asks_no_server() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.lock("k").acquire().await.unwrap();
    locks.close_timeout(Duration::ZERO).await;
    assert!(is_lost_by_close(&guard.check()) && is_lost_by_close(&guard.release().await));
    let clients = || server.ask::<String>(&["CLIENT", "LIST"]).lines().count();
    eventually("no connection is open but our own", || clients() == 1).await;
    assert!(server.is_held("k"));
    let stats = server.ask::<String>(&["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_lock.release"), "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_closes_its_own_locks_is_dropped_and_they_are_closed() {
    let server = Server::start();
    let locks = server.locks();
    let lock = locks.lock("k");
    let ended = timeout(
        PATIENCE,
        lock.run(async |_| {
            locks.close().await;
            Ok(())
        }),
    );
    assert!(is_lost_by_close(&ended.await.unwrap()));
    locks.close().await;
    assert!(!server.is_held("k"));
    assert!(matches!(lock.acquire().await, Err(Error::Closed)));
}

#[test]
fn close_outside_of_a_runtime_ends_all_connections() {
    let server = Server::start();
    let locks = server.locks();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime.block_on(locks.lock("k").acquire()).unwrap();
    futures_util::FutureExt::now_or_never(locks.close()).expect("it waits for nothing");
    assert_eq!(guard.loss(), Some(Loss::Close));
    assert!(server.is_held("k"));
}
