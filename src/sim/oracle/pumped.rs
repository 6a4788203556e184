//! The [oracle](crate::sim::oracle)'s run of the pump.

use crate::lock::effect::Answer;
use crate::lock::table::{ARRIVED, WRONG_TYPE};
use crate::sim::checkers::book::Hold;
use crate::sim::oracle::{Oracle, Waiter};
use crate::sim::single::input::{Outcome, Reply, Writes};
use crate::sim::single::server::At;
use crate::sim::single::world::World;

impl Oracle {
    /// Returns the reason why this waiter must not be granted anything, if there is one.
    pub(crate) fn refusal(&self, waiter: &Waiter) -> Option<&'static str> {
        if self.quarantine_ms > 0 && waiter.lease_ms > self.quarantine_ms {
            return Some("too long");
        }
        if self.confirms && waiter.binding.is_keepalive {
            return Some("kept");
        }
        if self.confirms && waiter.is_reentrant {
            return Some("counted");
        }
        waiter.client.filter(|client| self.forbidden.contains(client)).map(|_| "forbidden")
    }

    pub(crate) fn pump(&mut self, out: &Outcome, world: &World) -> Reply {
        let time = self.time;
        for hold in self.all_holds().filter(|hold| hold.is_paused() && hold.client.is_none()) {
            hold.untied(time, false);
        }
        while let Some(late) = self.waiters.iter().position(|w| w.until.is_some_and(|until| until <= time)) {
            // If another value was written before it timed out, it may be notified of that instead.
            let is_other = self.waiters[late].keys.iter().any(|at| self.is_other(at));
            let told = out.answers.iter().find(|told| told.wait == self.waiters[late].wait);
            let is_told = |text| told.is_some_and(|told| told.answer == Answer::Refused(text));
            let word = match () {
                () if is_other && is_told(WRONG_TYPE) => "wrong type",
                () if is_told(ARRIVED) && self.waiters[late].keys.iter().any(|at| self.is_arrived(at)) => {
                    "arrived"
                }
                () => "timed out",
            };
            self.strike(late, word);
        }
        if self.writes == Writes::Paused {
            return Reply::None;
        }
        for at in self.arrived.clone() {
            // While writes are refused it decides only for expired leases.
            if self.writes == Writes::Allowed || !world.server.table().is_waited_for(at.lock_key()) {
                self.end_for_arrived(at);
            }
        }
        // An undelivered grant is revoked when writes are accepted.
        let may_write = self.writes == Writes::Allowed;
        for at in self.keys.iter().map(|key| key.0).collect::<Vec<_>>() {
            let is_lost = |hold: &Hold| hold.is_ownerless() && may_write;
            self.end(at, |hold| !hold.is_live(time) || is_lost(hold));
        }
        // The pump notices a value that was written at a key without holds when it next examines the key; the judge
        // reports it if that is late.
        let others: Vec<At> = self.keys.iter().map(|key| key.0).filter(|&at| self.is_other(at)).collect();
        for at in others.into_iter().filter(|&at| !world.server.table().is_waited_for(at.lock_key())) {
            self.dismiss(at);
        }
        // An owner that is granted, or leaves a queue, may make room for others elsewhere.
        loop {
            let before = self.waiters.len();
            self.admit_multis(out, |waiter| out.answers.iter().any(|told| told.wait == waiter.wait));
            let lock_keys: Vec<At> = self.waiters.iter().flat_map(|waiter| waiter.keys.iter()).collect();
            for at in lock_keys {
                // While writes are refused it examines no waiter except where a lease has expired.
                let looks = self.writes == Writes::Allowed;
                self.admit(at, looks && !self.is_other(at), out);
            }
            self.admit_multis(out, |_| true);
            if self.waiters.len() == before {
                return Reply::None;
            }
        }
    }

    pub(crate) fn close(&mut self, client: u64) {
        self.waiters.retain(|waiter| waiter.client != Some(client));
        let time = self.time;
        self.all_holds().for_each(|hold| hold.close(client, time));
    }

    fn admit_multis(&mut self, out: &Outcome, may_come: impl Fn(&Waiter) -> bool) {
        let mut index = 0;
        while index < self.waiters.len() {
            let waiter = self.waiters[index];
            let keys = waiter.keys;
            let is_turn =
                keys.len() > 1 && keys.iter().all(|at| self.is_turn_at(index, at) && !self.is_other(at));
            if !is_turn || self.writes != Writes::Allowed || !may_come(&waiter) {
                index += 1;
            } else if let Some(why) = self.refusal(&waiter) {
                self.strike(index, why);
            } else {
                self.grant(index, out);
            }
        }
    }
}
