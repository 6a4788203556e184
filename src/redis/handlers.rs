//! One short function per command: parse, open, step, carry out.
//!
//! A command comes in one of three ways. A client of a primary *asks*. A primary's stream or a file *tells*:
//! then the command is a fact and is applied without a question. A client of a replica that may be
//! written to is refused: a replica decides nothing.

use std::ffi::c_int;

use redis_module::raw;

use super::acquiring::{self, bind_to};
use super::api::{Ctx, Key, Str, place_of};
use super::blocking::Told;
use super::gate::Gate;
use super::state::{self, lock_type};
use super::{carry_out, clock, confirm, events, guard, legacy, report, server, settings, several};
use crate::command::args::Bounds;
use crate::command::error::{self, Invalid};
use crate::command::{fence, internal, release, renew};
use crate::lock::effect::{Change, Effects, Found, Step};
use crate::lock::table::{Renewal, Table};
use crate::lock::types::{Moment, Now, Place, Token};

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
        [_, name, rest @ ..] if args.len() >= *arity.start() && args.len() <= *arity.end() => {
            handler(&ctx, *name, rest)
        }
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
    acquire, 2..=usize::MAX, |ctx, name, args| match way(ctx) {
        Way::Asked => acquiring::asked_to_acquire(ctx, name, args),
        Way::Told => acquiring::told_to_acquire(ctx, name, args),
        Way::Refused => ctx.reply_error(error::READ_ONLY),
    }
);
command!(
    /// LOCK.RELEASE
    release, 2..=usize::MAX, |ctx, name, args| match way(ctx) {
        Way::Asked => asked_to_release(ctx, name, args),
        Way::Told => told_to_release(ctx, name, args),
        Way::Refused => ctx.reply_error(error::READ_ONLY),
    }
);
command!(
    /// LOCK.RENEW
    renew, 2..=usize::MAX, |ctx, name, args| match way(ctx) {
        Way::Asked => asked_to_renew(ctx, name, args),
        Way::Told => told_to_renew(ctx, name, args),
        Way::Refused => ctx.reply_error(error::READ_ONLY),
    }
);
command!(
    /// LOCK.FENCE
    fence, 2..=usize::MAX, asked_to_fence
);
command!(
    /// LOCK.INFO
    info, 2..=usize::MAX, report::asked_to_inform
);
command!(
    /// LOCK.APPLY
    apply, 3..=usize::MAX, |ctx, name, args| {
        events::begin_use(ctx);
        if ctx.flags().is_fact() { told_to_apply(ctx, name, args) } else { ctx.reply_error(error::INTERNAL) }
    }
);

/// LOCK.MACQUIRE
pub(crate) extern "C" fn macquire(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: what the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    guard::command(&ctx, || match args {
        [_, args @ ..] if ctx.is_asked_for_keys() => several::tell_keys(&ctx, args),
        [_, args @ ..] if !args.is_empty() => match way(&ctx) {
            Way::Asked => several::asked_to_acquire(&ctx, args),
            Way::Told => several::told_to_acquire(&ctx, args),
            Way::Refused => ctx.reply_error(error::READ_ONLY),
        },
        _ => ctx.wrong_arity(),
    })
}

/// LOCK.HELDBY
pub(crate) extern "C" fn heldby(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: what the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    guard::command(&ctx, || match args {
        [_, owner] => report::asked_for_owner(&ctx, *owner),
        _ => ctx.wrong_arity(),
    })
}

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
pub(super) enum Way {
    Asked,
    Told,
    Refused,
}

#[inline]
pub(super) fn way(ctx: &Ctx) -> Way {
    // The usual case, known beforehand.
    if server::hears_clients_only() {
        return Way::Asked;
    }
    events::begin_use(ctx);
    let flags = ctx.flags();
    if flags.is_fact() {
        Way::Told
    } else if flags.decides() {
        Way::Asked
    } else {
        // Of a replica, or of a server that is about to serve another data set.
        Way::Refused
    }
}

pub(super) fn invalid(ctx: &Ctx, invalid: &Invalid) -> c_int {
    ctx.reply_error(&invalid.to_string())
}

pub(super) fn internal_error(ctx: &Ctx) -> c_int {
    ctx.reply_error("ERR internal error in redislock: the table is in use")
}

