//! `INFO redislock` (SPEC 8).

use std::ffi::{CStr, CString, c_int};

use redis_module::raw;

use super::api::{Ctx, api};
use super::{clock, confirm, guard, leaving, pump, server, state};
use crate::lock::stats::{BUCKETS_MS, Durations};

/// Version of the module.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit of its sources.
pub(crate) const COMMIT: &str = env!("REDISLOCK_COMMIT");

/// Registers the section. Once, at load.
pub(crate) fn register(ctx: &Ctx) -> Result<(), String> {
    // SAFETY: within OnLoad; the callback has the type asked for.
    match unsafe { api!(RedisModule_RegisterInfoFunc, ctx.as_ptr(), Some(on_info)) } {
        Some(done) if done == raw::REDISMODULE_OK as c_int => Ok(()),
        _ => Err("the INFO section could not be registered".to_owned()),
    }
}

struct Section(*mut raw::RedisModuleInfoCtx);

impl Section {
    fn number(&self, name: &CStr, number: u64) {
        // SAFETY: the context of the running callback and a C string.
        unsafe { api!(RedisModule_InfoAddFieldULongLong, self.0, name.as_ptr(), number) };
    }

    fn text(&self, name: &CStr, text: &str) {
        if let Ok(text) = CString::new(text) {
            // SAFETY: the context of the running callback and two C strings.
            unsafe { api!(RedisModule_InfoAddFieldCString, self.0, name.as_ptr(), text.as_ptr()) };
        }
    }

    fn durations(&self, names: [&CStr; 4], durations: &Durations) {
        self.number(names[0], durations.quantile_ms(0.5));
        self.number(names[1], durations.quantile_ms(0.99));
        self.number(names[2], durations.max_ms());
        let counts = BUCKETS_MS.iter().zip(durations.buckets());
        let buckets: String = counts.map(|(bound, count)| format!("le_{bound}={count},")).collect();
        let (count, sum_ms) = (durations.count(), durations.sum_ms());
        self.text(names[3], &format!("{buckets}le_inf={count},sum={sum_ms}"));
    }
}

extern "C" fn on_info(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // After a crash the table may be in any state: nothing of it is read.
    if for_crash_report != 0 {
        return;
    }
    guard::callback((), || {
        // SAFETY: the context of the running callback; null stands for the module's own name.
        let wanted = unsafe { api!(RedisModule_InfoAddSection, info, std::ptr::null()) };
        if wanted == Some(raw::REDISMODULE_OK as c_int) {
            bury();
            let _ = state::with(|state| show(&Section(info), state));
        }
    });
}

/// Forgets locks that the server has freed elsewhere: who looks shall not count what a flush has ended. So many at most
/// that nobody waits for it; the pump does the rest.
fn bury() {
    const ROUNDS: usize = 16;
    if state::has_dead() {
        let decides = server::flags().decides();
        let _is_done = (0..ROUNDS).any(|_| state::bury_some(decides));
        let _ = pump::after(|_| ());
    }
}

fn show(section: &Section, state: &mut state::State) {
    let way_out = leaving::in_a_word(state.table.locks(), state.table.clock());
    let table = &state.table;
    let stats = table.stats();
    section.text(c"version", VERSION);
    section.text(c"commit", COMMIT);
    section.text(c"role", if server::flags().decides() { "primary" } else { "replica" });
    section.number(c"locks", table.locks() as u64);
    section.number(c"holds", table.holds() as u64);
    section.number(c"waiters", table.waiters() as u64);
    section.number(c"grants", stats.grants);
    section.number(c"contended_grants", stats.contended_grants);
    section.number(c"releases", stats.releases);
    section.number(c"expirations", stats.expirations);
    section.number(c"broken", stats.broken);
    section.number(c"timeouts", stats.timeouts);
    section.number(c"deadlocks", stats.deadlocks);
    section.number(c"fenced", stats.fenced);
    section.durations([c"wait_ms_p50", c"wait_ms_p99", c"wait_ms_max", c"wait_ms_histogram"], &stats.waits);
    section.durations([c"hold_ms_p50", c"hold_ms_p99", c"hold_ms_max", c"hold_ms_histogram"], &stats.holds);
    let left_ms = table.quarantine_left_ms(clock::boot()).filter(|_| server::flags().decides());
    section.number(c"quarantine_left_ms", left_ms.unwrap_or(0));
    confirm::show(state, |name, number| section.number(name, number), |name, text| section.text(name, text));
    section.text(c"leaving", way_out);
    section.number(c"last_token", table.last_token());
    section.number(c"token_lead_us", table.token_lead_us(clock::wall_us()));
}
