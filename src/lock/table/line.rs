//! Who is let in: the line at a place, and the lock that they wait for.

use super::state::*;
use crate::lock::queue::{PartyId, QueueId, Waiter};

/// A server finds a key gone in the millisecond behind its end; one more for the rounding of two clocks.
const LEGACY_GONE_MS: u64 = 2;

/// A key while a step works on it.
pub(super) struct At<'a> {
    pub(super) place: Place<'a>,
    pub(super) found: Found,
    /// The lock that stands here now, held or empty.
    pub(super) lock: Option<LockId>,
    has_ended: bool,
    has_begun: bool,
    is_touched: bool,
    /// A lock of an old client stands here.
    pub(super) legacy: Option<Legacy>,
    told: Record,
}

impl<'a> At<'a> {
    pub(super) const fn new(place: Place<'a>, found: Found) -> Self {
        let lock = match found {
            Found::Lock(lock) => Some(lock),
            _ => None,
        };
        let legacy = match found {
            Found::Legacy(legacy) => Some(legacy),
            _ => None,
        };
        Self {
            place,
            found,
            lock,
            has_ended: false,
            has_begun: false,
            is_touched: false,
            legacy,
            told: Record::Nothing,
        }
    }

    /// Replicas and files are told this, behind what they were told before.
    pub(super) fn tell(&mut self, record: Record, fx: &mut Effects) {
        if self.told == Record::Nothing {
            self.told = record;
        } else {
            fx.tell(record);
        }
    }

    /// Whether anything is told.
    pub(super) fn tells(&self) -> bool {
        self.told != Record::Nothing
    }

    /// The lock of an old client is given up.
    pub(super) fn end_legacy(&mut self) {
        self.legacy = None;
        self.has_ended = true;
    }

    /// Whether a hold has ended in this step.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// A hold has begun, beside no other.
    pub(super) const fn note_begun(&mut self) {
        self.has_begun = true;
    }

    /// What a reader can see has changed, and the key stays.
    pub(super) const fn touch(&mut self) {
        self.is_touched = true;
    }
}

/// Nobody comes in beside so many reservations: never, unless that rule is left out.
fn are_too_many(reserved: usize) -> bool {
    sabotage::removes(Rule::BesideReservations) && reserved > if cfg!(test) { 0 } else { 64 }
}

impl Table {
    /// The outcome of a step for its key.
    pub(super) fn step<R>(&mut self, at: &At<'_>, reply: R) -> Step<R> {
        Step { reply, change: self.close(at), record: at.told }
    }

    /// What becomes of the key after all.
    pub(super) fn close(&mut self, at: &At<'_>) -> Change {
        let mut is_new_turn = false;
        if self.queues.waiters() > 0
            && let Some(queue) = self.queues.at(at.place)
        {
            is_new_turn = self.queues.set_turns(queue, self.turns(at, queue));
            if let Some(queue) = self.queues.queue_mut(queue) {
                queue.lock = at.lock;
            }
            // Nobody tells when the key of another type goes by itself.
            let gone = at.legacy.map(|legacy| legacy.until.plus_ms(LEGACY_GONE_MS));
            self.queues.look_at(queue, gone);
        }
        self.note_left(None);
        match self.change(at) {
            Change::Nothing if is_new_turn => Change::Signalled,
            change => change,
        }
    }

    fn change(&self, at: &At<'_>) -> Change {
        let held = at.lock.filter(|&lock| self.locks.mode(lock).is_some());
        match (held, at.found) {
            (Some(lock), Found::Lock(found)) if lock == found => match (at.has_begun, at.is_touched) {
                (true, _) => Change::Renewed,
                (false, true) => Change::Touched,
                // Some of its holds may have ended.
                (false, false) if at.has_ended => Change::Touched,
                (false, false) => Change::Nothing,
            },
            (Some(lock), _) => Change::Stored(lock),
            (None, Found::Lock(_) | Found::Legacy(_)) if at.has_ended => Change::Deleted,
            (None, _) => Change::Nothing,
        }
    }

    /// How the lock is held; `None` if nobody holds it.
    pub(super) fn held_as(&self, at: &At<'_>) -> Option<Mode> {
        if at.legacy.is_some() {
            return Some(Mode::Exclusive);
        }
        self.locks.mode(at.lock?)
    }

