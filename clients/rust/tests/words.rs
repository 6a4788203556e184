//! The meaning of the words of the library that every language has.

mod common;

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use common::door::Door;
use common::{PATIENCE, Server, eventually, independent};
use redislock_client::{Error, Locks};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_try_gets_the_guard_or_nothing_and_leaves_no_waiter() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.lock("k").try_acquire().await.unwrap().expect("it is free");
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
    assert_eq!(server.waiters("k"), 0);
    guard.release().await.unwrap();
    assert!(!server.is_held("k"));
    server.ask::<String>(&["SET", "value", "1"]);
    let refused = locks.lock("value").try_acquire().await;
    assert!(matches!(refused, Err(Error::ServerRefused { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_at_independent_servers_is_nothing_only_where_a_majority_says_so() {
    let mut servers = [Server::start(), Server::start(), Server::start()];
    let (locks, others) = (independent(servers.each_ref()), independent(servers.each_ref()));
    let guard = locks.lock("k").try_acquire().await.unwrap().expect("it is free");
    assert!(others.lock("k").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    servers[0].kill();
    servers[1].kill();
    let told = others.lock("k").try_acquire().await;
    assert!(matches!(told, Err(Error::ConnectionFailed { .. })), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn info_names_holders_and_waiters_and_nothing_of_a_free_lock() {
    let server = Server::start();
    let locks = Locks::builder().server(server.url()).label("worker 7").build().unwrap();
    assert_eq!(locks.info("k").await.unwrap(), None);
    let guard = locks.semaphore("k", 1).lease(20 * SECOND).acquire().await.unwrap();
    let next = locks.semaphore("k", 1).owner("next");
    let waiting = tokio::spawn(async move { next.acquire().await });
    eventually("it waits", || server.waiters("k") == 1).await;
    let info = locks.info("k").await.unwrap().expect("it is held");
    assert_eq!((&*info.kind, info.limit, info.holds, info.waiters), ("limit", Some(1), 1, 1));
    let [holder] = &info.holders[..] else { panic!("{info:?}") };
    assert_eq!((&holder.owner, holder.token), (&guard.owner(), guard.token()));
    assert!(holder.owner.starts_with("worker 7:"), "{holder:?}");
    assert!(holder.left > Duration::ZERO && holder.left <= 20 * SECOND, "{holder:?}");
    assert_eq!(info.queue.iter().map(|waiter| &*waiter.owner).collect::<Vec<_>>(), ["next"]);
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let alone = locks.lock("e").acquire().await.unwrap();
    assert_eq!(locks.info("e").await.unwrap().expect("it is held").limit, None);
    alone.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_stands_before_each_name_on_the_server_alone() {
    let server = Server::start();
    let locks = Locks::builder().server(server.url()).prefix("lock:").lease(SECOND).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    let both = locks.many(["a", "b"]).acquire().await.unwrap();
    let mut keys: Vec<String> = server.ask(&["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, ["lock:a", "lock:b", "lock:k"]);
    assert_eq!((guard.name(), both.name()), ("k".to_owned(), "a, b".to_owned()));
    locks.check_token("k", guard.token()).await.unwrap();
    assert!(locks.info("k").await.unwrap().is_some());
    let next = locks.lock("k");
    let waiting = tokio::spawn(async move { next.acquire().await });
    eventually("it waits", || server.waiters("lock:k") == 1).await;
    sleep(2 * SECOND).await;
    guard.check().unwrap();
    server.ask::<i64>(&["DEL", "lock:a"]);
    both.lost().await.expect("it is lost");
    let lost = both.check().unwrap_err().to_string();
    assert!(lost.starts_with("lost lock 'a, b' "), "{lost}");
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let empty = locks.lock("").acquire().await.unwrap_err();
    assert!(matches!(empty, Error::Invalid { .. }), "{empty}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_asks_for_another_mode_gets_an_error_that_it_holds_the_lock() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.read("k").owner("ann").acquire().await.unwrap();
    let refused = locks.write("k").owner("ann").acquire().await.unwrap_err();
    assert!(matches!(refused, Error::AlreadyHeld { .. }), "{refused}");
    locks.check_token("k", guard.token()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_without_an_end_fails_when_no_server_answers_for_the_server_timeout() {
    let mut server = Server::start();
    let locks = Locks::builder().server(server.url()).server_timeout(SECOND).build().unwrap();
    locks.ping().await.unwrap();
    server.kill();
    let began = std::time::Instant::now();
    let failed = locks.lock("k").acquire().await.unwrap_err();
    assert!(matches!(failed, Error::ConnectionFailed { .. }), "{failed}");
    assert!(began.elapsed() < PATIENCE / 3, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_to_a_shorter_lease_is_renewed_for_that_below_a_longest_hold_too() {
    let server = Server::start();
    let locks = server.locks();
    let guard = locks.lock("k").lease(60 * SECOND).max_hold(120 * SECOND).acquire().await.unwrap();
    guard.extend(3 * SECOND).await.unwrap();
    sleep(2 * SECOND).await;
    let info = locks.info("k").await.unwrap().expect("it is held");
    assert!(info.holders[0].left <= 3 * SECOND, "{info:?}");
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_says_that_the_module_is_missing() {
    let bare = Server::bare();
    let told = bare.locks().ping().await;
    assert!(matches!(told, Err(Error::ModuleMissing { .. })), "{told:?}");
}

/// The error of a ping, in the words for people.
async fn ping_failure(locks: &Locks) -> (bool, String) {
    let failed = locks.ping().await.unwrap_err();
    (matches!(failed, Error::ConnectionFailed { .. }), failed.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_fails_where_no_lock_could_be_asked_for() {
    let (server, replica) = (Server::start(), Server::start());
    replica.follow(&server);
    let (is_connection, told) = ping_failure(&replica.locks()).await;
    assert!(is_connection && told.contains("READONLY") && told.contains("is a replica"), "{told}");

    let door = Door::to(&server);
    let locks = door.locks();
    locks.ping().await.unwrap();
    server.ask::<String>(&["SET", "redislock:ping", "x"]);
    door.change("-WRONGTYPE Operation", "-LOADING   Operation");
    let (is_connection, told) = ping_failure(&locks).await;
    assert!(is_connection && told.contains("LOADING"), "{told}");

    for rights in [&["~app:*", "-lock.fence"][..], &["~other:*"]] {
        let words = ["ACL", "SETUSER", "ann", "reset", "on", ">secret", "+@all"];
        server.ask::<String>(&[&words[..], rights].concat());
        let url = server.url().replace("//", "//ann:secret@");
        let locks = Locks::builder().server(url).prefix("app:").build().unwrap();
        let (is_connection, told) = ping_failure(&locks).await;
        assert!(!is_connection && told.contains("NOPERM") && told.contains("LOCK.FENCE"), "{told}");
        server.ask::<String>(&["ACL", "SETUSER", "ann", "~app:*", "+lock.fence"]);
        locks.ping().await.unwrap();
    }
}

/// Methods of public types, variants of public enums and functions of modules, as `Lock::wait`, `Error::Fenced` and
/// `redlock::builder`, by the sources.
fn exported() -> HashSet<String> {
    let mut found = HashSet::new();
    for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = file.unwrap().path();
        let (text, module) = (fs::read_to_string(&path).unwrap(), path.file_stem().unwrap().to_owned());
        let (mut of, mut is_enum) = (String::new(), false);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("impl ").or_else(|| line.strip_prefix("pub enum ")) {
                (of, is_enum) = (name.trim_end_matches(" {").to_owned(), line.starts_with("pub"));
            } else if line.starts_with('}') {
                (of, is_enum) = (String::new(), false);
            }
            let item = if line.starts_with("pub fn ") {
                (of, is_enum) = (module.to_string_lossy().into_owned(), false);
                line
            } else if let Some(item) = line.strip_prefix("    ") {
                item
            } else {
                continue;
            };
            let function = item.strip_prefix("pub ").map(|rest| rest.trim_start_matches("async "));
            let name = match function.and_then(|rest| rest.strip_prefix("fn ")) {
                Some(name) => name,
                None if is_enum => item,
                None => continue,
            };
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            found.insert(format!("{of}::{}", &name[..end]));
        }
    }
    found
}

#[test]
fn the_words_are_those_of_the_table_of_all_client_libraries() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/client-words.md");
    let (exported, mut column, mut words) = (exported(), None, 0);
    for line in fs::read_to_string(page).unwrap().lines() {
        let cells: Vec<_> = line.split(" | ").collect();
        if line.starts_with("| concept |") {
            column = cells.iter().position(|cell| *cell == "Rust");
        } else if let Some(column) = column.filter(|_| line.starts_with("| ")) {
            let parts: Vec<_> = cells[column].split('`').collect();
            assert!(parts.len() > 1 || parts[0] == "-", "{line}");
            for pair in parts.chunks_exact(2) {
                let is_lacking = pair[0].trim() == "lacks";
                assert_eq!(exported.contains(pair[1]), !is_lacking, "{}", pair[1]);
                words += 1;
            }
        }
    }
    assert!(words > 50, "{words} words");
}
