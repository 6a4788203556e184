//! Grants and renewals that are answered when replicas have them: see `src/lock/confirm.rs`.
//!
//! A step is carried out at once, and its record goes into the stream with it. Its client is blocked, and before the
//! server's event loop sleeps next, what the stream has come to is noted and the replicas are asked how far they are.
//! While anybody waits, each turn of the loop looks at what they said. `WAIT` would do none of that for a module.

mod failed;

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::api::{Ctx, api};
use super::blocking::Told;
use super::events::{Callback, subscribe};
use super::state::{self, Handle, State};
use super::turns::Turns;
use super::{blocking, clock, ffi, guard, pump, role, settings};
use crate::command::error::{CANNOT_CONFIRM, CANNOT_WAIT, KEPT_UNCONFIRMED};
use crate::lock::confirm::{Confirmations, Rule, Seen, Verdict, WaitId};
use crate::lock::effect::{Answer, Stake};
use crate::lock::types::{ClientId, Moment, PlaceBuf, Tie, Token};

pub(crate) use failed::tell_unconfirmed;
use failed::unconfirmed;

/// A client that is told when replicas have what was done for it.
struct Pending {
    handle: Handle,
    client: ClientId,
    told: Told,
}

/// What is kept for confirmations.
#[derive(Default)]
pub(crate) struct Confirm {
    rule: Option<Rule>,
    all: Confirmations,
    pending: HashMap<WaitId, Pending>,
    waits: HashMap<Handle, WaitId>,
    /// Who is told that it was not confirmed, as soon as what it began is undone.
    undone_first: Turns,
    /// The replicas were not asked yet how far they are, because nothing may be written.
    must_ask: bool,
    /// When it was looked last which replicas there are.
    looked_at: Moment,
    /// The log knows that the server does not say.
    told_silence: bool,
    /// So many replicas too many were told to the log.
    told_too_many: u64,
    confirmed: u64,
    failed: u64,
}

impl Confirm {
    /// Whether anything is to be undone.
    pub(crate) fn has_undo(&self) -> bool {
        self.all.has_undo()
    }

    fn needs_pump(&self) -> bool {
        self.has_undo() || !self.undone_first.is_empty() || self.all.is_behind()
    }

    /// What is to be undone next.
    pub(crate) fn next_undo(&mut self) -> Option<Stake> {
        self.all.next_undo()
    }

    /// After a storm the maps shrink again.
    pub(crate) fn give_back_memory(&mut self, kept: usize) {
        self.undone_first.give_back_memory(kept);
        if self.pending.is_empty() && self.pending.capacity() > kept {
            self.pending = HashMap::new();
            self.waits = HashMap::new();
        }
    }

    /// Nobody waits for longer than the lease lasts: whoever is told of a hold shall have it.
    fn wait(&mut self, token: Option<Token>, places: Vec<PlaceBuf>, lease_ms: u64) -> Option<WaitId> {
        let lasts_ms = settings::confirm_timeout_ms().min(lease_ms);
        self.all.wait_to_tell(clock::boot(), self.rule?, lasts_ms, token, places)
    }

    fn replicas_too_many(&self, now: Moment) -> u64 {
        let (replicas, _) = self.all.replicas(now, 0);
        let nodes = replicas as u64 + 1;
        if self.rule.is_some() { nodes.saturating_sub(settings::group_size()) } else { 0 }
    }
}

/// Begins to keep confirmations. Once, at load.
pub(crate) fn start(ctx: &Ctx) {
    let now = clock::boot();
    let _ = state::with(|state| state.confirm.all.begin(now));
    if settings::confirms() {
        listen(ctx);
    }
}

/// This server decides from here on. It may have replicas of its own already.
pub(crate) fn promoted(ctx: &Ctx) {
    let now = clock::boot();
    let _ = state::with(|state| state.confirm.all.begin(now));
    if settings::confirms() {
        look(ctx);
    }
}

/// Looks which replicas there are, if that matters and nobody else does it. Once a second: should a change ever not be
/// told, it is noticed all the same.
pub(crate) fn look_again(ctx: &Ctx) {
    const EVERY_MS: u64 = 1_000;
    let now = clock::boot();
    let is_due = state::with(|state| {
        let confirm = &state.confirm;
        confirm.rule.is_some() && confirm.looked_at.plus_ms(EVERY_MS) <= now
    });
    if is_due != Some(true) {
        return;
    }
    let is_silent = look(ctx).is_none() && ctx.flags().decides();
    let is_news = state::with(|state| {
        let is_news = is_silent && !state.confirm.told_silence;
        state.confirm.told_silence = is_silent;
        is_news
    });
    if is_news == Some(true) {
        ctx.log(
            ffi::SERVER_LOG_WARNING,
            "the server does not answer ROLE (is it renamed?): nothing can be confirmed",
        );
    }
}

