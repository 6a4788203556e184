//! The usual requests, which need no search.

use crate::lock::locks::{LockId, Locks};
use crate::lock::queue::{Queue, Queues, WaiterId};
use crate::lock::tuning::TUNING;

/// The lock that a queue waits for, if its number still belongs to a hold at this key.
pub(super) fn lock_of(queue: &Queue, locks: &Locks) -> Option<LockId> {
    let lock_key = queue.lock_key.as_key();
    queue.lock.filter(|&lock| {
        let newest = locks.newest_hold(lock).and_then(|(holder, _)| locks.get(holder));
        newest.is_some_and(|lock| lock.is_at(lock_key))
    })
}

/// The usual case, at little cost: the holder of the lock waits for nothing.
pub(super) fn may_close_one(queues: &Queues, locks: &Locks, waiter: WaiterId) -> bool {
    const HOLDERS_LOOKED_AT: usize = TUNING.holders_looked_at;
    let Some(waiter) = queues.waiter(waiter) else {
        return false;
    };
    let Some(queue) = queues.queue(waiter.queue).filter(|queue| queue.multis == 0) else {
        return true;
    };
    let Some(lock) = lock_of(queue, locks) else {
        return false;
    };
    if locks.holders_of(lock) > HOLDERS_LOOKED_AT {
        return true;
    }
    locks.holders(lock).any(|(_, hold)| queues.all_of_owner(&hold.owner()).next().is_some())
}
