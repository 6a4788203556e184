//! Mistakes of a program, and the errors that it receives.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
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

/// The refusals without a server, and their words.
fn invalid<T>(made: Result<T, Error>) -> String {
    match made {
        Err(Error::Invalid { message, .. }) => message,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was taken"),
    }
}

#[test]
fn a_builder_refuses_numbers_out_of_their_range() {
    let built = |change: fn(Builder) -> Builder| invalid(change(Locks::builder().server(NOWHERE[0])).build());
    assert_eq!(built(|it| it.lease(Duration::ZERO)), "lease must be 100ms or more, not 0ns");
    assert_eq!(built(|it| it.lease(Duration::from_millis(99))), "lease must be 100ms or more, not 99ms");
    assert!(built(|it| it.max_queued_per_lock(0)).starts_with("max_queued_per_lock must be from 1 to "));
    assert!(built(|it| it.max_queued_per_lock(usize::MAX)).ends_with(", not 18446744073709551615"));
}

#[test]
fn a_builder_refuses_what_does_not_go_together() {
    let password = "secret";
    let addresses = [format!("127.0.0.1:6379/{password}"), format!("http://ann:{password}@host")];
    for told in addresses.map(|address| invalid(Locks::open(address))) {
        assert!(told.contains("an address is redis://host:port") && !told.contains(password), "{told}");
    }
    for address in ["", "redis://", "redis://host:0", "redis://host/-1", "redis://host/nine", "redis://[::]"]
    {
        invalid(Locks::open(address));
    }
    assert!(Locks::open(("host", 0)).is_err());
    for part in ["?timeout=3", "?protocol=resp2", "?db=1", "#secret", "?secret@host", "/0?secret=1#secret"] {
        for scheme in ["redis", "valkey"] {
            let told = invalid(Locks::open(format!("{scheme}://ann:{password}@host{part}")));
            assert!(told.starts_with("an address has ") && !told.contains(password), "{told}");
        }
    }
    for address in ["redis://host/1?protocol=resp3", "unix:///run/redis.sock?db=1&user=ann&pass=secret"] {
        assert!(Locks::open(address).is_ok(), "{address}");
    }
    if cfg!(feature = "tls") {
        assert!(Locks::open("rediss://ann:secret@host:6380/1").is_ok());
        assert!(invalid(Locks::open("rediss://host#insecure")).contains("Client::build_with_tls"));
    }
    let sentinel = Locks::builder().sentinel(NOWHERE, "").build();
    assert_eq!(invalid(sentinel), "sentinel needs the name of the primary, for example mymaster");
    let single = Locks::builder().server(NOWHERE[0]).primary("redis://ann:secret@any");
    assert!(invalid(single.build()).starts_with("primary(..) must be used only together with sentinel(..)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_within_the_range_of_the_server() {
    let server = Server::start();
    let locks = server.locks();
    let bound = "the server's redislock.max-lease, or its redislock.quarantine if that is set and shorter";
    let range = format!("lease must be from 100ms to 3600s ({bound}), not ");
    for lease in [Duration::from_secs(7200), Duration::MAX] {
        let told = invalid(locks.lock("k").lease(lease).acquire().await);
        assert_eq!(told, format!("{range}{lease:?}"));
        let guard = locks.lock("k").acquire().await.unwrap();
        assert_eq!(invalid(guard.extend(lease).await), format!("{range}{lease:?}"));
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    let quarantined = Server::with(&["quarantine", "60000"]);
    let told = invalid(quarantined.locks().lock("k").lease(Duration::from_secs(61)).acquire().await);
    assert_eq!(told, format!("lease must be from 100ms to 60s ({bound}), not 61s"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_stands_for_another_one_each_time_is_refused() {
    let server = Server::start();
    let locks = server.locks();
    for lock in [locks.lock("k"), locks.many(["k", "l"]), locks.semaphore("k", 2)] {
        let told = invalid(lock.owner("*").wait(Duration::ZERO).acquire().await);
        assert_eq!(
            told,
            "owner must be from 1 to 256 bytes long, and not *, which is another owner each time"
        );
        assert!(!server.is_held("k"));
    }
    locks.lock("k").owner("**").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_never_issued_is_fenced() {
    let server = Server::start();
    for token in [0, 1, 1 << 53, u64::MAX] {
        let told = server.locks().check_token("k", token).await;
        assert!(matches!(told, Err(Error::Fenced { .. })), "{told:?}");
    }
    assert_eq!(invalid(server.locks().info("").await), "the name of a lock must not be empty");
    assert_eq!(invalid(server.locks().check_token("", 4711).await), "the name of a lock must not be empty");
    let zero = server.locks().lock("k").max_hold(Duration::ZERO).acquire().await;
    assert_eq!(invalid(zero), "max_hold must be 100ms or more, not 0ns");
    for label in ["", &"x".repeat(201)] {
        let refused = Locks::builder().server(server.url()).label(label).build();
        assert!(invalid(refused).starts_with("label must be from 1 to 200 bytes long, not "));
    }
    let refused = Locks::builder().server(server.url()).server_timeout(Duration::ZERO).build();
    assert_eq!(invalid(refused), "server_timeout must be more than 0s");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_says_password_database_and_host() {
    let server = Server::start();
    server.ask::<String>(&["ACL", "SETUSER", "ann", "on", ">p@:/?#%s", "~*", "+@all"]);
    let address = |rest: &str| format!("redis://ann:p%40%3A%2F%3F%23%25s@127.0.0.1:{}{rest}", server.port);
    let locks = Locks::open(address("/1")).unwrap();
    let _guard = locks.lock("k").acquire().await.unwrap();
    assert!(!server.is_held("k"), "it is in another database");
    let refused = Locks::open(address("/4711")).unwrap().lock("k").acquire().await.unwrap_err();
    assert!(matches!(refused, Error::ServerRefused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("DB index is out of range"), "{refused}");
    let nobody = Locks::open("redis://ann:secret@[::1]:1").unwrap();
    let told = nobody.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err().to_string();
    assert!(told.contains("[::1]:1: ") && !told.contains("secret"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_connection_to_a_port_for_tls_says_what_may_be_wrong() {
    for alert in [&[][..], b"\x15\x03\x03\x00\x02\x02\x46"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("redis://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = client.unwrap();
                assert!(client.read(&mut [0; 1024]).unwrap() > 0);
                drop(client.write_all(alert));
            }
        });
        let sentinel = Locks::builder().sentinel([address.as_str()], "group").build().unwrap();
        for locks in [Locks::open(address).unwrap(), sentinel] {
            let told = locks.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err().to_string();
            assert!(told.contains("a port for TLS? Its address begins with rediss://"), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_named_with_what_is_wrong_with_it() {
    let (bare, server) = (Server::bare(), Server::start());
    let password: String = server.ask(&["CONFIG", "SET", "requirepass", "secret"]);
    assert_eq!(password, "OK");
    let told = |locks: Locks| async move {
        locks.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err().to_string()
    };
    let away = told(Locks::open(NOWHERE[0]).unwrap()).await;
    assert!(away.contains("127.0.0.1:1: ") && away.contains("refused"), "{away}");
    let named = told(server.locks()).await;
    assert!(named.starts_with("NOAUTH") && named.contains("redis://:password@host:port"), "{named}");
    let no_cluster = told(Locks::builder().cluster([bare.url()]).build().unwrap()).await;
    assert!(no_cluster.contains(&format!("127.0.0.1:{}: ", bare.port)), "{no_cluster}");
    assert!(no_cluster.contains("cluster support disabled"), "{no_cluster}");
    let no_sentinel = told(Locks::builder().sentinel([bare.url()], "group").build().unwrap()).await;
    assert!(no_sentinel.contains("unknown command"), "{no_sentinel}");
    let nobody = told(Locks::builder().sentinel(NOWHERE, "group").build().unwrap()).await;
    assert!(nobody.contains("127.0.0.1:3: ") && nobody.contains("refused"), "{nobody}");
}
