//! The pump: the only writer outside commands.
//!
//! Whatever may have freed a lock without a command of ours (a lease, a closed connection, a deleted
//! key, a flush) only makes a note and asks for the pump. The pump runs in a timer of 0 ms, that is,
//! behind the command or event that asked for it, so that its records follow their cause in the stream.
//! It first asks whether it may write at all: not on a replica, not while loading, not while the server
//! promised somebody that nothing is written (CLIENT PAUSE, failover: a write then would end the process).

use std::ffi::c_void;
use std::time::Duration;

use redis_module::raw;

use super::api::{Ctx, Key, OwnedStr, Str, api};
use super::gate::Gate;
use super::records::append_tick;
use super::state::{self, State, lock_type};
use super::turns::TOLD_AT_ONCE;
use super::{blocking, carry_out, cluster, confirm, outbox};
use super::{clock, guard, leaving, legacy, quarantine, rounds, server, several};
use crate::lock::effect::{Change, Effects, LockId, Record, Task, Undo, WaiterId};
use crate::lock::table::{Due, Spot, Table};
use crate::lock::types::{ClientId, Moment, Now, PlaceBuf, Token};

/// How long one run may take before it lets the event loop go on, and comes back at once.
const RUN_BUDGET: Duration = Duration::from_millis(2);

/// How often time is read within a run.
const STEPS_BETWEEN_LOOKS: usize = 64;

/// While the server is paused: how long until the pump looks again.
const PAUSE_RETRY_MS: u64 = 5;

/// While the server refuses writes (too few replicas, a disk error): how long until the pump looks again.
const REFUSED_RETRY_MS: u64 = 50;

/// What the pump remembers between runs.
pub(crate) struct Pump {
    /// A detached context, to make timers with; null until load.
    ctx: *mut raw::RedisModuleCtx,
    /// Since when a run is asked for that has not begun, and the server's timer for it.
    requested: Option<(Moment, raw::RedisModuleTimerID)>,
    /// The last run did not get to the end of its work.
    is_behind: bool,
    /// Clients whose answer got lost: see [`super::blocking`].
    pub(crate) untold: Vec<ClientId>,
    /// A new append-only file was begun: it must learn how far the tokens are.
    pub(crate) must_tick: bool,
    /// So many times slots are on their way out, as a whole: nothing without a key may be replicated.
    pub(crate) moves: usize,
    /// A quarantine has begun, and nobody was told of its end.
    pub(crate) is_quarantined: bool,
    /// Whether grants and expiries are this server's to decide, as of the last look.
    pub(crate) decides: bool,
    /// What the log is to be told of broken locks.
    pub(super) broken: outbox::BrokenLog,
}

impl Default for Pump {
    fn default() -> Self {
        Self {
            ctx: std::ptr::null_mut(),
            requested: None,
            is_behind: false,
            untold: Vec::new(),
            must_tick: false,
            moves: 0,
            is_quarantined: false,
            decides: false,
            broken: outbox::BrokenLog::default(),
        }
    }
}

/// Makes the pump's context. Once, at load.
pub(crate) fn begin(ctx: &Ctx) {
    // SAFETY: a live context, within OnLoad; the detached one lives as long as the module.
    let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext, ctx.as_ptr()) };
    let decides = ctx.flags().decides();
    let _ = state::with(|state| {
        state.pump.ctx = detached.unwrap_or(std::ptr::null_mut());
        state.pump.decides = decides;
    });
}

/// Asks for a run, as soon as the running command or event is over.
pub(crate) fn request() {
    let now = clock::boot();
    let asked = state::with(|state| {
        let pump = &state.pump;
        pump.may_request(now).then_some((pump.ctx, pump.requested.map(|(_, timer)| timer)))
    });
    let Some((ctx, late)) = asked.flatten() else {
        return;
    };
    // SAFETY: 1. our own detached context; 2. a late timer is not the one that is running, which is
    // forgotten before it runs. It must go: the server looks at its timers in their order, and would look
    // at none behind it.
    let timer = unsafe {
        if let Some(late) = late {
            api!(RedisModule_StopTimer, ctx, late, std::ptr::null_mut());
        }
        api!(RedisModule_CreateTimer, ctx, 0, Some(on_timer), std::ptr::null_mut())
    };
    let _ = state::with(|state| state.pump.requested = timer.map(|timer| (now, timer)));
}

/// Does something that may make work, and asks for a run if there is any: the only way for callbacks and for what comes
/// behind a step of a command, so that nobody has to remember to ask.
pub(crate) fn after<R>(act: impl FnOnce(&mut State) -> R) -> Option<R> {
    let (done, has_work) = state::with(|state| {
        let done = act(state);
        (done, state.has_work())
    })?;
    if has_work {
        request();
    }
    Some(done)
}

