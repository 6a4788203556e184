//! The way out (`redislock.leaving`): when files load without the module, and what still stands in the way.
//!
//! A file needs the module for each lock in it, and for the clock of tokens at its head. The clock is left out when
//! readers of the stream count from nothing (`told` is 0): a primary that leaves tells them so, once. A replica that
//! leaves before its primary keeps the clock in its files, or it would count wrong after a restart from them.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::api::Ctx;
use super::records::tell_nothing;
use super::{carry_out, ffi, pump, server, settings, state};
use crate::command::error::LEAVING;
use crate::lock::effect::Answer;
use crate::lock::token::TokenClock;

/// Whether the type was registered with a callback that this server calls for each file, whatever there is to write:
/// on Redis 7.0, unless the module was loaded to leave.
static MUST_WRITE_CLOCK: AtomicBool = AtomicBool::new(false);

/// Notes how the type was registered. Once, at load.
pub(crate) fn note_type(must_write_clock: bool) {
    MUST_WRITE_CLOCK.store(must_write_clock, Ordering::Relaxed);
}

/// Why the setting cannot become this while the module is loaded; nothing if it can.
pub(crate) fn refusal_of_setting(leaves: bool) -> Option<&'static str> {
    let is_stuck = !server::kind().has_optional_aux() && !state::lock_type().is_null();
    (is_stuck && !leaves && !MUST_WRITE_CLOCK.load(Ordering::Relaxed)).then_some(
        "redislock.leaving cannot be set to no while the server runs: Redis 7.0 was started with yes and keeps no \
         clock of tokens in its files; set it to no in the configuration and restart the server",
    )
}

/// Whether the clock of tokens is part of a file that is written now.
pub(crate) fn writes_clock(clock: &TokenClock) -> bool {
    clock.last() > 0 && (clock.told() > 0 || !settings::is_leaving())
}

/// What makes a file that is written now need the module.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Obstacle {
    NotLeaving,
    Locks,
    Restart,
    Primary,
    Nothing,
}

/// The last one that the log was told of.
static TOLD: AtomicU8 = AtomicU8::new(Obstacle::NotLeaving as u8);

fn obstacle(locks: usize, clock: &TokenClock) -> Obstacle {
    if !settings::is_leaving() {
        Obstacle::NotLeaving
    } else if locks > 0 {
        Obstacle::Locks
    } else if MUST_WRITE_CLOCK.load(Ordering::Relaxed) {
        Obstacle::Restart
    } else if clock.told() > 0 {
        Obstacle::Primary
    } else {
        Obstacle::Nothing
    }
}

/// How far the way out is, in a word for INFO.
pub(crate) fn in_a_word(locks: usize, clock: &TokenClock) -> &'static str {
    match obstacle(locks, clock) {
        Obstacle::NotLeaving => "no",
        Obstacle::Locks => "locks-left",
        Obstacle::Restart => "restart-needed",
        Obstacle::Primary => "primary-stays",
        Obstacle::Nothing => "done",
    }
}

/// Turns away who waits, and tells readers of the stream to count from nothing. In every run of the pump.
pub(crate) fn go(ctx: &Ctx, is_paused: bool) {
    if !settings::is_leaving() {
        return;
    }
    let told = state::with(|state| {
        if !state.pump.decides {
            return None;
        }
        let mut fx = std::mem::take(&mut state.fx);
        state.table.turn_away(&Answer::Refused(LEAVING), &mut fx);
        let may_write = !is_paused && state.pump.moves == 0;
        let last = may_write.then(|| leave_clock(state.table.clock())).flatten();
        Some((fx, last))
    });
    if let Some((fx, last)) = told.flatten() {
        if let Some(last) = last {
            tell_nothing(ctx, last);
        }
        carry_out::effects(ctx, None, fx);
    }
}

/// The newest token, if readers of the stream are to be told that they count from nothing now.
fn leave_clock(clock: &mut TokenClock) -> Option<u64> {
    let is_due = clock.told() > 0;
    clock.tell_nothing();
    is_due.then(|| clock.last())
}

/// Says in the log how far the way out is, when that changes. Ten times a second.
pub(crate) fn look(ctx: &Ctx) {
    let now = state::with(|state| {
        let (locks, decides) = (state.table.locks(), state.pump.decides);
        let clock = state.table.clock();
        (obstacle(locks, clock), decides && clock.told() > 0)
    });
    let Some((obstacle, must_tell)) = now else {
        return;
    };
    if must_tell && obstacle != Obstacle::NotLeaving {
        pump::request();
    }
    let is_news = TOLD.load(Ordering::Relaxed) != obstacle as u8;
    if !is_news || (must_tell && obstacle == Obstacle::Primary) {
        return;
    }
    TOLD.store(obstacle as u8, Ordering::Relaxed);
    let text = match obstacle {
        Obstacle::NotLeaving => "it is called off, locks are granted again",
        Obstacle::Locks => "no lock is granted any more; files need the module for the locks that are left",
        Obstacle::Restart => {
            "no lock is left, but this server writes the clock of tokens into each file until it is restarted with \
             redislock.leaving yes"
        }
        Obstacle::Primary => {
            "no lock is left here, but the primary of this replica still grants locks: set redislock.leaving to yes \
             there"
        }
        Obstacle::Nothing => "no lock is left: files that are written from now on load without the module",
    };
    ctx.log(ffi::SERVER_LOG_NOTICE, &format!("leaving: {text}"));
}
