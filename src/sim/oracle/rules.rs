//! The [oracle](crate::sim::oracle)'s rules for requests of clients.

use crate::lock::effect::Answer;
use crate::lock::table::Refusal;
use crate::lock::tests::tuning;
use crate::lock::types::{Binding, COUNT_MAX, Mode, Token};
use crate::sim::checkers::book::{Hold, Scene, Wish};
use crate::sim::oracle::{Oracle, Value, Waiter};
use crate::sim::single::input::{How, Input, Keys, Outcome, Reply, Writes};
use crate::sim::single::server::{At, Name};

impl Oracle {
    pub(crate) fn acquire_one(&mut self, input: &Input, out: &Outcome) -> Reply {
        let Input::Acquire { at, owner, lease_ms, wait, client, how, .. } = *input else {
            return Reply::None;
        };
        let How { mode, is_reentrant, binding, .. } = how;
        if self.holds(at).is_empty() && self.is_other(at) {
            return Reply::Refused(Refusal::WrongType);
        }
        if let Some(refused) = self.is_of_other_kind(at, mode) {
            return refused;
        }
        let until = wait.filter(|&ms| ms != 0).map(|ms| self.time + ms * 1000);
        let client_in_queue = (!how.is_reservation).then_some(client);
        let (keys, waits) = (Keys::one(at), self.waits + 1);
        let asked = Waiter {
            wait: waits,
            keys,
            owner,
            client: client_in_queue,
            lease_ms,
            until,
            mode,
            binding,
            is_reentrant,
        };
        match self.own(at, owner).map(|hold| (hold.mode, hold.count)) {
            Some((Mode::Shared, _)) if mode == Mode::Exclusive => return Reply::Refused(Refusal::Held(0)),
            Some((_, count)) if is_reentrant && count >= tuning::count_max(COUNT_MAX) => {
                return Reply::Refused(Refusal::TooManyTimes);
            }
            Some(_) => return self.again(at, &asked, client, is_reentrant, out),
            None => {}
        }
        let own = self.waiters.iter().position(|w| w.owner == owner && w.keys.contains(at));
        let own_same = own.filter(|&own| self.waiters[own].keys.len() == 1 && self.waiters[own].mode == mode);
        // Another request of the same owner does not block it.
        let own = own.filter(|&own| {
            let is_replaced = own_same.is_none() && wait.is_some();
            if is_replaced {
                self.strike(own, "replaced");
            }
            !is_replaced
        });
        let is_its_turn = match own_same {
            Some(own) => self.is_turn_at(own, at),
            None => own.is_none() && self.has_room_behind_all(at, mode),
        };
        if is_its_turn {
            own_same.into_iter().for_each(|own| self.strike(own, "replaced"));
            return self.take(asked, client, out);
        }
        self.wait(asked, own, own_same.is_some(), wait.is_some(), out)
    }

    /// G9: the same owner again: the same token, and a lease that is never shortened.
    fn again(&mut self, at: At, asked: &Waiter, client: u64, is_reentrant: bool, out: &Outcome) -> Reply {
        let (time, confirms) = (self.time, self.confirms);
        let Waiter { owner, lease_ms, mode, binding, .. } = *asked;
        let Some(hold) = self.own(at, owner) else { return Reply::None };
        let is_counted = is_reentrant && !hold.is_ownerless();
        let binding = if binding.is_none() { hold.binding } else { binding };
        hold.heard(time, binding, Some(client), confirms);
        if hold.is_shorter(time, lease_ms) {
            hold.last(time, lease_ms);
        }
        hold.count += u32::from(is_counted);
        // An exclusive holder that requests SHARED unblocks other shared requests.
        let (token, is_freed) = (hold.token, hold.mode != mode);
        hold.mode = mode;
        self.admit(at, is_freed, out);
        Reply::Granted(token)
    }

    /// Grants at once, here and everywhere.
    fn take(&mut self, asked: Waiter, client: u64, out: &Outcome) -> Reply {
        let Reply::Granted(token) = out.reply else {
            return Reply::Token(None);
        };
        self.begin(&asked, token, Some(client), false);
        asked.keys.iter().for_each(|at| self.admit(at, true, out));
        Reply::Granted(token)
    }