/// One step of a client's request at its key, for this owner.
fn ask<R>(
    ctx: &Ctx,
    name: Str<'_>,
    owner: &[u8],
    step: impl FnOnce(&mut Table, Now, Found, &mut Gate<'_>, &mut Effects) -> Step<R>,
) -> Option<R> {
    ask_and(ctx, name, Some(owner), step, |_| ())
}

/// The same, with something to do before the step is carried out. Without an owner it is a fact, to which no string
/// is a lock.
pub(super) fn ask_and<R>(
    ctx: &Ctx,
    name: Str<'_>,
    owner: Option<&[u8]>,
    step: impl FnOnce(&mut Table, Now, Found, &mut Gate<'_>, &mut Effects) -> Step<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let now = clock::now();
    let key = Key::open_write(ctx, name);
    let found = key.found(lock_type());
    let found = if owner.is_some() { legacy::look(&key, found, owner) } else { found };
    let mut gate = Gate::of_command(ctx);
    let (step, fx) = state::with(|state| {
        let step = step(&mut state.table, now, found, &mut gate, &mut state.fx);
        let fx = state.settle(step.change, found);
        (step, fx)
    })?;
    before(&step.reply);
    carry_out::step(ctx, name, key, found, &step, fx);
    Some(step.reply)
}

/// One step of a fact at its key.
pub(super) fn tell(
    ctx: &Ctx,
    name: Str<'_>,
    step: impl FnOnce(&mut Table, Moment, Place<'_>, Found, &mut Effects) -> Step<()>,
) -> c_int {
    let step = |table: &mut Table, now: Now, found: Found, _: &mut Gate<'_>, fx: &mut Effects| {
        step(table, now.boot, place_of(ctx, name), found, fx)
    };
    let done = ask_and(ctx, name, None, step, |()| ());
    match done {
        Some(()) => ctx.reply_ok(),
        None => internal_error(ctx),
    }
}

fn asked_to_release(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let request = match release::parse(args) {
        Ok(request) => request,
        Err(error) => return invalid(ctx, &error),
    };
    let reply = ask(ctx, name, request.owner, |table, now, found, gate, fx| {
        let gate: crate::lock::table::Gate<'_> = &mut |who| gate.admit(who);
        // Where it is matters only to those who wait.
        let place = if table.waiters() == 0 { Place { db: 0, name: &[] } } else { place_of(ctx, name) };
        table.release(now, place, found, request.owner, request.token, gate, fx)
    });
    reply_truth(ctx, reply)
}

fn told_to_release(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let Ok(request) = release::parse(args) else {
        return ctx.reply_error(error::BAD_RECORD);
    };
    tell(ctx, name, |table, now, place, found, fx| {
        table.apply_release(now, place, found, request.owner, request.token, fx)
    })
}

fn asked_to_renew(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let request = match renew::parse(args, &settings::bounds()) {
        Ok(request) => request,
        Err(error) => return invalid(ctx, &error),
    };
    if let Some(error) = request.raise.and_then(is_too_far_ahead) {
        return invalid(ctx, &error);
    }
    if settings::confirms()
        && let Some(reason) = confirm::refusal_of_renewal(ctx)
    {
        return ctx.reply_error(reason);
    }
    let client = ctx.client();
    let mut token = None;
    let reply = ask(ctx, name, request.owner, |table, now, found, gate, fx| {
        let place = place_of(ctx, name);
        let renewal = Renewal {
            owner: request.owner,
            token: request.token,
            raise: request.raise,
            lease_ms: request.lease_ms,
            client,
            bind_to: bind_to(ctx, client, table.may_have_ties()),
        };
        let step = table.renew(now, place, found, &renewal, &mut |who| gate.admit(who), fx);
        if settings::confirms() {
            token = table.token_of(found, request.owner);
        }
        step
    });
    if settings::confirms() && reply == Some(Some(true)) {
        let places = vec![place_of(ctx, name).to_owned()];
        return confirm::hold_back(ctx, token, places, Told::Renewed, request.lease_ms);
    }
    reply_truth(ctx, reply)
}

/// A token from outside must not run away with the clock of tokens (G14).
#[cold]
fn is_too_far_ahead(raise: Token) -> Option<Invalid> {
    let now = clock::now();
    let highest = state::with(|state| {
        state.table.clock().highest_from_outside(now.wall_us, settings::token_lead_us_max())
    })?;
    (raise.get() > highest).then_some(Invalid::TooFarAhead { highest })
}

fn told_to_renew(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let Ok(request) = renew::parse(args, &Bounds::WIDEST) else {
        return ctx.reply_error(error::BAD_RECORD);
    };
    tell(ctx, name, |table, now, place, found, _| {
        table.apply_renew(now, place, found, request.owner, request.token, request.raise, request.lease_ms)
    })
}

fn told_to_apply(ctx: &Ctx, name: Str<'_>, args: &[Str<'_>]) -> c_int {
    let Some(record) = internal::parse_apply(args) else {
        return ctx.reply_error(error::BAD_RECORD);
    };
    tell(ctx, name, |table, now, place, found, fx| match &record {
        internal::Apply::Hold(mode, hold) => table.apply_hold(now, place, found, *mode, hold, fx),
        internal::Apply::Ended(token) => table.apply_ended(now, place, found, *token, fx),
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
    let key = Key::open_read(ctx, name);
    let found = legacy::look(&key, key.found(lock_type()), None);
    if found == Found::Other {
        return ctx.reply_error(error::WRONG_TYPE);
    }
    let now = clock::boot();
    if let Some(asked) = asked {
        let is_live = state::with(|state| state.table.is_live(now, found, asked));
        return ctx.reply_integer(u64::from(is_live == Some(true)));
    }
    match state::with(|state| state.table.live_token(now, found)).flatten() {
        Some(live) => ctx.reply_integer(live.get()),
        None => ctx.reply_null(),
    }
}
