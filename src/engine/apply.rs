//! Applies the outcome of a step in one fixed order: the key, all records for replicas and files, then the rest.
//! Events and answers go out in the order of the step. `State::after_step` sets the alarm before that.

use super::blocked_clients::Reply;
use super::server::{Fact, Key, Server};
use super::{confirm, outbox, replies};
use crate::lock::effect::{Answer, Change, Effect, Effects, Existing, LockId, Record, Step, WaiterId};
use crate::lock::types::{ClientId, Mode};

/// Applies a step and its effects to an open key.
///
/// The key is closed before anything is published, because a listener may use it.
#[inline(always)]
pub fn carry_out<S: Server, R>(
    server: &S,
    name: S::Name<'_>,
    key: S::Key<'_>,
    existing: Existing,
    step: &Step<R>,
    fx: Effects,
) {
    if let (Change::Lives(_), Record::Lives(ms)) = (step.change, step.record) {
        return set_and_replicate_pexpireat(server, name, key, ms, fx);
    }
    change(server, key, existing, step.change);
    announce(server, name, step.record, fx);
}

/// Sets the expiry of the key to the same millisecond here and on replicas.
#[cold]
fn set_and_replicate_pexpireat<S: Server>(
    server: &S,
    name: S::Name<'_>,
    key: S::Key<'_>,
    ms: u64,
    fx: Effects,
) {
    let until = wall_ms_in(server, ms);
    key.live_until(until);
    drop(key);
    server.replicate(Fact::Lives(name, until));
    announce(server, name, Record::Nothing, fx);
}

/// Applies the change of the key.
#[inline(always)]
pub fn change<S: Server>(server: &S, key: S::Key<'_>, existing: Existing, change: Change) {
    match change {
        Change::Nothing => {}
        Change::Signalled | Change::Touched => key.touch(),
        Change::Renewed => {
            // A new hold does not inherit a time to live that a user gave to the previous one.
            key.persist();
            key.touch();
        }
        Change::Lives(ms) => key.live_until(wall_ms_in(server, ms)),
        Change::Stored(lock) => {
            key.store(lock);
            server.shared().note_stored();
        }
        Change::Deleted => match existing {
            // The lock has no holder any more, so the server's notice of the deletion says nothing new.
            Existing::Lock(lock) => server.shared().let_go(lock, || key.delete()),
            _ => key.delete(),
        },
    }
    drop(key);
}

/// Writes the records of the step, and publishes its events.
#[inline(always)]
pub fn announce<S: Server>(server: &S, name: S::Name<'_>, first: Record, mut fx: Effects) {
    replicate(server, name, first);
    if !fx.is_drained() {
        fx.records().for_each(|record| replicate(server, name, record));
    }
    if let Some(event) = fx.take_first() {
        outbox::publish(server, name, event);
    }
    if !fx.is_drained() {
        effects(server, Some(name), fx);
    }
}

/// Writes the step's own record for replicas and files.
#[inline(always)]
pub fn replicate<S: Server>(server: &S, name: S::Name<'_>, record: Record) {
    match record {
        Record::Nothing => {}
        Record::AsAsked => server.replicate(Fact::AsAsked),
        Record::Deleted => server.replicate(Fact::Deleted(name)),
        Record::Lives(ms) => server.replicate(Fact::Lives(name, wall_ms_in(server, ms))),
        Record::Ended(token) => server.replicate(Fact::Ended(name, token)),
        Record::Hold(hold) => replicate_hold(server, name, hold, None),
        Record::Holder(lock, hold) => replicate_hold(server, name, hold, Some(lock)),
    }
}

/// Returns the wall clock in `ms` milliseconds, in milliseconds. The server expires keys by that clock.
fn wall_ms_in<S: Server>(server: &S, ms: u64) -> u64 {
    (server.wall_us() / 1_000).saturating_add(ms)
}

#[cold]
fn replicate_hold<S: Server>(server: &S, name: S::Name<'_>, hold: LockId, list: Option<LockId>) {
    let now = server.boot();
    let saved = server.with(|state| {
        let mode = list.map_or(Some(Mode::Exclusive), |lock| state.table.mode(lock))?;
        Some((mode, state.table.save_hold(now, hold)?))
    });
    if let Some((mode, hold)) = saved.flatten() {
        server.replicate(Fact::Hold(name, mode, &hold));
    }
}

/// Applies effects without a key, and gives the buffer back.
pub fn effects<S: Server>(server: &S, name: Option<S::Name<'_>>, mut fx: Effects) {
    if let (Some(event), Some(name)) = (fx.take_first(), name) {
        outbox::publish(server, name, event);
    }
    for effect in fx.drain() {
        match effect {
            Effect::Publish(event) => {
                if let Some(name) = name {
                    outbox::publish(server, name, event);
                }
            }
            // Replicated already.
            Effect::Replicate(_) => {}
            Effect::Answer { waiter, client, answer } => send(server, waiter, client, answer),
        }
    }
    let _ = server.with(|state| state.fx = fx);
}

/// Answers a waiter, or lets it wait for replicas if its grant must be confirmed.
fn send<S: Server>(server: &S, waiter: WaiterId, id: ClientId, answer: Answer) {
    if let Some(blocked) = server.with(|state| state.clients.take_waiter(waiter)).flatten() {
        if server.shared().holds_back.is_set() {
            confirm::hold_back_waiter(server, blocked, id, answer);
        } else {
            replies::answer(server, blocked, id, Reply::Answer(answer));
        }
    }
}

/// Runs a step of the table that concerns no key, and applies its effects.
pub fn effects_of<S: Server>(server: &S, step: impl FnOnce(&mut crate::lock::table::Table, &mut Effects)) {
    let fx = server.with(|state| {
        let mut fx = std::mem::take(&mut state.fx);
        step(&mut state.table, &mut fx);
        fx
    });
    if let Some(fx) = fx {
        effects(server, None, fx);
    }
}
