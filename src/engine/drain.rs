//! The way out (`redislock.leaving`): when files load without the module, and what still stands in the way.
//!
//! A file needs the module for each value of its type, and for the clock of tokens at its head. A value can be left
//! though no lock is: that of a lock which was broken by `RENAME`, `MOVE` or `SWAPDB`. The clock is left out when readers
//! of the stream count from nothing (`told` is 0): a primary that leaves tells them so, once. A replica that leaves
//! before its primary keeps the clock in its files, or it would count wrong after a restart from them.

use super::flags::Level;
use super::schedule;
use super::server::{Fact, Server};
use super::settings::Switch;
use super::shared::Shared;
use super::uninstall_status::Obstacle;
use crate::command::error::LEAVING;
use crate::lock::effect::Answer;
use crate::lock::token::TokenClock;

/// Why a setting cannot become this while the module is loaded; nothing if it can. `has_type`: the type is registered.
pub fn refusal_of_setting(
    shared: &Shared,
    switch: &Switch,
    value: bool,
    has_type: bool,
) -> Option<&'static str> {
    let stays = switch.name == c"leaving" && !value;
    let is_stuck = !shared.has_optional_aux.is_set() && has_type;
    (is_stuck && stays && !shared.must_write_clock.is_set()).then_some(
        "redislock.leaving cannot be set to no now: this Redis 7.0 was started with yes, and its files keep no \
         token clock; set no in the configuration and restart the server",
    )
}

/// Whether the type must be registered with the callback that Redis 7.0 calls for each file: not on the way out, because
/// that server takes no "nothing" for an answer. Once, when the settings are known.
pub fn must_write_clock(shared: &Shared) -> bool {
    let must_write_clock = !shared.has_optional_aux.is_set() && !shared.settings.is_leaving();
    shared.must_write_clock.set(must_write_clock);
    must_write_clock
}

/// Returns true if the clock of tokens is part of a file that is written now.
pub fn writes_clock(shared: &Shared, clock: &TokenClock) -> bool {
    clock.last_token() > 0 && (clock.replicated_token() > 0 || !shared.settings.is_leaving())
}

/// Why a file that is written now would need the module, with `locks` locks in the table. A lock counts although its
/// value has gone: an append-only file can still be told of it.
pub fn obstacle(shared: &Shared, locks: usize, clock: &TokenClock) -> Obstacle {
    if !shared.settings.is_leaving() {
        Obstacle::NotLeaving
    } else if locks > 0 || shared.values() > 0 {
        Obstacle::Locks
    } else if shared.must_write_clock.is_set() {
        Obstacle::Restart
    } else if clock.replicated_token() > 0 {
        Obstacle::Primary
    } else {
        Obstacle::Nothing
    }
}

/// Turns away the waiters, and tells readers to count from nothing. The pump calls it in every run, and answers the
/// waiters next.
pub fn go<S: Server>(server: &S, is_paused: bool) {
    if !server.shared().settings.is_leaving() {
        return;
    }
    let told = server.with(|state| {
        if !state.pump.decides {
            return None;
        }
        state.table.turn_away(Answer::Refused(LEAVING));
        let may_write = !is_paused && state.pump.moves == 0;
        may_write.then(|| leave_clock(state.table.clock())).flatten()
    });
    if let Some(last) = told.flatten() {
        server.replicate(Fact::FreshStart(last));
    }
}

/// The newest token, if readers of the stream are to be told that they count from nothing now.
fn leave_clock(clock: &mut TokenClock) -> Option<u64> {
    let is_due = clock.replicated_token() > 0;
    clock.replicate_fresh_start();
    is_due.then(|| clock.last_token())
}

/// Says in the log how far the way out is, when that changes. Ten times a second.
pub fn look<S: Server>(server: &S) {
    let shared = server.shared();
    let seen = server.with(|state| {
        let (locks, decides) = (state.table.locks(), state.pump.decides);
        let clock = state.table.clock();
        let (obstacle, must_tell) = (obstacle(shared, locks, clock), decides && clock.replicated_token() > 0);
        let is_silent = must_tell && obstacle == Obstacle::Primary;
        let is_news = state.pump.obstacle_in_log != obstacle && !is_silent;
        if is_news {
            state.pump.obstacle_in_log = obstacle;
        }
        (obstacle, must_tell, is_news)
    });
    let Some((obstacle, must_tell, is_news)) = seen else {
        return;
    };
    if must_tell && obstacle != Obstacle::NotLeaving {
        schedule::request(server);
    }
    if is_news {
        server.log(Level::Notice, &format!("leaving: {}", obstacle.sentence()));
    }
}
