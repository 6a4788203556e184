//! The native type: what the server calls when it saves, loads, frees or measures a lock.
//!
//! The value of a key is the number of a lock in the table, in the place of a pointer that nobody
//! follows. So nothing here can be freed twice or used after it was freed.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use redis_module::raw;

use super::api::{Ctx, Str, TYPE, api, lock_of, value_of};
use super::keeper::SHARED;
use super::replicate::emit_hold;
use super::{ffi, guard, kind, soon};
use crate::engine::{leaving, values};
use crate::lock::codec::{self, BLOCK_BYTES_MAX, Digested, Piece, SavedLock};
use crate::lock::effect::LockId;
use crate::lock::types::LockKey;

/// Nine letters, as the server wants them; also the module's name.
const TYPE_NAME: &std::ffi::CStr = c"redislock";
const ENCODING: c_int = 1;

/// Registers the type. Once, at load, when the settings are known.
pub(crate) fn register(ctx: &Ctx) -> Result<(), String> {
    let has_optional_aux = kind::kind().has_optional_aux();
    let must_write_clock = leaving::must_write_clock(&SHARED);
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

/// The name of the key that is read or written, empty if the server does not tell.
fn name_in<'a>(io: *mut raw::RedisModuleIO) -> &'a [u8] {
    // SAFETY: the stream of the running callback; the name lives as long as the callback.
    unsafe {
        let name = api!(RedisModule_GetKeyNameFromIO, io);
        name.and_then(|name| Str::from_raw(name)).map_or(&[], Str::bytes)
    }
}

/// The next number; `None` at the end or on an error.
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

/// The stream of the running callback.
struct Stream(*mut raw::RedisModuleIO);

impl codec::Source for Stream {
    fn number(&mut self) -> Option<u64> {
        load_number(self.0)
    }

    fn block(&mut self) -> Option<Vec<u8>> {
        let mut length = 0;
        // SAFETY: 1. the stream of the running callback; 2. what it gives is ours, that long and not read after it was
        // given back.
        unsafe {
            let buffer = api!(RedisModule_LoadStringBuffer, self.0, &raw mut length)?;
            let buffer = NonNull::new(buffer.cast::<u8>())?;
            let is_read = api!(RedisModule_IsIOError, self.0) == Some(0) && length <= BLOCK_BYTES_MAX;
            let block = is_read.then(|| std::slice::from_raw_parts(buffer.as_ptr(), length).to_vec());
            api!(RedisModule_Free, buffer.as_ptr().cast());
            block
        }
    }
}

fn save_piece(io: *mut raw::RedisModuleIO, piece: &Piece) {
    match piece {
        Piece::Number(number) => save_number(io, *number),
        // SAFETY: the stream of the running callback; the bytes are read at once.
        Piece::Block(block) => unsafe {
            api!(RedisModule_SaveStringBuffer, io, block.as_ptr().cast(), block.len());
        },
    }
}

fn refuse(io: *mut raw::RedisModuleIO, reason: &str) {
    let Ok(text) = std::ffi::CString::new(format!("redislock: a lock was refused: {reason}")) else {
        return;
    };
    // SAFETY: the stream of the running callback; the format takes one C string.
    unsafe { api!(RedisModule_LogIOError, io, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
}

extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, encoding: c_int) -> *mut c_void {
    guard::callback(std::ptr::null_mut(), || match load(io, encoding) {
        Ok(value) => value,
        Err(reason) => {
            refuse(io, reason);
            std::ptr::null_mut()
        }
    })
}

fn load(io: *mut raw::RedisModuleIO, encoding: c_int) -> Result<*mut c_void, &'static str> {
    if encoding != ENCODING {
        return Err("its encoding is not known to this module");
    }
    let name = name_in(io);
    // SAFETY: the stream of the running callback.
    let db = unsafe { api!(RedisModule_GetDbIdFromIO, io) }.and_then(|db| u32::try_from(db).ok());
    let saved = codec::read(name, &mut Stream(io))?;
    values::load(&anywhere(), LockKey { db: db.unwrap_or(0), name }, saved.as_ref()).map(value_of)
}

/// A context for callbacks that are given none. The detached one lives as long as the module.
fn anywhere() -> Ctx {
    soon::detached().unwrap_or(Ctx::nowhere())
}

/// What is saved of a value.
fn saved(value: *mut c_void) -> Option<SavedLock> {
    values::saved(&anywhere(), lock_of(value))
}

extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    guard::callback((), || {
        codec::write(name_in(io), saved(value).as_ref(), |piece| save_piece(io, &piece));
    });
}

extern "C" fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    guard::callback((), || match saved(value) {
        Some(lock) => lock.holds.iter().for_each(|hold| emit_hold(io, key, lock.mode, hold)),
        // SAFETY: the stream of the running callback; the format takes a string and a C string.
        None => unsafe {
            api!(RedisModule_EmitAOF, io, c"LOCK.APPLY".as_ptr(), c"sc".as_ptr(), key, c"EMPTY".as_ptr());
        },
    });
}

extern "C" fn mem_usage(value: *const c_void) -> usize {
    guard::callback(0, || values::memory(&anywhere(), lock_of(value.cast_mut())))
}

extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    guard::callback((), || {
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

/// The key is about to leave its name.
extern "C" fn unlink(_ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    let lock = lock_of(value.cast_mut());
    if !SHARED.is_letting_go(lock) {
        unlinked(lock);
    }
}

// Apart from the callback, which for the key of a lock that is released only finds that there is nothing to do.
#[inline(never)]
fn unlinked(lock: LockId) {
    guard::callback((), || values::unlinked(&anywhere(), lock));
}

/// The value is gone for good. May come on a thread of the server's own.
extern "C" fn free(value: *mut c_void) {
    let lock = lock_of(value);
    if !SHARED.is_letting_go(lock) {
        freed(lock);
    }
}

// Apart, as `unlinked`.
#[inline(never)]
fn freed(lock: LockId) {
    guard::callback((), || values::freed(&anywhere(), lock));
}

/// Writes at the head of an RDB file how far the clock of tokens is.
extern "C" fn aux_save(io: *mut raw::RedisModuleIO, _when: c_int) {
    guard::callback((), || {
        if let Some((last, replicated)) = values::saved_clock(&anywhere()) {
            save_number(io, last);
            save_number(io, replicated);
        }
    });
}

extern "C" fn aux_load(io: *mut raw::RedisModuleIO, encoding: c_int, _when: c_int) -> c_int {
    let failed = raw::REDISMODULE_ERR as c_int;
    guard::callback(failed, || {
        let numbers = load_number(io).zip(load_number(io)).filter(|_| encoding == ENCODING);
        let loaded = numbers.ok_or("the clock of tokens cannot be read");
        match loaded.and_then(|(last, replicated)| values::load_clock(&anywhere(), last, replicated)) {
            Ok(()) => raw::REDISMODULE_OK as c_int,
            Err(reason) => {
                refuse(io, reason);
                failed
            }
        }
    })
}
