//! A primary, its clients and the readers of its stream: simulated servers, run by the engine that ships.
//!
//! The world produces the events: the requests of clients, the arrival of answers, the runs of the pump, the passage
//! of time. It decides nothing. The outcome of an input is an [`Outcome`], for stories to print and for the
//! [judge](crate::sim::checkers::judge) and the [oracle](crate::sim::oracle) to compare.

use std::collections::{BTreeMap, BTreeSet};

use crate::lock::codec::{SavedHold, SavedLock, read, write};
use crate::lock::table::Limits;
use crate::lock::tests::tuning;
use crate::lock::types::{LockKey, LockKeyBuf, Mode, Moment, Now, Token};
use crate::sim::server::inside::Told;
use crate::sim::single::input::{InFlight, Input, Outcome, Reply, Writes};
use crate::sim::single::reader::Reader;
use crate::sim::single::server::{At, Key, Name, Outside, Server, name_of};

/// A client that is blocked, until its answer has reached it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked {
    /// The number of its wait in a queue; 0 if it was granted at once, and waits for replicas.
    pub(crate) number: u32,
    /// Its first key, if there are several.
    pub(crate) at: At,
    pub(crate) owner: Name,
    pub(crate) client: u64,
    /// True if it was not notified yet, and no outcome mentioned its changes.
    pub(crate) is_open: bool,
}

/// See the [module](self).
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) readers: Vec<Reader>,
    /// Replies that name holds, on their way to their clients.
    pub(crate) in_flight: Vec<InFlight>,
    pub(crate) limits: Limits,
    pub(crate) forbidden: BTreeSet<u64>,
    pub(crate) writes: Writes,
    pub(crate) quarantine_ms: u64,
    pub(crate) confirms: bool,
    /// The holds named by replies that were sent in the running step.
    pub(crate) delivered: Vec<(At, Token)>,
    pub(crate) elsewhere: BTreeSet<At>,
    /// Microseconds since the world began, a time that no server knows.
    pub(crate) time: u64,
    /// Blocked clients, by the server's number for the block.
    pub(crate) blocked: BTreeMap<u64, Blocked>,
    /// The clients, with the owners they asked for, whose waits ended in this step with no grant.
    pub(crate) refused: BTreeSet<(u64, Name)>,
    pub(crate) wait_count: u32,
    /// The last payload: the name under which it was made, and its content.
    pub(crate) dump: Option<(Name, Option<SavedLock>)>,
    /// All owners that any input named.
    pub(crate) owners: BTreeSet<Name>,
    /// True if everything may be written, and could be when the pump last ran.
    pub(crate) was_open: bool,
    /// The times at which the pump rechecks leases that it left alone because their slot is not ours.
    pub(crate) postponed: BTreeMap<At, u64>,
}

/// The default distance that a token from outside may be ahead of the wall clock.
pub(crate) const TOKEN_LEAD_US_MAX: u64 = 60_000_000;

/// Returns the names of the keys that exist or existed.
fn all_names<'a>(before: &'a BTreeMap<At, Key>, now: &'a BTreeMap<At, Key>) -> Vec<&'a [u8]> {
    before.keys().chain(now.keys()).map(|at| at.name.as_bytes()).collect()
}

/// The time for which the pump leaves a lock alone whose slot is not ours.
const LOOK_AGAIN_MS: u64 = 1_000;

impl World {
    /// Returns an empty server.
    pub(crate) fn new(boot_us: u64, wall_us: u64) -> Self {
        Self {
            server: Server::started(Moment(boot_us), wall_us, false),
            readers: Vec::new(),
            in_flight: Vec::new(),
            limits: Limits::default(),
            forbidden: BTreeSet::new(),
            writes: Writes::Allowed,
            quarantine_ms: 0,
            confirms: false,
            delivered: Vec::new(),
            elsewhere: BTreeSet::new(),
            time: 0,
            blocked: BTreeMap::new(),
            refused: BTreeSet::new(),
            wait_count: 0,
            dump: None,
            owners: BTreeSet::new(),
            was_open: true,
            postponed: BTreeMap::new(),
        }
    }

