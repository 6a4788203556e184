//! The turns of the event loop of a server of the group, and their output: records for its stream and its log, grants,
//! answers.

use std::collections::BTreeSet;

use super::asks::{Kind, Request, Sent};
use super::node::{Blocked, Node};
use super::points::Point;
use super::slots::slot_of;
use super::{Group, LOCKS, Verdict};
use crate::command::error::{GRANT_UNCONFIRMED, RENEWAL_UNCONFIRMED};
use crate::engine::server::Server;
use crate::engine::{confirm, server_events};
use crate::lock::effect::Event;
use crate::sim::server::inside::{At, PartBuf, Published};
use crate::sim::server::look::Fate;
use crate::sim::server::look::Held;
use crate::sim::server::sim::at as key_at;

/// More turns than the server ever needs for all due work.
const TURNS_MAX: usize = 1_000;

/// The interval at which a server checks again whether it may grant something, without an event.
const LOOKS_AGAIN_US: u64 = 51_000;

impl Group {
    /// Runs the cron of some server.
    pub(super) fn cron_any(&mut self) -> Verdict {
        let n = self.random.below(self.plan.nodes() as u64) as usize;
        if self.nodes[n].runs() {
            self.cron(n)?;
        }
        Ok(())
    }

    /// Runs the server's cron: it does all remaining work, so before that the server is judged.
    pub(super) fn cron(&mut self, n: usize) -> Verdict {
        self.work(n, TURNS_MAX)?;
        self.nodes[n].sim.free_late();
        server_events::cron(&self.nodes[n].sim);
        self.collect(n)?;
        self.work(n, TURNS_MAX)
    }

    /// Runs some turns of the event loop of a server, if there is work. Then no request waits for a free lock,
    /// although no cron has run: the step that made work has asked for the pump.
    pub(super) fn work(&mut self, n: usize, turns_max: usize) -> Verdict {
        self.enter(n);
        for _ in 0..turns_max {
            if self.is_idle(n) {
                break;
            }
            self.turn(n)?;
        }
        if self.nodes[n].sim.is_idle() {
            return self.judge_idle(n);
        }
        if turns_max == TURNS_MAX { Err(format!("G3: n{n} never comes to rest")) } else { Ok(()) }
    }

    /// Returns true if a server sleeps until something happens. A server that waits for its replicas reads their
    /// acknowledgements in its turns.
    fn is_idle(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        node.sim.is_idle() && (node.pending.is_empty() || !node.holds_back() || !node.news)
    }

    fn judge_idle(&mut self, n: usize) -> Verdict {
        if !self.nodes[n].decides() {
            return match self.nodes[n].waits.first() {
                Some(left) => Err(format!("G7: {:?} waits at n{n}, which does not decide", left.request)),
                None => Ok(()),
            };
        }
        self.judge_story(n)?;
        if self.cannot_confirm(n) {
            return Ok(());
        }
        // No event reports that its replicas have been connected for long enough, so it checks again after a while.
        let looks_again = |closed_at: u64| closed_at + LOOKS_AGAIN_US >= self.time;
        let waits_to_look = self.nodes[n].closed_at.is_some_and(looks_again);
        if waits_to_look && self.nodes[n].table(|table| table.has_tasks()) {
            return Ok(());
        }
        self.no_request_waits_for_a_free_lock(n)
    }

