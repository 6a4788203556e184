//! A primary, its clients and the readers of its stream, without a server.
//!
//! The world does what the edge must do, in its order: key, record, events, answers. It decides nothing.
//! What came of an input is an [`Outcome`], for scenarios to print and for the [judge](super::judge) and
//! the [oracle](super::oracle) to compare.

use std::collections::{BTreeMap, BTreeSet};

use super::input::{Begun, InFlight, Input, Outcome, Reply, Writes};
use super::lowered;
use super::reader::{Fact, Reader};
use super::server::{At, Key, Name, Outside, Server};
use crate::lock::codec::{SavedHold, SavedLock, decode, encode};
use crate::lock::effect::{Answer, Effect, Effects, PendingGrant, UndoRecord, WaiterId};
use crate::lock::table::Limits;
use crate::lock::types::{LockKeyBuf, Mode, Moment, Token};

/// A request that the world's clients wait for.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) id: WaiterId,
    pub(super) number: u32,
    /// The first one, if there are several.
    pub(super) at: At,
    pub(super) owner: Name,
    pub(super) client: u64,
}

/// So many grants are remembered, to be undone or not.
const BEGUN_MAX: usize = 16;

/// See the [module](self).
pub(super) struct World {
    pub(super) server: Server,
    pub(super) readers: Vec<Reader>,
    pub(super) in_flight: Vec<InFlight>,
    pub(super) limits: Limits,
    pub(super) forbidden: BTreeSet<u64>,
    pub(super) writes: Writes,
    pub(super) quarantine_ms: u64,
    pub(super) confirms: bool,
    /// What grants did of late that had to be confirmed, the newest last.
    pub(super) begun: Vec<Begun>,
    /// Who was told which token in this step.
    pub(super) told: Vec<(Token, Name)>,
    pub(super) elsewhere: BTreeSet<At>,
    /// Microseconds since the world began: the time that no server knows.
    pub(super) time: u64,
    pub(super) waits: BTreeMap<u64, Wait>,
    pub(super) wait_count: u32,
    /// The last payload: the name that it was made under, and what it says.
    pub(super) dump: Option<(Name, Option<SavedLock>)>,
    /// All lock keys and owners that any input named.
    pub(super) lock_keys: BTreeSet<At>,
    pub(super) owners: BTreeSet<Name>,
    /// Leases that the pump left alone because their slot is not ours: when it looks again.
    pub(super) postponed: BTreeMap<At, u64>,
}

impl World {
    /// A server with nothing in it.
    pub(super) fn new(boot_us: u64, wall_us: u64) -> Self {
        let mut server = Server::at_clocks(Moment(boot_us), wall_us);
        server.decides = true;
        Self {
            server,
            readers: Vec::new(),
            in_flight: Vec::new(),
            limits: Limits::default(),
            forbidden: BTreeSet::new(),
            writes: Writes::Allowed,
            quarantine_ms: 0,
            confirms: false,
            begun: Vec::new(),
            told: Vec::new(),
            elsewhere: BTreeSet::new(),
            time: 0,
            waits: BTreeMap::new(),
            wait_count: 0,
            dump: None,
            lock_keys: BTreeSet::new(),
            owners: BTreeSet::new(),
            postponed: BTreeMap::new(),
        }
    }

    /// Lets this happen.
    pub(super) fn step(&mut self, input: &Input) -> Result<Outcome, String> {
        lowered::begin_step();
        let mut out = Outcome::default();
        match *input {
            Input::Acquire { at, .. } | Input::Release { at, .. } | Input::Renew { at, .. }
                if self.refuses(at) => {}
            Input::AcquireMany { keys, .. } if keys.iter().any(|at| self.refuses(at)) => {}
            Input::Acquire { .. } => self.acquire(input, &mut out)?,
            Input::AcquireMany { .. } => self.acquire_many(input, &mut out)?,
            Input::Release { at, owner, token } => self.release(at, owner, token, &mut out)?,
            Input::Renew { .. } => self.renew(input, &mut out)?,
            Input::Fence(at) => out.reply = Reply::Token(self.server.live_token(at)),
            Input::Pump => self.pump(&mut out)?,
            Input::Undo(begun) => self.undo(begun, &mut out)?,
            Input::Close(client) => self.close(client, &mut out),
            Input::Unblock(client) => self.leave(client),
            Input::Promote(reader) => self.promote(reader, &mut out)?,
            _ => self.happen(input, &mut out)?,
        }
        self.note_begun(&mut out)?;
        for fact in &out.facts {
            self.readers.iter_mut().for_each(|reader| reader.send(fact.clone()));
        }
        Ok(out)
    }

