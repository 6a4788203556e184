//! No panic crosses into the server: it would end the process.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redis_module::raw;

use super::api::Ctx;
use crate::engine::server::{Part, Server};

/// Runs a command; a panic becomes an error reply.
#[inline(always)]
pub(crate) fn command(ctx: &Ctx, run: impl FnOnce()) -> c_int {
    // Unwind safety: a panic half way through a step may leave the table inconsistent. That is a bug
    // that the reply reports; a server that lives on with all its other data is still the better end.
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        ctx.reply(Part::Error("ERR internal error in redislock; see the server's log"));
    }
    raw::REDISMODULE_OK as c_int
}

/// Runs a callback that replies nothing; after a panic it has returned `otherwise`.
pub(crate) fn callback<R>(otherwise: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(otherwise)
}
