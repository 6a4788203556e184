//! The exact records of a primary for its replicas and its file: one record for each fact, and effects after their
//! causes.

use redis::Value;

use crate::server::stream::{Record, Stream};
use crate::server::topology::state;
use crate::server::{Client, Server, await_that, let_pass, millis};

struct Watched {
    server: Server,
    client: Client,
    stream: Stream,
}

impl Watched {
    fn start() -> Watched {
        let server = Server::start();
        let stream = Stream::attach(&server);
        let client = server.client();
        Watched { server, client, stream }
    }

    /// Returns the records since the last call. A transaction around a single record would be a waste.
    #[track_caller]
    fn records(&mut self) -> Vec<Record> {
        let records = self.stream.records(&mut self.client);
        let titles: Vec<String> = records.iter().map(Record::title).collect();
        for (at, title) in titles.iter().enumerate() {
            let is_needless = title == "MULTI" && titles.get(at + 2).is_none_or(|end| end == "EXEC");
            assert!(!is_needless, "a transaction of one record: {titles:?}");
        }
        records
    }

    #[track_caller]
    fn titles(&mut self) -> Vec<String> {
        let records = self.records();
        records.iter().map(Record::title).filter(|title| title != "MULTI" && title != "EXEC").collect()
    }

    /// The records are just these, in or without a transaction: a cause, then the grant.
    #[track_caller]
    fn assert_cause_and_grant(&mut self, cause: &str, owner: &str) {
        let records = self.records();
        let mut facts = records.iter().filter(|record| !["MULTI", "EXEC"].contains(&record.name().as_str()));
        assert_eq!(facts.next().map(Record::title).as_deref(), Some(cause), "{records:?}");
        assert!(facts.next().is_some_and(|record| record.grants(owner)), "{records:?}");
        assert_eq!(facts.next(), None, "{records:?}");
    }
}

fn is_grant(title: &str) -> bool {
    ["LOCK.ACQUIRE", "LOCK.APPLY HOLD"].contains(&title)
}

// G13
#[test]
fn a_grant_a_renewal_and_a_release_are_one_record_each() {
    let mut watched = Watched::start();
    for _ in 0..20 {
        watched.client.acquire("stock", "alice", 60_000);
        let titles = watched.titles();
        assert!(titles.len() == 1 && is_grant(&titles[0]), "{titles:?}");
        watched.client.renew("stock", "alice", 70_000);
        assert_eq!(watched.titles().len(), 1);
        watched.client.release("stock", "alice");
        assert_eq!(watched.titles(), ["LOCK.RELEASE"]);
    }
}

// The cheap record of a grant, and the common one on a busy server.
#[test]
fn most_grants_of_a_busy_server_travel_as_they_were_asked() {
    let mut watched = Watched::start();
    let mut pipe = redis::pipe();
    for number in 0..2000 {
        pipe.cmd("LOCK.ACQUIRE").arg(number).arg("alice").arg("PX").arg(60_000);
    }
    watched.client.run_pipe(&pipe);
    let titles = watched.titles();
    assert_eq!(titles.len(), 2000);
    let verbatim = titles.iter().filter(|title| *title == "LOCK.ACQUIRE").count();
    assert!(verbatim > 1000, "{verbatim} of 2000");
}

#[test]
fn a_command_that_changes_nothing_is_not_replicated() {
    let mut watched = Watched::start();
    watched.client.acquire("stock", "alice", 60_000);
    watched.client.call("SET string x");
    watched.records();
    let client = &mut watched.client;
    assert_eq!(client.try_acquire("stock", "bob", 1000), None);
    assert_eq!(client.release("stock", "bob"), 0);
    assert_eq!(client.renew("stock", "bob", 1000), 0);
    assert_eq!(client.release("nothing", "bob"), 0);
    assert_eq!(client.int("LOCK.RENEW stock alice PX 1000 TOKEN 7"), 0);
    client.call("LOCK.INFO stock FULL");
    client.call("LOCK.FENCE stock");
    client.refused("LOCK.ACQUIRE string alice PX 1000");
    client.refused("LOCK.ACQUIRE stock alice PX none");
    client.refused("LOCK.RELEASE string alice");
    client.refused("LOCK.RENEW stock");
    watched.server.waiter("LOCK.ACQUIRE stock bob PX 1000 BLOCK 50").timed_out();
    assert_eq!(watched.titles(), [] as [&str; 0]);
}

