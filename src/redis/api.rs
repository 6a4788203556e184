//! The server's module API as we use it: thin, safe to call, nothing decided.
//!
//! # Safety of this file
//!
//! Every function of the API is a static pointer that the server fills in before our `OnLoad` goes on and
//! nobody writes afterwards; [`api`] reads it and calls it if it is there. Handles ([`Ctx`], [`Key`],
//! [`Str`]) are made only from pointers that the server handed to us for the length of a callback, and
//! all of this runs on the server's main thread. So the `SAFETY` comments below say only what is
//! particular to a call.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_longlong, c_void};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

use redis_module::raw;

use super::{ffi, server};
use crate::lock::effect::{Found, LockId};
use crate::lock::types::{ClientId, OWNER_BYTES_MAX, Place};

/// Calls a function of the API; `None` on a server that does not have it.
macro_rules! api {
    ($name:ident $(, $arg:expr)*) => {
        raw::$name.map(|function| function($($arg),*))
    };
}
pub(crate) use api;

/// A string of the server, valid for the length of the callback that it came with.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Str<'a>(NonNull<raw::RedisModuleString>, PhantomData<&'a ()>);

impl<'a> Str<'a> {
    /// # Safety
    /// The pointer is null or a string that outlives `'a`.
    pub(crate) unsafe fn from_raw(string: *const raw::RedisModuleString) -> Option<Self> {
        NonNull::new(string.cast_mut()).map(|string| Self(string, PhantomData))
    }

    /// # Safety
    /// `argv` and `argc` are the arguments that the server passed to the running command.
    pub(crate) unsafe fn args(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> &'a [Self] {
        let count = usize::try_from(argc).unwrap_or(0);
        if argv.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: 1. the caller vouches for `argc` pointers at `argv`; 2. none of them is null;
        // 3. Str is transparent over such a pointer.
        unsafe { std::slice::from_raw_parts(argv.cast(), count) }
    }

    pub(crate) const fn as_ptr(self) -> *mut raw::RedisModuleString {
        self.0.as_ptr()
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the string lives for 'a, and nothing changes it meanwhile.
        unsafe {
            let start = api!(RedisModule_StringPtrLen, self.as_ptr(), &raw mut len);
            match start {
                Some(start) if !start.is_null() => std::slice::from_raw_parts(start.cast(), len),
                _ => &[],
            }
        }
    }
}

impl AsRef<[u8]> for Str<'_> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// A string that we made; freed when dropped.
pub(crate) struct OwnedStr<'a>(Str<'a>, *mut raw::RedisModuleCtx);

impl<'a> OwnedStr<'a> {
    /// # Safety
    /// The string is ours to free, and `ctx` outlives it.
    pub(crate) unsafe fn from_raw(ctx: &'a Ctx, string: *mut raw::RedisModuleString) -> Option<Self> {
        // SAFETY: the caller's contract.
        Some(Self(unsafe { Str::from_raw(string) }?, ctx.0))
    }

    pub(crate) const fn as_str(&self) -> Str<'_> {
        self.0
    }
}

impl Drop for OwnedStr<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made for us and is freed once.
        unsafe { api!(RedisModule_FreeString, self.1, self.0.as_ptr()) };
    }
}

/// What the server says about itself and the running command.
#[derive(Clone, Copy)]
pub(crate) struct Flags(c_int);

impl Flags {
    const fn has(self, bit: u32) -> bool {
        self.0 as u32 & bit != 0
    }
    pub(crate) const fn is_replica(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_SLAVE)
    }
    pub(crate) const fn is_loading(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING)
    }
    /// A data set is being loaded, and no commands are served meanwhile.
    pub(crate) const fn is_loading_only(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LOADING)
    }
    /// The running command is a fact from a primary or from a file.
    pub(crate) const fn is_fact(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING)
    }
    pub(crate) const fn is_cluster(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    }
    pub(crate) const fn has_aof(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_AOF)
    }
    pub(crate) const fn denies_blocking(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING)
    }
    pub(crate) const fn is_script(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LUA)
    }
    /// Whether grants and expiries are this server's to decide at all.
    pub(crate) const fn decides(self) -> bool {
        !self.is_replica() && !self.is_loading()
    }
}

/// The context of a callback.
pub(crate) struct Ctx(*mut raw::RedisModuleCtx);

