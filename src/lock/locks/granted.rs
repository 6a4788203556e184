//! Holds whose owners were granted more than they had, as long as nobody knows whether they are told: see [`super::earlier`].

use super::earlier::Earlier;
use super::hold::Hold;
use super::id::LockId;
use super::record::Flag;
use super::state::Locks;
use crate::lock::types::{ClientId, LockKey, Mode, Moment, Token};

impl Locks {
    /// What a hold is, whose owner is about to be granted more. The grant `counts` if it takes a release more.
    pub fn earlier(&mut self, id: LockId, mode: Mode, granted: Token, counts: bool) -> Option<Box<Earlier>> {
        self.put_on_wheel(id);
        let hold = self.hold(id)?;
        let (token, is_acknowledged, client, binding) =
            (hold.token(), hold.is_acknowledged(), hold.client(), hold.binding());
        let until_us = self.head(id)?.0.until_us();
        let earlier = self.take_earlier(id);
        let bound_to = self.overflows.bound_to(id.index()).filter(|_| !binding.is_none());
        let overflow = self.overflows.get(id.index()).filter(|_| !binding.is_none());
        let lease_ms = overflow.map_or(0, |overflow| overflow.lease_ms);
        let mut now = Box::new(Earlier {
            token,
            granted,
            mode,
            counts,
            is_acknowledged,
            until_us,
            client,
            binding,
            lease_ms,
            bound_to,
            earlier,
        });
        now.cap();
        Some(now)
    }

    /// What the hold was before its owner was granted more, if nobody knows whether the owner was told.
    pub fn take_earlier(&mut self, id: LockId) -> Option<Box<Earlier>> {
        let mut earlier = None;
        if self.has_earlier(id) {
            self.change_overflow(id, |overflow| earlier = overflow.earlier.take());
        }
        earlier
    }

    pub(super) fn has_earlier(&self, id: LockId) -> bool {
        self.has_overflow(id)
            && self.overflows.get(id.index()).is_some_and(|overflow| overflow.earlier.is_some())
    }

    /// The owner has more now than it had, and may not be told of it.
    pub fn note_granted(&mut self, id: LockId, client: Option<ClientId>, earlier: Option<Box<Earlier>>) {
        self.set_acknowledged(id, client, false);
        self.keep_earlier(id, earlier);
    }

    /// Keeps with a hold what it was before its owner was granted more.
    pub fn keep_earlier(&mut self, id: LockId, earlier: Option<Box<Earlier>>) {
        if earlier.is_some() {
            self.change_overflow(id, |overflow| overflow.earlier = earlier);
        }
    }

    /// A hold is again what it was, but for its token, its mode and its count.
    pub fn put_back(&mut self, id: LockId, now: Moment, earlier: Earlier) {
        let Earlier { is_acknowledged, until_us, client, binding, lease_ms, bound_to, earlier, .. } = earlier;
        self.change_overflow(id, |overflow| {
            (overflow.binding, overflow.lease_ms, overflow.bound_to) = (binding, lease_ms, bound_to);
            overflow.earlier = earlier;
        });
        if binding.is_paused() {
            self.leases.remove(&mut self.records, id.index());
        } else {
            self.set_until(id, now, until_us);
        }
        if let Some(head) = self.head_mut(id) {
            head.set(Flag::Acknowledged, is_acknowledged);
            head.set_client(client);
        }
    }

    /// The hold of a lock here that has gone on with a grant of this token, of which nobody knows whether the owner was told.
    #[must_use]
    pub fn untold(&self, lock_key: LockKey<'_>, token: Token) -> Option<LockId> {
        let is_here = |id: &LockId| self.get(*id).is_some_and(|lock| lock.is_at(lock_key));
        self.overflows.untold(token).find(is_here)
    }

    /// Whether there is any such hold.
    #[inline]
    #[must_use]
    pub fn has_untold(&self) -> bool {
        self.overflows.has_untold()
    }

    /// The owner was told of this grant. What the hold was before it is no matter any more.
    pub fn note_told(&mut self, id: LockId, token: Token) {
        if self.hold(id).is_some_and(|hold| hold.token() == token) {
            return self.note_acknowledged(id, None);
        }
        self.change_overflow(id, |overflow| {
            overflow.change_earlier(|earlier| {
                if earlier.token == token {
                    earlier.note_told();
                }
            });
        });
    }

