//! One short function per command: parse, open, step, carry out.
//!
//! A command comes in one of three ways. A client of a primary *asks*. A primary's stream or a file *tells*:
//! then the command is a fact and is applied without a question. A client of a replica that may be
//! written to is refused: a replica decides nothing.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{Ctx, Key, Str, is_connected, place_of};
use super::gate::Gate;
use super::state::{self, lock_type};
use super::{blocking, carry_out, clock, events, ffi, guard, server, settings};
use crate::command::args::Bounds;
use crate::command::error::{self, Invalid};
use crate::command::{acquire, fence, info, internal, release, renew};
use crate::lock::effect::{Change, Effects, Found, Step};
use crate::lock::table::{Acquired, Ask, Block, Description, Renewal, Table};
use crate::lock::types::{Moment, Now, Place};

/// A command as the server calls it.
type Handler = fn(&Ctx, Str<'_>, &[Str<'_>]) -> c_int;

/// Runs a handler on the command's key and the arguments behind it.
fn run(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    arity: std::ops::RangeInclusive<usize>,
    handler: Handler,
) -> c_int {
    // SAFETY: what the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    guard::command(&ctx, || match args {
        [_, name, rest @ ..] if arity.contains(&args.len()) => handler(&ctx, *name, rest),
        _ => ctx.wrong_arity(),
    })
}