/// Another server decides from here on: whoever waits for replicas of this one waits in vain, and what it was granted
/// is the new primary's to keep or to end.
pub(crate) fn demoted() {
    let pending = state::with(|state| {
        let Confirm { all, pending, waits, .. } = &mut state.confirm;
        let over = all.drop_all();
        waits.clear();
        let pending = over.into_iter().filter_map(|id| pending.remove(&id));
        let mut told: Vec<_> = pending.map(|pending| (pending.handle, pending.client)).collect();
        // What these began is not undone here any more.
        while let Some((handle, client, _)) = state.confirm.undone_first.pop() {
            told.push((handle, client));
        }
        told
    });
    for (handle, client) in pending.unwrap_or_default() {
        blocking::tell(handle, client, Told::Answer(Answer::Demoted));
    }
}

/// The settings say so from here on.
pub(crate) fn set(rule: Option<Rule>) {
    let asked = state::with(|state| {
        let is_new = state.confirm.rule.is_none() && rule.is_some();
        state.confirm.rule = rule;
        if rule.is_none() {
            state.confirm.all.need_nobody();
        }
        state.table.set_confirms(rule.is_some());
        (is_new, state.pump.ctx())
    });
    // Without a context the module is being loaded: then `start` does the rest.
    let Some((is_new, ctx)) = asked.filter(|(_, ctx)| !ctx.is_null()) else {
        return;
    };
    // SAFETY: the pump's own detached context lives as long as the module.
    let ctx = unsafe { Ctx::from_raw(ctx) };
    if is_new {
        super::events::begin_use(&ctx);
        listen(&ctx);
        look(&ctx);
    }
    warn_of_too_many(&ctx);
}

/// From here on the turns of the event loop and the coming and going of replicas are heard. It costs every turn a
/// little, so it begins when it is first needed.
fn listen(ctx: &Ctx) {
    static IS_HEARD: AtomicBool = AtomicBool::new(false);
    const EVENTS: [(u64, Callback); 2] =
        [(raw::REDISMODULE_EVENT_EVENTLOOP, on_turn), (raw::REDISMODULE_EVENT_REPLICA_CHANGE, on_replica)];
    if IS_HEARD.swap(true, Ordering::Relaxed) {
        return;
    }
    for (id, callback) in EVENTS {
        if !subscribe(ctx, id, Some(callback)) {
            ctx.log(
                ffi::SERVER_LOG_WARNING,
                "the server does not tell about its replicas: nothing is confirmed",
            );
            IS_HEARD.store(false, Ordering::Relaxed);
        }
    }
}

/// Why a grant to this client can never be confirmed. Before anything is done. Whether replicas could confirm it now
/// is looked at by the core.
#[cold]
pub(crate) fn refusal_of_grant(ctx: &Ctx, tie: Tie) -> Option<&'static str> {
    if let Some(reason) = refusal_of_lease(tie.is_kept_alive) {
        return Some(reason);
    }
    ctx.flags().denies_blocking().then_some(CANNOT_WAIT)
}

/// Why a lease cannot be confirmed that stands still while its connection is open, if this one would.
pub(crate) fn refusal_of_lease(is_kept_alive: bool) -> Option<&'static str> {
    (is_kept_alive && settings::confirms()).then_some(KEPT_UNCONFIRMED)
}

/// The same for a renewal.
#[cold]
pub(crate) fn refusal_of_renewal(ctx: &Ctx) -> Option<&'static str> {
    if ctx.flags().denies_blocking() { Some(CANNOT_WAIT) } else { is_impossible().then_some(CANNOT_CONFIRM) }
}

/// Whether no grant could be confirmed now.
#[inline]
pub(crate) fn is_impossible() -> bool {
    settings::confirms() && lacks_replicas()
}

#[cold]
fn lacks_replicas() -> bool {
    let now = clock::boot();
    let can =
        state::with(|state| state.confirm.rule.is_none_or(|rule| state.confirm.all.can_confirm(now, rule)));
    can != Some(true)
}

