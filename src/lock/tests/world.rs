//! A primary, its clients and the readers of its stream, without a server.
//!
//! The world does what the edge must do, in its order: key, record, events, answers. It decides nothing.
//! What came of an input is an [`Outcome`], for scenarios to print and for the [judge](super::judge) and
//! the [oracle](super::oracle) to compare.

use std::collections::{BTreeMap, BTreeSet};

use super::input::{Answered, InFlight, Input, Outcome, Reply, Writes};
use super::reader::{Fact, Reader};
use super::server::{At, Key, Name, Outside, Server};
use crate::lock::codec::{SavedHold, decode, encode};
use crate::lock::effect::{Answer, Change, Effect, Effects, Event, Found, Record, Step, Task, WaiterId};
use crate::lock::table::{Acquired, Admission, Ask, Block, Due, Gate, Limits, Refusal, Renewal, Table};
use crate::lock::types::{ClientId, Moment, Now, Place, PlaceBuf};

/// A request that the world's clients wait for.
#[derive(Clone, Copy)]
struct Wait {
    id: WaiterId,
    number: u32,
    at: At,
    owner: Name,
    client: u64,
}

/// How long the pump leaves a lock alone whose slot is not ours.
pub(super) const LOOK_AGAIN_MS: u64 = 100;

/// More than can be due in a test: what was due once must not be due again.
const PUMP_STEPS_MAX: usize = 10_000;

