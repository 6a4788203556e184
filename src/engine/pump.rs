//! The pump: the only writer outside of commands.
//!
//! Many things may free a lock without a command of ours: an expired lease, a closed connection, a deleted key, a
//! flush. They only add a task and request a run of the pump. The pump runs after the command or event that requested
//! it, so that its records follow their cause in the stream. It first checks whether it may write at all. It may not
//! on a replica, while loading, or while the server has promised not to write (CLIENT PAUSE, failover): a write would
//! then end the process.

use super::admission::Admission;
use super::blocked_clients::REPLIES_PER_TURN;
use super::server::{Fact, Key, Server, SlotOwner, To};
use super::{apply, confirm, cron, drain, key_step, legacy, outbox, quarantine, replies, schedule};
use crate::command::slot;
use crate::lock::effect::{Answer, Change, Effects, Record, Task, WaiterId};
use crate::lock::table::{Candidate, KeyRef, Table};
use crate::lock::tuning::Bound;
use crate::lock::types::{LockKeyBuf, Moment, Now, Token};

/// How long one run may take, in microseconds, before it yields to the event loop and is run again at once.
const RUN_BUDGET_US: u64 = 1_000;

/// The number of steps and grants between two looks at the time.
const STEPS_BETWEEN_LOOKS: Bound = Bound::of(64, 3);

/// How many waiters are rejected in one turn of the event loop after this server stopped deciding or granting.
const SENT_AWAY_AT_ONCE: Bound = Bound::of(128, 2);

/// The number of dead locks that are freed between two looks at the time.
const BURIED_AT_ONCE: Bound = Bound::of(64, 2);

/// How soon the pump tries again while the server is paused.
const PAUSE_RETRY_MS: u64 = 5;

/// How soon the pump tries again while the server refuses writes (too few replicas, a disk error).
const REFUSED_RETRY_MS: u64 = 50;

/// How long an expired lease is postponed that cannot be ended now.
const POSTPONED_MS: u64 = 1_000;

/// What a run may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Grant, expire, answer.
    Decide,
    /// Only answer timeouts, and try again soon: the server is paused.
    Pause,
    /// Only answer timeouts: another server decides.
    Follow,
}

fn mode<S: Server>(server: &S) -> Mode {
    let flags = server.flags();
    server.shared().note_role(flags);
    if !flags.decides() {
        Mode::Follow
    } else if server.is_paused() {
        Mode::Pause
    } else {
        Mode::Decide
    }
}

/// Runs the pump once. The server calls it after [`Server::run_soon`].
pub fn run<S: Server>(server: &S) {
    let started = server.boot();
    let _ = server.with(|state| state.pump.requested = None);
    let mode = mode(server);
    let (decides, is_paused) = (mode != Mode::Follow, mode == Mode::Pause);
    let has_backlog = server.with(|state| {
        state.pump.decides = decides;
        std::mem::take(&mut state.pump.has_backlog)
    });
    if decides {
        cron::go(server, started, is_paused);
        quarantine::look(server, started);
    }
    drain::go(server, is_paused);
    close_unanswered(server);
    replies::unsubscribe_if_idle(server);
    let all_are_answered = replies::answer_some(server);
    let all_are_sent_away = reject_waiters(server, started);
    let all_are_sent_away = confirm::reject_waiters(server) && all_are_sent_away;
    tick(server);
    // Times out waiters before a backlog of expired leases.
    let is_apart = mode != Mode::Decide || has_backlog == Some(true);
    let mut is_done = !is_apart || time_outs(server);
    if mode == Mode::Decide {
        is_done &= decide(server, started);
    }
    let postponed = server.with(|state| state.table.tasks());
    while is_done && !(free_dead_locks(server, decides) && cron::classify_orphans(server)) {
        is_done = !is_spent(server, started);
    }
    let all_is_published = is_paused || outbox::publish_some(server, || is_spent(server, started));
    let has_buried = server.with(|state| {
        state.pump.has_backlog = !is_done;
        // Freeing a dead lock may unblock waiters.
        Some(state.table.tasks()) > postponed
    });
    if !is_done || !all_is_published || !all_are_sent_away {
        let_allocator_tidy_up();
    }
    let has_told_all = all_are_answered && all_are_sent_away;
    if !is_done || !all_is_published || !has_told_all || has_buried == Some(true) {
        schedule::request(server);
    }
    wake_again(server, decides, is_paused);
}

