//! A server of the group: its role, who is connected to it, its files, its clocks.

use super::super::random::Random;
use super::super::reader::Fact;
use super::super::server::{Lazy, Outside, Server, Snapshot};
use super::asks::{Request, Sent};
use super::plan::Plan;
use super::points::Point;
use super::{CLIENTS, GROUP, Group, OTHER, Verdict};
use crate::lock::confirm::{Confirmations, ReplicaName, Seen, WaitId};
use crate::lock::effect::{Answer, Effect, Effects, WaiterId};
use crate::lock::types::Moment;

/// A replication stream: what one primary told from its beginning to its end.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) facts: Vec<Fact>,
    /// It goes on where that one stood, there: whoever has read just as much of that can go on with this one.
    pub(super) heir_of: Option<Place>,
}

/// So far in that stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) stream: usize,
    pub(super) read: usize,
}

/// A replica as its primary sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) replica: usize,
    pub(super) link: u32,
    /// It has what was there when it came.
    pub(super) is_online: bool,
    /// Up to where it has said that it has read.
    pub(super) said: usize,
    /// Up to where that has arrived.
    pub(super) heard: usize,
}

/// A client that waits in line.
pub(super) struct Waiting {
    pub(super) waiter: WaiterId,
    pub(super) request: Request,
}

/// A client that waits for replicas.
pub(super) struct Pending {
    /// The wait for replicas; none if it was in vain from the start.
    pub(super) id: Option<WaitId>,
    pub(super) request: Request,
    pub(super) sent: Sent,
    /// It was not confirmed: it is told so when what it began is undone.
    pub(super) has_failed: bool,
}

/// What a server keeps on its disk.
#[derive(Default)]
pub(super) struct Files {
    pub(super) snapshot: Option<Snapshot>,
    /// What its log has behind the snapshot.
    pub(super) log: Vec<Fact>,
}

/// A synchronisation under way.
pub(super) struct Synchronisation {
    pub(super) snapshot: Snapshot,
    pub(super) place: Place,
}

/// See the [module](self).
pub(super) struct Node {
    pub(super) server: Server,
    pub(super) confirmations: Confirmations,
    pub(super) is_up: bool,
    pub(super) is_frozen: bool,
    /// No client reaches it.
    pub(super) is_cut_off: bool,
    /// Changes whenever it starts or begins to decide.
    pub(super) term: u32,
    boot_offset: i64,
    wall_offset: i64,
    /// What it has read; for a primary, its own stream.
    pub(super) place: Option<Place>,
    /// A replica's connection: to whom, and its number.
    pub(super) link: Option<(usize, u32)>,
    pub(super) synchronisation: Option<Synchronisation>,
    pub(super) connections: Vec<Connection>,
    pub(super) waits: Vec<Waiting>,
    pub(super) pending: Vec<Pending>,
    pub(super) files: Files,
    /// It goes on with a stream whose writer may have heard of holds later than it did, and counts their leases from
    /// there.
    pub(super) may_count_less: bool,
    /// Holds that began here, less those that ended here, must come to what it holds less this.
    pub(super) balance: i64,
}

impl Node {
    pub(super) fn new(n: usize, plan: &Plan, random: &mut Random) -> Self {
        let mut node = Self {
            server: Server::default(),
            confirmations: Confirmations::default(),
            is_up: n < GROUP,
            is_frozen: false,
            is_cut_off: false,
            term: n as u32,
            boot_offset: random.below(9_000_000_000) as i64,
            // Two milliseconds apart at most: see `verdicts.rs`.
            wall_offset: 1_780_000_000_000_000 + random.below(2_000) as i64,
            place: None,
            link: None,
            synchronisation: None,
            connections: Vec::new(),
            waits: Vec::new(),
            pending: Vec::new(),
            files: Files::default(),
            may_count_less: false,
            balance: 0,
        };
        node.set_up(n, plan);
        node
    }

