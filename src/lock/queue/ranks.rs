//! The reservations in a queue: counts those ahead of a request, and finds the bars that it may not pass (G6).
//!
//! A reservation keeps one permit free and blocks nothing else: a request that fits alongside all that are ahead is
//! granted. So the number of those ahead must be known, at a cost that does not grow with it. Each entry of the queue
//! has a slot, in the order of the queue. A binary indexed tree (Fenwick, "A New Data Structure for Cumulative
//! Frequency Tables", 1994) counts the reservations below a slot in O(log n). In an ordered map, each departure would
//! change the number of all after it. No request passes a bar: a request that a client waits for, or a reservation of
//! the whole lock. A map has the bars by their slots.
//!
//! Most queues have no reservation. The ranks of a queue are created with its first one, and dropped with the queue.

use crate::lock::tuning::Bound;
use std::collections::BTreeMap;

use super::{QueueId, Queues, Waiter};
use crate::lock::effect::WaiterId;
use crate::lock::types::{Mode, Moment};

/// The fewest slots of a queue.
const SLOTS_MIN: usize = Bound::of(64, 3).fixed();

/// The effect of an entry of a queue on those after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// A permit is kept free for it.
    Reserved,
    /// No request passes it.
    Bar,
}

impl Standing {
    fn of(waiter: &Waiter) -> Self {
        let is_reserved = waiter.request.client.is_none() && waiter.request.mode != Mode::Exclusive;
        if is_reserved { Self::Reserved } else { Self::Bar }
    }
}

/// Counts below each slot.
#[derive(Debug, Default)]
struct Sums {
    nodes: Vec<u32>,
    all: usize,
}

impl Sums {
    fn new(slots: usize) -> Self {
        Self { nodes: vec![0; slots + 1], all: 0 }
    }

