//! The data type: the server's callbacks that save, load, free or measure a lock.
//!
//! The value of a key is the number of a lock in the table, in place of a pointer that is never dereferenced. So
//! nothing here can be freed twice, or used after it was freed.

use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::{Ctx, Str, TYPE, api, lock_of, value_of};
use super::main_thread::SHARED;
use super::replicate::{emit_empty, emit_hold};
use super::{ffi, panic_guard, pump_timer, server_quirks};
use crate::engine::{drain, type_callbacks};
use crate::lock::codec::{self, Digested, SavedLock};
use crate::lock::effect::LockId;
use crate::lock::types::LockKey;

/// Nine letters, as the server requires; also the module's name.
const TYPE_NAME: &std::ffi::CStr = c"redislock";
/// Written with each value and each head of a file. Versions 0.1 and 0.2 wrote 1.
const ENCODING: c_int = 2;
/// The version of the head: its first number.
const HEAD_VERSION: u64 = 1;

/// Registers the type. Called once, at load, when the settings are known.
pub(crate) fn register(ctx: &Ctx) -> Result<(), String> {
    let has_optional_aux = server_quirks::kind().has_optional_aux();
    let must_write_clock = drain::must_write_clock(&SHARED);
    let version =
        if has_optional_aux { ffi::TYPE_METHODS_WITH_AUX_SAVE2 } else { ffi::TYPE_METHODS_WITH_UNLINK2 };
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::try_from(version).unwrap_or(4),
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        free: Some(free),
        aux_load: Some(aux_load),
        aux_save: if must_write_clock { Some(aux_save) } else { None },
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
        free_effort: None,
        unlink: None,
        // No copy: two locks never share a token (CONTRACT 5).
        copy: None,
        // Nothing to move: the value is not a pointer.
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
        unlink2: Some(unlink),
        copy2: None,
        aux_save2: if has_optional_aux { Some(aux_save) } else { None },
    };
    // SAFETY: 1. within OnLoad; 2. the methods are copied.
    let made = unsafe {
        api!(RedisModule_CreateDataType, ctx.as_ptr(), TYPE_NAME.as_ptr(), ENCODING, &raw mut methods)
    };
    let made = made.filter(|made| !made.is_null());
    TYPE.store(
        made.ok_or("the data type redislock could not be registered")?,
        std::sync::atomic::Ordering::Relaxed,
    );
    Ok(())
}

/// Returns the name of the key that is read or written; empty if the server does not report it.
fn name_in<'a>(io: *mut raw::RedisModuleIO) -> &'a [u8] {
    // SAFETY: the stream of the running callback; the name lives as long as the callback.
    unsafe {
        let name = api!(RedisModule_GetKeyNameFromIO, io);
        name.and_then(|name| Str::from_raw(name)).map_or(&[], Str::bytes)
    }
}

/// Reads the next number. `None` at the end or on an error.
fn load_number(io: *mut raw::RedisModuleIO) -> Option<u64> {
    // SAFETY: the stream of the running callback.
    unsafe {
        let number = api!(RedisModule_LoadUnsigned, io)?;
        (api!(RedisModule_IsIOError, io) == Some(0)).then_some(number)
    }
}

fn save_number(io: *mut raw::RedisModuleIO, number: u64) {
    // SAFETY: the stream of the running callback.
    unsafe { api!(RedisModule_SaveUnsigned, io, number) };
}

/// A string that the server has read, which goes back to the server.
struct Block {
    bytes: NonNull<u8>,
    length: usize,
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the server's value is ours, and that long, until it is given back.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.length) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it is given back once, and not read after that.
        unsafe { api!(RedisModule_Free, self.bytes.as_ptr().cast()) };
    }
}

/// Reads the next block. `None` at the end or on an error.
fn load_block(io: *mut raw::RedisModuleIO) -> Option<Block> {
    let mut length = 0;
    // SAFETY: the stream of the running callback.
    unsafe {
        let bytes = api!(RedisModule_LoadStringBuffer, io, &raw mut length)?;
        let block = Block { bytes: NonNull::new(bytes.cast())?, length };
        (api!(RedisModule_IsIOError, io) == Some(0)).then_some(block)
    }
}

fn save_block(io: *mut raw::RedisModuleIO, block: &[u8]) {
    // SAFETY: the stream of the running callback; the bytes are read at once.
    unsafe { api!(RedisModule_SaveStringBuffer, io, block.as_ptr().cast(), block.len()) };
}

