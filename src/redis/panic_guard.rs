//! Keeps panics from crossing into the server, where they would end the process.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redis_module::raw;

use super::api::Ctx;
use crate::engine::server::{Part, Server};

/// Runs a command; a panic becomes an error reply.
#[inline(always)]
pub(crate) fn command(ctx: &Ctx, run: impl FnOnce()) -> c_int {
    // Unwind safety: a panic in the middle of a step may leave the table inconsistent. The reply reports that bug; a
    // server that keeps running, with all its other data, is still the better outcome.
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        ctx.reply(Part::Error("ERR internal error in redislock; see the server's log"));
    }
    raw::REDISMODULE_OK as c_int
}

/// Runs a callback that replies nothing. After a panic it returns `otherwise`.
pub(crate) fn callback<R>(otherwise: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(otherwise)
}
