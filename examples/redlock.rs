//! Redlock: one lock over several independent servers, of which a minority may fail.
//!
//! ```sh
//! cargo run --example redlock -- 127.0.0.1:7001 127.0.0.1:7002 ...   # without addresses: 7001 to 7005
//! ```
//!
//! The lock is held if a majority grants it. The lease counts from before the first request was sent. A
//! second round (`RAISE`) gives a majority the highest of their tokens, which is therefore higher than that
//! of any earlier holder. `docs/concepts/redlock.md` describes how to set up the servers, and what this does
//! not promise.
//!
//! `LIMIT` is left out on purpose: with two permits on each of five servers, three holders would have a
//! majority.

use std::fmt;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use redis::{Client, Connection, RedisResult};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

/// The percentage of a lease by which a server's clock may run faster than the client's.
const DRIFT_PERCENT: u32 = 1;
const ATTEMPTS: u32 = 20;
const BACK_OFF: Duration = Duration::from_millis(200);

/// Returns the time of a clock that cannot be set and that keeps counting while the machine sleeps.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// One of the servers, and the connection to it if there is one.
struct Server {
    client: Client,
    connection: Option<Connection>,
}

impl Server {
    /// Returns its answer within the time, or an error that says why there is none.
    fn ask(&mut self, words: &[&str], timeout: Duration) -> RedisResult<Option<i64>> {
        let (end, was_connected) = (now() + timeout, self.connection.is_some());
        let reply = self.ask_once(words, end);
        match &reply {
            // The server may have closed the connection long ago. Asking again does no harm: same owner, same
            // answer.
            Err(error) if was_connected && error.is_connection_dropped() => self.ask_once(words, end),
            _ => reply,
        }
    }

    fn ask_once(&mut self, words: &[&str], end: Duration) -> RedisResult<Option<i64>> {
        // A timeout of zero would mean no timeout.
        let left = || end.saturating_sub(now()).max(Duration::from_millis(1));
        // A request that does not reach the end of this drops the connection, which may still owe an answer.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.get_connection_with_timeout(left())?,
        };
        connection.set_write_timeout(Some(left()))?;
        connection.set_read_timeout(Some(left()))?;
        let reply = redis::cmd(words[0]).arg(&words[1..]).query(&mut connection);
        if !matches!(&reply, Err(error) if error.is_io_error()) {
            self.connection = Some(connection);
        }
        reply
    }
}

/// A hold that is requested or granted.
struct Hold {
    key: String,
    owner: String,
    lease: Duration,
    token: i64,
    until: Duration,
}

/// A client that acquires one lock at a time on several servers.
pub struct Redlock {
    servers: Vec<Server>,
    timeout: Duration,
}

/// No attempt had a majority in time. Contains what each server said to the last one.
#[derive(Debug)]
pub struct NotAcquired(Vec<String>);

impl fmt::Display for NotAcquired {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the lock was not to be had; the servers said {:?}", self.0)
    }
}

impl std::error::Error for NotAcquired {}

impl Redlock {
    /// Takes the addresses of all servers, and the time limit of one answer: far less than a lease.
    pub fn new(addresses: &[String], timeout: Duration) -> RedisResult<Redlock> {
        let open = |address: &String| {
            Ok(Server { client: Client::open(format!("redis://{address}"))?, connection: None })
        };
        Ok(Redlock { servers: addresses.iter().map(open).collect::<RedisResult<_>>()?, timeout })
    }

