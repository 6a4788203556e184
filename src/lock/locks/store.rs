//! Stores all locks: see the [module](super).

use std::collections::{BTreeMap, BTreeSet};

use zerocopy::FromBytes;

use super::hold_ext::HoldExts;
use super::holder_list::HolderLists;
use super::id::{Epoch, LockId};
use super::name_codec::{NO_PREFIX, Prefixes};
use super::new_hold::{Ended, NewHold};
use super::record::{Flag, HEAD, Head, Records, SPILLED, Tail, UNTIL_MAX};
use super::timer_wheel::{LIST, Links, NONE, Next, Wheel};
use crate::lock::types::{Binding, ClientId, LockKey, LockKeyBuf, Moment};

/// A name or owner that fits no slot.
pub(super) struct Spilled {
    pub(super) lock_key: LockKeyBuf,
    pub(super) owner: Box<[u8]>,
}

/// All locks. See the [module](self).
#[derive(Default)]
pub struct Locks {
    pub(super) epoch: Epoch,
    pub(super) records: Records,
    pub(super) prefixes: Prefixes,
    /// A tree, because a hash table of a million doubles in one piece.
    pub(super) spilled: BTreeMap<u32, Spilled>,
    pub(super) leases: Wheel,
    /// Leases that have expired and are postponed until this moment (ms).
    pub(super) postponed: BTreeSet<(u64, LockId)>,
    pub(super) newest_client: u64,
    pub(super) holds: usize,
    pub(super) holder_lists: HolderLists,
    pub(super) hold_exts: HoldExts,
}

/// Returns the first millisecond on the wheel in which a lease can be found to have expired: the first one after its
/// end.
pub(super) const fn tick(until_us: u64) -> u64 {
    // Takes half the instructions of `div_ceil`. Differs from it only in the last millisecond that can be
    // represented.
    until_us.saturating_add(999) / 1_000
}

/// Returns when a lease of this length ends that begins now.
#[inline(always)]
pub(super) fn end_of(now: Moment, lease_ms: u64) -> u64 {
    now.plus_ms(lease_ms).0
}

impl Locks {
    /// Returns true if this number may belong to this set.
    #[must_use]
    pub fn may_know(&self, id: LockId) -> bool {
        if id.is_list() { self.holder_lists.get(id).is_some() } else { id.epoch() == self.epoch }
    }

