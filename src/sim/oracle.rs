//! The rules of locking once more, as plainly as they can be written: two lists and linear search.
//!
//! The oracle has no numbers, no deadlines, and no notes for a pump: its pump examines everything. It learns two
//! things from the outcome of a step: which of several grants got which token, and whether the core examined a queue
//! for which nothing was freed. Tokens and grants are checked. [`crate::sim::oracle::rules`] has the requests of
//! clients.

pub(crate) mod pumped;
pub(crate) mod rules;

use std::collections::BTreeSet;

use crate::command::error::{COUNTED_UNCONFIRMED, KEPT_UNCONFIRMED, LONGER_THAN_QUARANTINE};
use crate::lock::codec::{SavedHold, SavedLock};
use crate::lock::effect::Answer;
use crate::lock::table::{ARRIVED, Limits, NO_PERMISSION, NO_PERMISSION_FOR_SEVERAL, Refusal, WRONG_TYPE};
use crate::lock::token::JUMP_US;
use crate::lock::types::{Binding, Mode, Token};
use crate::sim::checkers::book::{Hold, is_free_for};
use crate::sim::single::input::{Input, Keys, Outcome, Reply, Writes};
use crate::sim::single::server::{At, Key, Name};
use crate::sim::single::world::{TOKEN_LEAD_US_MAX, World};

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Other,
    /// In the order of their tokens.
    Lock(Vec<Hold>),
}

/// A request in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) wait: u32,
    pub(crate) keys: Keys,
    pub(crate) owner: Name,
    /// `None` for a reservation without a connection (QUEUE).
    pub(crate) client: Option<u64>,
    pub(crate) lease_ms: u64,
    pub(crate) until: Option<u64>,
    pub(crate) mode: Mode,
    pub(crate) binding: Binding,
    pub(crate) is_reentrant: bool,
}

impl Waiter {
    /// Returns true for a reservation of a place alongside the holders. A reservation of the whole lock blocks all
    /// others.
    pub(crate) fn is_reserved(&self) -> bool {
        self.client.is_none() && self.mode != Mode::Exclusive
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) keys: Vec<(At, Value)>,
    /// All waiting requests, in the order in which they must be granted.
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) last_token: u64,
    dump: Option<(Name, Option<SavedLock>)>,
    pub(crate) forbidden: Vec<u64>,
    pub(crate) confirms: bool,
    pub(crate) writes: Writes,
    quarantine_since: Option<u64>,
    pub(crate) quarantine_ms: u64,
    pub(crate) limits: Limits,
    pub(crate) waits: u32,
    pub(crate) time: u64,
    wall_us: u64,
    /// The answers that the running step must have given.
    pub(crate) answers: Vec<(u32, &'static str)>,
    pub(crate) minted: Vec<u64>,
    /// The number of requests that the running step has granted, refused or dropped.
    pub(crate) served: usize,
    /// Keys with a restored lock, and no decision since.
    pub(crate) arrived: BTreeSet<At>,
    pub(crate) is_pumping: bool,
}

impl Oracle {
    pub(crate) fn new(world: &World) -> Self {
        Self { limits: world.limits, wall_us: world.server.now.wall_us, ..Self::default() }
    }

    /// Applies the same input, and compares the outcomes.
    pub(crate) fn compare(&mut self, input: &Input, out: &Outcome, world: &World) -> Result<(), String> {
        (self.answers, self.minted, self.is_pumping) = (Vec::new(), Vec::new(), *input == Input::Pump);
        self.served = 0;
        for (at, value) in &mut self.keys {
            if let Value::Lock(holds) = value {
                holds.iter_mut().for_each(|hold| hold.replied(*at, out));
            }
        }
        let reply = match *input {
            Input::Acquire { .. }
            | Input::AcquireMany { .. }
            | Input::Release { .. }
            | Input::Renew { .. }
                if self.writes != Writes::Allowed =>
            {
                Reply::None
            }
            Input::Acquire { .. } | Input::AcquireMany { .. } => self.acquire(input, out),
            Input::Release { at, owner, token } => self.release(at, owner, token, out),
            Input::Renew { .. } => self.renew(input, out),
            Input::Pump => self.pump(out, world),
            Input::Promote(_) => self.promote(world),
            _ => self.happen(input, world),
        };
        self.compare_outcome(&reply, out)?;
        self.compare_state(world)
    }

