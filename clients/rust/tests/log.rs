//! The library's log by `tracing`, and the causes and counts that go with it.

mod common;

use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use common::door::Door;
use common::{NOWHERE, PATIENCE, Server, eventually, work_on_a_thread};
use redislock_client::hooks::Counters;
use redislock_client::{Locks, Loss};
use tokio::time::{sleep, timeout};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const SECOND: Duration = Duration::from_secs(1);

type Lines = Mutex<Vec<(Level, String)>>;

/// All that was logged by the tests of this file.
static LINES: LazyLock<&'static Lines> = LazyLock::new(|| {
    let lines: &Lines = Box::leak(Box::default());
    tracing::subscriber::set_global_default(Kept(lines)).unwrap();
    lines
});

struct Kept(&'static Lines);

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("redislock_client")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push((*event.metadata().level(), message.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The lines of this level that name this.
fn lines(level: Level, word: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    lines
        .iter()
        .filter(|(its, line)| *its == level && line.contains(word))
        .map(|(_, line)| line.clone())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_names_the_locks_under_which_the_program_works() {
    assert!(lines(Level::WARN, "'works-on'").is_empty());
    let server = Server::start();
    let locks = server.locks();
    let working = work_on_a_thread(locks.lock("works-on"), SECOND).await;
    locks.close_timeout(SECOND / 10).await;
    locks.close().await;
    let told = lines(Level::WARN, "closed while work under 'works-on' runs");
    assert_eq!(told.len(), 1, "{told:?}");
    working.await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_logged_once_at_its_begin_and_once_at_its_end() {
    assert!(lines(Level::WARN, "'outage'").is_empty());
    let (server, counters) = (Server::start(), Arc::new(Counters::default()));
    let locks = Locks::builder().server(server.url()).hooks(counters.clone()).build().unwrap();
    let guard = locks.lock("outage").lease(9 * SECOND).acquire().await.unwrap();
    sleep(2 * SECOND).await;
    server.signal("STOP");
    eventually("a renewal fails", || counters.renewal_failures.get() > 0).await;
    server.signal("CONT");
    eventually("it is renewed", || lines(Level::WARN, "'outage'").len() > 1).await;
    let told = lines(Level::WARN, "'outage'");
    let address = format!("127.0.0.1:{}", server.port);
    assert!(told[0].starts_with("could not renew lock 'outage'") && told[0].contains(&address), "{told:?}");
    assert!(told[0].contains("no reply for"), "{told:?}");
    assert!(told[1].starts_with("renewed lock 'outage' after "), "{told:?}");
    assert_eq!(lines(Level::INFO, &address), [format!("reconnected to {address}")]);
    assert_eq!(counters.reconnects.get(), 1);
    guard.check().unwrap();
    assert!(guard.cause().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_logged_with_its_cause_and_as_an_error_without_a_listener() {
    assert!(lines(Level::WARN, "'told'").is_empty());
    let mut server = Server::start();
    let (locks, address) = (server.locks(), format!("127.0.0.1:{}", server.port));
    let guard = locks.lock("told").lease(2 * SECOND).acquire().await.unwrap();
    let untold = locks.lock("untold").lease(2 * SECOND).acquire().await.unwrap();
    server.kill();
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), Some(Loss::Deadline));
    assert!(guard.cause().unwrap().to_string().contains(&address));
    let lost = guard.release().await.unwrap_err();
    assert!(lost.source().unwrap().to_string().contains(&address), "{lost}");
    let away = Locks::open(NOWHERE[0]).unwrap().lock("k").wait(Duration::ZERO).acquire().await.unwrap_err();
    assert!(away.source().expect("the driver's error").to_string().contains("refused"), "{away}");
    eventually("it is logged", || !lines(Level::WARN, "lost lock 'told'").is_empty()).await;
    let told = lines(Level::WARN, "lost lock 'told'");
    assert!(told.len() == 1 && told[0].contains("(deadline)") && told[0].contains(&address), "{told:?}");
    eventually("it is lost", || !lines(Level::WARN, "lost lock 'untold'").is_empty()).await;
    assert!(lines(Level::ERROR, "told'").is_empty());
    drop(untold);
    assert!(lines(Level::ERROR, "'told'").is_empty());
    assert_eq!(lines(Level::ERROR, "'untold'").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_its_own_client_holds_is_logged_after_a_second() {
    assert!(lines(Level::WARN, "'twice'").is_empty());
    let locks = Server::start();
    let (server, locks) = (&locks, locks.locks());
    let _guard = locks.lock("twice").acquire().await.unwrap();
    let _other = server.locks().lock("apart").acquire().await.unwrap();
    let twice = (0..8).map(|_| tokio::spawn(timeout(3 * SECOND, acquired(locks.lock("twice")))));
    let waits: Vec<_> =
        twice.chain([tokio::spawn(timeout(3 * SECOND, acquired(locks.lock("apart"))))]).collect();
    for wait in waits {
        assert!(wait.await.unwrap().is_err());
    }
    let told = lines(Level::WARN, "'twice'");
    assert!(told.len() == 1 && told[0].contains("this client itself has held"), "{told:?}");
    assert!(lines(Level::WARN, "'apart'").is_empty());
}

async fn acquired(lock: redislock_client::Lock) {
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_is_logged_with_who_holds_the_lock() {
    assert!(lines(Level::WARN, "'long'").is_empty());
    let server = Server::start();
    let _guard = server.locks().lock("long").owner("night-job").acquire().await.unwrap();
    let locks = server.locks();
    let waits: Vec<_> = [&["long"][..], &["long", "too"]]
        .map(|names| tokio::spawn(timeout(33 * SECOND, acquired(locks.many(names)))))
        .into();
    for wait in waits {
        assert!(wait.await.unwrap().is_err());
    }
    let told = lines(Level::WARN, "waiting for lock 'long");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(" for 30s: held by night-job for "), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_grants_nothing_yet_is_logged_once() {
    assert!(lines(Level::WARN, "'replica'").is_empty());
    let (primary, replica) = (Server::start(), Server::start());
    replica.follow(&primary);
    let door = Door::to(&replica);
    let locks = door.locks();
    for _ in 0..2 {
        assert!(timeout(SECOND, locks.lock("replica").acquire()).await.is_err());
    }
    let told = lines(Level::WARN, "'replica'");
    assert!(told.len() == 1 && told[0].contains("READONLY"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_is_too_old_is_logged_once_for_a_server() {
    assert!(lines(Level::WARN, "is version").is_empty());
    let server = Server::start();
    let (door, new) = (Door::to(&server), Door::to(&server));
    // The module says 300, which is 0.3.0.
    door.change("$3\r\nver\r\n:300\r\n", "$3\r\nver\r\n:209\r\n");
    let locks = door.locks();
    let old = format!("{} is version 0.2.9", door.url().trim_start_matches("redis://"));
    for _ in 0..2 {
        assert_eq!(locks.ping().await.unwrap(), "0.2.9");
        door.cut();
    }
    assert_eq!(new.locks().ping().await.unwrap(), env!("CARGO_PKG_VERSION"));
    let told = lines(Level::WARN, &old);
    assert_eq!(
        told,
        [format!("the module redislock on {old}, and this client needs 0.3.0 or later: upgrade the module")]
    );
    let new = format!("{} is version", new.url().trim_start_matches("redis://"));
    assert_eq!(lines(Level::WARN, &new), [""; 0]);
}