    /// Returns the number of locks. The holders of one lock count once.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.0.len() - self.holder_lists.listed + self.holder_lists.all.len()
    }

    /// Returns true if there is no lock.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of held locks. Each held record outside of the lists is a lock, and so is each list.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.holds - self.holder_lists.listed + self.holder_lists.all.len()
    }

    /// Returns the number of holds.
    #[must_use]
    pub const fn holds(&self) -> usize {
        self.holds - self.holder_lists.detached_holds
    }

    /// Adds a lock, held or not. `None` if there are too many, or the clock has run too far to represent an end.
    #[inline(always)]
    pub fn insert(
        &mut self,
        now: Moment,
        lock_key: LockKey<'_>,
        hold: Option<&NewHold<'_>>,
    ) -> Option<LockId> {
        let owner = hold.map_or(&[][..], |hold| hold.owner);
        if now.0 > UNTIL_MAX / 2 && hold.is_some_and(|hold| now.plus_ms(hold.lease_ms).0 > UNTIL_MAX) {
            return None;
        }
        let tail = Tail::new(&mut self.prefixes, lock_key, owner);
        let Some(len) = tail.len() else {
            self.prefixes.give_back(tail.prefix());
            // A copy, because the address of the hold itself would keep it out of registers on the way here.
            return self.insert_spilled(now, lock_key, hold.copied().as_ref());
        };
        let Some((index, slot)) = self.records.0.insert(HEAD + len) else {
            self.prefixes.give_back(tail.prefix());
            return None;
        };
        let (head, rest) = Head::mut_from_prefix(slot).ok()?;
        tail.write(head, rest);
        let id = LockId::new(self.epoch, index, head.generation());
        let Some(hold) = hold else {
            head.clear();
            return Some(id);
        };
        let until = end_of(now, hold.lease_ms);
        let (last, list) = self.leases.enter(index, tick(until), now.0 / 1_000);
        head.begin(hold, now, until, (last, list));
        self.begun(index, last, hold.client);
        self.bind_new(id, hold);
        Some(id)
    }

    #[cold]
    pub(super) fn insert_spilled(
        &mut self,
        now: Moment,
        lock_key: LockKey<'_>,
        hold: Option<&NewHold<'_>>,
    ) -> Option<LockId> {
        let (index, slot) = self.records.0.insert(HEAD)?;
        let (head, _) = Head::mut_from_prefix(slot).ok()?;
        head.clear();
        (head.prefix, head.shape) = (NO_PREFIX, SPILLED);
        let id = LockId::new(self.epoch, index, head.generation());
        let owner = hold.map_or(&[][..], |hold| hold.owner);
        self.spilled.insert(index, Spilled { lock_key: lock_key.to_owned(), owner: owner.into() });
        if let Some(hold) = hold {
            self.begin_at(id, now, hold);
        }
        Some(id)
    }

    /// Starts a hold on a lock, in place of any earlier one.
    pub fn begin(&mut self, id: LockId, now: Moment, lock_key: LockKey<'_>, hold: &NewHold<'_>) {
        let index = id.index();
        let Some((shape, prefix)) = self.head(id).map(|(head, _)| (head.shape, head.prefix)) else {
            return;
        };
        self.end(id, now);
        self.forget_name(index, shape, prefix);
        let tail = Tail::new(&mut self.prefixes, lock_key, hold.owner);
        if let Some((head, rest)) = self.records.both_mut(index)
            && !tail.write(head, rest)
        {
            // The head has no room for the prefix, so name and owner are stored separately.
            (head.prefix, head.shape) = (self.prefixes.no_seat(lock_key.db), SPILLED);
            self.prefixes.give_back(tail.prefix());
            self.spilled.insert(index, Spilled { lock_key: lock_key.to_owned(), owner: hold.owner.into() });
        }
        self.begin_at(id, now, hold);
    }

    pub(super) fn begin_at(&mut self, id: LockId, now: Moment, hold: &NewHold<'_>) {
        let index = id.index();
        let until = end_of(now, hold.lease_ms);
        let (last, list) = self.leases.enter(index, tick(until), now.0 / 1_000);
        if let Some(head) = self.records.head_mut(index) {
            head.begin(hold, now, until, (last, list));
        }
        self.begun(index, last, hold.client);
        self.bind_new(id, hold);
    }

    /// Puts a new hold on the wheel, after the hold `last`, and stores its connection.
    #[inline(always)]
    pub(super) fn begun(&mut self, index: u32, last: u32, client: Option<ClientId>) {
        if last < LIST {
            self.records.set_next(last, index);
        }
        self.note_client(client);
        self.holds += 1;
    }

    pub(super) fn note_client(&mut self, client: Option<ClientId>) {
        self.newest_client = self.newest_client.max(client.map_or(0, |client| client.0));
    }

    /// Frees the memory of a record's name outside of its slot.
    #[inline(always)]
    pub(super) fn forget_name(&mut self, index: u32, shape: u8, prefix: u8) {
        if shape == SPILLED {
            self.forget_spilled(index);
        } else {
            self.prefixes.give_back(prefix);
        }
    }

    #[cold]
    #[inline(never)]
    fn forget_spilled(&mut self, index: u32) {
        self.spilled.remove(&index);
    }

    /// Ends the hold of a lock, if it has one.
    #[inline(always)]
    pub fn end(&mut self, id: LockId, now: Moment) -> Option<Ended> {
        let head = self.head_mut(id)?;
        if !head.has(Flag::Held) {
            return None;
        }
        let ended = Ended { token: head.token()?, held_ms: head.held_ms(now) };
        let has_ext = head.has(Flag::HoldExt);
        let (previous, next) = head.end();
        if previous != NONE {
            self.leases.leave(&mut self.records, previous, next);
        }
        self.holds -= 1;
        if has_ext {
            self.forget_ext(id);
        }
        Some(ended)
    }

    /// Makes a hold end `lease_ms` milliseconds after `now`.
    pub fn extend(&mut self, id: LockId, now: Moment, lease_ms: u64) {
        let until = end_of(now, lease_ms);
        if self.has_ext(id) {
            self.put_on_wheel(id);
        }
        let Some(head) = self.head_mut(id).filter(|head| head.has(Flag::Held)) else {
            return;
        };
        head.set_until_us(until);
        head.keep_since(now);
        if head.has(Flag::HoldExt) && self.extend_paused(id, lease_ms) {
            return;
        }
        self.leases.remove(&mut self.records, id.index());
        self.leases.insert(&mut self.records, id.index(), tick(until), now.0 / 1_000);
    }

    /// Notes the connection on which the owner of this hold was last seen.
    pub fn note_shown(&mut self, id: LockId, client: Option<ClientId>) {
        if let Some(head) = self.head_mut(id) {
            if client.is_some() {
                head.set_client(client);
            }
            self.note_client(client);
        }
    }

    /// Removes a lock that has no holder. Returns true if it had none.
    #[inline(always)]
    pub fn remove_free(&mut self, id: LockId) -> bool {
        let (epoch, mut is_held) = (self.epoch, false);
        let removed = self.records.0.remove_if(id.index(), |slot| {
            let (head, _) = Head::ref_from_prefix(slot).ok()?;
            if !id.has_generation(epoch, head.generation()) {
                return None;
            }
            is_held = head.has(Flag::Held);
            (!is_held).then_some((head.shape, head.prefix))
        });
        if let Some((shape, prefix)) = removed {
            self.forget_name(id.index(), shape, prefix);
            return true;
        }
        // A list of holders has a holder as long as it exists.
        !is_held && self.holder_lists.get(id).is_none()
    }

    /// Returns the time at which leases must be checked next: never later than the first end.
    #[must_use]
    pub fn next_end(&self) -> Option<Moment> {
        let tick = self.leases.next_tick();
        let postponed = self.postponed.first().map(|first| first.0);
        let next = match (tick, postponed) {
            (Some(tick), Some(postponed)) => Some(tick.min(postponed)),
            (tick, postponed) => tick.or(postponed),
        };
        next.map(|ms| Moment(ms * 1_000))
    }

    /// Returns a lease that has expired. It is returned again until it is ended, renewed or postponed.
    pub fn due(&mut self, now: Moment) -> Due {
        let now_ms = now.0 / 1_000;
        if let Some(&(at, id)) = self.postponed.first()
            && at <= now_ms
        {
            self.postponed.pop_first();
            // It may have ended since, and be held again: then it has an end of its own, or is paused.
            if self.hold(id).is_some() && self.records.links(id.index()).0 == NONE && !self.is_paused(id) {
                self.leases.insert(&mut self.records, id.index(), now_ms, now_ms);
            }
            return Due::AskAgain;
        }
        match self.leases.next_due(&mut self.records, now_ms) {
            Next::Nothing => Due::Nothing,
            Next::Sorted => Due::AskAgain,
            Next::Due(index) => match self.records.head(index) {
                Some((head, _)) => Due::Lease(self.id(index, head.generation())),
                None => Due::Nothing,
            },
        }
    }

    /// Postpones an expired lease: it is not returned as due before this moment.
    pub fn postpone(&mut self, id: LockId, at: Moment) {
        if self.hold(id).is_some() {
            self.leases.remove(&mut self.records, id.index());
            self.postponed.insert((at.0.div_ceil(1_000), id));
        }
    }

    /// Returns the bytes that a lock occupies.
    #[must_use]
    pub fn memory_of(&self, id: LockId) -> usize {
        if let Some(holders) = self.holder_lists.get(id) {
            return holders.bytes() + holders.ids().map(|holder| self.memory_of(holder)).sum::<usize>();
        }
        if self.head(id).is_none() {
            return 0;
        }
        let spilled = self.spilled.get(&id.index());
        let spilled = spilled.map_or(0, |s| size_of::<Spilled>() + s.lock_key.name.len() + s.owner.len());
        self.records.0.size(id.index()) + spilled
    }

    /// Continues a replicated hold as its primary describes it: with this lease, and this binding to a
    /// connection there.
    pub fn go_on_as_replicated(&mut self, id: LockId, now: Moment, lease_ms: u64, binding: Binding) {
        self.put_on_wheel(id);
        self.leases.remove(&mut self.records, id.index());
        self.change_ext(id, |ext| (ext.binding, ext.lease_ms, ext.bound_to) = (binding, 0, None));
        self.extend(id, now, lease_ms);
    }
}

/// The result of a search for an expired lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Nothing ends now.
    Nothing,
    /// The search did some work and must be continued.
    AskAgain,
    /// This lease has expired.
    Lease(LockId),
}
