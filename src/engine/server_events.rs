//! Handles the server's own events. Nothing is written here, because it would precede its cause in the stream: tasks
//! are added, and a run of the pump is requested.

use super::flags::Level;
use super::server::Server;
use super::state::State;
use super::{confirm, cron, drain, lazy_subscribe, pump, quarantine, replies, schedule};
use crate::lock::types::ClientId;

/// Runs once the module is loaded and its settings are known.
pub fn started<S: Server>(server: &S) {
    let flags = server.flags();
    let _ = server.with(|state| {
        state.pump.decides = flags.decides();
        if flags.is_cluster {
            state.table.clock().follow_closely();
        }
    });
    lazy_subscribe::look_at_eviction(server);
    confirm::start(server);
    let settings = &server.shared().settings;
    if settings.is_leaving() || settings.quarantine_ms() > 0 {
        lazy_subscribe::begin(server);
    }
    quarantine::begin(server, "this server has just started and may have lost some");
}

/// Applies changed settings, all at once. `is_loaded` is false while the module is being loaded.
pub fn settings_changed<S: Server>(server: &S, is_loaded: bool) {
    let settings = &server.shared().settings;
    let now = server.boot();
    let _ = server.with(|state| {
        state.table.set_limits(settings.limits());
        state.table.set_quarantine(now, settings.quarantine_ms());
        state.table.set_leaving(settings.is_leaving());
        state.contended.set_names_max(settings.top_contended());
        let counted_strings = std::mem::replace(&mut state.counts_strings, settings.has_legacy_strings());
        if counted_strings && !state.counts_strings {
            // Clients that wait for a string no longer wait for a lock.
            state.table.note_everything();
        }
    });
    confirm::set(server, settings.confirm_rule(), is_loaded);
    if !is_loaded {
        return;
    }
    let is_quarantined = schedule::after(server, |state| state.pump.is_quarantined);
    if settings.quarantine_ms() > 0 || settings.is_leaving() {
        // Promotions must be reported even if no lock was ever used here, and the log says when the module can be
        // removed.
        lazy_subscribe::begin(server);
    }
    if is_quarantined == Some(true) || settings.is_leaving() {
        // A quarantine may have ended, or the module may be removable now.
        schedule::request(server);
    }
}

/// Handles a closed connection: what is bound to it starts to run out.
pub fn client_closed<S: Server>(server: &S, client: ClientId) {
    replies::closed(server, client);
    if server.with(|state| state.table.has_bindings()) == Some(true) {
        let now = server.boot();
        note(server, |state| state.table.disconnected(now, client));
    }
}

/// Adds a task if this server decides, and requests a run of the pump.
fn note<S: Server>(server: &S, note: impl FnOnce(&mut State<S::Blocked, S::Alarm>)) {
    if server.flags().decides() {
        let _ = server.with(note);
    }
    schedule::request(server);
}

/// Handles the begin of a flush of one database, or of all. No lock is held there any more, though the server may
/// take long to free the values.
pub fn flushed<S: Server>(server: &S, db: Option<u32>) {
    let decides = server.flags().decides();
    let now = server.boot();
    // On replicas and while loading as well, because the locks are gone there too.
    let _ = server.with(|state| state.table.flushed(now, db, decides));
    schedule::request(server);
}

/// Handles two databases that were swapped.
pub fn swapped<S: Server>(server: &S, a: u32, b: u32) {
    // On replicas and while loading as well, because the databases are swapped there too.
    let decides = server.flags().decides();
    let now = server.boot();
    // Publishes what another server decided.
    let _ = server.with(|state| state.table.swapped(now, a, b, decides));
    schedule::request(server);
}

/// Handles the begin of a load that replaces the data set.
pub fn loading<S: Server>(server: &S) {
    server.shared().expect_facts();
    let _ = server.with(|state| state.table.begin_load());
}

/// Handles the end of a load.
pub fn loaded<S: Server>(server: &S) {
    server.shared().note_role(server.flags());
    lazy_subscribe::look_around(server);
    warn_of_lead(server);
    note(server, |state| state.table.note_everything());
}

/// Warns if the loaded data set is far ahead of the wall clock. A file is believed, because tokens must not go back
/// when the wall clock does.
fn warn_of_lead<S: Server>(server: &S) {
    let wall_us = server.wall_us();
    let lead_us = server.with(|state| state.table.token_lead_us(wall_us)).unwrap_or(0);
    if lead_us > server.shared().settings.token_lead_us_max() {
        let text = format!(
            "the loaded tokens are {} seconds ahead of the wall clock, more than redislock.max-token-lead: either the \
             clock was set back or the data set is not to be trusted",
            lead_us / 1_000_000
        );
        server.log(Level::Warning, &text);
    }
}

/// Handles a demotion: clients that wait here are rejected. Some are answered at once, the others by the pump, even
/// if this server is promoted again by then.
pub fn demoted<S: Server>(server: &S) {
    server.shared().note_role(server.flags());
    server.shared().expect_facts();
    let now = server.boot();
    let _ = server.with(|state| {
        state.table.stop_deciding();
        state.table.forget_connections();
    });
    confirm::demoted(server);
    pump::reject_waiters(server, now);
    schedule::request(server);
}

/// Handles a promotion.
pub fn promoted<S: Server>(server: &S) {
    server.shared().note_role(server.flags());
    confirm::promoted(server);
    quarantine::begin(server, "this server was promoted and may lack some of the old primary's");
    schedule::request(server);
}

/// Handles a fork: the child may write a new append-only file.
pub fn forked<S: Server>(server: &S) {
    let _ = server.with(|state| {
        state.table.clock().begin_file();
        state.pump.must_tick = true;
    });
    schedule::request(server);
}

/// Handles slots that begin to leave as a whole. Valkey may give up such a move at random if a module replicates a
/// command without keys, as LOCK.TICK is: it reads uninitialized flags (`VM_Replicate` in `module.c` of 9.1).
pub fn slots_leave<S: Server>(server: &S) {
    let _ = server.with(|state| state.pump.moves += 1);
}

/// Handles the end of such a move, whether the slots stay or have left.
pub fn slots_have_left_or_stay<S: Server>(server: &S) {
    let _ = server.with(|state| state.pump.moves = state.pump.moves.saturating_sub(1));
    schedule::request(server);
}

/// Runs ten times a second, or as often as `hz` says: forgets dead locks, and repeats requests that were lost.
pub fn cron<S: Server>(server: &S) {
    let has_work = server.with(|state| {
        state.give_back_memory();
        let has_sweep = cron::begin(state);
        has_sweep || state.has_work()
    });
    if pump::has_dead(server) || has_work == Some(true) || schedule::is_late(server) {
        schedule::request(server);
    }
    schedule::rearm(server);
    confirm::look_again(server);
    drain::look(server);
}

/// Handles the alarm.
pub fn woken<S: Server>(server: &S) {
    let _ = server.with(|state| state.wake.went_off());
    schedule::request(server);
}
