//! What the [oracle](super::oracle) does when the pump runs.

use super::begun::is_there;
use super::book::{Asked, Hold};
use super::input::{Begun, Outcome, Reply, Writes};
use super::oracle::{Oracle, Value, Waiter};
use super::server::{At, Name};
use super::world::World;
use crate::lock::effect::Answer;
use crate::lock::table::{ARRIVED, WRONG_TYPE};
use crate::lock::types::{Mode, Token};

/// A hold went on under a newer token.
pub(super) struct WentOn {
    pub(super) at: At,
    pub(super) owner: Name,
    pub(super) was: Token,
    pub(super) is: Token,
}

impl Oracle {
    /// Why this waiter must not be granted anything, if anything forbids it.
    pub(super) fn refusal(&self, waiter: &Waiter) -> Option<&'static str> {
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

    pub(super) fn pump(&mut self, out: &Outcome, world: &World) -> Reply {
        let time = self.time;
        for hold in self.all_holds().filter(|hold| hold.is_paused() && hold.client.is_none()) {
            hold.untied(time, false);
        }
        while let Some(late) = self.waiters.iter().position(|w| w.until.is_some_and(|until| until <= time)) {
            // Where something else was written in its time, it may be told that instead.
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
            // While nothing may be written it decides where a lease is over, and nowhere else.
            if self.writes == Writes::Allowed || !world.server.table().is_waited_for(at.lock_key()) {
                self.end_for_arrived(at);
            }
        }
        // What nobody was told of is taken back when it may be.
        let may_write = self.writes == Writes::Allowed;
        for at in self.keys.iter().map(|key| key.0).collect::<Vec<_>>() {
            if may_write {
                self.take_back(at);
            }
            let goes_on: Vec<Hold> = self
                .holds(at)
                .iter()
                .filter(|hold| self.goes_on_first(at, hold, out, world))
                .copied()
                .collect();
            let is_lost = |hold: &Hold| hold.is_ownerless && may_write && !goes_on.contains(hold);
            self.end(at, |hold| !hold.is_live(time) || is_lost(hold));
        }
        // What was written where nobody held anything is noticed when somebody looks; the judge says if that is late.
        let others: Vec<At> = self.keys.iter().map(|key| key.0).filter(|&at| self.is_other(at)).collect();
        for at in others.into_iter().filter(|&at| !world.server.table().is_waited_for(at.lock_key())) {
            self.dismiss(at);
        }
        // An owner that comes in, or leaves a queue, may make room for others elsewhere.
        loop {
            let before = self.waiters.len();
            self.admit_multis(out, |waiter| out.answers.iter().any(|told| told.wait == waiter.wait));
            let lock_keys: Vec<At> = self.waiters.iter().flat_map(|waiter| waiter.keys.iter()).collect();
            for at in lock_keys {
                // While nothing may be written it looks at nobody, but where a lease is over.
                let looks = self.writes == Writes::Allowed;
                self.admit(at, looks && !self.is_other(at), out);
            }
            self.admit_multis(out, |_| true);
            if self.waiters.len() == before {
                return Reply::None;
            }
        }
    }

    /// Whether the owner of this hold, which is to be taken back, was granted more before that. Then the hold went on.
    fn goes_on_first(&self, at: At, hold: &Hold, out: &Outcome, world: &World) -> bool {
        let is_its = |waiter: &&Waiter| waiter.owner == hold.owner && waiter.keys.contains(at);
        let Some(waiter) = self.waiters.iter().find(is_its) else { return false };
        let told = out.answers.iter().find(|told| told.wait == waiter.wait && waiter.client.is_some());
        let Some(Answer::Granted { token, .. }) = told.map(|told| &told.answer) else { return false };
        let Waiter { lease_ms, binding, client, is_reentrant, mode, .. } = *waiter;
        let asked = Asked { lease_ms, binding, client, is_reentrant };
        // A hold that ended, and one that its owner was granted after that, may look just so. Readers are told of the end.
        !has_ended(at, hold.token, out) && is_there(at, &hold.goes_on(*token, mode, self.time, asked), world)
    }

    /// G8: what nobody was told of is taken back, and what its owner held before goes on.
    fn take_back(&mut self, at: At) {
        let time = self.time;
        // A lost grant may be over where what its owner held before it is not.
        self.end(at, |hold| !hold.is_live(time) && !hold.is_ownerless);
        let mut holds = self.holds(at).to_vec();
        for number in 0..holds.len() {
            let mut others = holds.clone();
            let hold = others.remove(number);
            others.retain(|other| !other.is_ownerless);
            if let Some(left) = self.untold.take_back(at, hold, &others, self.time) {
                holds[number] = left;
            }
        }
        if !holds.is_empty() {
            holds.sort_by_key(|hold| hold.token);
            self.put(at, Some(Value::Lock(holds)));
        }
    }

    /// By now all are told whose answers have arrived.
    pub(super) fn settle_untold(&mut self, world: &World) {
        let mut untold = std::mem::take(&mut self.untold);
        let own = |at: At, owner| self.holds(at).iter().find(|own| own.owner == owner).copied();
        for (at, owner) in untold.settle(world, own) {
            self.own(at, owner).into_iter().for_each(|own| own.is_acknowledged = true);
        }
        self.untold = untold;
    }

    pub(super) fn close(&mut self, client: u64, out: &Outcome) {
        self.waiters.retain(|waiter| waiter.client != Some(client));
        for (at, value) in &mut self.keys {
            let Value::Lock(holds) = value else { continue };
            for hold in holds {
                self.untold.close(*at, hold, client, self.time, out);
            }
        }
    }

    /// What a grant did is taken back, as far as its owner still holds under its token.
    pub(super) fn undo(&mut self, begun: Begun, out: &Outcome) {
        let Begun { at, token, owner, counts, is_upgrade } = begun;
        if self.writes == Writes::Paused {
            return;
        }
        self.end_for_arrived(at);
        self.end_overs(at);
        // Another undoing may have made it this owner's turn to hold alone: its hold goes on under a newer token.
        let token = self.newest_token(at, owner, token);
        if let Some(mut hold) = self.own(at, owner).filter(|hold| hold.token == token).copied() {
            hold.count -= u32::from(counts);
            let mut left = Some(hold).filter(|hold| hold.count > 0);
            if is_upgrade && hold.mode == Mode::Exclusive {
                let shared = left.map(|hold| Hold { mode: Mode::Shared, ..hold });
                left = shared.and_then(|hold| self.untold.undo_upgrade(at, hold, self.time));
            }
            match left {
                Some(left) => self.own(at, owner).into_iter().for_each(|hold| *hold = left),
                None => drop(self.end(at, |hold| hold.owner == owner)),
            }
        }
        self.admit(at, true, out);
    }

    /// The token that this hold has by now, if it went on in the running step.
    fn newest_token(&self, at: At, owner: Name, token: Token) -> Token {
        let of_hold = self.went_on.iter().filter(|went_on| (went_on.at, went_on.owner) == (at, owner));
        of_hold.fold(token, |token, went_on| if went_on.was == token { went_on.is } else { token })
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

/// Whether readers were told in this step that the hold with this token has ended.
fn has_ended(at: At, token: Token, out: &Outcome) -> bool {
    let token = token.to_string();
    let words: [&[u8]; 4] = [b"LOCK.APPLY", at.name.as_bytes(), b"ENDED", token.as_bytes()];
    out.facts.iter().any(|(db, fact)| *db == at.db && fact.iter().map(|word| &**word).eq(words))
}
