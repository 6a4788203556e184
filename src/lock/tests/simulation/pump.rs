//! What a server does by itself: leases and waits end, locks are handed on, grants are undone.

use super::super::input::Keys;
use super::asks::gate;
use super::points::Point;
use super::slots::at_of;
use super::{Group, Verdict};
use crate::lock::confirm::WaitId;
use crate::lock::effect::{Effects, Record, Stake, Task, WaiterId};
use crate::lock::table::Due;
use crate::lock::types::{ClientId, PlaceBuf, Token};

/// More than can be due.
const STEPS_MAX: usize = 1_000;

/// Until when a lease is left alone whose lock this server does not answer for.
const LOOK_AGAIN_MS: u64 = 20;

/// What is to be done at one place.
enum Job {
    Expire(crate::lock::effect::LockId),
    Settle,
    TakeBack(Token),
    Undo(Stake),
}

impl Group {
    /// The pump runs on some server, due or not.
    pub(super) fn pump_any(&mut self) -> Verdict {
        let n = self.random.below(self.plan.nodes() as u64) as usize;
        if self.nodes[n].runs() && self.nodes[n].decides() {
            self.pump(n)?;
            self.turn(n)?;
        }
        Ok(())
    }

    /// The pump runs if there is anything for it to do.
    pub(super) fn pump_if_due(&mut self, n: usize) -> Verdict {
        let node = &mut self.nodes[n];
        node.tell_time(self.time);
        let table = &node.server.table;
        let is_due = table.next_deadline(true).is_some_and(|at| at <= node.server.now.boot);
        // The server's cron asks for those that a connection of another life kept alive.
        let is_due = is_due || table.has_foreign();
        let has_failed = node.pending.iter().any(|pending| pending.has_failed);
        let is_due = is_due || has_failed || table.has_tasks() || node.confirmations.has_undo();
        if is_due {
            return self.pump(n);
        }
        // A step that should have asked for the pump, and did not, is noticed here.
        if self.cannot_confirm(n) { Ok(()) } else { self.nobody_waits_for_what_is_free(n) }
    }

    /// One run of the pump, after which nobody waits for what is free.
    pub(super) fn pump(&mut self, n: usize) -> Verdict {
        let is_closed = self.cannot_confirm(n);
        self.run_pump(n, is_closed)?;
        if is_closed { Ok(()) } else { self.nobody_waits_for_what_is_free(n) }
    }

    fn run_pump(&mut self, n: usize, is_closed: bool) -> Verdict {
        self.nodes[n].tell_time(self.time);
        self.go_rounds(n)?;
        while let Some(stake) = self.nodes[n].confirmations.next_undo() {
            self.see(Point::Undone);
            self.note(|| format!("n{n} undoes {stake:?}"));
            let place = stake.place.clone();
            self.job(n, &place, Job::Undo(stake), is_closed)?;
        }
        self.tell_failed(n)?;
        let mut tasks = self.nodes[n].server.table.tasks();
        for _ in 0..STEPS_MAX {
            let server = &mut self.nodes[n].server;
            if let Some(due) = server.table.due(server.now.boot, true) {
                self.end(n, due, is_closed)?;
                continue;
            }
            // What was ended here may have made it somebody's turn elsewhere.
            if tasks == 0 && !is_closed {
                tasks = server.table.tasks();
            }
            if tasks == 0 || is_closed {
                while server.table.next_notice().is_some() {}
                return Ok(());
            }
            tasks -= 1;
            if let Some(task) = server.table.next_task() {
                self.look_at(n, task, is_closed)?;
            }
        }
        let server = &mut self.nodes[n].server;
        Err(format!("G3: the pump of n{n} never ends: {:?} is due", server.table.due(server.now.boot, true)))
    }

    fn end(&mut self, n: usize, due: Due, is_closed: bool) -> Verdict {
        match due {
            Due::AskAgain => Ok(()),
            Due::Look(place) => Err(format!("{place:?} is to be looked at, though there is no old client")),
            Due::Timeout(waiter) => {
                let mut fx = Effects::default();
                self.nodes[n].server.table.time_out(waiter, &mut fx);
                fx.into_iter().try_for_each(|effect| self.effect(n, effect))
            }
            Due::Lease(lock, place) => {
                self.see(Point::Expired);
                self.job(n, &place, Job::Expire(lock), is_closed)
            }
        }
    }

