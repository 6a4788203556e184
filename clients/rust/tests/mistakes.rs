//! What a program may get wrong, and what it is told.

mod common;

use std::time::Duration;

use common::{NOWHERE, Server, eventually};
use redislock_client::{Builder, Error, Locks};
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

/// What is refused without a server, and how.
fn invalid<T>(made: Result<T, Error>) -> String {
    match made {
        Err(Error::Invalid { message }) => message,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was taken"),
    }
}

#[test]
fn a_builder_refuses_numbers_out_of_their_range() {
    let built = |change: fn(Builder) -> Builder| invalid(change(Locks::builder().server(NOWHERE[0])).build());
    assert_eq!(built(|it| it.lease(Duration::ZERO)), "lease must be 100ms or more, not 0ns");
    assert_eq!(built(|it| it.lease(Duration::from_millis(99))), "lease must be 100ms or more, not 99ms");
    assert!(built(|it| it.waiting(0)).starts_with("waiting must be from 1 to "));
    assert!(built(|it| it.waiting(usize::MAX)).ends_with(", not 18446744073709551615"));
}
