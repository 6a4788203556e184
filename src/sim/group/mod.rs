//! Groups of servers, simulated: the engine that ships on each, and the faults between them.
//!
//! A *group* is three servers, and in some lives there is a fourth one that is a shard of its own. Each is a
//! [simulated server](crate::sim::server::sim) with the engine on it, a boot-time and a wall clock of its own, a keyspace and
//! perhaps files. One number, the seed, decides everything: the promises of this run (the [`plan`]), and every step.
//! Links lag, break and are found to be broken late. Replicas continue where they were or resynchronize. Servers are
//! killed, frozen, cut off, restarted with nothing, with an old file or with a log that lacks its end. The wrong
//! replica is promoted, two primaries live side by side. Slots move between the two shards. A user deletes locks;
//! clients lose replies and repeat requests. The simulation does nothing that the engine does: requests, records and
//! replies are words, as servers and clients exchange them.
//!
//! | file | what it is |
//! |---|---|
//! | `plan.rs` | the promises and possible events of a seed; controls: plans in which a promise must be broken |
//! | `node.rs` | a server: its role, its connections, its files |
//! | `asks.rs` | the requests of clients |
//! | `turns.rs` | the turns of its event loop, and their output |
//! | `slots.rs` | the shard of each lock, and its move to the other one |
//! | `users.rs` | users that delete locks, or give them a time to live |
//! | `clients.rs` | clients: their requests, retries and beliefs |
//! | `faults.rs`, `links.rs` | faults of servers and of links |
//! | `verdicts.rs` | the invariants after each step |
//! | `queues.rs` | the queues: no request is passed, and none waits for a free lock |
//! | `rest.rs` | the invariants at rest |
//! | `points.rs` | the cases that must happen at least once in many seeds |
//! | `runs.rs` | many seeds, on all cores |

mod asks;
mod clients;
mod faults;
mod links;
mod node;
mod plan;
mod points;
mod queues;
mod rest;
mod runs;
mod slots;
mod turns;
mod users;
mod verdicts;

use self::asks::InFlight;
use self::clients::Client;
use self::node::{Files, Node, Stream};
use self::plan::Plan;
use self::points::{Point, Seen};
use self::slots::Slots;
use self::verdicts::Judge;
use crate::lock::tests::random::Random;
use crate::lock::types::Mode;
use crate::sim::single::server::At;

/// The number of servers of the group.
const GROUP: usize = 3;

/// The server that is a shard of its own.
const OTHER: usize = GROUP;

/// The number of servers, if slots move.
const NODES: usize = GROUP + 1;

/// How many clients.
const CLIENTS: usize = 6;

/// The locks. The last one is a semaphore; the one before it is taken shared or exclusively.
const LOCKS: [At; 4] = [At::new(0, "a"), At::new(0, "b"), At::new(0, "s"), At::new(0, "z")];

/// The limit of the semaphore.
const LIMIT: u32 = 2;

/// A violation, or nothing.
type Verdict = Result<(), String>;

/// See the [module](self).
struct Group {
    plan: Plan,
    random: Random,
    /// Microseconds: the time that no server knows.
    time: u64,
    nodes: [Node; NODES],
    /// Every stream of a primary's that there was.
    streams: Vec<Stream>,
    clients: [Client; CLIENTS],
    judge: Judge,
    /// Replies on their way.
    in_flight: Vec<InFlight>,
    /// Connections that their clients have given up, and whose servers do not know yet.
    closing: Vec<(usize, u64)>,
    /// The server that should be primary, in a plan with one primary.
    rightful: usize,
    slots: Slots,
    /// Numbers given so far.
    numbers: Numbers,
    seen: Seen,
    /// A log of the run, if requested.
    trace: Option<Vec<String>>,
}

/// Numbers that are given once.
#[derive(Default)]
struct Numbers {
    requests: u32,
    connections: u64,
    links: u32,
    terms: u32,
    owners: usize,
}

impl Group {
    fn new(seed: u64, plan: Plan, is_traced: bool) -> Self {
        let mut random = Random::new(seed ^ 0x51_3a7e);
        let numbers = Numbers { terms: NODES as u32, connections: CLIENTS as u64, ..Numbers::default() };
        let mut group = Self {
            nodes: std::array::from_fn(|n| Node::new(n, &mut random)),
            clients: std::array::from_fn(|c| Client::new(c as u64 + 1)),
            streams: Vec::<Stream>::new(),
            judge: Judge::new(
                plan.sets_wall_clocks || plan.quarantine_ms < plan.lease_ms_max,
                plan.rule().is_some(),
            ),
            in_flight: Vec::new(),
            closing: Vec::new(),
            rightful: 0,
            slots: Slots::default(),
            time: 5_000_000,
            numbers,
            seen: Seen::default(),
            trace: is_traced.then(Vec::new),
            plan,
            random,
        };
        group.begin().expect("nobody waits at a new server");
        group
    }

    /// All servers start.
    fn begin(&mut self) -> Verdict {
        self.start(0, &Files::default(), true)?;
        for replica in 1..GROUP {
            self.start(replica, &Files::default(), false)?;
            self.attach(replica, 0)?;
        }
        if self.plan.has_moves { self.start(OTHER, &Files::default(), true) } else { Ok(()) }
    }

    fn see(&mut self, point: Point) {
        self.seen.see(point);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9} {}", self.time - 5_000_000, text()));
        }
    }

    /// One event happens, with its consequences.
    fn step(&mut self) -> Verdict {
        if self.random.below(1_000) < self.plan.faults_per_mille {
            self.fault()?;
        } else {
            match self.random.below(100) {
                0..26 => self.pass(),
                26..61 => self.client_acts()?,
                61..78 => self.deliver_some()?,
                78..90 => self.links()?,
                90..94 => self.notice_closed()?,
                94 => {
                    self.break_some()?;
                    self.give_time_to_live()?;
                }
                95 | 96 => self.move_slots()?,
                _ => self.cron_any()?,
            }
        }
        self.follow()
    }

    fn pass(&mut self) {
        let us = match self.random.below(20) {
            0 => self.random.below(self.plan.quarantine_ms.max(10) * 700),
            // Nothing much happens in a quarantine.
            1 if self.random.percent(50) => self.quarantine_left_us(),
            1..8 => self.random.below(3) * 1_000,
            _ => self.random.below(1_200),
        };
        self.time += us;
    }

    /// The shortest remaining quarantine of a server.
    fn quarantine_left_us(&self) -> u64 {
        self.nodes.iter().filter_map(Node::quarantine_left_ms).min().unwrap_or(0) * 1_000
    }

    /// Runs the immediate work of servers, unless they are late.
    fn follow(&mut self) -> Verdict {
        for n in 0..NODES {
            if !self.nodes[n].runs() {
                continue;
            }
            if self.random.percent(self.plan.eager_percent) {
                self.receive(n, usize::MAX)?;
                self.acknowledge(n);
            }
            if self.random.percent(85) {
                let turns = 1 + self.random.below(4) as usize;
                self.work(n, turns)?;
            }
        }
        Ok(())
    }
}

/// Chooses the mode of a lock in this task.
fn mode_of(lock: usize, random: &mut Random) -> Mode {
    match lock {
        2 if random.percent(60) => Mode::Shared,
        3 => Mode::Limit(LIMIT),
        _ => Mode::Exclusive,
    }
}

/// The index of this lock.
fn lock_at(at: At) -> usize {
    LOCKS.iter().position(|lock| *lock == at).expect("all locks are known")
}
