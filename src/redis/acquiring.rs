//! LOCK.ACQUIRE: what a client of a primary asks for, and what the stream tells.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{Ctx, Str, is_connected, place_of};
use super::blocking::Told;
use super::gate::Gate;
use super::handlers::{ask_and, internal_error, invalid, tell};
use super::{blocking, confirm, ffi, host, pump, server, settings, state};
use crate::command::acquire::{self, WaitFor};
use crate::command::args::Bounds;
use crate::command::error;
use crate::lock::effect::{Answer, Effects};
use crate::lock::table::{Acquired, Ask, Block, Granted, Table, Wait};
use crate::lock::types::{ClientId, Mode, Moment, Now, PlaceBuf, Tie, Token};
use crate::sabotage::{self, Rule};

pub(super) fn asked_to_acquire(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let request = match acquire::parse(args, &settings::bounds()) {
        Ok(request) => request,
        Err(error) => return invalid(ctx, &error),
    };
    if refuses_for_eviction(ctx) {
        return ctx.reply_error(error::MAY_EVICT);
    }
    if settings::confirms() {
        if let Some(reason) = confirm::refusal_of_grant(ctx, request.tie) {
            return ctx.reply_error(reason);
        }
        return acquire_as::<false>(ctx, name, &request);
    }
    // The usual request is worth a copy of the code that knows what it does not ask for.
    if request.is_plain() {
        acquire_as::<true>(ctx, name, &request)
    } else {
        acquire_as::<false>(ctx, name, &request)
    }
}

fn acquire_as<const IS_PLAIN: bool>(ctx: &Ctx, name: Str<'_>, request: &acquire::Acquire<'_>) -> c_int {
    let acquire::Acquire { lease_ms, .. } = *request;
    let (mode, is_reentrant, tie, wait) = if IS_PLAIN {
        (Mode::Exclusive, false, Tie::NONE, None)
    } else {
        (request.mode, request.is_reentrant, request.tie, request.wait)
    };
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let owner =
        request.owner.unwrap_or_else(|| uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text).as_bytes());
    let client = ctx.client();
    if !tie.is_none() && own_connection(ctx, client).is_none() {
        return ctx.reply_error(error::NO_CONNECTION);
    }
    let cannot_confirm = !IS_PLAIN && confirm::is_impossible();
    let mut is_parked = false;
    // A waiter is given its client before anything is published: whoever listens may free the lock.
    let park = |reply: &Acquired| {
        if let Acquired::Waiting(waiter) = *reply {
            is_parked = blocking::park(ctx, waiter);
        }
    };
    let step = |table: &mut Table, now: Now, found, gate: &mut Gate<'_>, fx: &mut Effects| {
        let ask = Ask {
            owner,
            owner_is_minted: request.owner.is_none(),
            lease_ms,
            mode,
            is_reentrant,
            tie,
            wait: wait.and_then(|wait| wait_until(ctx, now.boot, client, wait)),
            client,
            bind_to: bind_to(ctx, client, table.may_have_ties() || !tie.is_none()),
            must_be_named: request.owner.is_none() || server::is_cluster(),
            cannot_confirm,
        };
        table.acquire(now, place_of(ctx, name), found, &ask, &mut |who| gate.admit(who), fx)
    };
    let reply = ask_and(ctx, name, Some(owner), step, park);
    if !IS_PLAIN
        && settings::confirms()
        && let Some(Acquired::Granted(token)) = reply
    {
        return hold_back(ctx, &[name], token, request.owner.is_none().then_some(owner), lease_ms);
    }
    reply_acquired(ctx, reply, request.owner.is_none().then_some(owner), is_parked)
}

