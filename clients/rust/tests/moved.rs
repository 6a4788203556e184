//! One address whose server changes: the old primary lives on as a replica, and its connections stay open.

mod common;

use std::future::pending;
use std::time::Duration;

use common::door::Door;
use common::{PATIENCE, Server, eventually};
use redislock_client::Error;
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// A primary behind an address, and its replica.
fn pair() -> (Server, Server, Door) {
    let (old, new) = (Server::start(), Server::start());
    new.follow(&old);
    let door = Door::to(&old);
    (old, new, door)
}

/// Makes the replica the primary, has the old one follow it, and points the address at the new one.
fn fail_over(old: &Server, new: &Server, door: &Door) {
    new.lead();
    door.lead(new);
    old.follow(new);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_acquired_renewed_and_released_after_the_address_has_moved() {
    let (old, new, door) = pair();
    let locks = door.locks();
    let guard = locks.lock("held").lease(3 * SECOND).acquire().await.unwrap();
    eventually("it is replicated", || new.is_held("held")).await;
    fail_over(&old, &new, &door);
    let fresh = locks.lock("fresh").wait(PATIENCE).acquire().await.unwrap();
    locks.lock("now").wait(Duration::ZERO).acquire().await.unwrap().release().await.unwrap();
    let both = locks.many(["a", "b"]).wait(PATIENCE).acquire().await.unwrap();
    sleep(4 * SECOND).await;
    guard.check().unwrap();
    locks.check_token("held", guard.token()).await.unwrap();
    for held in [guard, fresh, both] {
        held.release().await.unwrap();
    }
    assert!(["held", "fresh", "a", "b"].iter().all(|name| !new.is_held(name)));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_granted_by_the_new_server_after_the_address_has_moved() {
    let (old, new, door) = pair();
    let (locks, holder) = (door.locks(), old.locks().lock("k").acquire().await.unwrap());
    let alone = tokio::spawn({
        let lock = locks.lock("k");
        async move { lock.acquire().await?.release().await }
    });
    let several = tokio::spawn({
        let lock = locks.many(["k", "l"]);
        async move { lock.acquire().await?.release().await }
    });
    eventually("both wait", || old.waiters("k") == 2).await;
    fail_over(&old, &new, &door);
    drop(holder);
    new.ask::<i64>(&["DEL", "k"]);
    timeout(PATIENCE, alone).await.unwrap().unwrap().unwrap();
    timeout(PATIENCE, several).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_leads_on_after_the_address_has_moved() {
    let (old, new, door) = pair();
    let (locks, deposed) = (door.locks(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
    let heard = deposed.clone();
    let candidate = locks.leader("job").lease(3 * SECOND).on_elected(async |_| pending().await);
    let leader = candidate.on_deposed(move |reason| heard.lock().unwrap().push(reason)).stand().unwrap();
    let token = leader.elected().await.unwrap().token();
    eventually("it is replicated", || new.is_held("job")).await;
    fail_over(&old, &new, &door);
    sleep(5 * SECOND).await;
    assert!(leader.is_leading() && deposed.lock().unwrap().is_empty(), "{:?}", deposed.lock().unwrap());
    assert_eq!(leader.elected().await.unwrap().token(), token);
    leader.resign().await;
    assert!(!new.is_held("job"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lacks_the_lock_shows_no_loss() {
    let (old, new, door) = pair();
    let (empty, locks) = (Server::start(), door.locks());
    let guard = locks.lock("k").acquire().await.unwrap();
    eventually("it is replicated", || new.is_held("k")).await;
    sleep(SECOND / 5).await; // until the server was asked to tell of a change
    new.lead();
    door.lead(&new);
    old.follow(&empty);
    sleep(SECOND).await;
    guard.check().unwrap();
    locks.check_token("k", guard.token()).await.unwrap();
    assert!(new.is_held("k"));
    guard.release().await.unwrap();
    assert!(!new.is_held("k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_of_a_server_that_was_the_primary_is_left() {
    let (old, new, door) = pair();
    let locks = door.locks();
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    new.lead();
    door.lead(&new);
    old.ask::<String>(&["CONFIG", "SET", "redislock.quarantine", "600000"]);
    old.follow(&new);
    old.lead();
    let refused = old.locks().lock("k").wait(Duration::ZERO).acquire().await.unwrap_err();
    assert!(matches!(refused, Error::Quarantine { .. }), "{refused:?}");
    for lock in [locks.lock("k"), locks.many(["k", "l"])] {
        let guard = lock.wait(Duration::ZERO).acquire().await.unwrap();
        assert!(new.is_held("k"));
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_on_a_demoted_server_make_few_connections() {
    let (old, new, door) = pair();
    let (locks, holder) = (door.locks(), old.locks().lock("k").acquire().await.unwrap());
    let wait = |names: &[&str]| {
        let lock = locks.many(names);
        tokio::spawn(async move { lock.acquire().await?.release().await })
    };
    let waits: Vec<_> = (0..4).map(|_| wait(&["k", "l"])).chain((0..4).map(|_| wait(&["k"]))).collect();
    eventually("all wait", || old.waiters("k") == 8).await;
    // The address still leads to the old primary.
    new.lead();
    old.follow(&new);
    let before = door.joined();
    sleep(5 * SECOND).await;
    let made = door.joined() - before;
    assert!(made < 60, "{made} connections in five seconds");
    drop(holder);
    new.ask::<i64>(&["DEL", "k"]);
    door.lead(&new);
    for wait in waits {
        timeout(PATIENCE, wait).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_server_is_named_before_all_else() {
    let (old, new, _door) = pair();
    let refused = new.locks().lock("k").wait(SECOND).acquire().await.unwrap_err();
    assert!(matches!(refused, Error::ConnectionFailed { .. }), "{refused:?}");
    let told = refused.to_string();
    assert!(told.starts_with("READONLY") && told.contains(&format!("127.0.0.1:{}", new.port)), "{told}");
    assert!(told.contains("replica"), "{told}");
    drop(old);
}