    /// Checks that the events published of each lock since the server was last at rest can have led from its holds at
    /// that time to its present ones (G15).
    fn judge_story(&mut self, n: usize) -> Verdict {
        let Node { sim, story, term, .. } = &mut self.nodes[n];
        let told = std::mem::take(&mut story.told);
        let elsewhere = std::mem::take(&mut story.elsewhere);
        // The holds from before it began to decide were not published here.
        let decided_before = story.term.replace(*term) == Some(*term);
        // In the common case, nothing has happened to any of them.
        if told.is_empty() && sim.holds_as(&story.before) {
            return Ok(());
        }
        let mut lock_keys: BTreeSet<At> = sim.inside.borrow().keys.keys().cloned().collect();
        lock_keys.extend(story.before.keys().cloned());
        lock_keys.extend(told.iter().filter_map(|published| match published {
            Published::Lock(at, _) | Published::Key(at, _) => Some(at.clone()),
            Published::All(_) => None,
        }));
        let held = lock_keys.into_iter().map(|at| {
            let holders = sim.unended_at(&at);
            (at, holders)
        });
        let mut after: Held = held.collect();
        if !decided_before {
            story.before = after;
            return Ok(());
        }
        let mut before = std::mem::replace(&mut story.before, after.clone());
        if !told.is_empty() {
            self.seen.see(Point::StoryTold);
        }
        // As far as the server knows, a key that is missing from a moving slot has left with it.
        for lock in
            LOCKS.into_iter().filter(|&lock| elsewhere.contains(&slot_of(lock)) || !self.is_ours(n, lock))
        {
            let at = key_at(lock.db, lock.name);
            before.remove(&at);
            after.remove(&at);
        }
        self.nodes[n].sim.events_tell_the_story(&before, &after, &told)
    }

    /// Returns true if nothing could be confirmed now.
    pub(super) fn cannot_confirm(&self, n: usize) -> bool {
        confirm::is_impossible(&self.nodes[n].sim)
    }

    /// Runs one turn of the event loop.
    pub(super) fn turn(&mut self, n: usize) -> Verdict {
        self.notice_gone(n)?;
        self.note_sent_on(n);
        self.look(n)?;
        self.enter(n);
        let node = &mut self.nodes[n];
        node.sim.turn();
        let has_backlog = node.sim.with(|state| state.confirm.all.has_backlog());
        if has_backlog == Some(true) {
            self.see(Point::ConfirmedLater);
        }
        self.collect(n)?;
        self.nodes[n].news = false;
        if self.cannot_confirm(n) {
            self.nodes[n].closed_at = Some(self.time);
        }
        Ok(())
    }

    /// Just before an answer is sent, the server may find that its client has disconnected.
    fn notice_gone(&mut self, n: usize) -> Verdict {
        let clients = &self.clients;
        let is_gone = |request: &Request| clients[request.client].connection != request.connection;
        let gone = |blocked: &&Blocked| is_gone(&blocked.request);
        let gone = self.nodes[n].pending.iter().filter(gone);
        let gone: Vec<(u64, u64)> =
            gone.map(|blocked| (blocked.handle, blocked.request.connection)).collect();
        for (handle, connection) in gone {
            let inside = self.nodes[n].sim.inside.borrow();
            let is_answered =
                inside.unblocked.iter().any(|(other, reply)| *other == handle && reply.is_some());
            drop(inside);
            if is_answered && self.random.percent(50) {
                self.close(n, connection)?;
            }
        }
        Ok(())
    }

    /// Lets the server find that a connection is closed.
    pub(super) fn close(&mut self, n: usize, connection: u64) -> Verdict {
        self.closing.retain(|closing| *closing != (n, connection));
        self.enter(n);
        let node = &mut self.nodes[n];
        let is_late = |blocked: &Blocked| {
            let is_granted = matches!(node.sim.fate(blocked.handle), Fate::Granted(_));
            is_granted && blocked.request.connection == connection
        };
        if node.pending.iter().any(is_late) {
            self.seen.see(Point::TakenBack);
        }
        node.sim.disconnect(connection);
        self.collect(n)
    }

    /// Checks the outcome of a server's last step.
    pub(super) fn collect(&mut self, n: usize) -> Verdict {
        self.nodes[n].news = true;
        self.take_records(n);
        self.take_decisions(n)?;
        self.take_answers(n)?;
        let judge = &mut self.judge;
        let node = &mut self.nodes[n];
        // A client that was released without an answer has disconnected.
        node.pending.retain(|blocked| {
            let stays = node.sim.fate(blocked.handle) != Fate::Gone;
            if !stays {
                judge.closed(&blocked.request);
            }
            stays
        });
        Ok(())
    }

