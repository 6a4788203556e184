//! G11 in a small world full of cycles: four owners, three locks of all kinds, several waits of each owner, and
//! nothing but requests and releases. Every answer is compared with a brute-force search. It acts out how every owner
//! releases everything as soon as it can (see [`crate::sim::checkers::book::Scene::comes_true`]). An owner that is
//! refused would have waited forever, and one that waits does not.

use std::collections::BTreeMap;

use crate::lock::deadlock::STEPS_MAX;
use crate::lock::effect::{Change, Effects, Existing, LockId};
use crate::lock::table::{Acquired, Decision, KeyRef, Limits, Refusal, Table};
use crate::lock::tests::legacy::ask;
use crate::lock::tests::random::Random;
use crate::lock::tests::tuning::Lowered;
use crate::lock::tests::visits;
use crate::lock::types::{LockKey, Mode, Moment, Now};
use crate::sim::checkers::judge::Judge;
use crate::sim::single::input::{How, Input, Keys, Reply};
use crate::sim::single::server::{At, Name};
use crate::sim::single::world::World;

const OWNERS: [Name; 6] = ["ann", "bob", "cem", "dee", "eve", "fay"];
const PLACES: [At; 5] = [At::new(0, "k"), At::new(0, "m"), At::new(0, "n"), At::new(0, "o"), At::new(0, "p")];
const LEASE_MS: u64 = 60_000;

/// Returns a random input in a world of `owners` owners, with a lock of each of these kinds.
fn input(random: &mut Random, owners: usize, modes: &[Mode]) -> Input {
    let (owner, which) = (random.of(&OWNERS[..owners]), random.below(modes.len() as u64) as usize);
    let at = PLACES[which];
    // Every wait has a connection of its own, so that an owner can have several.
    let client = u64::from(owner.as_bytes()[0]) * 10 + which as u64;
    let wait = Some(0).filter(|_| random.percent(75));
    match random.below(100) {
        0..15 => {
            let mut ats: Vec<At> = (0..3).map(|n| PLACES[(which + n) % modes.len()]).collect();
            ats.truncate(2 + random.below(2) as usize);
            let keys = Keys::of(&ats);
            let (client, is_shared) = (client + 5, random.percent(50));
            Input::AcquireMany { keys, owner, lease_ms: LEASE_MS, wait, client, minted: false, is_shared }
        }
        15..85 => {
            let other = random.of(&[Mode::Exclusive, Mode::Shared]);
            let is_limited = matches!(modes[which], Mode::Limit(_));
            let mode = if is_limited || random.percent(60) { modes[which] } else { other };
            let how = How { is_reservation: wait.is_some() && random.percent(5), ..How::of(mode) };
            let wait = if how.is_reservation { Some(LEASE_MS) } else { wait };
            Input::Acquire { at, owner, lease_ms: LEASE_MS, wait, client, minted: false, how }
        }
        85..95 => Input::Release { at, owner, token: None },
        95..97 => Input::Close(client),
        _ => Input::Pump,
    }
}

/// Returns the kind of wait that was refused.
fn kind_of(input: &Input) -> &'static str {
    match *input {
        Input::AcquireMany { .. } => "several",
        Input::Acquire { how, .. } => match how.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Limit(_) => "limit",
        },
        _ => "other",
    }
}

/// Runs all of them, and counts the refusals. The judge decides if each was right.
fn refusals() -> Result<BTreeMap<&'static str, usize>, String> {
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..LIVES {
        let mut random = Random::new(seed);
        // Most worlds are small, where cycles are many; in the others they are long, and semaphores large.
        let (owners, locks, steps) = if seed % 4 == 0 { (6, 5, 60) } else { (4, 3, 30) };
        let kinds = [Mode::Exclusive, Mode::Shared, Mode::Limit(1), Mode::Limit(2), Mode::Limit(3)];
        let kinds = &kinds[..if owners > 4 { 5 } else { 4 }];
        let modes: Vec<Mode> = (0..locks).map(|_| random.of(kinds)).collect();
        let (mut world, mut judge) = (World::new(1_000_000, 0), Judge::default());
        for step in 0..steps {
            let input = input(&mut random, owners, &modes).heard(&world);
            let kind = kind_of(&input);
            let out = world.step(&input)?;
            let judged = judge.judge(&input, &out, &world).and_then(|()| world.check());
            judged.map_err(|wrong| format!("seed {seed}, step {step}: {input:?}: {wrong}"))?;
            if out.reply == Reply::Refused(Refusal::Deadlock) {
                *refused.entry(kind).or_default() += 1;
            }
        }
        *refused.entry("missed").or_default() +=
            usize::from(judge.seen.contains("deadlock beyond the search"));
    }
    println!("{refused:?}");
    Ok(refused)
}