    /// A grant is as good as never made, and its hold has gone on since. Returns whether the hold takes one release less
    /// from here on.
    pub fn forget_grant(&mut self, id: LockId, token: Token) -> bool {
        let count = |locks: &Self| locks.hold(id).map(Hold::count);
        let before = count(self);
        self.change_overflow(id, |overflow| overflow.forget_grant(token));
        count(self) < before
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::held_by_ann;
    use super::*;
    use crate::lock::types::Binding;

    const KEPT: Binding = Binding { ephemeral_ms: Some(5), is_keepalive: true, is_running: false };
    const LOCK_KEY: LockKey<'static> = LockKey { db: 0, name: b"k" };
    const NOW: Moment = Moment(9_000_000);

    fn token(number: u64) -> Token {
        Token::new(number).expect("valid")
    }

    /// The owner is granted the next token, and nobody knows whether it is told.
    fn grant(locks: &mut Locks, id: LockId, number: u64, counts: bool) {
        let earlier = locks.earlier(id, Mode::Shared, token(number), counts);
        locks.set_new_token(id, id, token(number)).expect("it is held");
        if counts {
            let count = locks.hold(id).expect("it is held").count();
            locks.set_count(id, count + 1);
        }
        locks.note_granted(id, None, earlier);
    }

    fn untold(locks: &Locks) -> Vec<u64> {
        (1..20).filter(|&number| locks.untold(LOCK_KEY, token(number)).is_some()).collect()
    }

    #[test]
    fn of_many_grants_that_nobody_is_told_of_the_first_ones_are_taken_for_told() {
        let mut locks = Locks::default();
        let id = held_by_ann(&mut locks, 1, None);
        (2..=9).for_each(|number| grant(&mut locks, id, number, false));
        let mut back = Vec::new();
        while let Some(earlier) = locks.take_earlier(id) {
            back.push((earlier.token.get(), earlier.is_acknowledged));
            locks.put_back(id, NOW, *earlier);
        }
        assert_eq!(back, [(8, false), (7, false), (6, false), (5, true)]);
        assert_eq!((untold(&locks), locks.overflows.len()), (vec![], 0));
    }

    #[test]
    fn a_grant_is_found_by_its_token_until_its_owner_is_told() {
        let mut locks = Locks::default();
        let id = held_by_ann(&mut locks, 1, None);
        assert!(!locks.has_untold());
        (2..=4).for_each(|number| grant(&mut locks, id, number, false));
        assert_eq!((untold(&locks), locks.has_untold()), (vec![1, 2, 3, 4], true));
        assert_eq!(locks.untold(LockKey { db: 1, name: b"k" }, token(4)), None);
        locks.note_told(id, token(2));
        assert_eq!(untold(&locks), [3, 4], "what it was before that is no matter");
        locks.note_told(id, token(4));
        assert_eq!((untold(&locks), locks.has_untold(), locks.overflows.len()), (vec![], false, 0));
        assert!(locks.hold(id).is_some_and(Hold::is_acknowledged));
        grant(&mut locks, id, 5, false);
        locks.end(id, NOW);
        assert!(!locks.has_untold(), "it goes with the hold");
    }

    #[test]
    fn a_grant_that_was_not_told_and_went_on_leaves_its_count_to_one_that_relies_on_it() {
        // Which of the two grants behind the first counted, and the counts when the first of them is forgotten and the
        // second one is taken back.
        for (counts, now, then) in
            [([true, true], 2, 1), ([true, false], 2, 1), ([false, true], 2, 1), ([false, false], 1, 1)]
        {
            let mut locks = Locks::default();
            let id = held_by_ann(&mut locks, 1, None);
            locks.note_acknowledged(id, None);
            grant(&mut locks, id, 2, counts[0]);
            grant(&mut locks, id, 3, counts[1]);
            assert_eq!(locks.forget_grant(id, token(2)), counts == [true, true], "{counts:?}");
            let count = |locks: &Locks| locks.hold(id).map(Hold::count);
            assert_eq!(count(&locks), Some(now), "{counts:?}");
            let earlier = locks.take_earlier(id).expect("it is kept");
            assert_eq!((earlier.token.get(), now - u32::from(earlier.counts)), (1, then), "{counts:?}");
            assert!(!locks.forget_grant(id, token(2)), "once");
        }
    }

    #[test]
    fn only_the_grant_with_this_token_is_forgotten_and_only_if_nobody_knows_of_it() {
        for (forgotten, left) in [(1, vec![3, 2, 1]), (9, vec![3, 2, 1]), (2, vec![3, 1])] {
            let mut locks = Locks::default();
            let id = held_by_ann(&mut locks, 1, None);
            locks.note_acknowledged(id, None);
            (2..=4).for_each(|number| grant(&mut locks, id, number, false));
            locks.forget_grant(id, token(forgotten));
            let mut back = Vec::new();
            while let Some(earlier) = locks.take_earlier(id) {
                back.push(earlier.token.get());
                locks.put_back(id, NOW, *earlier);
            }
            assert_eq!(back, left, "{forgotten}");
        }
    }

    #[test]
    fn what_a_hold_was_bound_to_before_ends_with_that_connection() {
        let mut locks = Locks::default();
        let id = held_by_ann(&mut locks, 1, Some(ClientId(7)));
        locks.rebind(id, NOW, KEPT, Some(ClientId(7)));
        let later = |id: LockId, locks: &mut Locks, number: u64| {
            let earlier = locks.earlier(id, Mode::Shared, token(number), false);
            locks.rebind(id, NOW, KEPT, Some(ClientId(8)));
            locks.note_granted(id, Some(ClientId(8)), earlier);
        };
        later(id, &mut locks, 1);
        let close = |locks: &mut Locks, client: u64| {
            let bound: Vec<LockId> = locks.take_bound_to(ClientId(client)).collect();
            bound.into_iter().filter(|&id| locks.unbind(id, ClientId(client), NOW)).count()
        };
        assert_eq!(close(&mut locks, 7), 0, "it is bound to another one now");
        assert!(locks.is_paused(id));
        assert_eq!(close(&mut locks, 8), 1);
        let hold = locks.hold(id).expect("it is held");
        assert_eq!(hold.left_ms(NOW), 100, "it is about to be what it was before");
        let earlier = locks.take_earlier(id).expect("it is kept");
        locks.put_back(id, NOW, *earlier);
        let hold = locks.hold(id).expect("it is held");
        assert_eq!((hold.left_ms(NOW), hold.binding().is_running), (5, true));
        // All connections are of another life.
        locks.rebind(id, NOW, KEPT, Some(ClientId(7)));
        later(id, &mut locks, 1);
        locks.forget_connections(std::iter::empty());
        assert_eq!(
            (locks.take_bound_to(ClientId(7)).count(), locks.take_bound_to(ClientId(8)).count()),
            (0, 0)
        );
    }
}