    /// This owner's hold.
    pub(super) fn own<'s>(&'s self, at: &At<'_>, owner: &[u8]) -> Option<(LockId, Hold<'s>)> {
        self.locks.hold_of(at.lock?, owner)
    }

    /// Ends one hold of the lock.
    pub(super) fn end_one(&mut self, now: Moment, at: &mut At<'_>, member: LockId) -> Option<Ended> {
        let lock = at.lock?;
        at.has_ended = true;
        if !lock.is_crowd() {
            return self.locks.end(lock, now);
        }
        let (ended, left) = self.locks.part(lock, member, now)?;
        if left == 0 {
            self.locks.dissolve(lock);
            at.lock = None;
        }
        Some(ended)
    }

    /// Ends the holds of the lock whose leases are over. `due` is one that is known to be.
    pub(super) fn end_overs(
        &mut self,
        now: Moment,
        at: &mut At<'_>,
        owner: Option<&[u8]>,
        due: Option<LockId>,
        fx: &mut Effects,
    ) {
        if let Some(lock) = at.lock.filter(|&lock| self.locks.is_large(lock)) {
            // They are ended when the pump comes to them; these may not wait.
            let own = owner.and_then(|owner| self.locks.hold_of(lock, owner)).map(|(member, _)| member);
            let due = due.filter(|&due| self.locks.is_held_by(lock, due));
            for member in own.into_iter().chain(due) {
                if self.locks.hold(member).is_some_and(|hold| hold.is_over(now)) {
                    self.expire(now, at, member, fx);
                }
            }
        }
        while let Some(over) = at.lock.and_then(|lock| self.locks.over_of(lock, now)) {
            self.expire(now, at, over, fx);
        }
    }

    #[cold]
    fn expire(&mut self, now: Moment, at: &mut At<'_>, member: LockId, fx: &mut Effects) {
        if let Some(ended) = self.end_one(now, at, member) {
            self.stats.expirations += 1;
            self.stats.holds.add(ended.held_ms);
            fx.publish(Event::Expired);
            at.tell(Record::Ended(ended.token), fx);
        }
    }

    /// Whether a request could be granted, with so many places kept free for others.
    pub(super) fn fits(&self, at: &At<'_>, mode: Mode, owner: &[u8], reserved: usize) -> bool {
        let holders = at.lock.map_or(0, |lock| self.locks.holders_of(lock));
        // Its own hold stands in nobody's way.
        let others = holders - usize::from(holders > 0 && self.own(at, owner).is_some());
        reserved < self.room(at, mode, others)
    }

    /// How many could hold the lock so beside these other holders.
    fn room(&self, at: &At<'_>, mode: Mode, others: usize) -> usize {
        if at.legacy.is_some() || self.is_closed() {
            return 0;
        }
        if sabotage::removes(Rule::ReaderBesideWriter) && mode == Mode::Shared {
            return usize::MAX;
        }
        match (mode, self.held_as(at)) {
            (Mode::Exclusive, _) => usize::from(others == 0),
            (Mode::Shared, None | Some(Mode::Shared)) => self.limits.holders_max.saturating_sub(others),
            (Mode::Limit(limit), held_as) if held_as.is_none_or(|held_as| held_as == mode) => {
                (limit as usize + usize::from(sabotage::removes(Rule::Limit))).saturating_sub(others)
            }
            // Held in a way that lets nobody in beside it. (Of another kind than the line it is after a RESTORE only.)
            (Mode::Shared | Mode::Limit(_), _) if others == 0 => usize::MAX,
            (Mode::Shared | Mode::Limit(_), _) => 0,
        }
    }

    /// How many reservations at the head of the queue have their turn: the next call of their owners is granted.
    fn turns(&self, at: &At<'_>, queue: QueueId) -> usize {
        let Some((reserved, bar)) = self.queues.reserved_at_head(queue) else {
            return 0;
        };
        if reserved > 0 {
            let mode = self.queues.queue(queue).map(|queue| queue.mode);
            let mode = mode.filter(|mode| matches!(mode, Mode::Limit(_))).unwrap_or(Mode::Shared);
            let holders = at.lock.map_or(0, |lock| self.locks.holders_of(lock));
            return reserved.min(self.room(at, mode, holders));
        }
        let first = bar.and_then(|bar| self.queues.waiter(bar)).map(|bar| &bar.request);
        let first = first.filter(|first| first.client.is_none());
        usize::from(first.is_some_and(|first| self.fits(at, first.mode, &first.owner, 0)))
    }

    /// Lets in everybody in line who can come in now, first come first (G5).
    #[inline(always)]
    pub(super) fn admit_line(&mut self, now: Now, at: &mut At<'_>, gate: Gate<'_>, fx: &mut Effects) {
        // The usual case.
        if self.queues.waiters() > 0 {
            self.admit_who_can(now, at, gate, fx);
        }
    }

    #[inline(never)]
    fn admit_who_can(&mut self, now: Now, at: &mut At<'_>, gate: Gate<'_>, fx: &mut Effects) {
        let Some(queue) = self.queues.at(at.place) else {
            return;
        };
        if self.dismiss_from_other(at.place, at.found, fx) {
            return;
        }
        self.end_lapsed(now.boot, at.place, fx);
        let mut next = self.queues.head(queue);
        while let Some(id) = next {
            let Some(waiter) = self.queues.waiter(id) else {
                break;
            };
            next = self.queues.behind(id);
            let request = &waiter.request;
            if request.until.is_some_and(|until| until <= now.boot) {
                self.time_out(id, fx);
                continue;
            }
            if self.waits_for_own(at, waiter) {
                self.tell_holder(at, id, fx);
                continue;
            }
            let Some(applicant) = applicant(request, at.place, false) else {
                // Nobody passes one that wants the whole lock. Who waits behind the others may fit beside them, also
                // if they have no turn now: whoever holds the lock may stand there, to hold less.
                if request.mode == Mode::Exclusive {
                    break;
                }
                next = self.queues.next_bar(id);
                continue;
            };
            let reserved = self.queues.reservations_ahead(id);
            if are_too_many(reserved) {
                break;
            }
            if !self.fits(at, request.mode, &request.owner, reserved) {
                break;
            }
            if let Some(party) = waiter.party {
                self.note_party(party, queue);
                break;
            }
            match gate(applicant) {
                Admission::Granted => {}
                Admission::Refused(reason) => {
                    self.answer(id, Answer::Refused(reason), fx);
                    continue;
                }
                Admission::NotNow => {
                    self.note(at.place);
                    break;
                }
            }
            let is_exclusive = request.mode == Mode::Exclusive;
            if let Err(reason) = self.grant_waiter(now, at, id, fx) {
                self.answer(id, Answer::Refused(reason), fx);
                continue;
            }
            if is_exclusive {
                break;
            }
        }
        self.note_left(Some(queue));
    }

    /// Gives up the reservations at this place that were not asked for again in time.
    pub(super) fn end_lapsed(&mut self, now: Moment, place: Place<'_>, fx: &mut Effects) {
        while let Some(lapsed) = self.queues.at(place).and_then(|queue| self.queues.lapsed(queue, now)) {
            self.answer(lapsed, Answer::TimedOut, fx);
        }
    }

    /// The same for whoever stands further back, if there are not too many holders to look at.
    pub(super) fn tell_holders(&mut self, at: &At<'_>, fx: &mut Effects) {
        let Some((lock, queue)) = at.lock.zip(self.queues.at(at.place)) else {
            return;
        };
        if self.locks.is_large(lock) {
            return;
        }
        let owners: Vec<Vec<u8>> =
            self.locks.holders(lock).map(|(_, hold)| hold.owner().into_owned()).collect();
        for owner in owners {
            self.tell_own(at, queue, &owner, fx);
        }
    }

    /// The same for this owner.
    pub(super) fn tell_own(&mut self, at: &At<'_>, queue: QueueId, owner: &[u8], fx: &mut Effects) {
        let waiter = self.queues.of_owner(queue, owner);
        let is_own = |&id: &WaiterId| self.queues.waiter(id).is_some_and(|w| self.waits_for_own(at, w));
        if let Some(waiter) = waiter.filter(is_own) {
            self.tell_holder(at, waiter, fx);
        }
    }

    /// Whether a request waits for just what its owner holds.
    fn waits_for_own(&self, at: &At<'_>, waiter: &Waiter) -> bool {
        let request = &waiter.request;
        waiter.party.is_none()
            && self.held_as(at) == Some(request.mode)
            && self.own(at, &request.owner).is_some()
    }

    /// G9: whoever came to hold what it waits for (a RESTORE brought its hold) waits no longer.
    fn tell_holder(&mut self, at: &At<'_>, id: WaiterId, fx: &mut Effects) {
        let Some(request) = self.queues.waiter(id).map(|waiter| &waiter.request) else {
            return;
        };
        let minted_owner = request.owner_is_minted.then(|| request.owner.clone());
        if let Some(token) = self.own(at, &request.owner).map(|(_, hold)| hold.token()) {
            let answer =
                Answer::Granted { place: at.place.to_owned(), others: Vec::new(), token, minted_owner };
            self.answer(id, answer, fx);
        }
    }

    /// Grants a waiting request, and answers it.
    fn grant_waiter(
        &mut self,
        now: Now,
        at: &mut At<'_>,
        id: WaiterId,
        fx: &mut Effects,
    ) -> Result<(), &'static str> {
        let Some(request) = self.queues.waiter(id).map(|waiter| waiter.request.clone()) else {
            return Ok(());
        };
        let (token, _) = self.clock.mint(now.wall_us).ok_or(NO_TOKENS)?;
        let new = NewHold {
            owner: &request.owner,
            token,
            lease_ms: request.lease_ms,
            client: request.client,
            tie: request.tie,
        };
        let (bind_to, counts) = (request.client, request.is_reentrant);
        let record = self.begin_or_go_on(now.boot, at, request.mode, &new, bind_to, counts);
        let record = record.ok_or(TOO_MANY_LOCKS)?;
        self.queues.leave(id);
        self.count_waited(now.boot, request.since, 1);
        fx.publish(Event::Acquired);
        at.tell(record, fx);
        if let Some(client) = request.client {
            let answer = Answer::Granted {
                place: at.place.to_owned(),
                others: Vec::new(),
                token,
                minted_owner: request.owner_is_minted.then_some(request.owner),
            };
            fx.answer(id, client, answer);
        }
        Ok(())
    }

    /// So many locks were granted to a request that had waited since then.
    pub(super) fn count_waited(&mut self, now: Moment, since: Moment, locks: u64) {
        self.stats.contended_grants += locks;
        self.stats.waits.add(now.ms_since(since));
    }

    /// Whether it is the turn of this request: nobody is ahead of it but reserved places, and it fits beside them.
    pub(super) fn is_turn_of(&self, at: &At<'_>, queue: QueueId, waiter: WaiterId) -> bool {
        let request = self.queues.waiter(waiter).map(|waiter| &waiter.request);
        request.is_some_and(|request| {
            let reserved = self.reserved_ahead(queue, Some(waiter), None);
            reserved.is_some_and(|reserved| self.fits(at, request.mode, &request.owner, reserved))
        })
    }

    /// Whether a newcomer can come in beside all who are in line, because they only keep a place; `but` for one, which
    /// it would replace.
    pub(super) fn fits_beside(
        &self,
        at: &At<'_>,
        queue: QueueId,
        ask: &Ask<'_>,
        but: Option<WaiterId>,
    ) -> bool {
        let reserved = self.reserved_ahead(queue, None, but);
        reserved.is_some_and(|reserved| self.fits(at, ask.mode, ask.owner, reserved))
    }

    /// How many places are reserved ahead of a request, or in all of the line, `but` left out. `None`: others are ahead.
    fn reserved_ahead(
        &self,
        queue: QueueId,
        waiter: Option<WaiterId>,
        but: Option<WaiterId>,
    ) -> Option<usize> {
        let reserved = self.queues.reserved_ahead(queue, waiter, but);
        reserved.filter(|&reserved| !are_too_many(reserved))
    }

    /// Asks the pump to look at every line that somebody left whose going may let others in, but for this one.
    #[inline(always)]
    pub(super) fn note_left(&mut self, but: Option<QueueId>) {
        if self.queues.has_left() {
            self.note_all_left(but);
        }
    }

    #[inline(never)]
    fn note_all_left(&mut self, but: Option<QueueId>) {
        while let Some(queue) = self.queues.next_left() {
            if Some(queue) == but {
                continue;
            }
            let place = self.queues.queue(queue).map(|queue| queue.place.clone());
            if let Some(place) = place {
                self.note(place.as_place());
            }
        }
    }

    /// It may be the turn of a request for several locks: asks the pump to look at all of them, unless it is known
    /// to be held up in another line.
    fn note_party(&mut self, id: PartyId, queue: QueueId) {
        let Some(party) = self.queues.party_mut(id) else {
            return;
        };
        if party.held_up_in.is_none_or(|held_up_in| held_up_in == queue) {
            party.held_up_in = None;
            if let Some(&lead) = party.stands.first()
                && !std::mem::replace(&mut party.is_noted, true)
            {
                self.tasks.push_back(Task::Party(lead));
            }
        }
    }
}
