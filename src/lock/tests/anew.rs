//! What the [judge](super::judge) and the [oracle](super::oracle) say of requests that are decided anew, because a RESTORE
//! made their owners hold the lock in another way than they asked for (G9).

use super::book::{Anew, Hold, Undecided, Wish};
use super::input::{Answered, Input, Outcome, Writes};
use super::judge::{Judge, Pending, Verdict, must};
use super::lowered;
use super::oracle::{Oracle, Waiter};
use super::server::At;
use super::world::World;
use crate::lock::effect::Answer;
use crate::lock::types::Mode;

impl Answered {
    /// Whether a request was decided anew, and would have waited for itself.
    pub(super) const fn is_deadlock(&self) -> bool {
        matches!(self.answer, Answer::Deadlock(_))
    }
}

/// G9: a RESTORE made a waiter hold what it waits for, or more. Or its owner asks for less in this very step, and was told
/// before.
pub(super) fn told_of_its_own(input: &Input, pending: &Pending, own: &Hold) -> Verdict {
    let is_told = pending.anew(own.mode) == Some(Anew::Told);
    let is_less = matches!(*input, Input::Acquire { owner, .. } if owner == pending.owner)
        && (pending.mode, own.mode) == (Mode::Exclusive, Mode::Shared);
    must(is_told || is_less, || format!("G9: {pending:?} was told of {own:?}"))
}

impl Judge {
    /// The pump has run: a shared holder that waits for the whole lock stands ahead of everybody, the newest first.
    pub(super) fn decide_anew(&mut self, world: &World) {
        if world.writes != Writes::Allowed {
            return;
        }
        for at in self.queues.keys().copied().collect::<Vec<_>>() {
            let is_upgrade = |pending: &&Pending| {
                let held = self.own(at, pending.owner, world).map(|own| own.mode);
                held.and_then(|held| pending.anew(held)) == Some(Anew::Upgrade) && !world.is_left_alone(at)
            };
            let upgrades: Vec<Pending> = self.queue(at).iter().filter(is_upgrade).copied().collect();
            // Of several one can wait: the one that came first.
            for pending in upgrades.into_iter().rev() {
                self.strike(&pending);
                self.arrivals += 1;
                self.raised.insert(self.arrivals, pending.number);
                let raised =
                    Pending { is_upgrade: true, has_lost_hold: false, number: self.arrivals, ..pending };
                self.queues.entry(at).or_default().insert(0, raised);
                self.see("an upgrade by a restored hold");
            }
        }
    }

    /// Removes all requests that were told of a deadlock. Returns those whose wait could have come to an end before the
    /// step, when all others were still waiting.
    pub(super) fn leave_deadlocks(&mut self, out: &Outcome, world: &World) -> Result<Vec<Pending>, String> {
        let (mut unclear, before) = (Vec::new(), self.clone());
        let raised =
            self.queues.values().flatten().filter(|pending| self.raised.contains_key(&pending.number));
        let hopeful = raised.filter(|pending| before.comes_true(pending, world));
        self.hopeful = hopeful.map(|pending| pending.number).collect();
        for &Answered { wait, at, ref answer, .. } in &out.answers {
            let Answer::Deadlock(cycle) = answer else { continue };
            let own = self.queue(at).iter().find(|pending| pending.wait == wait).copied();
            let pending = own.ok_or_else(|| format!("G7: wait {wait} is over and was told {answer:?}"))?;
            self.strike(&pending);
            self.see("a deadlock by a restored hold");
            let mut links = cycle.iter().zip(cycle.iter().cycle().skip(1));
            let is_closed = !cycle.is_empty() && links.all(|(link, next)| link.awaited == next.owner);
            must(is_closed && self.raised.contains_key(&pending.number), || {
                format!("G11: {pending:?} {cycle:?}")
            })?;
            if before.comes_true(&pending, world) {
                unclear.push(pending);
            }
        }
        Ok(unclear)
    }

    /// Checks that the waits of these requests could not come to an end after the step either: otherwise they were told
    /// of a deadlock by a false alarm (G11).
    pub(super) fn were_deadlocks(&self, unclear: &[Pending], world: &World) -> Verdict {
        let false_alarm = unclear.iter().find(|pending| self.comes_true(pending, world));
        must(false_alarm.is_none(), || format!("G11: {false_alarm:?} was told of a deadlock"))
    }

    fn comes_true(&self, pending: &Pending, world: &World) -> bool {
        let (scene, number) = self.scene(pending.wish(), true, pending.number, world);
        scene.comes_true(number, Undecided::Told)
    }

    /// Whether a waiter may be told that the lock is of this other kind.
    pub(super) fn is_of_other_kind(&self, at: At, pending: &Pending, other: Mode, world: &World) -> bool {
        let held = self.own(at, pending.owner, world).map(|own| own.mode);
        held == Some(other) && pending.anew(other) == Some(Anew::OtherKind)
    }

