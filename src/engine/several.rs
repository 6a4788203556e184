//! One step at several keys, and whether the keys of one command can be used together on a node of a cluster.
//!
//! Of some commands the server knows the first key alone. It has seen to the slot of that one. What it asks of several
//! keys is asked here.

use super::server::{Key, Server, To};
use super::{legacy, step};
use crate::command::error::{CROSS_SLOT, SLOT_IS_MOVING};
use crate::command::slot;
use crate::lock::effect::{Effects, Existing};
use crate::lock::table::{KeyRef, Steps, Table};

/// The reason why these cannot be used together; `None` if they can.
pub fn refusal<S: Server>(server: &S, names: &[S::Name<'_>]) -> Option<&'static str> {
    if names.len() < 2 || !server.shared().is_cluster() {
        None
    } else if !slot::are_of_one(names.iter().map(AsRef::as_ref)) {
        Some(CROSS_SLOT)
    } else {
        (!server.has_all(names)).then_some(SLOT_IS_MOVING)
    }
}

/// Carries out one step at several keys of the selected database, which all stay open until all are changed. Calls
/// `before` first.
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
        step::change(server, key, existing, step.change);
    }
    for ((&name, step), fx) in names.iter().zip(&steps).zip(effects) {
        step::announce(server, name, step.record, fx);
    }
    Some(reply)
}
