//! The guarantees, as a client could hold the server to them.
//!
//! The judge sees the inputs and the outputs, records the promises to each client, and names a broken guarantee. It
//! knows no rule by which the core decides, only the invariants of every decision. Each verdict begins with the
//! number of the guarantee (CONTRACT 3). G13 is left to the [readers](crate::sim::single::reader), which compare
//! themselves with their primary. [`crate::sim::checkers::verdicts`] judges replies to clients that request a lock,
//! and [`crate::sim::checkers::begun`] new holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::error::{COUNTED_UNCONFIRMED, KEPT_UNCONFIRMED, LONGER_THAN_QUARANTINE};
use crate::lock::effect::Answer;
use crate::lock::table::{
    ARRIVED, NO_PERMISSION, NO_PERMISSION_FOR_SEVERAL, NO_TOKENS, WRONG_TYPE, WaiterView,
};
use crate::lock::tests::tuning;
use crate::lock::types::{Mode, TOKEN_MAX};
pub(crate) use crate::sim::checkers::book::Pending;
use crate::sim::checkers::book::{Hold, Scene, Wish, is_free_for};
use crate::sim::single::input::{Answered, Input, Outcome, Reply};
use crate::sim::single::server::{At, Key, Name, Outside};
use crate::sim::single::world::World;

/// See the [module](self).
#[derive(Clone, Default)]
pub(crate) struct Judge {
    /// The holds promised to each owner.
    pub(crate) promises: BTreeMap<At, Vec<Hold>>,
    pub(crate) queues: BTreeMap<At, Vec<Pending>>,
    /// Keys that may hold an empty lock: a client renamed, moved, swapped or restored it.
    empties: BTreeSet<At>,
    pub(crate) newest: u64,
    pub(crate) arrivals: u64,
    /// The time since which nothing new may be granted, and for how many milliseconds.
    quarantine: Option<(u64, u64)>,
    /// Keys with a restored lock, and no decision since.
    pub(crate) arrived: BTreeSet<At>,
    /// Keys whose waits have all ended in the running step, because a lock was restored there.
    pub(crate) ended: BTreeSet<At>,
    /// The reservations that the running acquire took over.
    pub(crate) taken_over: Vec<(At, usize, Pending)>,
    /// Cases that happened at least once: a check that never saw its case proves nothing.
    pub(crate) seen: BTreeSet<&'static str>,
}

/// A verdict.
pub(crate) type Verdict = Result<(), String>;

pub(crate) fn must(holds: bool, broken: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(broken()) }
}

impl Judge {
    /// Judges one step. `world` is its state after the step.
    pub(crate) fn judge(&mut self, input: &Input, out: &Outcome, world: &World) -> Verdict {
        self.taken_over.clear();
        for (&at, promises) in &mut self.promises {
            promises.iter_mut().for_each(|promise| promise.replied(at, out));
        }
        let arrivals = self.arrivals;
        for what in &out.outside {
            self.outside(what, world);
        }
        self.end_for_arrived(input, out, world);
        match *input {
            Input::Quarantine(length_ms, true) => self.quarantine = Some((world.time, length_ms)),
            // A quarantine that has ended does not come back.
            Input::Quarantine(length_ms, false) => {
                let since = self.quarantine.filter(|_| self.is_quarantined(world)).map(|(since, _)| since);
                self.quarantine = since.map(|since| (since, length_ms));
            }
            Input::Promote(_) if out.reply == Reply::Bool(true) => {
                self.quarantine = Some((world.time, world.quarantine_ms));
            }
            Input::Close(client) | Input::Unblock(client) => self.gone(client, input, world),
            Input::Release { at, owner, token } => self.released(at, owner, token, &out.reply, world)?,
            // It may end an expired hold, so that its own owner's waiting request is granted: after its reply.
            Input::Renew { .. } => self.renewed(input, &out.reply, world)?,
            Input::Pump => self.let_run(world),
            _ => {}
        }
        // An owner that was granted after the one that asked, as a consequence, has a newer token.
        let came_behind = self.came_behind(input, out, world);
        for answered in out.answers.iter().filter(|answered| !came_behind(answered)) {
            self.answered(input, answered, world)?;
        }
        self.drop_lapsed(world);
        if matches!(input, Input::Acquire { .. } | Input::AcquireMany { .. }) {
            self.acquired(input, out, world)?;
        }
        for answered in out.answers.iter().filter(|answered| came_behind(answered)) {
            self.answered(input, answered, world)?;
        }
        match *input {
            Input::Pump => self.pumped(world)?,
            Input::Promote(_) if out.reply == Reply::Bool(true) => self.promoted(world)?,
            _ => {}
        }
        // The owner that asked may by now hold the lock of its reservation.
        self.drop_lapsed(world);
        let left = self.ended.iter().flat_map(|&at| self.queue(at)).find(|own| own.number <= arrivals);
        must(left.is_none(), || format!("G9: {left:?} goes on waiting where a lock has arrived"))?;
        self.check(world)
    }