    /// Handles an acquire. If it is refused it replaces nothing: the older requests of its owner keep their places
    /// (G9).
    fn acquire(&mut self, input: &Input, out: &Outcome) -> Reply {
        let (keys, owner, mode) = match *input {
            Input::Acquire { at, owner, how, .. } => (Keys::one(at), owner, how.mode),
            Input::AcquireMany { keys, owner, is_shared: true, .. } => (keys, owner, Mode::Shared),
            Input::AcquireMany { keys, owner, .. } => (keys, owner, Mode::Exclusive),
            _ => return Reply::None,
        };
        keys.iter().for_each(|at| self.end_for_arrived(at));
        let is_freed = self.revoke_own(keys, owner, mode);
        keys.iter().for_each(|at| self.look(at, is_freed, out));
        let before = (self.waiters.clone(), self.answers.clone());
        let reply = if matches!(input, Input::Acquire { .. }) {
            self.acquire_one(input, out)
        } else {
            self.acquire_many(input, out)
        };
        if matches!(reply, Reply::Refused(_)) {
            (self.waiters, self.answers) = before;
        }
        reply
    }

    fn compare_outcome(&mut self, reply: &Reply, out: &Outcome) -> Result<(), String> {
        let is_same = match (reply, &out.reply) {
            // The judge checks the rest of their content.
            (Reply::Refused(Refusal::OtherKind(_)), Reply::Refused(Refusal::OtherKind(_))) => true,
            (reply, own) => reply == own,
        };
        if !is_same {
            return Err(format!("the oracle expected {reply:?}, not {:?}", out.reply));
        }
        let mut said: Vec<_> = out.answers.iter().map(|told| (told.wait, in_words(&told.answer))).collect();
        said.sort_unstable();
        self.answers.sort_unstable();
        if said != self.answers {
            return Err(format!(
                "the oracle expected {:?}, not {said:?}: {:?} {:?}",
                self.answers, self.keys, self.waiters
            ));
        }
        self.minted.sort_unstable();
        // A token that was raised in this step was raised before any grant.
        let first_token = self.next_token();
        if !self.minted.iter().copied().eq((first_token..).take(self.minted.len())) {
            return Err(format!("the oracle expected tokens from {first_token}, not {:?}", self.minted));
        }
        self.last_token = self.minted.last().copied().unwrap_or(self.last_token);
        Ok(())
    }

    fn compare_state(&self, world: &World) -> Result<(), String> {
        let server = &world.server;
        let differ = |at: At, expected: &dyn std::fmt::Debug, is: &dyn std::fmt::Debug| {
            Err(format!("at {at} the oracle expected {expected:?}, and there is {is:?}"))
        };
        if self.last_token != server.table().last_token() {
            return Err(format!("the oracle expected token {} to be the last", self.last_token));
        }
        if self.keys.len() != server.keys.len() || self.stands() != server.table().waiters() {
            return Err(format!("the oracle expected {:?} and {:?}", self.keys, self.waiters));
        }
        for &(at, ref value) in &self.keys {
            let saved = server.saved(at);
            let is_same = match (value, server.keys.get(&at)) {
                (Value::Other, Some(Key::Other)) => true,
                (Value::Lock(holds), Some(&Key::Lock(lock))) => {
                    let table = server.table();
                    let is_known = |hold: &Hold| table.outstanding(lock, hold.token) == hold.outstanding;
                    self.saved(holds) == saved && holds.iter().all(is_known)
                }
                _ => false,
            };
            if !is_same {
                return differ(at, value, &saved);
            }
        }
        let lock_keys: BTreeSet<At> = self.waiters.iter().flat_map(|waiter| waiter.keys.iter()).collect();
        for at in lock_keys {
            let queue = self.waiters.iter().filter(|waiter| waiter.keys.contains(at));
            let expected: Vec<_> = queue.map(|w| (w.owner.as_bytes(), w.client, w.mode)).collect();
            let described = server.described(at, usize::MAX);
            let queue = described.map(|described| described.queue).unwrap_or_default();
            let queue = queue.iter().map(|view| (view.owner, view.client.map(|client| client.0), view.mode));
            if !queue.clone().eq(expected.iter().copied()) {
                return differ(at, &expected, &queue.collect::<Vec<_>>());
            }
        }
        Ok(())
    }

