//! In a cluster: whose slot is it?
//!
//! A key that moves to another server looks, on this one, just like a key that was deleted. Granting on "it is gone"
//! would make two holders. So before anything is granted or ended outside of a command, the engine asks the server in
//! a way in which it answers for the slot too.

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::kind;
use super::reply::{Reply, element, number, text};
use crate::engine::server::Server;

/// Whether this server answers for the key.
pub(crate) fn is_ours(ctx: &Ctx, name: Str<'_>) -> bool {
    !ctx.flags().is_cluster || may_access(ctx, name)
}

/// Whether the slot of the key is this server's, or nobody can tell because the cluster is down.
pub(crate) fn has_not_left(ctx: &Ctx, name: Str<'_>) -> bool {
    ask(ctx, name).is_none_or(|refusal| refusal.contains("cluster is down"))
}

/// The server refuses a call for a key of a slot that is not its own. It also refuses one for a key of a slot that is
/// on its way to another server, if it does not have the key any more.
fn may_access(ctx: &Ctx, name: Str<'_>) -> bool {
    ask(ctx, name).is_none()
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

/// What to tell a client that waits for a key that is not ours.
pub(crate) fn redirection(ctx: &Ctx, name: Str<'_>) -> String {
    let slot = slot_of(name.bytes());
    match owner_of(ctx, i64::from(slot)) {
        Some(address) => format!("MOVED {slot} {address}"),
        // Still this server's by the table, but the key is on its way, or nobody's: try again, and the
        // server itself will redirect.
        None => "TRYAGAIN the slot of this lock is on its way to another server".to_owned(),
    }
}

/// The hash slot of a key: CRC-16 (XMODEM) of its hash tag, as the cluster specification has it.
fn slot_of(name: &[u8]) -> u16 {
    const SLOTS: u16 = 16_384;
    crc16(hash_tag(name)) % SLOTS
}

/// The part between the first `{` and the `}` after it, if it is not empty; else the whole name.
fn hash_tag(name: &[u8]) -> &[u8] {
    let Some(open) = name.iter().position(|&byte| byte == b'{') else {
        return name;
    };
    let inner = name.get(open + 1..).unwrap_or(&[]);
    match inner.iter().position(|&byte| byte == b'}') {
        Some(len) if len > 0 => inner.get(..len).unwrap_or(name),
        _ => name,
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

/// `host:port` of another server that owns the slot, by CLUSTER SLOTS.
fn owner_of(ctx: &Ctx, slot: i64) -> Option<String> {
    if !kind::kind().can_ask_for_slots() {
        return None;
    }
    let my_id = call(ctx, c"MYID", text)??;
    call(ctx, c"SLOTS", |ranges| {
        (0..).map_while(|index| element(ranges, index)).find_map(|range| {
            let (first, last) = (number(element(range, 0)?)?, number(element(range, 1)?)?);
            let node = element(range, 2)?;
            if !(first..=last).contains(&slot) || text(element(node, 2)?)? == my_id {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
    }
}
