//! The server in the process, with which programs are tested.
#![cfg(feature = "testing")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redislock_client::testing::Server;
use redislock_client::{Error, Locks, Loss};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn what_is_renewed_lasts_and_other_leases_end() {
    let (server, began) = (Server::new(), Instant::now());
    let (ours, theirs) = (server.locks().unwrap(), server.locks().unwrap());
    let renewed = ours.lock("renewed").acquire().await.unwrap();
    let fixed = ours.lock("fixed").renew(false).acquire().await.unwrap();
    let bounded = ours.lock("bounded").max_hold(60 * SECOND).acquire().await.unwrap();
    server.advance(29 * SECOND).await;
    assert!(theirs.lock("fixed").try_acquire().await.unwrap().is_none());
    server.advance(SECOND).await;
    assert!(theirs.lock("fixed").try_acquire().await.unwrap().is_some());
    assert_eq!(fixed.loss(), Some(Loss::Deadline));
    server.advance(HOUR).await;
    renewed.check().unwrap();
    assert!(theirs.lock("renewed").try_acquire().await.unwrap().is_none());
    assert_eq!(bounded.loss(), Some(Loss::MaxHold));
    // A process that cannot renew.
    tokio::time::advance(31 * SECOND).await;
    assert_eq!(renewed.lost().await, Some(Loss::Deadline));
    assert!(began.elapsed() < HOUR / 10, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_is_known_to_be_lost() {
    let server = Server::new();
    let (ours, theirs) = (server.locks().unwrap(), server.locks().unwrap());
    let (guard, other) = (ours.lock("k").acquire().await.unwrap(), ours.lock("o").acquire().await.unwrap());
    server.lose("k").await;
    assert_eq!(guard.loss(), Some(Loss::Push));
    other.check().unwrap();
    let next = theirs.lock("k").acquire().await.unwrap();
    assert!(next.token() > guard.token());
    drop(guard);
    sleep(SECOND).await;
    next.check().unwrap();
    theirs.check_token("k", next.token()).await.unwrap();
}

/// Acquires in a task, whose end is noted.
fn queue(locks: &Locks, name: &'static str, ends: &Arc<Mutex<Vec<&'static str>>>) -> JoinHandle<()> {
    let (locks, ends) = (locks.clone(), ends.clone());
    tokio::spawn(async move {
        let guard = locks.lock("k").acquire().await.unwrap();
        ends.lock().unwrap().push(name);
        sleep(60 * SECOND).await;
        guard.release().await.unwrap();
    })
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_their_order_and_time_out() {
    let (server, ends) = (Server::new(), Arc::default());
    let (ours, theirs) = (server.locks().unwrap(), server.locks().unwrap());
    let mut tasks = Vec::new();
    for (locks, name) in [(&ours, "a"), (&theirs, "b"), (&ours, "c")] {
        tasks.push(queue(locks, name, &ends));
        sleep(SECOND).await;
    }
    assert_eq!(ours.info("k").await.unwrap().unwrap().waiters, 2);
    let late = timeout(10 * SECOND, theirs.lock("k").wait(5 * SECOND).acquire()).await.unwrap();
    assert!(matches!(late, Err(Error::LockTimeout { .. })), "{late:?}");
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*ends.lock().unwrap(), ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_waited_for_and_a_leader_is_deposed() {
    let server = Server::new();
    let (ours, theirs) = (server.locks().unwrap(), server.locks().unwrap());
    let one = ours.lock("a").acquire().await.unwrap();
    let both = tokio::spawn({
        let both = theirs.many(["a", "b"]);
        async move { both.acquire().await.unwrap() }
    });
    server.advance(HOUR).await;
    assert_eq!(ours.info("b").await.unwrap().unwrap().waiters, 1);
    one.release().await.unwrap();
    let both = both.await.unwrap();
    server.advance(HOUR).await;
    both.check().unwrap();
    let reasons: Arc<Mutex<Vec<Loss>>> = Arc::default();
    let heard = reasons.clone();
    let leader =
        ours.leader("l").on_deposed(move |reason| heard.lock().unwrap().push(reason)).stand().unwrap();
    let first = leader.elected().await.unwrap().token();
    server.lose("l").await;
    assert!(leader.elected().await.unwrap().token() > first);
    assert_eq!(*reasons.lock().unwrap(), [Loss::Push]);
    leader.resign().await;
}

#[tokio::test]
async fn servers_know_nothing_of_each_other_and_one_that_was_dropped_answers_nothing() {
    let (one, other) = (Server::new(), Server::new());
    let _guard = one.locks().unwrap().lock("k").acquire().await.unwrap();
    let guard = other.locks().unwrap().lock("k").acquire().await.unwrap();
    let address = other.url();
    drop(other);
    let failed = guard.release().await.unwrap_err();
    assert!(matches!(failed, Error::ConnectionFailed { .. }), "{failed}");
    let failed = Locks::open(address).unwrap().ping().await.unwrap_err();
    assert!(failed.to_string().contains("this testing::Server was dropped"), "{failed}");
}

/// Says what becomes of requests of all kinds.
async fn story(url: String) -> Vec<String> {
    let locks = || Locks::open(url.clone()).unwrap();
    let (ours, theirs, mut told) = (locks(), locks(), Vec::new());
    fn kind<T>(what: Result<T, Error>) -> String {
        what.map_or_else(
            |error| format!("{error:?}").split(' ').next().unwrap().to_owned(),
            |_| "ok".to_owned(),
        )
    }
    told.push(kind(ours.ping().await));
    let (a, b) = (ours.read("r").acquire().await.unwrap(), theirs.read("r").acquire().await.unwrap());
    told.push(format!("{}", theirs.write("r").try_acquire().await.unwrap().is_none()));
    told.push(format!("{:?}", ours.info("r").await.unwrap().map(|info| (info.kind, info.holds))));
    told.push(kind(theirs.semaphore("r", 2).acquire().await));
    drop((a, b));
    let permits = [ours.semaphore("s", 2).acquire().await, theirs.semaphore("s", 2).acquire().await];
    told.push(kind(ours.semaphore("s", 2).try_acquire().await.map(|busy| assert!(busy.is_none()))));
    told.push(kind(ours.semaphore("s", 3).acquire().await));
    told.push(kind(ours.lock("s").acquire().await));
    told.push(format!(
        "{:?}",
        theirs.info("s").await.unwrap().map(|info| (info.kind, info.limit, info.holds))
    ));
    drop(permits);
    let mine = ours.lock("k").owner("ann").acquire().await.unwrap();
    let again = theirs.lock("k").owner("ann").acquire().await.unwrap();
    told.push(format!("{}", mine.token() == again.token()));
    told.push(kind(ours.semaphore("k", 1).owner("ann").acquire().await));
    told.push(kind(ours.many(["k", "l"]).owner("ann").acquire().await));
    told.push(kind(ours.check_token("k", mine.token() - 1).await));
    told.push(kind(ours.check_token("k", mine.token()).await));
    mine.extend(HOUR).await.unwrap();
    told.push(kind(mine.extend(2 * HOUR).await));
    let left = ours.lock("left").owner("ben").acquire().await.unwrap();
    let waits = theirs.lock("left").owner("ann");
    let waiting = tokio::spawn(async move { waits.acquire().await });
    while ours.info("left").await.unwrap().unwrap().waiters == 0 {
        sleep(SECOND / 100).await;
    }
    told.push(match ours.lock("k").owner("ben").acquire().await {
        Err(Error::Deadlock { cycle, .. }) => format!("{cycle:?}"),
        other => kind(other),
    });
    left.release().await.unwrap();
    told.push(kind(waiting.await.unwrap()));
    let reader = ours.write("w").owner("ann").acquire().await.unwrap();
    told.push(kind(ours.read("w").owner("ann").acquire().await));
    drop((reader, mine, again));
    ours.close().await;
    theirs.close().await;
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn it_answers_as_a_real_server_does() {
    let (real, ours) = (common::Server::start(), Server::new());
    assert_eq!(story(ours.url()).await, story(real.url()).await);
}
