//! What the user can set (SPEC 7): `loadmodule ... name value`, `CONFIG SET redislock.name value`.
//!
//! A value given to `loadmodule` becomes the setting's default, so that a line `redislock.name value` in
//! the file still wins and CONFIG REWRITE has nothing to write while the two agree.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::{clock, confirm, events, guard, leaving, state};
use crate::command::args::{Bounds, integer};
use crate::lock::confirm::Rule;
use crate::lock::table::Limits;

/// A setting that is a number.
struct Number {
    name: &'static CStr,
    min: i64,
    max: i64,
    value: AtomicI64,
}

const fn number(name: &'static CStr, default: i64, min: i64, max: i64) -> Number {
    Number { name, min, max, value: AtomicI64::new(default) }
}

const DAY_MS: i64 = 86_400_000;

static MAX_LEASE: Number = number(c"max-lease", 3_600_000, 100, DAY_MS);
static MAX_WAIT: Number = number(c"max-wait", 0, 0, DAY_MS);
static MAX_WAITERS_PER_LOCK: Number = number(c"max-waiters-per-lock", 10_000, 0, 1_000_000);
static MAX_WAITERS: Number = number(c"max-waiters", 20_000, 0, 10_000_000);
static MAX_HOLDERS: Number = number(c"max-holders", 10_000, 1, 1_000_000);
static MAX_TOKEN_LEAD: Number = number(c"max-token-lead", 60_000, 0, DAY_MS);

static QUARANTINE: Number = number(c"quarantine", 0, 0, DAY_MS);
static GROUP_SIZE: Number = number(c"group-size", 0, 0, 15);
static CONFIRM_TIMEOUT: Number = number(c"confirm-timeout", 1000, 1, 60_000);

static NUMBERS: [&Number; 9] = [
    &MAX_LEASE,
    &MAX_WAIT,
    &MAX_WAITERS_PER_LOCK,
    &MAX_WAITERS,
    &MAX_HOLDERS,
    &MAX_TOKEN_LEAD,
    &QUARANTINE,
    &GROUP_SIZE,
    &CONFIRM_TIMEOUT,
];

/// What `confirm` can be. The number of a word is its place here.
const CONFIRM_WORDS: [&CStr; 3] = [c"local", c"all", c"majority"];
const LOCAL: c_int = 0;
const ALL: c_int = 1;

static CONFIRM: AtomicI32 = AtomicI32::new(LOCAL);

/// How long before it is looked at a grant may have been made: longer than a run of the pump lasts.
const SEASON_SLACK_MS: u64 = 10;

/// Which acknowledgements a grant and a renewal need; `None`: none.
pub(crate) fn confirm_rule() -> Option<Rule> {
    let size = usize::try_from(GROUP_SIZE.get()).unwrap_or(0);
    match CONFIRM.load(Ordering::Relaxed) {
        LOCAL => None,
        ALL => Some(Rule::All { replicas: size.saturating_sub(1) }),
        _ => Some(Rule::Majority { replicas: size / 2, seasoned_ms: season_ms() }),
    }
}

/// For how long a replica must have been connected to count for a majority, and this server have been primary.
pub(crate) fn season_ms() -> u64 {
    QUARANTINE.get().saturating_add(SEASON_SLACK_MS)
}

/// Whether grants and renewals need acknowledgements.
#[inline]
pub(crate) fn confirms() -> bool {
    CONFIRM.load(Ordering::Relaxed) != LOCAL
}

/// How long to wait for acknowledgements.
pub(crate) fn confirm_timeout_ms() -> u64 {
    CONFIRM_TIMEOUT.get()
}

/// How many nodes the group has, the primary among them; 0: nobody said.
pub(crate) fn group_size() -> u64 {
    GROUP_SIZE.get()
}

/// The word for what grants and renewals are confirmed by.
pub(crate) fn confirm_word() -> &'static str {
    let number = usize::try_from(CONFIRM.load(Ordering::Relaxed)).unwrap_or(0);
    CONFIRM_WORDS.get(number).and_then(|word| word.to_str().ok()).unwrap_or("local")
}

/// Whether the settings make sense together.
fn check() -> Result<(), &'static str> {
    match (confirms(), GROUP_SIZE.get(), QUARANTINE.get()) {
        (true, 0, _) => {
            Err("redislock.confirm all and majority need redislock.group-size, 1 to 15: how many data \
             nodes this shard has, the primary included")
        }
        (true, _, 0) => Err("redislock.confirm all and majority need redislock.quarantine, 1 to 86400000 \
             milliseconds: as long as the longest lease"),
        _ => Ok(()),
    }
}

/// A setting that is yes or no.
struct Switch {
    name: &'static CStr,
    value: AtomicBool,
}

static ALLOW_EVICTION: Switch = Switch { name: c"allow-eviction", value: AtomicBool::new(false) };
static LEGACY_STRINGS: Switch = Switch { name: c"legacy-strings", value: AtomicBool::new(false) };

static LEAVING: Switch = Switch { name: c"leaving", value: AtomicBool::new(false) };

static SWITCHES: [&Switch; 3] = [&ALLOW_EVICTION, &LEGACY_STRINGS, &LEAVING];

