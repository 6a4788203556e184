//! Publishes events of locks in their order (G15), and logs locks that were broken.

use super::flags::Level;
use super::server::{Key, Server, SlotOwner, To};
use crate::command::error::shown;
use crate::lock::effect::Event;
use crate::lock::table::Notice;
use crate::lock::tuning::Bound;
use crate::lock::types::LockKeyBuf;

/// The number of events between two looks at the time.
const AT_ONCE: Bound = Bound::of(64, 2);

/// Publishes a keyspace event, after earlier ones that could not be published yet.
#[inline(always)]
pub fn publish<S: Server>(server: &S, name: S::Name<'_>, event: Event) {
    if server.shared().events_are_heard.is_set() && !holds_back(server, name, event) {
        server.publish(name, event);
    }
}

/// Returns true if an earlier event is still queued, and so queues this one.
#[inline(never)]
fn holds_back<S: Server>(server: &S, name: S::Name<'_>, event: Event) -> bool {
    let held_back = server.with(|state| {
        let has_notices = state.table.has_notices();
        if has_notices {
            state.table.publish_later(server.lock_key(name), event);
        }
        has_notices
    });
    held_back == Some(true)
}

/// Publishes events until none is left or the time of this turn `is_spent`, but at least one batch. Returns false if
/// there are more.
pub fn publish_some<S: Server>(server: &S, is_spent: impl Fn() -> bool) -> bool {
    // In a cluster, the slot shows whether a lock was broken or moved.
    let is_heard = server.shared().events_are_heard.is_set() || server.flags().is_cluster;
    for count in 1_usize.. {
        let Some(step) = next(server, is_heard) else {
            break;
        };
        if let Some(notice) = step {
            publish_late(server, notice);
        }
        if count.is_multiple_of(AT_ONCE.get()) && is_spent() {
            return false;
        }
    }
    log_broken(server);
    true
}

/// Returns the next event to publish, if this step produces one; `None` if nothing is left. While no client listens,
/// broken locks after the first are only counted: the log names the first.
fn next<S: Server>(server: &S, is_heard: bool) -> Option<Option<Notice>> {
    let next = server.with(|state| {
        let broken = state.pump.broken.as_mut().filter(|_| !is_heard);
        let Some((_, others)) = broken else {
            return state.table.next_notice();
        };
        let event = state.table.next_unheard()?;
        *others += u64::from(event == Some(Event::Broken));
        Some(None)
    });
    next.flatten()
}

fn publish_late<S: Server>(server: &S, notice: Notice) {
    let (lock_key, event) = (&notice.lock_key, notice.event);
    let is_broken = event == Event::Broken;
    if server.shared().events_are_heard.is_set() || is_broken && server.flags().is_cluster {
        let Some(name) = server.name_at(lock_key) else {
            return;
        };
        let name = S::name(&name);
        if is_broken && server.flags().is_cluster && has_moved(server, name, &notice) {
            let _ = server.with(|state| state.table.take_back_broken(&notice));
            return;
        }
        server.publish(name, event);
    }
    if is_broken {
        let _ = server.with(|state| note_broken(&mut state.pump.broken, notice.lock_key));
    }
}

/// Returns true if a lock was not broken, but left with its slot. It may be back, with a hold that it had.
fn has_moved<S: Server>(server: &S, name: S::Name<'_>, notice: &Notice) -> bool {
    if server.slot_owner(name) != SlotOwner::Ours {
        return true;
    }
    let Some(token) = notice.broken.1 else {
        return false;
    };
    let existing = server.open(name, To::Read).existing();
    server.with(|state| state.table.to_replicate(existing, token).is_some()) == Some(true)
}

fn note_broken(broken: &mut Option<(LockKeyBuf, u64)>, lock_key: LockKeyBuf) {
    match broken {
        Some((_, others)) => *others += 1,
        None => *broken = Some((lock_key, 0)),
    }
}

/// Logs locks that were broken from outside: the first by name, the others by count, so that a flush of a million
/// locks is one line.
fn log_broken<S: Server>(server: &S) {
    let broken = server.with(|state| state.pump.broken.take());
    let Some((lock_key, others)) = broken.flatten() else {
        return;
    };
    let (name, db) = (shown(&lock_key.name), lock_key.db);
    let others = match others {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let text = format!(
        "broken from outside: lock '{name}' in database {db}{others}: the key was deleted, overwritten, renamed or \
         moved while the lock was held"
    );
    server.log(Level::Notice, &text);
}
