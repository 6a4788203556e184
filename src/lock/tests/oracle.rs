//! The rules of locking once more, as plainly as they can be written: two lists and linear search.
//!
//! No numbers, no deadlines, no notes for a pump: whoever runs the oracle's pump looks at everything.
//! It is told what came of a step only to learn which of several grants of one run got which token;
//! that the tokens are the right ones is checked.

use super::input::{Input, Outcome, Reply, Writes};
use super::server::{At, Key, Name};
use super::world::World;
use crate::lock::effect::Answer;
use crate::lock::table::{NO_PERMISSION, Refusal};
use crate::lock::token::JUMP_US;

#[derive(Clone, Copy, Debug)]
struct Hold {
    owner: Name,
    token: u64,
    until: u64,
    is_known: bool,
    is_undelivered: bool,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Other,
    Lock(Option<Hold>),
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    wait: u32,
    at: At,
    owner: Name,
    client: u64,
    lease_ms: u64,
    until: Option<u64>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Oracle {
    keys: Vec<(At, Value)>,
    /// Everybody who waits for anything, in the order in which they came.
    waiters: Vec<Waiter>,
    last_token: u64,
    dump: Option<(Name, Option<Hold>)>,
    forbidden: Vec<u64>,
    writes: Writes,
    line_max: usize,
    waiters_max: usize,
    waits: u32,
    time: u64,
    wall_us: u64,
    /// What the running step must have said.
    answers: Vec<(u32, &'static str)>,
    minted: Vec<u64>,
}

impl Oracle {
    pub(super) fn new(world: &World) -> Self {
        Self {
            line_max: world.limits.waiters_per_lock_max,
            waiters_max: world.limits.waiters_max,
            wall_us: world.server.now.wall_us,
            ..Self::default()
        }
    }

    /// Does the same, and compares what came of it.
    pub(super) fn compare(&mut self, input: &Input, out: &Outcome, world: &World) -> Result<(), String> {
        self.answers.clear();
        self.minted.clear();
        let first_token = self.next_token();
        let reply = match *input {
            Input::Acquire { .. } | Input::Release { .. } | Input::Renew { .. }
                if self.writes != Writes::Allowed =>
            {
                Reply::None
            }
            Input::Acquire { at, owner, lease_ms, wait, client, .. } => {
                let until = wait.filter(|&ms| ms != 0).map(|ms| self.time + ms * 1000);
                let waiter = Waiter { wait: 0, at, owner, client, lease_ms, until };
                self.acquire(waiter, wait.is_some(), out)
            }
            Input::Release { at, owner, token } => self.release(at, owner, token.map(|t| t.get()), out),
            Input::Renew { at, owner, token, lease_ms, .. } => {
                self.renew(at, owner, token.map(|t| t.get()), lease_ms, out)
            }
            Input::Pump => self.pump(out),
            Input::Promote(_) => self.promote(world),
            _ => self.happen(input, out),
        };
        self.compare_outcome(reply, first_token, out)?;
        self.compare_state(world)
    }

    fn compare_outcome(&mut self, reply: Reply, first_token: u64, out: &Outcome) -> Result<(), String> {
        if reply != out.reply {
            return Err(format!("the oracle expected {reply:?}, not {:?}", out.reply));
        }
        let mut said: Vec<_> = out.answers.iter().map(|told| (told.wait, in_words(&told.answer))).collect();
        said.sort_unstable();
        self.answers.sort_unstable();
        if said != self.answers {
            return Err(format!("the oracle expected {:?}, not {said:?}", self.answers));
        }
        self.minted.sort_unstable();
        if !self.minted.iter().copied().eq((first_token..).take(self.minted.len())) {
            return Err(format!("the oracle expected tokens from {first_token}, not {:?}", self.minted));
        }
        self.last_token = self.minted.last().copied().unwrap_or(self.last_token);
        Ok(())
    }

    fn compare_state(&self, world: &World) -> Result<(), String> {
        let server = &world.server;
        let differ =
            |at: At, what: &dyn std::fmt::Debug| Err(format!("at {at} the oracle expected {what:?}"));
        if self.keys.len() != server.keys.len() || self.waiters.len() != server.table.waiters() {
            return Err(format!("the oracle expected {:?} and {:?}", self.keys, self.waiters));
        }
        for &(at, ref value) in &self.keys {
            let saved = server.saved(at);
            let is_same = match (value, server.keys.get(&at)) {
                (Value::Other, Some(Key::Other)) => true,
                (Value::Lock(None), Some(Key::Lock(_))) => saved.is_none(),
                (Value::Lock(Some(hold)), Some(Key::Lock(_))) => saved.is_some_and(|saved| {
                    let left_ms = hold.until.saturating_sub(self.time).div_ceil(1000);
                    *saved.owner == *hold.owner.as_bytes()
                        && saved.token.get() == hold.token
                        && saved.left_ms == left_ms
                }),
                _ => false,
            };
            if !is_same {
                return differ(at, value);
            }
        }
        for at in self.waiters.iter().map(|waiter| waiter.at) {
            let line = self.waiters.iter().filter(|waiter| waiter.at == at);
            let expected: Vec<_> = line.map(|waiter| (waiter.owner.as_bytes(), waiter.client)).collect();
            let described = server.table.describe(server.now.boot, at.place(), server.found(at), usize::MAX);
            let line = described.map(|described| described.line).unwrap_or_default();
            if !line.iter().map(|view| (view.owner, view.client.0)).eq(expected.iter().copied()) {
                return differ(at, &expected);
            }
        }
        Ok(())
    }

    fn next_token(&self) -> u64 {
        if self.wall_us >= self.last_token + JUMP_US { self.wall_us } else { self.last_token + 1 }
    }

    fn value(&mut self, at: At) -> Option<&mut Value> {
        self.keys.iter_mut().find(|key| key.0 == at).map(|key| &mut key.1)
    }

    fn hold(&mut self, at: At) -> Option<&mut Hold> {
        match self.value(at) {
            Some(Value::Lock(Some(hold))) => Some(hold),
            _ => None,
        }
    }

    fn live(&mut self, at: At) -> Option<&mut Hold> {
        let time = self.time;
        self.hold(at).filter(|hold| hold.until > time)
    }

    fn own(&mut self, at: At, owner: Name, token: Option<u64>) -> Option<&mut Hold> {
        self.live(at).filter(|hold| hold.owner == owner && token.is_none_or(|token| token == hold.token))
    }

    fn put(&mut self, at: At, value: Option<Value>) {
        self.keys.retain(|key| key.0 != at);
        self.keys.extend(value.map(|value| (at, value)));
    }

    fn is_waited_for(&self, at: At) -> bool {
        self.waiters.iter().any(|waiter| waiter.at == at)
    }

    fn begin(&mut self, asked: Waiter, token: u64) {
        self.minted.push(token);
        let until = self.time + asked.lease_ms * 1000;
        let hold = Hold { owner: asked.owner, token, until, is_known: false, is_undelivered: false };
        self.put(asked.at, Some(Value::Lock(Some(hold))));
    }

    /// The hold here has ended: the next in line gets the lock, or the key goes.
    fn pass_on(&mut self, at: At, out: &Outcome) {
        self.put(at, None);
        self.grant_next(at, out);
    }

    fn grant_next(&mut self, at: At, out: &Outcome) {
        while let Some(index) = self.waiters.iter().position(|waiter| waiter.at == at) {
            let waiter = self.waiters[index];
            if waiter.until.is_some_and(|until| until <= self.time) {
                self.answers.push((waiter.wait, "timed out"));
            } else if self.writes != Writes::Allowed {
                return;
            } else if self.forbidden.contains(&waiter.client) {
                self.answers.push((waiter.wait, "forbidden"));
            } else {
                self.answers.push((waiter.wait, "granted"));
                let told = out.answers.iter().find(|told| told.wait == waiter.wait);
                let token = match told.map(|told| &told.answer) {
                    Some(Answer::Granted { token, .. }) => token.get(),
                    _ => 0,
                };
                self.begin(waiter, token);
                self.waiters.remove(index);
                return;
            }
            self.waiters.remove(index);
        }
    }

    fn acquire(&mut self, asked: Waiter, wants_to_wait: bool, out: &Outcome) -> Reply {
        let Waiter { at, owner, lease_ms, .. } = asked;
        if self.live(at).is_none() {
            if self.hold(at).is_some() {
                self.pass_on(at, out);
            } else {
                self.grant_next(at, out);
            }
        }
        let until = self.time + lease_ms * 1000;
        if let Some(hold) = self.own(at, owner, None) {
            hold.until = hold.until.max(until);
            (hold.is_known, hold.is_undelivered) = (true, false);
            let token = hold.token;
            return granted(token);
        }
        if self.live(at).is_none() {
            if matches!(self.value(at), Some(Value::Other)) {
                return Reply::Refused(Refusal::WrongType);
            }
            let token = self.next_token();
            self.begin(asked, token);
            if let Some(hold) = self.hold(at) {
                hold.is_known = true;
            }
            return granted(token);
        }
        if !wants_to_wait {
            return Reply::Busy;
        }
        let asked = Waiter { wait: self.waits + 1, ..asked };
        let is_same = |waiter: &&mut Waiter| waiter.at == at && waiter.owner == owner;
        if let Some(old) = self.waiters.iter_mut().find(is_same) {
            self.answers.push((old.wait, "replaced"));
            *old = asked;
        } else if self.waiters.iter().filter(|waiter| waiter.at == at).count() >= self.line_max {
            return Reply::Refused(Refusal::LineIsFull(self.line_max));
        } else if self.waiters.len() >= self.waiters_max {
            return Reply::Refused(Refusal::ServerIsFull(self.waiters_max));
        } else {
            self.waiters.push(asked);
        }
        self.waits += 1;
        Reply::Waiting(self.waits)
    }

    fn release(&mut self, at: At, owner: Name, token: Option<u64>, out: &Outcome) -> Reply {
        if matches!(self.value(at), Some(Value::Other)) && !self.is_waited_for(at) {
            return Reply::Refused(Refusal::WrongType);
        }
        if let Some(index) = self.waiters.iter().position(|w| w.at == at && w.owner == owner) {
            self.answers.push((self.waiters.remove(index).wait, "withdrawn"));
        }
        let is_own = self.own(at, owner, token).is_some();
        let is_over = self.hold(at).is_some() && self.live(at).is_none();
        if is_own || is_over {
            self.pass_on(at, out);
        }
        Reply::Bool(is_own)
    }

    fn renew(&mut self, at: At, owner: Name, token: Option<u64>, lease_ms: u64, out: &Outcome) -> Reply {
        if matches!(self.value(at), Some(Value::Other)) && !self.is_waited_for(at) {
            return Reply::Refused(Refusal::WrongType);
        }
        let until = self.time + lease_ms * 1000;
        if let Some(hold) = self.own(at, owner, token) {
            hold.until = until;
            (hold.is_known, hold.is_undelivered) = (true, false);
            return Reply::Bool(true);
        }
        if self.hold(at).is_some() && self.live(at).is_none() {
            self.pass_on(at, out);
        }
        Reply::Bool(false)
    }

    fn pump(&mut self, out: &Outcome) -> Reply {
        let time = self.time;
        let answers = &mut self.answers;
        self.waiters.retain(|waiter| {
            let is_over = waiter.until.is_some_and(|until| until <= time);
            if is_over {
                answers.push((waiter.wait, "timed out"));
            }
            !is_over
        });
        if self.writes == Writes::Paused {
            return Reply::None;
        }
        let ends = |hold: Hold| hold.until <= time || hold.is_undelivered;
        let is_over = |value: Value| matches!(value, Value::Lock(Some(hold)) if ends(hold));
        self.keys.retain(|&(_, value)| !is_over(value));
        let places: Vec<At> = self.waiters.iter().map(|waiter| waiter.at).collect();
        for at in places {
            let Some(holder) = self.live(at).map(|hold| hold.owner) else {
                self.grant_next(at, out);
                continue;
            };
            // A RESTORE made it hold what it waits for.
            let answers = &mut self.answers;
            self.waiters.retain(|waiter| {
                let holds = waiter.at == at && waiter.owner == holder;
                if holds {
                    answers.push((waiter.wait, "granted"));
                }
                !holds
            });
        }
        Reply::None
    }

    fn promote(&mut self, world: &World) -> Reply {
        self.answers.extend(self.waiters.drain(..).map(|waiter| (waiter.wait, "demoted")));
        for (at, value) in &mut self.keys {
            if let (Value::Lock(Some(hold)), Some(saved)) = (value, world.server.saved(*at)) {
                // What came by way of a reader may last longer; the judge has seen that it is not shorter.
                hold.until = self.time + saved.left_ms * 1000;
                (hold.is_known, hold.is_undelivered) = (true, false);
            }
        }
        // The new primary may have had higher tokens in an earlier life; the judge sees to it that none is lower.
        self.last_token = self.last_token.max(world.server.table.last_token());
        Reply::Bool(true)
    }

    /// What happens to keys and settings.
    fn happen(&mut self, input: &Input, out: &Outcome) -> Reply {
        match *input {
            Input::Fence(at) => {
                let token = self.live(at).map(|hold| hold.token);
                return Reply::Token(token.and_then(crate::lock::types::Token::new));
            }
            Input::Del(at) => {
                let is_there = self.value(at).is_some();
                self.put(at, None);
                return Reply::Bool(is_there);
            }
            Input::Set(at) => self.put(at, Some(Value::Other)),
            Input::Rename(from, to) => return Reply::Bool(from != to && self.rename(from, to)),
            Input::Move(at, db) => {
                let to = At { db, ..at };
                return Reply::Bool(to != at && self.value(to).is_none() && self.rename(at, to));
            }
            Input::Flush(db, _) => self.keys.retain(|key| db.is_some_and(|db| db != key.0.db)),
            Input::Swap(a, b) if a != b => self.swap(a, b),
            Input::Swap(..) => {}
            Input::Dump(at) => {
                let Some(&mut Value::Lock(hold)) = self.value(at) else { return Reply::Bool(false) };
                // A dump counts whole milliseconds, and its lease stands still while it is under way.
                let left_us = |hold: Hold| hold.until.saturating_sub(self.time).next_multiple_of(1000);
                self.dump = Some((at.name, hold.map(|hold| Hold { until: left_us(hold), ..hold })));
            }
            Input::Restore(at) => return self.restore(at),
            Input::RestoreTooLate(at) => {
                let is_there = self.value(at).is_some();
                if self.dump.is_some() {
                    self.put(at, None);
                    return Reply::Bool(is_there);
                }
                return Reply::None;
            }
            Input::Close(client) => {
                self.waiters.retain(|waiter| waiter.client != client);
                for &(at, token) in &out.undelivered {
                    if let Some(hold) = self.hold(at).filter(|hold| hold.token == token.get()) {
                        hold.is_undelivered = !hold.is_known;
                    }
                }
                return Reply::None;
            }
            _ => {
                self.set(input);
                return Reply::None;
            }
        }
        Reply::Bool(true)
    }

    fn set(&mut self, input: &Input) {
        match *input {
            Input::Payload { name, owner, token, left_ms } => {
                let hold = Hold {
                    owner,
                    token: token.get(),
                    until: left_ms * 1000,
                    is_known: true,
                    is_undelivered: false,
                };
                self.dump = Some((name, Some(hold)));
            }
            Input::Unblock(client) => self.waiters.retain(|waiter| waiter.client != client),
            Input::Forbid(client, true) => self.forbidden.push(client),
            Input::Forbid(client, false) => self.forbidden.retain(|&other| other != client),
            Input::Limit { per_lock, total } => (self.line_max, self.waiters_max) = (per_lock, total),
            Input::Writes(writes) => self.writes = writes,
            Input::Pass(us) => self.time += us,
            Input::Wall(wall_us) => self.wall_us = wall_us,
            // Readers are no business of the oracle's.
            _ => {}
        }
    }

    fn rename(&mut self, from: At, to: At) -> bool {
        let Some(&mut value) = self.value(from) else { return false };
        self.put(from, None);
        self.put(to, Some(emptied(value)));
        true
    }

    fn swap(&mut self, a: u32, b: u32) {
        for (at, value) in self.keys.iter_mut().filter(|(at, _)| at.db == a || at.db == b) {
            at.db = if at.db == a { b } else { a };
            *value = emptied(*value);
        }
    }

    fn restore(&mut self, at: At) -> Reply {
        let Some((name, hold)) = self.dump else { return Reply::Bool(false) };
        let hold = hold.filter(|_| name == at.name);
        let hold = hold.map(|hold| Hold {
            until: self.time + hold.until,
            is_known: true,
            is_undelivered: false,
            ..hold
        });
        self.put(at, Some(Value::Lock(hold)));
        self.last_token = self.last_token.max(hold.map_or(0, |hold| hold.token));
        Reply::Bool(true)
    }
}

/// A hold is tied to its name.
const fn emptied(value: Value) -> Value {
    match value {
        Value::Lock(_) => Value::Lock(None),
        Value::Other => Value::Other,
    }
}

fn granted(token: u64) -> Reply {
    crate::lock::types::Token::new(token).map_or(Reply::None, Reply::Granted)
}

fn in_words(answer: &Answer) -> &'static str {
    match *answer {
        Answer::Granted { .. } => "granted",
        Answer::TimedOut => "timed out",
        Answer::Withdrawn => "withdrawn",
        Answer::Replaced => "replaced",
        Answer::Demoted => "demoted",
        Answer::Refused(NO_PERMISSION) => "forbidden",
        Answer::Refused(_) => "refused",
        Answer::Moved(_) => "sent on",
    }
}