impl Switch {
    fn is_on(&self) -> bool {
        self.value.load(Ordering::Relaxed)
    }
}

impl Number {
    fn get(&self) -> u64 {
        u64::try_from(self.value.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// What parsing needs.
pub(crate) fn bounds() -> Bounds {
    // What may be forgotten must be over when the quarantine is.
    let quarantine_ms = Some(QUARANTINE.get()).filter(|&ms| ms > 0);
    let lease_ms_max = quarantine_ms.map_or(MAX_LEASE.get(), |ms| ms.min(MAX_LEASE.get()));
    Bounds { lease_ms_max, wait_ms_max: Some(MAX_WAIT.get()).filter(|&max| max > 0) }
}

/// How long no new lock is granted after a start and after a promotion.
pub(crate) fn quarantine_ms() -> u64 {
    QUARANTINE.get()
}

/// How far ahead of the wall clock a token from outside may be, in microseconds.
pub(crate) fn token_lead_us_max() -> u64 {
    MAX_TOKEN_LEAD.get() * 1000
}

/// Whether locks are granted on a server that may evict them.
pub(crate) fn allows_eviction() -> bool {
    ALLOW_EVICTION.is_on()
}

/// Whether a string with a time to live counts as a lock.
#[inline]
pub(crate) fn has_legacy_strings() -> bool {
    LEGACY_STRINGS.is_on()
}

/// Whether the module is to go: no lock is granted any more, and nothing of its own is written.
pub(crate) fn is_leaving() -> bool {
    LEAVING.is_on()
}

/// The limits in words, for the log.
pub(crate) fn in_words() -> String {
    NUMBERS.iter().fold(String::new(), |text, number| {
        let name = number.name.to_string_lossy();
        format!("{text}{}{name} {}", if text.is_empty() { "" } else { ", " }, number.get())
    })
}

fn push() {
    let limits = Limits {
        waiters_per_lock_max: MAX_WAITERS_PER_LOCK.get() as usize,
        waiters_max: MAX_WAITERS.get() as usize,
        holders_max: MAX_HOLDERS.get() as usize,
    };
    let now = clock::boot();
    let _ = state::with(|state| {
        state.table.set_limits(limits);
        state.table.set_quarantine(now, quarantine_ms());
        state.table.set_leaving(is_leaving());
    });
    confirm::set(confirm_rule());
    let is_quarantined = super::pump::after(|state| state.pump.is_quarantined);
    if quarantine_ms() > 0 || is_leaving() {
        // A promotion must be heard of, even if no lock was ever used here; and the log tells when the way is free.
        events::begin_use_now();
    }
    if is_quarantined == Some(true) || is_leaving() {
        // The end of the one, or that the way is free for the other, may have to be told now.
        super::pump::request();
    }
}

/// Registers the settings. `args` are those of `loadmodule`.
pub(crate) fn register(ctx: &Ctx, args: &[Str<'_>]) -> Result<(), String> {
    take_load_arguments(args)?;
    for number in NUMBERS {
        register_number(ctx, number)?;
    }
    for switch in SWITCHES {
        register_switch(ctx, switch)?;
    }
    register_confirm(ctx)?;
    // SAFETY: a live context, within OnLoad.
    if unsafe { api!(RedisModule_LoadConfigs, ctx.as_ptr()) } != Some(raw::REDISMODULE_OK as c_int) {
        return Err("a redislock.* setting of the configuration file is not valid".to_owned());
    }
    check()?;
    push();
    Ok(())
}

fn take_load_arguments(args: &[Str<'_>]) -> Result<(), String> {
    let mut given: Vec<String> = Vec::new();
    for pair in args.chunks(2) {
        let name = crate::command::error::shown(pair[0].bytes()).to_ascii_lowercase();
        if given.contains(&name) {
            return Err(format!("loadmodule argument {name} is given twice"));
        }
        given.push(name.clone());
        let value = pair.get(1).ok_or_else(|| format!("loadmodule argument {name} needs a value"))?;
        let text = value.bytes();
        if let Some(switch) = SWITCHES.iter().find(|switch| switch.name.to_bytes() == name.as_bytes()) {
            let truth = match text.to_ascii_lowercase().as_slice() {
                b"yes" => true,
                b"no" => false,
                _ => return Err(format!("loadmodule argument {name} must be yes or no")),
            };
            switch.value.store(truth, Ordering::Relaxed);
            continue;
        }
        if name.as_bytes() == c"confirm".to_bytes() {
            let is_meant = |word: &&CStr| word.to_bytes().eq_ignore_ascii_case(text);
            let number = CONFIRM_WORDS.iter().position(is_meant).and_then(|at| c_int::try_from(at).ok());
            let number = number.ok_or("loadmodule argument confirm must be local, all or majority")?;
            CONFIRM.store(number, Ordering::Relaxed);
            continue;
        }
        let number = NUMBERS
            .iter()
            .find(|number| number.name.to_bytes() == name.as_bytes())
            .ok_or_else(|| format!("loadmodule argument {name} is not a setting of redislock"))?;
        let parsed = integer(text)
            .and_then(|value| i64::try_from(value).ok())
            .filter(|value| (number.min..=number.max).contains(value))
            .ok_or_else(|| {
                let (min, max) = (number.min, number.max);
                format!("loadmodule argument {name} must be an integer from {min} to {max}")
            })?;
        number.value.store(parsed, Ordering::Relaxed);
    }
    Ok(())
}

fn register_number(ctx: &Ctx, number: &'static Number) -> Result<(), String> {
    let default = number.value.load(Ordering::Relaxed);
    // SAFETY: 1. within OnLoad; 2. name and privdata are static; 3. the callbacks have the types asked
    // for and cast privdata back to the same Number.
    let done = unsafe {
        api!(
            RedisModule_RegisterNumericConfig,
            ctx.as_ptr(),
            number.name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT,
            number.min,
            number.max,
            Some(get_number),
            Some(set_number),
            Some(apply),
            std::ptr::from_ref(number).cast_mut().cast()
        )
    };
    registered(done, number.name)
}

fn register_switch(ctx: &Ctx, switch: &'static Switch) -> Result<(), String> {
    let default = c_int::from(switch.is_on());
    // SAFETY: as for a number; privdata is a static Switch.
    let done = unsafe {
        api!(
            RedisModule_RegisterBoolConfig,
            ctx.as_ptr(),
            switch.name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_switch),
            Some(set_switch),
            Some(apply),
            std::ptr::from_ref(switch).cast_mut().cast()
        )
    };
    registered(done, switch.name)
}

fn register_confirm(ctx: &Ctx) -> Result<(), String> {
    let words = CONFIRM_WORDS.map(CStr::as_ptr);
    let numbers: [c_int; 3] = [0, 1, 2];
    // SAFETY: 1. within OnLoad; 2. the server copies words and numbers, which are as many as it is told; 3. the
    // callbacks have the types asked for and use no privdata.
    let done = unsafe {
        api!(
            RedisModule_RegisterEnumConfig,
            ctx.as_ptr(),
            c"confirm".as_ptr(),
            CONFIRM.load(Ordering::Relaxed),
            raw::REDISMODULE_CONFIG_DEFAULT,
            words.as_ptr().cast_mut(),
            numbers.as_ptr(),
            numbers.len() as c_int,
            Some(get_confirm),
            Some(set_confirm),
            Some(apply),
            std::ptr::null_mut()
        )
    };
    registered(done, c"confirm")
}

extern "C" fn get_confirm(_name: *const c_char, _data: *mut c_void) -> c_int {
    CONFIRM.load(Ordering::Relaxed)
}

extern "C" fn set_confirm(
    _name: *const c_char,
    value: c_int,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // The server has checked the word.
    CONFIRM.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

/// All settings of one CONFIG SET are set: if they make no sense together, the server sets them back.
extern "C" fn apply(
    _ctx: *mut raw::RedisModuleCtx,
    _data: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let failed = raw::REDISMODULE_ERR as c_int;
    guard::callback(failed, || match check() {
        Ok(()) => {
            push();
            raw::REDISMODULE_OK as c_int
        }
        Err(reason) => {
            tell_why(error, reason);
            failed
        }
    })
}

/// Tells the server why a setting is refused.
fn tell_why(error: *mut *mut raw::RedisModuleString, reason: &str) {
    // SAFETY: 1. a string of this length, made without a context; 2. the server frees what it is given here, in the
    // place that it gave to the running callback.
    unsafe {
        let text = api!(RedisModule_CreateString, std::ptr::null_mut(), reason.as_ptr().cast(), reason.len());
        if let Some(text) = text.filter(|_| !error.is_null()) {
            *error = text;
        }
    }
}

fn registered(done: Option<c_int>, name: &CStr) -> Result<(), String> {
    if done == Some(raw::REDISMODULE_OK as c_int) {
        return Ok(());
    }
    Err(format!("the setting {} could not be registered", name.to_string_lossy()))
}

extern "C" fn get_number(_name: *const c_char, number: *mut c_void) -> c_longlong {
    // SAFETY: the privdata of register_number: a static Number.
    unsafe { &*number.cast::<Number>() }.value.load(Ordering::Relaxed)
}

extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    number: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the privdata of register_number: a static Number. The server has checked the range.
    unsafe { &*number.cast::<Number>() }.value.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

extern "C" fn get_switch(_name: *const c_char, switch: *mut c_void) -> c_int {
    // SAFETY: the privdata of register_switch: a static Switch.
    c_int::from(unsafe { &*switch.cast::<Switch>() }.is_on())
}

extern "C" fn set_switch(
    _name: *const c_char,
    value: c_int,
    switch: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the privdata of register_switch: a static Switch.
    let switch = unsafe { &*switch.cast::<Switch>() };
    if switch.name == LEAVING.name
        && let Some(reason) = leaving::refusal_of_setting(value != 0)
    {
        tell_why(error, reason);
        return raw::REDISMODULE_ERR as c_int;
    }
    switch.value.store(value != 0, Ordering::Relaxed);
    if has_legacy_strings() {
        super::legacy::listen();
    }
    raw::REDISMODULE_OK as c_int
}
