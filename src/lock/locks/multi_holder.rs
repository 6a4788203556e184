//! Locks with several holders: see [`super::holder_list`].

use super::hold::Hold;
use super::id::LockId;
use super::new_hold::{Ended, NewHold};
use super::store::Locks;
use crate::lock::types::{LockKey, Mode, Moment, Token};

impl Locks {
    /// Returns the mode in which the lock with this number is held. `None` if it is not held or does not exist.
    #[inline]
    #[must_use]
    pub fn mode(&self, id: LockId) -> Option<Mode> {
        if id.is_list() {
            return Some(self.holder_lists.get(id)?.mode);
        }
        self.hold(id).map(|_| Mode::Exclusive)
    }

    /// Returns the holds of a lock, in the order of their tokens, with the numbers of their records.
    pub fn holders(&self, id: LockId) -> impl Iterator<Item = (LockId, Hold<'_>)> {
        let holders = self.holder_lists.get(id);
        let alone = holders.is_none().then_some(id);
        let ids = holders.into_iter().flat_map(|holders| holders.ids()).chain(alone);
        ids.filter_map(|holder| Some((holder, self.hold(holder)?)))
    }

    /// Returns the number of holders of a lock.
    #[inline]
    #[must_use]
    pub fn holders_of(&self, id: LockId) -> usize {
        match self.holder_lists.get(id) {
            Some(holders) => holders.len(),
            None => usize::from(self.hold(id).is_some()),
        }
    }

    /// Returns this owner's hold on a lock.
    #[inline]
    #[must_use]
    pub fn hold_of(&self, id: LockId, owner: &[u8]) -> Option<(LockId, Hold<'_>)> {
        if !id.is_list() {
            return self.hold(id).filter(|hold| hold.is_of(owner)).map(|hold| (id, hold));
        }
        let of_owner = |holder| self.hold(holder).filter(|hold| hold.is_of(owner)).map(|hold| (holder, hold));
        if !self.holder_lists.is_large(id) {
            return self.holder_lists.get(id)?.few().iter().find_map(|entry| of_owner(entry.1));
        }
        of_owner(self.holder_lists.of_owner(id, owner, |holder| of_owner(holder).is_some())?)
    }

    /// Returns true if a lock has too many holders to examine each of them.
    #[inline]
    #[must_use]
    pub fn is_large(&self, id: LockId) -> bool {
        self.holder_lists.is_large(id)
    }

    /// Returns an expired hold of this lock, if the lock has few enough holders to examine all.
    #[inline]
    #[must_use]
    pub fn over_of(&self, id: LockId, now: Moment) -> Option<LockId> {
        if !id.is_list() {
            return self.hold(id).filter(|hold| hold.is_over(now)).map(|_| id);
        }
        let few = self.holder_lists.get(id)?.few();
        few.iter()
            .map(|entry| entry.1)
            .find(|&holder| self.hold(holder).is_some_and(|hold| hold.is_over(now)))
    }

    /// Returns the hold with this token on a lock.
    #[must_use]
    pub fn hold_with(&self, id: LockId, token: Token) -> Option<(LockId, Hold<'_>)> {
        let holder = if id.is_list() { self.holder_lists.get(id)?.of_token(token)? } else { id };
        self.hold(holder).filter(|hold| hold.token() == token).map(|hold| (holder, hold))
    }

    /// Returns the hold with the newest token on a lock.
    #[must_use]
    pub fn newest_hold(&self, id: LockId) -> Option<(LockId, Hold<'_>)> {
        let holder = if id.is_list() { self.holder_lists.get(id)?.newest()? } else { id };
        Some((holder, self.hold(holder)?))
    }

    /// Returns true if the record with this number is a hold of this lock.
    #[must_use]
    pub fn is_held_by(&self, id: LockId, holder: LockId) -> bool {
        self.hold(holder).is_some_and(|hold| match id.is_list() {
            true => self.holder_lists.get(id).is_some_and(|holders| holders.has(hold.token(), holder)),
            false => holder == id,
        })
    }

    /// Adds a lock that can have several holders, and has none yet.
    #[inline]
    pub fn form(&mut self, mode: Mode) -> LockId {
        self.holder_lists.form(mode)
    }

    /// Removes a lock that could have several holders, and has none.
    #[inline]
    pub fn dissolve(&mut self, id: LockId) {
        self.holder_lists.dissolve(id);
    }

