//! What the clients of the [world](super::world) ask, and how a step of the core is carried out.

use super::input::{Answered, How, InFlight, Input, Keys, Outcome, Reply, Writes};
use super::reader::Fact;
use super::server::{At, Name};
use super::world::{Wait, World};
use crate::lock::effect::{Answer, Change, Effect, Effects, Found, Record, Step};
use crate::lock::table::{
    Acquired, Admission, Applicant, Ask, Block, Gate, NO_PERMISSION, NO_PERMISSION_FOR_SEVERAL, Refusal,
    Renewal, Spot, Steps, Table, Wait as HowToWait,
};
use crate::lock::types::{ClientId, Mode, Now, Token};
use crate::sabotage::{self, Rule};

impl World {
    pub(super) fn acquire(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        let Input::Acquire { at, owner, lease_ms, wait, client, minted, how } = *input else {
            return Err(format!("{input:?} is no acquire"));
        };
        let ask = self.ask(owner, lease_ms, wait, client, minted, how);
        let asked = Fact::Acquire { at, owner, lease_ms, how };
        let reply = self.decide(at, Some(asked), out, |table, now, found, gate, fx| {
            table.acquire(now, at.place(), found, &ask, gate, fx)
        })?;
        out.reply = self.acquired(Keys::one(at), owner, client, reply)?;
        out.cycle = self.server.table.take_cycle();
        Ok(())
    }

    pub(super) fn acquire_many(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        let Input::AcquireMany { keys, owner, lease_ms, wait, client, minted, is_shared } = *input else {
            return Err(format!("{input:?} is no acquire of several"));
        };
        let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
        let ask = self.ask(owner, lease_ms, wait, client, minted, How::of(mode));
        let asked = Fact::AcquireMany { keys, owner, lease_ms, mode };
        let reply = self.decide_all(keys, Some(asked), out, |table, now, spots, gate, fx| {
            table.acquire_many(now, spots, &ask, gate, fx)
        })?;
        out.reply = self.acquired(keys, owner, client, reply)?;
        out.cycle = self.server.table.take_cycle();
        Ok(())
    }