/// Lets the allocator consolidate now and then. Many ended leases and waits leave many small free blocks. The C
/// library joins them at the next larger allocation, which takes a tenth of a second for a million.
fn let_allocator_tidy_up() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(4096)));
}

/// Returns true if this run has used up its time.
fn is_spent<S: Server>(server: &S, started: Moment) -> bool {
    server.boot().0.saturating_sub(started.0) > RUN_BUDGET_US
}

/// Sets the alarm for the next run of the pump.
fn wake_again<S: Server>(server: &S, decides: bool, is_paused: bool) {
    let now = server.boot();
    let _ = server.with(|state| {
        if !decides {
            // No request can be granted here.
            while state.table.next_task().is_some() {}
        }
        let next = state.table.next_deadline(decides && !is_paused);
        // A replica may be paused, too. Only this waits there for the end of the pause.
        let is_paused = is_paused || state.pump.must_tick && state.pump.moves == 0;
        let retry_ms = if is_paused { PAUSE_RETRY_MS } else { REFUSED_RETRY_MS };
        let retry = (is_paused || state.table.has_tasks()).then(|| now.plus_ms(retry_ms));
        state.wake.at(next.into_iter().chain(retry).min());
    });
}

/// Closes connections whose answer was lost.
fn close_unanswered<S: Server>(server: &S) {
    let unanswered = server.with(|state| std::mem::take(&mut state.pump.unanswered));
    unanswered.unwrap_or_default().into_iter().for_each(|client| server.close(client));
}

/// Records the clock of tokens in a new append-only file, once no slots are leaving and the server is not paused. A
/// replica may be paused: by a user, or since it was the primary.
fn tick<S: Server>(server: &S) {
    let is_due = server.with(|state| state.pump.must_tick && state.pump.moves == 0);
    if is_due != Some(true) || server.is_paused() {
        return;
    }
    let shared = server.shared();
    let told = server.with(|state| {
        state.pump.must_tick = false;
        let clock = state.table.clock();
        drain::writes_clock(shared, clock).then(|| (clock.last_token(), clock.replicated_token()))
    });
    if let Some((last, replicated)) = told.flatten() {
        let flags = server.flags();
        if flags.has_aof && !flags.is_loading {
            server.replicate(Fact::Tick { last, replicated });
        }
    }
}

/// Answers timeouts only, at most as many as one turn may answer. Returns false if there may be more.
fn time_outs<S: Server>(server: &S) -> bool {
    let (now, mut ended) = (server.boot(), 0);
    apply::effects_of(server, |table, fx| {
        while ended < REPLIES_PER_TURN.get()
            && let Some(Task::TimeOut(waiter)) = table.due(now, false)
        {
            table.time_out(waiter, fx);
            ended += 1;
        }
    });
    ended < REPLIES_PER_TURN.get()
}

/// Rejects some waiters after this server stopped deciding or granting. Returns false if there are more.
pub fn reject_waiters<S: Server>(server: &S, started: Moment) -> bool {
    if server.with(|state| state.table.has_away()) != Some(true) {
        return true;
    }
    let mut sent = 0;
    apply::effects_of(server, |table, fx| {
        while table.send_away(fx) {
            sent += 1;
            // A request may be in very many queues.
            if sent == SENT_AWAY_AT_ONCE.get() || is_spent(server, started) {
                break;
            }
        }
    });
    server.with(|state| state.table.has_away()) != Some(true)
}

/// The work of one run, in order. First revokes undelivered grants. Then alternates between what is due and the other
/// tasks, so that a million leases do not delay the rest.
struct ToDo<'a, S: Server> {
    admission: Admission<'a, S>,
    /// How many tasks are left of those that there were at the last count: tasks added while nothing can be granted
    /// wait for another run.
    noted: usize,
    /// True if nothing can be granted: only tasks that grant nothing are done.
    grants_nothing: bool,
    /// True if the next step is a task, not something due.
    is_notes_turn: bool,
}

impl<'a, S: Server> ToDo<'a, S> {
    fn of_run(server: &'a S) -> Self {
        let admission = Admission::of_pump(server);
        let mut to_do = Self { admission, noted: 0, grants_nothing: false, is_notes_turn: false };
        to_do.count(server);
        to_do
    }