    /// Starts a hold alongside the others of this lock. `None` if there are too many locks.
    #[inline]
    pub fn join(
        &mut self,
        id: LockId,
        now: Moment,
        lock_key: LockKey<'_>,
        hold: &NewHold<'_>,
    ) -> Option<LockId> {
        let holder = self.insert(now, lock_key, Some(hold))?;
        self.enlist(id, holder, hold.token, hold.owner);
        Some(holder)
    }

    /// Adds a lock with these holds, which are in the order of their tokens and have different owners. Returns `None`,
    /// and adds nothing, if there are too many locks.
    pub fn insert_list<'a>(
        &mut self,
        now: Moment,
        lock_key: LockKey<'_>,
        mode: Mode,
        holds: impl ExactSizeIterator<Item = NewHold<'a>> + Clone,
    ) -> Option<LockId> {
        let mut holders = Vec::with_capacity(holds.len());
        for hold in holds.clone() {
            let Some(holder) = self.insert(now, lock_key, Some(&hold)) else {
                holders.into_iter().for_each(|(_, holder)| self.remove(holder, now));
                return None;
            };
            holders.push((hold.token, holder));
        }
        Some(self.holder_lists.form_with(mode, holders, holds.map(|hold| hold.owner)))
    }

    #[inline]
    fn enlist(&mut self, id: LockId, holder: LockId, token: Token, owner: &[u8]) {
        if !self.holder_lists.join(id, (token, holder), owner) {
            let owners: Vec<Vec<u8>> = self.holders(id).map(|(_, hold)| hold.owner().to_vec()).collect();
            self.holder_lists.grow(id, &owners);
            self.holder_lists.join(id, (token, holder), owner);
        }
    }

    /// Ends the hold of a holder, and removes its record. Also returns how many are left.
    #[inline]
    pub fn remove_holder(&mut self, id: LockId, holder: LockId, now: Moment) -> Option<(Ended, usize)> {
        let owner =
            if self.holder_lists.is_large(id) { self.hold(holder)?.owner().to_vec() } else { Vec::new() };
        let ended = self.end(holder, now)?;
        let left = self.holder_lists.remove_holder(id, (ended.token, holder), &owner);
        self.remove_free(holder);
        Some((ended, left?))
    }

    /// Turns the hold of a record into the first one of a list of holders, under another number. The old number is
    /// the value of a key that the server is about to forget.
    pub fn convert_to_shared(&mut self, id: LockId, now: Moment, mode: Mode) -> Option<LockId> {
        self.put_on_wheel(id);
        let (lock_key, hold) = (self.get(id)?.lock_key()?, self.hold(id)?);
        let (owner, token, client, left_ms) =
            (hold.owner().to_vec(), hold.token(), hold.client(), hold.left_ms(now));
        let (binding, count, held_ms) = (hold.binding(), hold.count(), hold.held_ms(now));
        let until_us = self.head(id)?.0.until_us();
        let bound_to = self.hold_exts.bound_to(id.index()).filter(|_| !binding.is_none());
        self.remove(id, now);
        let holders = self.form(mode);
        let new = NewHold { owner: &owner, token, lease_ms: left_ms, client, binding };
        let since = Moment(now.0.saturating_sub(held_ms * 1_000));
        let Some(holder) = self.join(holders, now, lock_key.as_key(), &new) else {
            self.holder_lists.dissolve(holders);
            return None;
        };
        self.set_until(holder, now, until_us);
        if let Some(head) = self.head_mut(holder) {
            head.set_since(since);
        }
        self.set_count(holder, count);
        if !binding.is_none() {
            self.change_ext(holder, |ext| ext.bound_to = bound_to);
        }
        Some(holders)
    }

    /// Ends all holds of a lock. A list of holders is removed with them; the number of a record finds an empty lock.
    pub fn break_up(&mut self, id: LockId, now: Moment) -> Vec<Ended> {
        if !id.is_list() {
            return self.end(id, now).into_iter().collect();
        }
        // Includes expired holds: their records belong to the list.
        let ids: Vec<LockId> =
            self.holder_lists.get(id).into_iter().flat_map(|holders| holders.ids()).collect();
        self.holder_lists.dissolve(id);
        let ended = ids.iter().filter_map(|&holder| {
            let ended = self.end(holder, now);
            self.remove_free(holder);
            ended
        });
        ended.collect()
    }

    /// Returns the key of a lock that is held.
    #[must_use]
    pub fn first_key(&self, id: LockId) -> Option<crate::lock::types::LockKeyBuf> {
        let (holder, _) = self.newest_hold(id)?;
        self.get(holder)?.lock_key()
    }

    /// Returns all holds of this owner, with their locks and modes. Goes through all records.
    #[must_use]
    pub fn all_of_owner(&self, owner: &[u8]) -> Vec<(Mode, super::Lock<'_>, Hold<'_>)> {
        let mut own = self.records_of_owner(owner);
        self.leave_out_detached(&mut own);
        let mode_of = self.modes_of(&own);
        let with_mode = |id: LockId| Some((mode_of(id), self.get(id)?, self.hold(id)?));
        own.into_iter().filter_map(with_mode).collect()
    }

    /// Returns a function from a record to its mode: it searches all lists for each record, or indexes all holders
    /// first, whichever is less work.
    fn modes_of(&self, ids: &[LockId]) -> impl Fn(LockId) -> Mode + '_ {
        let lists = &self.holder_lists;
        let is_listed = ids.len().saturating_mul(lists.all.len()) > lists.listed;
        #[cfg(test)]
        crate::lock::tests::visits::count(if is_listed { lists.listed } else { 0 });
        let of_all = lists.all.iter().filter(|_| is_listed).map(|(_, holders)| holders);
        let listed: hashbrown::HashMap<LockId, Mode> =
            of_all.flat_map(|holders| holders.ids().map(|id| (id, holders.mode))).collect();
        move |id| {
            if is_listed {
                return listed.get(&id).copied().unwrap_or_default();
            }
            let token = self.hold(id).map(|hold| hold.token());
            let is_in = |holders: &&super::holder_list::Holders| {
                #[cfg(test)]
                crate::lock::tests::visits::count(1);
                token.is_some_and(|token| holders.has(token, id))
            };
            lists
                .all
                .iter()
                .map(|(_, holders)| holders)
                .find(is_in)
                .map_or(Mode::Exclusive, |found| found.mode)
        }
    }

    /// Returns all held locks in these databases.
    pub fn all_held(&self, is_concerned: impl Fn(u32) -> bool) -> Vec<LockId> {
        // The common case: two databases without locks are swapped, or one is emptied.
        if !self.prefixes.may_be_in(&is_concerned) {
            return Vec::new();
        }
        #[cfg(test)]
        crate::lock::tests::visits::count(self.records.0.len());
        let is_concerned = |id: LockId| {
            let db = self.newest_hold(id).and_then(|(holder, _)| self.get(holder)?.db());
            db.is_some_and(&is_concerned)
        };
        let holder_lists: Vec<LockId> =
            self.holder_lists.all.iter().map(|(id, _)| LockId::of_list(id)).collect();
        let ids: std::collections::HashSet<LockId> = holder_lists
            .iter()
            .flat_map(|&holders| self.holders(holders).map(|(holder, _)| holder))
            .chain(self.detached())
            .collect();
        let alone = self.iter().map(|(id, _)| id).filter(|id| !ids.contains(id));
        alone.chain(holder_lists.iter().copied()).filter(|&id| is_concerned(id)).collect()
    }

    /// Gives a hold another token.
    pub fn set_token(&mut self, id: LockId, token: Token) {
        if let Some(head) = self.head_mut(id) {
            head.set_token(token);
        }
    }

    /// Leaves no room for more locks, for a test.
    #[cfg(test)]
    pub fn use_up_numbers(&mut self) {
        self.records.0.use_up_numbers();
    }

    /// Returns true if there is room for as many locks as one step may add.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.records.0.has_room()
    }

    /// Removes a lock. Its number is dead from then on.
    #[inline]
    pub fn remove(&mut self, id: LockId, now: Moment) {
        self.break_up(id, now);
        self.remove_free(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::visits;
    use crate::lock::types::Binding;

    const NOW: Moment = Moment(9_000_000);

    fn hold(owner: &str, number: u64) -> NewHold<'_> {
        let token = Token::new(number).expect("valid");
        NewHold { owner: owner.as_bytes(), token, lease_ms: 100, client: None, binding: Binding::NONE }
    }

    #[test]
    fn how_an_owner_holds_is_found_among_few_lists_and_among_many() {
        for (lists, others) in [(1, 50), (20, 0), (20, 5)] {
            let mut locks = Locks::default();
            let mut token = 0;
            for list in 0..lists {
                let (mode, name) = (Mode::Limit(100 + list), format!("lock:{list}"));
                let (id, lock_key) = (locks.form(mode), LockKey { db: 0, name: name.as_bytes() });
                for owner in (0..others).map(|n| format!("owner-{n}")).chain(["ann".to_owned()]) {
                    token += 1;
                    locks.join(id, NOW, lock_key, &hold(&owner, token)).expect("there is room");
                }
            }
            let alone = LockKey { db: 0, name: b"alone" };
            locks.insert(NOW, alone, Some(&hold("ann", token + 1))).expect("there is room");
            let mut modes: Vec<_> = locks.all_of_owner(b"ann").iter().map(|(mode, ..)| *mode).collect();
            modes.sort_by_key(|mode| if let Mode::Limit(limit) = mode { *limit } else { u32::MAX });
            let limits = (0..lists).map(|list| Mode::Limit(100 + list));
            assert_eq!(modes, limits.chain([Mode::Exclusive]).collect::<Vec<_>>(), "{lists} lists, {others}");
            assert!(locks.all_of_owner(b"nobody").is_empty());
        }
    }

    #[test]
    fn how_an_owner_holds_is_found_in_the_way_that_is_less_work() {
        // One lock with many holders; many locks with one.
        for (lists, others) in [(1, 200), (100, 0)] {
            let mut locks = Locks::default();
            let mut token = 0;
            for list in 0..lists {
                let name = format!("lock:{list}");
                let (id, lock_key) = (locks.form(Mode::Shared), LockKey { db: 0, name: name.as_bytes() });
                for owner in (0..others).map(|n| format!("owner-{n}")).chain(["ann".to_owned()]) {
                    token += 1;
                    locks.join(id, NOW, lock_key, &hold(&owner, token)).expect("there is room");
                }
            }
            visits::take();
            assert_eq!(locks.all_of_owner(b"ann").len(), lists);
            assert!(visits::take() <= lists, "{lists} locks, {others} others");
        }
    }

    #[test]
    fn a_list_added_at_once_equals_one_that_holders_join() {
        let lock_key = LockKey { db: 0, name: b"pool" };
        for count in [1, 8, 9, 2_000] {
            let owners: Vec<String> = (1..=count).map(|number| format!("owner-{number}")).collect();
            let holds = || (1..).zip(&owners).map(|(number, owner)| hold(owner, number)).collect::<Vec<_>>();
            let (mut at_once, mut joined) = (Locks::default(), Locks::default());
            let added = at_once.insert_list(NOW, lock_key, Mode::Shared, holds().into_iter());
            let (added, formed) = (added.expect("there is room"), joined.form(Mode::Shared));
            for hold in holds() {
                joined.join(formed, NOW, lock_key, &hold).expect("there is room");
            }
            assert_eq!(at_once.check(), Ok(()), "{count}");
            assert_eq!((at_once.len(), at_once.holds()), (joined.len(), joined.holds()), "{count}");
            assert_eq!(at_once.is_large(added), joined.is_large(formed), "{count}");
            let tokens = |locks: &Locks, id| {
                locks.holders(id).map(|(holder, hold)| (holder, hold.token())).collect::<Vec<_>>()
            };
            assert_eq!(tokens(&at_once, added), tokens(&joined, formed), "{count}");
            at_once.remove(added, NOW);
            assert_eq!((at_once.check(), at_once.len(), at_once.holds()), (Ok(()), 0, 0), "{count}");
        }
    }

    #[test]
    fn a_list_that_is_refused_in_the_middle_leaves_nothing() {
        let lock_key = LockKey { db: 0, name: b"lock:1" };
        let too_long = |number| NewHold { lease_ms: u64::MAX / 2_000, ..hold("late", number) };
        for fitting in [0, 1, 30] {
            let owners: Vec<String> = (1..=fitting).map(|number| format!("owner-{number}")).collect();
            let mut holds: Vec<_> = (1..).zip(&owners).map(|(number, owner)| hold(owner, number)).collect();
            holds.push(too_long(fitting + 1));
            let (mut locks, now) = (Locks::default(), Moment(1 << 47 | 1));
            assert_eq!(locks.insert_list(now, lock_key, Mode::Shared, holds.into_iter()), None);
            assert_eq!((locks.check(), locks.len(), locks.holds()), (Ok(()), 0, 0), "{fitting}");
        }
    }
}