    /// Acquires the lock, which is released when the guard is dropped.
    pub fn acquire(&mut self, key: &str, lease: Duration) -> Result<Guard<'_>, NotAcquired> {
        self.acquire_within(ATTEMPTS, key, lease)
    }

    /// Does the same, with another limit on the attempts.
    pub fn acquire_within(
        &mut self,
        attempts: u32,
        key: &str,
        lease: Duration,
    ) -> Result<Guard<'_>, NotAcquired> {
        let mut said = Vec::new();
        for attempt in 0..attempts {
            if attempt > 0 {
                thread::sleep(BACK_OFF.mul_f64(chance()));
            }
            // A new owner: a late grant to an earlier attempt does not count for this one.
            let owner = Uuid::new_v4().to_string();
            let mut hold = Hold { key: key.into(), owner, lease, token: 0, until: Duration::ZERO };
            match self.take(&mut hold) {
                Ok(()) => return Ok(Guard { redlock: self, hold }),
                Err(replies) => said = replies,
            }
            self.release(&hold);
        }
        Err(NotAcquired(said))
    }

    /// Runs both rounds. If the first one fails, returns what the servers said.
    fn take(&mut self, hold: &mut Hold) -> Result<(), Vec<String>> {
        let began = now();
        let replies =
            self.ask(&self.all(), hold, "LOCK.ACQUIRE", &["PX", &hold.lease.as_millis().to_string()]);
        let mut granted: Vec<(usize, i64)> = replies
            .iter()
            .filter_map(|(number, reply)| Some((*number, reply.as_ref().ok().copied()??)))
            .collect();
        while self.is_majority(granted.len()) {
            let highest = granted.iter().map(|(_, token)| *token).max().unwrap_or(0);
            let numbers: Vec<usize> = granted.iter().map(|(number, _)| *number).collect();
            if self.renew(&numbers, hold, began, ["RAISE", &highest.to_string()]) {
                hold.token = highest;
                return Ok(());
            }
            // A server's clock may be so far ahead that the others refuse its token. Then that server is left
            // out.
            granted.retain(|(_, token)| *token < highest);
        }
        Err(replies.iter().map(|(_, reply)| format!("{reply:?}")).collect())
    }

    /// Returns true if a majority renews the lease in time, so that some of it is left.
    fn renew(&mut self, numbers: &[usize], hold: &mut Hold, began: Duration, which: [&str; 2]) -> bool {
        let lease = hold.lease.as_millis().to_string();
        let replies = self.ask(numbers, hold, "LOCK.RENEW", &["PX", &lease, which[0], which[1]]);
        let renewed = replies.iter().filter(|(_, reply)| matches!(reply, Ok(Some(1)))).count();
        let until = began + hold.lease - hold.lease * DRIFT_PERCENT / 100;
        let is_held = self.is_majority(renewed) && now() < until;
        if is_held {
            hold.until = until;
        }
        is_held
    }

    /// Releases on all servers: any of them may have granted it, with its reply lost.
    fn release(&mut self, hold: &Hold) {
        self.ask(&self.all(), hold, "LOCK.RELEASE", &[]);
    }

    /// Asks the servers with these numbers in parallel, and waits until each has answered or its time is up.
    fn ask(
        &mut self,
        numbers: &[usize],
        hold: &Hold,
        command: &str,
        options: &[&str],
    ) -> Vec<(usize, RedisResult<Option<i64>>)> {
        let words = [&[command, &hold.key, &hold.owner], options].concat();
        let (words, timeout) = (&words, self.timeout);
        thread::scope(|scope| {
            let chosen = self.servers.iter_mut().enumerate().filter(|(number, _)| numbers.contains(number));
            let asked: Vec<_> = chosen
                .map(|(number, server)| (number, scope.spawn(move || server.ask(words, timeout))))
                .collect();
            asked.into_iter().map(|(number, thread)| (number, thread.join().expect("no panic"))).collect()
        })
    }

    fn all(&self) -> Vec<usize> {
        (0..self.servers.len()).collect()
    }

    fn is_majority(&self, count: usize) -> bool {
        count > self.servers.len() / 2
    }
}

/// Returns a random number from 0 to 1.
fn chance() -> f64 {
    f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}

/// A lock that is held, for as long as `left` says.
pub struct Guard<'a> {
    redlock: &'a mut Redlock,
    hold: Hold,
}

impl Guard<'_> {
    /// Returns the token to send with every write, so that a late one is detected.
    pub fn token(&self) -> i64 {
        self.hold.token
    }

    /// Returns the time for which it is held, unless it is extended.
    pub fn left(&self) -> Duration {
        self.hold.until.saturating_sub(now())
    }

    /// Starts a new lease. Returns true if a majority still has this token.
    pub fn extend(&mut self) -> bool {
        let (all, token) = (self.redlock.all(), self.token().to_string());
        self.redlock.renew(&all, &mut self.hold, now(), ["TOKEN", &token])
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.redlock.release(&self.hold);
    }
}

/// Acquires it twice, and tries to acquire it meanwhile. Returns true if all went as expected.
pub fn run(addresses: &[String]) -> Result<bool, Box<dyn std::error::Error>> {
    let (timeout, lease) = (Duration::from_millis(200), Duration::from_secs(10));
    let mut first = Redlock::new(addresses, timeout)?;
    let mut second = Redlock::new(addresses, timeout)?;

    let guard = first.acquire("report", lease)?;
    let token = guard.token();
    println!("held with token {token} for {:.2?}", guard.left());
    let is_alone = second.acquire_within(1, "report", lease).is_err();
    println!("another {} meanwhile", if is_alone { "does not get it" } else { "gets it" });
    drop(guard);

    let guard = second.acquire("report", lease)?;
    println!("released, and held by the other with token {}", guard.token());
    Ok(is_alone && guard.token() > token)
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut addresses: Vec<String> = std::env::args().skip(1).collect();
    if addresses.is_empty() {
        addresses = (7001..=7005).map(|port| format!("127.0.0.1:{port}")).collect();
    }
    Ok(if run(&addresses)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
