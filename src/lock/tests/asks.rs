//! What the clients of the [world](super::world) ask, and how a step of the core is carried out.

use super::input::{Answered, How, InFlight, Input, Keys, Outcome, Reply, Writes};
use super::reader::Fact;
use super::server::{At, Name};
use super::world::{Wait, World};
use crate::lock::effect::{Answer, Change, Effect, Effects, Existing, Record, Step};
use crate::lock::table::{
    Acquired, Admission, Ask, Block, Candidate, Decision, KeyRef, NO_PERMISSION, NO_PERMISSION_FOR_SEVERAL,
    Refusal, Renewal, Steps, Table, Wait as HowToWait,
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
        let reply = self.decide(at, Some(asked), out, |table, now, existing, admission, fx| {
            table.acquire(now, at.lock_key(), existing, &ask, admission, fx)
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
        let reply = self.decide_all(keys, Some(asked), out, |table, now, refs, admission, fx| {
            table.acquire_many(now, refs, &ask, admission, fx)
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
        let wait = wait.map(|ms| match how.is_reservation {
            true => HowToWait::Reservation { until: now.plus_ms(ms) },
            false => HowToWait::Block(Block {
                client: ClientId(client),
                until: (ms != 0).then(|| now.plus_ms(ms)),
            }),
        });
        let How { mode, is_reentrant, binding, .. } = how;
        let bind_to =
            Some(ClientId(client)).filter(|_| !binding.is_none() || self.server.table.may_have_bindings());
        Ask {
            owner: owner.as_bytes(),
            owner_is_minted: minted,
            lease_ms,
            mode,
            is_reentrant,
            binding,
            wait,
            client: Some(ClientId(client)),
            bind_to,
            must_be_explicit: minted,
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
        let given = self.decide(at, Some(asked), out, |table, now, existing, admission, fx| {
            table.release(now, at.lock_key(), existing, owner.as_bytes(), token, admission, fx)
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
        let bind_to = client.filter(|_| self.server.table.may_have_bindings());
        let renewal = Renewal { owner: owner.as_bytes(), token, raise, lease_ms, client, bind_to };
        let renewed = self.decide(at, Some(asked), out, |table, now, existing, admission, fx| {
            table.renew(now, at.lock_key(), existing, &renewal, admission, fx)
        })?;
        if renewed == Some(true) {
            self.owner_knows(at, owner);
        }
        out.reply = yes_or_wrong_type(renewed);
        Ok(())
    }

    /// Asks the core for a step about this key, and carries it out.
    pub(super) fn decide<R>(
        &mut self,
        at: At,
        asked: Option<Fact>,
        out: &mut Outcome,
        step: impl FnOnce(&mut Table, Now, Existing, Admission<'_>, &mut Effects) -> Step<R>,
    ) -> Result<R, String> {
        self.decide_all(Keys::one(at), asked, out, |table, now, refs, admission, fx| {
            let step = step(table, now, refs[0].existing, admission, &mut fx[0]);
            let Step { reply, change, record } = step;
            (reply, vec![Step { reply: (), change, record }])
        })
    }

    /// The same for several keys: first all keys, then for each what is told, published and answered.
    pub(super) fn decide_all<R>(
        &mut self,
        keys: Keys,
        asked: Option<Fact>,
        out: &mut Outcome,
        step: impl FnOnce(&mut Table, Now, &[KeyRef<'_>], Admission<'_>, &mut [Effects]) -> Steps<R>,
    ) -> Result<R, String> {
        self.lock_keys.extend(keys.iter());
        let now = self.server.now;
        let refs: Vec<KeyRef<'_>> = keys
            .iter()
            .map(|at| KeyRef { lock_key: at.lock_key(), existing: self.server.existing(at) })
            .collect();
        let (forbidden, writes) = (&self.forbidden, self.writes);
        let mut admission = |who: Candidate<'_>| match writes {
            Writes::Allowed if forbidden.contains(&who.client.0) => {
                Decision::Refused(if who.wants_several { NO_PERMISSION_FOR_SEVERAL } else { NO_PERMISSION })
            }
            Writes::Allowed => Decision::Granted,
            Writes::Refused | Writes::Paused => Decision::NotNow,
        };
        let mut effects = vec![Effects::default(); refs.len()];
        let (reply, steps) = step(&mut self.server.table, now, &refs, &mut admission, &mut effects);
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
            for record in std::iter::once(step.record).chain(fx.records()).collect::<Vec<_>>() {
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
                Effect::Replicate(_) => continue,
                Effect::Publish(event) => {
                    let at = at.ok_or("an event about no key")?;
                    if self.server.table.has_notices() && !sabotage::removes(Rule::EventOrder) {
                        self.server.table.publish_later(at.lock_key(), event);
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
            if let Answer::Granted { ref lock_key, ref others, token, .. } = answer {
                self.told.push((token, wait.owner));
                for lock_key in std::iter::once(lock_key).chain(others) {
                    let at = self.at(lock_key)?;
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
