//! Redisson's lock, written from its published description: a hash that a script takes, a channel on which the release
//! is published, and a new attempt by every subscriber.
//!
//! `lock()`: run the script. If it returns the time to live of the other's hold, subscribe to the channel and run it
//! again. From then on wait for a message and run it again, until it returns nil; then unsubscribe. In one process
//! all threads share the subscription, and one message wakes one of them: `Subscriptions::OneForAll` is a single
//! process whose threads contend. `OneEach` is a process for each contender, which is what a lock between machines is
//! for; there a message wakes all. The watchdog that renews leases does nothing within the seconds of a run, and is
//! left out.
//!
//! A contender that has freed the lock asks again at once, and races with those who were woken. Here messages are read
//! before replies, so that the woken one is first: which is how a hand-over comes about, and in favour of the algorithm.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use crate::bytes::{Connection, unexpected};
use crate::drive::{Event, Peer, Watch};
use crate::resp::{encode, length, owner};
use crate::{LEASE_MS, LOCK};

const TAKE: &str = "if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
    redis.call('hincrby', KEYS[1], ARGV[2], 1); \
    redis.call('pexpire', KEYS[1], ARGV[1]); \
    return nil; \
    end; \
    return redis.call('pttl', KEYS[1]);";

const FREE: &str = "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
    local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
    if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; \
    else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; \
    return nil;";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subscriptions {
    OneForAll,
    OneEach,
}

/// The reply that a contender waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The reply to the script, before it subscribed.
    First,
    Subscribing,
    /// The reply to the script, being subscribed.
    Again,
    /// A message.
    Waiting,
    Freeing,
}

struct Contender {
    connection: Connection,
    take: Vec<u8>,
    free: Vec<u8>,
    stage: Stage,
}

/// A subscription and those who use it: a process.
struct Process {
    connection: Connection,
    users: usize,
    is_subscribed: bool,
    joining: Vec<usize>,
    waiting: VecDeque<usize>,
    /// Messages that no contender has waited for yet: the permits of Redisson's semaphore.
    permits: usize,
}

pub struct Redisson {
    address: SocketAddr,
    subscriptions: Subscriptions,
    contenders: Vec<Contender>,
    processes: Vec<Process>,
    scripts: [String; 2],
    subscribe: Vec<u8>,
    unsubscribe: Vec<u8>,
    is_closed: bool,
}

/// Tokens from here on are those of subscriptions.
const PROCESSES: usize = 1 << 32;

fn channel() -> String {
    format!("redisson_lock__channel:{{{LOCK}}}")
}

impl Redisson {
    pub fn new(address: SocketAddr, subscriptions: Subscriptions) -> io::Result<Self> {
        let mut connection = Connection::open(address)?;
        let mut load = |script| -> io::Result<String> {
            let reply = connection.call(&encode(&["SCRIPT", "LOAD", script]), length)?;
            let text = String::from_utf8_lossy(&reply).into_owned();
            text.split("\r\n").nth(1).map(str::to_owned).ok_or_else(|| unexpected("SCRIPT LOAD", &reply))
        };
        Ok(Self {
            address,
            subscriptions,
            contenders: Vec::new(),
            processes: Vec::new(),
            scripts: [load(TAKE)?, load(FREE)?],
            subscribe: encode(&["SUBSCRIBE", &channel()]),
            unsubscribe: encode(&["UNSUBSCRIBE", &channel()]),
            is_closed: false,
        })
    }

    fn process_of(&self, who: usize) -> usize {
        if self.subscriptions == Subscriptions::OneForAll { 0 } else { who }
    }

    fn open_process(&mut self, watch: &Watch) -> io::Result<()> {
        let connection = Connection::open(self.address)?;
        watch.add(&connection.stream, PROCESSES + self.processes.len())?;
        self.processes.push(Process {
            connection,
            users: 0,
            is_subscribed: false,
            joining: Vec::new(),
            waiting: VecDeque::new(),
            permits: 0,
        });
        Ok(())
    }

    fn open_contender(&mut self, watch: &Watch) -> io::Result<()> {
        let who = self.contenders.len();
        let connection = Connection::open(self.address)?;
        watch.add(&connection.stream, who)?;
        // Redisson names a holder by its client's UUID and its thread.
        let (owner, lease) = (format!("{}:{who}", owner(self.process_of(who))), LEASE_MS.to_string());
        self.contenders.push(Contender {
            connection,
            take: encode(&["EVALSHA", &self.scripts[0], "1", LOCK, &lease, &owner]),
            free: encode(&["EVALSHA", &self.scripts[1], "2", LOCK, &channel(), "0", &lease, &owner]),
            stage: Stage::First,
        });
        Ok(())
    }