/// Whether a run that was asked for does not begin: the server's timers run on the wall clock, and if
/// that steps back while one is pending, it is late by the whole step. Then another one is made.
pub(crate) fn is_late() -> bool {
    let now = clock::boot();
    state::with(|state| state.pump.requested.is_some() && state.pump.may_request(now)) == Some(true)
}

impl Pump {
    /// The detached context; null before load.
    pub(crate) const fn ctx(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    fn may_request(&self, now: Moment) -> bool {
        const LATE_MS: u64 = 20;
        let is_new = self.requested.is_none_or(|(since, _)| since.plus_ms(LATE_MS) <= now);
        is_new && !self.ctx.is_null()
    }
}

extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard::callback((), || {
        let _ = state::with(|state| state.pump.requested = None);
        // SAFETY: the context of the running callback.
        run(&unsafe { Ctx::from_raw(ctx) });
    });
}

/// What a run may do.
enum Turn {
    /// Grant, expire, answer.
    Decide,
    /// Answer timeouts only, and look again soon: the server is paused.
    Pause,
    /// Answer timeouts only: another server decides.
    Follow,
}

fn turn(ctx: &Ctx) -> Turn {
    let flags = ctx.flags();
    server::note_role(flags);
    if !flags.decides() {
        return Turn::Follow;
    }
    // SAFETY: no arguments. On a server without it (Redis before 6.2) this module does not load.
    let paused = unsafe { api!(RedisModule_AvoidReplicaTraffic) };
    if paused == Some(0) { Turn::Decide } else { Turn::Pause }
}

fn run(ctx: &Ctx) {
    let started = clock::boot();
    let turn = turn(ctx);
    let decides = !matches!(turn, Turn::Follow);
    let is_paused = matches!(turn, Turn::Pause);
    let is_behind = state::with(|state| {
        state.pump.decides = decides;
        std::mem::take(&mut state.pump.is_behind)
    });
    if decides {
        rounds::go(ctx, started);
        quarantine::look(ctx, started);
    }
    leaving::go(ctx, is_paused);
    close_untold(ctx);
    let all_are_told = blocking::tell_some();
    if !is_paused {
        tick(ctx);
    }
    // Behind a mountain of leases nobody waits longer than asked for.
    let is_apart = !matches!(turn, Turn::Decide) || is_behind == Some(true);
    let mut is_done = !is_apart || time_outs(ctx);
    match turn {
        Turn::Decide => is_done &= decide(ctx, started),
        Turn::Pause | Turn::Follow => confirm::tell_unconfirmed(),
    }
    let postponed = state::with(|state| state.table.tasks());
    while is_done && !state::bury_some(decides) {
        is_done = !is_spent(started);
    }
    let all_is_published = is_paused || outbox::publish_some(ctx, || is_spent(started));
    let has_buried = state::with(|state| {
        state.pump.is_behind = !is_done;
        // What was buried may let others in.
        Some(state.table.tasks()) > postponed
    });
    if !is_done || !all_is_published {
        let_allocator_tidy_up();
    }
    if !is_done || !all_is_published || !all_are_told || has_buried == Some(true) {
        request();
    }
    wake_again(decides, is_paused);
}

/// Many ended leases leave many small pieces of memory. The C library's allocator joins them when next asked for a
/// larger one: for a million that takes a tenth of a second. So it is asked now and then.
fn let_allocator_tidy_up() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(4096)));
}

/// Whether this run has taken as long as it may.
fn is_spent(started: Moment) -> bool {
    u128::from(clock::boot().0.saturating_sub(started.0)) > RUN_BUDGET.as_micros()
}

/// Sets the timer to when the pump has to look again.
fn wake_again(decides: bool, is_paused: bool) {
    let _ = state::with(|state| {
        if !decides {
            // Nobody can be granted anything here.
            while state.table.next_task().is_some() {}
            while state.confirm.next_undo().is_some() {}
        }
        let next = state.table.next_deadline(decides && !is_paused);
        let retry_ms = if is_paused { PAUSE_RETRY_MS } else { REFUSED_RETRY_MS };
        let has_rest = state.table.has_tasks() || state.confirm.has_undo();
        let retry = (is_paused || has_rest).then(|| clock::boot().plus_ms(retry_ms));
        state.timer.wake_at(match (next, retry) {
            (Some(next), Some(retry)) => Some(next.min(retry)),
            (next, retry) => next.or(retry),
        });
    });
}

