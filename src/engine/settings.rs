//! The settings (CONTRACT 7): names, ranges, and what follows from them.
//!
//! The server stores the values here, at any time. [`settings_changed`](super::server_events::settings_changed) then
//! applies them.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};

use crate::command::args::{Bounds, integer};
use crate::command::error::shown;
use crate::lock::confirm::Rule;
use crate::lock::table::Limits;

/// A setting that is a number.
#[derive(Debug)]
pub struct Number {
    /// Its name, without `redislock.`.
    pub name: &'static CStr,
    /// The least that it can be.
    pub min: i64,
    /// The most that it can be.
    pub max: i64,
    value: AtomicI64,
}

impl Number {
    const fn new(name: &'static CStr, default: i64, min: i64, max: i64) -> Self {
        Self { name, min, max, value: AtomicI64::new(default) }
    }

    /// The value as the server keeps it.
    #[must_use]
    pub fn raw(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets the value, whose range the server has checked.
    pub fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> u64 {
        u64::try_from(self.raw()).unwrap_or(0)
    }

    fn get_size(&self) -> usize {
        usize::try_from(self.raw()).unwrap_or(0)
    }
}

/// A setting that is yes or no.
#[derive(Debug)]
pub struct Switch {
    /// Its name, without `redislock.`.
    pub name: &'static CStr,
    value: AtomicBool,
}

impl Switch {
    const fn new(name: &'static CStr) -> Self {
        Self { name, value: AtomicBool::new(false) }
    }

    /// Returns true if it is yes.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set(&self, value: bool) {
        self.value.store(value, Ordering::Relaxed);
    }
}

const DAY_MS: i64 = 86_400_000;

/// The values of `confirm`. A value is stored as its index.
pub const CONFIRM_WORDS: [&CStr; 3] = [c"local", c"all", c"majority"];
const LOCAL: u8 = 0;
const ALL: u8 = 1;

/// How long ago, at most, a grant may have been made when it is checked: longer than a run of the pump.
const STABLE_SLACK_MS: u64 = 10;

/// All settings.
#[derive(Debug)]
pub struct Settings {
    max_lease: Number,
    max_wait: Number,
    max_waiters_per_lock: Number,
    max_waiters: Number,
    max_holders: Number,
    max_token_lead: Number,
    quarantine: Number,
    group_size: Number,
    confirm_timeout: Number,
    top_contended: Number,
    allow_eviction: Switch,
    legacy_strings: Switch,
    leaving: Switch,
    confirm: AtomicU8,
}

