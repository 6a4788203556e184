//! Carries out what a step decided, in one fixed order: the key, the record for replicas and files, the
//! events, the answers, the timer.

use super::api::{Ctx, Key, Str};
use super::records::{replicate_delete, replicate_ended, replicate_hold, replicate_life};
use super::state::{self, State, lock_type};
use super::{blocking, clock, host, outbox};
use crate::lock::effect::{Change, Effect, Effects, Event, Found, LockId, Record, Step};
use crate::lock::types::Mode;
use crate::sabotage::{self, Rule};

/// Carries out a step and its effects on an open key.
///
/// The key is closed before anything is published: whoever listens may use it.
#[inline(always)]
pub(crate) fn step<R>(ctx: &Ctx, name: Str<'_>, key: Key<'_>, found: Found, step: &Step<R>, fx: Effects) {
    if let (Change::Lives(_), Record::Lives(ms)) = (step.change, step.record) {
        return lives(ctx, name, key, ms, fx);
    }
    change(key, found, step.change);
    tell(ctx, name, step.record, fx);
}

/// The key lives until the same millisecond here and wherever that is told.
#[cold]
fn lives(ctx: &Ctx, name: Str<'_>, key: Key<'_>, ms: u64, fx: Effects) {
    let until = wall_ms_in(ms);
    key.live_until(until);
    drop(key);
    replicate_life(ctx, name, until);
    tell(ctx, name, Record::Nothing, fx);
}

/// What becomes of the key.
#[inline(always)]
pub(crate) fn change(key: Key<'_>, found: Found, change: Change) {
    match change {
        Change::Nothing => {}
        Change::Signalled | Change::Touched => key.touch(),
        Change::Renewed => {
            // The time to live that a user gave to the hold before is not the new one's.
            key.persist();
            key.touch();
        }
        Change::Lives(ms) => key.live_until(wall_ms_in(ms)),
        Change::Stored(lock) => key.store(lock_type(), lock),
        Change::Deleted => {
            // Its lock is nobody's any more; what the server would tell us about it is known.
            state::let_go(found, || key.delete());
        }
    }
    drop(key);
}

/// What others are told of it.
#[inline(always)]
pub(crate) fn tell(ctx: &Ctx, name: Str<'_>, first: Record, mut fx: Effects) {
    record(ctx, name, first);
    if !fx.is_drained() {
        fx.told().for_each(|told| record(ctx, name, told));
    }
    if let Some(event) = fx.take_first() {
        publish(ctx, name, event);
    }
    if !fx.is_drained() {
        effects(ctx, Some(name), fx);
    }
}

#[inline]
pub(crate) fn record(ctx: &Ctx, name: Str<'_>, record: Record) {
    match record {
        Record::Nothing => {}
        Record::AsAsked => ctx.replicate_as_asked(),
        Record::Deleted => replicate_delete(ctx, name),
        Record::Lives(ms) => replicate_life(ctx, name, wall_ms_in(ms)),
        Record::Ended(_) if sabotage::removes(Rule::Replicas) => {}
        Record::Ended(token) => replicate_ended(ctx, name, token.get()),
        Record::Hold(hold) => record_hold(ctx, name, hold, None),
        Record::Member(lock, hold) => record_hold(ctx, name, hold, Some(lock)),
    }
}

/// The moment on the wall clock so long from now, in milliseconds: what the server counts the life of keys by.
fn wall_ms_in(ms: u64) -> u64 {
    (clock::wall_us() / 1_000).saturating_add(ms)
}

#[cold]
fn record_hold(ctx: &Ctx, name: Str<'_>, hold: LockId, beside: Option<LockId>) {
    let now = clock::boot();
    let saved = state::with(|state| {
        let mode = beside.map_or(Some(Mode::Exclusive), |lock| state.table.mode(lock))?;
        Some((mode, state.table.save_hold(now, hold)?))
    });
    if let Some((mode, hold)) = saved.flatten() {
        replicate_hold(ctx, name, mode, &hold);
    }
}

/// Carries out effects alone, and gives the buffer back.
pub(crate) fn effects(ctx: &Ctx, name: Option<Str<'_>>, mut fx: Effects) {
    if let (Some(event), Some(name)) = (fx.take_first(), name) {
        publish(ctx, name, event);
    }
    for effect in fx.drain() {
        match effect {
            Effect::Publish(event) => {
                if let Some(name) = name {
                    publish(ctx, name, event);
                }
            }
            // Told before.
            Effect::Tell(_) => {}
            Effect::Answer { waiter, client, answer } => blocking::send(waiter, client, answer),
        }
    }
    let _ = state::with(|state| state.fx = fx);
}

/// Publishes a keyspace event, behind those that could not be published yet.
#[inline(always)]
pub(crate) fn publish(ctx: &Ctx, name: Str<'_>, event: Event) {
    if host::events_are_heard() && !outbox::holds_back(ctx, name, event) {
        publish_now(ctx, name, event);
    }
}

/// Publishes a keyspace event at once.
pub(super) fn publish_now(ctx: &Ctx, name: Str<'_>, event: Event) {
    let text = match event {
        Event::Acquired => c"lock.acquired",
        Event::Released => c"lock.released",
        Event::Expired => c"lock.expired",
        Event::Broken => c"lock.broken",
    };
    ctx.publish(text, name);
}

/// Sees to it that the pump runs when the next thing ends.
pub(crate) fn rearm() {
    let _ = state::with(State::rearm);
}