    /// When the pump has run nobody waits whose own hold says what becomes of its request; and no upgrade for itself.
    pub(super) fn all_are_decided_anew(&mut self, world: &World) -> Verdict {
        for (&at, queue) in &self.queues {
            for pending in queue.iter().filter(|pending| !pending.is_reservation()) {
                let held = self.own(at, pending.owner, world).map(|own| own.mode);
                let anew = held.and_then(|held| pending.anew(held));
                must(anew.is_none() || world.is_left_alone(at), || {
                    format!("G9: {pending:?} waits at {at}, and its owner holds it {held:?}")
                })?;
            }
        }
        // What an owner got in this run may have been its way out when the search ran.
        let is_raised = |number: u64| self.raised.contains_key(&number) && !self.hopeful.contains(&number);
        let raised = self.queues.values().flatten().filter(|pending| is_raised(pending.number));
        for pending in raised.copied().collect::<Vec<_>>() {
            self.will_not_wait_for_itself(&pending, true, world)?;
        }
        Ok(())
    }

    /// G11: a request that waits can still be granted, unless the search for what stands in its way ended early.
    pub(super) fn will_not_wait_for_itself(
        &mut self,
        asked: &Pending,
        is_upgrade: bool,
        world: &World,
    ) -> Verdict {
        let Pending { owner, keys, mode, number, .. } = *asked;
        let (scene, lock_key) = self.scene(
            Wish { owner, keys, mode, is_upgrade, is_reservation: false },
            is_upgrade,
            number,
            world,
        );
        if !scene.comes_true(lock_key, Undecided::Told) && lowered::has_search_ended_early() {
            self.see("deadlock beyond the search");
            return Ok(());
        }
        must(scene.comes_true(lock_key, Undecided::Told), || {
            format!("G11: {owner:?} waits for {keys:?}, and for itself: {scene:?}")
        })
    }
}

impl Oracle {
    /// What becomes of a request, if its owner holds the lock.
    pub(super) fn anew(&self, at: At, waiter: &Waiter) -> Option<Anew> {
        let Waiter { owner, mode, is_upgrade, client, .. } = *waiter;
        let held = self.holds(at).iter().find(|hold| hold.owner == owner).map(|hold| hold.mode)?;
        let is_single = waiter.keys.len() == 1 && waiter.keys.contains(at);
        Anew::of(held, mode, (is_upgrade, client.is_none())).filter(|_| is_single)
    }

    /// G9: a RESTORE made them hold what they wait for, or the lock in another kind. At the latest the pump tells them.
    pub(super) fn answer_holders(&mut self, at: At, is_told: impl Fn(&Waiter) -> bool) {
        for owner in self.holds(at).iter().map(|hold| hold.owner).collect::<Vec<_>>() {
            let is_it = |w: &Waiter| w.owner == owner && w.keys.contains(at) && is_told(w);
            let Some(own) = self.waiters.iter().position(is_it) else { continue };
            let word = match self.anew(at, &self.waiters[own]) {
                Some(Anew::Told) => "granted",
                Some(Anew::OtherKind) => "other kind",
                Some(Anew::Upgrade) | None => continue,
            };
            let refusal = self.refusal(&self.waiters[own]);
            if refusal.is_none() && word == "granted" {
                self.hold_as_asked(own);
            }
            self.strike(own, refusal.unwrap_or(word));
            self.served += 1;
        }
    }

    /// The pump lets shared holders that wait for the whole lock stand ahead of everybody, the last one first.
    pub(super) fn raise_holders(&mut self, at: At, out: &Outcome) {
        let is_upgrade = |waiter: &&Waiter| self.anew(at, waiter) == Some(Anew::Upgrade);
        let upgrades: Vec<u32> = self.waiters.iter().filter(is_upgrade).map(|waiter| waiter.wait).collect();
        for wait in upgrades.into_iter().rev() {
            let Some(index) = self.waiters.iter().position(|w| w.wait == wait && w.client.is_some()) else {
                continue;
            };
            if let Some(why) = self.refusal(&self.waiters[index]) {
                self.strike(index, why);
                continue;
            }
            let waiter = self.waiters.remove(index);
            self.waiters.insert(0, Waiter { is_upgrade: true, ..waiter });
            let told = out.answers.iter().find(|told| told.wait == wait);
            // That depends on which lock the pump looks at first. It is the judge's business.
            if told.is_some_and(Answered::is_deadlock) {
                self.strike(0, "deadlock");
            }
        }
    }

    /// What a request is told whose time is over, and whose owner holds the lock: perhaps of that.
    pub(super) fn told_late(&self, waiter: &Waiter, told: Option<&Answer>) -> Option<&'static str> {
        let at = waiter.keys.first()?;
        match (self.anew(at, waiter)?, told?) {
            (_, Answer::Refused(_)) => self.refusal(waiter),
            (Anew::Told, Answer::Granted { .. }) => Some("granted"),
            (Anew::OtherKind, Answer::OtherKind(_)) => Some("other kind"),
            (Anew::Upgrade, Answer::Deadlock(_)) => Some("deadlock"),
            _ => None,
        }
    }
}
