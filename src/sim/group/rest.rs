//! The invariants that are checked at intervals, and once everything has come to rest.

use super::asks::{InFlight, Kind, Request, Sent};
use super::node::{Files, Node};
use super::points::Point;
use super::{GROUP, Group, LOCKS, NODES, OTHER, Verdict};
use crate::engine::server::Server;
use crate::lock::codec::SavedHold;
use crate::lock::types::{Binding, Mode};
use crate::sim::single::input::Keys;
use crate::sim::single::server::{At, Name};

/// Owners that no other client uses.
const LAST: [Name; 3] = ["last", "last-but-one", "last-but-two"];

/// Their request.
const LAST_ASK: Kind = Kind::Acquire { wait_ms: None, is_reservation: false };

/// Longer than the time for which a server leaves a lease alone whose slot is not its own.
const LEFT_ALONE_US: u64 = 1_001_000;

impl Group {
    /// Runs the checks that are too slow for each step: the core's own records, and replicas that have read
    /// everything (G13).
    pub(super) fn check(&mut self) -> Verdict {
        for n in 0..self.plan.nodes() {
            if !self.nodes[n].is_up {
                continue;
            }
            self.nodes[n].tell_time(self.time);
            let node = &self.nodes[n];
            node.sim.records_are_right().map_err(|wrong| format!("n{n}: {wrong}"))?;
            if node.decides()
                && self.plan.is_careful
                && let Some(balance) = self.nodes[n].balance()
            {
                let (counted, holds) = (self.nodes[n].counted(), self.nodes[n].holds());
                if counted + balance != holds {
                    return Err(format!("INFO: n{n} counted {counted} from {balance}, and holds {holds}"));
                }
            }
        }
        (0..NODES).try_for_each(|n| self.compare(n))
    }

    fn compare(&mut self, n: usize) -> Verdict {
        let node = &self.nodes[n];
        let (Some((n_of_primary, _)), None, true) = (node.link, &node.synchronisation, node.is_up) else {
            return Ok(());
        };
        let primary = &self.nodes[n_of_primary];
        let has_work = primary.sim.with(|state| state.has_work() || state.table.has_put_off());
        let has_settled = has_work == Some(false);
        if primary.is_up
            && primary.position == node.position
            && has_settled
            && !self.has_strangers(n_of_primary)
        {
            are_alike(primary, node, !node.may_count_less).map_err(|wrong| format!("n{n}: {wrong}"))?;
            self.see(Point::ComparedReplica);
        }
        Ok(())
    }

    /// Returns true if it has a lock of a slot that has moved away, which it will delete: it sends no other record of
    /// that lock.
    fn has_strangers(&self, n: usize) -> bool {
        self.plan.has_moves && LOCKS.into_iter().any(|at| self.nodes[n].has(at) && !self.is_ours(n, at))
    }

    /// Stops all faults and all clients, and lets everything come to rest.
    pub(super) fn come_to_rest(&mut self) -> Verdict {
        self.stop_clients();
        let chief = self.choose_chief()?;
        self.rest_other(chief)?;
        for n in (0..GROUP).filter(|&n| n != chief) {
            (self.nodes[n].is_frozen, self.nodes[n].is_cut_off) = (false, false);
            if !self.nodes[n].is_up {
                self.start(n, &Files::default(), false)?;
            }
            if self.nodes[n].link.is_none_or(|(primary, _)| primary != chief) {
                self.nodes[n].link = None;
                self.attach(n, chief)?;
            }
        }
        // Long enough for every lease, every quarantine and every stable period.
        self.let_pass(chief, 4 * self.plan.quarantine_ms.max(self.plan.lease_ms_max))?;
        self.check()?;
        self.must_be_empty(chief)?;
        self.take_all(chief)?;
        self.check()?;
        if self.plan.has_moves {
            self.must_be_empty(OTHER)?;
        }
        self.must_be_empty(chief)
    }

    /// Chooses the server that becomes the primary.
    fn choose_chief(&mut self) -> Result<usize, String> {
        let running = (0..GROUP).filter(|&n| self.nodes[n].is_up && self.nodes[n].decides());
        let youngest = running.max_by_key(|&n| self.nodes[n].term);
        let chief = if self.plan.has_one_primary { self.rightful } else { youngest.unwrap_or(0) };
        (self.nodes[chief].is_frozen, self.nodes[chief].is_cut_off) = (false, false);
        if !self.nodes[chief].is_up {
            self.start(chief, &Files::default(), true)?;
        }
        if !self.nodes[chief].decides() {
            self.begin_to_decide(chief)?;
        }
        Ok(chief)
    }

    /// Lets time pass, in which all servers do their work.
    fn let_pass(&mut self, chief: usize, ms: u64) -> Verdict {
        if self.plan.has_moves {
            // A lease that expired while its slot was elsewhere is examined again.
            self.time += LEFT_ALONE_US;
        }
        for _ in 0..=ms / 2 {
            self.time += 2_000;
            self.notice_closed()?;
            for n in (0..GROUP).filter(|&n| n != chief) {
                self.end_synchronisation(n)?;
                self.receive(n, usize::MAX)?;
                self.acknowledge(n);
            }
            self.find_dead(chief)?;
            for n in 0..self.plan.nodes() {
                self.cron(n)?;
            }
        }
        // The output of the last turn.
        for n in (0..GROUP).filter(|&n| n != chief) {
            self.receive(n, usize::MAX)?;
        }
        Ok(())
    }

