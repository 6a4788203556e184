//! A server of the group: the engine on a simulated server, its role, its clients, its files, its clocks.

use std::collections::{BTreeMap, BTreeSet};

use super::asks::Request;
use super::plan::Plan;
use super::points::Point;
use super::slots::slot_of;
use super::{CLIENTS, GROUP, Group, LOCKS, OTHER, Verdict};
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{confirm, server_events, type_callbacks};
use crate::lock::codec::SavedLock;
use crate::lock::effect::Existing;
use crate::lock::table::Table;
use crate::lock::tests::random::Random;
use crate::lock::types::Token;
use crate::sim::server::disk::Snapshot;
use crate::sim::server::inside::{self, Published, Told, Value};
use crate::sim::server::look::Held;
use crate::sim::server::sim::{Sim, set_number};
use crate::sim::single::server::{At, Name};

/// The longest wait that a client may request: longer than all waits of a life.
const WAIT_MS_MAX: i64 = 60_000;

/// A replication stream: the commands of one primary from its beginning to its end.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) facts: Vec<Told>,
    /// Set if it continues the stream of that server, from that position: a replica that has read exactly that much
    /// of it can continue with this one.
    pub(super) heir_of: Option<Position>,
}

/// A position in that stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    pub(super) stream: usize,
    pub(super) read: usize,
}

/// A replica as its primary sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) replica: usize,
    pub(super) link: u32,
    /// It has received the snapshot.
    pub(super) is_online: bool,
    /// The position that it has reported as read.
    pub(super) said: usize,
    /// The position of the reports that have arrived.
    pub(super) heard: usize,
}

/// A blocked client, by its number.
pub(super) struct Blocked {
    pub(super) handle: u64,
    pub(super) request: Request,
}

/// The files of a server on its disk.
#[derive(Default)]
pub(super) struct Files {
    pub(super) snapshot: Option<Snapshot>,
    /// The part of its log after the snapshot.
    pub(super) log: Vec<Told>,
}

/// A synchronisation under way.
pub(super) struct Synchronisation {
    pub(super) snapshot: Snapshot,
    pub(super) position: Position,
}

/// See the [module](self).
pub(super) struct Node {
    pub(super) sim: Sim,
    pub(super) is_up: bool,
    pub(super) is_frozen: bool,
    /// True if no client reaches it.
    pub(super) is_cut_off: bool,
    /// Changes whenever it starts or begins to decide.
    pub(super) term: u32,
    boot_offset: i64,
    wall_offset: i64,
    /// The position that it has read; for a primary, its own stream.
    pub(super) position: Option<Position>,
    /// A replica's connection: its primary, and the number of the connection.
    pub(super) link: Option<(usize, u32)>,
    pub(super) synchronisation: Option<Synchronisation>,
    pub(super) connections: Vec<Connection>,
    /// The clients that wait in a queue.
    pub(super) waits: Vec<Blocked>,
    /// The clients that wait for a reply: for replicas, for an undo, or for their turn.
    pub(super) pending: Vec<Blocked>,
    pub(super) files: Files,
    /// True if it continues a stream whose writer may have received holds later than it did: it counts their leases
    /// from the earlier time.
    pub(super) may_count_less: bool,
    /// Holds that began here, less those that ended here, must equal the holds that it has now, less these. `None`
    /// after a promotion, which restarts the count once all holds that were broken before it are published.
    pub(super) balance: Option<i64>,
    /// The last checked time at which nothing could be confirmed.
    pub(super) closed_at: Option<u64>,
    /// True if something happened here since its last turn.
    pub(super) news: bool,
    pub(super) story: Story,
}

/// The events that a deciding server has published since it was last at rest.
#[derive(Default)]
pub(super) struct Story {
    /// The server's term when it was last at rest.
    pub(super) term: Option<u32>,
    /// The number of holders of each of its locks at that time.
    pub(super) before: Held,
    pub(super) told: Vec<Published>,
    /// The slots that it lacked at some time since then. It may have them now.
    pub(super) elsewhere: BTreeSet<usize>,
}

