//! Checks ten times a second what no event reports:
//!
//! * the queues of slots that left this server without a key of ours,
//! * leases that closed connections kept alive,
//! * keys with waiters, whose time to live may have ended.

use crate::lock::tuning::Bound;
use std::hash::Hash;

use super::schedule;
use super::server::{Server, SlotOwner, To};
use super::state::{Alarm, State};
use crate::lock::effect::LockId;
use crate::lock::types::{LockKey, LockKeyBuf, Moment};

/// The number of keys that one run of the pump asks the server about.
const LOOKED_AT_MAX: Bound = Bound::of(256, 2);

/// The longest name that is copied ten times a second to check the time to live of its key.
const NAME_LOOKED_AT_MAX: usize = 4096;

/// The number of unbound holds that are classified between two looks at the time.
const SORTED_AT_ONCE: Bound = Bound::of(256, 2);

/// Returns true if there is anything to check, so that the pump must run. Called from the server's cron.
pub fn begin<B: Copy + Eq + Hash, A: Alarm>(state: &mut State<B, A>) -> bool {
    let has_queues = state.table.waiters() > 0;
    state.sweep.is_due |= has_queues;
    state.pump.decides && (has_queues || state.table.has_orphaned())
}

/// The part of a run of the pump, on a server that decides.
pub fn go<S: Server>(server: &S, now: Moment, is_paused: bool) {
    let has_more = if server.shared().is_cluster() {
        let_orphans_run(server, now)
    } else {
        server.with(|state| state.table.let_orphaned_run(now)) == Some(false)
    };
    if has_more {
        // There may be very many.
        schedule::request(server);
    }
    if server.with(|state| std::mem::take(&mut state.sweep.is_due)) == Some(true) {
        look_at_queues(server, is_paused);
    }
}

/// Lets leases of orphaned holds run. A lease that a connection kept alive elsewhere stays paused until its slot
/// belongs to this server: the connection may still be open there. Returns true if any started to run.
fn let_orphans_run<S: Server>(server: &S, now: Moment) -> bool {
    let orphans = server.with(|state| {
        if !state.table.has_orphaned() {
            return Vec::new();
        }
        let most = state.sweep.most.unwrap_or_else(|| LOOKED_AT_MAX.get());
        let orphans = state.table.orphaned(state.sweep.orphans, most);
        let last = orphans.last().filter(|_| orphans.len() == most);
        state.sweep.orphans = last.map_or(0, |(lock, _)| lock.index() + 1);
        orphans
    });
    let is_ours = |(_, lock_key): &(LockId, LockKeyBuf)| has_not_left(server, lock_key);
    let ours: Vec<LockId> = orphans.into_iter().flatten().filter(is_ours).map(|(lock, _)| lock).collect();
    let _ = server.with(|state| state.table.let_run(&ours, now));
    !ours.is_empty()
}

/// Classifies unbound holds: orphaned, because this server has forgotten their connections, or not. Returns false if
/// there are more.
pub fn classify_orphans<S: Server>(server: &S) -> bool {
    server.with(|state| !state.table.has_unbound() || state.table.sort_unbound(SORTED_AT_ONCE.get()))
        != Some(false)
}

/// Redirects waiters whose slot has left. Opens keys whose time to live has ended, which removes them (G6): the
/// server may be slow to remove them itself, and no client opens them while all wait.
#[inline(never)] // the benchmarks leave it out by its name
fn look_at_queues<S: Server>(server: &S, is_paused: bool) {
    let is_cluster = server.shared().is_cluster();
    let lock_keys = server.with(|state| {
        let most = state.sweep.most.unwrap_or_else(|| LOOKED_AT_MAX.get());
        let lock_keys = state.table.keys_waited_for(&mut state.sweep.queues, most).into_iter();
        let is_looked_at = |lock_key: &LockKey<'_>| is_cluster || lock_key.name.len() <= NAME_LOOKED_AT_MAX;
        lock_keys.filter(is_looked_at).map(|lock_key| lock_key.to_owned()).collect::<Vec<_>>()
    });
    for lock_key in lock_keys.into_iter().flatten() {
        let Some(name) = server.name_at(&lock_key) else {
            continue;
        };
        match server.slot_owner(S::name(&name)) {
            SlotOwner::Others => _ = server.with(|state| state.table.note(lock_key.as_key())),
            SlotOwner::Ours if !is_paused => drop(server.open(S::name(&name), To::Write)),
            SlotOwner::Ours | SlotOwner::Unknown => {}
        }
    }
}

fn has_not_left<S: Server>(server: &S, lock_key: &LockKeyBuf) -> bool {
    server.name_at(lock_key).is_none_or(|name| server.slot_owner(S::name(&name)) != SlotOwner::Others)
}
