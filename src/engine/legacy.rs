//! Locks of old clients during a migration: `SET key value NX PX`, with the setting legacy-strings.
//!
//! A string with a time to live counts as a lock, held by the owner that its value names. No callback reports the end
//! of a string, as it does for the module's own type. So the module listens to keyspace events, but only while the
//! setting is on.

use super::schedule;
use super::server::{Key, Server};
use crate::lock::effect::{Existing, Legacy};

/// Returns what is at an open key where strings may be locks. `owner` is the owner that asks.
#[inline]
pub fn find<S: Server>(server: &S, key: &S::Key<'_>, owner: Option<&[u8]>) -> Existing {
    let existing = key.existing();
    if existing == Existing::Other && server.shared().settings.has_legacy_strings() {
        find_string(server, key, owner)
    } else {
        existing
    }
}

#[cold]
fn find_string<S: Server>(server: &S, key: &S::Key<'_>, owner: Option<&[u8]>) -> Existing {
    let Some(left_ms) = key.string_ttl_ms() else {
        return Existing::Other;
    };
    let is_own = owner.is_some_and(|owner| key.string() == owner);
    Existing::Legacy(Legacy { is_own, until: server.boot().plus_ms(left_ms) })
}

/// Lets waiters for a changed key be served.
pub fn key_changed<S: Server>(server: &S, name: S::Name<'_>) {
    if server.with(|state| state.table.waiters() > 0) == Some(true) {
        let lock_key = server.lock_key(name);
        let _ = schedule::after(server, |state| state.table.note(lock_key));
    }
}
