//! A simulated server with its connections: their commands, and whether each is blocked, delayed or closed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::told::{filed, flat};
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::server_events;
use crate::engine::state::State;
use crate::engine::{confirm, pump};
use crate::sim::server::inside::{At, PartBuf, Slot, Told, Words, place};
use crate::sim::server::keys::{may_write, number};
use crate::sim::server::sim::{Said, Sim};

/// More turns than the server ever needs to come to rest.
const TURNS_MAX: usize = 10_000;

/// The factor for the number of a connection's life: a client that reconnects is another connection.
const LIVES: u64 = 100;

/// The number of keys that a real server is asked about at once.
const KEYS_SWEPT: usize = 256;

/// Commands between MULTI and EXEC.
#[derive(Default)]
struct Bundle {
    commands: Vec<Words>,
    is_spoiled: bool,
}

/// A client's connection.
pub(super) struct Connection {
    pub(super) id: u64,
    db: u32,
    bundle: Option<Bundle>,
    /// The commands that it has sent and the server has not read.
    pub(super) unread: VecDeque<Words>,
    pub(super) blocked: Option<u64>,
    is_held_up: bool,
}

/// See the [module](self).
pub(super) struct Host {
    pub(super) sim: Sim,
    pub(super) connections: BTreeMap<u64, Connection>,
    connected: u64,
    /// The connections whose user may not acquire.
    pub(super) forbidden: BTreeSet<u64>,
    pub(super) dumps: BTreeMap<u64, Vec<u8>>,
    /// The slot that receives the next DUMP of the running packet.
    pub(super) slots: VecDeque<u64>,
    paused_until_us: Option<u64>,
    held_up: VecDeque<u64>,
    pub(super) lines: Vec<String>,
    /// The whole content of its file.
    pub(super) file: Vec<Told>,
}

impl Host {
    /// Starts a new server; in a cluster it has all slots.
    pub(super) fn started(is_cluster: bool) -> Self {
        let sim = Sim::started_as(Flags { has_aof: true, is_cluster, ..Flags::default() }, |sim| {
            sim.inside.borrow_mut().boot_us = 1_000_000;
            sim.state_mut().sweep.most = Some(KEYS_SWEPT);
        });
        Self {
            sim,
            connections: BTreeMap::new(),
            connected: 0,
            forbidden: BTreeSet::new(),
            dumps: BTreeMap::new(),
            slots: VecDeque::new(),
            paused_until_us: None,
            held_up: VecDeque::new(),
            lines: Vec::new(),
            file: Vec::new(),
        }
    }

    /// Returns this client's connection, opened if there is none.
    pub(super) fn connection(&mut self, client: u64, db: u32) -> &mut Connection {
        if !self.connections.contains_key(&client) {
            self.connected += 1;
            let id = self.connected * LIVES + client;
            self.sim.connect(id);
            let new = Connection {
                id,
                db,
                bundle: None,
                unread: VecDeque::new(),
                blocked: None,
                is_held_up: false,
            };
            self.connections.insert(client, new);
            self.notes_rights();
        }
        self.connections.get_mut(&client).expect("it is connected")
    }

    /// Notes the connections of users who may not acquire.
    pub(super) fn notes_rights(&self) {
        let ids = self.connections.iter().filter(|(client, _)| self.forbidden.contains(client));
        self.sim.inside.borrow_mut().forbidden = ids.map(|(_, its)| its.id).collect();
    }

    pub(super) fn is_busy(&self, client: u64) -> bool {
        self.connections.get(&client).is_some_and(|its| its.blocked.is_some() || its.is_held_up)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused_until_us.is_some()
    }

    /// Sends a client's commands in one packet.
    pub(super) fn sends(&mut self, client: u64, db: u32, commands: Vec<Words>) {
        self.connection(client, db).unread.extend(commands);
        self.reads(client);
    }

    /// Reads a client's commands, until that client must wait.
    pub(super) fn reads(&mut self, client: u64) {
        while !self.is_busy(client) {
            let connection = self.connections.get_mut(&client);
            let Some(words) = connection.and_then(|its| its.unread.pop_front()) else { return };
            self.command(client, words);
        }
    }

    pub(super) fn reply(&mut self, client: u64, parts: &[PartBuf]) {
        self.lines.push(format!("reply\tc{client}\t{}", flat(parts)));
    }

