//! What the [oracle](super::oracle) does when the pump runs.

use super::book::Hold;
use super::input::{Keys, Outcome, Reply, Writes};
use super::oracle::{Oracle, Waiter};
use super::server::At;
use super::world::World;
use crate::lock::effect::Answer;
use crate::lock::table::WRONG_TYPE;

impl Oracle {
    /// Why this waiter must not be granted anything, if anything forbids it.
    pub(super) fn refusal(&self, waiter: &Waiter) -> Option<&'static str> {
        if self.quarantine_ms > 0 && waiter.lease_ms > self.quarantine_ms {
            return Some("too long");
        }
        if self.confirms && waiter.binding.is_keepalive {
            return Some("kept");
        }
        waiter.client.filter(|client| self.forbidden.contains(client)).map(|_| "forbidden")
    }

    pub(super) fn pump(&mut self, out: &Outcome, world: &World) -> Reply {
        let time = self.time;
        for hold in self.all_holds().filter(|hold| hold.is_paused() && hold.client.is_none()) {
            hold.untied(time, false);
        }
        while let Some(late) = self.waiters.iter().position(|w| w.until.is_some_and(|until| until <= time)) {
            // Where something else was written in its time, it may be told that instead.
            let is_other = self.waiters[late].keys.iter().any(|at| self.is_other(at));
            let told = out.answers.iter().find(|told| told.wait == self.waiters[late].wait);
            let is_told = told.is_some_and(|told| told.answer == Answer::Refused(WRONG_TYPE));
            // Or, where a RESTORE made it hold what it waits for, of that.
            let Waiter { owner, mode, keys, .. } = self.waiters[late];
            let is_own = |hold: &Hold| (hold.owner, hold.mode) == (owner, mode);
            let holds = keys.len() == 1 && keys.iter().any(|at| self.holds(at).iter().any(is_own));
            let is_granted = told.is_some_and(|told| matches!(told.answer, Answer::Granted { .. }));
            let word = match (is_other && is_told, holds && is_granted) {
                (true, _) => "wrong type",
                (_, true) => "granted",
                _ => "timed out",
            };
            self.strike(late, word);
        }
        if self.writes == Writes::Paused {
            return Reply::None;
        }
        // What nobody was told of is taken back when it may be.
        let may_write = self.writes == Writes::Allowed;
        for at in self.keys.iter().map(|key| key.0).collect::<Vec<_>>() {
            self.end(at, |hold| !hold.is_live(time) || (hold.is_ownerless && may_write));
        }
        // What was written where nobody held anything is noticed when somebody looks; the judge says if that is late.
        let others: Vec<At> = self.keys.iter().map(|key| key.0).filter(|&at| self.is_other(at)).collect();
        for at in others.into_iter().filter(|&at| !world.server.table().is_waited_for(at.lock_key())) {
            self.dismiss(at);
        }
        // An owner that comes in, or leaves a queue, may make room for others elsewhere.
        loop {
            let before = self.waiters.len();
            let lock_keys: Vec<At> = self.waiters.iter().flat_map(|waiter| waiter.keys.iter()).collect();
            for at in lock_keys {
                // While nothing may be written it looks at nobody, but where a lease is over.
                let looks = self.writes == Writes::Allowed;
                if looks {
                    self.answer_holders(at, |_| true);
                }
                self.admit(at, looks && !self.is_other(at), out);
            }
            self.admit_multis(out);
            if self.waiters.len() == before {
                return Reply::None;
            }
        }
    }

    /// G9: a RESTORE made them hold what they wait for. At the latest the pump tells them.
    pub(super) fn answer_holders(&mut self, at: At, is_told: impl Fn(&Waiter) -> bool) {
        for (owner, mode) in self.holds(at).iter().map(|hold| (hold.owner, hold.mode)).collect::<Vec<_>>() {
            let is_same =
                |w: &Waiter| w.owner == owner && w.mode == mode && w.keys == Keys::one(at) && is_told(w);
            if let Some(own) = self.waiters.iter().position(is_same) {
                self.strike(own, "granted");
            }
        }
    }

    fn admit_multis(&mut self, out: &Outcome) {
        let mut index = 0;
        while index < self.waiters.len() {
            let waiter = self.waiters[index];
            let keys = waiter.keys;
            let is_turn =
                keys.len() > 1 && keys.iter().all(|at| self.is_turn_at(index, at) && !self.is_other(at));
            if !is_turn || self.writes != Writes::Allowed {
                index += 1;
            } else if let Some(why) = self.refusal(&waiter) {
                self.strike(index, why);
            } else {
                self.grant(index, out);
            }
        }
    }
}
