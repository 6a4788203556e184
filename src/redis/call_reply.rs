//! Reads the server's reply to a call.

use std::ptr::NonNull;

use redis_module::raw;

use super::api::api;

/// A part of a reply.
pub(super) type Reply = *mut raw::RedisModuleCallReply;

/// A whole reply that we own. Dropping it frees it.
pub(super) struct OwnedReply(NonNull<raw::RedisModuleCallReply>);

impl OwnedReply {
    /// # Safety
    /// The reply is null or ours to free.
    pub(super) unsafe fn from_raw(reply: Option<Reply>) -> Option<Self> {
        reply.and_then(NonNull::new).map(Self)
    }

    pub(super) const fn get(&self) -> Reply {
        self.0.as_ptr()
    }
}

impl Drop for OwnedReply {
    fn drop(&mut self) {
        // SAFETY: it was made for us and is freed once.
        unsafe { api!(RedisModule_FreeCallReply, self.get()) };
    }
}

/// Runs a command, with the arguments that the format names. `None` if there is no reply.
macro_rules! ask {
    ($ctx:expr, $command:expr, $format:expr $(, $arg:expr)*) => {
        $crate::redis::call_reply::OwnedReply::from_raw(api!(
            RedisModule_Call, $ctx.as_ptr(), $command.as_ptr(), $format.as_ptr() $(, $arg)*
        ))
    };
}
pub(super) use ask;

/// Returns true if the reply is of this kind, one of `REDISMODULE_REPLY_*`.
pub(super) fn is_of_kind(reply: Reply, kind: isize) -> bool {
    // SAFETY: a live reply.
    unsafe { api!(RedisModule_CallReplyType, reply) }.is_some_and(|found| found as isize == kind)
}

/// Iterates over the elements of a list. Any other reply has none.
pub(super) fn elements(reply: Reply) -> impl Iterator<Item = Reply> {
    (0..).map_while(move |index| element(reply, index))
}

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
