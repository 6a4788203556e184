//! What is looked at ten times a second, because no event tells of it: lines of slots that left this server without a
//! key of ours, and leases that connections of another life kept alive.

use super::api::Ctx;
use super::state::{self, State};
use super::{cluster, server};
use crate::lock::effect::LockId;
use crate::lock::types::{Moment, PlaceBuf};

/// How many keys the server is asked about in one run of the pump.
const LOOKED_AT_MAX: usize = 256;

/// Where the last look ended.
#[derive(Default)]
pub(crate) struct Rounds {
    is_due: bool,
    lines: usize,
    foreign: usize,
}

/// Whether there is anything to look at; then the pump has to run. From the server's cron.
pub(crate) fn begin(state: &mut State) -> bool {
    let has_lines = server::is_cluster() && state.table.waiters() > 0;
    state.rounds.is_due |= has_lines;
    state.pump.decides && (has_lines || state.table.has_foreign())
}

/// A run of the pump on a server that decides.
pub(crate) fn go(ctx: &Ctx, now: Moment) {
    if !server::is_cluster() {
        let _ = state::with(|state| state.table.let_foreign_run(now));
        return;
    }
    let_foreign_run(ctx, now);
    if state::with(|state| std::mem::take(&mut state.rounds.is_due)) == Some(true) {
        note_lines_that_left(ctx);
    }
}

/// A kept lease that came with its slot stands still until the slot is ours: its connection may be open where it
/// came from.
fn let_foreign_run(ctx: &Ctx, now: Moment) {
    let foreign = state::with(|state| {
        if !state.table.has_foreign() {
            return Vec::new();
        }
        let foreign = state.table.foreign(state.rounds.foreign, LOOKED_AT_MAX);
        state.rounds.foreign = next(state.rounds.foreign, foreign.len());
        foreign
    });
    let is_ours = |(_, place): &(LockId, PlaceBuf)| is_ours(ctx, place);
    let ours: Vec<LockId> = foreign.into_iter().flatten().filter(is_ours).map(|(lock, _)| lock).collect();
    let _ = state::with(|state| state.table.let_run(&ours, now));
}

/// Whoever waits where a slot has left is sent on.
fn note_lines_that_left(ctx: &Ctx) {
    let places = state::with(|state| {
        let lines = state.table.places_waited_for().skip(state.rounds.lines);
        let places: Vec<PlaceBuf> = lines.take(LOOKED_AT_MAX).map(|place| place.to_owned()).collect();
        state.rounds.lines = next(state.rounds.lines, places.len());
        places
    });
    let gone = |place: &PlaceBuf| !is_ours(ctx, place);
    for place in places.into_iter().flatten().filter(gone) {
        let _ = state::with(|state| state.table.note(place.as_place()));
    }
}

/// Where the next look begins: behind this one, or anew.
const fn next(begin: usize, looked_at: usize) -> usize {
    if looked_at < LOOKED_AT_MAX { 0 } else { begin + looked_at }
}

fn is_ours(ctx: &Ctx, place: &PlaceBuf) -> bool {
    let name = ctx.new_str(&place.name).filter(|_| ctx.select_db(place.db));
    name.is_none_or(|name| cluster::has_not_left(ctx, name.as_str()))
}