impl Node {
    pub(super) fn new(n: usize, random: &mut Random) -> Self {
        Self {
            sim: Sim::default(),
            is_up: false,
            is_frozen: false,
            is_cut_off: false,
            term: n as u32,
            boot_offset: random.below(9_000_000_000) as i64,
            // Two milliseconds apart at most: see `verdicts.rs`.
            wall_offset: 1_780_000_000_000_000 + random.below(2_000) as i64,
            position: None,
            link: None,
            synchronisation: None,
            connections: Vec::new(),
            waits: Vec::new(),
            pending: Vec::new(),
            files: Files::default(),
            may_count_less: false,
            balance: Some(0),
            closed_at: None,
            news: false,
            story: Story::default(),
        }
    }

    /// Starts the process.
    fn launch(&mut self, n: usize, plan: &Plan, time: u64, decides: bool) {
        let flags = Flags {
            is_replica: !decides,
            has_aof: plan.has_logs,
            is_cluster: plan.follows_closely,
            ..Flags::default()
        };
        let (boot_us, wall_us) = self.clocks(time);
        self.sim = Sim::started_as(flags, |sim| {
            let settings = &sim.shared().settings;
            settings.set_confirm(plan.confirm_setting());
            set_number(settings, "group-size", if n == OTHER { 1 } else { GROUP as i64 });
            set_number(settings, "quarantine", plan.quarantine_setting_ms() as i64);
            set_number(settings, "confirm-timeout", plan.confirm_timeout_ms as i64);
            set_number(settings, "max-wait", WAIT_MS_MAX);
            let mut inside = sim.inside.borrow_mut();
            (inside.boot_us, inside.wall_us) = (boot_us, wall_us);
        });
        let sim = &self.sim;
        if plan.is_bent() {
            confirm::set(sim, plan.rule_of(n), true);
        }
        sim.flags.set(Flags { is_cluster: plan.has_moves, ..flags });
        self.bend_quarantine(plan);
    }

    /// Returns true if grants and renewals must be confirmed now, by its settings.
    pub(super) fn confirms(&self) -> bool {
        self.sim.shared().settings.confirms()
    }

    /// Returns true if grants and renewals must be confirmed now, or some that had to be are still pending.
    pub(super) fn holds_back(&self) -> bool {
        self.sim.shared().holds_back.is_set()
    }

    /// Begins a quarantine, which a control makes shorter than any setting allows.
    fn bend_quarantine(&mut self, plan: &Plan) {
        if plan.quarantine_ms != plan.quarantine_setting_ms() {
            let now = self.sim.boot();
            self.table(|table| table.begin_quarantine(now, plan.quarantine_ms));
        }
    }

    /// Returns true if it is active.
    pub(super) const fn runs(&self) -> bool {
        self.is_up && !self.is_frozen
    }

    pub(super) fn decides(&self) -> bool {
        self.is_up && !self.sim.flags.get().is_replica
    }

    const fn clocks(&self, time: u64) -> (u64, u64) {
        ((time as i64 + self.boot_offset) as u64, (time as i64 + self.wall_offset) as u64)
    }

    /// Sets its clocks.
    pub(super) fn tell_time(&self, time: u64) {
        let mut inside = self.sim.inside.borrow_mut();
        (inside.boot_us, inside.wall_us) = self.clocks(time);
    }

    pub(super) const fn step_wall_clock(&mut self, us: i64) {
        self.wall_offset += us;
    }

    /// Restarts its machine: the boot-time clock begins at zero.
    pub(super) const fn restart_machine(&mut self, time: u64) {
        self.boot_offset = 1_000_000 - time as i64;
    }

    /// Accesses the core's table.
    pub(super) fn table<R>(&self, look: impl FnOnce(&mut Table) -> R) -> R {
        self.sim.with(|state| look(&mut state.table)).expect("nobody is within the engine")
    }

    /// Returns the value of a key.
    pub(super) fn value(&self, at: At) -> Option<Value> {
        let inside = self.sim.inside.borrow();
        inside.keys.get(&key_of(at)).map(|entry| entry.value.clone())
    }

    pub(super) fn has(&self, at: At) -> bool {
        self.sim.inside.borrow().keys.contains_key(&key_of(at))
    }

    /// Returns the time at which a key expires.
    pub(super) fn until_ms(&self, at: At) -> Option<u64> {
        self.sim.inside.borrow().keys.get(&key_of(at)).and_then(|entry| entry.until_ms)
    }