// F2 of the server's traps: replicated inside the event, the effect would come before its cause, and a replica would
// delete the new hold.
#[test]
fn a_grant_is_replicated_after_the_change_that_freed_the_lock() {
    let mut watched = Watched::start();
    for (cause, line) in [
        ("DEL", "DEL stock"),
        ("UNLINK", "UNLINK stock"),
        ("RENAME", "RENAME stock elsewhere"),
        ("MOVE", "MOVE stock 1"),
        ("FLUSHDB", "FLUSHDB"),
        ("FLUSHALL", "FLUSHALL"),
        ("SWAPDB", "SWAPDB 0 1"),
    ] {
        watched.client.acquire("stock", "alice", 600_000);
        let waiter = watched.server.in_queue("stock", "bob", 600_000);
        watched.records();
        watched.client.call(line);
        waiter.granted();
        watched.assert_cause_and_grant(cause, "bob");
        watched.client.call("FLUSHALL");
        watched.records();
    }
    // A value that is written over it stays, and no request is granted (CONTRACT 5).
    watched.client.acquire("stock", "alice", 600_000);
    let waiter = watched.server.in_queue("stock", "bob", 600_000);
    watched.records();
    watched.client.call("SET stock x");
    assert!(waiter.refused().starts_with("WRONGTYPE "));
    assert_eq!(watched.titles(), ["SET"]);
}

// G3, G13: the end of a lease is a fact of its own.
#[test]
fn the_end_of_a_lease_is_replicated_before_the_next_grant() {
    let mut watched = Watched::start();
    watched.client.acquire("stock", "alice", 40);
    await_that("the lease has run out", || watched.client.int("EXISTS stock") == 0);
    let titles = watched.titles();
    assert!(titles.len() == 2 && is_grant(&titles[0]) && !is_grant(&titles[1]), "{titles:?}");

    watched.client.acquire("stock", "alice", 200);
    watched.server.in_queue("stock", "bob", 60_000).granted();
    let records = watched.records();
    let last = records.iter().rfind(|record| record.name() != "EXEC").unwrap();
    assert!(records[0].grants("alice") && last.grants("bob"), "{records:?}");
}

// The key's own time to live, given by a user, ends in a DEL by the server: 7.0 replicates that last if it can.
#[test]
fn a_grant_is_replicated_after_the_key_that_a_user_let_expire() {
    let mut watched = Watched::start();
    watched.client.acquire("stock", "alice", 600_000);
    let waiter = watched.server.in_queue("stock", "bob", 600_000);
    watched.client.call("PEXPIRE stock 30");
    watched.records();
    waiter.granted();
    let records = watched.records();
    let position = |wanted: &dyn Fn(&Record) -> bool| records.iter().position(wanted);
    let deleted = position(&|record| ["DEL", "UNLINK"].contains(&record.name().as_str()));
    let granted = position(&|record| record.grants("bob"));
    assert!(deleted.is_some() && deleted < granted, "{records:?}");
}

#[test]
fn records_go_to_the_database_of_the_lock() {
    let mut watched = Watched::start();
    let mut other = watched.server.client();
    other.select(5);
    other.acquire("stock", "alice", 100);
    let waiter = {
        let mut blocked = watched.server.client();
        blocked.select(5);
        crate::server::Waiter::start(blocked, "LOCK.ACQUIRE stock bob PX 100 BLOCK 0")
    };
    watched.client.call("SET elsewhere x");
    waiter.granted();
    await_that("both leases have run out", || other.int("EXISTS stock") == 0);
    let records = watched.records();
    for record in records.iter().filter(|record| record.name().starts_with("LOCK.")) {
        assert_eq!(record.db, "5", "{record:?}");
    }
    assert!(records.iter().any(|record| record.grants("bob") && record.db == "5"), "{records:?}");
}

