//! Frees the holders of removed locks, a few at a time.
//!
//! When the key of a lock with very many holders is removed, all of their holds end at once. Ending each of them
//! takes much longer than removing their list. So only the list is removed at once: from then on the lock cannot be
//! found, and its holds are not counted. Their records stay, with their leases, until they are removed here.

use super::holder_list::Holders;
use super::id::LockId;
use super::new_hold::Ended;
use super::store::Locks;
use crate::lock::types::Moment;

impl Locks {
    /// Removes the list of these holders. Returns how many there were.
    pub fn detach(&mut self, id: LockId) -> usize {
        let Some(holders) = id.holders().and_then(|id| self.holder_lists.all.remove(id)) else {
            return 0;
        };
        let holds = holders.len();
        self.holder_lists.detached_holds += holds;
        self.holder_lists.detached.push_back(holders);
        holds
    }

    /// Returns true if there are holders that [`Self::take_detached`] has not removed yet.
    #[must_use]
    pub fn has_detached(&self) -> bool {
        !self.holder_lists.detached.is_empty()
    }

    /// Ends one hold of the lock that was removed first, as of that moment. Also returns true if its lease had
    /// expired by then. `None` after the last hold of its lock.
    pub fn take_detached(&mut self, then: Moment) -> Option<(Ended, bool)> {
        let lists = &mut self.holder_lists;
        let Some(holder) = lists.detached.front_mut().and_then(Holders::pop) else {
            lists.detached.pop_front();
            return None;
        };
        lists.listed -= 1;
        lists.detached_holds -= 1;
        let is_over = self.hold(holder).is_some_and(|hold| hold.is_over(then));
        let ended = self.end(holder, then);
        self.remove_free(holder);
        Some((ended?, is_over))
    }

    /// Returns true if the lock of this holder was removed, and the record of the holder was not.
    #[must_use]
    pub fn is_detached(&self, holder: LockId) -> bool {
        let detached = &self.holder_lists.detached;
        #[cfg(test)]
        crate::lock::tests::visits::count(detached.len());
        !detached.is_empty()
            && self.hold(holder).is_some_and(|hold| {
                detached.iter().any(|holders| holders.of_token(hold.token()) == Some(holder))
            })
    }

    /// Removes from this list the holders whose lock was removed. Either each is searched in all lists of detached
    /// holders, or all of those holders are listed, whichever is less work.
    pub(super) fn leave_out_detached(&self, holders: &mut Vec<LockId>) {
        let lists = &self.holder_lists;
        if holders.len().saturating_mul(lists.detached.len()) <= lists.detached_holds {
            return holders.retain(|&holder| !self.is_detached(holder));
        }
        #[cfg(test)]
        crate::lock::tests::visits::count(lists.detached_holds);
        let detached: hashbrown::HashSet<LockId> = self.detached().collect();
        holders.retain(|holder| !detached.contains(holder));
    }

    /// Returns all holders whose lock was removed.
    pub(super) fn detached(&self) -> impl Iterator<Item = LockId> {
        self.holder_lists.detached.iter().flat_map(Holders::ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::locks::NewHold;
    use crate::lock::tests::visits;
    use crate::lock::types::{Binding, LockKey, Mode, Token};

    const NOW: Moment = Moment(9_000_000);
    const LATER: Moment = Moment(10_000_000);
    const KEY: LockKey<'_> = LockKey { db: 0, name: b"many" };

    fn join(locks: &mut Locks, id: LockId, number: u64, lease_ms: u64) -> LockId {
        let owner = format!("owner-{number}");
        let token = Token::new(number).expect("valid");
        let new = NewHold { owner: owner.as_bytes(), token, lease_ms, client: None, binding: Binding::NONE };
        locks.join(id, NOW, KEY, &new).expect("there is room")
    }

    #[test]
    fn holders_of_a_lock_that_is_gone_are_not_found_and_end_one_by_one() {
        let mut locks = Locks::default();
        let gone = locks.form(Mode::Limit(100));
        let holders: Vec<LockId> = (1..=30)
            .map(|number| join(&mut locks, gone, number, if number % 3 == 0 { 1 } else { 9_000 }))
            .collect();
        let other = locks.form(Mode::Limit(100));
        let own = join(&mut locks, other, 99, 9_000);
        assert_eq!((locks.detach(gone), locks.detach(gone)), (30, 0));
        assert_eq!((locks.len(), locks.holds(), locks.holders_of(gone)), (1, 1, 0));
        assert!(locks.all_of_owner(b"owner-7").is_empty() && locks.all_of_owner(b"owner-99").len() == 1);
        assert_eq!(locks.all_held(|_| true), [other]);
        assert!(holders.iter().all(|&holder| locks.is_detached(holder)) && !locks.is_detached(own));
        let mut ended = Vec::new();
        while let Some((hold, is_over)) = locks.take_detached(LATER) {
            ended.push((hold.token.get(), is_over));
            assert_eq!((locks.len(), locks.holds(), hold.held_ms), (1, 1, 1_000));
            locks.check().expect("nothing is wrong");
        }
        ended.sort_unstable();
        assert_eq!(ended, (1..=30).map(|number| (number, number % 3 == 0)).collect::<Vec<_>>());
        assert!(holders.iter().all(|&holder| locks.get(holder).is_none()));
        assert!(locks.next_end().is_some(), "the other one is left");
        locks.remove(other, LATER);
        assert_eq!((locks.next_end(), locks.len()), (None, 0));
    }

    #[test]
    fn an_owner_of_locks_that_are_gone_is_looked_for_in_the_way_that_is_less_work() {
        // Many locks with few holders; one lock with many.
        for (lists, others) in [(100, 9), (1, 200)] {
            let mut locks = Locks::default();
            let mut number = 0;
            for _ in 0..lists {
                let gone = locks.form(Mode::Limit(1_000));
                for _ in 0..others {
                    number += 1;
                    join(&mut locks, gone, number, 9_000);
                }
                number += 1;
                let token = Token::new(number).expect("valid");
                let new =
                    NewHold { owner: b"ann", token, lease_ms: 9_000, client: None, binding: Binding::NONE };
                locks.join(gone, NOW, KEY, &new).expect("there is room");
                locks.detach(gone);
            }
            let token = Token::new(number + 1).expect("valid");
            let new = NewHold { owner: b"ann", token, lease_ms: 9_000, client: None, binding: Binding::NONE };
            locks.insert(NOW, KEY, Some(&new)).expect("there is room");
            visits::take();
            assert_eq!(locks.all_of_owner(b"ann").len(), 1, "{lists} lists");
            assert!(visits::take() <= lists * 10 + 1, "{lists} lists, {others} others");
        }
    }
}
