//! The module API's functions that every lock uses, as plain pointers.
//!
//! The bindings keep each function in a variable of its own, which other libraries could replace. So each call costs
//! two loads and a test. An acquire and release make about twenty such calls. This table is read once, at load, so a
//! call costs nothing extra.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_longlong, c_ulonglong, c_void};
use std::ptr::{null, null_mut};

use redis_module::raw;

macro_rules! calls {
    ($($field:ident = $name:ident($($arg:ty),*) -> $result:ty, or $otherwise:expr;)*) => {
        /// The functions, by short names.
        #[derive(Clone, Copy)]
        pub(super) struct Calls {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl Calls {
            /// Functions that do nothing, before the server has provided its own.
            const NONE: Self = Self {
                $($field: {
                    unsafe extern "C" fn none($(_: $arg),*) -> $result {
                        $otherwise
                    }
                    none
                },)*
            };

            fn of_server() -> Self {
                // SAFETY: static pointers that the server has filled in before our `OnLoad` continues.
                unsafe { Self { $($field: raw::$name.unwrap_or(Self::NONE.$field),)* } }
            }
        }
    };
}

type Ctx = *mut raw::RedisModuleCtx;
type Key = *mut raw::RedisModuleKey;
type Str = *mut raw::RedisModuleString;
type Type = *mut raw::RedisModuleType;

calls! {
    client_id = RedisModule_GetClientId(Ctx) -> c_ulonglong, or 0;
    selected_db = RedisModule_GetSelectedDb(Ctx) -> c_int, or 0;
    string_ptr_len = RedisModule_StringPtrLen(*const raw::RedisModuleString, *mut usize) -> *const c_char, or null();
    open_key = RedisModule_OpenKey(Ctx, Str, c_int) -> Key, or null_mut();
    close_key = RedisModule_CloseKey(Key) -> (), or ();
    key_type = RedisModule_KeyType(Key) -> c_int, or raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
    type_of = RedisModule_ModuleTypeGetType(Key) -> Type, or null_mut();
    value_of = RedisModule_ModuleTypeGetValue(Key) -> *mut c_void, or null_mut();
    set_value = RedisModule_ModuleTypeSetValue(Key, Type, *mut c_void) -> c_int, or raw::REDISMODULE_ERR as c_int;
    delete_key = RedisModule_DeleteKey(Key) -> c_int, or raw::REDISMODULE_ERR as c_int;
    replicate_verbatim = RedisModule_ReplicateVerbatim(Ctx) -> c_int, or raw::REDISMODULE_ERR as c_int;
    reply_integer = RedisModule_ReplyWithLongLong(Ctx, c_longlong) -> c_int, or raw::REDISMODULE_ERR as c_int;
}

struct Table(Cell<Calls>);

// SAFETY: 1. it is written once, at load, when no other thread knows of this module; 2. from then on it is only read.
unsafe impl Sync for Table {}

static TABLE: Table = Table(Cell::new(Calls::NONE));

/// Reads the server's functions. Called once, at load.
pub(super) fn begin() {
    TABLE.0.set(Calls::of_server());
}

/// Returns the functions.
#[inline(always)]
pub(super) fn calls() -> Calls {
    TABLE.0.get()
}
