//! Determines which server this is: Redis or Valkey, and its version.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use redis_module::raw;

use super::acl;
use super::api::{Ctx, api};
use super::main_thread::SHARED;
use super::server_quirks::{self, Kind};

/// Asks the server. Called once, at load.
pub(crate) fn begin(ctx: &Ctx) {
    let is_valkey = function_of_valkey(ctx, c"ValkeyModule_GetServerVersion").is_some();
    // SAFETY: no arguments.
    let version = unsafe { api!(RedisModule_GetServerVersion) }.unwrap_or(0);
    if let Some(function) = function_of_valkey(ctx, c"ValkeyModule_ACLCheckPermissions") {
        // SAFETY: by this name Valkey gives a function of this type.
        acl::check_by(unsafe { std::mem::transmute::<NonNull<c_void>, acl::CheckAt>(function) });
    }
    let kind = Kind { is_valkey, version, valkey_major: valkey_major(ctx) };
    server_quirks::note(kind);
    SHARED.loses_answers.set(kind.loses_answers());
    SHARED.has_optional_aux.set(kind.has_optional_aux());
}

/// Returns the first number of `valkey_version` in INFO; 0 without that field.
fn valkey_major(ctx: &Ctx) -> u32 {
    let version = info(ctx, c"server", c"valkey_version");
    version.and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(0)
}

/// Reads a field of the server's own INFO. It cannot be renamed or forbidden, as CONFIG can.
pub(crate) fn info(ctx: &Ctx, section: &CStr, field: &CStr) -> Option<String> {
    // SAFETY: 1. a live context; 2. the field is a C string that lives as long as the data; 3. the data is
    // freed once, after its last use.
    unsafe {
        let data = api!(RedisModule_GetServerInfo, ctx.as_ptr(), section.as_ptr());
        let data = data.filter(|data| !data.is_null())?;
        let value = api!(RedisModule_ServerInfoGetFieldC, data, field.as_ptr());
        let value = value.filter(|value| !value.is_null());
        let text = value.map(|value| CStr::from_ptr(value).to_string_lossy().into_owned());
        api!(RedisModule_FreeServerInfo, ctx.as_ptr(), data);
        text
    }
}

/// Returns a function of the server's API that only Valkey has.
fn function_of_valkey(ctx: &Ctx, name: &CStr) -> Option<NonNull<c_void>> {
    let mut function: *mut c_void = std::ptr::null_mut();
    // SAFETY: `function` is written by the server if it knows the name.
    let is_known = unsafe { get_api(ctx, name.as_ptr(), &raw mut function) };
    NonNull::new(function).filter(|_| is_known)
}

/// Asks the server for a function of its API by name.
///
/// # Safety
/// `name` is a C string, `function` may be written to.
unsafe fn get_api(ctx: &Ctx, name: *const std::ffi::c_char, function: *mut *mut c_void) -> bool {
    type GetApi = unsafe extern "C" fn(*const std::ffi::c_char, *mut c_void) -> c_int;
    // SAFETY: 1. the first word of a context is the address of this function: it is how every module,
    // by the server's own header, comes to its API; 2. the context is that of OnLoad.
    unsafe {
        let get_api: Option<GetApi> = *ctx.as_ptr().cast();
        get_api.is_some_and(|get_api| get_api(name, function.cast()) == raw::REDISMODULE_OK as c_int)
    }
}