#[test]
fn a_wait_is_refused_if_and_only_if_it_would_never_end() -> Result<(), String> {
    let refused = refusals()?;
    assert_eq!(refused["missed"], 0);
    let missing = ["exclusive", "limit", "several", "shared"].map(|kind| (kind, refused.get(kind)));
    let missing: Vec<_> = missing.iter().filter(|(_, count)| count.is_none_or(|&count| count < 20)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("hardly ever: {missing:?}")) }
}

/// A search that ends early misses deadlocks, more of them the earlier it ends, and never reports a false one.
#[test]
fn a_search_that_ends_early_refuses_nothing_that_would_end() -> Result<(), String> {
    let mut missed = usize::MAX;
    for steps_max in [2, 3, 8] {
        let refused = Lowered::steps(steps_max).during(refusals)?;
        assert!(refused["missed"] < missed, "{refused:?}");
        assert_eq!(steps_max > 2, refused.contains_key("exclusive"), "{refused:?}");
        missed = refused["missed"];
    }
    Ok(())
}

/// The number of random runs.
const LIVES: u64 = 2_000;

const NOW: Now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };

/// Locks and their owners by number, and the wait of each.
#[derive(Default)]
struct Graph {
    table: Table,
    locks: BTreeMap<usize, LockId>,
}

fn name(letter: char, number: usize) -> Vec<u8> {
    format!("{letter}{number}").into_bytes()
}

impl Graph {
    fn acquire(&mut self, lock: usize, owner: usize, mode: Mode, waits: bool) -> Acquired {
        let (key, owner) = (name('l', lock), name('o', owner));
        let existing = self.locks.get(&lock).map_or(Existing::Nothing, |&lock| Existing::Lock(lock));
        let (ask, mut fx) = (ask(&owner, mode, waits.then_some(1)), Effects::default());
        let key_ref = KeyRef { lock_key: LockKey { db: 0, name: &key }, existing };
        let step = self.table.acquire(NOW, key_ref, &ask, &mut |_| Decision::Granted, &mut fx);
        if let Change::Stored(stored) = step.change {
            self.locks.insert(lock, stored);
        }
        step.reply
    }

    /// Requests all of these locks at once.
    fn acquire_all(&mut self, locks: &[usize], owner: usize) -> Acquired {
        let (names, owner): (Vec<_>, _) =
            (locks.iter().map(|&lock| name('l', lock)).collect(), name('o', owner));
        let refs: Vec<KeyRef<'_>> = locks
            .iter()
            .zip(&names)
            .map(|(lock, name)| KeyRef {
                lock_key: LockKey { db: 0, name },
                existing: self.locks.get(lock).map_or(Existing::Nothing, |&lock| Existing::Lock(lock)),
            })
            .collect();
        let (ask, mut fx) = (ask(&owner, Mode::Exclusive, Some(1)), vec![Effects::default(); locks.len()]);
        let (reply, steps) = self.table.acquire_many(NOW, &refs, &ask, &mut |_| Decision::Granted, &mut fx);
        for (&lock, step) in locks.iter().zip(steps) {
            if let Change::Stored(stored) = step.change {
                self.locks.insert(lock, stored);
            }
        }
        reply
    }

    /// Returns a graph in which each owner holds the lock of its number and waits for the next one. The owners ahead
    /// come last.
    fn chain(size: usize) -> Self {
        let mut graph = Self::default();
        for n in 0..=size {
            assert!(matches!(graph.acquire(n, n, Mode::Exclusive, false), Acquired::Granted(_)));
        }
        for n in (0..size).rev() {
            visits::take();
            assert!(matches!(graph.acquire(n + 1, n, Mode::Exclusive, true), Acquired::Waiting(_)));
        }
        graph
    }

    /// Returns the number of visits in the search for this request, and the result.
    fn visits(&mut self, request: impl FnOnce(&mut Self) -> Acquired) -> (usize, Acquired) {
        visits::take();
        let reply = request(self);
        (visits::take(), reply)
    }
}

const DEADLOCK: Acquired = Acquired::Refused(Refusal::Deadlock);

/// The bound on visits, for each owner of a graph.
const VISITS_MAX: usize = 12;