impl Settings {
    /// The defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max_lease: Number::new(c"max-lease", 3_600_000, 100, DAY_MS),
            max_wait: Number::new(c"max-wait", 0, 0, DAY_MS),
            max_waiters_per_lock: Number::new(c"max-waiters-per-lock", 10_000, 0, 1_000_000),
            max_waiters: Number::new(c"max-waiters", 20_000, 0, 10_000_000),
            max_holders: Number::new(c"max-holders", 10_000, 1, 1_000_000),
            max_token_lead: Number::new(c"max-token-lead", 60_000, 0, DAY_MS),
            quarantine: Number::new(c"quarantine", 0, 0, DAY_MS),
            group_size: Number::new(c"group-size", 0, 0, 15),
            confirm_timeout: Number::new(c"confirm-timeout", 1000, 1, 60_000),
            top_contended: Number::new(c"top-contended", 0, 0, 100),
            allow_eviction: Switch::new(c"allow-eviction"),
            legacy_strings: Switch::new(c"legacy-strings"),
            leaving: Switch::new(c"leaving"),
            confirm: AtomicU8::new(LOCAL),
        }
    }

    /// The settings that are numbers.
    #[must_use]
    pub const fn numbers(&self) -> [&Number; 10] {
        [
            &self.max_lease,
            &self.max_wait,
            &self.max_waiters_per_lock,
            &self.max_waiters,
            &self.max_holders,
            &self.max_token_lead,
            &self.quarantine,
            &self.group_size,
            &self.confirm_timeout,
            &self.top_contended,
        ]
    }

    /// The settings that are yes or no.
    #[must_use]
    pub const fn switches(&self) -> [&Switch; 3] {
        [&self.allow_eviction, &self.legacy_strings, &self.leaving]
    }

    /// Returns the index in [`CONFIRM_WORDS`].
    #[must_use]
    pub fn confirm(&self) -> u8 {
        self.confirm.load(Ordering::Relaxed)
    }

    /// Sets the index in [`CONFIRM_WORDS`].
    pub fn set_confirm(&self, number: u8) {
        self.confirm.store(number, Ordering::Relaxed);
    }

    /// Returns the value of `confirm` as a word.
    #[must_use]
    pub fn confirm_word(&self) -> &'static str {
        let word = CONFIRM_WORDS.get(usize::from(self.confirm()));
        word.and_then(|word| word.to_str().ok()).unwrap_or("local")
    }

    /// Returns which acknowledgements a grant or a renewal needs; `None` if none.
    #[must_use]
    pub fn confirm_rule(&self) -> Option<Rule> {
        let size = self.group_size.get_size();
        match self.confirm() {
            LOCAL => None,
            ALL => Some(Rule::All { replicas: size.saturating_sub(1) }),
            _ => Some(Rule::Majority { replicas: size / 2, stable_ms: self.stable_ms() }),
        }
    }

    /// Returns how long a replica must have been connected, and this server primary, to count for a majority.
    #[must_use]
    pub fn stable_ms(&self) -> u64 {
        self.quarantine_ms().saturating_add(STABLE_SLACK_MS)
    }

    /// Returns true if grants and renewals need acknowledgements.
    #[inline]
    #[must_use]
    pub fn confirms(&self) -> bool {
        self.confirm() != LOCAL
    }

    /// Returns how long to wait for acknowledgements.
    #[must_use]
    pub fn confirm_timeout_ms(&self) -> u64 {
        self.confirm_timeout.get()
    }

    /// Returns how many contended locks INFO names.
    #[must_use]
    pub fn top_contended(&self) -> usize {
        self.top_contended.get_size()
    }

    /// Returns how many nodes the group has, including the primary; 0 if not set.
    #[must_use]
    pub fn group_size(&self) -> u64 {
        self.group_size.get()
    }

    /// Returns how long no new lock is granted after a start or a promotion.
    #[must_use]
    pub fn quarantine_ms(&self) -> u64 {
        self.quarantine.get()
    }

    /// Returns how far ahead of the wall clock a token from outside may be, in microseconds.
    #[must_use]
    pub fn token_lead_us_max(&self) -> u64 {
        self.max_token_lead.get() * 1000
    }

    /// Returns true if locks are granted even on a server that may evict them.
    #[must_use]
    pub fn allows_eviction(&self) -> bool {
        self.allow_eviction.is_on()
    }

    /// Returns true if a string with a time to live counts as a lock.
    #[inline]
    #[must_use]
    pub fn has_legacy_strings(&self) -> bool {
        self.legacy_strings.is_on()
    }

    /// Returns true if the module is being removed: no lock is granted, and the module writes nothing of its own.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_on()
    }

    /// Returns what parsing needs.
    #[inline]
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        // Locks that may be lost must have expired when the quarantine ends.
        let quarantine_ms = Some(self.quarantine.get()).filter(|&ms| ms > 0);
        let lease_ms_max = quarantine_ms.map_or(self.max_lease.get(), |ms| ms.min(self.max_lease.get()));
        Bounds { lease_ms_max, wait_ms_max: Some(self.max_wait.get()).filter(|&max| max > 0) }
    }

    /// Returns the limits of the core.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            waiters_per_lock_max: self.max_waiters_per_lock.get_size(),
            waiters_max: self.max_waiters.get_size(),
            holders_max: self.max_holders.get_size(),
        }
    }

    /// Sets what [`Self::limits`] reads.
    #[cfg(test)]
    pub(crate) fn set_limits(&self, limits: Limits) {
        let Limits { waiters_per_lock_max, waiters_max, holders_max } = limits;
        self.max_waiters_per_lock.set(waiters_per_lock_max as i64);
        self.max_waiters.set(waiters_max as i64);
        self.max_holders.set(holders_max as i64);
    }

    /// Checks that the settings are consistent.
    pub fn check(&self) -> Result<(), &'static str> {
        match (self.confirms(), self.group_size.get(), self.quarantine.get()) {
            (true, 0, _) => {
                Err("redislock.confirm all and majority need redislock.group-size, 1 to 15: how many data \
                 nodes this shard has, the primary included")
            }
            (true, _, 0) => {
                Err("redislock.confirm all and majority need redislock.quarantine, 1 to 86400000 \
                 milliseconds: as long as the longest lease")
            }
            (true, ..) if self.has_legacy_strings() => Err(
                "redislock.legacy-strings must be no where redislock.confirm is all or majority: no replica \
                 confirms a string",
            ),
            _ => Ok(()),
        }
    }

    /// Returns the numbers in words, for the log.
    #[must_use]
    pub fn in_words(&self) -> String {
        self.numbers().iter().fold(String::new(), |text, number| {
            let name = number.name.to_string_lossy();
            format!("{text}{}{name} {}", if text.is_empty() { "" } else { ", " }, number.get())
        })
    }

    /// Applies the arguments of `loadmodule`: pairs of names and values.
    pub fn take_load_arguments<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<(), String> {
        let mut given: Vec<String> = Vec::new();
        for pair in args.chunks(2) {
            let name = shown(pair[0].as_ref()).to_ascii_lowercase();
            if given.contains(&name) {
                return Err(format!("loadmodule argument {name} is given twice"));
            }
            let value = pair.get(1).ok_or_else(|| format!("loadmodule argument {name} needs a value"))?;
            self.take_load_argument(&name, value.as_ref())?;
            given.push(name);
        }
        Ok(())
    }

    fn take_load_argument(&self, name: &str, text: &[u8]) -> Result<(), String> {
        if let Some(switch) = self.switches().iter().find(|switch| switch.name.to_bytes() == name.as_bytes())
        {
            let truth = match text.to_ascii_lowercase().as_slice() {
                b"yes" => true,
                b"no" => false,
                _ => return Err(format!("loadmodule argument {name} must be yes or no")),
            };
            switch.set(truth);
            return Ok(());
        }
        if name == "confirm" {
            let is_meant = |word: &&CStr| word.to_bytes().eq_ignore_ascii_case(text);
            let number = CONFIRM_WORDS.iter().position(is_meant).and_then(|at| u8::try_from(at).ok());
            self.set_confirm(number.ok_or("loadmodule argument confirm must be local, all or majority")?);
            return Ok(());
        }
        let numbers = self.numbers();
        let number = numbers
            .iter()
            .find(|number| number.name.to_bytes() == name.as_bytes())
            .ok_or_else(|| unknown(name))?;
        let parsed = integer(text)
            .and_then(|value| i64::try_from(value).ok())
            .filter(|value| (number.min..=number.max).contains(value))
            .ok_or_else(|| {
                let (min, max) = (number.min, number.max);
                format!("loadmodule argument {name} must be an integer from {min} to {max}")
            })?;
        number.set(parsed);
        Ok(())
    }
}

/// Returns why an argument of this name is refused. CONFIG SET and configuration files use a prefix, and the
/// arguments of a module do not.
fn unknown(name: &str) -> String {
    let hint = name.strip_prefix("redislock.").map(|bare| format!("; write {bare}"));
    format!("loadmodule argument {name} is not a setting of redislock{}", hint.unwrap_or_default())
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}
