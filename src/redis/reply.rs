//! What the server answers when it is asked something: parts of a reply, looked at while it lives.

use redis_module::raw;

use super::api::api;

pub(super) type Reply = *mut raw::RedisModuleCallReply;

pub(super) fn element(reply: Reply, index: usize) -> Option<Reply> {
    // SAFETY: a live reply; null where there is no such element.
    unsafe { api!(RedisModule_CallReplyArrayElement, reply, index) }.filter(|e| !e.is_null())
}

pub(super) fn number(reply: Reply) -> Option<i64> {
    // SAFETY: a live reply; a wrong type yields a number that matches nothing.
    unsafe { api!(RedisModule_CallReplyInteger, reply) }
}

pub(super) fn text(reply: Reply) -> Option<String> {
    let mut len = 0;
    // SAFETY: a live reply; a wrong type yields null; the bytes are copied.
    unsafe {
        let start = api!(RedisModule_CallReplyStringPtr, reply, &raw mut len)?;
        if start.is_null() {
            return None;
        }
        let bytes = std::slice::from_raw_parts(start.cast::<u8>(), len);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// How many elements a list has; of anything else a number that is of no use.
pub(super) fn length(reply: Reply) -> usize {
    // SAFETY: a live reply.
    unsafe { api!(RedisModule_CallReplyLength, reply) }.unwrap_or(0)
}