/// Closes the connections that wait for an answer that got lost. One that is closed already is not found.
fn close_untold(ctx: &Ctx) {
    let untold = state::with(|state| std::mem::take(&mut state.pump.untold));
    for client in untold.unwrap_or_default() {
        // SAFETY: a live context; a number that no client has is an error and nothing else.
        unsafe { api!(RedisModule_DeauthenticateAndCloseClient, ctx.as_ptr(), client.0) };
    }
}

/// Tells a new append-only file how far the tokens are, as soon as no slots are on their way out.
fn tick(ctx: &Ctx) {
    let flags = ctx.flags();
    let due = state::with(|state| {
        let due = state.pump.moves == 0 && std::mem::take(&mut state.pump.must_tick);
        let clock = state.table.clock();
        (due && leaving::writes_clock(clock)).then(|| (clock.last(), clock.told()))
    });
    if let Some((last, told)) = due.flatten()
        && flags.has_aof()
        && !flags.is_loading()
    {
        append_tick(ctx, last, told);
    }
}

/// Answers waits that are over, no more than one turn tells, and nothing else. `false`: there may be more.
fn time_outs(ctx: &Ctx) -> bool {
    let now = clock::boot();
    let (mut fx, mut ended) = (Effects::default(), 0);
    let _ = state::with(|state| {
        fx = std::mem::take(&mut state.fx);
        while ended < TOLD_AT_ONCE
            && let Some(Due::Timeout(waiter)) = state.table.due(now, false)
        {
            state.table.time_out(waiter, &mut fx);
            ended += 1;
        }
    });
    carry_out::effects(ctx, None, fx);
    ended < TOLD_AT_ONCE
}

/// Works off what is due and what was noted, in turns, so that a million leases do not keep the others waiting.
/// `false`: the budget of this run is spent.
fn decide(ctx: &Ctx, started: Moment) -> bool {
    let mut now = clock::now();
    let mut gate = Gate::of_pump(ctx);
    if !undo_all(ctx, started, &mut gate) {
        return false;
    }
    let mut tasks = tasks_to_do(&mut gate);
    let mut timeouts = 0;
    for count in 1_usize.. {
        if count.is_multiple_of(STEPS_BETWEEN_LOOKS) {
            now = clock::now();
            if is_spent(started) {
                return false;
            }
        }
        let due = state::with(|state| state.table.due(now.boot, true)).flatten();
        if due.is_none() && tasks == 0 {
            // What was ended here may have made it somebody's turn elsewhere.
            tasks = tasks_to_do(&mut gate);
            if tasks == 0 {
                return true;
            }
        }
        if let Some(due) = due {
            timeouts += usize::from(matches!(due, Due::Timeout(_)));
            end(ctx, now, due, &mut gate);
            if timeouts == TOLD_AT_ONCE {
                return false;
            }
        }
        if tasks > 0 {
            tasks -= 1;
            if let Some(task) = state::with(|state| state.table.next_task()).flatten() {
                look(ctx, now, task, &mut gate);
            }
        }
    }
    true
}

/// Undoes what was not confirmed, then tells whose it was. `false`: the run is spent.
fn undo_all(ctx: &Ctx, started: Moment, gate: &mut Gate<'_>) -> bool {
    while state::with(|state| state.confirm.has_undo()) == Some(true) && !gate.refuses_writes() {
        let Some(stake) = state::with(|state| state.confirm.next_undo()).flatten() else { break };
        at(ctx, clock::now(), &stake.place, Job::Undo(stake.token, stake.undo), gate);
        if is_spent(started) {
            return false;
        }
    }
    confirm::tell_unconfirmed();
    true
}

/// How many tasks there are. None while nothing can be granted: they wait for another run.
fn tasks_to_do(gate: &mut Gate<'_>) -> usize {
    let tasks = state::with(|state| state.table.tasks()).unwrap_or(0);
    if tasks > 0 && gate.is_closed() { 0 } else { tasks }
}

fn end(ctx: &Ctx, now: Now, due: Due, gate: &mut Gate<'_>) {
    match due {
        Due::Timeout(waiter) => {
            let fx = state::with(|state| {
                let mut fx = std::mem::take(&mut state.fx);
                state.table.time_out(waiter, &mut fx);
                fx
            });
            carry_out::effects(ctx, None, fx.unwrap_or_default());
        }
        Due::AskAgain => {}
        Due::Look(place) => at(ctx, now, &place, Job::Settle, gate),
        Due::Lease(lock, place) => at(ctx, now, &place, Job::Expire(lock), gate),
    }
}

fn look(ctx: &Ctx, now: Now, task: Task, gate: &mut Gate<'_>) {
    match task {
        Task::Settle(place) => at(ctx, now, &place, Job::Settle, gate),
        Task::Party(request) => at_all(ctx, now, request, gate),
        Task::Retell(place, token) => retell(ctx, &place, token),
        Task::TakeBack(place, token) => at(ctx, now, &place, Job::TakeBack(token), gate),
    }
}