fn refuse(io: *mut raw::RedisModuleIO, what: &str, reason: &str) {
    let Ok(text) = std::ffi::CString::new(format!("redislock: {what} was refused: {reason}")) else {
        return;
    };
    // SAFETY: the stream of the running callback; the format takes one C string.
    unsafe { api!(RedisModule_LogIOError, io, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
}

extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, encoding: c_int) -> *mut c_void {
    panic_guard::callback(std::ptr::null_mut(), || match load(io, encoding) {
        Ok(value) => value,
        Err(reason) => {
            refuse(io, "a lock", reason);
            std::ptr::null_mut()
        }
    })
}

/// Refuses a value in another format.
const fn check(encoding: c_int) -> Result<(), &'static str> {
    match encoding {
        ENCODING => Ok(()),
        1 => Err(
            "redislock 0.1 or 0.2 has written it, and this version does not read that; see Upgrade in docs/operations/install-and-upgrade.md",
        ),
        _ => Err("its encoding is not known to this module: a newer one has written it"),
    }
}

fn load(io: *mut raw::RedisModuleIO, encoding: c_int) -> Result<*mut c_void, &'static str> {
    check(encoding)?;
    let name = name_in(io);
    // SAFETY: the stream of the running callback.
    let db = unsafe { api!(RedisModule_GetDbIdFromIO, io) }.and_then(|db| u32::try_from(db).ok());
    let saved = codec::read(name, || load_block(io))?;
    type_callbacks::load(&anywhere(), LockKey { db: db.unwrap_or(0), name }, saved.as_ref()).map(value_of)
}

/// Returns a context for callbacks that get none. The detached one lives as long as the module.
fn anywhere() -> Ctx {
    pump_timer::detached().unwrap_or(Ctx::nowhere())
}

/// Returns the saved form of a value.
fn saved(value: *mut c_void) -> Option<SavedLock> {
    type_callbacks::saved(&anywhere(), lock_of(value))
}

extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    panic_guard::callback((), || {
        codec::write(name_in(io), saved(value).as_ref(), |block| save_block(io, block));
    });
}

extern "C" fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    panic_guard::callback((), || match saved(value) {
        Some(lock) => lock.holds.iter().for_each(|hold| emit_hold(io, key, lock.mode, hold)),
        None => emit_empty(io, key),
    });
}

extern "C" fn mem_usage(value: *const c_void) -> usize {
    panic_guard::callback(0, || type_callbacks::memory(&anywhere(), lock_of(value.cast_mut())))
}

extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    panic_guard::callback((), || {
        codec::digest(saved(value).as_ref(), |part| match part {
            // SAFETY: the digest of the running callback.
            Digested::Number(number) => _ = unsafe { api!(RedisModule_DigestAddLongLong, digest, number) },
            // SAFETY: as above; the bytes are read at once.
            Digested::Bytes(bytes) => unsafe {
                api!(RedisModule_DigestAddStringBuffer, digest, bytes.as_ptr().cast(), bytes.len());
            },
        });
        // SAFETY: as above.
        unsafe { api!(RedisModule_DigestEndSequence, digest) };
    });
}

/// Handles a value that is about to leave its key.
extern "C" fn unlink(_ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    let lock = lock_of(value.cast_mut());
    if !SHARED.is_letting_go(lock) {
        unlinked(lock);
    }
}

// Not inlined: for the key of a released lock, the callback only finds that there is nothing to do.
#[inline(never)]
fn unlinked(lock: LockId) {
    panic_guard::callback((), || type_callbacks::unlinked(&anywhere(), lock));
}

/// Handles a freed value. May run on a thread of the server's own.
extern "C" fn free(value: *mut c_void) {
    let lock = lock_of(value);
    if !SHARED.is_letting_go(lock) {
        freed(lock);
    }
}

// Not inlined, as `unlinked`.
#[inline(never)]
fn freed(lock: LockId) {
    panic_guard::callback((), || type_callbacks::freed(&anywhere(), lock));
}

/// Writes the clock of tokens at the head of an RDB file.
extern "C" fn aux_save(io: *mut raw::RedisModuleIO, _when: c_int) {
    panic_guard::callback((), || {
        if let Some((last, replicated)) = type_callbacks::saved_clock(&anywhere()) {
            [HEAD_VERSION, last, replicated].into_iter().for_each(|number| save_number(io, number));
        }
    });
}

extern "C" fn aux_load(io: *mut raw::RedisModuleIO, encoding: c_int, _when: c_int) -> c_int {
    let failed = raw::REDISMODULE_ERR as c_int;
    panic_guard::callback(failed, || match load_head(io, encoding) {
        Ok(()) => raw::REDISMODULE_OK as c_int,
        Err(reason) => {
            refuse(io, "the head of a file", reason);
            failed
        }
    })
}

fn load_head(io: *mut raw::RedisModuleIO, encoding: c_int) -> Result<(), &'static str> {
    check(encoding)?;
    let next = || load_number(io).ok_or("the clock of tokens cannot be read");
    if next()? != HEAD_VERSION {
        return Err("its version is not known to this module: a newer one has written it");
    }
    type_callbacks::load_clock(&anywhere(), next()?, next()?)
}
