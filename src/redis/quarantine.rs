//! When a quarantine begins and ends, and who is told: see `src/lock/table/quarantine.rs`.

use super::api::Ctx;
use super::{carry_out, clock, ffi, settings, state};
use crate::lock::types::Moment;

/// This server begins, or begins to decide: it may lack locks that were granted before.
pub(crate) fn begin(ctx: &Ctx, why: &str) {
    let length_ms = settings::quarantine_ms();
    if length_ms == 0 {
        return;
    }
    let now = clock::boot();
    let _ = state::with(|state| {
        state.table.begin_quarantine(now, length_ms);
        state.pump.is_quarantined = true;
    });
    carry_out::rearm();
    ctx.log(
        ffi::SERVER_LOG_NOTICE,
        &format!("quarantine: no new lock is granted for {length_ms} milliseconds, because {why}"),
    );
}

/// Says so when it is over. In every run of the pump.
pub(crate) fn look(ctx: &Ctx, now: Moment) {
    let has_ended = state::with(|state| {
        let has_ended = state.pump.is_quarantined && state.table.quarantine_left_ms(now).is_none();
        state.pump.is_quarantined &= !has_ended;
        has_ended
    });
    if has_ended == Some(true) {
        ctx.log(ffi::SERVER_LOG_NOTICE, "quarantine: it is over, locks are granted again");
    }
}
