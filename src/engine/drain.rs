//! Removing the module (`redislock.leaving`): when files load without it, and what still prevents that.
//!
//! A file needs the module for each value of its type, and for the clock of tokens at its head. A value can outlive
//! its lock, which `RENAME`, `MOVE` or `SWAPDB` broke. The clock is left out once readers of the stream count from
//! nothing (`told` is 0). A primary tells them so once. A replica that is drained before its primary keeps the clock
//! in its files, or it would count wrong after a restart from them.

use super::flags::Level;
use super::schedule;
use super::server::{Fact, Server};
use super::settings::Switch;
use super::shared::Shared;
use super::uninstall_status::Obstacle;
use crate::command::error::LEAVING;
use crate::lock::effect::Answer;
use crate::lock::token::TokenClock;

/// Returns why a setting cannot be changed while the module is loaded, if so. `has_type` is true if the type is
/// registered.
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

/// Returns true if the type must be registered with the callback that Redis 7.0 calls for each file. Not while
/// draining: that server cannot be told to write nothing. Called once, when the settings are known.
pub fn must_write_clock(shared: &Shared) -> bool {
    let must_write_clock = !shared.has_optional_aux.is_set() && !shared.settings.is_leaving();
    shared.must_write_clock.set(must_write_clock);
    must_write_clock
}

/// Returns true if a file that is written now contains the clock of tokens.
pub fn writes_clock(shared: &Shared, clock: &TokenClock) -> bool {
    clock.last_token() > 0 && (clock.replicated_token() > 0 || !shared.settings.is_leaving())
}

/// Returns why a file that is written now would need the module, with `locks` locks in the table. A lock counts even
/// after its value has gone, because an append-only file may still record it.
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

/// Rejects all waiters, and makes readers count from nothing. The pump calls it in every run, and answers the waiters
/// next.
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

/// Returns the newest token, if readers of the stream must be told to count from nothing now.
fn leave_clock(clock: &mut TokenClock) -> Option<u64> {
    let is_due = clock.replicated_token() > 0;
    clock.replicate_fresh_start();
    is_due.then(|| clock.last_token())
}

/// Logs the progress, when it changes. Called ten times a second.
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
