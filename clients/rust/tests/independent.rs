//! Independent servers, of which too few answer.

mod common;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{NOWHERE, PATIENCE, Server, eventually, independent};
use redislock_client::{Error, Locks, redlock};
use tokio::time::timeout;

/// A lease that is long enough for a grant on a busy machine.
const LEASE: Duration = Duration::from_secs(60);

fn is_unreached(error: &Error) -> bool {
    matches!(error, Error::ConnectionFailed { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_from_servers_that_are_down_says_so() {
    let three = redlock::builder(NOWHERE).build().unwrap();
    let fenced = three.check_token("k", 1).await.unwrap_err();
    assert!(is_unreached(&fenced), "{fenced}");
    let cluster = Locks::builder().cluster(NOWHERE).build().unwrap();
    let watched = Locks::builder().sentinel(NOWHERE, "group").build().unwrap();
    for locks in [three, cluster, watched] {
        let told = locks.ping().await;
        assert!(told.as_ref().is_err_and(is_unreached), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_answers_for_all() {
    let mut servers = [Server::start(), Server::start(), Server::start()];
    let locks = independent(servers.each_ref());
    let guard = locks.lock("k").owner("me").lease(LEASE).wait(PATIENCE).acquire().await.unwrap();
    servers[2].kill();
    locks.check_token("k", guard.token()).await.unwrap();
    let dead = locks.check_token("k", guard.token() - 1).await;
    assert!(matches!(dead, Err(Error::Fenced { .. })), "{dead:?}");
    assert_eq!(locks.ping().await.unwrap(), env!("CARGO_PKG_VERSION"));
    servers[1].kill();
    for told in [locks.check_token("k", guard.token()).await, locks.ping().await.map(drop)] {
        assert!(told.as_ref().is_err_and(is_unreached), "{told:?}");
    }
    let released = guard.release().await;
    assert!(released.as_ref().is_err_and(is_unreached), "{released:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_without_the_module_fails_at_once() {
    let servers = [Server::start(), Server::bare(), Server::bare()];
    let locks = independent(servers.each_ref());
    let lock = locks.lock("k").lease(LEASE);
    for lock in [lock.clone(), lock.clone().wait(PATIENCE), lock.wait(Duration::ZERO)] {
        let refused = timeout(PATIENCE / 2, lock.acquire()).await.unwrap().unwrap_err();
        assert!(matches!(refused, Error::ModuleMissing { .. }), "{refused}");
    }
    for told in [locks.check_token("k", 1).await, locks.ping().await.map(drop)] {
        assert!(matches!(told, Err(Error::ModuleMissing { .. })), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_without_end_gives_up_when_a_majority_is_out_of_reach() {
    let server = Server::start();
    let locks = redlock::builder([&server.url(), NOWHERE[0], NOWHERE[1]]).build().unwrap();
    let began = Instant::now();
    let refused = timeout(2 * PATIENCE, locks.lock("k").acquire()).await.unwrap().unwrap_err();
    assert!(is_unreached(&refused), "{refused}");
    assert!(began.elapsed() > Duration::from_secs(9), "{:?}", began.elapsed());
}

#[test]
fn one_server_counts_but_once() {
    let addresses = ["redis://127.0.0.1:6379", "redis://127.0.0.1:6380", "redis://:secret@127.0.0.1:6379/1"];
    let refused = redlock::builder(addresses).build().unwrap_err().to_string();
    assert_eq!(refused, "independent servers must differ: 127.0.0.1:6379 is named twice");
}

#[test]
fn a_majority_is_of_three_servers_or_more_and_an_odd_number() {
    let built = |number: u16| {
        let addresses: Vec<_> = (1..=number).map(|port| format!("redis://127.0.0.1:{port}")).collect();
        redlock::builder(addresses).build().map(drop)
    };
    for number in [0, 1, 2, 4, 6] {
        let refused = built(number).unwrap_err().to_string();
        assert_eq!(refused, format!("redlock takes an odd number of servers, 3 or more, not {number}"));
    }
    for number in [3, 5, 7] {
        built(number).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_two_names_counts_but_once() {
    let (server, other) = (Server::start(), Server::start());
    let names = [server.url(), server.url().replace("127.0.0.1", "localhost")];
    for third in [NOWHERE[0].to_owned(), other.url()] {
        let locks = redlock::builder(names.iter().chain([&third]).cloned()).build().unwrap();
        for wait in [Duration::ZERO, PATIENCE] {
            let lock = locks.lock("k").lease(LEASE).wait(wait);
            // The other server grants last: with one of the two names it would be a majority.
            other.ask::<()>(&["CLIENT", "PAUSE", "1000", "WRITE"]);
            let told = timeout(PATIENCE / 2, lock.acquire()).await.unwrap().unwrap_err();
            let both = format!("127.0.0.1:{0} and localhost:{0} are one server", server.port);
            assert_eq!(told.to_string(), format!("independent servers must differ: {both}"));
            assert!(matches!(told, Error::Invalid { .. }));
            eventually("nothing is held", || !server.is_held("k") && !other.is_held("k")).await;
        }
    }
}

/// Raises the newest token of this server; its next one is the one after it.
fn raise(server: &Server, token: u64) {
    let own = |name| server.ask::<u64>(&["LOCK.ACQUIRE", name, "me", "PX", "60000"]);
    own("raised");
    let words = ["LOCK.RENEW", "raised", "me", "PX", "60000", "RAISE", &token.to_string()];
    assert_eq!(server.ask::<u64>(&words), 1);
    assert_eq!(own("next"), token + 1);
}

/// A token that a server mints after this time.
fn token_in(time: Duration) -> u64 {
    let then = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + time;
    u64::try_from(then.as_micros()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_give_the_same_token_are_distinguished() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut last = token_in(PATIENCE);
    servers.iter().for_each(|server| raise(server, last));
    let locks = independent(servers.each_ref());
    for _ in 0..20 {
        let guard = locks.lock("k").lease(LEASE).wait(PATIENCE).acquire().await.unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_give_the_same_token_do_without_one_that_is_far_ahead() {
    let ahead = Server::with(&["max-token-lead", "86400000"]);
    let servers = [Server::start(), Server::start(), ahead];
    let (soon, late) = (token_in(PATIENCE), token_in(100 * PATIENCE));
    servers.iter().zip([soon, soon, late]).for_each(|(server, token)| raise(server, token));
    let locks = independent(servers.each_ref());
    let guard = locks.lock("k").lease(LEASE).wait(PATIENCE).acquire().await.unwrap();
    assert!((soon..late).contains(&guard.token()), "{}", guard.token());
    guard.release().await.unwrap();
}
