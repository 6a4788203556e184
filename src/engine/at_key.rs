//! One step at one key: open, decide, carry out.

use super::admission::Admission;
use super::server::{Key, Server};
use super::{legacy, step};
use crate::command::error::Invalid;
use crate::lock::effect::{Effects, Existing, Step};
use crate::lock::table::Table;
use crate::lock::types::{LockKey, Moment, Now};

/// One step of a client's request at its key, for this owner.
pub fn ask<S: Server, R>(
    server: &S,
    name: S::Name<'_>,
    owner: &[u8],
    decide: impl FnOnce(&mut Table, Now, Existing, &mut Admission<'_, S>, &mut Effects) -> Step<R>,
) -> Option<R> {
    ask_and(server, name, Some(owner), decide, |_| ())
}

/// The same, with something to do before the step is carried out. Without an owner it is a fact, to which no string
/// is a lock.
#[inline(always)]
pub fn ask_and<S: Server, R>(
    server: &S,
    name: S::Name<'_>,
    owner: Option<&[u8]>,
    decide: impl FnOnce(&mut Table, Now, Existing, &mut Admission<'_, S>, &mut Effects) -> Step<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let now = server.now();
    let key = server.open(name);
    let existing = if owner.is_some() { legacy::find(server, &key, owner) } else { key.existing() };
    let mut admission = Admission::of_command(server);
    let (step, fx) = server.with(|state| {
        let step = decide(&mut state.table, now, existing, &mut admission, &mut state.fx);
        let fx = state.after_step(step.change, existing);
        (step, fx)
    })?;
    before(&step.reply);
    step::carry_out(server, name, key, existing, &step, fx);
    Some(step.reply)
}

/// One step of a fact at its key.
pub fn apply<S: Server>(
    server: &S,
    name: S::Name<'_>,
    decide: impl FnOnce(&mut Table, Moment, LockKey<'_>, Existing, &mut Effects) -> Step<()>,
) {
    let decide =
        |table: &mut Table, now: Now, existing: Existing, _: &mut Admission<'_, S>, fx: &mut Effects| {
            decide(table, now.boot, server.lock_key(name), existing, fx)
        };
    match ask_and(server, name, None, decide, |()| ()) {
        Some(()) => server.reply_ok(),
        None => internal_error(server),
    }
}

/// The arguments make no sense.
pub fn invalid<S: Server>(server: &S, invalid: &Invalid) {
    server.reply_error(&invalid.to_string());
}

/// What cannot be was so.
pub fn internal_error<S: Server>(server: &S) {
    server.reply_error("ERR internal error in redislock: the table is in use");
}
