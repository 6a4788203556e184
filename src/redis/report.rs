//! What LOCK.INFO and LOCK.HELDBY show.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{Ctx, Key, Str, is_connected, place_of};
use super::handlers::{internal_error, invalid};
use super::state::{self, lock_type};
use super::{clock, legacy};
use crate::command::{error, heldby, info};
use crate::lock::effect::Found;
use crate::lock::table::Description;
use crate::lock::types::{Mode, Token};

pub(super) fn asked_to_inform(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let waiters_max = match info::parse(args) {
        Ok(waiters_max) => waiters_max,
        Err(error) => return invalid(ctx, &error),
    };
    let key = Key::open_read(ctx, name);
    let found = legacy::look(&key, key.found(lock_type()), None);
    let place = place_of(ctx, name);
    let now = clock::boot();
    let legacy_owner = if matches!(found, Found::Legacy(_)) { key.string() } else { Vec::new() };
    state::with(|state| match state.table.describe(now, place, found, &legacy_owner, waiters_max) {
        Some(lock) => describe(ctx, &lock),
        None if found == Found::Other => ctx.reply_error(error::WRONG_TYPE),
        None => ctx.reply_null(),
    })
    .unwrap_or_else(|| internal_error(ctx))
}

/// How a lock is held, in a word.
const fn kind(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Limit(_) => "limit",
    }
}

fn limit(mode: Mode) -> Option<u64> {
    match mode {
        Mode::Limit(limit) => Some(u64::from(limit)),
        Mode::Exclusive | Mode::Shared => None,
    }
}

/// The reply of LOCK.INFO (SPEC 2).
fn describe(ctx: &Ctx, lock: &Description<'_>) -> c_int {
    let field = |name: &str| ctx.reply_bytes(name.as_bytes());
    let maybe = |number: Option<u64>| match number {
        Some(number) => ctx.reply_integer(number),
        None => ctx.reply_null(),
    };
    ctx.reply_map(5);
    field("kind");
    // A lock that is only waited for is of the kind of those who wait.
    field(kind(lock.mode));
    field("limit");
    maybe(limit(lock.mode));
    field("holders");
    ctx.reply_array(lock.holds.len());
    for hold in &lock.holds {
        ctx.reply_map(8);
        field("owner");
        ctx.reply_bytes(&hold.owner);
        field("token");
        maybe(hold.token.map(Token::get));
        field("lease-left-ms");
        ctx.reply_integer(hold.left_ms);
        field("held-ms");
        maybe(hold.held_ms);
        field("count");
        ctx.reply_integer(u64::from(hold.count));
        field("client-id");
        // A connection that is gone, or was only a script's, is nobody to look for.
        maybe(hold.client.filter(|&client| is_connected(client)).map(|client| client.0));
        field("keepalive");
        ctx.reply_bool(hold.tie.is_paused());
        field("ephemeral-ms");
        maybe(hold.tie.ephemeral_ms);
    }
    field("waiters");
    ctx.reply_integer(lock.waiters as u64);
    field("queue");
    ctx.reply_array(lock.line.len());
    for waiter in &lock.line {
        ctx.reply_map(5);
        field("owner");
        ctx.reply_bytes(waiter.owner);
        field("mode");
        field(kind(waiter.mode));
        field("waited-ms");
        ctx.reply_integer(waiter.waited_ms);
        field("state");
        field(if waiter.client.is_some() { "blocked" } else { "queued" });
        field("client-id");
        maybe(waiter.client.map(|client| client.0));
    }
    raw::REDISMODULE_OK as c_int
}

/// LOCK.HELDBY: all that this owner holds and waits for, in all databases.
pub(super) fn asked_for_owner(ctx: &Ctx, owner: Str<'_>) -> c_int {
    let owner = match heldby::parse(&owner) {
        Ok(owner) => owner,
        Err(error) => return invalid(ctx, &error),
    };
    let now = clock::boot();
    let all = state::with(|state| state.table.held_by(now, owner));
    let Some(all) = all else {
        return internal_error(ctx);
    };
    ctx.reply_array(all.len());
    for one in all {
        ctx.reply_array(5);
        ctx.reply_bytes(&one.place.name);
        ctx.reply_bytes(if one.held.is_some() { b"held" } else { b"waiting" });
        ctx.reply_bytes(kind(one.mode).as_bytes());
        match one.held {
            Some((token, left_ms)) => {
                ctx.reply_integer(token.get());
                ctx.reply_integer(left_ms)
            }
            None => {
                ctx.reply_null();
                ctx.reply_null()
            }
        };
    }
    raw::REDISMODULE_OK as c_int
}
