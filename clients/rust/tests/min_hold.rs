//! Locks that stay taken for a time, whatever happens to their holder.

mod common;

use std::time::{Duration, Instant};

use common::door::Door;
use common::{PATIENCE, Server, eventually, independent};
use redislock_client::{Error, Locks, Loss};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The remaining lease on the server; zero if the lock is not held.
async fn left(server: &Server, name: &str) -> Duration {
    let info = server.locks().info(name).await.unwrap();
    info.map_or(Duration::ZERO, |info| info.holders[0].left)
}

/// The requests of this kind that the server got, as `LOCK.RENEW k host:1:2 PX 1000 TOKEN 3`.
fn sent(server: &Server, kind: &str) -> Vec<String> {
    type Entry = (i64, i64, i64, Vec<String>, String, String);
    let entries: Vec<Entry> = server.ask(&["SLOWLOG", "GET", "1000"]);
    entries.into_iter().map(|entry| entry.3.join(" ")).filter(|words| words.starts_with(kind)).collect()
}

fn recording() -> Server {
    Server::with(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_stays_taken_after_its_release_until_its_least_hold_ends() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.lock("k").min_hold(MINUTE).acquire().await.unwrap();
    let hold = guard.hold();
    guard.release().await.unwrap();
    assert!(hold.loss().is_none(), "its end is no loss");
    assert!(matches!(hold.check(), Err(Error::LockLost { reason: Loss::Release, .. })));
    let rest = left(&server, "k").await;
    assert!(rest > MINUTE / 2 && rest <= MINUTE, "{rest:?}");
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
    assert_eq!(locks.info("k").await.unwrap().unwrap().holders[0].owner, hold.owner());

    drop(locks.lock("dropped").min_hold(MINUTE).acquire().await.unwrap());
    drop(locks.semaphore("permit", 1).min_hold(MINUTE).acquire().await.unwrap());
    locks.many(["a", "b"]).min_hold(MINUTE).acquire().await.unwrap().release().await.unwrap();
    let failed = locks.lock("failed").min_hold(MINUTE).run(async |_| Err::<(), _>(Error::Closed)).await;
    assert!(matches!(failed, Err(Error::Closed)));
    let closed = locks.lock("closed").min_hold(MINUTE).acquire().await.unwrap();
    locks.close().await;
    assert_eq!(closed.loss(), Some(Loss::Close));
    drop(closed);
    for name in ["dropped", "permit", "a", "b", "failed", "closed"] {
        assert!(left(&server, name).await > MINUTE / 2, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_free_when_its_least_hold_has_ended() {
    let server = Server::start();
    let (locks, began) = (server.locks(), Instant::now());
    let lock = locks.lock("k").lease(MINUTE).min_hold(1500 * SECOND / 1000);
    lock.acquire().await.unwrap().release().await.unwrap();
    let next = locks.lock("k").wait(PATIENCE).acquire().await.unwrap();
    assert!(began.elapsed() >= 1500 * SECOND / 1000, "{:?}", began.elapsed());
    next.release().await.unwrap();
    let long = lock.acquire().await.unwrap();
    sleep(2 * SECOND).await;
    long.release().await.unwrap();
    assert!(!server.is_held("k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_asks_for_what_is_left_of_the_least_hold() {
    let server = recording();
    let locks = Locks::builder().server(server.url()).lease(SECOND).build().unwrap();
    let first = locks.lock("k").acquire().await.unwrap();
    let waiting = locks.lock("k").min_hold(MINUTE);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually("it waits", || server.waiters("k") == 1).await;
    first.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let owner = format!("LOCK.ACQUIRE k {} PX", guard.owner());
    let asked = sent(&server, &owner);
    assert!(asked.len() >= 2, "{asked:?}");
    let is_whole = |words: &String| words.starts_with(&format!("{owner} 60000 "));
    assert!(asked.iter().all(is_whole), "a waiter's first lease is as long, too: {asked:?}");
    guard.extend(2 * SECOND).await.unwrap();
    assert!(left(&server, "k").await > MINUTE / 2);
    guard.release().await.unwrap();
    assert!(left(&server, "k").await > MINUTE / 2);
    let released = sent(&server, "LOCK.RELEASE");
    assert_eq!(released.len(), 1, "that of the first: {released:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_ask_for_the_lease_again_when_the_least_hold_has_ended() {
    let server = recording();
    let locks = Locks::builder().server(server.url()).lease(SECOND).build().unwrap();
    let (least, began) = (6 * SECOND, Instant::now());
    let guard = locks.lock("k").min_hold(least).acquire().await.unwrap();
    while began.elapsed() < least - SECOND / 2 {
        let rest = left(&server, "k").await;
        assert!(
            rest + began.elapsed() >= least,
            "a crash now would free it after {:?}",
            rest + began.elapsed()
        );
        sleep(SECOND / 20).await;
    }
    eventually("it is renewed for its lease", || {
        sent(&server, "LOCK.RENEW").iter().any(|words| words.contains(" PX 1000 "))
    })
    .await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let still = locks.lock("still").lease(SECOND).renew(false).min_hold(MINUTE).acquire().await.unwrap();
    assert!(still.remaining() > MINUTE / 2, "the first lease is as long as the least hold");
    still.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_not_answered_leaves_the_lock_taken() {
    let server = recording();
    let door = Door::to(&server);
    let guard = door.locks().lock("k").lease(MINUTE).min_hold(MINUTE / 2).acquire().await.unwrap();
    door.mute(true);
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::ConnectionFailed { .. })), "{released:?}");
    door.mute(false);
    eventually("it goes on in the background", || !sent(&server, "LOCK.RENEW").is_empty()).await;
    let rest = left(&server, "k").await;
    assert!(rest > SECOND && rest <= MINUTE / 2, "{rest:?}");
    assert!(sent(&server, "LOCK.RELEASE").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_least_hold_that_cannot_be_kept_is_refused() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let locks = servers[0].locks();
    let group = independent(servers.each_ref());
    for (lock, why) in [
        (locks.lock("k").min_hold(SECOND / 100), "min_hold must be 100ms or more, not 10ms"),
        (
            locks.lock("k").max_hold(SECOND).min_hold(2 * SECOND),
            "min_hold must be max_hold (1s) or less, not 2s",
        ),
        (locks.read("k").min_hold(SECOND), "min_hold must not be set for readers or independent servers"),
        (
            locks.read_many(["k"]).min_hold(SECOND),
            "min_hold must not be set for readers or independent servers",
        ),
        (group.lock("k").min_hold(SECOND), "min_hold must not be set for readers or independent servers"),
        (locks.lock("k").min_hold(7200 * SECOND), "lease (or min_hold) must be from 100ms to 3600s"),
    ] {
        let told = lock.acquire().await.unwrap_err();
        assert!(matches!(told, Error::Invalid { .. }), "{told:?}");
        assert!(told.to_string().starts_with(why), "{told}");
    }
}
