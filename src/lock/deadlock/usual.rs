//! What most requests need no search for.

use crate::lock::locks::{LockId, Locks};
use crate::lock::queue::{Queue, Queues, Waiter, WaiterId};
use crate::lock::types::Mode;

/// The lock that a queue waits for, if its number still stands for a hold at this key.
pub(super) fn lock_of(queue: &Queue, locks: &Locks) -> Option<LockId> {
    let lock_key = queue.lock_key.as_key();
    queue.lock.filter(|&lock| {
        let newest = locks.newest_hold(lock).and_then(|(holder, _)| locks.get(holder));
        newest.is_some_and(|lock| lock.is_at(lock_key))
    })
}

/// Whether the pump is about to decide a request anew, whose owner holds the lock in this way: a RESTORE brought that.
/// Then it waits no longer, or is searched for deadlocks itself.
pub(super) fn is_decided_anew(waiter: &Waiter, held_as: Option<Mode>) -> bool {
    let request = &waiter.request;
    let is_upgrade = request.is_upgrade && held_as == Some(Mode::Shared);
    // The owner of a reservation for more, or less, than it holds has to ask again.
    let is_asked = request.client.is_some() || held_as == Some(request.mode);
    waiter.multi.is_none() && !is_upgrade && is_asked
}

/// The same, if it is to stand ahead of everybody then.
pub(super) fn is_upgrade_anew(waiter: &Waiter, held_as: Option<Mode>) -> bool {
    let is_other = (held_as, waiter.request.mode) == (Some(Mode::Shared), Mode::Exclusive);
    is_other && is_decided_anew(waiter, held_as)
}

/// The usual case, at little cost: the holder of the lock waits for nothing.
pub(super) fn may_close_one(queues: &Queues, locks: &Locks, waiter: WaiterId) -> bool {
    const HOLDERS_LOOKED_AT: usize = if cfg!(test) { 2 } else { 8 };
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