impl Ctx {
    /// # Safety
    /// The pointer is the context of the running callback, or a detached context of our own.
    pub(crate) const unsafe fn from_raw(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self(ctx)
    }

    pub(crate) const fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.0
    }

    pub(crate) fn flags(&self) -> Flags {
        // SAFETY: a context, or null, which the function allows.
        Flags(unsafe { api!(RedisModule_GetContextFlags, self.0) }.unwrap_or(0))
    }

    pub(crate) fn db(&self) -> u32 {
        // SAFETY: a live context.
        let db = unsafe { api!(RedisModule_GetSelectedDb, self.0) };
        db.and_then(|db| u32::try_from(db).ok()).unwrap_or(0)
    }

    pub(crate) fn select_db(&self, db: u32) -> bool {
        let Ok(db) = c_int::try_from(db) else {
            return false;
        };
        // SAFETY: a live context; a number out of range is an error.
        (unsafe { api!(RedisModule_SelectDb, self.0, db) }) == Some(raw::REDISMODULE_OK as c_int)
    }

    /// The connection that runs the command; `None` where there is none. In a script, and in another module's
    /// call, it is one that [`is_connected`] does not know.
    pub(crate) fn client(&self) -> Option<ClientId> {
        // SAFETY: a live context.
        let id = unsafe { api!(RedisModule_GetClientId, self.0) }?;
        (id != 0 && id != u64::MAX).then_some(ClientId(id))
    }

    pub(crate) fn new_str<'a>(&'a self, bytes: &[u8]) -> Option<OwnedStr<'a>> {
        // SAFETY: 1. the bytes are copied; 2. the result is ours; 3. it is not in the context's own
        // keeping, because no context has automatic memory management here.
        unsafe {
            let string = api!(RedisModule_CreateString, self.0, bytes.as_ptr().cast(), bytes.len())?;
            OwnedStr::from_raw(self, string)
        }
    }

    pub(crate) fn log(&self, level: &CStr, text: &str) {
        // A log line is one line, and its format is ours.
        let Ok(text) = CString::new(text.replace(['\0', '\r', '\n'], " ")) else {
            return;
        };
        // SAFETY: the format takes one C string.
        unsafe { api!(RedisModule_Log, self.0, level.as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
    }

    pub(crate) fn publish(&self, event: &CStr, name: Str<'_>) {
        let class = raw::REDISMODULE_NOTIFY_MODULE;
        // SAFETY: a live context and strings.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent, self.0, class, event.as_ptr(), name.as_ptr()) };
    }

    /// Tells the server what this module can do, and when it tells watchers of a key that it changed.
    pub(crate) fn set_options(&self, signals: Signals) {
        let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS as c_int;
        if server::kind().can_load_beside() {
            options |= raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD as c_int;
        }
        if signals == Signals::Never {
            options |= raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int;
        }
        if server::kind().is_valkey() {
            options |= (ffi::VALKEY_OPTION_SKIP_COMMAND_VALIDATION
                | ffi::VALKEY_OPTION_HANDLE_ATOMIC_SLOT_MIGRATION) as c_int;
        }
        // SAFETY: a live context; the server only stores the bits.
        unsafe { api!(RedisModule_SetModuleOptions, self.0, options) };
    }

    /// Whether the server only wants to know which of the arguments are keys.
    pub(crate) fn is_asked_for_keys(&self) -> bool {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_IsKeysPositionRequest, self.0) }.is_some_and(|asks| asks != 0)
    }

    /// Tells that the argument at this position is a key that is changed. Only if it was asked for.
    pub(crate) fn tell_key_at(&self, position: usize) {
        const FLAGS: u32 =
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;
        // SAFETY: a live context.
        unsafe { api!(RedisModule_KeyAtPosWithFlags, self.0, position as c_int, FLAGS as c_int) };
    }

    pub(crate) fn replicate_as_asked(&self) {
        // SAFETY: a live context of a running command.
        unsafe { api!(RedisModule_ReplicateVerbatim, self.0) };
    }
}

/// Whether a client has this connection now.
pub(crate) fn is_connected(client: ClientId) -> bool {
    // SAFETY: null asks for nothing but whether it is there.
    let found = unsafe { api!(RedisModule_GetClientInfoById, null_mut(), client.0) };
    found == Some(raw::REDISMODULE_OK as c_int)
}

