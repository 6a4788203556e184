//! Predicts whether the server would refuse a command, without running it.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::OnceLock;

use redis_module::raw;

use super::api::{Ctx, KeptStr, OwnedStr, api};
use super::call_reply::{ask, is_of_kind};
use crate::lock::table::Candidate;
use crate::lock::types::ClientId;

// Each grant from a queue needs them.
static ACQUIRE: KeptStr = KeptStr::new("LOCK.ACQUIRE");
static MACQUIRE: KeptStr = KeptStr::new("LOCK.MACQUIRE");

/// Returns 0 if a user may run a command in a database. The last argument takes the reason, or is null.
pub(super) type CheckAt = unsafe extern "C" fn(
    *mut raw::RedisModuleUser,
    *mut *mut raw::RedisModuleString,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

/// Valkey 9.1 and later have this function, because their users may be confined to databases. The older function does
/// not know the database, and refuses all of these users.
static CHECK_AT: OnceLock<CheckAt> = OnceLock::new();

/// Uses this function of the server. Called once, at load.
pub(super) fn check_by(function: CheckAt) {
    let _ = CHECK_AT.set(function);
}

/// Returns true if the server would refuse a write: too few replicas, a disk error.
///
/// Runs a write command that does nothing, under the rules for scripts, which include exactly these checks. Requests
/// the refusal as a reply, because Valkey 9.1 aborts otherwise.
pub(super) fn refuses_writes(ctx: &Ctx) -> bool {
    // SAFETY: a live context; the format takes no arguments.
    let reply = unsafe { ask!(ctx, c"LOCK.TICK", c"SE") };
    reply.is_none_or(|reply| is_of_kind(reply.get(), raw::REDISMODULE_REPLY_ERROR))
}

/// Returns true if the server has paused writes.
pub(super) fn is_paused() -> bool {
    // SAFETY: no arguments. On a server without it (Redis before 6.2) this module does not load.
    unsafe { api!(RedisModule_AvoidReplicaTraffic) != Some(0) }
}

/// Returns true if the client's user may still run, on this key, the command in which it waits.
pub(super) fn may_acquire(ctx: &Ctx, Candidate { client, lock_key, several, .. }: Candidate<'_>) -> bool {
    let user_name = user_name(ctx, client);
    let command = if several.is_some() { MACQUIRE.get() } else { ACQUIRE.get() };
    let (Some(user_name), Some(word), Some(key)) = (user_name, command, ctx.new_str(lock_key.name)) else {
        return false;
    };
    // A right may depend on the first argument, so the number is that of the request.
    let mut digits = itoa::Buffer::new();
    let number = several.map(|count| ctx.new_str(digits.format(count).as_bytes()));
    let (word, key) = (word.as_ptr(), key.as_str().as_ptr());
    // As many arguments as the command needs, because Redis 8.6 counts them; the only key is this one.
    let mut one_key = [word, key, word, word, word];
    let mut several_keys;
    let argv: &mut [_] = match (several, &number) {
        (None, _) => &mut one_key,
        (Some(count), Some(Some(number))) => {
            several_keys = vec![word, number.as_str().as_ptr()];
            several_keys.resize(2 + count, key);
            several_keys.resize(5 + count, word);
            &mut several_keys
        }
        (Some(_), _) => return false,
    };
    // SAFETY: 1. live strings; 2. the user is checked for null and freed once.
    unsafe {
        let user = api!(RedisModule_GetModuleUserFromUserName, user_name.as_str().as_ptr());
        let Some(user) = user.filter(|user| !user.is_null()) else {
            return false;
        };
        let (argc, argv) = (argv.len() as c_int, argv.as_mut_ptr());
        let verdict = match (CHECK_AT.get(), c_int::try_from(lock_key.db)) {
            (Some(check), Ok(db)) => Some(check(user, argv, argc, db, null_mut())),
            _ => api!(RedisModule_ACLCheckCommandPermissions, user, argv, argc),
        };
        api!(RedisModule_FreeModuleUser, user);
        verdict == Some(raw::REDISMODULE_OK as c_int)
    }
}

/// Returns the name of this connection's user; `None` if there is no such connection.
pub(super) fn user_name(ctx: &Ctx, client: ClientId) -> Option<OwnedStr<'_>> {
    // SAFETY: 1. a live context; 2. the name of the user is ours to free; a client that has disconnected or has no
    // user yields null.
    unsafe {
        let name = api!(RedisModule_GetClientUserNameById, ctx.as_ptr(), client.0);
        name.and_then(|name| OwnedStr::from_raw(ctx, name))
    }
}
