//! Implements the engine's [`Server`] for a real server.

use std::ffi::{CStr, CString, c_int, c_longlong};
use std::ptr::null_mut;

use redis_module::raw;

use super::api::{Ctx, Key, OwnedStr, Str, api};
use super::api_table::calls;
use super::clock::{self, Timer};
use super::main_thread::{self, Blocked};
use super::{acl, blocking, cluster, events, ffi, needs, pump_timer, replicate, server_info, server_quirks};
use crate::engine::blocked_clients::Reply;
use crate::engine::flags::{Flags, Level};
use crate::engine::server::{Fact, MINTED_OWNER_BYTES, Part, Server, SlotOwner, To, Topic};
use crate::engine::shared::Shared;
use crate::engine::state::State;
use crate::lock::confirm::Seen;
use crate::lock::effect::Event;
use crate::lock::table::Candidate;
use crate::lock::types::{ClientId, LockKey, LockKeyBuf, Moment, Now};

impl Server for Ctx {
    type Name<'a> = Str<'a>;
    type NameBuf<'a> = OwnedStr<'a>;
    type Key<'a> = Key<'a>;
    type Blocked = Blocked;
    type Alarm = Timer;

    #[inline]
    fn with<R>(&self, use_it: impl FnOnce(&mut State<Blocked, Timer>) -> R) -> Option<R> {
        main_thread::with(use_it)
    }

    #[inline(always)]
    fn shared(&self) -> &Shared {
        &main_thread::SHARED
    }

    #[inline(always)]
    fn boot(&self) -> Moment {
        clock::boot()
    }

    #[inline(always)]
    fn wall_us(&self) -> u64 {
        clock::wall_us()
    }

    #[inline(always)]
    fn now(&self) -> Now {
        clock::now()
    }

    fn run_soon(&self, is_late: bool) {
        pump_timer::run_soon(is_late);
    }

