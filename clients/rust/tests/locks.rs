//! Locks of one server, over a runtime with several threads, as most programs have it.

mod common;

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, eventually};
use futures_util::future::FutureExt;
use redislock_client::hooks::{Counters, Hooks};
use redislock_client::{Error, Guard, Locks, Loss};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// Polls it once, outside of any runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("it ends at once")
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_and_a_release_frees_the_lock() {
    let server = Server::start();
    let locks = server.locks();
    let first = locks.lock("k").acquire().await.unwrap();
    assert!(first.remaining() > 29 * SECOND && first.check().is_ok());
    assert!(server.is_held("k"));
    let (token, hold) = (first.token(), first.hold());
    first.release().await.unwrap();
    assert!(!server.is_held("k"));
    assert!(matches!(hold.check(), Err(Error::LockLost { reason: Loss::Release, .. })));
    assert_eq!(hold.lost().await, None);
    assert!(locks.lock("k").acquire().await.unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_is_dropped_gives_the_lock_up_before_the_next_request() {
    let server = Server::start();
    let locks = server.locks();
    for _ in 0..200 {
        drop(locks.lock("k").wait(Duration::ZERO).acquire().await.unwrap());
    }
    eventually("it is free", || !server.is_held("k")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_in_vain_ends_in_time() {
    let server = Server::start();
    let locks = server.locks();
    let _guard = locks.lock("k").acquire().await.unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(200)] {
        let began = Instant::now();
        let refused = locks.lock("k").wait(wait).acquire().await.unwrap_err();
        assert!(matches!(refused, Error::LockTimeout { .. }), "{refused}");
        assert!(began.elapsed() >= wait);
    }
    eventually("nobody waits", || server.waiters("k") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_shorter_than_the_quarantine_says_so() {
    let server = Server::with(&["quarantine", "600000"]);
    let locks = server.locks();
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        for lock in [locks.lock("a"), locks.many(["a", "b"])] {
            let refused = lock.lease(Duration::from_secs(3)).wait(wait).acquire().await.unwrap_err();
            assert!(matches!(refused, Error::Quarantine { left, .. } if left.as_secs() > 500), "{refused}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn futures_that_are_dropped_leave_nothing() {
    let server = Server::start();
    let locks = server.locks();
    let lock = |name: &str| locks.lock(name).lease(20 * PATIENCE);
    for number in 0..200_u64 {
        // Before the request, while it is on its way, and about when it is answered.
        drop(timeout(Duration::from_micros(number * 5), lock("free").acquire()).await);
    }
    for number in 0..100_u64 {
        let guard = lock("busy").acquire().await.unwrap();
        let waits = lock("busy");
        let waits = tokio::spawn(async move { waits.acquire().await });
        eventually("it waits", || server.waiters("busy") == 1).await;
        // About when it is granted.
        let released = tokio::spawn(guard.release());
        sleep(Duration::from_micros(number * 10)).await;
        waits.abort();
        released.await.unwrap().unwrap();
        drop(waits.await);
        eventually("all is free", || !server.is_held("busy") && server.waiters("busy") == 0).await;
    }
    eventually("all is free", || !server.is_held("free")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_many_threads_are_served_one_after_the_other_without_delay() {
    const TASKS: u64 = 300;
    let server = Server::start();
    let locks = server.locks();
    let first = locks.lock("k").acquire().await.unwrap();
    let inside = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (lock, inside) = (locks.lock("k"), inside.clone());
        tasks.spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        });
    }
    eventually("they wait", || server.waiters("k") >= 16).await;
    let began = Instant::now();
    first.release().await.unwrap();
    tasks.join_all().await;
    // If the server's order were not that of the calls, each turn might take as long as a place is kept for.
    assert!(began.elapsed() < PATIENCE, "{TASKS} were served in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_sees_the_deadlock_of_an_owner_though_the_process_queues_all_it_may() {
    let server = Server::start();
    for names in [vec!["theirs"], vec!["theirs", "free"]] {
        let locks = Locks::builder().server(server.url()).max_queued_per_lock(1).build().unwrap();
        let hold = locks.lock("mine").owner("ann").acquire().await.unwrap();
        let _: i64 = server.ask(&["LOCK.ACQUIRE", "theirs", "ben", "PX", "60000"]);
        let _: Option<i64> = server.ask(&["LOCK.ACQUIRE", "mine", "ben", "PX", "60000", "QUEUE", "60000"]);
        let mut others = JoinSet::new();
        for _ in 0..3 {
            let lock = locks.many(names.clone());
            others.spawn(async move { drop(lock.acquire().await) });
        }
        eventually("one of them waits", || server.waiters("theirs") == 1).await;
        let refused = locks.many(names).owner("ann").wait(20 * SECOND).acquire().await.unwrap_err();
        assert!(matches!(refused, Error::Deadlock { .. }), "{refused}");
        assert_eq!(server.waiters("theirs"), 1);
        others.shutdown().await;
        hold.release().await.unwrap();
        for name in ["mine", "theirs"] {
            let _: i64 = server.ask(&["LOCK.RELEASE", name, "ben"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_sees_the_deadlock_of_an_owner_whose_hold_begins_while_it_waits_for_a_connection() {
    let (server, counters) = (Server::start(), Arc::new(Counters::default()));
    let builder = Locks::builder().server(server.url()).max_queued_per_lock(1).hooks(counters.clone());
    let (locks, names, mut waits) = (builder.build().unwrap(), ["theirs", "free"], JoinSet::new());
    let _: i64 = server.ask(&["LOCK.ACQUIRE", "theirs", "ben", "PX", "60000"]);
    for (number, lock) in (1..).zip([locks.many(names), locks.many(names).owner("ann")]) {
        waits.spawn(async move { drop(lock.acquire().await) });
        let is_waiting = || counters.waits.get() == number && server.waiters("theirs") == 1;
        eventually("it waits", is_waiting).await;
    }
    sleep(SECOND / 50).await;
    assert_eq!(server.waiters("theirs"), 1, "the second has no connection");
    let hold = locks.lock("mine").owner("ann").acquire().await.unwrap();
    eventually("the second has a connection", || server.waiters("theirs") == 2).await;
    let refused = server.locks().lock("mine").owner("ben").wait(20 * SECOND).acquire().await.unwrap_err();
    assert!(matches!(refused, Error::Deadlock { .. }), "{refused}");
    waits.shutdown().await;
    hold.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_reported_at_once_and_ends_the_work() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.lock("k").acquire().await.unwrap();
    let told = tokio::spawn(guard.lost());
    sleep(Duration::from_millis(100)).await;
    assert!(!told.is_finished());
    let began = Instant::now();
    server.ask::<i64>(&["DEL", "k"]);
    let ended = guard.run(sleep(PATIENCE)).await;
    assert!(matches!(ended, Err(Error::LockLost { reason: Loss::Push, .. })), "{ended:?}");
    assert!(began.elapsed() < PATIENCE / 3);
    assert_eq!(told.await.unwrap(), Some(Loss::Push));
    assert!(matches!(guard.release().await, Err(Error::LockLost { .. })));
}

#[tokio::test]
async fn work_does_not_begin_after_the_hold_has_ended() {
    let server = Server::start();
    let locks = server.locks();
    let released = locks.lock("released").acquire().await.unwrap();
    let ended = locks.lock("ended").lease(SECOND / 2).renew(false).acquire().await.unwrap();
    let holds = [released.hold(), ended.hold()];
    released.release().await.unwrap();
    std::thread::sleep(SECOND); // so that nobody in this runtime notices the deadline before
    for hold in holds {
        let begun = AtomicU64::new(0);
        let done = hold.run(async { begun.fetch_add(1, Ordering::SeqCst) }).await;
        assert!(matches!(done, Err(Error::LockLost { .. })), "{done:?}");
        assert_eq!(begun.into_inner(), 0, "the work of {} has begun", hold.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_body_returns_comes_out() {
    #[derive(Debug, PartialEq)]
    enum Own {
        Body,
        Lock,
    }
    impl From<Error> for Own {
        fn from(_: Error) -> Self {
            Self::Lock
        }
    }
    let server = Server::start();
    let lock = server.locks().lock("k").wait(Duration::ZERO);
    assert_eq!(lock.run(async |hold| Ok::<_, Own>(hold.token() > 0)).await, Ok(true));
    assert_eq!(lock.run(async |_| Err::<(), _>(Own::Body)).await, Err(Own::Body));
    let other = server.locks().lock("k").acquire().await.unwrap();
    assert_eq!(lock.run(async |_| Ok(())).await, Err(Own::Lock));
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_beyond_its_lease_and_no_longer_than_the_longest_hold() {
    let server = Server::start();
    let locks = server.locks();
    let lease = Duration::from_millis(600);
    let renewed = locks.lock("renewed").lease(lease).acquire().await.unwrap();
    let longest = locks.lock("longest").lease(2 * SECOND).max_hold(3 * SECOND).acquire().await.unwrap();
    let extended = locks.lock("extended").lease(lease).renew(false).acquire().await.unwrap();
    extended.extend(PATIENCE).await.unwrap();
    let left = locks.lock("left").lease(lease).renew(false).acquire().await.unwrap();
    assert_eq!(timeout(PATIENCE, left.lost()).await.unwrap(), Some(Loss::Deadline));
    assert_eq!(timeout(PATIENCE, longest.lost()).await.unwrap(), Some(Loss::MaxHold));
    eventually("its last lease was cut", || !server.is_held("longest")).await;
    assert!(renewed.check().is_ok() && server.is_held("renewed"));
    assert!(extended.remaining() > PATIENCE / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_a_password_is_logged_in_everywhere() {
    let server = Server::start();
    let words = ["ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all"];
    server.ask::<String>(&words);
    let url = format!("redis://ann:secret@127.0.0.1:{}", server.port);
    let locks = Locks::from(redislock_client::redis::Client::open(url).unwrap());
    let guard = locks.many(["a", "b"]).acquire().await.unwrap();
    let other = locks.clone();
    let waits = tokio::spawn(async move { other.many(["b", "c"]).wait(PATIENCE).acquire().await });
    eventually("it waits", || server.waiters("b") == 1).await;
    guard.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    let wrong = Locks::open(format!("redis://ann:wrong@127.0.0.1:{}", server.port)).unwrap();
    let refused = timeout(PATIENCE, wrong.lock("k").acquire()).await.unwrap().unwrap_err();
    assert!(matches!(refused, Error::LoginRefused { .. }), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn close_gives_up_all_tells_holders_and_refuses_more() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.lock("k").acquire().await.unwrap();
    let (hold, deposed) = (guard.hold(), Arc::new(Mutex::new(Vec::new())));
    let working = tokio::spawn(async move { hold.run(pending::<()>()).await });
    let told = deposed.clone();
    let candidate = locks.leader("job").on_deposed(move |loss| told.lock().unwrap().push(loss));
    let leader = candidate.stand().unwrap();
    eventually("it leads", || leader.is_leading()).await;
    let other = locks.clone();
    let waits = tokio::spawn(async move { other.lock("k").acquire().await });
    let other = locks.clone();
    let blocked = tokio::spawn(async move { other.many(["k", "l"]).acquire().await });
    eventually("they wait", || server.waiters("k") == 2).await;
    locks.close().await;
    assert!(matches!(waits.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(blocked.await.unwrap(), Err(Error::Closed)));
    assert_eq!(guard.loss(), Some(Loss::Close));
    assert!(matches!(working.await.unwrap(), Err(Error::LockLost { reason: Loss::Close, .. })));
    eventually("it is deposed", || *deposed.lock().unwrap() == [Loss::Close]).await;
    leader.resign().await;
    eventually("all is free", || !server.is_held("job") && !server.is_held("k") && server.waiters("k") == 0)
        .await;
    assert!(matches!(locks.lock("k").acquire().await, Err(Error::Closed)));
    let clients = || server.ask::<String>(&["CLIENT", "LIST"]).lines().count();
    eventually("no connection is open but our own", || clients() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_while_the_locks_are_closed_is_reported_and_given_up() {
    struct Slow(Arc<AtomicU64>);
    impl Hooks for Slow {
        fn granted(&self, _: &str, _: Duration) {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(SECOND / 4);
        }
    }
    let (server, grants) = (Server::start(), Arc::new(AtomicU64::new(0)));
    let locks = Locks::builder().server(server.url()).hooks(Arc::new(Slow(grants.clone()))).build().unwrap();
    let lock = locks.lock("k");
    let taking = tokio::spawn(async move { lock.acquire().await });
    // The hook may keep the runtime's timers waiting, too.
    let end = Instant::now() + PATIENCE;
    while grants.load(Ordering::SeqCst) == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    locks.close().await;
    let told = taking.await.unwrap().map(|guard| guard.loss());
    assert!(
        matches!(told, Ok(Some(Loss::Close)) | Err(Error::LockLost { reason: Loss::Close, .. })),
        "{told:?}"
    );
    eventually("it is given up", || !server.is_held("k")).await;
}

#[test]
fn guards_that_outlive_their_runtime_do_no_harm() {
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    let (locks, guard): (Locks, Guard) = runtime.block_on(async {
        let locks = server.locks();
        let guard = locks.lock("k").lease(SECOND).acquire().await.unwrap();
        let other = locks.lock("task").acquire().await.unwrap();
        drop(tokio::spawn(async move {
            sleep(PATIENCE).await;
            drop(other);
        }));
        (locks, guard)
    });
    runtime.shutdown_timeout(PATIENCE);
    drop(guard);
    drop(locks);
}

#[test]
fn a_runtime_that_comes_after_another_renews_what_it_holds() {
    let server = Server::start();
    let locks = server.locks();
    for _ in 0..2 {
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let guard = locks.lock("k").lease(SECOND).wait(PATIENCE).acquire().await.unwrap();
            sleep(2 * SECOND).await;
            guard.check().unwrap();
        });
        runtime.shutdown_timeout(PATIENCE);
    }
}

/// These locks were used in another runtime first, which ends while this one holds.
fn held_when_the_first_runtime_ends(server: &Server, lease: Duration) -> (Runtime, Locks, Guard) {
    let locks = server.locks();
    let [first, second] = [Runtime::new().unwrap(), Runtime::new().unwrap()];
    first.block_on(async { locks.lock("other").acquire().await.unwrap().release().await.unwrap() });
    let guard = second.block_on(locks.lock("k").lease(lease).acquire()).unwrap();
    first.shutdown_timeout(PATIENCE);
    (second, locks, guard)
}

#[test]
fn run_renews_what_is_held_when_another_runtime_ends() {
    let server = Server::start();
    let (runtime, _locks, guard) = held_when_the_first_runtime_ends(&server, SECOND);
    runtime.block_on(async { guard.run(sleep(3 * SECOND)).await }).unwrap();
    assert!(server.is_held("k"));
}

#[test]
fn a_loss_is_reported_when_another_runtime_has_ended() {
    let server = Server::start();
    let (runtime, _locks, guard) = held_when_the_first_runtime_ends(&server, 3 * SECOND);
    server.ask::<i64>(&["DEL", "k"]);
    let lost = runtime.block_on(async { timeout(PATIENCE, guard.lost()).await.unwrap() });
    assert!(lost.is_some());
    let (runtime, _locks, guard) = held_when_the_first_runtime_ends(&server, SECOND);
    std::thread::sleep(2 * SECOND);
    let ended = runtime.block_on(async { guard.run(sleep(PATIENCE)).await });
    assert!(matches!(ended, Err(Error::LockLost { reason: Loss::Deadline, .. })), "{ended:?}");
}

#[test]
fn a_guard_that_is_dropped_gives_the_lock_up_when_another_runtime_has_ended() {
    let server = Server::start();
    let (runtime, _locks, guard) = held_when_the_first_runtime_ends(&server, 20 * PATIENCE);
    runtime.block_on(async {
        drop(guard);
        eventually("it is free", || !server.is_held("k")).await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_panics_does_no_harm() {
    struct Panics;
    impl Hooks for Panics {
        fn granted(&self, _: &str, _: Duration) {
            panic!("on purpose");
        }
        fn lost(&self, _: &str, _: Duration, _: Loss) {
            panic!("on purpose");
        }
    }
    let server = Server::start();
    let lease = 3 * SECOND;
    let locks = Locks::builder().server(server.url()).hooks(Arc::new(Panics)).lease(lease).build().unwrap();
    let (lost, kept) =
        (locks.lock("lost").acquire().await.unwrap(), locks.lock("kept").acquire().await.unwrap());
    server.ask::<i64>(&["DEL", "lost"]);
    assert!(timeout(PATIENCE, lost.lost()).await.unwrap().is_some());
    sleep(lease + SECOND).await;
    assert!(kept.check().is_ok(), "it was not renewed");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_are_held_and_renewed_with_few_tasks_and_connections() {
    const LOCKS: usize = 10_000;
    let server = Server::start();
    // Long enough for a busy machine to renew all of them within a third of it.
    let lease = 30 * SECOND;
    let locks = Locks::builder().server(server.url()).lease(lease).build().unwrap();
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(locks.lock(format!("k{number}")).acquire().await.unwrap());
    }
    // Without renewals none would be held by then.
    sleep(lease + SECOND).await;
    for guard in &guards {
        guard.check().unwrap();
    }
    let info = server.ask::<String>(&["INFO", "redislock"]);
    assert!(info.contains(&format!("redislock_holds:{LOCKS}\r")), "{info}");
    let connections = server.ask::<String>(&["CLIENT", "LIST"]).lines().count();
    assert!(connections < 10, "{connections} connections");
    // While some are renewed, each renewal that is under way has a task.
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    eventually("only a few tasks are left between renewals", || tasks() < 20).await;
    drop(guards);
    let is_free = || server.ask::<String>(&["INFO", "redislock"]).contains("redislock_holds:0\r");
    eventually("all are given up", is_free).await;
}

#[test]
fn a_request_outside_of_a_runtime_is_refused() {
    let server = Server::start();
    let (locks, runtime) = (server.locks(), Runtime::new().unwrap());
    let guard = runtime.block_on(locks.lock("k").acquire()).unwrap();
    let is_invalid = |refused: Error| assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    is_invalid(block_on(locks.lock("l").acquire()).unwrap_err());
    is_invalid(block_on(locks.check_token("k", guard.token())).unwrap_err());
    is_invalid(block_on(locks.ping()).unwrap_err());
    is_invalid(block_on(guard.extend(SECOND)).unwrap_err());
    is_invalid(block_on(guard.release()).unwrap_err());
    // It was given up in the background all the same.
    runtime.block_on(eventually("it is free", || !server.is_held("k")));
}

#[test]
fn what_makes_no_sense_is_refused_without_a_server() {
    assert!(matches!(Locks::builder().build(), Err(Error::Invalid { .. })));
    assert!(matches!(Locks::open("no address"), Err(Error::Invalid { .. })));
    assert!(matches!(Locks::builder().cluster(Vec::<String>::new()).build(), Err(Error::Invalid { .. })));
}