#[test]
fn the_search_grows_with_what_there_is_and_not_faster() {
    for size in [100, 500, 1_000, 2_000] {
        // The last one can continue, and then all others: the worst order for a search that goes by their numbers.
        let mut graph = Graph::chain(size);
        let newcomer = size + 1;
        let (visits, reply) = graph.visits(|graph| graph.acquire(0, newcomer, Mode::Exclusive, true));
        assert!(matches!(reply, Acquired::Waiting(_)));
        assert!((size..VISITS_MAX * size).contains(&visits), "{visits} for a chain of {size}");
        // This request closes the cycle of all of them.
        let (visits, reply) = graph.visits(|graph| graph.acquire(0, size, Mode::Exclusive, true));
        assert_eq!(reply, DEADLOCK);
        assert_eq!(graph.table.take_cycle().len(), size + 1);
        assert!(visits < VISITS_MAX * size, "{visits} for a cycle of {size}");
    }
}

#[test]
fn a_writer_behind_very_many_readers_looks_at_those_who_wait() {
    let mut graph = Graph::default();
    for reader in 0..10_000 {
        assert!(matches!(graph.acquire(0, reader, Mode::Shared, false), Acquired::Granted(_)));
    }
    for writer in 10_000..10_010 {
        let (visits, reply) = graph.visits(|graph| graph.acquire(0, writer, Mode::Exclusive, true));
        assert!(matches!(reply, Acquired::Waiting(_)), "{reply:?}");
        assert!(visits < VISITS_MAX * 10, "{visits} for one more behind {}", writer - 10_000);
    }
}

/// The names of each request for several locks.
const NAMES: usize = 64;

#[test]
fn requests_for_the_same_many_locks_do_not_look_through_each_other() {
    let names: Vec<usize> = (0..NAMES).collect();
    let mut graph = Graph::default();
    let many = 1_000 * NAMES;
    graph.table.set_limits(Limits::of(many, many, 1));
    assert!(matches!(graph.acquire_all(&names, 0), Acquired::Granted(_)));
    for owner in 1..=900 {
        let (visits, reply) = graph.visits(|graph| graph.acquire_all(&names, owner));
        assert!(matches!(reply, Acquired::Waiting(_)), "{owner}: {reply:?}");
        // The holder waits for nothing, so each request is examined with its names: its neighbor and the holder.
        let linear = VISITS_MAX * NAMES * (owner + 1);
        assert!(visits < linear.min(VISITS_MAX * STEPS_MAX), "{visits} for one more behind {owner}");
    }
}

#[test]
fn a_deadlock_through_requests_for_many_locks_is_found() {
    let names: Vec<usize> = (0..NAMES).collect();
    let is_found = |ahead: usize| {
        let mut graph = Graph::default();
        assert!(matches!(graph.acquire_all(&names, 0), Acquired::Granted(_)));
        assert!(matches!(graph.acquire(NAMES, 1, Mode::Exclusive, false), Acquired::Granted(_)));
        // The first in line waits for the newcomer, and the others for the first.
        let first: Vec<usize> = (0..=NAMES).collect();
        assert!(matches!(graph.acquire_all(&first, 2), Acquired::Waiting(_)));
        for owner in 3..3 + ahead {
            assert!(matches!(graph.acquire_all(&names, owner), Acquired::Waiting(_)));
        }
        let reply = graph.acquire_all(&names[..2], 1);
        assert!(matches!(reply, DEADLOCK | Acquired::Waiting(_)), "{reply:?}");
        reply == DEADLOCK
    };
    // Each of them costs three steps for each name: the name, the neighbor and the holder.
    let found = [0, 1, 2, 10, 20, STEPS_MAX / NAMES].map(is_found);
    assert_eq!(found, [true, true, true, true, true, false]);
}

#[test]
fn a_search_looks_at_an_owner_of_many_requests_once() {
    for size in [3, 100, 300, 600] {
        // Owner 0 waits for each of the others, and each of the others for it.
        let mut graph = Graph::default();
        for n in 0..=size {
            assert!(matches!(graph.acquire(n, n, Mode::Exclusive, false), Acquired::Granted(_)));
        }
        for n in 1..size {
            assert!(matches!(graph.acquire(n, 0, Mode::Exclusive, true), Acquired::Waiting(_)));
        }
        // It can continue as long as one of them can.
        for n in (2..=size).rev() {
            let (visits, reply) = graph.visits(|graph| graph.acquire(0, n, Mode::Exclusive, true));
            assert!(matches!(reply, Acquired::Waiting(_)), "{n} of {size}: {reply:?}");
            assert!(visits < VISITS_MAX * size, "{visits} for {n} of {size}");
        }
        let (visits, reply) = graph.visits(|graph| graph.acquire(0, 1, Mode::Exclusive, true));
        assert_eq!(reply, DEADLOCK, "a knot of {size}");
        assert!(visits < VISITS_MAX * size, "{visits} for a knot of {size}");
    }
}