    /// Lets the other shard work, and returns its slots.
    fn rest_other(&mut self, chief: usize) -> Verdict {
        if !self.plan.has_moves {
            return Ok(());
        }
        (self.nodes[OTHER].is_frozen, self.nodes[OTHER].is_cut_off) = (false, false);
        if !self.nodes[OTHER].is_up {
            self.start(OTHER, &Files::default(), true)?;
        }
        self.bring_slots_home(chief)?;
        self.notice_closed()?;
        self.cron(OTHER)
    }

    fn must_be_empty(&self, n: usize) -> Verdict {
        let node = &self.nodes[n];
        let left = node.sim.with(|state| {
            let (table, blocked) = (&state.table, state.clients.blocked());
            (table.holds(), table.waiters(), state.confirm.all.len(), table.undelivered(), blocked)
        });
        let inside = node.sim.inside.borrow();
        let blocked = (node.waits.len(), node.pending.len(), inside.blocked.len());
        if left != Some((0, 0, 0, 0, 0)) || blocked != (0, 0, 0) || !inside.keys.is_empty() {
            return Err(format!("at rest n{n} has {left:?}, blocked {blocked:?} and {:?}", inside.keys));
        }
        match self.judge.unanswered() {
            0 => Ok(()),
            left => Err(format!("G7: {left} requests were never answered")),
        }
    }

    /// Checks that every lock can be acquired, all permits of it, and no more.
    fn take_all(&mut self, chief: usize) -> Verdict {
        for at in LOCKS {
            let permits = if at == LOCKS[3] { 2 } else { 1 };
            for owner in &LAST[..permits] {
                match self.ask_last(chief, at, owner, LAST_ASK)? {
                    Sent::Granted(_) => {}
                    sent => return Err(format!("at rest, {at} is free, and {owner} is told {sent:?}")),
                }
            }
            let sent = self.ask_last(chief, at, LAST[permits], LAST_ASK)?;
            if sent != Sent::No {
                return Err(format!("at rest, {at} is held, and another owner is told {sent:?}"));
            }
            for owner in &LAST[..permits] {
                let sent = self.ask_last(chief, at, owner, Kind::Release { is_last: true })?;
                if sent != Sent::Done(true) {
                    return Err(format!("at rest, {owner} holds {at} and cannot release it: {sent:?}"));
                }
            }
        }
        Ok(())
    }

    fn ask_last(&mut self, n: usize, at: At, owner: Name, kind: Kind) -> Result<Sent, String> {
        self.numbers.requests += 1;
        let mode = if at == LOCKS[3] { Mode::Limit(super::LIMIT) } else { Mode::Exclusive };
        let request = Request {
            number: self.numbers.requests,
            kind,
            client: 0,
            connection: self.clients[0].connection,
            keys: Keys::one(at),
            owner,
            token: None,
            mode,
            lease_ms: self.plan.lease_ms_max.max(15),
            node: n,
            binding: Binding::NONE,
            is_reentrant: false,
            term: self.nodes[n].term,
            done: self.time,
            floor: None,
            renewed: None,
            decision: 0,
        };
        self.ask(request)?;
        self.work(n, 10)?;
        for replica in (0..GROUP).filter(|&replica| replica != n) {
            self.receive(replica, usize::MAX)?;
            self.acknowledge(replica);
        }
        self.find_dead(n)?;
        // An acknowledgement may be late.
        for _ in 0..20 {
            if !self.in_flight.is_empty() {
                break;
            }
            (0..GROUP).filter(|&replica| replica != n).for_each(|replica| self.acknowledge(replica));
            self.work(n, 10)?;
        }
        match self.in_flight.pop() {
            Some(InFlight { request: answered, sent }) if answered.number == request.number => Ok(sent),
            other => Err(format!("G7: {request:?} is not answered, but {other:?}")),
        }
    }
}

/// Checks that a replica has the same holds as its primary (G13). Leases are not compared where it may rightly count
/// them from an earlier time than its primary.
fn are_alike(primary: &Node, replica: &Node, counts_alike: bool) -> Verdict {
    for at in LOCKS {
        let key = |node: &Node| (node.existing(at), node.until_ms(at));
        let ((theirs, their_end), (own, own_end)) = (key(primary), key(replica));
        if std::mem::discriminant(&theirs) != std::mem::discriminant(&own) || their_end != own_end {
            return Err(format!(
                "G13: {at} is {theirs:?} until {their_end:?}, for a reader {own:?}, {own_end:?}"
            ));
        }
        let (theirs, own) = (primary.saved(at), replica.saved(at));
        let (mode, other_mode) =
            (theirs.as_ref().map(|saved| saved.mode), own.as_ref().map(|saved| saved.mode));
        let holds =
            |saved: Option<crate::lock::codec::SavedLock>| saved.map(|saved| saved.holds).unwrap_or_default();
        let (theirs, own) = (holds(theirs), holds(own));
        let of = |hold: &SavedHold| (hold.owner.clone(), hold.token, hold.count, hold.binding);
        if mode != other_mode || !theirs.iter().map(of).eq(own.iter().map(of)) {
            return Err(format!("G13: {at} is {mode:?} {theirs:?}, for a reader {other_mode:?} {own:?}"));
        }
        for (theirs, own) in theirs.iter().zip(&own) {
            // G2: no reader may have a shorter remaining lease than the primary promised.
            if own.left_ms < theirs.left_ms && counts_alike {
                return Err(format!("G2: at {at} {theirs:?} is left, for a reader {own:?}"));
            }
        }
    }
    Ok(())
}
