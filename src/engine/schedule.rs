//! Requests runs of the pump. Everything that gives it work does so here.

use super::server::Server;
use super::state::State;

/// A requested run that has not begun after this time is requested again. The server's timers follow the wall clock:
/// if that steps back while one is pending, it is late by the whole step.
const LATE_MS: u64 = 20;

/// Requests a run of the pump once the running command or event has ended.
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

/// Returns true if a requested run has not begun in time.
pub fn is_late<S: Server>(server: &S) -> bool {
    let now = server.boot();
    let since = server.with(|state| state.pump.requested).flatten();
    since.is_some_and(|since| since.plus_ms(LATE_MS) <= now)
}

/// Does something that may give the pump work, and requests a run if so. Callbacks, and what follows a step of a
/// command, use only this, so that no caller can forget the request.
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

/// Sets the alarm for the next deadline.
pub fn rearm<S: Server>(server: &S) {
    let _ = server.with(State::rearm);
}