/// Answers the client of the running command when enough replicas have what was done for it.
#[cold]
pub(crate) fn hold_back(
    ctx: &Ctx,
    token: Option<Token>,
    places: Vec<PlaceBuf>,
    told: Told,
    lease_ms: u64,
) -> c_int {
    note_begun();
    let client = ctx.client().unwrap_or(ClientId(0));
    let Some(handle) = blocking::block(ctx) else {
        let _ = state::with(|state| {
            if let Some(id) = state.confirm.wait(token, places, lease_ms) {
                state.confirm.all.leave(id);
            }
        });
        pump::request();
        return ctx.reply_error(CANNOT_WAIT);
    };
    pend(handle, client, token, places, told, lease_ms);
    raw::REDISMODULE_OK as c_int
}

/// Answers a client that waited in line: if it was granted what it waited for, when enough replicas have it.
#[cold]
pub(crate) fn hold_back_waiter(handle: Handle, client: ClientId, answer: Answer) {
    if let Answer::Granted { place, others, token, .. } = &answer {
        note_begun();
        let places = std::iter::once(place).chain(others).cloned().collect();
        pend(handle, client, Some(*token), places, Told::Answer(answer), u64::MAX);
    } else {
        blocking::tell(handle, client, Told::Answer(answer));
    }
}

/// What the core says has begun is what somebody is told next.
fn note_begun() {
    let _ = state::with(|state| {
        let begun = state.table.take_begun();
        state.confirm.all.note_begun(begun);
    });
}

fn pend(
    handle: Handle,
    client: ClientId,
    token: Option<Token>,
    places: Vec<PlaceBuf>,
    told: Told,
    lease_ms: u64,
) {
    let unconfirmed = unconfirmed(&told);
    let is_pending = state::with(|state| {
        let id = state.confirm.wait(token, places, lease_ms)?;
        state.confirm.waits.insert(handle, id);
        state.confirm.pending.insert(id, Pending { handle, client, told });
        let until = state.confirm.all.next_deadline();
        state.timer.wake_at(until);
        Some(())
    });
    if is_pending.flatten().is_none() {
        let _ = state::with(|state| {
            state.confirm.failed += 1;
            state.confirm.undone_first.push(handle, client, unconfirmed);
        });
        pump::request();
    }
}

/// The connection behind this handle is gone, or was answered by the server itself. What it would have been told if
/// it had waited in vain; `None`: it does not wait for replicas.
pub(crate) fn client_left(handle: Handle) -> Option<Told> {
    let left = state::with(|state| {
        let Confirm { all, pending, waits, undone_first, .. } = &mut state.confirm;
        let Some(id) = waits.remove(&handle) else {
            return undone_first.take(handle);
        };
        all.leave(id);
        pending.remove(&id).map(|pending| unconfirmed(&pending.told))
    });
    left.flatten().inspect(|_| pump::request())
}

/// A replica came or went, and it was not looked at which.
static HAS_MISSED_CHANGE: AtomicBool = AtomicBool::new(false);

extern "C" fn on_replica(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _sub: u64,
    _data: *mut c_void,
) {
    HAS_MISSED_CHANGE.store(true, Ordering::Relaxed);
    guard::callback((), || {
        // SAFETY: the context of the running callback.
        let ctx = unsafe { Ctx::from_raw(ctx) };
        let seen = role::ask(&ctx);
        if see(seen.as_ref()) {
            HAS_MISSED_CHANGE.store(false, Ordering::Relaxed);
        }
        warn_of_too_many(&ctx);
        // Those who could not be granted anything may be now.
        let _ = pump::after(|_| ());
    });
}

/// Looks which replicas there are, and how far. Returns what the stream has come to.
fn look(ctx: &Ctx) -> Option<u64> {
    if HAS_MISSED_CHANGE.swap(false, Ordering::Relaxed) {
        let _ = state::with(|state| state.confirm.all.forget_replicas());
    }
    let role = role::ask(ctx);
    see(role.as_ref());
    role.map(|(offset, _)| offset)
}

/// Takes note of the replicas that there are. A server that is no primary has none.
fn see(role: Option<&(u64, Vec<Seen>)>) -> bool {
    let now = clock::boot();
    let replicas = role.map_or(&[][..], |(_, replicas)| replicas);
    let seen = state::with(|state| {
        state.confirm.looked_at = now;
        state.confirm.all.see(now, replicas);
    });
    seen.is_some()
}

