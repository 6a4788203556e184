//! Long random lives of a primary and its readers, against the oracle and the judge.
//!
//! Every reply, every answer, every key, every queue and every token is compared with the
//! [oracle](crate::sim::oracle) after every step. The [judge](crate::sim::checkers::judge) holds it to the guarantees. The
//! [readers](crate::sim::single::reader) are compared with the primary whenever everything has arrived.

use std::collections::{BTreeMap, BTreeSet};

use crate::lock::effect::Event;
use crate::lock::table::Limits;
use crate::lock::tests::random::Random;
use crate::lock::tests::tuning::{self, Lowered};
use crate::lock::types::{Binding, COUNT_MAX, Mode, Token};
#[cfg(feature = "sabotage")]
use crate::sabotage::{self, Rule};
use crate::sim::checkers::judge::Judge;
use crate::sim::oracle::Oracle;
use crate::sim::single::input::{How, Input, Keys, Outcome, Writes};
use crate::sim::single::server::{At, Lazy, Name};
use crate::sim::single::world::World;

const OWNERS: [Name; 5] = ["ann", "bob", "cem", "dee", "eve"];
const NAMES: [Name; 3] = ["k", "m", "n"];

/// One random life.
pub(crate) struct Life {
    pub(crate) random: Random,
    world: World,
    judge: Judge,
    oracle: Oracle,
    /// Time passes in multiples of this. Reading a dumped lease back rounds it up to a millisecond. So a test that
    /// compares leases to the microsecond cannot promote a reader, and vice versa.
    grain_us: u64,
    /// True if the pump runs next: it runs on whole milliseconds of the clock, and the clock has just reached one.
    is_pump_next: bool,
    /// The key at which the last payload is restored next.
    is_restore_next: Option<At>,
    /// True if readers lag: sent records arrive only sometimes.
    is_lagging: bool,
    /// The kinds of requests in this run.
    kinds: Kinds,
    /// True if the pump runs next after the lease of one of several holders has expired.
    is_pump_first: bool,
    /// The last event of each lock.
    heard: BTreeMap<At, Event>,
}

/// The kinds of requests for locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// Exclusive, and nothing else.
    Plain,
    /// All kinds and options.
    All,
    /// All kinds and options, and restored locks that their own waiters hold.
    Restored,
}

impl Life {
    pub(crate) fn new(seed: u64, kinds: Kinds) -> Result<Self, String> {
        // A wall clock in the year 2026, or at its beginning: tokens must rise all the same.
        let wall_us = if seed.is_multiple_of(3) { 0 } else { 1_780_000_000_000_000 };
        let grain_us = if seed.is_multiple_of(2) { 1000 } else { 1 };
        let mut world = World::new(5_000_000_000 + seed * grain_us, wall_us);
        world.step(&Input::NewReplica(seed % 5 * 10_000))?;
        world.step(&Input::NewFile)?;
        if kinds != Kinds::Plain && seed.is_multiple_of(3) {
            world.step(&Input::Limits(Limits::of(1000, 1000, 2)))?;
        }
        Ok(Self {
            random: Random::new(seed),
            oracle: Oracle::new(&world),
            judge: Judge::default(),
            world,
            grain_us,
            is_pump_next: false,
            is_restore_next: None,
            is_lagging: seed % 4 >= 2,
            kinds,
            is_pump_first: Lowered::is_few_lowered(),
            heard: BTreeMap::new(),
        })
    }

    pub(crate) fn step(&mut self) -> Result<(), String> {
        let input = self.input().heard(&self.world);
        if matches!(input, Input::Promote(_)) {
            // The losses of a failover are checked elsewhere (CONTRACT 6).
            self.world.catch_up()?;
        }
        let out = self.world.step(&input).map_err(|wrong| format!("{input:?}: {wrong}"))?;
        if !self.is_lagging || self.random.percent(20) {
            self.world.catch_up()?;
        }
        let judged = self.hear(&input, &out);
        let judged = judged.and_then(|()| self.judge.judge(&input, &out, &self.world));
        let compared = judged.and_then(|()| self.oracle.compare(&input, &out, &self.world));
        compared.and_then(|()| self.world.check()).map_err(|wrong| format!("{input:?}: {wrong}\n{out:?}"))
    }

