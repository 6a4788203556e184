//! Which node of a cluster owns a slot.
//!
//! On this server, a key that moves to another one looks just like a deleted key. Granting the lock because it "is
//! gone" would create two holders. So before anything is granted or ended outside of a command, the engine asks the
//! server in a way that checks the slot, too.

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::call_reply::{ask, element, elements, is_of_kind, number, text};
use super::server_quirks;
use crate::engine::server::{Server, SlotOwner};

/// Returns which node owns the slot of a key.
///
/// The server refuses a call for a key whose slot it does not own. For a slot that is moving away, it also refuses
/// keys that it no longer has.
pub(super) fn slot_owner(ctx: &Ctx, name: Str<'_>) -> SlotOwner {
    if !ctx.flags().is_cluster {
        return SlotOwner::Ours;
    }
    match ask(ctx, name) {
        None => SlotOwner::Ours,
        Some(refusal) if refusal.contains("cluster is down") => SlotOwner::Unknown,
        Some(_) => SlotOwner::Others,
    }
}

/// Returns true if the server may ask a command with several keys for all of them. A node of Valkey asks on I/O
/// threads as well, and crashes over any module that it asks there. On such nodes the server knows only the first
/// key, by a key spec.
pub(super) fn sees_all_keys(ctx: &Ctx) -> bool {
    !server_quirks::kind().is_valkey() || !ctx.flags().is_cluster
}

/// Returns true if the server would let the running command use all of these keys. `look` is a command that only
/// reads them.
pub(super) fn has_all(ctx: &Ctx, look: &CStr, names: &[Str<'_>]) -> bool {
    // SAFETY: 1. a live context; 2. the format takes an array of strings and its length, and `Str` is transparent over the
    // pointer to one. An error is asked for as a reply.
    let reply = unsafe { ask!(ctx, look, c"vE", names.as_ptr(), names.len()) };
    reply.is_some_and(|reply| !is_of_kind(reply.get(), raw::REDISMODULE_REPLY_ERROR))
}

/// Returns the positions of the keys among the words of a server's command.
pub(super) fn keys_of(ctx: &Ctx, words: &[Str<'_>]) -> Vec<usize> {
    let (mut count, mut flags) = (0, null_mut());
    // SAFETY: 1. as many strings as said; `Str` is transparent over the pointer to one; they are only read; 2. null,
    // or arrays of as many numbers as reported, which are ours to free, and are freed once.
    unsafe {
        let (argv, argc) = (words.as_ptr().cast_mut().cast(), words.len() as c_int);
        let (count, flags) = (&raw mut count, &raw mut flags);
        let positions = api!(RedisModule_GetCommandKeysWithFlags, ctx.as_ptr(), argv, argc, count, flags);
        let Some(positions) = positions.filter(|positions| !positions.is_null()) else {
            return Vec::new();
        };
        let count = usize::try_from(*count).unwrap_or(0);
        let at = |number| usize::try_from(*positions.add(number)).ok();
        let keys = (0..count).filter_map(at).collect();
        api!(RedisModule_Free, positions.cast());
        api!(RedisModule_Free, (*flags).cast());
        keys
    }
}

/// Asks the server for a key. Returns its error if it refuses.
///
/// Runs a write command that does nothing, because a cluster that is down may still allow reads.
fn ask(ctx: &Ctx, name: Str<'_>) -> Option<String> {
    // SAFETY: a live context; the format takes one string. An error is asked for as a reply.
    let reply = unsafe { ask!(ctx, c"LOCK.APPLY", c"sE", name.as_ptr()) };
    let Some(reply) = reply else {
        return Some(String::new());
    };
    let is_refused = is_of_kind(reply.get(), raw::REDISMODULE_REPLY_ERROR);
    is_refused.then(|| text(reply.get()).unwrap_or_default())
}

/// Returns `host:port` of another server that owns the slot, by CLUSTER SLOTS.
pub(super) fn node_of(ctx: &Ctx, slot: u16) -> Option<String> {
    if !server_quirks::kind().can_ask_for_slots() {
        return None;
    }
    // SAFETY: a live context; the format takes one C string.
    let (my_id, ranges) = unsafe {
        let my_id = ask!(ctx, c"CLUSTER", c"cE", c"MYID".as_ptr())?;
        (text(my_id.get())?, ask!(ctx, c"CLUSTER", c"cE", c"SLOTS".as_ptr())?)
    };
    elements(ranges.get()).find_map(|range| {
        let (first, last) = (number(element(range, 0)?)?, number(element(range, 1)?)?);
        let node = element(range, 2)?;
        if !(first..=last).contains(&i64::from(slot)) || text(element(node, 2)?)? == my_id {
            return None;
        }
        Some(format!("{}:{}", text(element(node, 0)?)?, number(element(node, 1)?)?))
    })
}