    /// Its settings.
    fn set_up(&mut self, n: usize, plan: &Plan) {
        self.server.table.set_confirms(plan.rule_of(n).is_some());
        if plan.follows_closely {
            self.server.table.clock().follow_closely();
        }
    }

    /// Whether it does anything.
    pub(super) const fn runs(&self) -> bool {
        self.is_up && !self.is_frozen
    }

    pub(super) const fn decides(&self) -> bool {
        self.server.decides
    }

    /// Its clocks are read.
    pub(super) const fn tell_time(&mut self, time: u64) {
        self.server.now.boot = Moment((time as i64 + self.boot_offset) as u64);
        self.server.now.wall_us = (time as i64 + self.wall_offset) as u64;
    }

    pub(super) const fn step_wall_clock(&mut self, us: i64) {
        self.wall_offset += us;
    }

    /// Its machine starts anew: the boot-time clock begins at nothing.
    pub(super) const fn restart_machine(&mut self, time: u64) {
        self.boot_offset = 1_000_000 - time as i64;
    }

    /// Grants counted, less ends counted.
    pub(super) const fn counted(&self) -> i64 {
        let stats = self.server.table.stats();
        stats.grants as i64 - (stats.releases + stats.expirations + stats.broken) as i64
    }

    pub(super) fn begin_count(&mut self) {
        self.balance = self.server.table.holds() as i64 - self.counted();
    }
}

/// The names of the servers, as `ROLE` tells them.
pub(super) fn name_of(n: usize) -> ReplicaName {
    ReplicaName(["n0", "n1", "n2", "other"][n].into())
}

impl Group {
    /// This server is the primary from here on: by its start, or by a promotion.
    pub(super) fn begin_to_decide(&mut self, n: usize) {
        let time = self.time;
        self.numbers.terms += 1;
        let heir_of = self.nodes[n].place;
        self.streams.push(Stream { facts: Vec::new(), heir_of });
        let stream = self.streams.len() - 1;
        let node = &mut self.nodes[n];
        node.tell_time(time);
        node.term = self.numbers.terms;
        (node.place, node.link, node.synchronisation) = (Some(Place { stream, read: 0 }), None, None);
        node.server.decides = true;
        node.confirmations.begin(node.server.now.boot);
        if self.plan.quarantine_ms > 0 {
            node.server.table.begin_quarantine(node.server.now.boot, self.plan.quarantine_ms);
        }
        node.begin_count();
        self.delete_strangers(n);
        if self.nodes[..OTHER].iter().filter(|node| node.runs() && node.decides()).count() > 1 {
            self.see(Point::TwoPrimaries);
        }
    }

    /// This server stops deciding: another one does, and whoever waits here is told so.
    pub(super) fn stop_deciding(&mut self, n: usize) -> Verdict {
        self.slots.rivalled = self.time;
        let time = self.time;
        let node = &mut self.nodes[n];
        if !node.decides() {
            return Ok(());
        }
        node.tell_time(time);
        node.server.decides = false;
        node.connections.clear();
        self.lose_replicas(n);
        let node = &mut self.nodes[n];
        let mut fx = Effects::default();
        node.server.table.dismiss_all(&Answer::Demoted, &mut fx);
        node.server.table.forget_connections();
        for _ in node.confirmations.drop_all() {}
        while node.server.table.next_task().is_some() {}
        for Pending { request, .. } in std::mem::take(&mut node.pending) {
            self.tell(request, Sent::No)?;
        }
        let answers: Vec<Effect> = fx.into_iter().collect();
        if answers.len() == self.nodes[n].waits.len() && !answers.is_empty() {
            self.see(Point::DemotedWithWaiters);
        }
        for effect in answers {
            self.effect(n, effect)?;
        }
        // Whoever only kept a place here is not told.
        self.judge.lines.forget(n);
        match self.nodes[n].waits.first() {
            Some(left) => Err(format!("G7: {:?} still waits at a server that was demoted", left.request)),
            None => Ok(()),
        }
    }