    /// G15: for a lock with one holder, the start of a hold is not published before the end of the previous one. (The
    /// holds of a RESTORE are never published.)
    fn hear(&mut self, input: &Input, out: &Outcome) -> Result<(), String> {
        if matches!(input, Input::Promote(_)) {
            self.heard.clear();
        }
        for &(at, event) in &out.events {
            let before = self.heard.insert(at, event);
            if self.kinds == Kinds::Plain && (before, event) == (Some(Event::Acquired), Event::Acquired) {
                return Err(format!("G15: {at} is acquired, and its earlier hold has not ended"));
            }
        }
        Ok(())
    }

    fn at(&mut self) -> At {
        At::new(self.random.of(&[0, 0, 0, 0, 0, 1, 1, 2]), self.random.of(&NAMES))
    }

    /// Returns the token of the hold, a dead one, or none.
    fn token(&mut self, at: At) -> Option<Token> {
        match self.random.below(4) {
            0 => self.world.server.live_token(at),
            1 => self.world.server.live_token(at).and_then(|token| Token::new(token.get() - 1)),
            _ => None,
        }
    }

    /// Returns one of two connections of the owner: a retry may come on another one.
    fn client_of(&mut self, owner: Name) -> u64 {
        let (first, which) = (u64::from(owner.as_bytes()[0]) * 10, self.random.below(2));
        // A server does not read from a client that is blocked.
        if self.world.is_blocked(first + which) { first + 1 - which } else { first + which }
    }

    fn input(&mut self) -> Input {
        let (at, owner) = (self.at(), self.random.of(&OWNERS));
        let client = self.client_of(owner);
        if std::mem::take(&mut self.is_pump_next) {
            return Input::Pump;
        }
        if let Some(at) = self.is_restore_next.take() {
            return Input::Restore(at);
        }
        if self.oracle.has_lapsed() {
            return self.pump();
        }
        if self.is_pump_first && self.oracle.has_one_of_many_over() {
            return if self.world.writes == Writes::Paused {
                Input::Writes(Writes::Allowed)
            } else {
                self.pump()
            };
        }
        if self.world.writes != Writes::Allowed && self.random.percent(10) {
            return Input::Writes(Writes::Allowed);
        }
        if let Some(input) = self.in_between() {
            return input;
        }
        let lease_ms = (1 + self.random.below(40)).min(self.lease_ms_max());
        match self.random.below(100) {
            0..38 => {
                let wait = [None, Some(0), Some(0), Some(1 + self.random.below(30))];
                let (wait, minted) = (self.random.of(&wait), self.random.percent(5));
                if self.kinds != Kinds::Plain && self.random.percent(15) {
                    let (keys, is_shared) = (self.several(at.db), self.random.percent(40));
                    // An owner that was just minted never repeats its request.
                    return Input::AcquireMany {
                        keys,
                        owner,
                        lease_ms,
                        wait,
                        client,
                        minted: false,
                        is_shared,
                    };
                }
                let how = self.how(at);
                let place_ms = (1 + self.random.below(20)).min(self.lease_ms_max());
                let wait = if how.is_reservation { Some(place_ms) } else { wait };
                // A minted owner has no reservation to return to.
                let minted = minted && !how.is_reservation;
                let owner = if minted { self.world.next_owner() } else { owner };
                Input::Acquire { at, owner, lease_ms, wait, client, minted, how }
            }
            38..50 => Input::Release { at, owner, token: self.token(at) },
            50..56 => {
                let raise = self.random.percent(20) && !self.world.confirms;
                let raise = if raise { self.token_around(at) } else { None };
                let token = if raise.is_some() { None } else { self.token(at) };
                Input::Renew { at, owner, token, raise, lease_ms, client }
            }
            56..70 => Input::Pass(self.random.below(12_000 / self.grain_us) * self.grain_us),
            70..83 => self.pump(),
            83..86 => Input::Close(client),
            86 => Input::Unblock(client),
            87..93 => self.keys(at),
            93 => Input::Free,
            94..96 => self.clocks(at),
            96..98 => self.settings(client),
            _ => self.readers(),
        }
    }