// G14, G10: facts come from the primary and from the file, not from clients.
#[test]
fn a_client_cannot_speak_as_a_primary() {
    let mut watched = Watched::start();
    watched.client.acquire("stock", "alice", 150);
    watched.server.in_queue("stock", "bob", 600_000).granted();
    watched.client.acquire("short", "alice", 20);
    await_that("the lease has run out", || watched.client.int("EXISTS short") == 0);
    let told = watched.records();
    let facts: Vec<&Record> = told.iter().filter(|record| record.name() == "LOCK.APPLY").collect();
    assert!(facts.len() >= 2, "a grant from the line and an end were told: {told:?}");

    watched.client.acquire("free-again", "carol", 600_000);
    let before = state(&watched.server);
    watched.records();
    for fact in facts {
        assert_refused_everywhere(&mut watched.client, &fact.words);
        // Nor with another lock's name.
        let mut words = fact.words.clone();
        let renamed = words.iter_mut().filter(|word| *word == "stock" || *word == "short");
        renamed.for_each(|word| *word = "free-again".into());
        assert_refused_everywhere(&mut watched.client, &words);
    }
    let token = watched.client.fence("free-again").unwrap();
    for line in [
        "LOCK.APPLY".to_string(),
        "LOCK.APPLY free-again".to_string(),
        "LOCK.APPLY free-again 1".to_string(),
        "LOCK.APPLY free-again 2 EMPTY".to_string(),
        "LOCK.APPLY free-again 1 EMPTY".to_string(),
        "LOCK.APPLY new 1 EMPTY".to_string(),
        format!("LOCK.APPLY free-again 1 ENDED {token}"),
        format!("LOCK.APPLY free-again 1 HOLD {} 600000 mallory", token + 1),
        "LOCK.TICK 1 9007199254740000 9007199254740000".to_string(),
    ] {
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        assert_refused_everywhere(&mut watched.client, &words);
    }
    assert_eq!(state(&watched.server), before);
    assert_eq!(watched.titles(), [] as [&str; 0]);
    let next = watched.client.acquire("next", "carol", 600_000);
    assert!(next < token + 3_600_000_000, "the clock of tokens was moved to {next}");
}

fn assert_refused_everywhere(client: &mut Client, words: &[String]) {
    let line = words.join(" ");
    client.refused(&line);
    client.call("MULTI");
    let _ = client.ask(&line);
    client.refused("EXEC");
    let mut script = redis::cmd("EVAL");
    script.arg("return redis.call(unpack(ARGV))").arg(0).arg(words);
    let answer = client.ask_command(&script);
    assert!(answer.is_err(), "{words:?} in a script: {answer:?}");
}

// A new holder does not show how the hold before it ended.
#[test]
fn a_hand_over_by_release_is_the_release_and_the_grant() {
    let mut watched = Watched::start();
    watched.client.acquire("stock", "owner-0", 600_000);
    let waiters: Vec<_> =
        (1..=20).map(|n| watched.server.in_queue("stock", &format!("owner-{n}"), 600_000)).collect();
    watched.records();
    for (number, waiter) in waiters.iter().enumerate() {
        watched.client.release("stock", &format!("owner-{number}"));
        waiter.granted();
        watched.assert_cause_and_grant("LOCK.RELEASE", &format!("owner-{}", number + 1));
    }
}

// G8: a client that has disconnected is never granted, whether the module was notified or not.
#[test]
fn nothing_is_replicated_of_waiters_that_come_and_go() {
    let mut watched = Watched::start();
    watched.client.acquire("stock", "alice", 600_000);
    watched.records();
    let waiters: Vec<_> =
        (0..5).map(|n| watched.server.in_queue("stock", &format!("owner-{n}"), 1000)).collect();
    for waiter in &waiters {
        watched.client.call(&format!("CLIENT KILL ID {}", waiter.client_id));
    }
    watched.client.await_waiters("stock", 0);
    assert_eq!(watched.titles(), [] as [&str; 0]);
    watched.client.release("stock", "alice");
    let_pass(millis(50));
    assert_eq!(watched.titles(), ["LOCK.RELEASE"]);
    assert_eq!(watched.client.call("LOCK.INFO stock"), Value::Nil);
}
