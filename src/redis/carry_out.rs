//! Carries out what a step decided, in one fixed order: the key, the record for replicas and files, the
//! events, the answers, the timer.

use super::api::{Ctx, Key, Str, replicate_ended, replicate_hold};
use super::state::{self, State, lock_type};
use super::{blocking, clock, settings};
use crate::lock::effect::{Change, Effect, Effects, Event, Found, Record, Step};

/// Carries out a step and its effects on an open key.
///
/// The key is closed before anything is published: whoever listens may use it.
pub(crate) fn step<R>(ctx: &Ctx, name: Str<'_>, key: Key<'_>, found: Found, step: &Step<R>, mut fx: Effects) {
    match step.change {
        Change::Nothing => {}
        Change::Touched => key.touch(),
        Change::Renewed => {
            // The time to live that a user gave to the hold before is not the new one's.
            key.persist();
            key.touch();
        }
        Change::Stored(lock) => key.store(lock_type(), lock),
        Change::Deleted => {
            // Its lock is nobody's any more; what the server would tell us about it is known.
            state::let_go(found, || key.delete());
        }
    }
    drop(key);
    record(ctx, name, step.record);
    if let Some(event) = fx.take_first() {
        publish(ctx, name, event);
    }
    if !fx.is_drained() {
        effects(ctx, Some(name), fx);
    }
}

fn record(ctx: &Ctx, name: Str<'_>, record: Record) {
    match record {
        Record::Nothing => {}
        Record::AsAsked => ctx.replicate_as_asked(),
        Record::Ended(token) => replicate_ended(ctx, name, token.get()),
        Record::Hold(lock) => {
            let now = clock::boot();
            let saved = state::with(|state| state.table.save(now, lock));
            if let Some(hold) = saved.flatten() {
                replicate_hold(ctx, name, hold.token.get(), hold.left_ms, &hold.owner);
            }
        }
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
            Effect::Answer { waiter, client, answer } => blocking::send(waiter, client, answer),
        }
    }
    let _ = state::with(|state| state.fx = fx);
}

/// Publishes a keyspace event.
pub(crate) fn publish(ctx: &Ctx, name: Str<'_>, event: Event) {
    if !settings::events_are_heard() {
        return;
    }
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