    pub(super) fn existing(&self, at: At) -> Existing {
        match self.value(at) {
            None => Existing::Nothing,
            Some(Value::Lock(lock)) => Existing::Lock(lock),
            Some(Value::Text(_)) => Existing::Other,
        }
    }

    /// Returns the content of a dump of the key, live or not.
    pub(super) fn saved(&self, at: At) -> Option<SavedLock> {
        match self.value(at) {
            Some(Value::Lock(lock)) => type_callbacks::saved(&self.sim, lock),
            _ => None,
        }
    }

    /// Returns the token of an owner's hold, live or not.
    pub(super) fn token_of(&self, at: At, owner: Name) -> Option<Token> {
        let existing = self.existing(at);
        self.table(|table| table.token_of(existing, owner.as_bytes()))
    }

    /// Checks that a server that does not decide has no queued requests. Some clients may not know that yet.
    fn nobody_is_in_a_queue(&self, n: usize) -> Verdict {
        match self.table(|table| table.waiters()) {
            0 => Ok(()),
            waiters => Err(format!("{waiters} wait in queues at n{n}, which was demoted")),
        }
    }

    /// Returns the remaining quarantine.
    pub(super) fn quarantine_left_ms(&self) -> Option<u64> {
        let now = self.sim.boot();
        self.table(|table| table.quarantine_left_ms(now))
    }

    /// Returns the grants counted, less the ends counted.
    pub(super) fn counted(&self) -> i64 {
        self.table(|table| {
            let stats = table.stats();
            let ends = stats.releases + stats.expirations + stats.broken + stats.left;
            stats.grants as i64 - ends as i64
        })
    }

    pub(super) fn holds(&self) -> i64 {
        self.table(|table| table.holds() as i64)
    }

    /// Returns the holds that its counters cannot know of. A broken hold that is still to be published counts neither
    /// as a hold nor as an end, so the balance is computed once all are published.
    pub(super) fn balance(&mut self) -> Option<i64> {
        let is_published = !self.table(|table| table.has_notices());
        if is_published && self.balance.is_none() {
            self.balance = Some(self.holds() - self.counted());
        }
        self.balance.filter(|_| is_published)
    }
}

/// Returns the key of a lock in the simulated server.
pub(super) fn key_of(at: At) -> inside::At {
    inside::place(at.db, at.name.as_bytes())
}

/// The names of the servers, as `ROLE` lists them.
const NAMES: [&str; 4] = ["n0", "n1", "n2", "other"];

impl Group {
    /// Sets this server's clocks to the present, and updates its owners of slots.
    pub(super) fn enter(&mut self, n: usize) {
        self.nodes[n].tell_time(self.time);
        if self.plan.has_moves {
            let slots = self.slots_of(n);
            self.nodes[n].sim.inside.borrow_mut().slots = slots;
            let elsewhere =
                LOCKS.into_iter().filter(|&at| !self.is_ours(n, at)).map(slot_of).collect::<Vec<_>>();
            self.nodes[n].story.elsewhere.extend(elsewhere);
        }
    }

    /// Promotes this replica.
    pub(super) fn begin_to_decide(&mut self, n: usize) -> Verdict {
        self.enter(n);
        let node = &mut self.nodes[n];
        node.sim.set_role(false);
        let has_waiters = !node.waits.is_empty();
        server_events::promoted(&node.sim);
        node.bend_quarantine(&self.plan);
        if has_waiters {
            // They are in no queue: they receive the error of the earlier demotion.
            self.see(Point::PromotedWithWaiters);
        }
        self.collect(n)?;
        self.begin_stream(n)
    }

    /// Makes this server a primary from here on.
    fn begin_stream(&mut self, n: usize) -> Verdict {
        self.numbers.terms += 1;
        let heir_of = self.nodes[n].position;
        self.streams.push(Stream { facts: Vec::new(), heir_of });
        let stream = self.streams.len() - 1;
        let node = &mut self.nodes[n];
        node.term = self.numbers.terms;
        (node.position, node.link, node.synchronisation) = (Some(Position { stream, read: 0 }), None, None);
        node.sim.inside.borrow_mut().offset = 0;
        node.balance = None;
        self.delete_strangers(n)?;
        if self.nodes[..OTHER].iter().filter(|node| node.runs() && node.decides()).count() > 1 {
            self.see(Point::TwoPrimaries);
        }
        Ok(())
    }