macro_rules! command {
    ($(#[$doc:meta])* $name:ident, $arity:expr, $handler:expr) => {
        $(#[$doc])*
        pub(crate) extern "C" fn $name(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            run(ctx, argv, argc, $arity, $handler)
        }
    };
}

command!(
    /// LOCK.ACQUIRE
    acquire, 3..=usize::MAX, |ctx, name, args| match way(ctx) {
        Way::Asked => asked_to_acquire(ctx, name, args),
        Way::Told => told_to_acquire(ctx, name, args),
        Way::Refused => ctx.reply_error(error::READ_ONLY),
    }
);
command!(
    /// LOCK.RELEASE
    release, 3..=usize::MAX, |ctx, name, args| match way(ctx) {
        Way::Asked => asked_to_release(ctx, name, args),
        Way::Told => told_to_release(ctx, name, args),
        Way::Refused => ctx.reply_error(error::READ_ONLY),
    }
);
command!(
    /// LOCK.RENEW
    renew, 3..=usize::MAX, |ctx, name, args| match way(ctx) {
        Way::Asked => asked_to_renew(ctx, name, args),
        Way::Told => told_to_renew(ctx, name, args),
        Way::Refused => ctx.reply_error(error::READ_ONLY),
    }
);
command!(
    /// LOCK.FENCE
    fence, 2..=3, asked_to_fence
);
command!(
    /// LOCK.INFO
    info, 2..=usize::MAX, asked_to_inform
);
command!(
    /// LOCK.APPLY
    apply, 3..=usize::MAX, |ctx, name, args| {
        events::begin_use(ctx);
        if ctx.flags().is_fact() { told_to_apply(ctx, name, args) } else { ctx.reply_error(error::INTERNAL) }
    }
);

/// LOCK.TICK: without arguments it does nothing, and the server's own checks are the answer.
pub(crate) extern "C" fn tick(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: what the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    guard::command(&ctx, || match args {
        [_] => ctx.reply_ok(),
        [_, numbers @ ..] if ctx.flags().is_fact() => match internal::parse_tick(numbers) {
            Some((last, told)) => {
                events::begin_use(&ctx);
                let _ = state::with(|state| state.table.clock().adopt(last, told));
                ctx.reply_ok()
            }
            None => ctx.reply_error(error::BAD_RECORD),
        },
        _ => ctx.reply_error(error::INTERNAL),
    })
}

/// How a command that writes came.
enum Way {
    Asked,
    Told,
    Refused,
}

#[inline]
fn way(ctx: &Ctx) -> Way {
    // The usual case, known beforehand.
    if server::hears_clients_only() {
        return Way::Asked;
    }
    events::begin_use(ctx);
    let flags = ctx.flags();
    if flags.is_fact() {
        Way::Told
    } else if flags.is_replica() {
        Way::Refused
    } else {
        Way::Asked
    }
}

fn invalid(ctx: &Ctx, invalid: &Invalid) -> c_int {
    ctx.reply_error(&invalid.to_string())
}

fn internal_error(ctx: &Ctx) -> c_int {
    ctx.reply_error("ERR internal error in redislock: the table is in use")
}

/// One step of a client's request at its key.
fn ask<R>(
    ctx: &Ctx,
    name: Str<'_>,
    step: impl FnOnce(&mut Table, Now, Place<'_>, Found, &mut Gate<'_>, &mut Effects) -> Step<R>,
) -> Option<R> {
    ask_and(ctx, name, step, |_| ())
}

/// The same, with something to do before the step is carried out.
fn ask_and<R>(
    ctx: &Ctx,
    name: Str<'_>,
    step: impl FnOnce(&mut Table, Now, Place<'_>, Found, &mut Gate<'_>, &mut Effects) -> Step<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let now = clock::now();
    let place = place_of(ctx, name);
    let key = Key::open_write(ctx, name);
    let found = key.found(lock_type());
    let mut gate = Gate::of_command(ctx);
    let (step, fx) = state::with(|state| {
        let step = step(&mut state.table, now, place, found, &mut gate, &mut state.fx);
        let fx = state.settle(step.change, found);
        (step, fx)
    })?;
    before(&step.reply);
    carry_out::step(ctx, name, key, found, &step, fx);
    Some(step.reply)
}

/// One step of a fact at its key.
fn tell(
    ctx: &Ctx,
    name: Str<'_>,
    step: impl FnOnce(&mut Table, Moment, Place<'_>, Found, &mut Effects) -> Step<()>,
) -> c_int {
    let done = ask(ctx, name, |table, now, place, found, _, fx| step(table, now.boot, place, found, fx));
    match done {
        Some(()) => ctx.reply_ok(),
        None => internal_error(ctx),
    }
}

fn asked_to_acquire(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let request = match acquire::parse(args, &settings::bounds()) {
        Ok(request) => request,
        Err(error) => return invalid(ctx, &error),
    };
    if settings::may_evict() && !settings::allows_eviction() {
        if settings::refusal_is_news() {
            ctx.log(ffi::SERVER_LOG_WARNING, error::MAY_EVICT);
        }
        return ctx.reply_error(error::MAY_EVICT);
    }
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let owner =
        request.owner.unwrap_or_else(|| uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text).as_bytes());
    let client = ctx.client();
    let can_wait = request.block_ms.is_some() && !ctx.flags().denies_blocking();
    let mut is_parked = false;
    // A waiter is given its client before anything is published: whoever listens may free the lock.
    let park = |reply: &Acquired| {
        if let Acquired::Waiting(waiter) = *reply {
            is_parked = blocking::park(ctx, waiter);
        }
    };
    let step =
        |table: &mut Table, now: Now, place: Place<'_>, found, gate: &mut Gate<'_>, fx: &mut Effects| {
            let ask = Ask {
                owner,
                owner_is_minted: request.owner.is_none(),
                lease_ms: request.lease_ms,
                block: client.filter(|_| can_wait).map(|client| Block {
                    client,
                    until: request.block_ms.filter(|&ms| ms > 0).map(|ms| now.boot.plus_ms(ms)),
                }),
                client,
                must_be_named: request.owner.is_none() || server::is_cluster(),
            };
            table.acquire(now, place, found, &ask, &mut |c, p| gate.admit(c, p), fx)
        };
    let reply = ask_and(ctx, name, step, park);
    match reply {
        None => internal_error(ctx),
        Some(Acquired::Busy) => ctx.reply_null(),
        Some(Acquired::Refused(refusal)) => ctx.reply_error(&error::refusal(refusal)),
        Some(Acquired::Granted(token)) => {
            if request.owner.is_none() {
                ctx.reply_array(2);
                ctx.reply_bytes(owner);
            }
            ctx.reply_integer(token.get())
        }
        Some(Acquired::Waiting(waiter)) => {
            if is_parked {
                return raw::REDISMODULE_OK as c_int;
            }
            let _ = state::with(|state| state.table.leave(waiter));
            ctx.reply_null()
        }
    }
}

fn told_to_acquire(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    match acquire::parse(args, &Bounds::WIDEST) {
        Ok(acquire::Acquire { owner: Some(owner), lease_ms, .. }) => {
            tell(ctx, name, |table, now, place, found, fx| {
                table.apply_acquire(now, place, found, owner, lease_ms, fx)
            })
        }
        _ => ctx.reply_error(error::BAD_RECORD),
    }
}

fn asked_to_release(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let request = match release::parse(args) {
        Ok(request) => request,
        Err(error) => return invalid(ctx, &error),
    };
    let reply = ask(ctx, name, |table, now, place, found, gate, fx| {
        let gate: crate::lock::table::Gate<'_> = &mut |c, p| gate.admit(c, p);
        table.release(now, place, found, request.owner, request.token, gate, fx)
    });
    reply_truth(ctx, reply)
}

fn told_to_release(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let Ok(request) = release::parse(args) else {
        return ctx.reply_error(error::BAD_RECORD);
    };
    tell(ctx, name, |table, now, _, found, fx| {
        table.apply_release(now, found, request.owner, request.token, fx)
    })
}

fn asked_to_renew(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let request = match renew::parse(args, &settings::bounds()) {
        Ok(request) => request,
        Err(error) => return invalid(ctx, &error),
    };
    let renewal = Renewal {
        owner: request.owner,
        token: request.token,
        lease_ms: request.lease_ms,
        client: ctx.client(),
    };
    let reply = ask(ctx, name, |table, now, place, found, gate, fx| {
        table.renew(now, place, found, &renewal, &mut |c, p| gate.admit(c, p), fx)
    });
    reply_truth(ctx, reply)
}

fn told_to_renew(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let Ok(request) = renew::parse(args, &Bounds::WIDEST) else {
        return ctx.reply_error(error::BAD_RECORD);
    };
    tell(ctx, name, |table, now, _, found, _| {
        table.apply_renew(now, found, request.owner, request.token, request.lease_ms)
    })
}

fn told_to_apply(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let Some(record) = internal::parse_apply(args) else {
        return ctx.reply_error(error::BAD_RECORD);
    };
    tell(ctx, name, |table, now, place, found, fx| match &record {
        internal::Apply::Hold(hold) => table.apply_hold(now, place, found, hold, fx),
        internal::Apply::Ended(token) => table.apply_ended(now, found, *token, fx),
        internal::Apply::Empty if found == Found::Nothing => table.apply_empty(now, place),
        internal::Apply::Empty => {
            Step { reply: (), change: Change::Nothing, record: crate::lock::effect::Record::Nothing }
        }
    })
}

/// 1, 0, or that the key holds something else.
fn reply_truth(ctx: &Ctx, truth: Option<Option<bool>>) -> c_int {
    match truth {
        Some(Some(truth)) => ctx.reply_integer(u64::from(truth)),
        Some(None) => ctx.reply_error(error::WRONG_TYPE),
        None => internal_error(ctx),
    }
}

fn asked_to_fence(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let asked = match fence::parse(args) {
        Ok(asked) => asked,
        Err(error) => return invalid(ctx, &error),
    };
    let found = Key::open_read(ctx, name).found(lock_type());
    if found == Found::Other {
        return ctx.reply_error(error::WRONG_TYPE);
    }
    let now = clock::boot();
    let live = state::with(|state| state.table.live_token(now, found)).flatten();
    match (asked, live) {
        (Some(asked), live) => ctx.reply_integer(u64::from(live == Some(asked))),
        (None, Some(live)) => ctx.reply_integer(live.get()),
        (None, None) => ctx.reply_null(),
    }
}

fn asked_to_inform(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let waiters_max = match info::parse(args) {
        Ok(waiters_max) => waiters_max,
        Err(error) => return invalid(ctx, &error),
    };
    let found = Key::open_read(ctx, name).found(lock_type());
    let place = place_of(ctx, name);
    let now = clock::boot();
    state::with(|state| match state.table.describe(now, place, found, waiters_max) {
        Some(lock) => describe(ctx, &lock),
        None if found == Found::Other => ctx.reply_error(error::WRONG_TYPE),
        None => ctx.reply_null(),
    })
    .unwrap_or_else(|| internal_error(ctx))
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
    field("exclusive");
    field("limit");
    ctx.reply_null();
    field("holders");
    ctx.reply_array(usize::from(lock.hold.is_some()));
    if let Some(hold) = &lock.hold {
        ctx.reply_map(8);
        field("owner");
        ctx.reply_bytes(&hold.owner);
        field("token");
        ctx.reply_integer(hold.token.get());
        field("lease-left-ms");
        ctx.reply_integer(hold.left_ms);
        field("held-ms");
        ctx.reply_integer(hold.held_ms);
        field("count");
        ctx.reply_integer(1);
        field("client-id");
        // A connection that is gone, or was only a script's, is nobody to look for.
        maybe(hold.client.filter(|&client| is_connected(client)).map(|client| client.0));
        field("keepalive");
        ctx.reply_bool(false);
        field("ephemeral-ms");
        ctx.reply_null();
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
        field("exclusive");
        field("waited-ms");
        ctx.reply_integer(waiter.waited_ms);
        field("state");
        field("blocked");
        field("client-id");
        ctx.reply_integer(waiter.client.0);
    }
    raw::REDISMODULE_OK as c_int
}
