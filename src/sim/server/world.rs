//! The world of a simulated server.

use crate::engine::clients::{Reply, Stage};
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::settings::Settings;
use crate::engine::{answers, commands, confirm, describe, events, pump};
use crate::lock::effect::Answer;
use crate::lock::types::{ClientId, Moment, Token};
use crate::sim::server::inside::{At, Entry, PartBuf, Told, Value, Words, place};
use crate::sim::server::sim::Sim;

/// More turns than anything needs to come to rest.
const TURNS_MAX: usize = 10_000;

/// The reply to a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Now(Vec<PartBuf>),
    /// It is blocked, by this number.
    Later(u64),
}

/// A server with its clients.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) sim: Sim,
    /// The replies to blocked clients: number of the block, reply.
    pub(crate) answers: Vec<(u64, Vec<PartBuf>)>,
    /// Values that a flush has left to be freed.
    pub(crate) unfreed: Vec<Value>,
}

/// The progress of a blocked client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It waits in a queue.
    InQueue,
    /// It has its lock, under this token.
    Granted(Token),
    /// It has its longer lease.
    Renewed,
    /// It has nothing of it.
    Over,
    TimedOut,
    Replaced,
    Moved,
    /// The server does not know it any more.
    Gone,
}

impl Fate {
    const fn of(reply: &Reply) -> Self {
        match reply {
            Reply::Renewed(_) => Self::Renewed,
            Reply::Answer(Answer::Granted { token, .. }) => Self::Granted(*token),
            Reply::Answer(Answer::TimedOut) => Self::TimedOut,
            Reply::Answer(Answer::Replaced) => Self::Replaced,
            Reply::Answer(Answer::Moved(_)) => Self::Moved,
            Reply::Answer(_) => Self::Over,
        }
    }
}

