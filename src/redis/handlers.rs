//! Entry points of the commands. Each is handed to the engine.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{Ctx, Str, UPDATES};
use super::panic_guard;
use crate::command::{error, internal, macquire};
use crate::engine::server::{Part, Server};
use crate::engine::{commands, describe};

/// Defines the function that the server calls for a command. Each command has a copy of everything it needs, because
/// a call through a pointer would prevent inlining.
macro_rules! command {
    ($(#[$doc:meta])* $name:ident, $handler:expr) => {
        $(#[$doc])*
        pub(crate) extern "C" fn $name(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            run(ctx, argv, argc, $handler)
        }
    };
}

#[inline(always)]
fn run(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    handler: impl FnOnce(&Ctx, &[Str<'_>]),
) -> c_int {
    // SAFETY: the arguments that the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    panic_guard::command(&ctx, || handler(&ctx, args))
}

/// Runs a command that has a key as its first argument.
#[inline(always)]
fn at_key(ctx: &Ctx, args: &[Str<'_>], handler: impl FnOnce(&Ctx, Str<'_>, &[Str<'_>])) {
    match args {
        [_, name, rest @ ..] => handler(ctx, *name, rest),
        _ => ctx.reply(Part::WrongArity),
    }
}

command!(
    /// LOCK.ACQUIRE
    acquire,
    |ctx, args| at_key(ctx, args, |ctx, name, args| commands::acquire(ctx, name, args))
);
command!(
    /// LOCK.RELEASE
    release,
    |ctx, args| at_key(ctx, args, |ctx, name, args| commands::release(ctx, name, args))
);
command!(
    /// LOCK.RENEW
    renew,
    |ctx, args| at_key(ctx, args, |ctx, name, args| commands::renew(ctx, name, args))
);
command!(
    /// LOCK.FENCE
    fence,
    |ctx, args| at_key(ctx, args, |ctx, name, args| commands::fence(ctx, name, args))
);
command!(
    /// LOCK.INFO
    info,
    |ctx, args| at_key(ctx, args, |ctx, name, args| describe::info(ctx, name, args))
);
command!(
    /// LOCK.MACQUIRE
    macquire,
    |ctx, args| match args {
        [_, args @ ..] if ctx.is_asked_for_keys() => report_keys(ctx, args),
        [_, args @ ..] if !args.is_empty() => commands::macquire(ctx, args),
        _ => ctx.reply(Part::WrongArity),
    }
);
command!(
    /// LOCK.HELDBY
    heldby,
    |ctx, args| match args {
        [_, owner] => describe::heldby(ctx, *owner),
        _ => ctx.reply(Part::WrongArity),
    }
);
command!(
    /// LOCK.APPLY
    apply,
    |ctx, args| match args {
        [_, name, rest @ ..] => record(ctx, rest, |words| commands::apply_record(ctx, *name, words)),
        _ => ctx.reply(Part::WrongArity),
    }
);
command!(
    /// LOCK.TICK
    tick,
    |ctx, args| record(ctx, args.get(1..).unwrap_or(&[]), |words| commands::tick(ctx, words))
);

/// Passes a record on without its version. An empty one is no record, but a question.
fn record<'a, 'b>(ctx: &Ctx, args: &'a [Str<'b>], handler: impl FnOnce(&'a [Str<'b>])) {
    match internal::unversioned(args) {
        _ if args.is_empty() => handler(args),
        Some(words) => handler(words),
        None if ctx.flags().is_fact => ctx.reply(Part::Error(error::UNKNOWN_RECORD)),
        None => ctx.reply(Part::Error(error::INTERNAL)),
    }
}

fn report_keys(ctx: &Ctx, args: &[Str<'_>]) {
    macquire::key_positions(args).for_each(|at| ctx.report_key(at as c_int, UPDATES as c_int));
}
