//! One step at one key: open, decide, carry out.

use super::admission::Gate;
use super::server::{Key, Server};
use super::{legacy, step};
use crate::command::error::Invalid;
use crate::lock::effect::{Effects, Found, Step};
use crate::lock::table::Table;
use crate::lock::types::{Moment, Now, Place};

/// One step of a client's request at its key, for this owner.
pub fn ask<S: Server, R>(
    server: &S,
    name: S::Name<'_>,
    owner: &[u8],
    decide: impl FnOnce(&mut Table, Now, Found, &mut Gate<'_, S>, &mut Effects) -> Step<R>,
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
    decide: impl FnOnce(&mut Table, Now, Found, &mut Gate<'_, S>, &mut Effects) -> Step<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let now = server.now();
    let key = server.open(name);
    let found = if owner.is_some() { legacy::find(server, &key, owner) } else { key.found() };
    let mut gate = Gate::of_command(server);
    let (step, fx) = server.with(|state| {
        let step = decide(&mut state.table, now, found, &mut gate, &mut state.fx);
        let fx = state.settle(step.change, found);
        (step, fx)
    })?;
    before(&step.reply);
    step::carry_out(server, name, key, found, &step, fx);
    Some(step.reply)
}

/// One step of a fact at its key.
pub fn apply<S: Server>(
    server: &S,
    name: S::Name<'_>,
    decide: impl FnOnce(&mut Table, Moment, Place<'_>, Found, &mut Effects) -> Step<()>,
) {
    let decide = |table: &mut Table, now: Now, found: Found, _: &mut Gate<'_, S>, fx: &mut Effects| {
        decide(table, now.boot, server.place(name), found, fx)
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
