//! What a program may get wrong, and what it is told.

mod common;

use std::time::Duration;

use common::{Server, eventually};
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_duration_is_a_wait_without_end() {
    let mut server = Server::start();
    let locks = server.locks();
    let _guard = locks.lock("k").acquire().await.unwrap();
    let lock = locks.many(["k", "l"]).wait(Duration::MAX);
    let mut waits = tokio::spawn(async move { lock.acquire().await.map(drop) });
    eventually("it waits", || server.waiters("k") == 1).await;
    server.kill();
    let waited = timeout(Duration::from_secs(1), &mut waits).await;
    assert!(waited.is_err(), "{waited:?}");
    waits.abort();
}
