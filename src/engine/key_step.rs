//! Steps at one key: open, decide, apply. And steps at several keys, if a node of a cluster allows them together.
//!
//! The server knows only the first key of some commands, and has checked only the slot of that key. The other keys
//! are checked here.

use super::admission::Admission;
use super::server::{Key, Part, Server, To};
use super::{apply, legacy, outbox};
use crate::command::error::{CROSS_SLOT, Invalid, SLOT_IS_MOVING};
use crate::command::slot;
use crate::lock::effect::{Effects, Event, Existing, Step};
use crate::lock::table::{KeyRef, Steps, Table};
use crate::lock::types::{Moment, Now};

/// Runs one step of a client's request at its key, for this owner.
pub fn ask<S: Server, R>(
    server: &S,
    name: S::Name<'_>,
    owner: &[u8],
    decide: impl FnOnce(&mut Table, Now, Existing, &mut Admission<'_, S>, &mut Effects) -> Step<R>,
) -> Option<R> {
    ask_and(server, name, Some(owner), decide, |_| ())
}

/// Calls `before`, and then runs one step at its key as [`ask`] does. Without an owner the step is a fact, for which
/// no string counts as a lock.
#[inline(always)]
pub fn ask_and<S: Server, R>(
    server: &S,
    name: S::Name<'_>,
    owner: Option<&[u8]>,
    decide: impl FnOnce(&mut Table, Now, Existing, &mut Admission<'_, S>, &mut Effects) -> Step<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    run_step(server, name, open(server, name, owner), decide, before)
}

/// A key that is open for a step.
pub struct Opened<'a, S: Server + 'a> {
    now: Now,
    key: S::Key<'a>,
    existing: Existing,
}

/// Opens a key for a step.
#[inline(always)]
pub fn open<'a, S: Server>(server: &'a S, name: S::Name<'_>, owner: Option<&[u8]>) -> Opened<'a, S> {
    let now = server.now();
    let key = server.open(name, To::Write);
    let existing = if owner.is_some() { legacy::find(server, &key, owner) } else { key.existing() };
    Opened { now, key, existing }
}

/// Runs a step of a client's request that the table decides at a glance, and that publishes one event: it needs no
/// buffer of effects. `Err` if nothing was done, and [`run_step`] must decide.
#[inline(always)]
pub fn try_at_once<'a, S: Server, R>(
    server: &'a S,
    name: S::Name<'_>,
    opened: Opened<'a, S>,
    decide: impl FnOnce(&mut Table, Now, Existing) -> Option<(Step<R>, Event)>,
) -> Result<R, Opened<'a, S>> {
    let Opened { now, key, existing } = opened;
    let decided = server.with(|state| {
        let decided = decide(&mut state.table, now, existing)?;
        state.after_change(decided.0.change, existing);
        Some(decided)
    });
    let Some((step, event)) = decided.flatten() else {
        return Err(Opened { now, key, existing });
    };
    apply::change(server, key, existing, step.change);
    apply::replicate(server, name, step.record);
    outbox::publish(server, name, event);
    Ok(step.reply)
}

/// Runs one step at an open key.
#[inline(always)]
pub fn run_step<'a, S: Server, R>(
    server: &'a S,
    name: S::Name<'_>,
    Opened { now, key, existing }: Opened<'a, S>,
    decide: impl FnOnce(&mut Table, Now, Existing, &mut Admission<'_, S>, &mut Effects) -> Step<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let mut admission = Admission::of_command(server);
    let (step, fx) = server.with(|state| {
        let step = decide(&mut state.table, now, existing, &mut admission, &mut state.fx);
        let fx = state.after_step(step.change, existing);
        (step, fx)
    })?;
    before(&step.reply);
    apply::carry_out(server, name, key, existing, &step, fx);
    Some(step.reply)
}

/// Runs one step of a fact at its key.
pub fn apply<S: Server>(
    server: &S,
    name: S::Name<'_>,
    decide: impl FnOnce(&mut Table, Moment, KeyRef<'_>, &mut Effects) -> Step<()>,
) {
    let decide =
        |table: &mut Table, now: Now, existing: Existing, _: &mut Admission<'_, S>, fx: &mut Effects| {
            decide(table, now.boot, KeyRef { lock_key: server.lock_key(name), existing }, fx)
        };
    match ask_and(server, name, None, decide, |()| ()) {
        Some(()) => server.reply(Part::Ok),
        None => internal_error(server),
    }
}

/// Replies that the arguments are invalid.
pub fn invalid<S: Server>(server: &S, invalid: &Invalid) {
    server.reply(Part::Error(&invalid.to_string()));
}

/// Returns why these keys cannot be used together; `None` if they can.
pub fn refusal_of_keys<S: Server>(server: &S, names: &[S::Name<'_>]) -> Option<&'static str> {
    if names.len() < 2 || !server.shared().is_cluster() {
        None
    } else if !slot::are_of_one(names.iter().map(AsRef::as_ref)) {
        Some(CROSS_SLOT)
    } else {
        (!server.has_all(names)).then_some(SLOT_IS_MOVING)
    }
}

/// Runs one step at several keys of the selected database. All stay open until all are changed. Calls `before` first.
pub fn at_all<S: Server, R>(
    server: &S,
    names: &[S::Name<'_>],
    is_decided_here: bool,
    decide: impl FnOnce(&mut Table, &[KeyRef<'_>], &mut [Effects]) -> Steps<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let keys: Vec<S::Key<'_>> = names.iter().map(|&name| server.open(name, To::Write)).collect();
    let refs: Vec<KeyRef<'_>> = names
        .iter()
        .zip(&keys)
        .map(|(&name, key)| {
            let existing = if is_decided_here { legacy::find(server, key, None) } else { key.existing() };
            KeyRef { lock_key: server.lock_key(name), existing }
        })
        .collect();
    let mut effects: Vec<Effects> = names.iter().map(|_| Effects::default()).collect();
    let (reply, steps) = server.with(|state| {
        let (reply, steps) = decide(&mut state.table, &refs, &mut effects);
        for (step, key_ref) in steps.iter().zip(&refs) {
            state.after_step(step.change, key_ref.existing);
        }
        (reply, steps)
    })?;
    before(&reply);
    let existing: Vec<Existing> = refs.iter().map(|key_ref| key_ref.existing).collect();
    for ((key, existing), step) in keys.into_iter().zip(existing).zip(&steps) {
        apply::change(server, key, existing, step.change);
    }
    for ((&name, step), fx) in names.iter().zip(&steps).zip(effects) {
        apply::announce(server, name, step.record, fx);
    }
    Some(reply)
}

/// Replies that an invariant was violated.
pub fn internal_error<S: Server>(server: &S) {
    server.reply(Part::Error("ERR internal error in redislock: the table is in use"));
}