    /// G9: queues one reservation for each owner, however often it asks.
    fn wait(
        &mut self,
        asked: Waiter,
        own: Option<usize>,
        is_same: bool,
        wants_to_wait: bool,
        out: &Outcome,
    ) -> Reply {
        if !wants_to_wait {
            if let Some(left_ms) = self.quarantine_left_ms() {
                return Reply::Refused(Refusal::Quarantine(left_ms));
            }
            return Reply::Busy;
        }
        let reply = if asked.client.is_some() { Reply::Waiting(asked.wait) } else { Reply::Busy };
        if let Some(own) = own {
            if is_same {
                self.say(own, "replaced");
                self.waiters[own] = Waiter { keys: self.waiters[own].keys, ..asked };
                self.waits += u32::from(asked.client.is_some());
                return reply;
            }
            // If only these blocked it, the pump grants it.
            for at in asked.keys.iter() {
                let own = self.waiters.iter().position(|w| w.owner == asked.owner && w.keys.contains(at));
                own.into_iter().for_each(|own| self.strike(own, "replaced"));
            }
        }
        for at in asked.keys.iter() {
            if self.waiters.iter().filter(|waiter| waiter.keys.contains(at)).count()
                >= self.limits.waiters_per_lock_max
            {
                return Reply::Refused(Refusal::QueueIsFull(self.limits.waiters_per_lock_max));
            }
            if self.stands() + asked.keys.len() > self.limits.waiters_max {
                return Reply::Refused(Refusal::ServerIsFull(self.limits.waiters_max));
            }
        }
        self.waiters.push(asked);
        if !self.can_come_true(self.waiters.len() - 1, &out.reply) {
            self.waiters.pop();
            return Reply::Refused(Refusal::Deadlock);
        }
        self.waits += u32::from(asked.client.is_some());
        reply
    }

    pub(crate) fn acquire_many(&mut self, input: &Input, out: &Outcome) -> Reply {
        let Input::AcquireMany { keys, owner, lease_ms, wait, client, is_shared, .. } = *input else {
            return Reply::None;
        };
        let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
        if keys.iter().any(|at| self.holds(at).is_empty() && self.is_other(at)) {
            return Reply::Refused(Refusal::WrongType);
        }
        let own: Vec<Option<Hold>> = keys.iter().map(|at| self.own(at, owner).copied()).collect();
        let token = own[0].map(|own| own.token);
        let is_it = |own: &Option<Hold>| own.is_some_and(|own| Some(own.token) == token && own.mode == mode);
        let is_again = own.iter().all(is_it);
        if let Some(refused) = keys.iter().find_map(|at| self.is_of_other_kind(at, mode)) {
            return refused;
        }
        if let Some(key) = own.iter().position(Option::is_some).filter(|_| !is_again) {
            return Reply::Refused(Refusal::Held(key));
        }
        if let Some(token) = token {
            let (time, confirms) = (self.time, self.confirms);
            for at in keys.iter() {
                if let Some(hold) = self.own(at, owner) {
                    hold.heard(time, hold.binding, Some(client), confirms);
                    if hold.is_shorter(time, lease_ms) {
                        hold.last(time, lease_ms);
                    }
                }
            }
            keys.iter().for_each(|at| self.admit(at, false, out));
            return Reply::Granted(token);
        }
        let until = wait.filter(|&ms| ms != 0).map(|ms| self.time + ms * 1000);
        let (binding, client_in_queue) = (Binding::NONE, Some(client));
        let wait_number = self.waits + 1;
        let asked = Waiter {
            wait: wait_number,
            keys,
            owner,
            client: client_in_queue,
            lease_ms,
            until,
            mode,
            binding,
            is_reentrant: false,
        };
        let own =
            self.waiters.iter().position(|w| w.owner == owner && keys.iter().any(|at| w.keys.contains(at)));
        let own_same =
            self.waiters.iter().position(|w| w.owner == owner && w.keys.is_same_set(keys) && w.mode == mode);
        let is_its_turn = match own_same {
            Some(own) => keys.iter().all(|at| self.is_turn_at(own, at)),
            None => own.is_none() && keys.iter().all(|at| self.has_room_behind_all(at, mode)),
        };
        if is_its_turn {
            own_same.into_iter().for_each(|own| self.strike(own, "replaced"));
            return self.take(asked, client, out);
        }
        self.wait(asked, own_same.or(own), own_same.is_some(), wait.is_some(), out)
    }

    pub(crate) fn release(&mut self, at: At, owner: Name, token: Option<Token>, out: &Outcome) -> Reply {
        if self.is_other(at) {
            self.dismiss(at);
            return Reply::Refused(Refusal::WrongType);
        }
        self.end_for_arrived(at);
        if let Some(own) = self.waiters.iter().position(|w| w.keys.contains(at) && w.owner == owner) {
            self.strike(own, "withdrawn");
        }
        let time = self.time;
        let is_own = |hold: &Hold| hold.owner == owner && token.is_none_or(|token| token == hold.token);
        let holds_it = self.holds(at).iter().any(|hold| is_own(hold) && hold.is_live(time));
        // Another expired hold here matters only to waiters, and to the pump.
        let mut is_freed = (!holds_it || !self.waiters.is_empty()) && self.expire_due_holds(at);
        let own = self.own(at, owner).filter(|hold| is_own(hold));
        let is_own = own.is_some();
        if let Some(hold) = own {
            hold.count -= 1;
            if hold.count == 0 {
                is_freed |= self.end(at, |hold| hold.owner == owner);
            }
        }
        self.admit(at, is_freed, out);
        Reply::Bool(is_own)
    }