    /// Applies this input.
    pub(crate) fn step(&mut self, input: &Input) -> Result<Outcome, String> {
        tuning::begin_step();
        self.refused.clear();
        let mut out = Outcome::default();
        match *input {
            Input::Acquire { at, .. } | Input::Release { at, .. } | Input::Renew { at, .. }
                if self.refuses(at) => {}
            Input::AcquireMany { keys, .. } if keys.iter().any(|at| self.refuses(at)) => {}
            Input::Acquire { .. } => self.acquire(input, &mut out)?,
            Input::AcquireMany { .. } => self.acquire_many(input, &mut out)?,
            Input::Release { at, owner, token } => self.release(at, owner, token, &mut out)?,
            Input::Renew { .. } => self.renew(input, &mut out)?,
            Input::Fence(at) => self.fence(at, &mut out)?,
            Input::Pump => self.pump(&mut out)?,
            Input::Confirmed => {
                self.server.acknowledges();
                self.drops_replies(&mut out, |world| world.server.looks_at_replicas());
                self.send_answers();
            }
            Input::Close(client) => self.drops_replies(&mut out, |world| world.close(client)),
            Input::Unblock(client) => self.unblock(client, &mut out),
            Input::Promote(reader) => self.promote(reader, &mut out)?,
            _ => self.happen(input, &mut out)?,
        }
        self.collect(&mut out)?;
        Ok(out)
    }

    /// Collects the changes of keys: the keys that exist now, and the changes that the server signalled.
    fn changes(&mut self, out: &mut Outcome) {
        let before = std::mem::take(&mut self.server.keys);
        let was_mortal = std::mem::take(&mut self.server.mortal);
        self.server.look();
        let changed = self.server.take_changed();
        if changed.is_empty() {
            return;
        }
        let all: BTreeSet<At> = before.keys().chain(self.server.keys.keys()).copied().collect();
        for at in all {
            let names = |Told { db, words }: &Told| {
                *db == at.db && words.iter().any(|word| **word == *at.name.as_bytes())
            };
            // A client that keeps copies of keys is notified of names, in whichever database.
            let is_signalled = changed.iter().flatten().any(|name| **name == *at.name.as_bytes());
            let is_named = out.facts.iter().any(names);
            let what = match (before.get(&at), self.server.keys.get(&at)) {
                (Some(_), None) => "deleted",
                (before, Some(now)) if before != Some(now) => "stored",
                _ if !is_signalled || (!is_named && !out.facts.is_empty()) => continue,
                _ if !is_named => "signalled",
                _ if was_mortal.contains(&at) && !self.server.mortal.contains(&at) => {
                    "touched, its TTL removed"
                }
                _ => "touched",
            };
            out.changes.push((at, what));
        }
        // The next owner's turn was signalled at a key that does not exist.
        let all: Vec<&[u8]> = all_names(&before, &self.server.keys);
        let absent = changed.iter().flatten().filter(|name| !all.contains(&&***name));
        out.changes.extend(absent.map(|name| (At::new(0, name_of(name)), "signalled")));
    }

    /// Gathers the outcome of a step.
    fn collect(&mut self, out: &mut Outcome) -> Result<(), String> {
        for record in self.server.take_stream() {
            let replicas = self.readers.iter_mut().filter(|reader| !reader.is_of_file);
            replicas.for_each(|reader| reader.send(record.clone()));
            out.facts.push(record);
        }
        self.changes(out);
        for record in self.server.take_file() {
            let files = self.readers.iter_mut().filter(|reader| reader.is_of_file);
            files.for_each(|reader| reader.send(record.clone()));
        }
        for (db, name, event) in self.server.take_events() {
            out.events.push((At::new(db, name_of(&name)), event));
        }
        out.delivered.append(&mut self.delivered);
        self.answers(out)
    }