extern "C" fn on_turn(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    sub: u64,
    _data: *mut c_void,
) {
    if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
        guard::callback((), || {
            // SAFETY: the context of the running callback.
            turn(&unsafe { Ctx::from_raw(ctx) });
        });
    }
}

/// Before the event loop sleeps.
fn turn(ctx: &Ctx) {
    let is_idle = state::with(|state| {
        state.confirm.all.forget_begun();
        state.confirm.all.is_empty()
    });
    if is_idle != Some(false) {
        return;
    }
    let offset = look(ctx);
    let must_ask = state::with(|state| {
        let confirm = &mut state.confirm;
        if let Some(offset) = offset.filter(|_| confirm.all.has_new()) {
            confirm.all.sent(offset);
            confirm.must_ask = true;
        }
        confirm.must_ask
    });
    if must_ask == Some(true) {
        ask_replicas(ctx);
    }
    answer_over();
}

/// Answers those who know now what becomes of them.
fn answer_over() {
    let now = clock::boot();
    let over = state::with(|state| {
        // Who is told in a later turn waits till then, so that a grant of nobody's is undone.
        let room = state.room_behind_others();
        let confirm = &mut state.confirm;
        let mut over = Vec::new();
        for (id, verdict) in confirm.all.take_some_over(now, room) {
            let Some(pending) = confirm.pending.remove(&id) else {
                continue;
            };
            confirm.waits.remove(&pending.handle);
            let told = match verdict {
                Verdict::Confirmed => {
                    confirm.confirmed += 1;
                    pending.told
                }
                Verdict::Failed => {
                    confirm.failed += 1;
                    let told = unconfirmed(&pending.told);
                    confirm.undone_first.push(pending.handle, pending.client, told);
                    continue;
                }
            };
            over.push((pending.handle, pending.client, told));
        }
        let next = confirm.all.next_deadline();
        state.timer.wake_at(next);
        over
    });
    for (handle, client, told) in over.unwrap_or_default() {
        blocking::tell(handle, client, told);
    }
    // The pump undoes what has failed and tells whose it was; and it makes another turn come.
    if state::with(|state| state.confirm.needs_pump()) == Some(true) {
        pump::request();
    }
}

/// Asks the replicas how far they are. Without that they say so once a second.
fn ask_replicas(ctx: &Ctx) {
    // SAFETY: 1. no arguments; 2. the format takes two C strings behind the command, and A keeps it from files.
    unsafe {
        // The server promised somebody that nothing is written now.
        if api!(RedisModule_AvoidReplicaTraffic) != Some(0) {
            return;
        }
        let (command, format) = (c"REPLCONF".as_ptr(), c"Acc".as_ptr());
        api!(RedisModule_Replicate, ctx.as_ptr(), command, format, c"GETACK".as_ptr(), c"*".as_ptr());
    }
    let _ = state::with(|state| state.confirm.must_ask = false);
}

/// Says so if more replicas are connected than the group is said to have: then a majority of what it is said to have
/// need not be one of what it has.
fn warn_of_too_many(ctx: &Ctx) {
    let now = clock::boot();
    let too_many = state::with(|state| {
        let too_many = state.confirm.replicas_too_many(now);
        let is_news = too_many > state.confirm.told_too_many;
        state.confirm.told_too_many = too_many;
        Some(too_many).filter(|_| is_news)
    });
    if let Some(too_many) = too_many.flatten() {
        let nodes = settings::group_size() + too_many;
        let text = format!(
            "redislock.group-size is {}, and this shard has {nodes} nodes: grants are not safe until it is as many",
            settings::group_size()
        );
        ctx.log(ffi::SERVER_LOG_WARNING, &text);
    }
}

/// The fields of INFO.
pub(crate) fn show(state: &State, number: impl Fn(&CStr, u64), text: impl Fn(&CStr, &str)) {
    let (confirm, now) = (&state.confirm, clock::boot());
    let (replicas, seasoned) = confirm.all.replicas(now, settings::season_ms());
    text(c"confirm", settings::confirm_word());
    number(c"group_size", settings::group_size());
    number(c"confirm_replicas", replicas as u64);
    number(c"confirm_replicas_seasoned", seasoned as u64);
    number(c"confirm_replicas_too_many", confirm.replicas_too_many(now));
    number(c"confirm_waits", confirm.all.len() as u64);
    number(c"confirm_successes", confirm.confirmed);
    number(c"confirm_failures", confirm.failed);
}