    pub(crate) fn renew(&mut self, input: &Input, out: &Outcome) -> Reply {
        let Input::Renew { at, owner, token, raise, lease_ms, client } = *input else { return Reply::None };
        if self.is_other(at) {
            self.dismiss(at);
            return Reply::Refused(Refusal::WrongType);
        }
        self.end_for_arrived(at);
        let is_freed = self.expire_due_holds(at);
        let confirms = self.confirms;
        let time = self.time;
        let own = self.own(at, owner).filter(|hold| token.is_none_or(|token| token == hold.token));
        let mode = own.as_ref().map(|own| own.mode);
        let reply = match mode.filter(|&mode| raise.is_some() && mode != Mode::Exclusive) {
            Some(mode) => Reply::Refused(Refusal::Several(mode)),
            None => Reply::Bool(mode.is_some()),
        };
        if let Some(hold) = own.filter(|_| reply == Reply::Bool(true)) {
            hold.heard(time, hold.binding, Some(client), confirms);
            hold.last(time, lease_ms);
            hold.token = raise.map_or(hold.token, |raise| hold.token.max(raise));
            self.last_token = raise.map_or(self.last_token, |raise| self.last_token.max(raise.get()));
        }
        self.admit(at, is_freed, out);
        reply
    }

    /// Revokes the undelivered holds of an owner that asks for something else.
    pub(crate) fn revoke_own(&mut self, keys: Keys, owner: Name, mode: Mode) -> bool {
        let time = self.time;
        let own = |oracle: &mut Self, at| oracle.own(at, owner).copied().filter(|own| own.is_live(time));
        let first = keys.first().and_then(|at| own(self, at)).map(|own| own.token);
        let is_it = |own: Hold| own.mode == mode && Some(own.token) == first;
        if keys.iter().all(|at| own(self, at).is_some_and(is_it)) {
            return false;
        }
        let is_lost = |hold: &Hold| hold.owner == owner && hold.is_live(time) && hold.is_ownerless();
        keys.iter().filter(|&at| self.end(at, is_lost)).count() > 0
    }

    /// Ends expired holds before an acquire, and grants queued requests first.
    pub(crate) fn look(&mut self, at: At, is_freed: bool, out: &Outcome) {
        let is_freed = self.expire_due_holds(at) || is_freed;
        let is_free = self.holds(at).is_empty();
        self.admit(at, is_freed || is_free, out);
    }

    /// Returns an error unless all holders and waiters of a lock agree on its kind.
    fn is_of_other_kind(&self, at: At, mode: Mode) -> Option<Reply> {
        let held = self.holds(at).first().map(|hold| hold.mode);
        let wanted = self.waiters.iter().find(|waiter| waiter.keys.contains(at)).map(|waiter| waiter.mode);
        let limit = |mode| if let Mode::Limit(limit) = mode { limit } else { 0 };
        let mut known = held.into_iter().chain(wanted);
        let other = known.find(|&other| limit(other) != limit(mode))?;
        Some(Reply::Refused(Refusal::OtherKind(other)))
    }

    /// Ends all waits at a key where another value was written; the value stays.
    pub(crate) fn dismiss(&mut self, at: At) {
        self.strike_all(at, "wrong type");
    }

    pub(crate) fn strike_all(&mut self, at: At, word: &'static str) {
        while let Some(waiter) = self.waiters.iter().position(|waiter| waiter.keys.contains(at)) {
            self.strike(waiter, word);
        }
    }

    /// Returns true if only reservations of others are ahead of this waiter here, and it fits alongside them.
    pub(crate) fn is_turn_at(&self, waiter: usize, at: At) -> bool {
        let ahead: Vec<&Waiter> = self.waiters[..waiter].iter().filter(|w| w.keys.contains(at)).collect();
        let mode = self.waiters[waiter].mode;
        ahead.iter().all(|waiter| waiter.is_reserved()) && self.fits(at, mode, ahead.len())
    }

    /// Returns true if there is room for a newcomer: only reservations of others are queued, and it fits alongside
    /// them.
    fn has_room_behind_all(&self, at: At, mode: Mode) -> bool {
        let line: Vec<&Waiter> = self.waiters.iter().filter(|w| w.keys.contains(at)).collect();
        line.iter().all(|waiter| waiter.is_reserved()) && self.fits(at, mode, line.len())
    }

