//! Work that only the pump does: whatever makes some sees to it here that the pump runs.

use super::server::Server;
use super::state::State;

/// A run that was asked for and has not begun after this time is asked for again. The server's timers run on the wall
/// clock: if that steps back while one is pending, it is late by the whole step.
const LATE_MS: u64 = 20;

/// Asks for a run of the pump as soon as the running command or event ends.
pub fn request<S: Server>(server: &S) {
    let now = server.boot();
    let is_late = server.with(|state| {
        let requested = &mut state.pump.requested;
        if requested.is_some_and(|since| since.plus_ms(LATE_MS) > now) {
            return None;
        }
        Some(requested.replace(now).is_some())
    });
    if let Some(is_late) = is_late.flatten() {
        server.run_soon(is_late);
    }
}

/// Returns true if a run that was asked for does not begin.
pub fn is_late<S: Server>(server: &S) -> bool {
    let now = server.boot();
    let since = server.with(|state| state.pump.requested).flatten();
    since.is_some_and(|since| since.plus_ms(LATE_MS) <= now)
}

/// Does something that may make work, and asks for a run if there is any. Callbacks and what comes behind a step of a
/// command use only this, so that nobody has to remember to ask.
pub fn after<S: Server, R>(server: &S, act: impl FnOnce(&mut State<S::Blocked, S::Alarm>) -> R) -> Option<R> {
    let (done, has_work) = server.with(|state| {
        let done = act(state);
        (done, state.has_work())
    })?;
    if has_work {
        request(server);
    }
    Some(done)
}

/// Sees to it that the pump runs when the next thing ends.
pub fn rearm<S: Server>(server: &S) {
    let _ = server.with(State::rearm);
}