    /// Demotes this server, because another one decides, and notifies its waiters.
    pub(super) fn stop_deciding(&mut self, n: usize) -> Verdict {
        self.slots.rivalled = self.time;
        if !self.nodes[n].decides() {
            return Ok(());
        }
        self.nodes[n].connections.clear();
        self.lose_replicas(n);
        self.enter(n);
        let node = &mut self.nodes[n];
        node.sim.set_role(true);
        node.sim.inside.borrow_mut().replicas.clear();
        let had_waiters = !node.waits.is_empty();
        server_events::demoted(&node.sim);
        self.collect(n)?;
        if had_waiters {
            self.see(Point::DemotedWithWaiters);
        }
        // An owner that only had a reservation here is not notified.
        self.judge.queues.forget(n);
        if !self.nodes[n].waits.is_empty() {
            self.see(Point::SentAwayLater);
        }
        self.nodes[n].nobody_is_in_a_queue(n)
    }

    /// Ends the process, with everything in its memory.
    pub(super) fn kill(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        (node.is_up, node.is_frozen) = (false, false);
        node.sim = Sim::default();
        (node.position, node.link, node.synchronisation) = (None, None, None);
        node.connections.clear();
        for Blocked { request, .. } in node.waits.drain(..).chain(node.pending.drain(..)) {
            self.judge.closed(&request);
        }
        self.judge.queues.forget(n);
        self.closing.retain(|(node, _)| *node != n);
        for c in 0..CLIENTS {
            if self.clients[c].server == n {
                self.reconnect(c);
            }
        }
        self.lose_replicas(n);
    }

    /// Removes all replicas of this server.
    fn lose_replicas(&mut self, n: usize) {
        for other in &mut self.nodes {
            if other.link.is_some_and(|(primary, _)| primary == n) {
                (other.link, other.synchronisation) = (None, None);
            }
        }
    }

    /// Starts the process, as a primary or not, and loads the given files.
    pub(super) fn start(&mut self, n: usize, Files { snapshot, log }: &Files, decides: bool) -> Verdict {
        let node = &mut self.nodes[n];
        node.is_up = true;
        node.launch(n, &self.plan, self.time, decides);
        if let Some(snapshot) = snapshot {
            node.sim.read_files(snapshot, log)?;
        }
        self.numbers.terms += 1;
        self.nodes[n].term = self.numbers.terms;
        self.collect(n)?;
        if decides { self.begin_stream(n) } else { Ok(()) }
    }

    /// Updates this primary's knowledge of its replicas. The server reports each replica that has connected or
    /// disconnected.
    pub(super) fn look(&mut self, n: usize) -> Verdict {
        let node = &self.nodes[n];
        let sim = &node.sim;
        let online = node.connections.iter().filter(|connection| connection.is_online);
        let seen: BTreeMap<u32, (&str, u64)> =
            online.map(|c| (c.link, (NAMES[c.replica], c.heard as u64))).collect();
        let before = std::mem::replace(&mut sim.inside.borrow_mut().replicas, seen.clone());
        if before.keys().eq(seen.keys()) || !sim.shared().hears_replicas.is_set() {
            return Ok(());
        }
        let is_twice = |(name, _): &(&str, u64)| seen.values().filter(|(other, _)| other == name).count() > 1;
        if !node.pending.is_empty() && seen.values().any(is_twice) {
            self.see(Point::ListedTwice);
        }
        self.enter(n);
        confirm::replica_changed(&self.nodes[n].sim);
        self.collect(n)
    }

    /// Makes a replica discard its data and load a snapshot of its primary's.
    pub(super) fn load(
        &mut self,
        n: usize,
        Synchronisation { snapshot, position }: Synchronisation,
    ) -> Verdict {
        self.enter(n);
        self.nodes[n].sim.synchronise(&snapshot)?;
        self.collect(n)?;
        let node = &mut self.nodes[n];
        node.position = Some(position);
        node.may_count_less = false;
        self.write_file_anew(n)
    }

    /// Saves a snapshot, and starts a new log after it.
    pub(super) fn write_file_anew(&mut self, n: usize) -> Verdict {
        if !self.plan.has_files {
            return Ok(());
        }
        self.enter(n);
        let node = &mut self.nodes[n];
        node.files.snapshot = Some(node.sim.save());
        node.files.log.clear();
        self.collect(n)
    }
}