    fn new_owner(&self) -> [u8; MINTED_OWNER_BYTES] {
        let mut text = [0; MINTED_OWNER_BYTES];
        uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text);
        text
    }

    #[inline(always)]
    fn flags(&self) -> Flags {
        // SAFETY: a context, or null, which the function allows.
        let bits = unsafe { api!(RedisModule_GetContextFlags, self.as_ptr()) }.unwrap_or(0) as u32;
        let has = |bit: u32| bits & bit != 0;
        Flags {
            is_replica: has(raw::REDISMODULE_CTX_FLAGS_SLAVE),
            is_loading: has(raw::REDISMODULE_CTX_FLAGS_LOADING),
            is_fact: has(raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING),
            is_cluster: has(raw::REDISMODULE_CTX_FLAGS_CLUSTER),
            has_aof: has(raw::REDISMODULE_CTX_FLAGS_AOF),
            denies_blocking: has(raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING),
            is_script: has(raw::REDISMODULE_CTX_FLAGS_LUA),
        }
    }

    fn is_paused(&self) -> bool {
        acl::is_paused()
    }

    fn refuses_writes(&self) -> bool {
        acl::refuses_writes(self)
    }

    fn replicas(&self) -> Option<(u64, Vec<Seen>)> {
        server_info::replicas(self)
    }

    fn listen(&self, to: Topic) -> bool {
        match to {
            Topic::Locks => events::begin(self),
            Topic::Turns => events::begin_with_turns(self),
            Topic::Replicas => events::begin_with_replicas(self),
        }
    }

    fn ignore_turns(&self) {
        events::end_with_turns(self);
    }

    fn may_evict(&self) -> bool {
        server_info::may_evict(self)
    }

    fn has_listeners(&self) -> bool {
        server_info::has_listeners(self)
    }

    fn log(&self, level: Level, text: &str) {
        let level = match level {
            Level::Notice => ffi::SERVER_LOG_NOTICE,
            Level::Warning => ffi::SERVER_LOG_WARNING,
        };
        Self::log(self, level, text);
    }

    #[inline]
    fn lock_key<'a>(&self, name: Str<'a>) -> LockKey<'a>
    where
        'a: 'a,
    {
        LockKey { db: self.db(), name: name.bytes() }
    }

    fn name_at<'a>(&'a self, lock_key: &LockKeyBuf) -> Option<OwnedStr<'a>> {
        self.new_str(&lock_key.name).filter(|_| self.select_db(lock_key.db))
    }

    fn name<'a>(name: &'a OwnedStr<'_>) -> Str<'a> {
        name.as_str()
    }

    #[inline(always)]
    fn open(&self, name: Str<'_>, to: To) -> Key<'_> {
        Key::open(self, name, to)
    }

    fn keys_of(&self, words: &[Str<'_>]) -> Vec<usize> {
        cluster::keys_of(self, words)
    }

    fn has_all(&self, names: &[Str<'_>]) -> bool {
        cluster::has_all(self, needs::look(), names)
    }

    fn sees_all_keys(&self) -> bool {
        cluster::sees_all_keys(self)
    }

    fn slot_owner(&self, name: Str<'_>) -> SlotOwner {
        cluster::slot_owner(self, name)
    }

    fn node_of(&self, slot: u16) -> Option<String> {
        cluster::node_of(self, slot)
    }

    #[inline(always)]
    fn replicate(&self, fact: Fact<'_, Str<'_>>) {
        replicate::replicate(self, fact);
    }

    fn ask_replicas(&self) {
        replicate::ask_replicas(self);
    }

    fn publish(&self, name: Str<'_>, event: Event) {
        let (class, text) = (raw::REDISMODULE_NOTIFY_MODULE, event_name(event));
        // SAFETY: a live context and strings.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent, self.as_ptr(), class, text.as_ptr(), name.as_ptr()) };
    }

    #[inline]
    fn client(&self) -> Option<ClientId> {
        // SAFETY: a live context.
        let id = unsafe { (calls().client_id)(self.as_ptr()) };
        (id != 0 && id != u64::MAX).then_some(ClientId(id))
    }

    fn is_connected(&self, client: ClientId) -> bool {
        if server_quirks::kind().takes_callers_for_clients() {
            return acl::user_name(self, client).is_some();
        }
        // SAFETY: null asks for nothing but whether it is there.
        let existing = unsafe { api!(RedisModule_GetClientInfoById, null_mut(), client.0) };
        existing == Some(raw::REDISMODULE_OK as c_int)
    }

    fn may_acquire(&self, who: Candidate<'_>) -> bool {
        acl::may_acquire(self, who)
    }

    fn block(&self) -> Option<Blocked> {
        blocking::block(self)
    }

    fn unblock(&self, blocked: Blocked, reply: Option<Reply>) {
        blocking::unblock(blocked, reply);
    }

    fn has_dropped_reply(&self, client: ClientId, since: Moment) -> bool {
        server_info::has_dropped_reply(self, client, since)
    }

    fn close(&self, client: ClientId) {
        // SAFETY: a live context; a number that no client has is an error and nothing else.
        unsafe { api!(RedisModule_DeauthenticateAndCloseClient, self.as_ptr(), client.0) };
    }

    // Most callers pass a constant part, so the compiler removes the choice.
    #[inline(always)]
    fn reply(&self, part: Part<'_>) {
        let ctx = self.as_ptr();
        // SAFETY: 1. a live context; 2. texts are C strings, and they and the bytes are copied; 3. the parts of a list
        // or map follow.
        unsafe {
            match part {
                Part::Error(text) => reply_error(self, text),
                Part::WrongArity => _ = api!(RedisModule_WrongArity, ctx),
                Part::Integer(number) => {
                    let number = c_longlong::try_from(number).unwrap_or(c_longlong::MAX);
                    (calls().reply_integer)(ctx, number);
                }
                Part::Null => _ = api!(RedisModule_ReplyWithNull, ctx),
                Part::Ok => _ = api!(RedisModule_ReplyWithSimpleString, ctx, c"OK".as_ptr()),
                Part::Bool(truth) => _ = api!(RedisModule_ReplyWithBool, ctx, c_int::from(truth)),
                Part::Bytes(bytes) => {
                    let (start, len) = (bytes.as_ptr().cast(), bytes.len());
                    api!(RedisModule_ReplyWithStringBuffer, ctx, start, len);
                }
                Part::Array(len) => _ = api!(RedisModule_ReplyWithArray, ctx, len as _),
                // A flat array in RESP2.
                Part::Map(len) => _ = api!(RedisModule_ReplyWithMap, ctx, len as _),
            }
        }
    }
}

fn reply_error(ctx: &Ctx, text: &str) {
    let Ok(text) = CString::new(text.replace(['\0', '\r', '\n'], " ")) else {
        return;
    };
    // SAFETY: a live context and a C string.
    unsafe { api!(RedisModule_ReplyWithError, ctx.as_ptr(), text.as_ptr()) };
}

const fn event_name(event: Event) -> &'static CStr {
    match event {
        Event::Acquired => c"lock.acquired",
        Event::Released => c"lock.released",
        Event::Expired => c"lock.expired",
        Event::Broken => c"lock.broken",
    }
}
