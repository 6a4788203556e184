//! Locks of old clients during a migration: `SET key value NX PX`, with the setting legacy-strings.
//!
//! A string with a time to live counts as a lock that the owner named by its value holds. It goes in ways that the
//! module's own type would be told of, and a string is not: so keyspace events are listened to, which nobody else has
//! to pay for, because it begins when the setting is switched on.

use super::server::{Key, Server};
use super::work;
use crate::lock::effect::{Found, Legacy};

/// What is found at an open key, where strings may be locks; `owner` is whoever asks.
#[inline]
pub fn find<S: Server>(server: &S, key: &S::Key<'_>, owner: Option<&[u8]>) -> Found {
    let found = key.found();
    if found == Found::Other && server.shared().settings.has_legacy_strings() {
        find_string(server, key, owner)
    } else {
        found
    }
}

#[cold]
fn find_string<S: Server>(server: &S, key: &S::Key<'_>, owner: Option<&[u8]>) -> Found {
    let Some(left_ms) = key.string_ttl_ms() else {
        return Found::Other;
    };
    let is_own = owner.is_some_and(|owner| key.string() == owner);
    Found::Legacy(Legacy { is_own, until: server.boot().plus_ms(left_ms) })
}

/// Something happened to a key: who waits for it may be next.
pub fn key_changed<S: Server>(server: &S, name: S::Name<'_>) {
    if server.with(|state| state.table.waiters() > 0) == Some(true) {
        let place = server.place(name);
        let _ = work::after(server, |state| state.table.note(place));
    }
}
