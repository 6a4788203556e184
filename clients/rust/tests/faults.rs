//! The effects of late replies, lost replies and refusals on a hold. No user counts on it for longer than the server
//! holds it, and no earlier request ever gives it up.

mod common;

use std::time::Duration;

use common::door::Door;
use common::{PATIENCE, Server, eventually, independent};
use redislock_client::{Error, Guard, Lock, Loss};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_lease_counts_though_the_reply_is_lost() {
    let server = Server::start();
    let door = Door::to(&server);
    let guard = door.locks().lock("k").lease(PATIENCE).acquire().await.unwrap();
    door.mute(true);
    let hold = guard.hold();
    let extended = tokio::spawn(async move { hold.extend(SECOND).await });
    let lost = timeout(3 * SECOND, guard.lost()).await;
    assert_eq!(lost.expect("the server has ended the shorter lease"), Some(Loss::Deadline));
    let refused = timeout(PATIENCE, extended).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(refused, Error::ConnectionFailed { .. } | Error::LockLost { .. }), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_lease_that_was_refused_counts_and_is_renewed() {
    let server = Server::start();
    let guard = server.locks().lock("k").lease(PATIENCE).acquire().await.unwrap();
    let replicas = |number| server.ask::<String>(&["CONFIG", "SET", "min-replicas-to-write", number]);
    replicas("1");
    let refused = guard.extend(3 * SECOND).await.unwrap_err();
    assert!(matches!(refused, Error::NotConfirmed { .. }), "{refused:?}");
    assert!(guard.check().unwrap() <= 3 * SECOND, "the server may have begun the shorter lease");
    replicas("0");
    sleep(4 * SECOND).await;
    assert!(guard.check().unwrap() <= 3 * SECOND, "the server may still begin it");
    guard.extend(PATIENCE).await.unwrap();
    assert!(guard.remaining() > PATIENCE / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_sent_again_does_not_undo_a_longer_lease() {
    let server = Server::start();
    let door = Door::to(&server);
    let guard = door.locks().lock("k").lease(9 * SECOND).acquire().await.unwrap();
    sleep(3 * SECOND - SECOND / 10).await;
    door.shut(true);
    // The renewal was due, and pauses between two attempts to send it.
    sleep(SECOND - SECOND / 4).await;
    door.shut(false);
    guard.extend(2 * PATIENCE).await.unwrap();
    sleep(SECOND / 2).await;
    assert!(guard.remaining() > PATIENCE, "{:?} remain of it", guard.remaining());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_that_waited_longer_than_their_lease_are_held() {
    let server = Server::start();
    let (locks, lease) = (server.locks(), SECOND);
    let other = locks.lock("b").acquire().await.unwrap();
    let many = locks.many(["a", "b"]).lease(lease).wait(PATIENCE);
    let waits = tokio::spawn(async move { many.acquire().await });
    eventually("it waits", || server.waiters("b") == 1).await;
    sleep(lease + lease / 2).await;
    other.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    assert!(guard.remaining() > lease / 2, "{:?} remain", guard.remaining());
    sleep(2 * lease).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_several_locks_keeps_its_place_beyond_the_longest_wait_of_the_server() {
    let server = Server::with(&["--redislock.max-wait", "300"]);
    let locks = server.locks();
    let holder = locks.lock("place").acquire().await.unwrap();
    let (order, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let wait = |name: &'static str, lock: Lock| {
        let order = order.clone();
        tokio::spawn(async move {
            let guard = lock.wait(PATIENCE).acquire().await.unwrap();
            order.send(name).unwrap();
            guard.release().await.unwrap();
        })
    };
    let first = wait("first", locks.many(["place", "place-2"]));
    eventually("the first one waits", || server.waiters("place") == 1).await;
    let second = wait("second", server.locks().lock("place"));
    eventually("both wait", || server.waiters("place") == 2).await;
    sleep(SECOND).await;
    holder.release().await.unwrap();
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(arrivals.recv().await, Some("first"));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_renewed_after_a_long_wait_though_replies_take_long() {
    let server = Server::start();
    let door = Door::to(&server);
    let locks = door.locks();
    let other = server.locks().lock("b").acquire().await.unwrap();
    let many = locks.many(["a", "b"]).wait(PATIENCE);
    let waits = tokio::spawn(async move { many.acquire().await });
    eventually("it waits", || server.waiters("b") == 1).await;
    // Longer than the first lease of a client that has waited.
    sleep(6 * SECOND).await;
    door.delay(SECOND / 10);
    other.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    assert!(guard.remaining() > 20 * SECOND, "{:?} remain", guard.remaining());
}

/// Client and server agree that these locks are held.
async fn is_still_held<const N: usize>(server: &Server, names: [&str; N], guard: Guard) {
    guard.check().unwrap();
    assert!(names.iter().all(|name| server.is_held(name)));
    guard.release().await.unwrap();
}

/// Asks for the lock, gives up before there is a reply, and loses the connection.
async fn is_not_answered(door: &Door, lock: &Lock) {
    door.mute(true);
    assert!(timeout(SECOND / 5, lock.acquire()).await.is_err());
    door.mute(false);
    door.cut();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_that_are_asked_for_again_outlive_the_request_that_was_dropped() {
    let server = Server::start();
    let locks = server.locks();
    let other = locks.lock("b").acquire().await.unwrap();
    let many = locks.many(["a", "b"]).owner("task-7");
    let again = many.clone();
    let waits = tokio::spawn(async move { many.acquire().await.map(drop) });
    eventually("it waits", || server.waiters("b") == 1).await;
    waits.abort();
    drop(waits.await);
    other.release().await.unwrap();
    let guard = again.wait(PATIENCE).acquire().await.unwrap();
    sleep(2 * SECOND).await;
    is_still_held(&server, ["a", "b"], guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_asked_for_again_outlives_the_request_that_was_not_answered() {
    let server = Server::start();
    let door = Door::to(&server);
    let lock = door.locks().lock("k").owner("task-7").wait(PATIENCE);
    lock.acquire().await.unwrap().release().await.unwrap();
    is_not_answered(&door, &lock).await;
    let guard = lock.acquire().await.unwrap();
    sleep(2 * SECOND).await;
    is_still_held(&server, ["k"], guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_asked_for_again_outlives_the_release_that_failed() {
    let server = Server::start();
    let door = Door::to(&server);
    let lock = door.locks().lock("k").owner("task-7").wait(PATIENCE);
    let first = lock.acquire().await.unwrap();
    door.shut(true);
    assert!(timeout(SECOND / 2, first.release()).await.is_err());
    door.shut(false);
    // Under the same token, if the server still has the hold.
    let guard = lock.acquire().await.unwrap();
    sleep(3 * SECOND).await;
    is_still_held(&server, ["k"], guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_answered_is_given_up_though_it_was_asked_for_again_in_vain() {
    let server = Server::start();
    let door = Door::to(&server);
    let (lock, other) = (door.locks().lock("k").owner("task-7"), server.locks().lock("k"));
    let guard = other.acquire().await.unwrap();
    assert!(matches!(lock.clone().wait(SECOND / 10).acquire().await, Err(Error::LockTimeout { .. })));
    is_not_answered(&door, &lock).await;
    assert!(matches!(lock.clone().wait(Duration::ZERO).acquire().await, Err(Error::LockTimeout { .. })));
    eventually("nobody waits", || server.waiters("k") == 0).await;
    guard.release().await.unwrap();
    // No place in line would have to lapse first.
    let guard = timeout(2 * SECOND, other.acquire()).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_asks_again_after_each_time_out_leaves_nothing_to_be_given_up() {
    let server = Server::start();
    let locks = server.locks();
    let other = server.locks().lock("k").acquire().await.unwrap();
    let lock = locks.lock("k").owner("task-7");
    for _ in 0..5 {
        let refused = lock.clone().wait(SECOND / 50).acquire().await;
        assert!(matches!(refused, Err(Error::LockTimeout { .. })), "{refused:?}");
    }
    other.release().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    sleep(SECOND).await;
    let stats = server.ask::<String>(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_lock.release:calls=7,"), "each once: {stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_written_over_is_lost_though_its_release_is_refused() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let (locks, group) = (servers[0].locks(), independent(servers.each_ref()));
    for lock in [locks.lock("k"), locks.many(["k", "l"]), group.lock("k")] {
        let lock = lock.lease(PATIENCE).wait(PATIENCE);
        let ended: Result<(), _> = lock
            .run(async |_| {
                for server in &servers {
                    server.ask::<String>(&["SET", "k", "a value"]);
                }
                Ok(()) // before the library has the server tell of changes
            })
            .await;
        assert!(matches!(ended, Err(Error::LockLost { .. })), "{lock:?}: {ended:?}");
        eventually("the rest is given up", || !servers[0].is_held("l")).await;
        for server in &servers {
            server.ask::<i64>(&["DEL", "k"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_asks_to_write_is_refused_and_keeps_reading() {
    let server = Server::start();
    let locks = server.locks();
    let read = locks.read("k").owner("task-7").acquire().await.unwrap();
    let _others = (locks.read("k").acquire().await.unwrap(), locks.lock("other").acquire().await.unwrap());
    let is_held =
        |error: Option<Error>| error.is_some_and(|error| error.to_string().contains("LOCKHELD 'k'"));
    for wait in [Duration::ZERO, SECOND / 5, 60 * SECOND] {
        assert!(is_held(locks.write("k").owner("task-7").wait(wait).acquire().await.err()));
        assert!(is_held(locks.many(["k", "other"]).owner("task-7").wait(wait).acquire().await.err()));
    }
    sleep(SECOND / 5).await;
    assert_eq!(server.waiters("k"), 0);
    read.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_comes_late_does_not_cut_a_longer_lease_unnoticed() {
    let server = Server::start();
    let door = Door::to(&server);
    let guard = door.locks().lock("k").lease(3 * SECOND).acquire().await.unwrap();
    sleep(SECOND / 2).await;
    door.stall(true);
    // The renewal is due at one second, is not answered, and is sent again over another connection.
    sleep(SECOND + 9 * SECOND / 10).await;
    guard.extend(2 * PATIENCE).await.unwrap();
    door.stall(false);
    for _ in 0..60 {
        sleep(SECOND / 10).await;
        let (remaining, left) = (guard.check().unwrap(), server.ask::<Option<i64>>(&["LOCK.FENCE", "k"]));
        assert!(left.is_some(), "{remaining:?} remain of a hold that is over");
    }
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_that_is_granted_before_it_is_withdrawn_is_given_up() {
    let server = Server::start();
    let door = Door::to(&server);
    let (locks, other) = (door.locks(), server.locks().lock("k").acquire().await.unwrap());
    let lock = locks.lock("k").owner("task-7");
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    eventually("it waits", || server.waiters("k") == 1).await;
    sleep(SECOND / 5).await;
    // It is called, and asks; the reply comes too late for it.
    door.delay(SECOND / 4);
    other.release().await.unwrap();
    eventually("it is granted", || server.ask::<Option<i64>>(&["LOCK.FENCE", "k"]).is_some()).await;
    waiting.abort();
    eventually("it is given up", || !server.is_held("k")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_leaves_its_owner_what_it_holds() {
    let server = Server::start();
    let locks = server.locks();
    let read = locks.read("k").owner("task-7").acquire().await.unwrap();
    let _other = locks.read("k").acquire().await.unwrap();
    for wait in [Duration::ZERO, SECOND] {
        let refused = locks.semaphore("k", 3).owner("task-7").wait(wait).acquire().await;
        assert!(matches!(refused, Err(Error::LockKindMismatch { .. })));
    }
    sleep(SECOND / 5).await;
    read.release().await.unwrap();
}