/// See the [module](self).
pub(super) struct World {
    pub(super) server: Server,
    pub(super) readers: Vec<Reader>,
    pub(super) in_flight: Vec<InFlight>,
    pub(super) limits: Limits,
    pub(super) forbidden: BTreeSet<u64>,
    pub(super) writes: Writes,
    pub(super) elsewhere: BTreeSet<At>,
    /// Microseconds since the world began: the time that no server knows.
    pub(super) time: u64,
    waits: BTreeMap<u64, Wait>,
    wait_count: u32,
    /// The last payload: the name that it was made under, and what it says.
    pub(super) dump: Option<(Name, Option<SavedHold>)>,
    /// All places and owners that any input named.
    places: BTreeSet<At>,
    owners: BTreeSet<Name>,
    /// Leases that the pump left alone because their slot is not ours: when it looks again.
    postponed: BTreeMap<At, u64>,
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
            elsewhere: BTreeSet::new(),
            time: 0,
            waits: BTreeMap::new(),
            wait_count: 0,
            dump: None,
            places: BTreeSet::new(),
            owners: BTreeSet::new(),
            postponed: BTreeMap::new(),
        }
    }

    /// Lets this happen.
    pub(super) fn step(&mut self, input: &Input) -> Result<Outcome, String> {
        let mut out = Outcome::default();
        match *input {
            Input::Acquire { at, .. } | Input::Release { at, .. } | Input::Renew { at, .. }
                if self.refuses(at) => {}
            Input::Acquire { .. } => self.acquire(input, &mut out)?,
            Input::Release { at, owner, token } => {
                let asked = Fact::Release { at, owner, token };
                let given = self.decide(at, Some(asked), &mut out, |table, now, found, gate, fx| {
                    table.release(now, at.place(), found, owner.as_bytes(), token, gate, fx)
                })?;
                out.reply = yes_or_wrong_type(given);
            }
            Input::Renew { at, owner, token, lease_ms, client } => {
                let asked = Fact::Renew { at, owner, token, lease_ms };
                let renewal =
                    Renewal { owner: owner.as_bytes(), token, lease_ms, client: Some(ClientId(client)) };
                let renewed = self.decide(at, Some(asked), &mut out, |table, now, found, gate, fx| {
                    table.renew(now, at.place(), found, &renewal, gate, fx)
                })?;
                if renewed == Some(true) {
                    self.owner_knows(at, owner);
                }
                out.reply = yes_or_wrong_type(renewed);
            }
            Input::Fence(at) => out.reply = Reply::Token(self.server.live_token(at)),
            Input::Pump => self.pump(&mut out)?,
            Input::Close(client) => self.close(client, &mut out),
            Input::Unblock(client) => self.leave(client),
            Input::Promote(reader) => self.promote(reader, &mut out)?,
            _ => self.happen(input, &mut out)?,
        }
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
            Input::Dump(at) => {
                let is_lock = matches!(self.server.keys.get(&at), Some(Key::Lock(_)));
                if is_lock {
                    self.dump = Some((at.name, self.server.saved(at)));
                }
                out.reply = Reply::Bool(is_lock);
            }
            Input::Payload { name, owner, token, left_ms } => {
                self.owners.insert(owner);
                self.dump = Some((name, Some(SavedHold { owner: owner.as_bytes().into(), token, left_ms })));
            }
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
            Input::Limit { per_lock, total } => {
                self.limits = Limits { waiters_per_lock_max: per_lock, waiters_max: total };
                self.server.table.set_limits(self.limits);
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

    /// Whether the server refuses to run commands that write here.
    pub(super) fn refuses(&self, at: At) -> bool {
        self.writes != Writes::Allowed || self.elsewhere.contains(&at)
    }

    /// Whether the pump does not end leases here, or has not looked since it may again.
    pub(super) fn is_left_alone(&self, at: At) -> bool {
        self.elsewhere.contains(&at) || self.postponed.get(&at).is_some_and(|&until| self.time < until)
    }

    /// The owner with this name, if any input named it.
    pub(super) fn owner(&self, owner: &[u8]) -> Option<Name> {
        self.owners.iter().copied().find(|known| known.as_bytes() == owner)
    }

    fn acquire(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        let Input::Acquire { at, owner, lease_ms, wait, client, minted } = *input else {
            return Err(format!("{input:?} is no acquire"));
        };
        self.owners.insert(owner);
        let now = self.server.now.boot;
        let block =
            wait.map(|ms| Block { client: ClientId(client), until: (ms != 0).then(|| now.plus_ms(ms)) });
        let ask = Ask {
            owner: owner.as_bytes(),
            owner_is_minted: minted,
            lease_ms,
            block,
            client: Some(ClientId(client)),
            must_be_named: minted,
        };
        let asked = Fact::Acquire { at, owner, lease_ms };
        let reply = self.decide(at, Some(asked), out, |table, now, found, gate, fx| {
            table.acquire(now, at.place(), found, &ask, gate, fx)
        })?;
        out.reply = match reply {
            Acquired::Granted(token) => {
                self.owner_knows(at, owner);
                Reply::Granted(token)
            }
            Acquired::Busy => Reply::Busy,
            Acquired::Refused(why) => Reply::Refused(why),
            Acquired::Waiting(id) => {
                self.wait_count += 1;
                let wait = Wait { id, number: self.wait_count, at, owner, client };
                self.waits.insert(id.number(), wait);
                Reply::Waiting(self.wait_count)
            }
        };
        Ok(())
    }

    /// Asks the core for a step about this place, and carries it out.
    fn decide<R>(
        &mut self,
        at: At,
        asked: Option<Fact>,
        out: &mut Outcome,
        step: impl FnOnce(&mut Table, Now, Found, Gate<'_>, &mut Effects) -> Step<R>,
    ) -> Result<R, String> {
        self.places.insert(at);
        let (now, found) = (self.server.now, self.server.found(at));
        let (forbidden, writes) = (&self.forbidden, self.writes);
        let mut gate = |client: ClientId, _: Place<'_>| match writes {
            Writes::Allowed if forbidden.contains(&client.0) => Admission::Forbidden,
            Writes::Allowed => Admission::Granted,
            Writes::Refused | Writes::Paused => Admission::NotNow,
        };
        let mut fx = Effects::default();
        let step = step(&mut self.server.table, now, found, &mut gate, &mut fx);
        self.server.carry_out(at, step.change);
        if step.change != Change::Nothing {
            out.changes.push((at, step.change));
        }
        out.facts.extend(self.fact(at, asked, &step)?);
        self.publish_and_answer(at, fx, out)?;
        Ok(step.reply)
    }

    fn fact<R>(&self, at: At, asked: Option<Fact>, step: &Step<R>) -> Result<Option<Fact>, String> {
        let fact = match (step.record, asked) {
            (Record::Nothing, _) => None,
            (Record::AsAsked, Some(asked)) => Some(asked),
            (Record::AsAsked, None) => return Err("G13: told as asked, and nobody asked".to_owned()),
            (Record::Hold(_), _) => match self.server.saved(at) {
                Some(saved) => Some(Fact::Hold(at, saved)),
                None => return Err(format!("G13: a hold at {at} is told that is not there")),
            },
            (Record::Ended(token), _) => Some(Fact::Ended(at, token)),
        };
        if fact.is_some() != (step.change != Change::Nothing) {
            return Err(format!("G13: {:?} is told as {fact:?}", step.change));
        }
        Ok(fact)
    }

    fn publish_and_answer(
        &mut self,
        at: At,
        fx: impl IntoIterator<Item = Effect>,
        out: &mut Outcome,
    ) -> Result<(), String> {
        for effect in fx {
            let (waiter, client, answer) = match effect {
                Effect::Publish(event) => {
                    out.events.push((at, event));
                    continue;
                }
                Effect::Answer { waiter, client, answer } => (waiter, client, answer),
            };
            let Some(wait) = self.waits.remove(&waiter.number()) else {
                return Err(format!("G7: {waiter:?} is told {answer:?} and does not wait (any more)"));
            };
            if wait.client != client.0 {
                return Err(format!("G7: the answer to {} went to {}", wait.client, client.0));
            }
            if let Answer::Granted { ref place, token, .. } = answer {
                let at = self.at(place)?;
                self.in_flight.push(InFlight { at, owner: wait.owner, token, client: wait.client });
            }
            out.answers.push(Answered { wait: wait.number, at: wait.at, client: wait.client, answer });
        }
        Ok(())
    }

    fn at(&self, place: &PlaceBuf) -> Result<At, String> {
        let known = self.places.iter().find(|at| at.place() == place.as_place());
        known.copied().ok_or_else(|| format!("nobody named the place {place:?}"))
    }

    /// Does everything that is due, as the event loop does before it sleeps.
    fn pump(&mut self, out: &mut Outcome) -> Result<(), String> {
        let decides = self.writes != Writes::Paused;
        // Notes made during this run, because nothing can be granted now, wait for the next one.
        let mut tasks = self.server.table.tasks();
        for _ in 0..PUMP_STEPS_MAX {
            if let Some(due) = self.server.table.due(self.server.now.boot, decides) {
                self.end(due, out)?;
                continue;
            }
            if tasks == 0 || !decides {
                return Ok(());
            }
            tasks -= 1;
            if let Some(task) = self.server.table.next_task() {
                self.look(task, out)?;
            }
        }
        Err(format!(
            "G3: the pump never ends: {:?} is due",
            self.server.table.due(self.server.now.boot, decides)
        ))
    }

    fn end(&mut self, due: Due, out: &mut Outcome) -> Result<(), String> {
        match due {
            Due::AskAgain => Ok(()),
            Due::Timeout(waiter) => {
                let at = self.waits.get(&waiter.number()).map(|wait| wait.at);
                let at = at.ok_or("G7: the time of a wait is over that has ended")?;
                let mut fx = Effects::default();
                self.server.table.time_out(waiter, &mut fx);
                self.publish_and_answer(at, fx, out)
            }
            Due::Lease(id, place) => {
                let at = self.at(&place)?;
                if self.elsewhere.contains(&at) {
                    let look_again = self.server.now.boot.plus_ms(LOOK_AGAIN_MS);
                    self.server.table.postpone(id, look_again);
                    self.postponed.insert(at, self.time + LOOK_AGAIN_MS * 1000);
                    self.send_on(at, out)
                } else if self.server.found(at) == Found::Lock(id) {
                    self.settle(at, out)
                } else {
                    self.server.table.lost(self.server.now.boot, id);
                    Ok(())
                }
            }
        }
    }

    fn look(&mut self, task: Task, out: &mut Outcome) -> Result<(), String> {
        match task {
            Task::Broken(place) => {
                out.events.push((self.at(&place)?, Event::Broken));
                Ok(())
            }
            Task::Settle(place) | Task::TakeBack(place, _) if self.elsewhere.contains(&self.at(&place)?) => {
                self.send_on(self.at(&place)?, out)
            }
            Task::Settle(place) => self.settle(self.at(&place)?, out),
            Task::TakeBack(place, token) => {
                let at = self.at(&place)?;
                self.decide(at, None, out, |table, now, found, gate, fx| {
                    table.take_back(now, at.place(), found, token, gate, fx)
                })
            }
        }
    }

    /// The slot of this place is not ours: whoever waits is sent on.
    fn send_on(&mut self, at: At, out: &mut Outcome) -> Result<(), String> {
        let mut fx = Effects::default();
        let moved = Answer::Moved("MOVED 1 host:1".to_owned());
        self.server.table.dismiss(at.place(), &moved, &mut fx);
        self.publish_and_answer(at, fx, out)
    }

    fn settle(&mut self, at: At, out: &mut Outcome) -> Result<(), String> {
        self.decide(at, None, out, |table, now, found, gate, fx| {
            table.settle(now, at.place(), found, gate, fx)
        })
    }

    /// The owner was told by another answer that the lock is its own: the grant is no longer on its way.
    fn owner_knows(&mut self, at: At, owner: Name) {
        self.in_flight.retain(|grant| grant.at != at || grant.owner != owner);
    }

    fn close(&mut self, client: u64, out: &mut Outcome) {
        self.leave(client);
        let gone = self.in_flight.extract_if(.., |grant| grant.client == client);
        out.undelivered = gone.map(|grant| (grant.at, grant.token)).collect();
        for &(at, token) in &out.undelivered {
            self.server.table.note_undelivered(at.place().to_owned(), token);
        }
    }

    /// The requests of this connection are answered by nobody any more.
    fn leave(&mut self, client: u64) {
        self.waits.retain(|_, wait| {
            let stays = wait.client != client;
            if !stays {
                self.server.table.leave(wait.id);
            }
            stays
        });
    }

    fn outside(&mut self, what: Outside, out: &mut Outcome) {
        if let Outside::Restore(at, _) = what {
            self.places.insert(at);
        }
        let is_done = self.server.outside(&what);
        out.reply = Reply::Bool(is_done);
        if is_done {
            out.facts.push(Fact::Outside(what));
        }
    }

    /// What RESTORE makes of the last payload under this name.
    fn payload_for(&self, at: At) -> Option<Result<Option<SavedHold>, String>> {
        let (name, saved) = self.dump.as_ref()?;
        let mut numbers = Vec::new();
        encode(name.as_bytes(), saved.as_ref(), |number| numbers.push(number));
        let mut numbers = numbers.into_iter();
        Some(decode(at.name.as_bytes(), || numbers.next()).map_err(str::to_owned))
    }

    /// Whether the payload's token is none from the future.
    pub(super) fn is_payload_old(&self) -> bool {
        let saved = self.dump.as_ref().and_then(|(_, saved)| saved.as_ref());
        saved.is_some_and(|saved| saved.token.get() <= self.server.table.last_token())
    }

    fn promote(&mut self, reader: usize, out: &mut Outcome) -> Result<(), String> {
        if reader >= self.readers.len() {
            out.reply = Reply::Bool(false);
            return Ok(());
        }
        let mut fx = Effects::default();
        self.server.table.dismiss_all(&Answer::Demoted, &mut fx);
        for effect in fx {
            let Effect::Answer { waiter, .. } = &effect else {
                return Err(format!("{effect:?} when everybody was dismissed"));
            };
            let at = self.waits.get(&waiter.number()).map(|wait| wait.at);
            let at = at.ok_or_else(|| format!("G7: {waiter:?} is dismissed and does not wait"))?;
            self.publish_and_answer(at, vec![effect], out)?;
        }
        if let Some(left) = self.waits.values().next() {
            return Err(format!("G7: {} still waits at a server that was demoted", left.client));
        }
        let wall_us = self.server.now.wall_us;
        self.server = self.readers.swap_remove(reader).server;
        self.server.decides = true;
        self.server.now.wall_us = wall_us;
        self.server.table.set_limits(self.limits);
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
        let told = self.server.table.clock().told();
        self.readers.iter_mut().try_for_each(|reader| reader.check(&self.server, told))
    }
}

const fn yes_or_wrong_type(reply: Option<bool>) -> Reply {
    match reply {
        Some(is_done) => Reply::Bool(is_done),
        None => Reply::Refused(Refusal::WrongType),
    }
}