    /// Chooses an outcome for pending confirmations and replies, which clients do not request.
    fn in_between(&mut self) -> Option<Input> {
        let confirming: Vec<u64> = self.world.confirming().into_iter().map(|(client, _)| client).collect();
        if !confirming.is_empty() && self.random.percent(6) {
            return Some(Input::Unblock(self.random.of(&confirming)));
        }
        if self.world.blocked.values().any(|blocked| blocked.number == 0) && self.random.percent(12) {
            return Some(Input::Confirmed);
        }
        if let Some(grant) = self.world.in_flight.first()
            && self.random.percent(5)
        {
            return Some(Input::Close(grant.client));
        }
        self.payload_for_waiters()
    }

    /// Returns a token of another server: a little below the newest, above it, or that of an unconfirmed grant.
    fn token_around(&mut self, at: At) -> Option<Token> {
        let confirming = self.world.confirming().into_iter().flat_map(|(_, holds)| holds);
        let tokens: Vec<Token> = confirming.filter(|hold| hold.at == at).map(|hold| hold.token).collect();
        if !tokens.is_empty() && self.random.percent(50) {
            return Some(self.random.of(&tokens));
        }
        let last = self.world.server.table().last_token();
        let above = (last + self.random.below(12)).saturating_sub(8);
        Token::new(above.min(self.world.highest_from_outside()))
    }

    /// A lease that the server may forget must end before the quarantine does.
    const fn lease_ms_max(&self) -> u64 {
        if self.world.quarantine_ms > 0 { self.world.quarantine_ms } else { u64::MAX }
    }

    /// Returns two or three keys of one database.
    fn several(&mut self, db: u32) -> Keys {
        let first = self.random.below(3) as usize;
        let mut ats: Vec<At> = (0..3).map(|n| At::new(db, NAMES[(first + n) % 3])).collect();
        ats.truncate(2 + self.random.below(2) as usize);
        if self.random.percent(50) {
            ats.reverse();
        }
        Keys::of(&ats)
    }

    /// Chooses the mode of a request: mostly the one in which the lock is held.
    fn how(&mut self, at: At) -> How {
        if self.kinds == Kinds::Plain {
            return How::PLAIN;
        }
        let held = self.oracle.holds(at).first().map(|hold| hold.mode);
        let modes =
            [Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Limit(2), Mode::Limit(3)];
        let mut mode = self.random.of(&modes);
        if let Some(held) = held.filter(|held| !held.agrees_with(mode)) {
            mode = if self.random.percent(90) { held } else { mode };
        }
        let cut_ms = [0, 1, 7, 30][self.random.below(4) as usize].min(self.lease_ms_max());
        let binding = Binding {
            ephemeral_ms: self.random.percent(10).then_some(cut_ms),
            // An unconfirmed lease of this kind has no bounded end.
            is_keepalive: self.random.percent(8) && !self.world.confirms,
            is_running: false,
        };
        let is_count_lowered = tuning::count_max(COUNT_MAX) < COUNT_MAX;
        let reentrant_percent = if is_count_lowered { 50 } else { 16 };
        How {
            mode,
            is_reentrant: self.random.percent(reentrant_percent)
                && mode == Mode::Exclusive
                && !self.world.confirms,
            binding,
            is_reservation: self.random.percent(15),
        }
    }

    /// Returns a run of the pump, or the time until it can run.
    fn pump(&mut self) -> Input {
        let rest = self.world.server.now.boot.0 % 1_000;
        self.is_pump_next = rest != 0;
        if rest == 0 { Input::Pump } else { Input::Pass(1_000 - rest) }
    }