    fn next(&mut self, server: &S, now: Moment) -> Option<Task> {
        if (std::mem::take(&mut self.is_notes_turn)
            || server.with(|state| state.table.revokes()) == Some(true))
            && let Some(note) = self.next_note(server)
        {
            return Some(note);
        }
        self.is_notes_turn = true;
        if let Some(due) = server.with(|state| state.table.due(now, true)).flatten() {
            return Some(due);
        }
        if self.noted == 0 {
            // What was ended here may unblock waiters at other keys.
            self.count(server);
        }
        self.next_note(server)
    }

    fn next_note(&mut self, server: &S) -> Option<Task> {
        self.noted = self.noted.checked_sub(1)?;
        let next = if self.grants_nothing { Table::next_without_grant } else { Table::next_task };
        server.with(|state| next(&mut state.table)).flatten()
    }

    /// Counts the tasks. While nothing can be granted, drops those of requests that have left, and keeps to tasks
    /// that grant nothing; while nothing may be written, does not even do those.
    fn count(&mut self, server: &S) {
        self.noted = server.with(|state| state.table.tasks()).unwrap_or(0);
        self.grants_nothing = self.noted > 0 && self.admission.is_closed();
        if self.grants_nothing {
            let without_grant = server.with(|state| {
                state.table.forget_notes_of_left();
                state.table.tasks_without_grant()
            });
            self.noted = without_grant.filter(|_| !self.admission.refuses_writes()).unwrap_or(0);
        }
    }
}

/// Does the work of one run. Returns false if its time is spent.
fn decide<S: Server>(server: &S, started: Moment) -> bool {
    let mut now = server.now();
    let mut to_do = ToDo::of_run(server);
    let mut time_outs = 0;
    let mut looks_at = STEPS_BETWEEN_LOOKS.get();
    for steps in 1_usize.. {
        // One step may grant a lock to many waiters.
        let count = steps + to_do.admission.asked();
        if count >= looks_at {
            looks_at = count + STEPS_BETWEEN_LOOKS.get();
            now = server.now();
            if is_spent(server, started) {
                return false;
            }
        }
        let Some(task) = to_do.next(server, now.boot) else { break };
        time_outs += usize::from(matches!(task, Task::TimeOut(_)));
        perform(server, now, task, &mut to_do.admission);
        if time_outs == REPLIES_PER_TURN.get() {
            return false;
        }
    }
    true
}

fn perform<S: Server>(server: &S, now: Now, task: Task, admission: &mut Admission<'_, S>) {
    match &task {
        Task::AskAgain => {}
        Task::TimeOut(waiter) => apply::effects_of(server, |table, fx| table.time_out(*waiter, fx)),
        Task::Multi(request) => at_all(server, now, *request, admission),
        Task::ReplicateAgain(lock_key, token) => replicate_again(server, now, lock_key, *token),
        Task::Expire(lock_key, _) | Task::Settle(lock_key) | Task::Revoke(lock_key, _) => {
            at(server, now, lock_key, &task, admission)
        }
    }
}

/// Opens a key and does a task there.
fn at<S: Server>(server: &S, now: Now, lock_key: &LockKeyBuf, task: &Task, admission: &mut Admission<'_, S>) {
    let Some(name) = server.name_at(lock_key) else {
        return postpone(server, now, task);
    };
    let name = S::name(&name);
    if server.slot_owner(name) != SlotOwner::Ours {
        put_off(server, now, name, task);
        return redirect(server, name, lock_key);
    }
    let key = server.open(name, To::Write);
    let existing = legacy::find(server, &key, None);
    if let Task::Expire(_, lock) = *task
        && server.with(|state| state.table.stands_for(existing, lock)) != Some(true)
    {
        let postponed_until = now.boot.plus_ms(POSTPONED_MS);
        let _ = server.with(|state| state.table.lost(now.boot, lock, postponed_until));
        return;
    }
    let key_ref = KeyRef { lock_key: lock_key.as_key(), existing };
    let done = server.with(|state| {
        let mut admission = |who: Candidate<'_>| admission.admit(who);
        let (table, fx) = (&mut state.table, &mut state.fx);
        let step = match task {
            Task::Revoke(_, token) => table.revoke(now, key_ref, *token, &mut admission, fx),
            Task::Expire(_, lock) => table.settle(now, key_ref, Some(*lock), &mut admission, fx),
            _ => table.settle(now, key_ref, None, &mut admission, fx),
        };
        let fx = state.after_step(step.change, existing);
        (step, fx)
    });
    if let Some((step, fx)) = done {
        apply::carry_out(server, name, key, existing, &step, fx);
    }
}

