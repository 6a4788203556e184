//! The pump of the [world](super::world), and connections that close: what happens without being asked for.

use super::input::{Begun, Keys, Outcome, Writes};
use super::server::At;
use super::world::World;
use crate::lock::effect::{Answer, Effects, Record, Task, UndoRecord, WaiterId};
use crate::lock::table::Notice;
use crate::lock::types::{ClientId, LockKeyBuf, Token};

/// How long the pump leaves a lock alone whose slot is not ours.
pub(super) const LOOK_AGAIN_MS: u64 = 100;

/// More than can be due in a test: what was due once must not be due again.
const PUMP_STEPS_MAX: usize = 10_000;

/// How often the pump goes on with what a run of it has made a note of.
const RUNS_MAX: usize = 20;

impl World {
    /// Does everything that is due, as the event loop does before it sleeps.
    pub(super) fn pump(&mut self, out: &mut Outcome) -> Result<(), String> {
        self.server.table.let_orphaned_run(self.server.now.boot);
        for _ in 0..RUNS_MAX {
            self.run(out)?;
            if self.writes != Writes::Paused {
                self.publish_all(out)?;
            }
            // What could not be granted is noted again: that waits for the next turn of the event loop.
            if self.writes != Writes::Allowed || self.server.table.tasks() == 0 {
                return Ok(());
            }
        }
        Err("G6: the pump never comes to an end of its notes".to_owned())
    }

    /// What could not be published at once is, in its order.
    fn publish_all(&mut self, out: &mut Outcome) -> Result<(), String> {
        while let Some(step) = self.server.table.next_notice() {
            if let Some(Notice { lock_key, event }) = step {
                out.events.push((self.at(&lock_key)?, event));
            }
        }
        Ok(())
    }

    fn run(&mut self, out: &mut Outcome) -> Result<(), String> {
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
                self.end(task, out)?;
            }
        }
        Err(format!(
            "G3: the pump never ends: {:?} is due",
            self.server.table.due(self.server.now.boot, decides)
        ))
    }

    fn end(&mut self, due: Task, out: &mut Outcome) -> Result<(), String> {
        match due {
            Task::AskAgain => Ok(()),
            Task::TimeOut(waiter) => {
                let mut fx = Effects::default();
                self.server.table.time_out(waiter, &mut fx);
                self.publish_and_answer(None, fx, out)
            }
            Task::Expire(lock_key, id) => {
                let at = self.at(&lock_key)?;
                if self.elsewhere.contains(&at) {
                    let look_again = self.server.now.boot.plus_ms(LOOK_AGAIN_MS);
                    self.server.table.postpone(id, look_again);
                    self.postponed.insert(at, self.time + LOOK_AGAIN_MS * 1000);
                    self.send_on(at, out)
                } else if self.server.table.stands_for(self.server.existing(at), id) {
                    self.decide(at, None, out, |table, now, existing, admission, fx| {
                        table.settle(now, at.lock_key(), existing, Some(id), admission, fx)
                    })
                } else {
                    let boot = self.server.now.boot;
                    self.server.table.lost(boot, id, boot.plus_ms(LOOK_AGAIN_MS));
                    Ok(())
                }
            }
            Task::Settle(lock_key) | Task::TakeBack(lock_key, _)
                if self.elsewhere.contains(&self.at(&lock_key)?) =>
            {
                self.send_on(self.at(&lock_key)?, out)
            }
            Task::Settle(lock_key) => {
                let at = self.at(&lock_key)?;
                self.decide(at, None, out, |table, now, existing, admission, fx| {
                    table.settle(now, at.lock_key(), existing, None, admission, fx)
                })
            }
            Task::TakeBack(lock_key, token) => {
                let at = self.at(&lock_key)?;
                self.decide(at, None, out, |table, now, existing, admission, fx| {
                    table.take_back(now, at.lock_key(), existing, token, admission, fx)
                })
            }
            Task::Multi(request) => self.look_at_all(request, out),
            Task::ReplicateAgain(lock_key, token) => self.replicate_again(&lock_key, token, out),
            Task::Undo(..) => Err("the table asks nobody to undo a grant".to_owned()),
        }
    }

    /// It may be the turn of a request for several locks.
    fn look_at_all(&mut self, request: WaiterId, out: &mut Outcome) -> Result<(), String> {
        let lock_keys = self.server.table.keys_of(request);
        let ats: Vec<At> = lock_keys.iter().map(|lock_key| self.at(lock_key)).collect::<Result<_, _>>()?;
        if ats.is_empty() {
            return Ok(());
        }
        if let Some(&lost) = ats.iter().find(|at| self.elsewhere.contains(at)) {
            return self.send_on(lost, out);
        }
        self.decide_all(Keys::of(&ats), None, out, |table, now, refs, admission, fx| {
            ((), table.settle_many(now, request, refs, admission, fx))
        })
    }

    /// The lease of a hold runs otherwise than readers know.
    fn replicate_again(
        &mut self,
        lock_key: &LockKeyBuf,
        token: Token,
        out: &mut Outcome,
    ) -> Result<(), String> {
        let at = self.at(lock_key)?;
        let record =
            self.server.table.to_replicate(self.server.existing(at), token).unwrap_or(Record::Nothing);
        if record != Record::Nothing && !self.elsewhere.contains(&at) {
            out.facts.push(self.server.fact(at, record)?);
        }
        Ok(())
    }

    /// What a grant did is undone. Nothing is while the pump does not decide.
    pub(super) fn undo(&mut self, begun: Begun, out: &mut Outcome) -> Result<(), String> {
        if self.writes == Writes::Paused {
            return Ok(());
        }
        let Begun { at, token, owner, counts, is_upgrade } = begun;
        if let Some(known) = self.begun.iter().position(|known| *known == begun) {
            self.begun.remove(known);
        }
        if self.elsewhere.contains(&at) {
            return self.send_on(at, out);
        }
        let undo = UndoRecord::of(owner.as_bytes(), counts, is_upgrade);
        self.decide(at, None, out, |table, now, existing, admission, fx| {
            table.undo(now, at.lock_key(), existing, (token, undo), admission, fx)
        })
    }

    /// The slot of this key is not ours: whoever waits is sent on.
    fn send_on(&mut self, at: At, out: &mut Outcome) -> Result<(), String> {
        let mut fx = Effects::default();
        let moved = Answer::Moved("MOVED 1 host:1".to_owned());
        self.server.table.dismiss(at.lock_key(), &moved, &mut fx);
        self.publish_and_answer(Some(at), fx, out)
    }

    pub(super) fn close(&mut self, client: u64, out: &mut Outcome) {
        self.leave(client);
        let gone = self.in_flight.extract_if(.., |grant| grant.client == client);
        out.undelivered = gone.map(|grant| (grant.at, grant.token)).collect();
        for &(at, token) in &out.undelivered {
            self.server.table.note_undelivered(at.lock_key().to_owned(), token);
        }
        self.server.table.disconnected(self.server.now.boot, ClientId(client));
    }

    /// The requests of this connection are answered by nobody any more.
    pub(super) fn leave(&mut self, client: u64) {
        self.waits.retain(|_, wait| {
            let stays = wait.client != client;
            if !stays {
                self.server.table.leave(wait.id);
            }
            stays
        });
    }
}