/// What to do at one place.
enum Job {
    Expire(LockId),
    Settle,
    TakeBack(Token),
    Undo(Token, Undo),
}

fn at(ctx: &Ctx, now: Now, place: &PlaceBuf, job: Job, gate: &mut Gate<'_>) {
    let name = ctx.new_str(&place.name).filter(|_| ctx.select_db(place.db));
    let Some(name) = name else {
        return postpone(now, &job);
    };
    let name = name.as_str();
    if !cluster::is_ours(ctx, name) {
        postpone(now, &job);
        return redirect(ctx, name, place);
    }
    let key = Key::open_write(ctx, name);
    let found = legacy::look(&key, key.found(lock_type()), None);
    if let Job::Expire(lock) = job
        && state::with(|state| state.table.stands_for(found, lock)) != Some(true)
    {
        let _ = state::with(|state| state.table.lost(now.boot, lock));
        return;
    }
    let place = place.as_place();
    let done = state::with(|state| {
        let State { table, fx, .. } = state;
        let mut gate = |who: crate::lock::table::Applicant<'_>| gate.admit(who);
        let step = match job {
            Job::Expire(lock) => table.settle(now, place, found, Some(lock), &mut gate, fx),
            Job::Settle => table.settle(now, place, found, None, &mut gate, fx),
            Job::TakeBack(token) => table.take_back(now, place, found, token, &mut gate, fx),
            Job::Undo(token, undo) => table.undo(now, place, found, (token, undo), &mut gate, fx),
        };
        let fx = state.settle(step.change, found);
        (step, fx)
    });
    if let Some((step, fx)) = done {
        carry_out::step(ctx, name, key, found, &step, fx);
    }
}

/// It may be the turn of a request for several locks.
fn at_all(ctx: &Ctx, now: Now, request: WaiterId, gate: &mut Gate<'_>) {
    let places = state::with(|state| state.table.places_of(request)).unwrap_or_default();
    if places.first().is_none_or(|first| !ctx.select_db(first.db)) {
        return;
    }
    let Some(owned) = places.iter().map(|place| ctx.new_str(&place.name)).collect::<Option<Vec<_>>>() else {
        return;
    };
    let names: Vec<Str<'_>> = owned.iter().map(OwnedStr::as_str).collect();
    if let Some(lost) = names.iter().position(|&name| !cluster::is_ours(ctx, name)) {
        return redirect(ctx, names[lost], &places[lost]);
    }
    let step = |table: &mut Table, spots: &[Spot<'_>], fx: &mut [Effects]| {
        let mut gate = |who: crate::lock::table::Applicant<'_>| gate.admit(who);
        ((), table.settle_many(now, request, spots, &mut gate, fx))
    };
    let _ = several::at_all(ctx, &names, true, step, |()| ());
}

/// The lease of a hold runs otherwise than readers know.
fn retell(ctx: &Ctx, place: &PlaceBuf, token: Token) {
    let name = ctx.new_str(&place.name).filter(|_| ctx.select_db(place.db));
    let Some(name) = name.filter(|name| cluster::is_ours(ctx, name.as_str())) else {
        return;
    };
    let key = Key::open_write(ctx, name.as_str());
    let found = key.found(lock_type());
    let record = state::with(|state| state.table.to_tell(found, token)).flatten();
    // Who watches or tracks the key learns of it, too.
    carry_out::change(key, found, if record.is_some() { Change::Touched } else { Change::Nothing });
    carry_out::record(ctx, name.as_str(), record.unwrap_or(Record::Nothing));
}

/// The lease of this lock is over, and it cannot be ended now.
fn postpone(now: Now, job: &Job) {
    const LOOK_AGAIN_MS: u64 = 1_000;
    if let Job::Expire(lock) = *job {
        let _ = state::with(|state| state.table.postpone(lock, now.boot.plus_ms(LOOK_AGAIN_MS)));
    }
}

/// The slot of this place is not ours: nothing is written, and whoever waits is sent on.
fn redirect(ctx: &Ctx, name: Str<'_>, place: &PlaceBuf) {
    if state::with(|state| state.table.is_waited_for(place.as_place())) != Some(true) {
        return;
    }
    let answer = crate::lock::effect::Answer::Moved(cluster::redirection(ctx, name));
    let fx = state::with(|state| {
        let mut fx = std::mem::take(&mut state.fx);
        state.table.dismiss(place.as_place(), &answer, &mut fx);
        fx
    });
    carry_out::effects(ctx, None, fx.unwrap_or_default());
}
