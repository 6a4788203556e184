//! Callbacks of the value type: what the server calls to save, load, free or measure a lock.
//!
//! Nothing is written when a key is removed, because it would precede its cause in the stream. The pump writes it.

use super::server::Server;
use super::state::State;
use super::{drain, lazy_subscribe, schedule};
use crate::lock::codec::SavedLock;
use crate::lock::effect::LockId;
use crate::lock::types::{LockKey, TOKEN_MAX};

/// Two days: twice the largest `max-token-lead`, to allow for clocks that differ.
const LEAD_OF_ANY_PRIMARY_US: u64 = 2 * 86_400_000_000;

/// Loads the value at this key; `None` is a lock without holders. Returns its lock, or why it is refused.
pub fn load<S: Server>(
    server: &S,
    lock_key: LockKey<'_>,
    saved: Option<&SavedLock>,
) -> Result<LockId, &'static str> {
    lazy_subscribe::begin(server);
    let flags = server.flags();
    let now = server.now();
    let lead_us_max = server.shared().settings.token_lead_us_max();
    let loaded = server.with(|state| {
        if let Some(saved) = saved
            && !flags.is_loading
        {
            // A payload from a client, not from a file or a primary, must not push the clock of tokens ahead (G14),
            // not even a series of payloads step by step. What a primary sends has passed that primary's own bound.
            let lead_max = if flags.is_replica { LEAD_OF_ANY_PRIMARY_US } else { lead_us_max };
            let highest = state.table.clock().highest_from_outside(now.wall_us, lead_max);
            let newest = saved.holds.last().map_or(0, |hold| hold.token.get());
            if newest > highest {
                return Err("its token is further ahead of the clock than redislock.max-token-lead");
            }
        }
        state.table.load(now.boot, lock_key, saved).ok_or("there are too many locks")
    });
    let loaded = loaded.unwrap_or(Err("the table is in use"));
    if loaded.is_ok() {
        server.shared().note_stored();
        let _ = schedule::after(server, State::rearm);
    }
    loaded
}

/// Returns the saved form of a value.
pub fn saved<S: Server>(server: &S, lock: LockId) -> Option<SavedLock> {
    let now = server.boot();
    server.with(|state| state.table.save(now, lock)).flatten()
}

/// Returns the memory that a value takes.
pub fn memory<S: Server>(server: &S, lock: LockId) -> usize {
    server.with(|state| state.table.memory_of(lock)).unwrap_or(0)
}

/// Handles a value that is about to leave its key.
pub fn unlinked<S: Server>(server: &S, lock: LockId) {
    if server.with(|state| state.table.is_held(lock)) != Some(true) {
        // The common case: the core has ended the hold and is deleting the key.
        return;
    }
    let is_ours = server.flags().decides();
    let now = server.boot();
    let _ = schedule::after(server, |state| state.table.unlinked(now, lock, is_ours));
}

/// Handles a freed value. May run on a thread of the server's own.
pub fn freed<S: Server>(server: &S, lock: LockId) {
    // The common case needs no clock, because nothing ends here.
    let forgotten = server.with(|state| state.table.forget_free(lock));
    if forgotten.is_some() {
        server.shared().note_freed();
    }
    match forgotten {
        Some(true) => {}
        // It was held, and neither unlinked nor flushed: it was never a key's.
        Some(false) => {
            let now = server.boot();
            let _ = schedule::after(server, |state| state.table.discard(now, lock));
        }
        None => server.shared().bury_later(lock),
    }
}

/// Returns what is written of the clock of tokens at the head of a file: the newest token, and the newest one that
/// readers of the stream know. `None` if nothing is written.
pub fn saved_clock<S: Server>(server: &S) -> Option<(u64, u64)> {
    let shared = server.shared();
    let saved = server.with(|state| {
        let clock = state.table.clock();
        (clock.last_token(), clock.replicated_token(), drain::writes_clock(shared, clock))
    });
    let (last, replicated, must_be_told) = saved.unwrap_or_default();
    // Before the first grant, and while the module is being removed, there is nothing to write. Where a server lets a
    // module write nothing, the file then loads without the module; on other servers this is not called then.
    (must_be_told || !shared.has_optional_aux.is_set()).then_some((last, replicated))
}

/// Takes over the saved clock of tokens, or returns why it is refused.
pub fn load_clock<S: Server>(server: &S, last: u64, replicated: u64) -> Result<(), &'static str> {
    if last > TOKEN_MAX || replicated > TOKEN_MAX {
        return Err("the clock of tokens is beyond 2^53");
    }
    lazy_subscribe::begin(server);
    let _ = server.with(|state| state.table.clock().adopt(last, replicated));
    Ok(())
}