    /// What happens to keys, clocks and readers, and is not asked of the core.
    fn happen(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        match *input {
            Input::Del(at) => self.outside(Outside::Del(at), out),
            Input::Set(at) => self.outside(Outside::Set(at), out),
            Input::Rename(from, to) => self.outside(Outside::Rename(from, to), out),
            Input::Move(at, db) => self.outside(Outside::Move(at, db), out),
            Input::Flush(db, lazy) => self.outside(Outside::Flush(db, lazy), out),
            Input::Swap(a, b) => self.outside(Outside::Swap(a, b), out),
            Input::Expire(at) => self.outside(Outside::Expire(at), out),
            Input::Dump(at) => {
                let is_lock = matches!(self.server.keys.get(&at), Some(Key::Lock(_)));
                if is_lock {
                    self.dump = Some((at.name, self.server.saved(at)));
                }
                out.reply = Reply::Bool(is_lock);
            }
            Input::Payload { .. } => self.receive(input),
            Input::Restore(at) => match self.payload_for(at) {
                Some(saved) => self.outside(Outside::Restore(at, saved?), out),
                None => out.reply = Reply::Bool(false),
            },
            Input::RestoreTooLate(at) => {
                if let Some(saved) = self.payload_for(at) {
                    let is_there = self.server.keys.contains_key(&at);
                    self.server.restore_too_late(at, saved?.as_ref());
                    out.reply = Reply::Bool(is_there);
                    out.facts.extend(is_there.then_some(Fact::Outside(Outside::Del(at))));
                }
            }
            Input::Forbid(client, true) => drop(self.forbidden.insert(client)),
            Input::Forbid(client, false) => drop(self.forbidden.remove(&client)),
            Input::Limit { per_lock, total, holders } => {
                self.limits =
                    Limits { waiters_per_lock_max: per_lock, waiters_max: total, holders_max: holders };
                self.server.table.set_limits(self.limits);
            }
            Input::Quarantine(length_ms, is_start) => self.quarantine(length_ms, is_start),
            Input::Confirm(confirms) => {
                self.confirms = confirms;
                self.server.table.set_confirms(confirms);
            }
            Input::Writes(writes) => self.writes = writes,
            Input::Elsewhere(at, true) => drop(self.elsewhere.insert(at)),
            Input::Elsewhere(at, false) => drop(self.elsewhere.remove(&at)),
            Input::Pass(us) => {
                self.time += us;
                self.server.now.boot.0 += us;
                self.in_flight.clear();
                self.readers.iter_mut().for_each(|reader| reader.pass(us));
            }
            Input::Wall(wall_us) => self.server.now.wall_us = wall_us,
            Input::Free => {
                self.server.free();
                self.readers.iter_mut().for_each(Reader::free);
            }
            Input::NewReplica(ahead) => {
                self.readers.push(Reader::from_snapshot(&mut self.server, ahead));
            }
            Input::NewFile => self.readers.push(Reader::from_new_file(&mut self.server)?),
            Input::NewFileOfReplica => {
                if let Some(reader) = self.readers.first_mut() {
                    reader.file = Some(Box::new(Reader::from_new_file(&mut reader.server)?));
                }
            }
            _ => return Err(format!("{input:?} is not of this kind")),
        }
        Ok(())
    }

    fn quarantine(&mut self, length_ms: u64, is_start: bool) {
        self.quarantine_ms = length_ms;
        let (table, now) = (&mut self.server.table, self.server.now.boot);
        if is_start {
            table.begin_quarantine(now, length_ms);
        } else {
            table.set_quarantine(now, length_ms);
        }
    }

    /// What the core says has begun, and who was told of it.
    fn note_begun(&mut self, out: &mut Outcome) -> Result<(), String> {
        let told = std::mem::take(&mut self.told);
        for PendingGrant { lock_key, token, undo, .. } in self.server.table.take_begun() {
            let told = told.iter().find(|told| told.0 == token).map(|told| told.1);
            let owner =
                told.ok_or_else(|| format!("{token} is to be confirmed, and nobody was told of it"))?;
            let UndoRecord { owner: of, counts, is_upgrade } = undo;
            if *of != *(if counts || is_upgrade { owner } else { "" }).as_bytes() {
                return Err(format!("{token} is {owner:?}'s, and {of:?} would have to give it up"));
            }
            let at = self.at(&lock_key)?;
            out.begun.push(Begun { at, token, owner, counts, is_upgrade });
        }
        self.begun.extend(&out.begun);
        self.begun.drain(..self.begun.len().saturating_sub(BEGUN_MAX));
        Ok(())
    }

