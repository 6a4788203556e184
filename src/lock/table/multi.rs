//! Several locks in one step, all or none (G12).
//!
//! While such a request waits it stands in the line of each lock and holds none. All lines learn of it in the same
//! step, so of two such requests one is ahead of the other everywhere.

use super::line::At;
use super::state::{Acquired::*, *};

impl Table {
    /// LOCK.MACQUIRE. `fx` has room for each of the spots.
    pub fn acquire_many(
        &mut self,
        now: Now,
        spots: &[Spot<'_>],
        ask: &Ask<'_>,
        gate: Gate<'_>,
        fx: &mut [Effects],
    ) -> Steps<Acquired> {
        self.leave_quarantine(now.boot);
        if self.refuses_unconfirmed(ask, false) {
            return (Refused(Refusal::Unconfirmable), spots.iter().map(|_| Step::unchanged(())).collect());
        }
        let mut ats: Vec<At<'_>> = spots.iter().map(|spot| At::new(spot.place, spot.found)).collect();
        for (at, fx) in ats.iter_mut().zip(fx.iter_mut()) {
            self.end_overs(now.boot, at, Some(ask.owner), None, fx);
            self.admit_line(now, at, gate, fx);
        }
        let reply = self.take_or_wait_for_all(now, &mut ats, ask, fx);
        if matches!(reply, Granted(_)) {
            self.admit_lines(now, &mut ats, gate, fx);
        }
        (reply, self.close_all(&ats))
    }

    fn close_all(&mut self, ats: &[At<'_>]) -> Vec<Step<()>> {
        ats.iter().map(|at| self.step(at, ())).collect()
    }

    fn admit_lines(&mut self, now: Now, ats: &mut [At<'_>], gate: Gate<'_>, fx: &mut [Effects]) {
        for (at, fx) in ats.iter_mut().zip(fx) {
            self.admit_line(now, at, gate, fx);
        }
    }

    fn take_or_wait_for_all(
        &mut self,
        now: Now,
        ats: &mut [At<'_>],
        ask: &Ask<'_>,
        fx: &mut [Effects],
    ) -> Acquired {
        for at in &*ats {
            if let Some(other) = self.other_kind(at, ask) {
                return Refused(Refusal::OtherKind(other));
            }
            if self.held_as(at).is_none() && at.found == Found::Other {
                return Refused(Refusal::WrongType);
            }
        }
        let is_own = |mode| self.holds_all(ats, ask.owner, mode).is_some();
        if self.refuses_unconfirmed(ask, is_own(ask.mode) || is_own(Mode::Exclusive)) {
            return Refused(Refusal::Unconfirmable);
        }
        if let Some(token) = self.holds_all(ats, ask.owner, ask.mode) {
            return self.hold_all_again(now, ats, ask, token, fx);
        }
        if ask.mode == Mode::Shared
            && self.locks.has_room()
            && let Some(token) = self.holds_all(ats, ask.owner, Mode::Exclusive)
        {
            return self.downgrade_all(now, ats, ask, token, fx);
        }
        if self.is_leaving {
            return Refused(Refusal::Leaving);
        }
        let own = self.own_party(ats, ask);
        let is_turn = ats.iter().all(|at| match self.queues.at(at.place) {
            None => self.fits(at, ask.mode, ask.owner, 0),
            Some(queue) => match self.queues.of_owner(queue, ask.owner) {
                Some(stand) => own.is_some() && self.is_turn_of(at, queue, stand),
                None => self.fits_beside(at, queue, ask, None),
            },
        });
        if is_turn {
            let reply = self.take_all(now, ats, ask, fx);
            if let (Some(own), Some(fx), Granted(_)) = (own, fx.first_mut(), &reply) {
                self.answer(own, Answer::Replaced, fx);
            }
            return reply;
        }
        self.wait_for_all(now, ats, ask, own, fx)
    }

    /// The token under which this owner holds all of these locks in this way.
    fn holds_all(&self, ats: &[At<'_>], owner: &[u8], mode: Mode) -> Option<Token> {
        let mut tokens = ats.iter().map(|at| {
            let own = self.own(at, owner).filter(|_| self.held_as(at) == Some(mode));
            own.map(|(_, hold)| hold.token())
        });
        let first = tokens.next()??;
        tokens.all(|token| token == Some(first)).then_some(first)
    }

    fn hold_all_again(
        &mut self,
        now: Now,
        ats: &mut [At<'_>],
        ask: &Ask<'_>,
        token: Token,
        fx: &mut [Effects],
    ) -> Acquired {
        let mut is_any_longer = false;
        // Leases that stand still from here on, on this connection.
        let mut standing = Vec::new();
        for at in &mut *ats {
            let Some((member, hold)) = self.own(at, ask.owner) else {
                continue;
            };
            let is_longer = hold.ends_before(now.boot, ask.lease_ms);
            let tie = hold.tie();
            self.locks.note_known(member, ask.client);
            if self.locks.retie(member, now.boot, tie, ask.bind_to) {
                standing.push(member);
                at.touch();
            }
            if is_longer {
                self.locks.extend(member, now.boot, ask.lease_ms);
                at.touch();
                is_any_longer = true;
            }
        }
        if let Some((at, fx)) = ats.first_mut().zip(fx.first_mut()).filter(|_| is_any_longer) {
            at.tell(Record::AsAsked, fx);
        }
        for (at, fx) in ats.iter_mut().zip(fx) {
            if let Some((member, _)) = self.own(at, ask.owner).filter(|(member, _)| standing.contains(member))
            {
                at.tell(self.record_of(at, member), fx);
            }
        }
        Granted(token)
    }

    /// Who holds all of these locks alone lets others in beside it.
    fn downgrade_all(
        &mut self,
        now: Now,
        ats: &mut [At<'_>],
        ask: &Ask<'_>,
        token: Token,
        fx: &mut [Effects],
    ) -> Acquired {
        for (at, fx) in ats.iter_mut().zip(fx) {
            if let Some((member, _)) = self.own(at, ask.owner) {
                self.downgrade(now, at, member, ask, fx);
            }
        }
        Granted(token)
    }

    /// This owner's waiting request for just these locks, in the same way.
    fn own_party(&self, ats: &[At<'_>], ask: &Ask<'_>) -> Option<WaiterId> {
        let of_owner = |at: &At<'_>| self.queues.of_owner(self.queues.at(at.place)?, ask.owner);
        let first = self.queues.waiter(of_owner(ats.first()?)?)?;
        let party = self.queues.party(first.party?)?;
        let is_same = first.request.mode == ask.mode
            && party.stands.len() == ats.len()
            && ats.iter().all(|at| of_owner(at).is_some_and(|stand| party.stands.contains(&stand)));
        if is_same { party.stands.first().copied() } else { None }
    }

    fn take_all(&mut self, now: Now, ats: &mut [At<'_>], ask: &Ask<'_>, fx: &mut [Effects]) -> Acquired {
        if !self.locks.has_room() {
            return Refused(Refusal::TooManyLocks);
        }
        let Some((token, travel)) = self.clock.mint(now.wall_us) else {
            return Refused(Refusal::NoTokens);
        };
        // Nor if it holds some of them already: readers cannot see what becomes of those holds.
        let is_new = !ats.iter().any(|at| at.tells() || self.own(at, ask.owner).is_some());
        let as_asked = travel == Travel::Counted && !ask.must_be_named && is_new;
        let new =
            NewHold { owner: ask.owner, token, lease_ms: ask.lease_ms, client: ask.client, tie: ask.tie };
        self.begin_all(now, ats, ask.mode, &new, ask.bind_to, as_asked, fx);
        Granted(token)
    }

    /// One hold in each lock. If it is told as it was asked, then once.
    fn begin_all(
        &mut self,
        now: Now,
        ats: &mut [At<'_>],
        mode: Mode,
        new: &NewHold<'_>,
        bind_to: Option<ClientId>,
        as_asked: bool,
        fx: &mut [Effects],
    ) {
        for (number, (at, fx)) in ats.iter_mut().zip(fx).enumerate() {
            if let Some(record) = self.begin_or_go_on(now.boot, at, mode, new, bind_to, false) {
                fx.publish(Event::Acquired);
                match as_asked {
                    true if number == 0 => at.tell(Record::AsAsked, fx),
                    true => {}
                    false => at.tell(record, fx),
                }
            }
        }
    }

    fn wait_for_all(
        &mut self,
        now: Now,
        ats: &[At<'_>],
        ask: &Ask<'_>,
        own: Option<WaiterId>,
        fx: &mut [Effects],
    ) -> Acquired {
        let (Some(Wait::Block(block)), Some(fx)) = (ask.wait, fx.first_mut()) else {
            let left_ms = self.quarantine_left_ms(now.boot);
            return left_ms.map_or(Busy, |left_ms| Refused(Refusal::Quarantine(left_ms)));
        };
        let mut since = now.boot;
        if let Some(own) = own {
            // Its places in all lines go on; the connection that is told is another one.
            since = self.queues.waiter(own).map_or(since, |own| own.request.since);
            let taken = self.queues.take_over_all(own, block.client, block.until, ask.lease_ms);
            if let Some((old_client, new)) = taken {
                if let Some(client) = old_client {
                    fx.answer(own, client, Answer::Replaced);
                }
                self.tasks.push_back(Task::Party(new));
                return Waiting(new);
            }
        }
        let older = self.older_requests(ats, ask.owner);
        if sabotage::removes(Rule::RefusedKeepsPlace) {
            older.iter().for_each(|&old| self.answer(old, Answer::Replaced, fx));
        }
        let full = |at: &At<'_>| self.is_full(self.queues.at(at.place), ats.len(), &older);
        if let Some(refusal) = ats.iter().find_map(full) {
            return Refused(refusal);
        }
        let places: Vec<Place<'_>> = ats.iter().map(|at| at.place).collect();
        let request = Request { since, ..ask.request(now.boot, Wait::Block(block), false) };
        let Some(new) = self.queues.join_all(&places, &request) else {
            return Busy;
        };
        for at in ats {
            self.set_lock_of_line(at);
        }
        if self.would_never_end(now.boot, new, &older) {
            return Refused(Refusal::Deadlock);
        }
        if !older.is_empty() {
            // Perhaps nothing but the older requests was in its way.
            self.tasks.push_back(Task::Party(new));
        }
        // Not before: who is refused takes over nothing (G9).
        older.into_iter().for_each(|old| self.answer(old, Answer::Replaced, fx));
        Waiting(new)
    }

    /// This owner's requests in these lines, by those that stand for them.
    fn older_requests(&self, ats: &[At<'_>], owner: &[u8]) -> Vec<WaiterId> {
        let in_line = |at: &At<'_>| self.queues.of_owner(self.queues.at(at.place)?, owner);
        let mut older: Vec<WaiterId> =
            ats.iter().filter_map(in_line).map(|stand| self.queues.lead(stand)).collect();
        older.sort_unstable_by_key(|lead| lead.number());
        older.dedup();
        older
    }

    /// The places of a waiting request for several locks.
    #[must_use]
    pub fn places_of(&self, lead: WaiterId) -> Vec<PlaceBuf> {
        let party = self.queues.waiter(lead).and_then(|lead| self.queues.party(lead.party?));
        let stands = party.into_iter().flat_map(|party| &party.stands);
        let queues = stands.filter_map(|&stand| self.queues.queue(self.queues.waiter(stand)?.queue));
        queues.map(|queue| queue.place.clone()).collect()
    }

    /// Grants a waiting request for several locks if it is its turn everywhere.
    pub fn settle_many(
        &mut self,
        now: Now,
        lead: WaiterId,
        spots: &[Spot<'_>],
        gate: Gate<'_>,
        fx: &mut [Effects],
    ) -> Vec<Step<()>> {
        self.leave_quarantine(now.boot);
        let mut ats: Vec<At<'_>> = spots.iter().map(|spot| At::new(spot.place, spot.found)).collect();
        for (at, fx) in ats.iter_mut().zip(fx.iter_mut()) {
            self.end_overs(now.boot, at, None, None, fx);
            self.dismiss_from_other(at.place, at.found, fx);
            self.end_lapsed(now.boot, at.place, fx);
        }
        // Also if this request stays in line: what was over here may have been what others wait for.
        if self.try_all(now, lead, &mut ats, gate, fx).is_some() || ats.iter().any(At::has_ended) {
            self.admit_lines(now, &mut ats, gate, fx);
        }
        self.close_all(&ats)
    }

    /// `None`: it stays in line.
    fn try_all(
        &mut self,
        now: Now,
        lead: WaiterId,
        ats: &mut [At<'_>],
        gate: Gate<'_>,
        fx: &mut [Effects],
    ) -> Option<()> {
        let waiter = self.queues.waiter(lead)?;
        let (party, request) = (waiter.party?, waiter.request.clone());
        let stands = self.queues.party(party)?.stands.clone();
        self.queues.party_mut(party)?.is_noted = false;
        let first_fx = fx.first_mut()?;
        if request.until.is_some_and(|until| until <= now.boot) {
            self.time_out(lead, first_fx);
            return Some(());
        }
        for (at, &stand) in ats.iter().zip(&stands) {
            let queue = self.queues.waiter(stand)?.queue;
            if !self.is_turn_of(at, queue, stand) {
                self.queues.party_mut(party)?.held_up_in = Some(queue);
                return None;
            }
        }
        let client = request.client?;
        for at in &*ats {
            match gate(applicant(&request, at.place, true)?) {
                Admission::Granted => {}
                Admission::Refused(reason) => {
                    self.answer(lead, Answer::Refused(reason), first_fx);
                    return Some(());
                }
                Admission::NotNow => {
                    self.note(at.place);
                    return None;
                }
            }
        }
        let Some((token, _)) = self.clock.mint(now.wall_us).filter(|_| self.locks.has_room()) else {
            self.answer(lead, Answer::Refused(NO_TOKENS), first_fx);
            return Some(());
        };
        self.queues.leave(lead);
        self.count_waited(now.boot, request.since, ats.len() as u64);
        let mut places = ats.iter().map(|at| at.place.to_owned());
        let place = places.next()?;
        let others = places.collect();
        let minted_owner = request.owner_is_minted.then(|| request.owner.clone());
        first_fx.answer(lead, client, Answer::Granted { place, others, token, minted_owner });
        let new = NewHold {
            owner: &request.owner,
            token,
            lease_ms: request.lease_ms,
            client: Some(client),
            tie: request.tie,
        };
        self.begin_all(now, ats, request.mode, &new, Some(client), false, fx);
        Some(())
    }
}