    /// Chooses a change of keys by another client.
    fn keys(&mut self, at: At) -> Input {
        let other = self.at();
        match self.random.below(13) {
            0 => self.payload(at),
            1 => Input::Del(at),
            2 => Input::Set(at),
            3 => Input::Rename(at, At::new(at.db, other.name)),
            4 => Input::Move(at, other.db),
            5 => Input::Swap(at.db, other.db),
            6 => {
                let lazy = self.random.of(&[Lazy::No, Lazy::Yes]);
                Input::Flush([Some(at.db), None][usize::from(self.random.percent(50))], lazy)
            }
            7 => Input::Dump(at),
            8 if self.world.is_payload_old() => Input::RestoreTooLate(at),
            9 | 10 => Input::Expire(at),
            _ => Input::Restore(at),
        }
    }

    /// Returns the payload of a lock of another server.
    fn payload(&mut self, at: At) -> Input {
        let (owner, ahead) = (self.random.of(&OWNERS), self.random.below(100_000));
        let last = self.world.server.table().last_token();
        let Some(token) = Token::new(last + ahead) else {
            return self.pump();
        };
        let (left_ms, how) = (self.random.below(40), self.how(at));
        let beside = self.random.of(&OWNERS);
        let beside = Some(beside).filter(|&beside| self.kinds != Kinds::Plain && beside != owner);
        Input::Payload { name: at.name, owner, token, left_ms, how, beside }
    }

    /// Returns a payload that owners hold that wait for it here. It is restored next.
    fn payload_for_waiters(&mut self) -> Option<Input> {
        let waited_for: Vec<At> = self.oracle.waiters.iter().flat_map(|waiter| waiter.keys.iter()).collect();
        if self.kinds != Kinds::Restored || waited_for.is_empty() || !self.random.percent(4) {
            return None;
        }
        let at = self.random.of(&waited_for);
        let in_line = self.oracle.waiters.iter().filter(|waiter| waiter.keys.contains(at));
        let in_line: Vec<Name> = in_line.map(|waiter| waiter.owner).collect();
        let owner = self.random.of(&in_line);
        let others: Vec<Name> = in_line.into_iter().filter(|&other| other != owner).collect();
        let beside = (!others.is_empty()).then(|| self.random.of(&others));
        let token = Token::new(self.world.server.table().last_token() + self.random.below(100_000))?;
        let mode = self.random.of(&[Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Limit(2)]);
        let (left_ms, how) = (1 + self.random.below(40), How { mode, ..self.how(at) });
        self.is_restore_next = Some(at);
        Some(Input::Payload { name: at.name, owner, token, left_ms, how, beside })
    }

    fn clocks(&mut self, at: At) -> Input {
        let wall_us = self.world.server.now.wall_us;
        match self.random.below(4) {
            0 => Input::Wall(wall_us + self.random.below(40_000)),
            1 => Input::Wall(wall_us + 3_600_000_000),
            2 => Input::Wall(wall_us.saturating_sub(7_200_000_000)),
            _ => Input::Fence(at),
        }
    }

    /// Chooses a change of settings. They are changed back sooner or later, so that the common case stays common.
    fn settings(&mut self, client: u64) -> Input {
        match self.random.below(9) {
            7 | 8 => Input::Confirm(self.random.percent(25)),
            6 => {
                let length_ms = self.random.of(&[0, 0, 5, 20]);
                Input::Quarantine(length_ms, self.random.percent(50))
            }
            0 | 1 => match self.world.forbidden.first() {
                Some(&client) => Input::Forbid(client, false),
                None => Input::Forbid(client, true),
            },
            2 => {
                let [waiters_per_lock_max, waiters_max] = [4, 8].map(|max| self.random.below(max) as usize);
                // The limit of holders is only ever raised: lowering it revokes no hold.
                Input::Limits(Limits { waiters_per_lock_max, waiters_max, ..self.world.limits })
            }
            3 | 4 => Input::Limits(Limits::of(1000, 1000, 1000)),
            _ => Input::Writes(self.random.of(&[Writes::Refused, Writes::Paused])),
        }
    }

    fn readers(&mut self) -> Input {
        let count = self.world.readers.len();
        match self.random.below(6) {
            0 if count < 3 => Input::NewReplica(self.random.of(&[0, 0, 1, 50_000])),
            1 if count < 3 => Input::NewFile,
            2 => Input::NewFileOfReplica,
            3 if count > 0 && self.grain_us == 1000 => {
                Input::Promote(self.random.below(count as u64) as usize)
            }
            _ => self.pump(),
        }
    }
}