    /// Applies an input to keys, clocks and readers, outside of the core.
    fn happen(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        match *input {
            Input::Del(at) => self.outside(Outside::Del(at), out)?,
            Input::Set(at) => self.outside(Outside::Set(at), out)?,
            Input::Rename(from, to) => self.outside(Outside::Rename(from, to), out)?,
            Input::Move(at, db) => self.outside(Outside::Move(at, db), out)?,
            Input::Flush(db, lazy) => self.outside(Outside::Flush(db, lazy), out)?,
            Input::Swap(a, b) => self.outside(Outside::Swap(a, b), out)?,
            Input::Expire(at) => self.outside(Outside::Expire(at), out)?,
            Input::Dump(at) => {
                let is_lock = matches!(self.server.keys.get(&at), Some(Key::Lock(_)));
                if is_lock {
                    self.dump = Some((at.name, self.server.saved(at)));
                }
                out.reply = Reply::Bool(is_lock);
            }
            Input::Payload { .. } => self.receive(input),
            Input::Restore(at) => match self.dump.clone() {
                Some(payload) => self.outside(Outside::Restore(at, payload), out)?,
                None => out.reply = Reply::Bool(false),
            },
            Input::RestoreTooLate(at) => {
                if let Some(saved) = self.payload_for(at) {
                    let was_there = self.server.restore_too_late((at.db, at.name), saved?.as_ref())?;
                    out.reply = Reply::Bool(was_there);
                    out.outside.extend(was_there.then_some(Outside::Del(at)));
                }
            }
            Input::Pass(us) => self.pass(us),
            Input::Wall(wall_us) => self.server.set_now(Now { wall_us, ..self.server.now }),
            Input::Free => {
                self.server.free();
                self.readers.iter_mut().for_each(Reader::free);
            }
            Input::NewReplica(ahead) => {
                self.readers.push(Reader::from_snapshot(&self.server, ahead)?);
            }
            Input::NewFile => self.readers.push(Reader::from_new_file(&self.server)?),
            Input::NewFileOfReplica => {
                if let Some(reader) = self.readers.first_mut() {
                    reader.file = Some(Box::new(Reader::from_new_file(&reader.server)?));
                }
            }
            _ => self.set(input)?,
        }
        Ok(())
    }

    /// Lets time pass, in which the messages on their way to clients arrive.
    fn pass(&mut self, us: u64) {
        self.send_answers();
        self.time += us;
        let Now { boot, wall_us } = self.server.now;
        self.server.set_now(Now { boot: Moment(boot.0 + us), wall_us });
        self.readers.iter_mut().for_each(|reader| reader.pass(us));
    }

    /// Applies a setting.
    fn set(&mut self, input: &Input) -> Result<(), String> {
        let single = &self.server;
        match *input {
            Input::Forbid(client, is_forbidden) => {
                single.forbid(client, is_forbidden);
                if is_forbidden {
                    self.forbidden.insert(client);
                } else {
                    self.forbidden.remove(&client);
                }
            }
            Input::Limits(limits) => {
                self.limits = limits;
                single.set_limits(limits);
            }
            Input::Quarantine(length_ms, is_start) => {
                self.quarantine_ms = length_ms;
                single.set_quarantine(length_ms, is_start);
            }
            Input::Confirm(confirms) => {
                self.confirms = confirms;
                single.set_confirms(confirms);
            }
            Input::Writes(writes) => {
                self.writes = writes;
                self.was_open &= writes == Writes::Allowed;
                single.set_writes(writes == Writes::Refused, writes == Writes::Paused);
            }
            Input::Elsewhere(at, is_elsewhere) => {
                single.set_elsewhere(at.name, is_elsewhere);
                if is_elsewhere {
                    self.elsewhere.insert(at);
                } else {
                    self.elsewhere.remove(&at);
                }
            }
            _ => return Err(format!("{input:?} is not of this kind")),
        }
        Ok(())
    }

    /// Runs a turn of the event loop: answers reach their clients, then the pump runs.
    fn pump(&mut self, out: &mut Outcome) -> Result<(), String> {
        self.drops_replies(out, |world| world.server.looks_at_replicas());
        self.send_answers();
        for &at in &self.elsewhere {
            if self.writes != Writes::Paused
                && self.server.saved(at).is_some_and(|saved| self.has_ended(at, &saved))
            {
                self.postponed.insert(at, self.time + LOOK_AGAIN_MS * 1000);
            }
        }
        self.was_open = self.writes == Writes::Allowed;
        if self.server.pump() {
            return Ok(());
        }
        Err("G3, G6: the pump never comes to an end".to_owned())
    }

    /// Returns true if a lease has expired here, or a hold must be revoked.
    fn has_ended(&self, at: At, saved: &SavedLock) -> bool {
        let is_to_revoke = |token| match self.server.keys.get(&at) {
            Some(&Key::Lock(lock)) => self.server.table().outstanding(lock, token) == Some(0),
            _ => false,
        };
        saved.holds.iter().any(|hold| !self.server.is_live(at, hold.token) || is_to_revoke(hold.token))
    }

    /// Receives a payload from another server.
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

    /// Returns true if the server refuses to run commands that write here.
    pub(crate) fn refuses(&self, at: At) -> bool {
        self.writes != Writes::Allowed || self.elsewhere.contains(&at)
    }

    /// Returns true if a lease is longer than the quarantine, so that no server could wait until it ends.
    pub(crate) const fn is_longer_than_quarantine(&self, lease_ms: u64) -> bool {
        self.quarantine_ms > 0 && lease_ms > self.quarantine_ms
    }