/// Grants a request for several locks, if it is first at all of them.
fn at_all<S: Server>(server: &S, now: Now, request: WaiterId, admission: &mut Admission<'_, S>) {
    let lock_keys = server.with(|state| state.table.keys_of(request)).unwrap_or_default();
    let Some(owned) = lock_keys.iter().map(|lock_key| server.name_at(lock_key)).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    if owned.is_empty() {
        return;
    }
    let names: Vec<S::Name<'_>> = owned.iter().map(S::name).collect();
    if let Some(lost) = names.iter().position(|&name| server.slot_owner(name) != SlotOwner::Ours) {
        return redirect(server, names[lost], &lock_keys[lost]);
    }
    let decide = |table: &mut Table, refs: &[KeyRef<'_>], fx: &mut [Effects]| {
        let mut admission = |who: Candidate<'_>| admission.admit(who);
        ((), table.settle_many(now, request, refs, &mut admission, fx))
    };
    let _ = key_step::at_all(server, &names, true, decide, |()| ());
}

/// Replicates the lease of a hold that has changed.
fn replicate_again<S: Server>(server: &S, now: Now, lock_key: &LockKeyBuf, token: Token) {
    let Some(name) = server.name_at(lock_key) else {
        return;
    };
    let name = S::name(&name);
    if server.slot_owner(name) != SlotOwner::Ours {
        return put_off(server, now, name, &Task::ReplicateAgain(lock_key.clone(), token));
    }
    let key = server.open(name, To::Write);
    let existing = key.existing();
    let record = server.with(|state| state.table.to_replicate(existing, token)).flatten();
    // Clients that watch or track the key see the change.
    let change = if record.is_some() { Change::Touched } else { Change::Nothing };
    apply::change(server, key, existing, change);
    apply::replicate(server, name, record.unwrap_or(Record::Nothing));
}

/// Postpones the end of an expired lease.
fn postpone<S: Server>(server: &S, now: Now, task: &Task) {
    if let Task::Expire(_, lock) = *task {
        let _ = server.with(|state| state.table.postpone(lock, now.boot.plus_ms(POSTPONED_MS)));
    }
}

/// Retries a task later, while its hold is here, because the slot of its key belongs to another node or to none
/// known. The key of a slot that has left for good will be deleted.
fn put_off<S: Server>(server: &S, now: Now, name: S::Name<'_>, task: &Task) {
    let (Task::Revoke(lock_key, token) | Task::ReplicateAgain(lock_key, token)) = task else {
        return postpone(server, now, task);
    };
    let existing = server.open(name, To::Read).existing();
    let at = now.boot.plus_ms(POSTPONED_MS);
    let _ = server.with(|state| {
        if state.table.to_replicate(existing, *token).is_some() {
            state.table.put_off(task.clone(), at);
        } else {
            state.table.forget_gone(lock_key.as_key(), *token, None);
        }
    });
}

/// Writes nothing for a key whose slot belongs to another node, and redirects its waiters.
fn redirect<S: Server>(server: &S, name: S::Name<'_>, lock_key: &LockKeyBuf) {
    if server.with(|state| state.table.is_waited_for(lock_key.as_key())) == Some(true) {
        let slot = slot::slot_of(name.as_ref());
        let answer = Answer::Moved(slot::redirection(slot, server.node_of(slot)));
        apply::effects_of(server, |table, fx| table.dismiss(lock_key.as_key(), &answer, fx));
    }
}

/// Returns true if values were freed that the table still knows.
pub fn has_dead<S: Server>(server: &S) -> bool {
    server.shared().has_dead() || server.with(|state| !state.dead.is_empty()) == Some(true)
}

/// Forgets some locks whose values were freed. Returns false if there are more.
pub fn free_dead_locks<S: Server>(server: &S, is_ours: bool) -> bool {
    let mut dead = server.shared().take_dead();
    if !dead.is_empty() {
        let _ = server.with(|state| {
            // A whole data set may have been removed: usually all of them.
            state.table.keep_known(&mut dead);
            state.dead.append(&mut dead);
        });
    }
    if server.with(|state| state.dead.is_empty()) == Some(true) {
        return true;
    }
    let now = server.boot();
    let is_done = server.with(|state| {
        let rest = state.dead.len().saturating_sub(BURIED_AT_ONCE.get());
        for lock in state.dead.drain(rest..) {
            state.table.forget(now, lock, is_ours);
        }
        if rest == 0 {
            state.dead = Vec::new();
        }
        rest == 0
    });
    is_done != Some(false)
}
