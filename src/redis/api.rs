//! The server's module API, thinly wrapped: safe to call, and deciding nothing.
//!
//! # Safety of this file
//!
//! Every function of the API is a static pointer. The server fills it in before our `OnLoad` continues, and it is
//! never written afterwards. [`api`] reads it and calls it if it is there; [`calls`] has those of the usual commands
//! at hand. Handles ([`Ctx`], [`Key`], [`Str`]) are made only from pointers that the server passed to us for the
//! length of a callback. All of this runs on the server's main thread. So each `SAFETY` comment below is limited to
//! its call.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_longlong, c_void};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use super::api_table::calls;
use super::{ffi, server_quirks};
use crate::engine::server::{self, To};
use crate::lock::effect::{Existing, LockId};
use crate::lock::types::OWNER_BYTES_MAX;

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

    #[inline]
    pub(crate) fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the string lives for 'a, and nothing changes it meanwhile.
        unsafe {
            let start = (calls().string_ptr_len)(self.as_ptr(), &raw mut len);
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast(), len) }
        }
    }
}

impl AsRef<[u8]> for Str<'_> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// A string that we made. Dropping it frees it.
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

/// A string of the server that is made when first needed, and kept.
pub(crate) struct KeptStr(AtomicPtr<raw::RedisModuleString>, &'static str);

impl KeptStr {
    /// Creates an empty slot for this text.
    pub(crate) const fn new(text: &'static str) -> Self {
        Self(AtomicPtr::new(null_mut()), text)
    }

    /// Returns the string. `None` if memory is exhausted.
    pub(crate) fn get(&self) -> Option<Str<'static>> {
        let mut string = self.0.load(Ordering::Relaxed);
        if string.is_null() {
            // SAFETY: 1. the bytes are copied; 2. without a context nothing else frees it.
            string =
                unsafe { api!(RedisModule_CreateString, null_mut(), self.1.as_ptr().cast(), self.1.len())? };
            self.0.store(string, Ordering::Relaxed);
        }
        // SAFETY: null, or a string that is never freed.
        unsafe { Str::from_raw(string) }
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

    /// Returns no context: some functions of the API take that for the server itself.
    pub(crate) const fn nowhere() -> Self {
        Self(null_mut())
    }

    pub(crate) fn db(&self) -> u32 {
        // SAFETY: a live context.
        let db = unsafe { (calls().selected_db)(self.0) };
        u32::try_from(db).unwrap_or(0)
    }

    pub(crate) fn select_db(&self, db: u32) -> bool {
        let Ok(db) = c_int::try_from(db) else {
            return false;
        };
        // SAFETY: a live context; a number out of range is an error.
        (unsafe { api!(RedisModule_SelectDb, self.0, db) }) == Some(raw::REDISMODULE_OK as c_int)
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

    /// Sets the module's options, among them when clients that watch a key are notified.
    pub(crate) fn set_options(&self, signals: Signals) {
        let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS as c_int;
        if signals == Signals::Never {
            options |= raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int;
        }
        if server_quirks::kind().is_valkey() {
            options |= (ffi::VALKEY_OPTION_SKIP_COMMAND_VALIDATION
                | ffi::VALKEY_OPTION_HANDLE_ATOMIC_SLOT_MIGRATION) as c_int;
        }
        // SAFETY: a live context; the server only stores the bits.
        unsafe { api!(RedisModule_SetModuleOptions, self.0, options) };
    }

    /// Returns true if the server only asks which arguments are keys.
    pub(crate) fn is_asked_for_keys(&self) -> bool {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_IsKeysPositionRequest, self.0) }.is_some_and(|asks| asks != 0)
    }

    /// Reports, if the server asks for keys, that the word at this position is a key with these flags.
    pub(crate) fn report_key(&self, at: c_int, flags: c_int) {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_KeyAtPosWithFlags, self.0, at, flags) };
    }
}

/// The access flags of a command that changes its key.
pub(crate) const UPDATES: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;

/// The access flags of a command that only reads its key.
pub(crate) const READS: u32 = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;

/// The time at which the server notifies clients that watch a key (WATCH, client-side caches) of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signals {
    /// When the module closes a key that was open for writing.
    WhenClosed,
    /// Never.
    Never,
}

/// An open key. Dropping it closes the key, and notifies clients that watch it if it was changed.
pub(crate) struct Key<'a> {
    key: *mut raw::RedisModuleKey,
    ctx: &'a Ctx,
    is_for_writing: bool,
    is_changed: Cell<bool>,
}

impl<'a> Key<'a> {
    #[inline]
    pub(crate) fn open(ctx: &'a Ctx, name: Str<'_>, to: To) -> Self {
        let is_for_writing = to == To::Write;
        let mode = raw::REDISMODULE_READ | if is_for_writing { raw::REDISMODULE_WRITE } else { 0 };
        // SAFETY: a live context and string. Null is a key that is not there, in read mode.
        let key = unsafe { (calls().open_key)(ctx.0, name.as_ptr(), mode as c_int) };
        Self { key, ctx, is_for_writing, is_changed: Cell::new(false) }
    }
}

impl server::Key for Key<'_> {
    #[inline]
    fn existing(&self) -> Existing {
        if self.key.is_null() {
            return Existing::Nothing;
        }
        // SAFETY: 1. an open key; it has a type only if its value is a module's; 2. the value is asked for only if it
        // is of our type; 3. it is a number, which is never dereferenced.
        unsafe {
            if (calls().type_of)(self.key) == lock_type() {
                return Existing::Lock(lock_of((calls().value_of)(self.key)));
            }
            match (calls().key_type)(self.key) {
                kind if kind as isize == raw::REDISMODULE_KEYTYPE_EMPTY => Existing::Nothing,
                _ => Existing::Other,
            }
        }
    }

    fn string_ttl_ms(&self) -> Option<u64> {
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

    fn string(&self) -> Vec<u8> {
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

    fn live_until(&self, wall_ms: u64) {
        self.touch();
        let wall_ms = c_longlong::try_from(wall_ms).unwrap_or(c_longlong::MAX);
        // SAFETY: a key open for writing.
        unsafe { api!(RedisModule_SetAbsExpire, self.key, wall_ms) };
    }

    fn touch(&self) {
        self.is_changed.set(true);
    }

    fn store(&self, lock: LockId) {
        self.touch();
        // SAFETY: a key open for writing; the value is a number that the type's callbacks understand.
        unsafe { (calls().set_value)(self.key, lock_type(), value_of(lock)) };
    }

    fn delete(&self) {
        self.touch();
        // SAFETY: a key open for writing.
        unsafe { (calls().delete_key)(self.key) };
    }

    fn persist(&self) {
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
        // Asking the server to notify clients costs another look-up of the key on some versions; asking it not to,
        // one store.
        let is_silent = self.is_for_writing && !self.is_changed.get();
        if is_silent {
            self.ctx.set_options(Signals::Never);
        }
        // SAFETY: it was opened by us and is closed once.
        unsafe { (calls().close_key)(self.key) };
        if is_silent {
            self.ctx.set_options(Signals::WhenClosed);
        }
    }
}

/// Our type, as registered.
pub(super) static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());

/// Returns our type; null before it is registered.
#[inline]
pub(super) fn lock_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// Returns the value of a key for this lock.
pub(crate) fn value_of(lock: LockId) -> *mut c_void {
    std::ptr::without_provenance_mut(lock.number() as usize)
}

/// Returns the lock of a key's value.
pub(crate) fn lock_of(value: *mut c_void) -> LockId {
    LockId::from_number(value.addr() as u64)
}