pub(crate) fn words(text: &str) -> Words {
    text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

pub(crate) fn at(db: u32, name: &str) -> At {
    place(db, name.as_bytes())
}

impl World {
    pub(crate) fn started() -> Self {
        Self::started_as(Flags::default(), |_| ())
    }

    /// A server with these settings.
    pub(crate) fn started_as(flags: Flags, set: impl FnOnce(&Sim)) -> Self {
        let world = Self::default();
        world.sim.flags.set(flags);
        set(&world.sim);
        events::settings_changed(&world.sim, false);
        events::started(&world.sim);
        world
    }

    /// Lets grants and renewals be answered when the only replica has them, from here on.
    pub(crate) fn confirms(&self) {
        let settings = &self.sim.shared().settings;
        settings.set_confirm(1);
        set_number(settings, "group-size", 2);
        set_number(settings, "quarantine", 60_000);
        self.sim.inside.borrow_mut().replicas.insert(1, ("replica:1", 0));
        events::settings_changed(&self.sim, true);
        confirm::replica_changed(&self.sim);
    }

    /// Turns confirmations off.
    pub(crate) fn confirms_no_more(&self) {
        self.sim.shared().settings.set_confirm(0);
        events::settings_changed(&self.sim, true);
    }

    pub(crate) fn connect(&self, client: u64) {
        self.sim.inside.borrow_mut().connected.insert(client);
    }

    /// A client sends this.
    pub(crate) fn send(&mut self, client: u64, db: u32, text: &str) -> Said {
        self.asks(client, db, words(text))
    }

    /// A client sends these words.
    pub(crate) fn asks(&mut self, client: u64, db: u32, words: Words) -> Said {
        self.run(Some(client), db, words, self.sim.flags.get())
    }

    /// Has it carry out a fact. Returns the reply.
    pub(crate) fn apply(&mut self, told: &Told) -> Vec<PartBuf> {
        let flags = Flags { is_fact: true, ..self.sim.flags.get() };
        match self.run(None, told.db, told.words.clone(), flags) {
            Said::Now(parts) => parts,
            Said::Later(_) => panic!("a fact waits: {told:?}"),
        }
    }

    /// Carries out a record, which must change something: a primary sends no others (G13).
    pub(crate) fn obeys(&mut self, told: &Told) -> Result<(), String> {
        let before = self.sim.inside.borrow().offset;
        let reply = self.apply(told);
        let has_changed = self.sim.inside.borrow().offset > before || &*told.words[0] == b"LOCK.TICK";
        if has_changed && !matches!(reply[..], [PartBuf::Error(_), ..]) {
            return Ok(());
        }
        let words: Vec<_> = told.words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        Err(format!("G13: {} changes nothing for a reader, who says {reply:?}", words.join(" ")))
    }

    pub(crate) fn run(&mut self, client: Option<u64>, db: u32, words: Words, flags: Flags) -> Said {
        self.expire_keys();
        let before = self.sim.flags.replace(flags);
        self.sim.db.set(db);
        self.sim.client.set(client);
        {
            let mut inside = self.sim.inside.borrow_mut();
            inside.reply = Vec::new();
            inside.running = Some(words.clone());
            inside.has_blocked = None;
        }
        let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.dispatch(db, &args);
        self.sim.client.set(None);
        self.sim.flags.set(before);
        let mut inside = self.sim.inside.borrow_mut();
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
        let sim = &self.sim;
        match *args {
            [b"LOCK.ACQUIRE", name, ref rest @ ..] => commands::acquire(sim, name, rest),
            [b"LOCK.MACQUIRE", ref rest @ ..] => commands::macquire(sim, rest),
            [b"LOCK.RELEASE", name, ref rest @ ..] => commands::release(sim, name, rest),
            [b"LOCK.RENEW", name, ref rest @ ..] => commands::renew(sim, name, rest),
            [b"LOCK.FENCE", name, ref rest @ ..] => commands::fence(sim, name, rest),
            [b"LOCK.APPLY", name, ref rest @ ..] => commands::apply_record(sim, name, rest),
            [b"LOCK.TICK", ref rest @ ..] => commands::tick(sim, rest),
            [b"LOCK.INFO", name, ref rest @ ..] => describe::info(sim, name, rest),
            [b"LOCK.HELDBY", owner] => describe::heldby(sim, owner),
            [b"LOCK.EXEC", name, ref rest @ ..] => {
                if let Some(words) = commands::exec(sim, name, rest) {
                    self.dispatch(db, words);
                }
            }
            _ => self.does_to_keys(db, args),
        }
    }

    /// These values are freed by a thread of the server's own.
    pub(crate) fn leave_to_thread(&mut self, values: impl Iterator<Item = Value>) {
        self.unfreed.extend(values);
    }

    /// A thread of the server's own frees the data of a flush.
    pub(crate) fn free_late(&mut self) {
        for value in std::mem::take(&mut self.unfreed) {
            if let Value::Lock(lock) = value {
                self.sim.shared().bury_later(lock);
            }
        }
    }

    /// Removes keys whose time to live has passed. On a replica they wait for its primary, and while a file is read
    /// for its end.
    pub(crate) fn expire_keys(&mut self) {
        while self.expires_one() {}
    }

    /// Removes the first key whose time to live has passed. `false`: there is none.
    pub(crate) fn expires_one(&mut self) -> bool {
        if !self.sim.flags.get().decides() || self.sim.is_paused.get() {
            return false;
        }
        let over = {
            let inside = self.sim.inside.borrow();
            let now_ms = inside.wall_us / 1000;
            let is_over = |entry: &Entry| entry.until_ms.is_some_and(|until| until <= now_ms);
            let must_go = |at: &At, entry: &Entry| is_over(entry) && !inside.is_moving(at);
            inside.keys.iter().find(|(at, entry)| must_go(at, entry)).map(|(at, _)| at.clone())
        };
        let Some(at) = over else { return false };
        self.sim.take(&at);
        self.sim.signal(&at);
        self.sim.propagate(at.0, [b"DEL".to_vec(), at.1.to_vec()].into());
        self.sim.tell_of_key(&at, "expired");
        true
    }

    /// A client closes its connection. The server reports that before it releases the client's blocks.
    pub(crate) fn close(&mut self, client: u64) {
        self.sim.inside.borrow_mut().connected.remove(&client);
        let blocked: Vec<u64> = {
            let inside = self.sim.inside.borrow();
            inside.blocked.iter().filter(|(_, its)| **its == client).map(|(&handle, _)| handle).collect()
        };
        events::client_closed(&self.sim, ClientId(client));
        for handle in blocked {
            answers::disconnected(&self.sim, handle);
        }
    }

    /// A connection breaks, or its user is deleted: it is closed at the end of the turn, and nothing is sent there.
    pub(crate) fn cut_off(&self, client: u64) {
        self.sim.inside.borrow_mut().closing.insert(client, false);
    }

    /// A client asks for the end of its connection after its replies.
    pub(crate) fn quit(&self, client: u64) {
        self.sim.inside.borrow_mut().closing.insert(client, true);
    }

    pub(crate) fn end_turn(&mut self) {
        while let Some((client, _)) =
            { self.sim.inside.borrow().closing.first_key_value().map(|(c, s)| (*c, *s)) }
        {
            self.close(client);
            self.sim.inside.borrow_mut().closing.remove(&client);
        }
        if self.sim.inside.borrow().tells_of_turns {
            answers::turn_begins(&self.sim);
        }
    }

    /// CLIENT UNBLOCK: the client's reply, if it was blocked and not answered yet.
    pub(crate) fn unblock(&mut self, client: u64) {
        let handle = {
            let inside = self.sim.inside.borrow();
            let is_open = |handle: &u64| inside.unblocked.iter().all(|(other, _)| other != handle);
            let existing = inside.blocked.iter().find(|(handle, its)| **its == client && is_open(handle));
            existing.map(|(&handle, _)| handle)
        };
        if let Some(handle) = handle {
            let reply = answers::unblocked(&self.sim, handle);
            answers::reply(&self.sim, reply.as_ref());
            let reply = std::mem::take(&mut self.sim.inside.borrow_mut().reply);
            self.answers.push((handle, reply));
            // The server releases it when it finds no client there.
            let mut inside = self.sim.inside.borrow_mut();
            inside.unblocked.retain(|(other, _)| *other != handle);
            inside.let_go(handle);
        }
    }

    /// The progress of a blocked client.
    pub(crate) fn fate(&self, handle: u64) -> Fate {
        let fate = self.sim.with(|state| {
            Some(match state.clients.stage(handle)? {
                Stage::InQueue(_) => Fate::InQueue,
                Stage::Confirming(_, reply) | Stage::Paced(reply) => Fate::of(reply),
                Stage::Answered => {
                    let inside = self.sim.inside.borrow();
                    let mut unblocked = inside.unblocked.iter();
                    let own = unblocked.find_map(|(other, reply)| (*other == handle).then_some(reply));
                    own.and_then(Option::as_ref).map_or(Fate::Over, Fate::of)
                }
            })
        });
        fate.flatten().unwrap_or(Fate::Gone)
    }

    /// One turn of the event loop.
    pub(crate) fn turn(&mut self) {
        self.expire_keys();
        confirm::turn(&self.sim);
        self.send_answers();
        if std::mem::take(&mut self.sim.inside.borrow_mut().pump_is_due) {
            pump::run(&self.sim);
        }
        let now = self.sim.boot();
        let is_due = self.sim.with(|state| {
            let is_due = state.wake.alarm.at.is_some_and(|at| at <= now);
            if is_due {
                state.wake.alarm.at = None;
            }
            is_due
        });
        if is_due == Some(true) {
            events::woken(&self.sim);
        }
    }

    /// Runs the server's cron: it does all remaining work.
    pub(crate) fn cron(&self) {
        events::cron(&self.sim);
    }

    pub(crate) fn send_answers(&mut self) {
        let unblocked = std::mem::take(&mut self.sim.inside.borrow_mut().unblocked);
        for (handle, reply) in unblocked {
            let client = self.sim.inside.borrow_mut().let_go(handle).expect("it was blocked");
            let is_gone = !self.sim.inside.borrow().connected.contains(&client);
            let Some(reply) = reply else { continue };
            if !is_gone {
                answers::reply(&self.sim, Some(&reply));
                let parts = std::mem::take(&mut self.sim.inside.borrow_mut().reply);
                if self.sim.inside.borrow().closing.get(&client) != Some(&false) {
                    self.answers.push((handle, parts));
                }
            }
            answers::released(&self.sim, handle, reply, is_gone);
        }
        self.end_turn();
    }

    /// Returns whether the next turn has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        let inside = self.sim.inside.borrow();
        let now = Moment(inside.boot_us);
        let waits = !inside.pump_is_due && inside.unblocked.is_empty();
        drop(inside);
        let alarm = self.sim.with(|state| state.wake.alarm.at).flatten();
        waits && alarm.is_none_or(|at| at > now)
    }

    /// Turns until nothing is left to do at this moment. `false`: it never ends.
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

    /// The engine counts the values that the server has in its keyspace, or has still to free.
    fn must_count_values(&self) {
        let inside = self.sim.inside.borrow();
        let in_keys = inside.keys.values().map(|entry| &entry.value);
        let all = in_keys.chain(&self.unfreed).filter(|value| value.lock().is_some()).count();
        assert_eq!(self.sim.shared().values(), all as u64, "{:?} {:?}", inside.keys, self.unfreed);
    }

    /// Returns whether the server's checks before it sleeps make no work for another turn.
    fn sleeps(&self) -> bool {
        confirm::turn(&self.sim);
        self.is_idle()
    }

    pub(crate) fn passes(&mut self, ms: u64) {
        let mut inside = self.sim.inside.borrow_mut();
        inside.boot_us += ms * 1000;
        inside.wall_us += ms * 1000;
    }
}

pub(crate) fn set_number(settings: &Settings, name: &str, value: i64) {
    let numbers = settings.numbers();
    numbers.iter().find(|number| number.name.to_str() == Ok(name)).expect("there is one").set(value);
}