/// Replies. Each command sends exactly one, after everything was parsed.
impl Ctx {
    pub(crate) fn reply_error(&self, text: &str) -> c_int {
        let Ok(text) = CString::new(text.replace(['\0', '\r', '\n'], " ")) else {
            return 0;
        };
        // SAFETY: a live context and a C string.
        unsafe { api!(RedisModule_ReplyWithError, self.0, text.as_ptr()) }.unwrap_or(0)
    }

    pub(crate) fn reply_integer(&self, number: u64) -> c_int {
        let number = c_longlong::try_from(number).unwrap_or(c_longlong::MAX);
        // SAFETY: a live context.
        unsafe { api!(RedisModule_ReplyWithLongLong, self.0, number) }.unwrap_or(0)
    }

    pub(crate) fn reply_null(&self) -> c_int {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_ReplyWithNull, self.0) }.unwrap_or(0)
    }

    pub(crate) fn reply_ok(&self) -> c_int {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_ReplyWithSimpleString, self.0, c"OK".as_ptr()) }.unwrap_or(0)
    }

    pub(crate) fn reply_bool(&self, truth: bool) -> c_int {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_ReplyWithBool, self.0, c_int::from(truth)) }.unwrap_or(0)
    }

    pub(crate) fn reply_bytes(&self, bytes: &[u8]) -> c_int {
        // SAFETY: a live context; the bytes are copied.
        unsafe { api!(RedisModule_ReplyWithStringBuffer, self.0, bytes.as_ptr().cast(), bytes.len()) }
            .unwrap_or(0)
    }

    pub(crate) fn reply_array(&self, len: usize) -> c_int {
        // SAFETY: a live context; the elements follow.
        unsafe { api!(RedisModule_ReplyWithArray, self.0, len as _) }.unwrap_or(0)
    }

    pub(crate) fn reply_map(&self, len: usize) -> c_int {
        // SAFETY: a live context; `len` pairs follow. A flat array in RESP2.
        unsafe { api!(RedisModule_ReplyWithMap, self.0, len as _) }.unwrap_or(0)
    }

    pub(crate) fn wrong_arity(&self) -> c_int {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_WrongArity, self.0) }.unwrap_or(0)
    }
}

/// When the server tells those who watch a key (WATCH, client-side caches) that it changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signals {
    /// Whenever we close a key that was open for writing.
    WhenClosed,
    /// Not at all.
    Never,
}

/// An open key; closed when dropped. Those who watch it are told then, if it was changed.
pub(crate) struct Key<'a> {
    key: *mut raw::RedisModuleKey,
    ctx: &'a Ctx,
    is_for_writing: bool,
    is_changed: Cell<bool>,
}

