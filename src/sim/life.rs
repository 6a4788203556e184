//! Long random lives of a primary and its replica, run by the engine that ships.

use std::collections::BTreeMap;

use crate::engine::flags::Flags;
use crate::engine::schedule;
use crate::engine::server::Server;
use crate::lock::tests::random::Random;
use crate::lock::tests::tuning::Lowered;
#[cfg(feature = "sabotage")]
use crate::sabotage::{Rule, without};
use crate::sim::server::inside::{At, PartBuf, Value};
use crate::sim::server::look::{Held, Verdict, are_alike, held_in, must};
use crate::sim::server::sim::{Said, Sim, at};

const NAMES: [&str; 3] = ["a", "b", "c"];
const DBS: [u32; 2] = [0, 1];
const CLIENTS: u64 = 6;
const OWNERS: u64 = 7;

/// The value of the setting max-holders.
const HOLDERS_MAX: usize = 10_000;

/// Lives, and steps of each.
const LIVES: u64 = 2_000;
const STEPS: usize = 250;

/// The number of runs until a bug that was put back must be found.
#[cfg(feature = "sabotage")]
const LIVES_UNTIL_FOUND: u64 = 5_000;

struct Life {
    random: Random,
    primary: Sim,
    replica: Sim,
    /// The part of the stream that the replica has applied.
    applied: usize,
    /// The blocked clients, each with the number of its block.
    busy: BTreeMap<u64, u64>,
    /// The last request: its lock, owner and database.
    last: Option<(&'static str, u64, u32)>,
    lock_keys: Vec<At>,
    /// The holds at the last rest.
    before: Held,
    /// Strings that were written and not removed.
    texts: BTreeMap<At, Vec<u8>>,
    dumps: Vec<(At, String)>,
    /// Grants and renewals are answered when the replica has them.
    confirms: bool,
    notes: Vec<String>,
}

impl Life {
    fn new(seed: u64) -> Self {
        let replica = Sim::started();
        replica.flags.set(Flags { is_replica: true, ..Flags::default() });
        let lock_keys: Vec<At> =
            DBS.into_iter().flat_map(|db| NAMES.into_iter().map(move |name| at(db, name))).collect();
        let primary = Sim::started();
        (1..=CLIENTS).for_each(|client| primary.connect(client));
        let confirms = seed.is_multiple_of(3);
        if confirms {
            primary.confirms();
        }
        Self {
            confirms,
            random: Random::new(seed),
            primary,
            replica,
            applied: 0,
            busy: BTreeMap::new(),
            last: None,
            before: lock_keys.iter().map(|at| (at.clone(), 0)).collect(),
            lock_keys,
            texts: BTreeMap::new(),
            dumps: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn lives(mut self) -> Verdict {
        for _ in 0..STEPS {
            self.step().map_err(|verdict| self.told(&verdict))?;
        }
        self.ends().map_err(|verdict| self.told(&verdict))
    }

    fn told(&self, verdict: &str) -> String {
        let last = self.notes.len().saturating_sub(25);
        format!("{verdict}\n{}", self.notes[last..].join("\n"))
    }

    fn step(&mut self) -> Verdict {
        // A paused server lets clients wait that would write.
        match self.random.below(100) {
            0..65 if self.primary.is_paused.get() => (),
            0..55 => self.asks(),
            55..65 => self.meddles(),
            65..70 => self.closes(),
            70..73 => self.unblocks(),
            73..76 => self.changes_server(),
            76..85 => {
                let ms = self.random.of(&[1, 3, 10, 50, 200]);
                self.notes.push(format!("{ms} ms pass"));
                self.primary.passes(ms);
                self.replica.passes(ms);
            }
            85..88 => self.primary.free_late(),
            88..92 => self.primary.turn(),
            _ => return self.rest(),
        }
        self.hears();
        if self.random.percent(70) {
            self.acknowledges();
        }
        // A reader counts the lease of a record from its arrival, so the record arrives before any time passes.
        self.applies()
    }

    fn name(&mut self) -> &'static str {
        self.random.of(&NAMES)
    }

    fn asks(&mut self) {
        let free: Vec<u64> = (1..=CLIENTS).filter(|client| !self.busy.contains_key(client)).collect();
        if free.is_empty() {
            return;
        }
        let client = self.random.of(&free);
        let asks = (self.name(), self.random.below(OWNERS), self.random.of(&DBS));
        // An owner that was not notified yet repeats its request.
        let is_again = self.confirms && self.random.percent(50);
        let (name, owner, db) = self.last.filter(|_| is_again).unwrap_or(asks);
        self.last = Some((name, owner, db));
        let lease = self.random.of(&[5, 40, 60_000]);
        let text = match self.random.below(10) {
            0..5 => {
                let kind = self.random.of(&["", "", "SHARED", "LIMIT 2", "SHARED"]);
                let binding = self.random.of(&["", "", "EPHEMERAL 20", "KEEPALIVE"]);
                let how =
                    self.random.of(&["", "BLOCK 30", "BLOCK 5000", "BLOCK 0", "QUEUE 50", "QUEUE 5000"]);
                let again = if kind.is_empty() && !self.confirms && self.random.percent(20) {
                    "REENTRANT"
                } else {
                    ""
                };
                format!("LOCK.ACQUIRE {name} o{owner} PX {lease} {kind} {again} {binding} {how}")
            }
            5 => {
                let other = NAMES[(NAMES.iter().position(|n| *n == name).unwrap_or(0) + 1) % NAMES.len()];
                let how = self.random.of(&["", "BLOCK 30", "BLOCK 5000"]);
                format!("LOCK.MACQUIRE 2 {name} {other} o{owner} PX {lease} {how}")
            }
            6..9 => format!("LOCK.RELEASE {name} o{owner}"),
            _ => format!("LOCK.RENEW {name} o{owner} PX {lease}"),
        };
        self.sends(client, db, &text);
    }

    fn sends(&mut self, client: u64, db: u32, text: &str) -> Said {
        let said = self.primary.send(client, db, text);
        self.notes.push(format!("client {client} db {db}: {text} -> {said:?}"));
        if let Said::Later(handle) = said {
            self.busy.insert(client, handle);
        }
        said
    }

    /// Changes keys without the module, as a client.
    fn meddles(&mut self) {
        let (name, other, db) = (self.name(), self.name(), self.random.of(&DBS));
        let lock_key = at(db, name);
        let now_ms = self.primary.wall_us() / 1000;
        let text = match self.random.below(10) {
            0..3 => format!("DEL {name}"),
            3 => format!("SET {name} text"),
            4 => format!("RENAME {name} {other}"),
            5 => format!("PEXPIREAT {name} {}", now_ms + self.random.of(&[20, 5_000, 90_000])),
            6 => format!("PERSIST {name}"),
            7 => match self.random.below(3) {
                0 => "FLUSHALL".to_owned(),
                1 => "FLUSHDB".to_owned(),
                _ => "SWAPDB 0 1".to_owned(),
            },
            8 => {
                if let Some(dump) = self.primary.dump(&lock_key) {
                    self.dumps.push((lock_key, dump));
                }
                return;
            }
            _ => match self.dumps.pop() {
                Some((lock_key, dump)) => {
                    let name = String::from_utf8_lossy(&lock_key.1).into_owned();
                    return self.meddles_with(lock_key.0, &format!("RESTORE {name} {dump}"));
                }
                None => return,
            },
        };
        self.meddles_with(db, &text);
    }

    fn meddles_with(&mut self, db: u32, text: &str) {
        self.sends(0, db, text);
        // A written value stays until it is removed.
        let inside = self.primary.inside.borrow();
        let texts = inside.keys.iter().filter_map(|(at, entry)| match &entry.value {
            Value::Text(text) if entry.until_ms.is_none() => Some((at.clone(), text.clone())),
            _ => None,
        });
        self.texts = texts.collect();
    }

    fn closes(&mut self) {
        let client = 1 + self.random.below(CLIENTS);
        let is_cut_off = self.random.below(2) == 0;
        self.notes.push(format!("client {client} {}", if is_cut_off { "is cut off" } else { "closes" }));
        self.busy.remove(&client);
        if is_cut_off {
            self.primary.cut_off(client)
        } else {
            self.primary.disconnect(client)
        }
        self.primary.turn();
        self.primary.connect(client);
    }

    fn unblocks(&mut self) {
        if let Some(&client) = self.busy.keys().next() {
            self.notes.push(format!("client {client} is unblocked"));
            self.primary.client_unblock(client);
        }
    }

    fn changes_server(&mut self) {
        let client = 1 + self.random.below(CLIENTS);
        let sim = &self.primary;
        match self.random.below(4) {
            0 => sim.is_paused.set(true),
            1 => sim.refuses_writes.set(true),
            2 => _ = sim.inside.borrow_mut().forbidden.insert(client),
            _ => {
                sim.inside.borrow_mut().forbidden.clear();
                self.primary.cron();
            }
        }
    }

    /// Has clients read their answers.
    fn hears(&mut self) {
        let sim = &mut self.primary;
        let answered = |handle: &u64| sim.answers.iter().any(|(other, _)| other == handle);
        let over: Vec<u64> =
            self.busy.iter().filter(|(_, handle)| answered(handle)).map(|(client, _)| *client).collect();
        for client in over {
            self.busy.remove(&client);
        }
        sim.answers.clear();
    }

    /// Checks all invariants when nothing is left to do.
    fn rest(&mut self) -> Verdict {
        let was_open = !self.primary.is_paused.replace(false) & !self.primary.refuses_writes.replace(false);
        self.primary.free_late();
        self.settles()?;
        if was_open {
            // The cron has not run: the step that made work has asked for the pump.
            let view = self.primary.look(&self.lock_keys);
            self.primary.no_request_waits_for_a_free_lock(&view, HOLDERS_MAX)?;
        }
        self.applies()?;
        // After a pause the pump looks again, and the cron frees the values that were removed elsewhere.
        self.passes(60);
        self.primary.cron();
        self.settles()?;
        self.hears();
        self.catches_up()?;
        let view = self.primary.look(&self.lock_keys);
        let events = std::mem::take(&mut self.primary.inside.borrow_mut().published);
        self.notes.push(format!("rest: published {events:?}"));
        self.primary.no_request_waits_for_a_free_lock(&view, HOLDERS_MAX)?;
        self.primary.nobody_is_forgotten(&view)?;
        self.primary.counts_are_right(&view)?;
        let held = held_in(&view);
        self.primary.events_tell_the_story(&self.before, &held, &events)?;
        are_alike(&view, &self.replica.look(&self.lock_keys))?;
        self.texts_stay()?;
        self.before = held;
        Ok(())
    }

    fn passes(&mut self, ms: u64) {
        self.primary.passes(ms);
        self.replica.passes(ms);
    }

    /// The replica reports how far it is.
    fn acknowledges(&self) {
        let mut inside = self.primary.inside.borrow_mut();
        let offset = inside.stream.len() as u64;
        inside.replicas.values_mut().for_each(|(_, acknowledged)| *acknowledged = offset);
    }

    /// Does all pending work of the primary, and lets the replica receive it.
    fn settles(&mut self) -> Verdict {
        for _ in 0..3 {
            must(self.primary.rests(), || "G3: the primary never comes to rest".to_owned())?;
            self.acknowledges();
            self.applies()?;
        }
        must(self.primary.rests(), || "G3: the primary never comes to rest".to_owned())
    }

    fn applies(&mut self) -> Verdict {
        let news: Vec<_> = self.primary.inside.borrow().stream[self.applied..].to_vec();
        self.applied += news.len();
        for told in news {
            let reply = self.replica.apply(&told);
            let is_error = matches!(reply.first(), Some(PartBuf::Error(_)));
            must(!is_error, || format!("G13: the replica refuses {told:?}: {reply:?}"))?;
        }
        Ok(())
    }

    fn catches_up(&mut self) -> Verdict {
        self.applies()?;
        self.replica.free_late();
        self.replica.cron();
        must(self.replica.rests(), || "G3: the replica never comes to rest".to_owned())
    }

    /// Checks that no grant replaced a value that a user wrote (CONTRACT 5).
    fn texts_stay(&self) -> Verdict {
        let inside = self.primary.inside.borrow();
        let is_there = |at: &At| inside.keys.get(at).is_some_and(|e| matches!(e.value, Value::Text(_)));
        let lost = self.texts.keys().find(|at| !is_there(at));
        must(lost.is_none(), || format!("CONTRACT 5: what was written at {lost:?} is gone"))
    }

    /// Checks that nothing is left once all clients have left and all leases have expired.
    fn ends(&mut self) -> Verdict {
        for client in 1..=CLIENTS {
            self.primary.disconnect(client);
        }
        self.busy.clear();
        // A lease that a closed connection paused runs from here on: a server that may not write does not start it.
        self.primary.is_paused.set(false);
        self.primary.refuses_writes.set(false);
        for _ in 0..5 {
            self.applies()?;
            self.passes(100_000);
            self.primary.cron();
            self.settles()?;
        }
        self.rest()?;
        let left: Vec<_> = self.before.iter().filter(|(_, held)| **held > 0).collect();
        must(left.is_empty(), || format!("G3: {left:?} are held for ever"))?;
        let sim = &self.primary;
        let waiters = sim.with(|state| state.table.waiters());
        must(waiters == Some(0), || format!("G8: {waiters:?} wait, and nobody is connected"))?;
        let undelivered = sim.with(|state| state.table.undelivered());
        must(undelivered == Some(0), || format!("G8: {undelivered:?} grants are nobody's for ever"))?;
        must(sim.inside.borrow().blocked.is_empty(), || "G8: somebody is blocked for ever".to_owned())?;
        must(!schedule::is_late(sim), || "a run was asked for and did not come".to_owned())
    }
}

/// The number of confirmed grants, and of failed ones, in some runs that confirm.
#[test]
fn simulated_lives_confirm_some_grants_and_fail_others() {
    let (mut confirmed, mut failed) = (0, 0);
    for seed in (0..60).step_by(3) {
        let mut life = Life::new(seed);
        assert!(life.confirms);
        (0..STEPS).for_each(|_| life.step().expect("it keeps its promises"));
        let counts = life.primary.with(|state| (state.confirm.confirmed, state.confirm.failed));
        let (more, fewer) = counts.expect("nobody is within the engine");
        confirmed += more;
        failed += fewer;
    }
    assert!(confirmed > 500 && failed > 20, "{confirmed} and {failed}");
}

fn first_fault(lives: u64) -> Option<(u64, String)> {
    (0..lives).find_map(|seed| {
        let lived = Lowered::of(seed).one_by_one().during(|| Life::new(seed).lives());
        lived.err().map(|fault| (seed, fault))
    })
}

#[test]
fn lives_keep_all_promises() {
    // G3, G6, G7, G8, G13, G15
    if let Some((seed, fault)) = first_fault(LIVES) {
        panic!("seed {seed}: {fault}");
    }
}

#[cfg(feature = "sabotage")]
#[test]
fn bugs_that_are_put_back_are_found() {
    let rules = [
        Rule::LeaverWakes,
        Rule::BesideReservations,
        Rule::TimeToLive,
        Rule::EventOrder,
        Rule::RestoredBroken,
        Rule::WrittenOver,
        Rule::WakeUp,
        Rule::Disconnect,
        Rule::Replicas,
        Rule::ExpiryLate,
        Rule::Revoke,
    ];
    for rule in rules {
        let existing = without(Some(rule), || first_fault(LIVES_UNTIL_FOUND));
        let (seed, fault) =
            existing.unwrap_or_else(|| panic!("{rule:?} can be left out, and no life notices"));
        println!("{rule:?}: life {seed}: {}", fault.lines().next().unwrap_or(""));
    }
}
