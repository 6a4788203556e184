//! A simulated server. It imitates a real one wherever the engine could be wrong. It calls the engine back while a
//! key is deleted or replaced, blocks clients and answers them in a later turn, and frees values late. Only the test
//! moves its clocks.

use std::cell::{Cell, Ref, RefCell, RefMut};

use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::settings::Settings;
use crate::engine::shared::Shared;
use crate::engine::state::State;
use crate::engine::{commands, confirm, describe, pump, replies, server_events, type_callbacks};
use crate::lock::types::{ClientId, Moment};
use crate::sim::server::inside::{At, Clockwork, Entry, Inside, PartBuf, Told, Value, Words, place};

/// More turns than the server ever needs to come to rest.
const TURNS_MAX: usize = 10_000;

/// The reply to a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Now(Vec<PartBuf>),
    /// The client is blocked; the number of the block.
    Later(u64),
}

/// A simulated server with its clients.
pub(crate) struct Sim {
    pub(crate) inside: RefCell<Inside>,
    pub(super) state: RefCell<State<u64, Clockwork>>,
    pub(super) shared: Shared,
    pub(crate) db: Cell<u32>,
    pub(crate) client: Cell<Option<u64>>,
    pub(crate) flags: Cell<Flags>,
    pub(crate) is_paused: Cell<bool>,
    pub(crate) refuses_writes: Cell<bool>,
    /// True if the module receives the events of keys.
    pub(crate) hears_keys: Cell<bool>,
    /// The time that passes with each look at the clock.
    pub(crate) us_per_look: Cell<u64>,
    /// The replies to blocked clients: number of the block, reply.
    pub(crate) answers: Vec<(u64, Vec<PartBuf>)>,
    /// Values that a flush has left to free.
    pub(crate) unfreed: Vec<Value>,
}

impl Default for Sim {
    fn default() -> Self {
        let (boot_us, wall_us) = (5_000_000, 1_700_000_000_000_000);
        let inside = Inside { boot_us, wall_us, ..Inside::default() };
        let shared = Shared::new();
        shared.has_optional_aux.set(true);
        Self {
            inside: RefCell::new(inside),
            state: RefCell::default(),
            shared,
            db: Cell::new(0),
            client: Cell::new(None),
            flags: Cell::default(),
            is_paused: Cell::new(false),
            refuses_writes: Cell::new(false),
            hears_keys: Cell::new(false),
            us_per_look: Cell::new(0),
            answers: Vec::new(),
            unfreed: Vec::new(),
        }
    }
}