    /// The process is gone, with everything in its memory.
    pub(super) fn kill(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        (node.is_up, node.is_frozen) = (false, false);
        node.server = Server::default();
        node.confirmations = Confirmations::default();
        (node.place, node.link, node.synchronisation) = (None, None, None);
        node.connections.clear();
        let lost = node.waits.drain(..).map(|wait| wait.request);
        let lost = lost.chain(node.pending.drain(..).map(|pending| pending.request));
        let lost: Vec<Request> = lost.collect();
        for request in lost {
            self.judge.closed(&request);
        }
        self.judge.lines.forget(n);
        self.closing.retain(|(node, _)| *node != n);
        for c in 0..CLIENTS {
            if self.clients[c].server == n {
                self.reconnect(c);
            }
        }
        self.lose_replicas(n);
    }

    /// Nobody is a replica of this server any more.
    fn lose_replicas(&mut self, n: usize) {
        for other in &mut self.nodes {
            if other.link.is_some_and(|(primary, _)| primary == n) {
                (other.link, other.synchronisation) = (None, None);
            }
        }
    }

    /// The process starts, and reads what it is given.
    pub(super) fn start(&mut self, n: usize, Files { snapshot, log }: &Files) -> Verdict {
        let time = self.time;
        let node = &mut self.nodes[n];
        node.is_up = true;
        node.server = Server::default();
        node.tell_time(time);
        node.set_up(n, &self.plan);
        if let Some(snapshot) = snapshot {
            snapshot.load(&mut node.server);
        }
        for fact in log {
            node.server.apply(fact, None).map_err(|wrong| format!("a log: {wrong}"))?;
        }
        while node.server.table.next_task().is_some() {}
        self.numbers.terms += 1;
        self.nodes[n].term = self.numbers.terms;
        Ok(())
    }

    /// The replicas that a primary has, as it sees them.
    pub(super) fn look(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let online = node.connections.iter().filter(|connection| connection.is_online);
        let seen: Vec<Seen> = online
            .map(|connection| Seen {
                name: name_of(connection.replica),
                acknowledged: connection.heard as u64,
            })
            .collect();
        let is_twice = |(at, one): (usize, &Seen)| seen[..at].iter().any(|other| other.name == one.name);
        if !node.pending.is_empty() && seen.iter().enumerate().any(is_twice) {
            self.seen.see(Point::ListedTwice);
        }
        node.confirmations.see(node.server.now.boot, &seen);
    }

    /// A replica throws away what it has and reads a snapshot of its primary's.
    pub(super) fn load(&mut self, n: usize, Synchronisation { snapshot, place }: Synchronisation) -> Verdict {
        let time = self.time;
        let node = &mut self.nodes[n];
        node.tell_time(time);
        if self.numbers.links.is_multiple_of(2) {
            snapshot.load_beside(&mut node.server, true)?;
            self.seen.see(Point::LoadedBeside);
        } else {
            node.server.outside(&Outside::Flush(None, Lazy::No));
            snapshot.load(&mut node.server);
            node.server.free_late();
        }
        let node = &mut self.nodes[n];
        while node.server.table.next_task().is_some() {}
        node.place = Some(place);
        node.may_count_less = false;
        self.write_file_anew(n);
        Ok(())
    }

    /// A snapshot is saved, and a log begins anew behind it.
    pub(super) fn write_file_anew(&mut self, n: usize) {
        if !self.plan.has_files {
            return;
        }
        let (time, has_log) = (self.time, self.plan.has_logs);
        let node = &mut self.nodes[n];
        node.tell_time(time);
        node.files.snapshot = Some(Snapshot::of(&mut node.server));
        node.files.log.clear();
        if has_log {
            node.server.table.clock().begin_file();
        }
    }
}