/// Cases that must have happened in these runs, or they prove nothing.
const SOMETIMES: [&str; 26] = [
    "broken",
    "demoted",
    "expired and passed on",
    "forbidden",
    "granted at once",
    "granted out of the line",
    "left the line",
    "line full",
    "promoted",
    "quarantined",
    "raised",
    "release refused",
    "released",
    "renewed",
    "renewed, shorter",
    "replaced",
    "restored",
    "retried",
    "retried, lease kept",
    "server full",
    "taken back",
    "taken back and passed on",
    "timed out",
    "waited",
    "withdrawn",
    "wrong type",
];

/// Cases that must have happened, too, in the runs with locks of all kinds.
const SOMETIMES_OF_ALL_KINDS: [&str; 27] = [
    "cut",
    "deadlock",
    "deadlock beyond the search",
    "downgraded",
    "ended where a lock had arrived",
    "granted beside others",
    "granted several at once",
    "granted several out of the line",
    "held once more",
    "held otherwise",
    "held too many times",
    "kept by another life",
    "kept until here",
    "one count released",
    "one of several not raised",
    "one of several released",
    "other kind",
    "place in line",
    "place lapsed",
    "place withdrawn",
    "refused, older request kept",
    "retried after an undelivered grant",
    "revoked before another request",
    "told of a lock that arrived",
    "told of another type",
    "took its place",
    "waited for several",
];

/// Runs one life, and returns the cases that it saw.
fn live(seed: u64, steps: u64, kinds: Kinds) -> Result<BTreeSet<&'static str>, String> {
    let lowered = Lowered::of(seed);
    lowered.during(|| {
        let mut life = Life::new(seed, kinds)?;
        for number in 0..steps {
            life.step().map_err(|wrong| format!("seed {seed}, {lowered:?}, step {number}: {wrong}"))?;
        }
        Ok(life.judge.seen)
    })
}

/// Lives `lives` lives, and checks that each case in `sometimes` happened in one of them.
fn live_all(lives: u64, kinds: Kinds, sometimes: &[&str]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for seed in 0..lives {
        seen.append(&mut live(seed, 2_000, kinds)?);
    }
    let missing: Vec<_> = sometimes.iter().filter(|what| !seen.contains(*what)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("never in {lives} lives: {missing:?}")) }
}

#[test]
fn the_core_agrees_with_the_oracle_and_keeps_every_guarantee() -> Result<(), String> {
    live_all(100, Kinds::Plain, &SOMETIMES)
}

#[cfg(feature = "sabotage")]
#[test]
fn events_that_go_out_at_once_are_heard_in_the_wrong_order() {
    let wrong = sabotage::without(Some(Rule::EventOrder), || live_all(1, Kinds::Plain, &[]));
    assert!(wrong.is_err_and(|wrong| wrong.contains("G15")));
}

/// Puts back faults that a second review found in the module: oracle, judge and readers must each report them
/// independently.
#[cfg(feature = "sabotage")]
#[test]
fn bugs_that_are_put_back_are_found() {
    for rule in [Rule::BesideReservations, Rule::TimeToLive, Rule::WrittenOver, Rule::RefusedKeepsPlace] {
        let existing = sabotage::without(Some(rule), || live_all(20, Kinds::All, &[]));
        assert!(existing.is_err(), "nobody noticed that {rule:?} is not kept");
    }
}

/// Lives with locks of all kinds, and their mixtures. `REDISLOCK_LIVES` requests more lives.
#[test]
fn the_core_agrees_with_the_oracle_with_locks_of_all_kinds() -> Result<(), String> {
    let asked = std::env::var("REDISLOCK_LIVES").ok().and_then(|lives| lives.parse().ok());
    live_all(asked.unwrap_or(150), Kinds::Restored, &[&SOMETIMES[..], &SOMETIMES_OF_ALL_KINDS[..]].concat())
}