    /// Returns the content of a dump of this lock.
    fn saved(&self, holds: &[Hold]) -> Option<SavedLock> {
        let saved = |hold: &Hold| SavedHold {
            owner: hold.owner.as_bytes().into(),
            token: hold.token,
            left_ms: hold.left_ms(self.time),
            count: hold.count,
            binding: hold.binding,
        };
        Some(SavedLock { mode: holds.first()?.mode, holds: holds.iter().map(saved).collect() })
    }

    /// Returns the number of queue entries: a request for several locks takes one for each.
    pub(crate) fn stands(&self) -> usize {
        self.waiters.iter().map(|waiter| waiter.keys.len()).sum()
    }

    /// Returns true if a reservation was not refreshed in time: then the pump is next, and removes it.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.waiters.iter().any(|w| w.client.is_none() && w.until.is_some_and(|until| until <= self.time))
    }

    pub(crate) const fn next_token(&self) -> u64 {
        if self.wall_us >= self.last_token + JUMP_US { self.wall_us } else { self.last_token + 1 }
    }

    pub(crate) fn value(&mut self, at: At) -> Option<&mut Value> {
        self.keys.iter_mut().find(|key| key.0 == at).map(|key| &mut key.1)
    }

    pub(crate) fn is_other(&self, at: At) -> bool {
        self.keys.iter().any(|key| key.0 == at && matches!(key.1, Value::Other))
    }

    pub(crate) fn holds(&self, at: At) -> &[Hold] {
        match self.keys.iter().find(|key| key.0 == at) {
            Some((_, Value::Lock(holds))) => holds,
            _ => &[],
        }
    }

    pub(crate) fn own(&mut self, at: At, owner: Name) -> Option<&mut Hold> {
        match self.value(at) {
            Some(Value::Lock(holds)) => holds.iter_mut().find(|hold| hold.owner == owner),
            _ => None,
        }
    }

    pub(crate) fn all_holds(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.keys.iter_mut().flat_map(|(_, value)| match value {
            Value::Lock(holds) => holds.iter_mut(),
            Value::Other => [].iter_mut(),
        })
    }

    pub(crate) fn put(&mut self, at: At, value: Option<Value>) {
        self.keys.retain(|key| key.0 != at);
        self.keys.extend(value.map(|value| (at, value)));
    }

    /// Ends the holds here of which `is_over` is true. The last one removes the key. Returns true if there were any.
    pub(crate) fn end(&mut self, at: At, is_over: impl Fn(&Hold) -> bool) -> bool {
        let Some(Value::Lock(holds)) = self.value(at) else { return false };
        let before = holds.len();
        holds.retain(|hold| !is_over(hold));
        let (after, has_ended) = (holds.len(), holds.len() < before);
        if has_ended && after == 0 {
            self.put(at, None);
        }
        has_ended
    }

    pub(crate) fn expire_due_holds(&mut self, at: At) -> bool {
        let time = self.time;
        self.end(at, |hold| !hold.is_live(time))
    }

    /// Returns the remaining quarantine, in milliseconds.
    pub(crate) fn quarantine_left_ms(&self) -> Option<u64> {
        let left_us = (self.quarantine_since? + self.quarantine_ms * 1000).saturating_sub(self.time);
        Some(left_us.div_ceil(1000)).filter(|&left_ms| left_ms > 0)
    }

    pub(crate) fn fits(&self, at: At, mode: Mode, reserved: usize) -> bool {
        let held: Vec<Mode> = self.holds(at).iter().map(|hold| hold.mode).collect();
        self.quarantine_left_ms().is_none() && is_free_for(mode, &held, reserved, self.limits.holders_max)
    }

    pub(crate) fn begin(&mut self, asked: &Waiter, token: Token, client: Option<u64>, is_told_later: bool) {
        self.minted.push(token.get());
        let Waiter { owner, mode, lease_ms, binding, .. } = *asked;
        for at in asked.keys.iter() {
            let new = Hold {
                owner,
                token,
                mode,
                until: self.time + lease_ms * 1000,
                lease_ms,
                count: 1,
                binding,
                client: client.filter(|_| !binding.is_none()),
                outstanding: (is_told_later || self.confirms).then_some(1),
            };
            let mut holds = self.holds(at).to_vec();
            holds.retain(|hold| hold.owner != owner);
            holds.push(new);
            self.put(at, Some(Value::Lock(holds)));
        }
    }

    fn promote(&mut self, world: &World) -> Reply {
        let told = self.waiters.drain(..).filter(|waiter| waiter.client.is_some());
        self.answers.extend(told.map(|waiter| (waiter.wait, "demoted")));
        let time = self.time;
        self.quarantine_since = Some(time);
        for (at, value) in &mut self.keys {
            let saved = world.server.saved(*at).map(|saved| saved.holds).unwrap_or_default();
            if let Value::Lock(holds) = value {
                for (hold, saved) in holds.iter_mut().zip(&saved) {
                    // A lease that came through a reader may last longer; the judge has checked that it is not
                    // shorter.
                    *hold = Hold::read(hold.owner, hold.mode, saved, time);
                }
            }
        }
        // The new primary may have had higher tokens in an earlier life; the judge checks that none is lower.
        self.last_token = self.last_token.max(world.server.table().last_token());
        Reply::Bool(true)
    }

    /// Applies an input to keys and settings.
    fn happen(&mut self, input: &Input, world: &World) -> Reply {
        match *input {
            Input::Fence(at) => {
                let live = self.holds(at).iter().filter(|hold| hold.is_live(self.time));
                return Reply::Token(live.map(|hold| hold.token).max());
            }
            Input::Del(at) => {
                let is_there = self.value(at).is_some();
                self.put(at, None);
                return Reply::Bool(is_there);
            }
            Input::Quarantine(length_ms, is_start) => {
                if is_start {
                    self.quarantine_since = Some(self.time);
                } else if self.quarantine_left_ms().is_none() {
                    self.quarantine_since = None;
                }
                self.quarantine_ms = length_ms;
                return Reply::None;
            }
            Input::Set(at) => self.put(at, Some(Value::Other)),
            Input::Rename(from, to) => return Reply::Bool(from != to && self.rename(from, to)),
            Input::Move(at, db) => {
                let to = At { db, ..at };
                return Reply::Bool(to != at && self.value(to).is_none() && self.rename(at, to));
            }
            Input::Expire(at) => return Reply::Bool(self.value(at).is_some()),
            Input::Flush(db, _) => self.keys.retain(|key| db.is_some_and(|db| db != key.0.db)),
            Input::Swap(a, b) if a != b => self.swap(a, b),
            Input::Swap(..) => {}
            Input::Dump(at) => {
                // A dump counts whole milliseconds, and its lease is paused in transit.
                let Some(Value::Lock(_)) = self.value(at) else { return Reply::Bool(false) };
                self.dump = Some((at.name, self.saved(self.holds(at))));
            }
            Input::Restore(at) => return self.restore(at, world),
            Input::RestoreTooLate(at) => {
                let is_there = self.value(at).is_some();
                if self.dump.is_some() {
                    self.put(at, None);
                    return Reply::Bool(is_there);
                }
                return Reply::None;
            }
            Input::Close(client) => {
                self.close(client);
                return Reply::None;
            }
            _ => {
                self.set(input, world);
                return Reply::None;
            }
        }
        Reply::Bool(true)
    }

    fn set(&mut self, input: &Input, world: &World) {
        match *input {
            Input::Payload { .. } => self.dump.clone_from(&world.dump),
            Input::Unblock(client) => self.waiters.retain(|waiter| waiter.client != Some(client)),
            Input::Forbid(client, true) => self.forbidden.push(client),
            Input::Forbid(client, false) => self.forbidden.retain(|&other| other != client),
            Input::Limits(limits) => self.limits = limits,
            Input::Writes(writes) => self.writes = writes,
            Input::Confirm(confirms) => self.confirms = confirms,
            Input::Pass(us) => self.time += us,
            Input::Wall(wall_us) => self.wall_us = wall_us,
            // The oracle ignores readers.
            _ => {}
        }
    }

    fn rename(&mut self, from: At, to: At) -> bool {
        let Some(value) = self.value(from).cloned() else { return false };
        self.put(from, None);
        self.put(to, Some(emptied(&value)));
        true
    }

    fn swap(&mut self, a: u32, b: u32) {
        for (at, value) in self.keys.iter_mut().filter(|(at, _)| at.db == a || at.db == b) {
            at.db = if at.db == a { b } else { a };
            *value = emptied(value);
        }
    }

    fn restore(&mut self, at: At, world: &World) -> Reply {
        let Some((name, saved)) = self.dump.clone() else { return Reply::Bool(false) };
        let saved = saved.filter(|_| name == at.name);
        let holds: Vec<Hold> = saved
            .iter()
            .flat_map(|lock| lock.holds.iter().map(|hold| (lock.mode, hold)))
            .filter_map(|(mode, hold)| Some(Hold::read(world.owner(&hold.owner)?, mode, hold, self.time)))
            .collect();
        let newest = holds.last().map_or(0, |hold| hold.token.get());
        // It must not push the clock of tokens too far ahead (G14).
        if newest > self.last_token.max(self.wall_us + TOKEN_LEAD_US_MAX) {
            return Reply::Bool(false);
        }
        if !holds.is_empty() {
            self.arrived.insert(at);
        }
        self.put(at, Some(Value::Lock(holds)));
        self.last_token = self.last_token.max(newest);
        Reply::Bool(true)
    }
}

/// A hold is bound to its name.
const fn emptied(value: &Value) -> Value {
    match value {
        Value::Lock(_) => Value::Lock(Vec::new()),
        Value::Other => Value::Other,
    }
}

fn in_words(answer: &Answer) -> &'static str {
    match *answer {
        Answer::Granted { .. } => "granted",
        Answer::TimedOut => "timed out",
        Answer::Withdrawn => "withdrawn",
        Answer::Replaced => "replaced",
        Answer::Demoted => "demoted",
        Answer::Refused(NO_PERMISSION | NO_PERMISSION_FOR_SEVERAL) => "forbidden",
        Answer::Refused(WRONG_TYPE) => "wrong type",
        Answer::Refused(LONGER_THAN_QUARANTINE) => "too long",
        Answer::Refused(KEPT_UNCONFIRMED) => "kept",
        Answer::Refused(COUNTED_UNCONFIRMED) => "counted",
        Answer::Refused(ARRIVED) => "arrived",
        Answer::Refused(_) => "refused",
        Answer::Moved(_) => "sent on",
    }
}
