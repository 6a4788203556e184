//! Servers and networks that are silent: how long a request continues, which requests are repeated, and how soon all
//! ends.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use common::door::Door;
use common::{NOWHERE, PATIENCE, Server, eventually, independent};
use redislock_client::{Error, Locks, Loss};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_wait_for_longer_than_a_server_may_be_silent() {
    let server = Server::start();
    let door = Door::to(&server);
    let holder = server.locks().lock("b").acquire().await.unwrap();
    let lock = door.locks().many(["a", "b"]);
    let waits = tokio::spawn(async move { lock.acquire().await?.release().await });
    eventually("it waits", || server.waiters("b") == 1).await;
    sleep(11 * SECOND).await;
    door.shut(true);
    sleep(SECOND).await;
    assert!(!waits.is_finished(), "{:?}", waits.await);
    door.shut(false);
    eventually("it waits again", || server.waiters("b") == 1).await;
    holder.release().await.unwrap();
    timeout(PATIENCE, waits).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_the_network_swallows_is_noticed_soon() {
    let server = Server::start();
    let door = Door::to(&server);
    for names in [&["k"][..], &["k", "l"]] {
        let holder = server.locks().lock("k").acquire().await.unwrap();
        let lock = door.locks().many(names).wait(60 * SECOND);
        let waits = tokio::spawn(async move { lock.acquire().await });
        eventually("it waits", || server.waiters("k") == 1).await;
        door.lose();
        let began = Instant::now();
        holder.release().await.unwrap();
        let guard = waits.await.unwrap().unwrap();
        assert!(began.elapsed() < 15 * SECOND, "{names:?}: {:?}", began.elapsed());
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_loses_all_ends_each_wait_in_time() {
    let server = Server::start();
    let door = Door::to(&server);
    let (locks, _holder) = (door.locks(), server.locks().lock("k").acquire().await.unwrap());
    locks.lock("other").acquire().await.unwrap().release().await.unwrap();
    door.mute(true);
    for (wait, least) in [(Some(Duration::ZERO), 0), (Some(SECOND), 1), (None, 10)] {
        for names in [&["k"][..], &["k", "l"]] {
            let (mut lock, began) = (locks.many(names), Instant::now());
            if let Some(wait) = wait {
                lock = lock.wait(wait);
            }
            let refused = timeout(2 * PATIENCE, lock.acquire()).await.unwrap().unwrap_err();
            assert!(matches!(refused, Error::ConnectionFailed { .. }), "{refused:?}");
            assert!(refused.to_string().contains(door.url().trim_start_matches("redis://")), "{refused}");
            let took = began.elapsed();
            assert!(took >= least * SECOND && took < (least + 4) * SECOND, "{names:?} {wait:?}: {took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loading_server_is_waited_for_without_end() {
    // It answers each request, and never what was asked for.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || {
                answer(client, |word| match word {
                    "LOCK.ACQUIRE" | "LOCK.MACQUIRE" => "-LOADING the dataset is loaded in memory\r\n",
                    "HELLO" => "%1\r\n+server\r\n+redis\r\n",
                    _ => "+OK\r\n",
                });
            });
        }
    });
    let locks = Locks::open(url).unwrap();
    for lock in [locks.lock("k"), locks.many(["k", "l"])] {
        let waited = timeout(12 * SECOND, lock.acquire()).await;
        assert!(waited.is_err(), "{waited:?}");
    }
}

/// Answers commands, which are recognised by their first word, until the connection ends.
fn answer(mut client: impl Read + Write, reply: impl Fn(&str) -> &'static str) {
    let mut bytes = [0; 1 << 16];
    while let Ok(size @ 1..) = client.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..size]).into_owned();
        for command in text.split('*').skip(1) {
            let word = command.split("\r\n").nth(2).unwrap_or_default();
            if client.write_all(reply(word).as_bytes()).is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_without_hello_is_not_taken_for_a_missing_module() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            answer(client, |_| "-ERR unknown command 'HELLO', with args beginning with: '3' \r\n");
        }
    });
    let locks = Locks::open(format!("redis://{address}")).unwrap();
    let refused = timeout(PATIENCE, locks.lock("k").acquire()).await.unwrap().unwrap_err();
    assert!(matches!(refused, Error::ServerRefused { .. }), "{refused:?}");
    let told = refused.to_string();
    assert!(told.contains("HELLO") && told.contains(&address) && !told.contains("module"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_exist_is_reported_at_once() {
    let server = Server::start();
    let locks = Locks::open(format!("{}/4711", server.url())).unwrap();
    let began = Instant::now();
    let refused = locks.lock("k").acquire().await.unwrap_err();
    assert!(matches!(refused, Error::ServerRefused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("DB index is out of range"), "{refused}");
    assert!(began.elapsed() < 5 * SECOND);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_not_renewed_is_not_released_while_its_holder_works() {
    let server = Server::start();
    let locks = server.locks();
    for lock in [locks.lock("k"), locks.many(["k", "l"])] {
        let guard = lock.renew(false).lease(SECOND).acquire().await.unwrap();
        assert_eq!(guard.lost().await, Some(Loss::Deadline));
        assert!(guard.check().is_err());
        sleep(SECOND / 5).await;
        let stats = server.ask::<String>(&["INFO", "commandstats"]);
        assert!(!stats.contains("cmdstat_lock.release"), "{stats}");
        assert!(matches!(guard.release().await, Err(Error::LockLost { .. })));
        eventually("then it is", || {
            server.ask::<String>(&["INFO", "commandstats"]).contains("cmdstat_lock.release")
        })
        .await;
        server.ask::<String>(&["CONFIG", "RESETSTAT"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_several_locks_is_kept_for_its_holder_until_it_gives_up() {
    let server = Server::start();
    let guard = server.locks().many(["k", "l"]).acquire().await.unwrap();
    sleep(SECOND / 5).await; // until the server was asked to tell of a change
    server.ask::<i64>(&["DEL", "k"]);
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), Some(Loss::Push));
    sleep(SECOND / 5).await;
    assert!(server.is_held("l"), "its holder may still write under it");
    drop(guard);
    eventually("the rest is given up", || !server.is_held("l")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_comes_after_its_lease_is_asked_for_again_while_the_wait_lasts() {
    let server = Server::start();
    let door = Door::to(&server);
    let locks = door.locks();
    locks.lock("other").acquire().await.unwrap().release().await.unwrap();
    for lock in [locks.lock("k"), locks.many(["k", "l"]), locks.lock("k").owner("task-7")] {
        let lock = lock.lease(SECOND / 4);
        door.delay(SECOND / 2);
        let late = lock.clone().wait(Duration::ZERO).acquire().await.unwrap_err();
        assert!(matches!(late, Error::LockLost { .. }), "{late:?}");
        let acquiring = tokio::spawn(async move { lock.wait(PATIENCE).acquire().await });
        sleep(SECOND).await;
        door.delay(Duration::ZERO);
        let guard = acquiring.await.unwrap().unwrap();
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_takes_one_bound_whatever_is_held_and_under_way() {
    let server = Server::start();
    let locks = server.locks();
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(locks.lock(format!("k{number}")).acquire().await.unwrap());
    }
    server.signal("STOP");
    let releases = tokio::spawn(guards.pop().unwrap().release());
    sleep(SECOND / 10).await;
    let began = Instant::now();
    locks.close().await;
    let took = began.elapsed();
    server.signal("CONT");
    assert!(took < 6 * SECOND, "{took:?}");
    drop(releases.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_nothing_where_nothing_was_sent() {
    let locks = Locks::open(NOWHERE[0]).unwrap();
    for lock in [locks.lock("k"), locks.many(["k", "l"]), locks.lock("k").owner("task-7")] {
        assert!(timeout(SECOND / 2, lock.acquire()).await.is_err());
    }
    let began = Instant::now();
    locks.close().await;
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_locks_say_that_they_are_closed() {
    let server = Server::start();
    let locks = server.locks();
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    locks.close().await;
    let told = [
        locks.lock("k").acquire().await.map(drop),
        locks.check_token("k", 4711).await,
        locks.info("k").await.map(drop),
        locks.ping().await.map(drop),
        locks.leader("k").stand().map(drop),
    ];
    assert!(told.iter().all(|told| matches!(told, Err(Error::Closed))), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_hold_is_not_exceeded_in_an_outage_nor_by_an_extension() {
    let server = Server::start();
    let door = Door::to(&server);
    let lock = door.locks().lock("k").lease(6 * SECOND).max_hold(3 * SECOND);
    let guard = lock.acquire().await.unwrap();
    let refused = guard.extend(10 * SECOND).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
    sleep(SECOND).await;
    // The renewal that is due at two seconds would be answered at four or five.
    door.shut(true);
    sleep(3 * SECOND + SECOND / 2).await;
    assert_eq!(guard.loss(), Some(Loss::MaxHold), "it is over before a server can answer");
    door.shut(false);
    assert_eq!(guard.lost().await, Some(Loss::MaxHold));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_to_raise_a_token_is_reported() {
    let servers = [Server::start(), Server::start(), Server::start()];
    for server in &servers {
        server.ask::<String>(&["ACL", "SETUSER", "default", "-lock.renew"]);
    }
    let locks = independent(servers.each_ref());
    for wait in [Duration::ZERO, 2 * SECOND] {
        let refused = locks.lock("k").wait(wait).acquire().await.unwrap_err();
        assert!(matches!(&refused, Error::ServerRefused { .. }), "{refused:?}");
        assert!(refused.to_string().contains("NOPERM"), "{refused}");
    }
    eventually("nothing is held", || servers.iter().all(|server| !server.is_held("k"))).await;
}