    fn ask(
        &mut self,
        owner: Name,
        lease_ms: u64,
        wait: Option<u64>,
        client: u64,
        minted: bool,
        how: How,
    ) -> Ask<'static> {
        self.owners.insert(owner);
        let now = self.server.now.boot;
        let wait = wait.map(|ms| match how.is_place {
            true => HowToWait::Place { until: now.plus_ms(ms) },
            false => HowToWait::Block(Block {
                client: ClientId(client),
                until: (ms != 0).then(|| now.plus_ms(ms)),
            }),
        });
        let How { mode, is_reentrant, tie, .. } = how;
        let bind_to = Some(ClientId(client)).filter(|_| !tie.is_none() || self.server.table.may_have_ties());
        Ask {
            owner: owner.as_bytes(),
            owner_is_minted: minted,
            lease_ms,
            mode,
            is_reentrant,
            tie,
            wait,
            client: Some(ClientId(client)),
            bind_to,
            must_be_named: minted,
            cannot_confirm: false,
        }
    }

    fn acquired(&mut self, keys: Keys, owner: Name, client: u64, reply: Acquired) -> Result<Reply, String> {
        Ok(match reply {
            Acquired::Granted(token) => {
                keys.iter().for_each(|at| self.owner_knows(at, owner));
                self.told.push((token, owner));
                Reply::Granted(token)
            }
            Acquired::Busy => Reply::Busy,
            Acquired::Refused(why) => Reply::Refused(why),
            Acquired::Waiting(id) => {
                self.wait_count += 1;
                let at = keys.first().ok_or("a wait for nothing")?;
                let wait = Wait { id, number: self.wait_count, at, owner, client };
                self.waits.insert(id.number(), wait);
                Reply::Waiting(self.wait_count)
            }
        })
    }

    pub(super) fn release(
        &mut self,
        at: At,
        owner: Name,
        token: Option<Token>,
        out: &mut Outcome,
    ) -> Result<(), String> {
        let asked = Fact::Release { at, owner, token };
        let given = self.decide(at, Some(asked), out, |table, now, found, gate, fx| {
            table.release(now, at.place(), found, owner.as_bytes(), token, gate, fx)
        })?;
        out.reply = yes_or_wrong_type(given);
        Ok(())
    }

    pub(super) fn renew(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        let Input::Renew { at, owner, token, raise, lease_ms, client } = *input else {
            return Err(format!("{input:?} is no renewal"));
        };
        let asked = Fact::Renew { at, owner, token, raise, lease_ms };
        let client = Some(ClientId(client));
        let bind_to = client.filter(|_| self.server.table.may_have_ties());
        let renewal = Renewal { owner: owner.as_bytes(), token, raise, lease_ms, client, bind_to };
        let renewed = self.decide(at, Some(asked), out, |table, now, found, gate, fx| {
            table.renew(now, at.place(), found, &renewal, gate, fx)
        })?;
        if renewed == Some(true) {
            self.owner_knows(at, owner);
        }
        out.reply = yes_or_wrong_type(renewed);
        Ok(())
    }

    /// Asks the core for a step about this place, and carries it out.
    pub(super) fn decide<R>(
        &mut self,
        at: At,
        asked: Option<Fact>,
        out: &mut Outcome,
        step: impl FnOnce(&mut Table, Now, Found, Gate<'_>, &mut Effects) -> Step<R>,
    ) -> Result<R, String> {
        self.decide_all(Keys::one(at), asked, out, |table, now, spots, gate, fx| {
            let step = step(table, now, spots[0].found, gate, &mut fx[0]);
            let Step { reply, change, record } = step;
            (reply, vec![Step { reply: (), change, record }])
        })
    }

    /// The same for several places: first all keys, then for each what is told, published and answered.
    pub(super) fn decide_all<R>(
        &mut self,
        keys: Keys,
        asked: Option<Fact>,
        out: &mut Outcome,
        step: impl FnOnce(&mut Table, Now, &[Spot<'_>], Gate<'_>, &mut [Effects]) -> Steps<R>,
    ) -> Result<R, String> {
        self.places.extend(keys.iter());
        let now = self.server.now;
        let spots: Vec<Spot<'_>> =
            keys.iter().map(|at| Spot { place: at.place(), found: self.server.found(at) }).collect();
        let (forbidden, writes) = (&self.forbidden, self.writes);
        let mut gate = |who: Applicant<'_>| match writes {
            Writes::Allowed if forbidden.contains(&who.client.0) => {
                Admission::Refused(if who.wants_several { NO_PERMISSION_FOR_SEVERAL } else { NO_PERMISSION })
            }
            Writes::Allowed => Admission::Granted,
            Writes::Refused | Writes::Paused => Admission::NotNow,
        };
        let mut effects = vec![Effects::default(); spots.len()];
        let (reply, steps) = step(&mut self.server.table, now, &spots, &mut gate, &mut effects);
        let told_before = out.facts.len();
        let changed_before = out.changes.len();
        for (at, step) in keys.iter().zip(&steps) {
            self.server.carry_out(at, step.change);
            if step.change != Change::Nothing {
                out.changes.push((at, step.change));
            }
        }
        let mut asked = asked;
        for ((at, step), fx) in keys.iter().zip(&steps).zip(effects) {
            for record in std::iter::once(step.record).chain(fx.told()).collect::<Vec<_>>() {
                match record {
                    Record::Nothing => {}
                    Record::AsAsked => {
                        out.facts.push(asked.take().ok_or("G13: told as asked, and nobody asked, or twice")?);
                    }
                    // A hold that the same step has replaced by another one needs not be told of.
                    _ => out.facts.extend(self.server.fact(at, record).ok()),
                }
            }
            self.publish_and_answer(Some(at), fx, out)?;
        }
        let (facts, changes) = (&out.facts[told_before..], &out.changes[changed_before..]);
        // Whose turn it is concerns nobody but the clients of this server.
        if facts.is_empty() != changes.iter().all(|(_, change)| *change == Change::Signalled) {
            return Err(format!("G13: {changes:?} is told as {facts:?}"));
        }
        Ok(reply)
    }

    pub(super) fn publish_and_answer(
        &mut self,
        at: Option<At>,
        fx: impl IntoIterator<Item = Effect>,
        out: &mut Outcome,
    ) -> Result<(), String> {
        for effect in fx {
            let (waiter, client, answer) = match effect {
                // Told before.
                Effect::Tell(_) => continue,
                Effect::Publish(event) => {
                    let at = at.ok_or("an event about no key")?;
                    if self.server.table.has_notices() && !sabotage::removes(Rule::EventOrder) {
                        self.server.table.publish_later(at.place(), event);
                    } else {
                        out.events.push((at, event));
                    }
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
            if let Answer::Granted { ref place, ref others, token, .. } = answer {
                self.told.push((token, wait.owner));
                for place in std::iter::once(place).chain(others) {
                    let at = self.at(place)?;
                    self.in_flight.push(InFlight { at, owner: wait.owner, token, client: wait.client });
                }
            }
            out.answers.push(Answered { wait: wait.number, at: wait.at, client: wait.client, answer });
        }
        Ok(())
    }

    /// The owner was told by another answer that the lock is its own: the grant is no longer on its way.
    fn owner_knows(&mut self, at: At, owner: Name) {
        self.in_flight.retain(|grant| grant.at != at || grant.owner != owner);
    }
}

const fn yes_or_wrong_type(reply: Option<bool>) -> Reply {
    match reply {
        Some(is_done) => Reply::Bool(is_done),
        None => Reply::Refused(Refusal::WrongType),
    }
}
