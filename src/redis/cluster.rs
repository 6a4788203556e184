//! In a cluster: whose slot is it?
//!
//! A key that moves to another server looks, on this one, just like a key that was deleted. Granting on "it is gone"
//! would make two holders. So before anything is granted or ended outside of a command, the engine asks the server in
//! a way in which it answers for the slot too.

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::kind;
use super::reply::{Reply, element, number, text};
use crate::engine::server::{Server, Whose};

/// Whose the slot of the key is.
///
/// The server refuses a call for a key of a slot that is not its own. It also refuses one for a key of a slot that is on
/// its way to another server, if it does not have the key any more.
pub(super) fn whose(ctx: &Ctx, name: Str<'_>) -> Whose {
    if !ctx.flags().is_cluster {
        return Whose::Ours;
    }
    match ask(ctx, name) {
        None => Whose::Ours,
        Some(refusal) if refusal.contains("cluster is down") => Whose::Unknown,
        Some(_) => Whose::Others,
    }
}

/// Asks the server for a key; what it says if it refuses.
fn ask(ctx: &Ctx, name: Str<'_>) -> Option<String> {
    // SAFETY: a live context; the format takes one string; the reply is freed once. An error is asked for
    // as a reply.
    unsafe {
        let reply = api!(RedisModule_Call, ctx.as_ptr(), c"EXISTS".as_ptr(), c"sE".as_ptr(), name.as_ptr());
        let Some(reply) = reply.filter(|reply| !reply.is_null()) else {
            return Some(String::new());
        };
        let kind = api!(RedisModule_CallReplyType, reply);
        let is_answer = kind.is_some_and(|kind| kind as isize == raw::REDISMODULE_REPLY_INTEGER);
        let refusal = if is_answer { None } else { Some(text(reply).unwrap_or_default()) };
        api!(RedisModule_FreeCallReply, reply);
        refusal
    }
}

/// `host:port` of another server that owns the slot, by CLUSTER SLOTS.
pub(super) fn node_of(ctx: &Ctx, slot: u16) -> Option<String> {
    if !kind::kind().can_ask_for_slots() {
        return None;
    }
    let my_id = call(ctx, c"MYID", text)??;
    call(ctx, c"SLOTS", |ranges| {
        (0..).map_while(|index| element(ranges, index)).find_map(|range| {
            let (first, last) = (number(element(range, 0)?)?, number(element(range, 1)?)?);
            let node = element(range, 2)?;
            if !(first..=last).contains(&i64::from(slot)) || text(element(node, 2)?)? == my_id {
                return None;
            }
            Some(format!("{}:{}", text(element(node, 0)?)?, number(element(node, 1)?)?))
        })
    })?
}

/// Runs `CLUSTER subcommand` and reads the reply.
fn call<R>(ctx: &Ctx, subcommand: &std::ffi::CStr, read: impl FnOnce(Reply) -> R) -> Option<R> {
    // SAFETY: a live context; the format takes one C string; the reply is freed once, after `read`,
    // which returns nothing that points into it.
    unsafe {
        let name = subcommand.as_ptr();
        let reply = api!(RedisModule_Call, ctx.as_ptr(), c"CLUSTER".as_ptr(), c"cE".as_ptr(), name)?;
        if reply.is_null() {
            return None;
        }
        let result = read(reply);
        api!(RedisModule_FreeCallReply, reply);
        Some(result)
    }
}