    fn command(&mut self, client: u64, words: Words) {
        let its = &self.connections[&client];
        let (id, has_bundle) = (its.id, its.bundle.is_some());
        let writes = match &*words[0] {
            b"EXEC" => its.bundle.iter().flat_map(|bundle| &bundle.commands).any(|words| writes(words)),
            _ => writes(&words),
        };
        if let Some(error) = self.refusal(id, &words) {
            let its = self.connections.get_mut(&client).expect("it is connected");
            its.bundle.iter_mut().for_each(|bundle| bundle.is_spoiled = true);
            return self.reply(client, &[error]);
        }
        if writes && self.is_paused() {
            let its = self.connections.get_mut(&client).expect("it is connected");
            its.is_held_up = true;
            its.unread.push_front(words);
            return self.held_up.push_back(client);
        }
        match &*words[0] {
            b"EXEC" => self.executes(client),
            b"DISCARD" => {
                self.connections.get_mut(&client).expect("it is connected").bundle = None;
                self.sim.unwatch(id);
                self.reply(client, &[PartBuf::Ok]);
            }
            _ if has_bundle => {
                let its = self.connections.get_mut(&client).expect("it is connected");
                its.bundle.as_mut().expect("it has one").commands.push(words);
                self.reply(client, &[PartBuf::Bytes(b"QUEUED".to_vec())]);
            }
            _ => self.runs(client, id, words),
        }
    }

    /// Returns the reason why the server does not run a command at all.
    fn refusal(&self, id: u64, words: &[Vec<u8>]) -> Option<PartBuf> {
        if self.sim.is_forbidden(id, words) {
            return Some(PartBuf::Error("NOPERM".to_owned()));
        }
        if let Some(redirection) = key_of(words).and_then(|name| self.redirects(&place(0, name))) {
            return Some(PartBuf::Error(redirection.to_owned()));
        }
        let is_replica = self.sim.flags.get().is_replica;
        let is_read_only = is_replica && writes(words) && *words[0] != *b"EVAL";
        is_read_only.then(|| PartBuf::Error("READONLY".to_owned()))
    }