    /// Returns which answers follow that of the owner that asked. These are grants alongside an owner that holds less
    /// from here on, or that holds the lock, too.
    fn came_behind(&self, input: &Input, out: &Outcome, world: &World) -> impl Fn(&Answered) -> bool + use<> {
        let own = match *input {
            Input::Acquire { at, owner, .. } => self.own(at, owner, world).map(|own| own.token),
            _ => None,
        };
        let reply = if let Reply::Granted(token) = out.reply { Some(token) } else { None };
        let is_down = reply.is_some() && own == reply;
        let is_newer = move |answer: &Answer| {
            let Answer::Granted { token, .. } = *answer else { return false };
            reply.is_some_and(|reply| token > reply)
        };
        move |answered| match answered.answer {
            Answer::Granted { token, .. } if Some(token) == reply => false,
            Answer::Granted { .. } => is_down || is_newer(&answered.answer),
            _ => false,
        }
    }

    /// Returns true if the same promises were made to the same owners, and the same requests wait.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let is_same = self.promises == other.promises && self.queues == other.queues;
        is_same && self.newest == other.newest
    }

    /// Returns the promises at a key that still bind.
    pub(crate) fn live(&self, at: At, world: &World) -> impl Iterator<Item = &Hold> {
        let time = world.time;
        self.promises.get(&at).into_iter().flatten().filter(move |promise| promise.is_live(time))
    }

    pub(crate) fn own(&self, at: At, owner: Name, world: &World) -> Option<Hold> {
        self.live(at, world).find(|promise| promise.owner == owner).copied()
    }

    /// Replaces this owner's promise.
    pub(crate) fn promise(&mut self, at: At, hold: Hold) {
        let promises = self.promises.entry(at).or_default();
        promises.retain(|promise| promise.owner != hold.owner);
        promises.push(hold);
    }

    pub(crate) fn queue(&self, at: At) -> &[Pending] {
        self.queues.get(&at).map_or(&[], Vec::as_slice)
    }

    /// Removes a request from all its queues.
    pub(crate) fn strike(&mut self, pending: &Pending) {
        for queue in self.queues.values_mut() {
            queue.retain(|other| other.number != pending.number);
        }
    }

    /// Records that this case happened.
    pub(crate) fn see(&mut self, what: &'static str) {
        self.seen.insert(what);
    }

    /// Returns true if these live holds leave room for one more.
    pub(crate) fn is_free_for(&self, at: At, owner: Name, mode: Mode, world: &World) -> bool {
        self.is_room_beside(at, owner, mode, 0, world)
    }

    /// Returns true if the server may have lost grants, and so makes no new ones.
    pub(crate) fn is_quarantined(&self, world: &World) -> bool {
        self.quarantine.is_some_and(|(since, length_ms)| world.time < since + length_ms * 1000)
    }

    /// Returns true if these live holds leave room for one more alongside `reserved` reservations of others.
    pub(crate) fn is_room_beside(
        &self,
        at: At,
        owner: Name,
        mode: Mode,
        reserved: usize,
        world: &World,
    ) -> bool {
        if self.is_quarantined(world) {
            return false;
        }
        // A hold that must be revoked may have been replaced by this one.
        let others = self.live(at, world).filter(|hold| hold.owner != owner && !hold.is_ownerless());
        let others: Vec<Mode> = others.map(|hold| hold.mode).collect();
        is_free_for(mode, &others, reserved, world.limits.holders_max)
    }

    /// Returns the scene of all holds and waits, and the number of this request among the others.
    pub(crate) fn scene(&self, wish: Wish, number: u64, world: &World) -> (Scene, usize) {
        // A request that has timed out waits for nothing: the pump is about to report that.
        let is_late = |pending: &Pending| pending.until.is_some_and(|until| until <= world.time);
        let others = self.queues.values().flatten();
        let others = others.filter(|pending| pending.number != number && !is_late(pending));
        let mut all: Vec<&Pending> = others.collect();
        all.sort_by_key(|pending| pending.number);
        all.dedup_by_key(|pending| pending.number);
        let position = all.partition_point(|pending| pending.number < number);
        let mut wishes: Vec<Wish> = all.iter().map(|p| p.wish()).collect();
        wishes.insert(position, wish);
        let at_all = self.promises.keys().flat_map(|&at| self.live(at, world).map(move |hold| (at, hold)));
        let holds = at_all.map(|(at, hold)| (at, hold.owner, hold.mode)).collect();
        let arrived = self.arrived.clone();
        (Scene { holds, wishes, arrived, holders_max: world.limits.holders_max }, position)
    }

    /// G11: checks that a waiting request can still be granted, unless the search for its blockers ended early.
    pub(crate) fn will_not_wait_for_itself(&mut self, asked: &Pending, world: &World) -> Verdict {
        let Pending { owner, keys, mode, number, .. } = *asked;
        let wish = Wish { owner, keys, mode };
        let (scene, position) = self.scene(wish, number, world);
        let comes_true = scene.comes_true(position);
        if !comes_true && tuning::has_search_ended_early() {
            self.see("deadlock beyond the search");
            return Ok(());
        }
        must(comes_true, || format!("G11: {owner:?} waits for {keys:?}, and for itself: {scene:?}"))
    }

    /// Notes that a client changed keys without the module: it broke the holds there, and no others (CONTRACT 5).
    fn outside(&mut self, what: &Outside, world: &World) {
        let is_broken = |at: &At| match *what {
            Outside::Del(gone) | Outside::Set(gone) | Outside::Move(gone, _) => *at == gone,
            Outside::Rename(from, to) => *at == from || *at == to,
            Outside::Flush(db, _) => db.is_none_or(|db| db == at.db),
            Outside::Swap(a, b) => a != b && (at.db == a || at.db == b),
            Outside::Restore(over, _) => *at == over,
            Outside::Expire(_) => false,
        };
        let time = world.time;
        let mut was_live = false;
        self.promises.retain(|at, promises| {
            let stays = !is_broken(at);
            was_live |= !stays && promises.iter().any(|promise| promise.is_live(time));
            stays
        });
        if was_live {
            self.see("broken");
        }
        match *what {
            Outside::Rename(_, to) => drop(self.empties.insert(to)),
            Outside::Move(from, db) => drop(self.empties.insert(At { db, ..from })),
            Outside::Swap(a, b) => {
                let swapped = world.server.keys.keys().filter(|at| at.db == a || at.db == b);
                self.empties.extend(swapped);
            }
            Outside::Restore(at, (_, None)) => drop(self.empties.insert(at)),
            // A hold is bound to its name.
            Outside::Restore(at, (name, Some(_))) if name != at.name => drop(self.empties.insert(at)),
            Outside::Restore(at, (_, Some(ref saved))) => {
                if !self.queue(at).is_empty() {
                    self.arrived.insert(at);
                }
                for hold in &saved.holds {
                    self.newest = self.newest.max(hold.token.get());
                    if let Some(owner) = world.owner(&hold.owner) {
                        self.promise(at, Hold::read(owner, saved.mode, hold, time));
                        self.see("restored");
                    }
                }
            }
            _ => {}
        }
    }

    /// G8: ends the requests of this connection; leases bound to it run from here.
    fn gone(&mut self, client: u64, input: &Input, world: &World) {
        for queue in self.queues.values_mut() {
            let before = queue.len();
            queue.retain(|pending| pending.is_reservation() || pending.client != client);
            if queue.len() < before {
                self.seen.insert("left the line");
            }
        }
        if !matches!(input, Input::Close(_)) {
            return;
        }
        for promises in self.promises.values_mut() {
            for promise in promises.iter_mut().filter(|promise| promise.is_live(world.time)) {
                if promise.client == Some(client) {
                    self.seen.insert(if promise.is_paused() { "kept until here" } else { "cut" });
                }
                promise.close(client, world.time);
            }
        }
    }

    /// Starts the leases that closed connections paused.
    fn let_run(&mut self, world: &World) {
        for promise in self.promises.values_mut().flatten() {
            if promise.is_paused() && promise.client.is_none() {
                self.seen.insert("kept by another life");
                promise.untied(world.time, false);
            }
        }
    }

    /// Drops reservations that were not refreshed in time: they may be removed by now, and must be once the pump has
    /// run. The same applies to one where another value was written, or where a lock has arrived.
    fn drop_lapsed(&mut self, world: &World) {
        let arrived = &self.arrived;
        let is_late = |pending: &Pending| pending.until.is_some_and(|until| until <= world.time);
        let may_go = |at, p: &Pending| {
            p.is_reservation() && (is_late(p) || arrived.contains(&at) || world.is_other(at))
        };
        for (&at, queue) in &mut self.queues {
            if !queue.iter().any(|pending| may_go(at, pending)) {
                continue;
            }
            let described = world.server.described(at, usize::MAX);
            let there = described.map(|described| described.queue).unwrap_or_default();
            queue.retain(|pending| {
                // A request that has not waited at all has lost its entry, and was queued again.
                let is_its = |view: &WaiterView<'_>| {
                    view.owner == pending.owner.as_bytes() && (view.waited_ms > 0 || !is_late(pending))
                };
                let is_there = there.iter().any(is_its);
                if is_late(pending) && !is_there {
                    self.seen.insert("place lapsed");
                }
                is_there || !may_go(at, pending)
            });
        }
    }

    fn answered(&mut self, input: &Input, answered: &Answered, world: &World) -> Verdict {
        let &Answered { wait, at, client, ref answer } = answered;
        let Some(&pending) = self.queue(at).iter().find(|pending| pending.wait == wait) else {
            return Err(format!(
                "G7, G8: wait {wait} of connection {client} is over and was told {answer:?}"
            ));
        };
        let is_over = pending.until.is_some_and(|until| until <= world.time);
        let Pending { owner, keys, .. } = pending;
        if let Answer::Granted { token, .. } = *answer {
            let own = self.own(at, owner, world).filter(|own| own.token == token);
            must(own.is_none(), || format!("G9: {pending:?} was told of {own:?}"))?;
            must(!is_over, || format!("G7: {owner:?} was granted {at} after its time"))?;
            return self.granted(&pending, answer, world);
        }
        let positions = keys.iter().filter_map(|at| {
            let position = self.queue(at).iter().position(|other| other.number == pending.number)?;
            Some((at, position, pending))
        });
        let positions: Vec<_> = positions.collect();
        self.strike(&pending);
        let (is_justified, what) = match *answer {
            Answer::Granted { .. } => (false, "granted"),
            Answer::TimedOut => (is_over, "timed out"),
            Answer::Withdrawn => (
                matches!(*input, Input::Release { at, owner: who, .. } if keys.contains(at) && who == owner),
                "withdrawn",
            ),
            Answer::Replaced => {
                self.taken_over.extend(positions);
                let is_retry = match *input {
                    // The owner polls a reservation without a wait.
                    Input::Acquire { at, owner: who, .. } => who == owner && keys.contains(at),
                    Input::AcquireMany { keys: its, owner: who, .. } => {
                        who == owner && its.iter().any(|at| keys.contains(at))
                    }
                    _ => false,
                };
                (is_retry, "replaced")
            }
            Answer::Refused(NO_PERMISSION | NO_PERMISSION_FOR_SEVERAL) => {
                (world.forbidden.contains(&client), "forbidden")
            }
            Answer::Refused(WRONG_TYPE) => (keys.iter().any(|at| world.is_other(at)), "told of another type"),
            Answer::Refused(NO_TOKENS) => (world.server.tokens().0 == TOKEN_MAX, "no tokens"),
            Answer::Refused(LONGER_THAN_QUARANTINE) => {
                (world.is_longer_than_quarantine(pending.lease_ms), "longer than the quarantine")
            }
            Answer::Refused(KEPT_UNCONFIRMED) => {
                (world.confirms && pending.binding.is_keepalive, "kept where leases are confirmed")
            }
            Answer::Refused(COUNTED_UNCONFIRMED) => {
                (world.confirms && pending.is_reentrant, "counted where grants are confirmed")
            }
            Answer::Refused(ARRIVED) => {
                (keys.iter().any(|at| self.ended.contains(&at)), "told of a lock that arrived")
            }
            Answer::Refused(_) => (false, "refused"),
            Answer::Demoted => (matches!(input, Input::Promote(_)), "demoted"),
            Answer::Moved(_) => (keys.iter().any(|at| world.elsewhere.contains(&at)), "sent on"),
        };
        self.see(what);
        must(is_justified, || format!("G7: {owner:?} at {at} was told {answer:?} at {input:?}"))
    }

    /// Checks the invariants after every step.
    fn check(&mut self, world: &World) -> Verdict {
        let server = &world.server;
        self.forget_ended(world);
        for &at in self.promises.keys().chain(server.keys.keys()) {
            self.check_holds(at, world)?;
        }
        let is_empty =
            |at: &At| matches!(server.keys.get(at), Some(Key::Lock(_))) && server.saved(*at).is_none();
        self.empties.retain(is_empty);
        let left = server.keys.keys().find(|at| is_empty(at) && !self.empties.contains(at));
        must(left.is_none(), || format!("a lock that nobody holds was left at {left:?}"))?;
        self.queues.retain(|_, queue| !queue.is_empty());
        let waiting = self.queues.values().map(Vec::len).sum();
        must(server.table().waiters() == waiting, || {
            format!("G7, G8: {} wait, and {waiting} should: {:?}", server.table().waiters(), self.queues)
        })
    }

    /// Forgets lost grants that have expired: any request for the lock may have ended them. Then nothing is left to
    /// revoke.
    fn forget_ended(&mut self, world: &World) {
        for (&at, promises) in &mut self.promises {
            let is_lost = |promise: &Hold| promise.is_ownerless() && !promise.is_live(world.time);
            if promises.iter().any(is_lost) {
                let there = world.server.saved(at).map(|saved| saved.holds).unwrap_or_default();
                let is_there = |promise: &Hold| there.iter().any(|hold| hold.token == promise.token);
                promises.retain(|promise| !is_lost(promise) || is_there(promise));
            }
        }
    }

    /// Checks that every promised hold exists, with the lease, count and binding that were promised, and that there
    /// is no other.
    fn check_holds(&self, at: At, world: &World) -> Verdict {
        let server = &world.server;
        let saved = server.saved(at);
        let holds = saved.iter().flat_map(|saved| saved.holds.iter().map(|hold| (saved.mode, hold)));
        for (mode, hold) in holds.clone() {
            let is_live = server.is_live(at, hold.token);
            let promise = self.live(at, world).find(|promise| promise.token == hold.token);
            must(!is_live || promise.is_some(), || format!("G3: {at} is held by nobody's right: {hold:?}"))?;
            let own = promise.filter(|_| is_live).filter(|promise| {
                *hold.owner != *promise.owner.as_bytes()
                    || mode != promise.mode
                    || hold.count != promise.count
            });
            must(own.is_none(), || format!("G9, G10: {own:?} at {at} is {mode:?} {hold:?}"))?;
        }
        for promise in self.live(at, world).filter(|promise| !promise.is_ownerless()) {
            let own = holds.clone().find(|(_, hold)| hold.token == promise.token);
            must(own.is_some() && server.is_live(at, promise.token), || {
                format!("G2, G10: {at} is {saved:?} now, and {promise:?} was not ended by anybody who may")
            })?;
            let (left_ms, promised_ms) = (own.map(|own| own.1.left_ms), promise.left_ms(world.time));
            must(left_ms == Some(promised_ms), || {
                format!("G2, G3: {left_ms:?} ms are left at {at}, and {promised_ms} were promised")
            })?;
            must(own.is_some_and(|own| own.1.binding == promise.binding), || {
                format!("{at}: {own:?}, not {promise:?}")
            })?;
        }
        Ok(())
    }
}