    fn try_take(&mut self, who: usize, stage: Stage) -> io::Result<()> {
        let contender = &mut self.contenders[who];
        contender.stage = stage;
        contender.connection.send(&contender.take)
    }

    /// The first attempt failed.
    fn join(&mut self, who: usize) -> io::Result<()> {
        let number = self.process_of(who);
        let process = &mut self.processes[number];
        process.users += 1;
        if process.is_subscribed {
            return self.try_take(who, Stage::Again);
        }
        process.joining.push(who);
        self.contenders[who].stage = Stage::Subscribing;
        if process.users == 1 { process.connection.send(&self.subscribe) } else { Ok(()) }
    }

    /// A later attempt failed.
    fn wait(&mut self, who: usize) -> io::Result<()> {
        let number = self.process_of(who);
        let process = &mut self.processes[number];
        if process.permits > 0 {
            process.permits -= 1;
            return self.try_take(who, Stage::Again);
        }
        process.waiting.push_back(who);
        self.contenders[who].stage = Stage::Waiting;
        Ok(())
    }

    /// A later attempt succeeded.
    fn leave(&mut self, who: usize) -> io::Result<()> {
        let number = self.process_of(who);
        let process = &mut self.processes[number];
        process.users -= 1;
        if process.users > 0 {
            return Ok(());
        }
        (process.is_subscribed, process.permits) = (false, 0);
        process.connection.send(&self.unsubscribe)
    }

    fn read_contender(&mut self, who: usize, events: &mut Vec<Event>) -> io::Result<()> {
        let Some(reply) = self.contenders[who].connection.reply(length)? else {
            return Ok(());
        };
        let is_taken = reply == b"$-1\r\n";
        match (self.contenders[who].stage, reply[0]) {
            (Stage::Freeing, b':') => events.push(Event::Freed(who)),
            (Stage::First, b'$') if is_taken => events.push(Event::Granted(who)),
            (Stage::Again, b'$') if is_taken => {
                events.push(Event::Granted(who));
                self.leave(who)?;
            }
            (Stage::First, b':') if self.is_closed => events.push(Event::GaveUp(who)),
            (Stage::Again, b':') if self.is_closed => {
                events.push(Event::GaveUp(who));
                self.leave(who)?;
            }
            (Stage::First, b':') => self.join(who)?,
            (Stage::Again, b':') => self.wait(who)?,
            _ => return Err(unexpected("EVALSHA", &reply)),
        }
        Ok(())
    }

    fn read_process(&mut self, number: usize) -> io::Result<()> {
        while let Some(reply) = self.processes[number].connection.reply(length)? {
            let process = &mut self.processes[number];
            if reply.starts_with(b"*3\r\n$9\r\nsubscribe") {
                process.is_subscribed = true;
                for who in std::mem::take(&mut process.joining) {
                    self.try_take(who, Stage::Again)?;
                }
            } else if reply.starts_with(b"*3\r\n$7\r\nmessage") && process.is_subscribed {
                match process.waiting.pop_front() {
                    Some(who) => self.try_take(who, Stage::Again)?,
                    None => process.permits += 1,
                }
            }
        }
        Ok(())
    }
}

impl Peer for Redisson {
    fn open(&mut self, contenders: usize, watch: &Watch) -> io::Result<()> {
        while self.contenders.len() < contenders {
            if self.processes.len() <= self.process_of(self.contenders.len()) {
                self.open_process(watch)?;
            }
            self.open_contender(watch)?;
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.is_closed = false;
        Ok(())
    }

    fn take(&mut self, who: usize) -> io::Result<()> {
        self.try_take(who, Stage::First)
    }

    fn free(&mut self, who: usize) -> io::Result<()> {
        let contender = &mut self.contenders[who];
        contender.stage = Stage::Freeing;
        contender.connection.send(&contender.free)
    }

    fn read(&mut self, token: usize, events: &mut Vec<Event>) -> io::Result<()> {
        match token.checked_sub(PROCESSES) {
            Some(number) => self.read_process(number),
            None => self.read_contender(token, events),
        }
    }
    fn is_signal(&self, token: u64) -> bool {
        token >= PROCESSES as u64 && token != u64::MAX
    }

    fn close(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.is_closed = true;
        for number in 0..self.processes.len() {
            for who in std::mem::take(&mut self.processes[number].waiting) {
                events.push(Event::GaveUp(who));
                self.leave(who)?;
            }
        }
        Ok(())
    }
}