    /// Appends the new commands to the stream of a primary, and to the server's own log.
    fn take_records(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let decides = node.decides();
        let mut inside = node.sim.inside.borrow_mut();
        if !inside.file.is_empty() {
            node.files.log.append(&mut inside.file);
        }
        for published in inside.published.drain(..) {
            if decides {
                if matches!(published, Published::Lock(_, Event::Expired)) {
                    self.seen.see(Point::Expired);
                }
                node.story.told.push(published);
            }
        }
        inside.log.clear();
        if inside.stream.is_empty() {
            return;
        }
        let told = inside.stream.drain(..);
        let Some(position) = node.position.as_mut().filter(|_| decides) else {
            return;
        };
        let facts = &mut self.streams[position.stream].facts;
        for told in told {
            if told.words.last().is_some_and(|word| word == b"RUNS") {
                self.seen.see(Point::Retold);
            }
            facts.push(told);
        }
        position.read = facts.len();
    }

    /// Handles the waits that have ended in a queue: first those without a grant, then the others by their tokens.
    fn take_decisions(&mut self, n: usize) -> Verdict {
        let node = &mut self.nodes[n];
        if node.waits.is_empty() {
            return Ok(());
        }
        let sim = &node.sim;
        let ended = node.waits.extract_if(.., |blocked| sim.fate(blocked.handle) != Fate::InQueue);
        let mut ended: Vec<(Fate, Blocked)> =
            ended.map(|blocked| (sim.fate(blocked.handle), blocked)).collect();
        ended.sort_by_key(|(fate, _)| if let Fate::Granted(token) = fate { token.get() } else { 0 });
        for (fate, Blocked { handle, mut request }) in ended {
            if fate == Fate::Gone {
                self.judge.closed(&request);
                continue;
            }
            self.judge_end(&request, fate)?;
            match fate {
                Fate::Granted(_) => {
                    self.see(Point::GrantedOutOfQueue);
                    self.granted(&mut request, true);
                }
                Fate::Moved => self.see(Point::SentOn),
                Fate::TimedOut => self.see(Point::TimedOut),
                Fate::Replaced => self.see(Point::Replaced),
                _ => {}
            }
            self.nodes[n].pending.push(Blocked { handle, request });
        }
        Ok(())
    }

    /// Handles the replies to blocked clients.
    fn take_answers(&mut self, n: usize) -> Verdict {
        for (handle, parts) in std::mem::take(&mut self.nodes[n].sim.answers) {
            let pending = &mut self.nodes[n].pending;
            let Some(at) = pending.iter().position(|blocked| blocked.handle == handle) else {
                return Err(format!("G7: {handle} is told {parts:?} and does not wait (any more)"));
            };
            let Blocked { request, .. } = pending.swap_remove(at);
            let sent = Sent::of(&request, &parts)?;
            self.see_confirmed(n, &request, sent, &parts);
            self.tell(request, sent)?;
        }
        Ok(())
    }

    fn see_confirmed(&mut self, n: usize, request: &Request, sent: Sent, parts: &[PartBuf]) {
        let text = if let [PartBuf::Error(text)] = parts { text.as_str() } else { "" };
        match sent {
            Sent::Granted(_) | Sent::Done(true) if self.nodes[n].confirms() => self.see(Point::Confirmed),
            Sent::Unconfirmed if text == RENEWAL_UNCONFIRMED => self.see(Point::RenewalUnconfirmed),
            Sent::Unconfirmed if text == GRANT_UNCONFIRMED => {
                self.see(Point::Unconfirmed);
                let node = &self.nodes[n];
                if matches!(request.kind, Kind::Acquire { .. })
                    && request.keys.iter().all(|at| node.token_of(at, request.owner).is_none())
                {
                    self.see(Point::Undone);
                }
            }
            _ => {}
        }
    }
}
