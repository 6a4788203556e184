//! Which server this is: Redis or Valkey, and how old.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::api::{Ctx, Flags, api};

/// Which server this is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    is_valkey: bool,
    /// As the module API tells it, 0xMMmmpp; Valkey says 7.2.4 for compatibility.
    version: c_int,
    /// Valkey's own major version; 0 on Redis.
    valkey_major: u32,
}

static KIND: OnceLock<Kind> = OnceLock::new();

/// Which server this is, as found at load.
pub(crate) fn kind() -> Kind {
    let unknown = Kind { is_valkey: false, version: 0, valkey_major: 0 };
    KIND.get().copied().unwrap_or(unknown)
}

/// Asks the server. Once, at load.
pub(crate) fn begin(ctx: &Ctx) {
    // SAFETY: 1. both names are C strings; 2. `function` is written by the server if it knows the name,
    // and only looked at, never called.
    let (version, is_valkey) = unsafe {
        let mut function: *mut c_void = std::ptr::null_mut();
        let name = c"ValkeyModule_GetServerVersion".as_ptr();
        let known = get_api(ctx, name, &raw mut function);
        (api!(RedisModule_GetServerVersion).unwrap_or(0), known && !function.is_null())
    };
    let _ = KIND.set(Kind { is_valkey, version, valkey_major: valkey_major(ctx) });
}

/// The first number of `valkey_version` in INFO; 0 where there is none.
fn valkey_major(ctx: &Ctx) -> u32 {
    let version = info(ctx, c"server", c"valkey_version");
    version.and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(0)
}

/// What the server's own INFO says. It cannot be renamed or forbidden, as CONFIG can.
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

static IS_CLUSTER: AtomicBool = AtomicBool::new(false);
static HEARS_CLIENTS_ONLY: AtomicBool = AtomicBool::new(false);
static HEARS_EVENTS: AtomicBool = AtomicBool::new(false);

/// What the server says about itself, outside of a command.
pub(crate) fn flags() -> Flags {
    // SAFETY: null is allowed here.
    unsafe { Ctx::from_raw(std::ptr::null_mut()) }.flags()
}

/// Whether it is a node of a cluster.
pub(crate) fn is_cluster() -> bool {
    IS_CLUSTER.load(Ordering::Relaxed)
}

/// Whether every command comes from a client that asks, so that nobody needs to look: this is a primary
/// that loads nothing, and no cluster, where slots come in as facts.
pub(crate) fn hears_clients_only() -> bool {
    HEARS_CLIENTS_ONLY.load(Ordering::Relaxed)
}

/// Takes note of the server's role: at each event that can change it, and in each run of the pump.
pub(crate) fn note_role(flags: Flags) {
    let hears_clients_only = flags.decides() && !flags.is_cluster() && hears_events();
    IS_CLUSTER.store(flags.is_cluster(), Ordering::Relaxed);
    HEARS_CLIENTS_ONLY.store(hears_clients_only, Ordering::Relaxed);
}

/// Whether the server tells of its events. Without them nobody would say when its role changes.
pub(crate) fn hears_events() -> bool {
    HEARS_EVENTS.load(Ordering::Relaxed)
}

/// From now on the server tells of its events.
pub(crate) fn begin_to_hear_events() {
    HEARS_EVENTS.store(true, Ordering::Relaxed);
}

/// Something begins after which facts may come: look at each command, until the role is noted again.
pub(crate) fn expect_facts() {
    HEARS_CLIENTS_ONLY.store(false, Ordering::Relaxed);
}

impl Kind {
    pub(crate) const fn is_valkey(self) -> bool {
        self.is_valkey
    }

    /// Whether CLIENT UNBLOCK may end a wait. On Redis 7.2 it would abort the server when it meets a
    /// client that was answered in the same turn of the event loop.
    pub(crate) const fn can_unblock(self) -> bool {
        self.is_valkey || self.version < 0x07_0200 || self.version >= 0x07_0400
    }

    /// Whether CLIENT UNBLOCK loses the reply of a client that was answered in the same turn of the event loop.
    pub(crate) const fn loses_answers(self) -> bool {
        !self.is_valkey && self.version < 0x07_0200
    }

    /// Whether CLUSTER SLOTS can be asked outside of a command. Valkey 8 looks at the address of the client
    /// that asks, and crashes where there is none.
    pub(crate) const fn can_ask_for_slots(self) -> bool {
        !self.is_valkey || self.valkey_major >= 9
    }

    /// Whether it tells when slots leave as a whole, and must not be given a command without keys meanwhile.
    pub(crate) const fn tells_of_slots(self) -> bool {
        self.is_valkey && self.valkey_major >= 9
    }

    /// Whether a replica may load beside its old data. Redis 8.0 ends itself when the link breaks while it reads a
    /// value of a module: it takes what it has not got for the name of an unknown type. In 8.6 that is mended.
    pub(crate) const fn can_load_beside(self) -> bool {
        self.is_valkey || self.version < 0x08_0000 || self.version >= 0x08_0600
    }

    /// Whether a module can write "nothing" at the head of an RDB file.
    pub(crate) const fn has_optional_aux(self) -> bool {
        self.version >= 0x07_0200
    }
}