    /// Returns the redirection of a client for a key, if the key is not this server's.
    pub(super) fn redirects(&self, at: &At) -> Option<&'static str> {
        let inside = self.sim.inside.borrow();
        let slot = inside.slots.iter().find(|(name, _)| name.as_bytes() == &*at.1)?.1;
        drop(inside);
        match slot {
            Slot::Leaving => (!self.sim.has(at)).then_some("ASK"),
            Slot::Elsewhere => Some("MOVED"),
        }
    }

    fn executes(&mut self, client: u64) {
        let its = self.connections.get_mut(&client).expect("it is connected");
        let (id, db) = (its.id, its.db);
        let Some(bundle) = its.bundle.take() else {
            return self.reply(client, &[PartBuf::Error("ERR EXEC without MULTI".to_owned())]);
        };
        self.sim.expire_keys();
        let is_dirty = self.sim.unwatch(id);
        let parts = if bundle.is_spoiled {
            vec![PartBuf::Error("EXECABORT".to_owned())]
        } else if is_dirty {
            vec![PartBuf::Null]
        } else {
            self.sim.executes(id, db, &bundle.commands)
        };
        self.reply(client, &parts);
        self.step_is_over();
    }

    fn runs(&mut self, client: u64, id: u64, words: Words) {
        let db = self.connections[&client].db;
        let parts = match &*words[0] {
            b"MULTI" => {
                self.connections.get_mut(&client).expect("it is connected").bundle = Some(Bundle::default());
                vec![PartBuf::Ok]
            }
            b"WATCH" => {
                words[1..].iter().for_each(|name| self.sim.watch(id, place(db, name)));
                vec![PartBuf::Ok]
            }
            b"UNWATCH" => {
                self.sim.unwatch(id);
                vec![PartBuf::Ok]
            }
            b"CLIENT" => {
                self.pauses(number(&words[2]));
                vec![PartBuf::Ok]
            }
            b"EVAL" => self.sim.evaluates(id, db, &words),
            _ => match self.sim.asks(id, db, words.clone()) {
                Said::Now(parts) => parts,
                Said::Later(handle) => {
                    self.connections.get_mut(&client).expect("it is connected").blocked = Some(handle);
                    return self.step_is_over();
                }
            },
        };
        if *words[0] == *b"DUMP" {
            self.keeps(&parts);
        }
        self.reply(client, &parts);
        self.step_is_over();
    }

    /// Keeps the output of a DUMP for a RESTORE.
    fn keeps(&mut self, parts: &[PartBuf]) {
        let slot = self.slots.pop_front();
        if let (Some(slot), [PartBuf::Bytes(payload)]) = (slot, parts) {
            self.dumps.insert(slot, payload.clone());
        }
    }

    /// CLIENT PAUSE ms WRITE
    pub(super) fn pauses(&mut self, ms: u64) {
        let until = self.sim.boot().plus_ms(ms);
        self.paused_until_us = Some(until.0);
        self.sim.is_paused.set(true);
    }

    /// CLIENT UNPAUSE
    pub(super) fn goes_on(&mut self) {
        self.paused_until_us = None;
        self.sim.is_paused.set(false);
    }

    /// Ends a step of the server: its output to files and replicas belongs together.
    pub(super) fn step_is_over(&mut self) {
        let mut inside = self.sim.inside.borrow_mut();
        let (file, stream) = (std::mem::take(&mut inside.file), std::mem::take(&mut inside.stream));
        self.lines.extend(filed("file", &file));
        self.file.extend(file);
        if !inside.replicas.is_empty() {
            self.lines.extend(filed("stream", &stream));
        }
    }

    /// Runs one turn of the event loop, in the order of a real one: keys and timers, then the work before the server
    /// sleeps, then the module's alarm.
    fn turn(&mut self) {
        if self.paused_until_us.is_some_and(|until| until < self.sim.boot().0) {
            self.goes_on();
        }
        while self.sim.expires_one() {
            self.step_is_over();
        }
        if std::mem::take(&mut self.sim.inside.borrow_mut().pump_is_due) {
            pump::run(&self.sim);
            self.step_is_over();
        }
        self.before_sleep();
        let now = self.sim.boot();
        let is_due = |state: &mut State<_, crate::sim::server::inside::Clockwork>| {
            let is_due = state.wake.alarm.at.is_some_and(|at| at <= now);
            if is_due {
                state.wake.alarm.at = None;
            }
            is_due
        };
        if self.sim.with(is_due) == Some(true) {
            server_events::woken(&self.sim);
            self.step_is_over();
        }
    }

    fn before_sleep(&mut self) {
        if self.sim.shared().hears_replicas.is_set() {
            confirm::turn(&self.sim);
        }
        self.sim.send_answers();
        for client in self.delivers() {
            self.reads(client);
        }
        if !self.is_paused() {
            for client in std::mem::take(&mut self.held_up) {
                if let Some(its) = self.connections.get_mut(&client) {
                    its.is_held_up = false;
                    self.reads(client);
                }
            }
        }
        self.step_is_over();
    }

    /// Delivers replies to blocked clients. Returns those clients.
    pub(super) fn delivers(&mut self) -> Vec<u64> {
        let answers = std::mem::take(&mut self.sim.answers);
        let mut told = Vec::new();
        for (handle, parts) in answers {
            let its = self.connections.iter_mut().find(|(_, its)| its.blocked == Some(handle));
            if let Some((&client, its)) = its {
                its.blocked = None;
                told.push(client);
                self.reply(client, &parts);
            }
        }
        told
    }

    /// Runs turns until nothing is left to do at this moment.
    pub(super) fn rests(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            let waits = !self.is_paused() && !self.held_up.is_empty();
            if self.sim.is_idle() && self.sim.answers.is_empty() && !waits {
                return;
            }
        }
        panic!("G3: the server never comes to rest");
    }

    /// Closes this connection.
    pub(super) fn leaves(&mut self, client: u64) {
        if let Some(its) = self.connections.remove(&client) {
            self.held_up.retain(|other| *other != client);
            self.sim.unwatch(its.id);
            self.sim.disconnect(its.id);
            self.step_is_over();
        }
    }
}

/// Returns the key of a command, for those that are sent to nodes of a cluster.
fn key_of(words: &[Vec<u8>]) -> Option<&[u8]> {
    let others: [&[u8]; 2] = [b"CLIENT", b"LOCK.HELDBY"];
    words.get(1).filter(|_| !others.contains(&&*words[0])).map(Vec::as_slice)
}

/// Returns true if a replica refuses this, and a pause delays it.
fn writes(words: &[Vec<u8>]) -> bool {
    let others: [&[u8]; 5] = [b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"UNWATCH"];
    may_write(&words[0]) && !others.contains(&&*words[0])
}