    fn look_at(&mut self, n: usize, task: Task, is_closed: bool) -> Verdict {
        match task {
            Task::Settle(place) => self.job(n, &place, Job::Settle, is_closed),
            Task::TakeBack(place, token) => self.job(n, &place, Job::TakeBack(token), is_closed),
            Task::Party(request) => self.look_at_all(n, request, is_closed),
            Task::Retell(place, token) => self.retell(n, &place, token),
        }
    }

    fn job(&mut self, n: usize, place: &PlaceBuf, job: Job, is_closed: bool) -> Verdict {
        let at = at_of(place)?;
        if !self.is_ours(n, at) {
            if let Job::Expire(lock) = job {
                let server = &mut self.nodes[n].server;
                server.table.postpone(lock, server.now.boot.plus_ms(LOOK_AGAIN_MS));
            }
            return self.send_on(n, place);
        }
        let mut fx = std::mem::take(&mut self.fx);
        let mut gate = gate(is_closed);
        let server = &mut self.nodes[n].server;
        let (now, found, table) = (server.now, server.found(at), &mut server.table);
        let place = at.place();
        let step = match job {
            Job::Expire(lock) if !table.stands_for(found, lock) => {
                return Err(format!("G3: {at} ends, and something else stands there"));
            }
            Job::Expire(lock) => table.settle(now, place, found, Some(lock), &mut gate, &mut fx),
            Job::Settle => table.settle(now, place, found, None, &mut gate, &mut fx),
            Job::TakeBack(token) => table.take_back(now, place, found, token, &mut gate, &mut fx),
            Job::Undo(Stake { token, undo, .. }) => {
                table.undo(now, place, found, (token, undo), &mut gate, &mut fx)
            }
        };
        debug_assert!(step.record != Record::AsAsked, "nobody asked");
        self.carry_out_one(n, Keys::one(at), None, step, fx)
    }

    /// The lease of a hold runs otherwise than readers know.
    fn retell(&mut self, n: usize, place: &PlaceBuf, token: Token) -> Verdict {
        let at = at_of(place)?;
        let server = &self.nodes[n].server;
        let record = server.table.to_tell(server.found(at), token).filter(|_| self.is_ours(n, at));
        if let Some(record) = record {
            self.see(Point::Retold);
            let fact = self.nodes[n].server.fact(at, record)?;
            self.write(n, fact);
        }
        Ok(())
    }

    /// It may be the turn of a request for several locks.
    fn look_at_all(&mut self, n: usize, request: WaiterId, is_closed: bool) -> Verdict {
        let places = self.nodes[n].server.table.places_of(request);
        let ats = places.iter().map(at_of).collect::<Result<Vec<_>, String>>()?;
        if ats.is_empty() {
            return Ok(());
        }
        if let Some(lost) = ats.iter().position(|&at| !self.is_ours(n, at)) {
            return self.send_on(n, &places[lost]);
        }
        let mut gate = gate(is_closed);
        self.decide_all(n, Keys::of(&ats), None, |table, now, spots, fx| {
            ((), table.settle_many(now, request, spots, &mut gate, fx))
        })
    }

    /// The server finds that a connection is closed.
    pub(super) fn close(&mut self, n: usize, connection: u64) {
        let node = &mut self.nodes[n];
        node.tell_time(self.time);
        let judge = &mut self.judge;
        let table = &mut node.server.table;
        node.waits.retain(|wait| {
            let stays = wait.request.connection != connection;
            if !stays {
                judge.closed(&wait.request);
                table.leave(wait.waiter);
            }
            stays
        });
        let mut gone: Vec<WaitId> = Vec::new();
        node.pending.retain(|pending| {
            let stays = pending.request.connection != connection;
            if !stays {
                judge.closed(&pending.request);
                gone.extend(pending.id);
            }
            stays
        });
        gone.into_iter().for_each(|id| node.confirmations.leave(id));
        table.disconnected(node.server.now.boot, ClientId(connection));
    }
}