    /// Notifies a waiter, if a client waits for it.
    fn say(&mut self, waiter: usize, word: &'static str) {
        let Waiter { wait, client, .. } = self.waiters[waiter];
        self.answers.extend(client.map(|_| (wait, word)));
    }

    pub(crate) fn strike(&mut self, waiter: usize, word: &'static str) {
        self.say(waiter, word);
        self.waiters.remove(waiter);
    }

    /// Grants every request in the queue here that can be granted, first come first served. If nothing was freed here,
    /// the core need not look before the pump runs, nor past the waiters that one step serves.
    pub(crate) fn admit(&mut self, at: At, is_freed: bool, out: &Outcome) {
        if self.is_other(at) {
            return if is_freed {
                self.dismiss(at)
            };
        }
        let served_max = if self.is_pumping { usize::MAX } else { tuning::served_max(usize::MAX) };
        let mut reserved = 0;
        let mut next = 0;
        while let Some(index) = (next..self.waiters.len()).find(|&n| self.waiters[n].keys.contains(at)) {
            let waiter = self.waiters[index];
            let is_full = self.served >= served_max;
            let is_freed = is_freed && !is_full;
            let told = out.answers.iter().find(|told| told.wait == waiter.wait && waiter.client.is_some());
            // A request that was replaced or withdrawn is answered elsewhere.
            let told = told.map(|told| &told.answer);
            let told = told.filter(|told| !matches!(told, Answer::Replaced | Answer::Withdrawn));
            let is_multi = waiter.keys.len() > 1;
            let is_late = waiter.until.is_some_and(|until| until <= self.time);
            // A request for several locks times out in the queue of the first of them; elsewhere it blocks others
            // until then.
            let is_elsewhere = is_multi && waiter.keys.first() != Some(at);
            if is_late && !is_elsewhere && (told.is_some() || (is_freed && !is_multi)) {
                self.strike(index, "timed out");
                self.served += 1;
                continue;
            }
            if is_late || is_multi || (waiter.client.is_none() && waiter.mode == Mode::Exclusive) {
                return;
            }
            let Some(_) = waiter.client else {
                reserved += 1;
                next = index + 1;
                continue;
            };
            if !self.fits(at, waiter.mode, reserved) {
                return;
            }
            if self.writes != Writes::Allowed || (told.is_none() && !is_freed) {
                return;
            }
            self.served += 1;
            if let Some(why) = self.refusal(&waiter) {
                self.strike(index, why);
                continue;
            }
            self.grant(index, out);
            if waiter.mode == Mode::Exclusive {
                return;
            }
        }
    }

    pub(crate) fn grant(&mut self, index: usize, out: &Outcome) {
        let waiter = self.waiters[index];
        let told = out.answers.iter().find(|told| told.wait == waiter.wait);
        let token = match told.map(|told| &told.answer) {
            Some(Answer::Granted { token, .. }) => Some(*token),
            _ => Token::new(1),
        };
        self.strike(index, "granted");
        if let Some(token) = token {
            self.begin(&waiter, token, waiter.client, true);
        }
    }

    /// G11: returns true if this waiter can ever be granted, or if the server's search ended early and so assumes
    /// that.
    pub(crate) fn can_come_true(&self, waiter: usize, reply: &Reply) -> bool {
        if tuning::has_search_ended_early() && *reply != Reply::Refused(Refusal::Deadlock) {
            return true;
        }
        let live =
            |at: At| self.holds(at).iter().filter(|hold| hold.is_live(self.time)).map(move |h| (at, h));
        let holds =
            self.keys.iter().flat_map(|key| live(key.0)).map(|(at, h)| (at, h.owner, h.mode)).collect();
        let wish = |w: &Waiter| {
            let Waiter { owner, keys, mode, .. } = *w;
            Wish { owner, keys, mode }
        };
        // A request that has timed out waits for nothing: the pump is about to report that.
        let is_late = |w: &Waiter| w.until.is_some_and(|until| until <= self.time);
        let ahead = self.waiters[..waiter].iter().filter(|w| !is_late(w)).count();
        let all = self.waiters.iter().enumerate().filter(|&(number, w)| number == waiter || !is_late(w));
        let wishes = all.map(|(_, w)| wish(w)).collect();
        let arrived = self.arrived.clone();
        Scene { holds, wishes, arrived, holders_max: self.limits.holders_max }.comes_true(ahead)
    }

    /// Returns true if a lease has expired of an owner that holds a lock together with others. If more than two
    /// holders make a large list, the pump is next: only it examines all of them.
    pub(crate) fn has_one_of_many_over(&self) -> bool {
        let is_over = |holds: &[Hold]| holds.len() > 1 && holds.iter().any(|hold| !hold.is_live(self.time));
        self.keys.iter().any(|key| matches!(&key.1, Value::Lock(holds) if is_over(holds)))
    }
}