    /// A payload comes from another server.
    fn receive(&mut self, input: &Input) {
        let Input::Payload { name, owner, token, left_ms, how, beside } = *input else {
            return;
        };
        self.owners.insert(owner);
        self.owners.extend(beside);
        let hold = |owner: Name, token| SavedHold {
            owner: owner.as_bytes().into(),
            token,
            left_ms,
            count: 1 + u32::from(how.is_reentrant),
            binding: how.binding,
        };
        let mut holds = vec![hold(owner, token)];
        let next = beside.filter(|_| how.mode != Mode::Exclusive).zip(Token::new(token.get() + 1));
        holds.extend(next.map(|(beside, next)| hold(beside, next)));
        self.dump = Some((name, Some(SavedLock { mode: how.mode, holds })));
    }

    /// Whether the server refuses to run commands that write here.
    pub(super) fn refuses(&self, at: At) -> bool {
        self.writes != Writes::Allowed || self.elsewhere.contains(&at)
    }

    /// Whether the key holds something else.
    pub(super) fn is_other(&self, at: At) -> bool {
        self.server.keys.get(&at) == Some(&Key::Other)
    }

    /// Whether the pump does not end leases here, or has not looked since it may again.
    pub(super) fn is_left_alone(&self, at: At) -> bool {
        self.elsewhere.contains(&at) || self.postponed.get(&at).is_some_and(|&until| self.time < until)
    }

    /// The owner with this name, if any input named it.
    pub(super) fn owner(&self, owner: &[u8]) -> Option<Name> {
        self.owners.iter().copied().find(|known| known.as_bytes() == owner)
    }

    pub(super) fn at(&self, lock_key: &LockKeyBuf) -> Result<At, String> {
        let known = self.lock_keys.iter().find(|at| at.lock_key() == lock_key.as_key());
        known.copied().ok_or_else(|| format!("nobody named the place {lock_key:?}"))
    }

    fn outside(&mut self, what: Outside, out: &mut Outcome) {
        if let Outside::Restore(at, _) = what {
            self.lock_keys.insert(at);
        }
        let is_done = self.server.outside(&what);
        out.reply = Reply::Bool(is_done);
        if is_done {
            out.facts.push(Fact::Outside(what));
        }
    }

    /// What RESTORE makes of the last payload under this name.
    fn payload_for(&self, at: At) -> Option<Result<Option<SavedLock>, String>> {
        let (name, saved) = self.dump.as_ref()?;
        let mut numbers = Vec::new();
        encode(name.as_bytes(), saved.as_ref(), |number| numbers.push(number));
        let mut numbers = numbers.into_iter();
        Some(decode(at.name.as_bytes(), || numbers.next()).map_err(str::to_owned))
    }

    /// Whether the payload's token is none from the future.
    pub(super) fn is_payload_old(&self) -> bool {
        let saved = self.dump.as_ref().and_then(|(_, saved)| saved.as_ref());
        saved.is_some_and(|saved| {
            saved.holds.iter().all(|hold| hold.token.get() <= self.server.table.last_token())
        })
    }

    fn promote(&mut self, reader: usize, out: &mut Outcome) -> Result<(), String> {
        if reader >= self.readers.len() {
            out.reply = Reply::Bool(false);
            return Ok(());
        }
        let mut fx = Effects::default();
        self.server.table.dismiss_all(&Answer::Demoted, &mut fx);
        for effect in fx {
            let Effect::Answer { .. } = &effect else {
                return Err(format!("{effect:?} when everybody was dismissed"));
            };
            self.publish_and_answer(None, vec![effect], out)?;
        }
        if let Some(left) = self.waits.values().next() {
            return Err(format!("G7: {} still waits at a server that was demoted", left.client));
        }
        let wall_us = self.server.now.wall_us;
        self.server = self.readers.swap_remove(reader).server;
        self.server.decides = true;
        self.server.now.wall_us = wall_us;
        self.server.table.set_limits(self.limits);
        self.server.table.set_confirms(self.confirms);
        self.server.table.begin_quarantine(self.server.now.boot, self.quarantine_ms);
        self.server.table.note_everything();
        // Whoever read the old stream starts anew with this one's.
        self.readers.clear();
        self.in_flight.clear();
        out.reply = Reply::Bool(true);
        Ok(())
    }

    /// Everything sent arrives everywhere.
    pub(super) fn catch_up(&mut self) -> Result<(), String> {
        self.readers.iter_mut().try_for_each(Reader::catch_up)
    }

    /// What is wrong with the world, if anything is: the core's own records, and G13.
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.server.check()?;
        let (told, has_settled) =
            (self.server.table.clock().replicated_token(), self.server.table.tasks() == 0);
        self.readers.iter_mut().try_for_each(|reader| reader.check(&self.server, told, has_settled))
    }
}
