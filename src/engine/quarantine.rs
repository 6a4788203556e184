//! Starts and ends quarantines, and logs them: see `src/lock/table/quarantine.rs`.

use super::flags::Level;
use super::schedule;
use super::server::Server;
use crate::lock::types::Moment;

/// Starts a quarantine, if one is set: this server has started or become primary, and may lack locks that were
/// granted.
pub fn begin<S: Server>(server: &S, why: &str) {
    let length_ms = server.shared().settings.quarantine_ms();
    if length_ms == 0 {
        return;
    }
    let now = server.boot();
    let _ = server.with(|state| {
        state.table.begin_quarantine(now, length_ms);
        state.pump.is_quarantined = true;
    });
    schedule::rearm(server);
    let text = format!("quarantine: no new lock is granted for {length_ms} milliseconds, because {why}");
    server.log(Level::Notice, &text);
}

/// Logs the end of a quarantine. Called in every run of the pump.
pub fn look<S: Server>(server: &S, now: Moment) {
    let has_ended = server.with(|state| {
        let has_ended = state.pump.is_quarantined && state.table.quarantine_left_ms(now).is_none();
        state.pump.is_quarantined &= !has_ended;
        has_ended
    });
    if has_ended == Some(true) {
        server.log(Level::Notice, "quarantine: it is over, locks are granted again");
    }
}
