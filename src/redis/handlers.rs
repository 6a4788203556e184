//! The commands as the server calls them: each is handed to the engine.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{Ctx, Str, UPDATES};
use super::guard;
use crate::command::macquire;
use crate::engine::server::{Part, Server};
use crate::engine::{commands, describe};

/// Runs a command that has a key as its first argument. Each command has a copy of it: a call by a pointer would keep
/// the handler from being compiled into it.
#[inline(always)]
fn run(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    arity: std::ops::RangeInclusive<usize>,
    handler: impl FnOnce(&Ctx, Str<'_>, &[Str<'_>]),
) -> c_int {
    // SAFETY: what the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    guard::command(&ctx, || match args {
        [_, name, rest @ ..] if args.len() >= *arity.start() && args.len() <= *arity.end() => {
            handler(&ctx, *name, rest);
        }
        _ => ctx.reply(Part::WrongArity),
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
    acquire, 2..=usize::MAX, |ctx, name, args| commands::acquire(ctx, name, args)
);
command!(
    /// LOCK.RELEASE
    release, 2..=usize::MAX, |ctx, name, args| commands::release(ctx, name, args)
);
command!(
    /// LOCK.RENEW
    renew, 2..=usize::MAX, |ctx, name, args| commands::renew(ctx, name, args)
);
command!(
    /// LOCK.FENCE
    fence, 2..=usize::MAX, |ctx, name, args| commands::fence(ctx, name, args)
);
command!(
    /// LOCK.INFO
    info, 2..=usize::MAX, |ctx, name, args| describe::info(ctx, name, args)
);
command!(
    /// LOCK.APPLY
    apply, 3..=usize::MAX, |ctx, name, args| commands::apply_record(ctx, name, args)
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
        [_, args @ ..] if ctx.is_asked_for_keys() => report_keys(&ctx, args),
        [_, args @ ..] if !args.is_empty() => commands::macquire(&ctx, args),
        _ => ctx.reply(Part::WrongArity),
    })
}

fn report_keys(ctx: &Ctx, args: &[Str<'_>]) {
    macquire::key_positions(args).for_each(|at| ctx.report_key(at as c_int, UPDATES as c_int));
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
        [_, owner] => describe::heldby(&ctx, *owner),
        _ => ctx.reply(Part::WrongArity),
    })
}

/// LOCK.TICK
pub(crate) extern "C" fn tick(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: what the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    guard::command(&ctx, || commands::tick(&ctx, args.get(1..).unwrap_or(&[])))
}