impl<'a> Key<'a> {
    /// Opens a key to change it.
    pub(crate) fn open_write(ctx: &'a Ctx, name: Str<'_>) -> Self {
        Self::open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// Opens a key to look at it.
    pub(crate) fn open_read(ctx: &'a Ctx, name: Str<'_>) -> Self {
        Self::open(ctx, name, raw::REDISMODULE_READ)
    }

    fn open(ctx: &'a Ctx, name: Str<'_>, mode: u32) -> Self {
        // SAFETY: a live context and string. Null is a key that is not there, in read mode.
        let key = unsafe { api!(RedisModule_OpenKey, ctx.0, name.as_ptr(), mode as c_int) };
        let is_for_writing = mode & raw::REDISMODULE_WRITE != 0;
        Self { key: key.unwrap_or(null_mut()).cast(), ctx, is_for_writing, is_changed: Cell::new(false) }
    }

    /// What the keyspace holds here.
    pub(crate) fn found(&self, ours: *mut raw::RedisModuleType) -> Found {
        if self.key.is_null() {
            return Found::Nothing;
        }
        // SAFETY: 1. an open key; a type is told only of a module's value; 2. the value is asked for only if
        // it is of our type; 3. it is a number, which nobody follows as a pointer.
        unsafe {
            if api!(RedisModule_ModuleTypeGetType, self.key) == Some(ours) {
                let value = api!(RedisModule_ModuleTypeGetValue, self.key);
                return Found::Lock(lock_of(value.unwrap_or(null_mut())));
            }
            match api!(RedisModule_KeyType, self.key) {
                Some(kind) if kind as isize == raw::REDISMODULE_KEYTYPE_EMPTY => Found::Nothing,
                _ => Found::Other,
            }
        }
    }

    /// What is left of the life of a string; `None`: it is no string, or lives for ever.
    pub(crate) fn string_ttl_ms(&self) -> Option<u64> {
        // SAFETY: an open key; the time to live is asked for only of a key that is there.
        unsafe {
            let kind = api!(RedisModule_KeyType, self.key)?;
            if kind as isize != raw::REDISMODULE_KEYTYPE_STRING {
                return None;
            }
            let left = api!(RedisModule_GetExpire, self.key)?;
            if left == raw::REDISMODULE_NO_EXPIRE as c_longlong {
                return None;
            }
            Some(u64::try_from(left).unwrap_or(0))
        }
    }

    /// The value of a string, one byte more than an owner can have at most.
    pub(crate) fn string(&self) -> Vec<u8> {
        let mut len = 0;
        // SAFETY: 1. an open key that is a string; 2. the value lives until the key is changed or closed, and is
        // copied.
        unsafe {
            let start = api!(RedisModule_StringDMA, self.key, &raw mut len, raw::REDISMODULE_READ as c_int);
            match start.filter(|start| !start.is_null()) {
                Some(start) => {
                    let len = len.min(OWNER_BYTES_MAX + 1);
                    std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec()
                }
                None => Vec::new(),
            }
        }
    }

    /// It has to live until this moment of the wall clock, in milliseconds. Only a key that is there.
    pub(crate) fn live_until(&self, wall_ms: u64) {
        self.touch();
        let wall_ms = c_longlong::try_from(wall_ms).unwrap_or(c_longlong::MAX);
        // SAFETY: a key open for writing.
        unsafe { api!(RedisModule_SetAbsExpire, self.key, wall_ms) };
    }

    /// What its value stands for was changed.
    pub(crate) fn touch(&self) {
        self.is_changed.set(true);
    }

    /// Makes this lock the value of the key, whatever was there.
    pub(crate) fn store(&self, ours: *mut raw::RedisModuleType, lock: LockId) {
        self.touch();
        // SAFETY: a key open for writing; the value is a number that the type's callbacks understand.
        unsafe { api!(RedisModule_ModuleTypeSetValue, self.key, ours, value_of(lock)) };
    }

    /// Deletes the key.
    pub(crate) fn delete(&self) {
        self.touch();
        // SAFETY: a key open for writing.
        unsafe { api!(RedisModule_DeleteKey, self.key) };
    }

    /// Takes away the time to live that a user may have given to the key. Only on a key that exists.
    pub(crate) fn persist(&self) {
        const NO_EXPIRE: c_longlong = raw::REDISMODULE_NO_EXPIRE as c_longlong;
        // SAFETY: a key open for writing, not empty (an empty one crashes Redis 8.6 here).
        unsafe {
            if api!(RedisModule_GetExpire, self.key).is_some_and(|ttl| ttl != NO_EXPIRE) {
                api!(RedisModule_SetExpire, self.key, NO_EXPIRE);
            }
        }
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if self.key.is_null() {
            return;
        }
        // Asking the server to tell is another look-up of the key on some versions; asking it not to tell, a
        // store of a number.
        let is_silent = self.is_for_writing && !self.is_changed.get();
        if is_silent {
            self.ctx.set_options(Signals::Never);
        }
        // SAFETY: it was opened by us and is closed once.
        unsafe { api!(RedisModule_CloseKey, self.key) };
        if is_silent {
            self.ctx.set_options(Signals::WhenClosed);
        }
    }
}

/// The value of a key that stands for this lock.
pub(crate) fn value_of(lock: LockId) -> *mut c_void {
    std::ptr::without_provenance_mut(lock.number() as usize)
}

/// The lock that a key's value stands for.
pub(crate) fn lock_of(value: *mut c_void) -> LockId {
    LockId::from_number(value.addr() as u64)
}

/// The place of a key in the selected database.
pub(crate) fn place_of<'a>(ctx: &Ctx, name: Str<'a>) -> Place<'a> {
    Place { db: ctx.db(), name: name.bytes() }
}