pub(crate) fn words(text: &str) -> Words {
    text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

pub(crate) fn at(db: u32, name: &str) -> At {
    place(db, name.as_bytes())
}

impl Sim {
    pub(crate) fn started() -> Self {
        Self::started_as(Flags::default(), |_| ())
    }

    /// Starts a server with these settings.
    pub(crate) fn started_as(flags: Flags, set: impl FnOnce(&Sim)) -> Self {
        let sim = Self::default();
        sim.flags.set(flags);
        set(&sim);
        server_events::settings_changed(&sim, false);
        server_events::started(&sim);
        sim
    }

    /// Makes it a replica from here on, or the primary, without a notice to the module.
    pub(crate) fn set_role(&self, is_replica: bool) {
        self.flags.set(Flags { is_replica, ..self.flags.get() });
    }

    /// Makes another server the primary, or this one.
    pub(crate) fn takes_role(&self, is_replica: bool) {
        self.set_role(is_replica);
        if is_replica { server_events::demoted(self) } else { server_events::promoted(self) }
    }

    /// From here on, answers grants and renewals only when the only replica has them.
    pub(crate) fn confirms(&self) {
        let settings = &self.shared().settings;
        settings.set_confirm(1);
        set_number(settings, "group-size", 2);
        set_number(settings, "quarantine", 60_000);
        self.inside.borrow_mut().replicas.insert(1, ("replica:1", 0));
        server_events::settings_changed(self, true);
        confirm::replica_changed(self);
    }

    /// Turns confirmations off.
    pub(crate) fn confirms_no_more(&self) {
        self.shared().settings.set_confirm(0);
        server_events::settings_changed(self, true);
    }

    pub(crate) fn connect(&self, client: u64) {
        self.inside.borrow_mut().connected.insert(client);
    }

    /// Sends a client's command.
    pub(crate) fn send(&mut self, client: u64, db: u32, text: &str) -> Said {
        self.asks(client, db, words(text))
    }

    /// Sends a client's command, given in words.
    pub(crate) fn asks(&mut self, client: u64, db: u32, words: Words) -> Said {
        self.run(Some(client), db, words, self.flags.get())
    }

    /// Applies a fact. Returns the reply.
    pub(crate) fn apply(&mut self, told: &Told) -> Vec<PartBuf> {
        let flags = Flags { is_fact: true, ..self.flags.get() };
        match self.run(None, told.db, told.words.clone(), flags) {
            Said::Now(parts) => parts,
            Said::Later(_) => panic!("a fact waits: {told:?}"),
        }
    }

    /// Applies a record, which must change something: a primary sends no others (G13).
    pub(crate) fn obeys(&mut self, told: &Told) -> Result<(), String> {
        let before = self.inside.borrow().offset;
        let reply = self.apply(told);
        let has_changed = self.inside.borrow().offset > before || &*told.words[0] == b"LOCK.TICK";
        if has_changed && !matches!(reply[..], [PartBuf::Error(_), ..]) {
            return Ok(());
        }
        let words: Vec<_> = told.words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        Err(format!("G13: {} changes nothing for a reader, who says {reply:?}", words.join(" ")))
    }

    pub(crate) fn run(&mut self, client: Option<u64>, db: u32, words: Words, flags: Flags) -> Said {
        self.expire_keys();
        let before = self.flags.replace(flags);
        self.db.set(db);
        self.client.set(client);
        {
            let mut inside = self.inside.borrow_mut();
            inside.reply = Vec::new();
            inside.running = Some(words.clone());
            inside.has_blocked = None;
        }
        let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.dispatch(db, &args);
        self.client.set(None);
        self.flags.set(before);
        let mut inside = self.inside.borrow_mut();
        inside.running = None;
        let reply = std::mem::take(&mut inside.reply);
        if let Some(handle) = inside.has_blocked {
            assert_eq!(reply, [], "G7: {words:?} is replied now and later");
            return Said::Later(handle);
        }
        assert!(!reply.is_empty(), "G7: {words:?} is not replied");
        Said::Now(reply)
    }

    pub(crate) fn dispatch(&mut self, db: u32, args: &[&[u8]]) {
        match *args {
            [b"LOCK.ACQUIRE", name, ref rest @ ..] => commands::acquire(self, name, rest),
            [b"LOCK.MACQUIRE", ref rest @ ..] => commands::macquire(self, rest),
            [b"LOCK.RELEASE", name, ref rest @ ..] => commands::release(self, name, rest),
            [b"LOCK.RENEW", name, ref rest @ ..] => commands::renew(self, name, rest),
            [b"LOCK.FENCE", name, ref rest @ ..] => commands::fence(self, name, rest),
            [b"LOCK.APPLY", name, ref rest @ ..] => commands::apply_record(self, name, rest),
            [b"LOCK.TICK", ref rest @ ..] => commands::tick(self, rest),
            [b"LOCK.INFO", name, ref rest @ ..] => describe::info(self, name, rest),
            [b"LOCK.HELDBY", owner] => describe::heldby(self, owner),
            [b"LOCK.EXEC", name, ref rest @ ..] => {
                if let Some(words) = commands::exec(self, name, rest) {
                    self.dispatch(db, words);
                }
            }
            _ => self.does_to_keys(db, args),
        }
    }

    /// Leaves these values to a thread of the server's own, which frees them.
    pub(crate) fn leave_to_thread(&mut self, values: impl Iterator<Item = Value>) {
        self.unfreed.extend(values);
    }

    /// Frees the data of a flush, as a thread of the server's own.
    pub(crate) fn free_late(&mut self) {
        for value in std::mem::take(&mut self.unfreed) {
            if let Value::Lock(lock) = value {
                self.shared().bury_later(lock);
            }
        }
    }

    /// Removes keys whose time to live has passed. A replica waits for its primary to do so, and a server that reads
    /// a file waits for the end of it.
    pub(crate) fn expire_keys(&mut self) {
        while self.expires_one() {}
    }

    /// Removes the first key whose time to live has passed. Returns false if there is none.
    pub(crate) fn expires_one(&mut self) -> bool {
        if self.inside.borrow().expires_opened_keys_alone {
            return false;
        }
        let over = self.inside.borrow().keys.keys().find(|at| self.is_over(at)).cloned();
        over.is_some_and(|at| {
            self.expire(&at);
            true
        })
    }

    /// Returns true if this server may remove the key because its time to live has passed.
    pub(super) fn is_over(&self, at: &At) -> bool {
        let inside = self.inside.borrow();
        let until_ms = inside.keys.get(at).and_then(|entry| entry.until_ms);
        let may_expire = self.flags.get().decides() && !self.is_paused.get() && !inside.is_moving(at);
        may_expire && until_ms.is_some_and(|until| until <= inside.wall_us / 1000)
    }

    pub(super) fn expire(&self, at: &At) {
        self.take(at);
        self.signal(at);
        self.propagate(at.0, [b"DEL".to_vec(), at.1.to_vec()].into());
        self.tell_of_key(at, "expired");
    }

    /// Closes a client's connection. The server reports that before it releases the client's blocks.
    pub(crate) fn disconnect(&mut self, client: u64) {
        self.inside.borrow_mut().connected.remove(&client);
        let blocked: Vec<u64> = {
            let inside = self.inside.borrow();
            inside.blocked.iter().filter(|(_, its)| **its == client).map(|(&handle, _)| handle).collect()
        };
        server_events::client_closed(self, ClientId(client));
        for handle in blocked {
            replies::disconnected(self, handle);
        }
    }

    /// Breaks a connection, or deletes its user: it is closed at the end of the turn, and nothing is sent to it.
    pub(crate) fn cut_off(&self, client: u64) {
        self.inside.borrow_mut().closing.insert(client, false);
    }

    /// A client asks the server to close its connection after its replies.
    pub(crate) fn quit(&self, client: u64) {
        self.inside.borrow_mut().closing.insert(client, true);
    }

    pub(crate) fn end_turn(&mut self) {
        while let Some((client, _)) =
            { self.inside.borrow().closing.first_key_value().map(|(c, s)| (*c, *s)) }
        {
            self.disconnect(client);
            self.inside.borrow_mut().closing.remove(&client);
        }
        if self.inside.borrow().tells_of_turns {
            replies::turn_begins(self);
        }
    }

    /// CLIENT UNBLOCK: sends the client's reply, if it was blocked and not answered yet.
    pub(crate) fn client_unblock(&mut self, client: u64) {
        let handle = {
            let inside = self.inside.borrow();
            let is_open = |handle: &u64| inside.unblocked.iter().all(|(other, _)| other != handle);
            let existing = inside.blocked.iter().find(|(handle, its)| **its == client && is_open(handle));
            existing.map(|(&handle, _)| handle)
        };
        if let Some(handle) = handle {
            let reply = replies::unblocked(self, handle);
            replies::reply(self, reply.as_ref());
            let reply = std::mem::take(&mut self.inside.borrow_mut().reply);
            self.answers.push((handle, reply));
            // The server releases it when it finds no client there.
            let mut inside = self.inside.borrow_mut();
            inside.unblocked.retain(|(other, _)| *other != handle);
            inside.let_go(handle);
        }
    }

    /// One turn of the event loop.
    pub(crate) fn turn(&mut self) {
        self.expire_keys();
        confirm::turn(self);
        self.send_answers();
        if std::mem::take(&mut self.inside.borrow_mut().pump_is_due) {
            pump::run(self);
        }
        let now = self.boot();
        let is_due = self.with(|state| {
            let is_due = state.wake.alarm.at.is_some_and(|at| at <= now);
            if is_due {
                state.wake.alarm.at = None;
            }
            is_due
        });
        if is_due == Some(true) {
            server_events::woken(self);
        }
    }

    /// Runs the server's cron: it does all remaining work.
    pub(crate) fn cron(&self) {
        server_events::cron(self);
    }

    pub(crate) fn send_answers(&mut self) {
        let unblocked = std::mem::take(&mut self.inside.borrow_mut().unblocked);
        for (handle, reply) in unblocked {
            let client = self.inside.borrow_mut().let_go(handle).expect("it was blocked");
            let is_gone = !self.inside.borrow().connected.contains(&client);
            let Some(reply) = reply else { continue };
            if !is_gone {
                replies::reply(self, Some(&reply));
                let parts = std::mem::take(&mut self.inside.borrow_mut().reply);
                if self.inside.borrow().closing.get(&client) != Some(&false) {
                    self.answers.push((handle, parts));
                }
            }
            replies::released(self, handle, reply, is_gone);
        }
        self.end_turn();
    }

    /// Returns true if the next turn has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        let inside = self.inside.borrow();
        let now = Moment(inside.boot_us);
        let waits = !inside.pump_is_due && inside.unblocked.is_empty();
        drop(inside);
        let alarm = self.with(|state| state.wake.alarm.at).flatten();
        waits && alarm.is_none_or(|at| at > now)
    }

    /// Runs turns until nothing is left to do at this moment. Returns false if that never ends.
    pub(crate) fn rests(&mut self) -> bool {
        for _ in 0..TURNS_MAX {
            self.turn();
            if self.is_idle() && self.sleeps() {
                self.must_count_values();
                return true;
            }
        }
        false
    }

    /// Checks that the engine counts the values that the server has in its keyspace, or has still to free.
    fn must_count_values(&self) {
        let inside = self.inside.borrow();
        let in_keys = inside.keys.values().map(|entry| &entry.value);
        let all = in_keys.chain(&self.unfreed).filter(|value| value.lock().is_some()).count();
        assert_eq!(self.shared().values(), all as u64, "{:?} {:?}", inside.keys, self.unfreed);
    }

    /// Returns true if the server's checks before it sleeps make no work for another turn.
    fn sleeps(&self) -> bool {
        confirm::turn(self);
        self.is_idle()
    }

    pub(crate) fn passes(&mut self, ms: u64) {
        let mut inside = self.inside.borrow_mut();
        inside.boot_us += ms * 1000;
        inside.wall_us += ms * 1000;
    }

    /// Returns the engine's state, for a test to inspect between two steps.
    pub(crate) fn state(&self) -> Ref<'_, State<u64, Clockwork>> {
        self.state.borrow()
    }

    pub(crate) fn state_mut(&self) -> RefMut<'_, State<u64, Clockwork>> {
        self.state.borrow_mut()
    }

    /// Removes a key from the keyspace. The engine is called as by a real server: first when the value leaves its
    /// name, then when it is freed.
    pub(crate) fn take(&self, at: &At) -> Option<Entry> {
        let entry = self.inside.borrow_mut().keys.remove(at)?;
        self.gone(&entry.value);
        Some(entry)
    }

    /// Removes a value from its name, and frees it.
    pub(crate) fn gone(&self, value: &Value) {
        if let Value::Lock(lock) = *value
            && !self.shared.is_letting_go(lock)
        {
            type_callbacks::unlinked(self, lock);
            type_callbacks::freed(self, lock);
        }
    }

    pub(crate) fn put(&self, at: &At, entry: Entry) {
        self.take(at);
        self.inside.borrow_mut().keys.insert(at.clone(), entry);
    }

    /// Sends the command to replicas and the file.
    pub(crate) fn propagate(&self, db: u32, words: Words) {
        let told = Told { db, words };
        let mut inside = self.inside.borrow_mut();
        inside.offset += 1;
        // Commands read from a file are not replicated.
        if self.flags.get().is_loading {
            return;
        }
        if self.flags.get().has_aof {
            inside.file.push(told.clone());
        }
        inside.stream.push(told);
    }

    pub(super) fn tell(&self, words: &[&[u8]]) {
        self.propagate(self.db.get(), words.iter().map(|word| word.to_vec()).collect());
    }

    /// Fails if the engine's state is borrowed, because a real server may call the engine back from here.
    pub(super) fn may_call_back(&self) {
        assert!(
            self.state.try_borrow_mut().is_ok(),
            "the server is called from within what the engine keeps"
        );
    }

    /// Returns true if a key has expired that may not be deleted now: only a primary's records can see it.
    pub(crate) fn hides(&self, inside: &Inside, at: &At, entry: &Entry) -> bool {
        let flags = self.flags.get();
        let is_others = (flags.is_replica && !flags.is_fact) || inside.is_moving(at);
        // While a file is read, no key expires.
        let must_stay = !flags.is_loading && (is_others || self.is_paused.get());
        must_stay && entry.until_ms.is_some_and(|until| until <= inside.wall_us / 1000)
    }

    /// Reports the change of a key to the clients that watch it, or keep a copy of it.
    pub(crate) fn signal(&self, at: &At) {
        let mut inside = self.inside.borrow_mut();
        inside.changed.insert(Some(at.1.to_vec()));
        inside.touch(|watched| watched == at);
    }
}

pub(crate) fn set_number(settings: &Settings, name: &str, value: i64) {
    let numbers = settings.numbers();
    numbers.iter().find(|number| number.name.to_str() == Ok(name)).expect("there is one").set(value);
}