/// The same reply, when enough replicas have the grant.
#[cold]
pub(super) fn hold_back(
    ctx: &Ctx,
    names: &[Str<'_>],
    token: Token,
    minted_owner: Option<&[u8]>,
    lease_ms: u64,
) -> c_int {
    let places: Vec<PlaceBuf> = names.iter().map(|&name| place_of(ctx, name).to_owned()).collect();
    let Some((place, others)) = places.split_first() else {
        return internal_error(ctx);
    };
    let (place, others) = (place.clone(), others.to_vec());
    let answer = Answer::Granted { place, others, token, minted_owner: minted_owner.map(Into::into) };
    confirm::hold_back(ctx, Some(token), places, Told::Answer(answer), lease_ms)
}

/// The reply of LOCK.ACQUIRE and LOCK.MACQUIRE.
#[inline(always)]
pub(super) fn reply_acquired(
    ctx: &Ctx,
    reply: Option<Acquired>,
    minted_owner: Option<&[u8]>,
    is_parked: bool,
) -> c_int {
    match (reply, minted_owner) {
        (Some(Acquired::Granted(token)), None) => ctx.reply_integer(token.get()),
        _ => reply_otherwise(ctx, reply, minted_owner, is_parked),
    }
}

#[inline(never)]
fn reply_otherwise(
    ctx: &Ctx,
    reply: Option<Acquired>,
    minted_owner: Option<&[u8]>,
    is_parked: bool,
) -> c_int {
    match reply {
        None => internal_error(ctx),
        Some(Acquired::Busy) => ctx.reply_null(),
        Some(Acquired::Refused(refusal)) => {
            let cycle = state::with(|state| state.table.take_cycle()).unwrap_or_default();
            ctx.reply_error(&error::refusal(refusal, &cycle))
        }
        Some(Acquired::Granted(token)) => {
            if let Some(owner) = minted_owner {
                ctx.reply_array(2);
                ctx.reply_bytes(owner);
            }
            ctx.reply_integer(token.get())
        }
        Some(Acquired::Waiting(waiter)) => {
            if is_parked {
                return raw::REDISMODULE_OK as c_int;
            }
            let _ = pump::after(|state| state.table.leave(waiter));
            ctx.reply_null()
        }
    }
}

/// The connection as one that a hold can be bound to, where that matters.
#[inline]
pub(super) fn bind_to(ctx: &Ctx, client: Option<ClientId>, is_asked: bool) -> Option<ClientId> {
    if is_asked { own_connection(ctx, client) } else { None }
}

/// The connection if it is a client's own.
#[cold]
fn own_connection(ctx: &Ctx, client: Option<ClientId>) -> Option<ClientId> {
    client.filter(|&client| !ctx.flags().is_script() && is_connected(client))
}

/// How a request waits. `None`: on a connection that must not block it does not.
pub(super) fn wait_until(ctx: &Ctx, now: Moment, client: Option<ClientId>, wait: WaitFor) -> Option<Wait> {
    match wait {
        WaitFor::Queue(ms) => Some(Wait::Place { until: now.plus_ms(ms) }),
        WaitFor::Block(ms) => client.filter(|_| !ctx.flags().denies_blocking()).map(|client| {
            let ms = if sabotage::removes(Rule::Patience) { ms.div_ceil(2) } else { ms };
            Wait::Block(Block { client, until: Some(ms).filter(|&ms| ms > 0).map(|ms| now.plus_ms(ms)) })
        }),
    }
}

/// Whether no lock may be granted because it might be evicted. Says so in the log, once.
#[inline]
pub(super) fn refuses_for_eviction(ctx: &Ctx) -> bool {
    let refuses = host::may_evict() && !settings::allows_eviction();
    if refuses && host::refusal_is_news() {
        ctx.log(ffi::SERVER_LOG_WARNING, error::MAY_EVICT);
    }
    refuses
}

pub(super) fn told_to_acquire(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    match acquire::parse(args, &Bounds::WIDEST) {
        Ok(acquire::Acquire { owner: Some(owner), lease_ms, mode, is_reentrant, tie, .. }) => {
            let granted = Granted { owner, lease_ms, mode, is_reentrant, tie };
            tell(ctx, name, |table, now, place, found, fx| {
                table.apply_acquire(now, place, found, &granted, fx)
            })
        }
        _ => ctx.reply_error(error::BAD_RECORD),
    }
}