    /// Returns the highest token that is accepted from outside now (G14).
    pub(crate) fn highest_from_outside(&self) -> u64 {
        self.server.table().last_token().max(self.server.now.wall_us + TOKEN_LEAD_US_MAX)
    }

    /// Returns true if the key holds another type.
    pub(crate) fn is_other(&self, at: At) -> bool {
        self.server.keys.get(&at) == Some(&Key::Other)
    }

    /// Returns true if the pump does not end leases here, or has not run since it may again.
    pub(crate) fn is_left_alone(&self, at: At) -> bool {
        self.elsewhere.contains(&at) || self.postponed.get(&at).is_some_and(|&until| self.time < until)
    }

    /// Returns the owner with this name, if any input named it.
    pub(crate) fn owner(&self, owner: &[u8]) -> Option<Name> {
        self.owners.iter().copied().find(|known| known.as_bytes() == owner)
    }

    /// Returns the next owner that the server mints.
    pub(crate) fn next_owner(&self) -> Name {
        name_of(&self.server.next_owner())
    }

    fn outside(&mut self, what: Outside, out: &mut Outcome) -> Result<(), String> {
        let is_done = self.server.outside(&what)?;
        out.reply = Reply::Bool(is_done);
        if is_done {
            out.outside.push(what);
        }
        Ok(())
    }

    /// Returns the value that RESTORE makes of the last payload under this name.
    fn payload_for(&self, at: At) -> Option<Result<Option<SavedLock>, String>> {
        let (name, saved) = self.dump.as_ref()?;
        let mut blocks = Vec::new();
        write(name.as_bytes(), saved.as_ref(), |block| blocks.push(block.to_vec()));
        let mut blocks = blocks.into_iter();
        Some(read(at.name.as_bytes(), || blocks.next()).map_err(str::to_owned))
    }

    /// Returns true if the payload's token is not from the future.
    pub(crate) fn is_payload_old(&self) -> bool {
        let saved = self.dump.as_ref().and_then(|(_, saved)| saved.as_ref());
        let last_token = self.server.table().last_token();
        saved.is_some_and(|saved| saved.holds.iter().all(|hold| hold.token.get() <= last_token))
    }

    fn promote(&mut self, reader: usize, out: &mut Outcome) -> Result<(), String> {
        if reader >= self.readers.len() {
            out.reply = Reply::Bool(false);
            return Ok(());
        }
        self.server.demote();
        self.answers(out)?;
        if let Some(left) = self.blocked.values().find(|blocked| blocked.is_open) {
            return Err(format!("G7: {} still waits at a server that was demoted", left.client));
        }
        let (wall_us, owners) = (self.server.now.wall_us, self.server.owners());
        self.server = self.readers.swap_remove(reader).server;
        self.server.set_owners(owners);
        self.server.set_now(Now { wall_us, ..self.server.now });
        let single = &self.server;
        single.set_limits(self.limits);
        single.set_confirms(self.confirms);
        single.set_quarantine(self.quarantine_ms, false);
        self.forbidden.iter().for_each(|&client| single.forbid(client, true));
        single.set_writes(self.writes == Writes::Refused, self.writes == Writes::Paused);
        single.promote();
        // The readers of the old stream restart with this one's.
        self.readers.clear();
        self.in_flight.clear();
        self.blocked.clear();
        out.reply = Reply::Bool(true);
        Ok(())
    }

    /// Delivers everything that was sent.
    pub(crate) fn catch_up(&mut self) -> Result<(), String> {
        self.readers.iter_mut().try_for_each(Reader::catch_up)
    }

    /// Checks the world: the core's own records, and G13.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        self.server.check()?;
        if self.was_open && !self.server.is_pump_asked() {
            return Err("G6: there is something to do, and nobody asks for the pump".to_owned());
        }
        let (told, has_settled) = {
            let mut table = self.server.table_mut();
            (table.clock().replicated_token(), table.tasks() == 0 && !table.has_running())
        };
        self.readers.iter().try_for_each(|reader| reader.check(&self.server, told, has_settled))
    }

    /// Returns the location of a lock that the engine names.
    pub(crate) fn at(lock_key: LockKey<'_>) -> At {
        At::new(lock_key.db, name_of(lock_key.name))
    }

    pub(crate) fn at_of(lock_key: &LockKeyBuf) -> At {
        Self::at(lock_key.as_key())
    }
}
