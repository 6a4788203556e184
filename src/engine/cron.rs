//! The engine looks at these ten times a second, because no event reports them:
//!
//! * the queues of slots that left this server without a key of ours,
//! * leases that closed connections kept alive,
//! * keys that somebody waits for, whose time to live may be over.

use crate::lock::tuning::Bound;
use std::hash::Hash;

use super::schedule;
use super::server::{Server, SlotOwner, To};
use super::state::{Alarm, State};
use crate::lock::effect::LockId;
use crate::lock::types::{LockKey, LockKeyBuf, Moment};

/// The number of keys that the server is asked about in one run of the pump.
const LOOKED_AT_MAX: Bound = Bound::of(256, 2);

/// How long a name may be that is copied ten times a second to see whether its time to live is over.
const NAME_LOOKED_AT_MAX: usize = 4096;

/// Of how many holds it is found out between two looks at the time whether connections kept them alive that this server
/// forgot when it stopped deciding.
const SORTED_AT_ONCE: Bound = Bound::of(256, 2);

/// Returns true if there is anything to look at; then the pump has to run. From the server's cron.
pub fn begin<B: Copy + Eq + Hash, A: Alarm>(state: &mut State<B, A>) -> bool {
    let has_queues = state.table.waiters() > 0;
    state.sweep.is_due |= has_queues;
    state.pump.decides && (has_queues || state.table.has_orphaned())
}

/// A run of the pump on a server that decides.
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

/// A kept lease that came with its slot stands still until the slot is ours: its connection may be open where it came
/// from. Returns whether any of those that were looked at runs from here on.
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

/// Goes on to find out which holds were kept alive by connections that this server has forgotten. `false`: there are
/// more.
pub fn classify_orphans<S: Server>(server: &S) -> bool {
    server.with(|state| !state.table.has_unbound() || state.table.sort_unbound(SORTED_AT_ONCE.get()))
        != Some(false)
}

/// A client that waits where a slot has left is sent on. A key whose time to live has ended goes when it is opened
/// (G6). The server may come to it late by itself, and nobody else may ask for it while all wait.
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
