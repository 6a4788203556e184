//! Carries out what a step decided, in one fixed order: the key, the record for replicas and files, the
//! events, the answers, the timer.

use super::api::{Ctx, Key, Str, replicate_ended, replicate_hold};
use super::blocking;
use super::clock;
use super::state::{self, lock_type};
use crate::lock::effect::{Change, Effect, Event, Record, Step};

/// Carries out a step and its effects on an open key.
///
/// The key is closed before anything is published: whoever listens may use it.
pub(crate) fn step<R>(ctx: &Ctx, name: Str<'_>, key: Key<'_>, step: &Step<R>, fx: Vec<Effect>) {
    match step.change {
        Change::Nothing => {}
        Change::Touched => ctx.signal_modified(name),
        Change::Renewed => {
            // The time to live that a user gave to the hold before is not the new one's.
            key.persist();
            ctx.signal_modified(name);
        }
        Change::Stored(lock) => {
            key.store(lock_type(), lock);
            ctx.signal_modified(name);
        }
        Change::Deleted => {
            key.delete();
            ctx.signal_modified(name);
        }
    }
    drop(key);
    record(ctx, name, step.record);
    effects(ctx, Some(name), fx);
    rearm();
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
pub(crate) fn effects(ctx: &Ctx, name: Option<Str<'_>>, mut fx: Vec<Effect>) {
    for effect in fx.drain(..) {
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
    let _ = state::with(|state| {
        let next = state.table.next_deadline(state.pump.decides);
        state.timer.wake_at(next);
    });
}