    fn change(&mut self, slot: usize, is_more: bool) {
        self.all = if is_more { self.all + 1 } else { self.all.saturating_sub(1) };
        let mut at = slot + 1;
        while let Some(node) = self.nodes.get_mut(at) {
            *node = if is_more { node.saturating_add(1) } else { node.saturating_sub(1) };
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the number of entries in lower slots.
    fn below(&self, slot: usize) -> usize {
        let (mut sum, mut at) = (0, slot);
        while at > 0 {
            sum += self.nodes.get(at).map_or(0, |&node| node as usize);
            at &= at - 1;
        }
        sum
    }
}

/// The entries of a queue by their slots.
#[derive(Debug)]
pub(super) struct Ranks {
    slots: Vec<Option<(WaiterId, Standing)>>,
    reserved: Sums,
    /// The bars by their slots.
    bars: BTreeMap<usize, WaiterId>,
    /// The slot after that of the last entry.
    end: usize,
    /// The number of reservations at the head whose turn was signalled.
    turns: usize,
    /// The times at which reservations lapse.
    lapses: BTreeMap<(Moment, u64), WaiterId>,
}

/// Returns when a reservation lapses, and its number.
fn lapse_of(id: WaiterId, waiter: &Waiter) -> Option<(Moment, u64)> {
    let until = waiter.request.until.filter(|_| waiter.request.client.is_none());
    until.map(|until| (until, id.number()))
}

impl Ranks {
    fn new(slots: usize) -> Self {
        Self {
            slots: vec![None; slots],
            reserved: Sums::new(slots),
            bars: BTreeMap::new(),
            end: 0,
            turns: 0,
            lapses: BTreeMap::new(),
        }
    }

    fn fill(&mut self, slot: usize, entry: Option<(WaiterId, Standing)>) {
        let Some(lock_key) = self.slots.get_mut(slot) else {
            return;
        };
        let before = std::mem::replace(lock_key, entry);
        match before {
            Some((_, Standing::Reserved)) => self.reserved.change(slot, false),
            Some((_, Standing::Bar)) => _ = self.bars.remove(&slot),
            None => {}
        }
        match entry {
            Some((_, Standing::Reserved)) => self.reserved.change(slot, true),
            Some((bar, Standing::Bar)) => _ = self.bars.insert(slot, bar),
            None => return,
        }
        self.end = self.end.max(slot + 1);
    }

    /// Sets how many reservations at the head have their turn. Returns true if another one has its turn now.
    pub(super) const fn set_turns(&mut self, turns: usize) -> bool {
        turns > std::mem::replace(&mut self.turns, turns)
    }

    /// Notes that one of the reservations at the head leaves.
    fn lose_turn(&mut self, slot: usize) {
        let is_barred = self.bars.first_key_value().is_some_and(|(&bar, _)| bar < slot);
        if !is_barred && self.reserved.below(slot) < self.turns {
            self.turns -= 1;
        }
    }
}

impl Queues {
    /// Returns the number of reservations ahead of an entry, or in the whole queue, as if `but` were not there.
    /// `None` if a bar is ahead.
    #[must_use]
    pub fn reserved_ahead(
        &self,
        id: QueueId,
        waiter: Option<WaiterId>,
        but: Option<WaiterId>,
    ) -> Option<usize> {
        let queue = self.queues.get(id)?;
        let but = but.and_then(|but| self.waiters.get(but)).filter(|but| but.queue == id);
        let Some(ranks) = &queue.ranks else {
            // Without ranks the queue has no reservation: each request is a bar.
            let first = match but {
                Some(but) if but.ahead.is_none() => but.behind,
                _ => queue.head,
            };
            return (first == waiter).then_some(0);
        };
        let end = match waiter {
            Some(waiter) => self.waiters.get(waiter)?.slot,
            None => ranks.end,
        };
        let but = but.filter(|but| but.slot < end);
        let is_free = ranks.bars.range(..end).all(|(&bar, _)| but.is_some_and(|but| but.slot == bar));
        let is_left_out = but.is_some_and(|but| Standing::of(but) == Standing::Reserved);
        is_free.then(|| ranks.reserved.below(end) - usize::from(is_left_out))
    }

    /// Returns the number of reservations ahead of this waiter, past any bar.
    #[must_use]
    pub fn reservations_ahead(&self, waiter: WaiterId) -> usize {
        let Some(waiter) = self.waiters.get(waiter) else {
            return 0;
        };
        let ranks = self.queues.get(waiter.queue).and_then(|queue| queue.ranks.as_ref());
        ranks.map_or(0, |ranks| ranks.reserved.below(waiter.slot))
    }

    /// Returns the next bar after this entry.
    #[must_use]
    pub fn next_bar(&self, waiter: WaiterId) -> Option<WaiterId> {
        let waiter = self.waiters.get(waiter)?;
        let Some(ranks) = &self.queues.get(waiter.queue)?.ranks else {
            return waiter.behind;
        };
        ranks.bars.range(waiter.slot + 1..).next().map(|(_, &bar)| bar)
    }

    /// Returns the number of reservations at the head of the queue before the first bar, and the waiter that is this
    /// bar.
    #[must_use]
    pub fn reserved_at_head(&self, queue: QueueId) -> Option<(usize, Option<WaiterId>)> {
        let ranks = self.queues.get(queue)?.ranks.as_ref()?;
        let Some((&slot, &bar)) = ranks.bars.first_key_value() else {
            return Some((ranks.reserved.all, None));
        };
        Some((ranks.reserved.below(slot), Some(bar)))
    }

    /// Returns a reservation of this queue that its owner did not poll in time.
    #[must_use]
    pub fn lapsed(&self, queue: QueueId, now: Moment) -> Option<WaiterId> {
        let ranks = self.queues.get(queue)?.ranks.as_ref()?;
        ranks.lapses.first_key_value().filter(|(lapse, _)| lapse.0 <= now).map(|(_, &id)| id)
    }

    /// Gives a slot to an entry that has joined its queue: that of `old`, which it replaces, or one of its own.
    pub(super) fn enter_rank(&mut self, id: WaiterId, old: Option<WaiterId>) {
        let Some(waiter) = self.waiters.get(id) else {
            return;
        };
        let (queue, standing) = (waiter.queue, Standing::of(waiter));
        let (is_reservation, lapse) = (waiter.request.client.is_none(), lapse_of(id, waiter));
        let is_last = waiter.behind.is_none();
        let old = old.and_then(|old| self.waiters.get(old)).map(|old| old.slot);
        let Some(entries) = self.queues.get_mut(queue) else {
            return;
        };
        let Some(ranks) = &mut entries.ranks else {
            if is_reservation {
                self.rank_anew(queue);
            }
            return;
        };
        let slot = match old {
            Some(slot) => {
                if ranks.slots.get(slot).copied().flatten().is_some_and(|(_, before)| before != standing) {
                    ranks.lose_turn(slot);
                }
                Some(slot)
            }
            None if is_last => Some(ranks.end).filter(|&slot| slot < ranks.slots.len()),
            None => None,
        };
        match slot {
            Some(slot) => {
                ranks.fill(slot, Some((id, standing)));
                ranks.lapses.extend(lapse.map(|lapse| (lapse, id)));
                if let Some(waiter) = self.waiters.get_mut(id) {
                    waiter.slot = slot;
                }
            }
            None => self.rank_anew(queue),
        }
    }

    /// Removes an entry that is about to leave its queue from the ranks, unless another one has replaced it.
    pub(super) fn leave_rank(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(id) else {
            return;
        };
        let ranks = self.queues.get_mut(waiter.queue).and_then(|queue| queue.ranks.as_mut());
        let Some(ranks) = ranks else {
            return;
        };
        if let Some(lapse) = lapse_of(id, waiter) {
            ranks.lapses.remove(&lapse);
        }
        if ranks.slots.get(waiter.slot).copied().flatten().is_some_and(|(entry, _)| entry == id) {
            if waiter.request.client.is_none() {
                ranks.lose_turn(waiter.slot);
            }
            ranks.fill(waiter.slot, None);
        }
    }

    /// Gives all entries of a queue new slots, and leaves at least as many free slots after them.
    fn rank_anew(&mut self, id: QueueId) {
        let entries: Vec<(WaiterId, Standing)> =
            self.in_order(id).map(|(id, waiter)| (id, Standing::of(waiter))).collect();
        let mut ranks = Ranks::new((2 * entries.len()).max(SLOTS_MIN));
        for (slot, entry) in entries.into_iter().enumerate() {
            ranks.fill(slot, Some(entry));
            if let Some(waiter) = self.waiters.get_mut(entry.0) {
                waiter.slot = slot;
                ranks.lapses.extend(lapse_of(entry.0, waiter).map(|lapse| (lapse, entry.0)));
            }
        }
        if let Some(queue) = self.queues.get_mut(id) {
            ranks.turns = queue.ranks.as_ref().map_or(0, |before| before.turns);
            queue.ranks = Some(Box::new(ranks));
        }
    }

    /// Returns all waiters of this queue, in order of arrival.
    pub fn in_order(&self, queue: QueueId) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let head = self.queues.get(queue).and_then(|queue| queue.head);
        std::iter::successors(head, |&id| self.waiters.get(id)?.behind)
            .filter_map(|id| Some((id, self.waiters.get(id)?)))
    }

    /// Returns the fault of the ranks of a queue, if there is one.
    pub(super) fn check_ranks(&self, id: QueueId) -> Result<(), String> {
        let Some(ranks) = self.queues.get(id).and_then(|queue| queue.ranks.as_ref()) else {
            let is_reserved = self.in_order(id).any(|(_, waiter)| waiter.request.client.is_none());
            return if is_reserved { Err(format!("queue {id:?} has no ranks")) } else { Ok(()) };
        };
        let (mut reserved, mut bars, mut lapses, mut end) = (0, 0, 0, 0);
        for (waiter, entry) in self.in_order(id) {
            let standing = Standing::of(entry);
            let slot = entry.slot;
            if slot < end || ranks.slots.get(slot).copied().flatten() != Some((waiter, standing)) {
                return Err(format!("{waiter:?} does not stand in its slot"));
            }
            let is_bar = standing == Standing::Bar;
            if ranks.reserved.below(slot) != reserved
                || ranks.bars.get(&slot).copied() != is_bar.then_some(waiter)
            {
                return Err(format!("{waiter:?} has the wrong rank"));
            }
            if let Some(lapse) = lapse_of(waiter, entry) {
                lapses += 1;
                if ranks.lapses.get(&lapse) != Some(&waiter) {
                    return Err(format!("{waiter:?} does not lapse"));
                }
            }
            *(if is_bar { &mut bars } else { &mut reserved }) += 1;
            end = slot + 1;
        }
        if (ranks.reserved.all, ranks.bars.len(), ranks.lapses.len()) != (reserved, bars, lapses)
            || end > ranks.end
        {
            return Err(format!("queue {id:?} counts entries that have left"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
