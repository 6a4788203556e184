//! A simulated server, run by the engine that ships, as the models, the random lives and the stories see it. It has a
//! keyspace whose values are numbers of locks, and two clocks. The primary and the readers of its stream are such
//! servers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::engine::flags::Flags;
use crate::lock::codec::SavedLock;
use crate::lock::effect::{Existing, LockId};
use crate::lock::locks::OwnerText;
use crate::lock::table::{Description, HoldView, WaiterView};
use crate::lock::types::{LockKey, Moment, Now, Token};
use crate::sim::server::sim::Sim;
use crate::sim::single::driven::Replied;

/// A key or an owner: tests know all of theirs beforehand.
pub(crate) type Name = &'static str;

/// The database and name of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) db: u32,
    pub(crate) name: Name,
}

impl At {
    pub(crate) const fn new(db: u32, name: Name) -> Self {
        Self { db, name }
    }

    pub(crate) const fn lock_key(self) -> LockKey<'static> {
        LockKey { db: self.db, name: self.name.as_bytes() }
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.db != 0 {
            write!(f, "{}:", self.db)?;
        }
        f.write_str(self.name)
    }
}

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// The value of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    Lock(LockId),
    Other,
}

impl Key {
    const fn lock(self) -> Option<LockId> {
        match self {
            Self::Lock(id) => Some(id),
            Self::Other => None,
        }
    }
}

/// A change of keys that bypasses the core. It is replicated word for word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outside {
    /// DEL, UNLINK, eviction, the end of a user's EXPIRE.
    Del(At),
    /// SET and every other command that stores a foreign value.
    Set(At),
    Rename(At, At),
    Move(At, u32),
    /// FLUSHDB, or FLUSHALL for `None`. A lazy one frees the values later, on a background thread.
    Flush(Option<u32>, Lazy),
    Swap(u32, u32),
    /// RESTORE REPLACE of a payload that was made under this name; `None` for an empty lock.
    Restore(At, (Name, Option<SavedLock>)),
    /// PEXPIRE: the key expires far beyond the end of any run.
    Expire(At),
}

/// The time at which the values of an emptied database are freed: at once, or later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lazy {
    No,
    Yes,
}

thread_local! {
    static NAMES: RefCell<HashMap<Box<[u8]>, Name>> = RefCell::default();
}

/// Returns these bytes as a name that can be copied. Tests have few names.
pub(crate) fn name_of(bytes: &[u8]) -> Name {
    NAMES.with_borrow_mut(|names| {
        if let Some(name) = names.get(bytes) {
            return *name;
        }
        let name: Name = String::from_utf8_lossy(bytes).into_owned().leak();
        names.insert(bytes.into(), name);
        name
    })
}

/// See the [module](self).
pub(crate) struct Server {
    pub(crate) sim: Sim,
    pub(crate) now: Now,
    /// The keys as of the last look.
    pub(crate) keys: BTreeMap<At, Key>,
    /// The keys with a time to live from a user.
    pub(crate) mortal: BTreeSet<At>,
}

impl Server {
    /// Starts an empty server.
    pub(crate) fn started(boot: Moment, wall_us: u64, is_replica: bool) -> Self {
        let flags = Flags { is_replica, ..Flags::default() };
        let sim = Sim::started_as(flags, |sim| {
            let mut inside = sim.inside.borrow_mut();
            (inside.boot_us, inside.wall_us) = (boot.0, wall_us);
        });
        Self { sim, now: Now { boot, wall_us }, keys: BTreeMap::new(), mortal: BTreeSet::new() }
    }

    /// Returns the newest token, and the newest one that readers of its stream know.
    pub(crate) fn tokens(&self) -> (u64, u64) {
        let mut table = self.table_mut();
        (table.last_token(), table.clock().replicated_token())
    }

    /// Sets its clocks, because a user does so or time passes.
    pub(crate) fn set_now(&mut self, now: Now) {
        self.now = now;
        let mut inside = self.sim.inside.borrow_mut();
        (inside.boot_us, inside.wall_us) = (now.boot.0, now.wall_us);
    }

    /// Reads the current state.
    pub(crate) fn look(&mut self) {
        self.keys.clear();
        self.mortal.clear();
        for ((db, name), entry) in &self.sim.inside.borrow().keys {
            let at = At::new(*db, name_of(name));
            self.keys.insert(at, entry.value.lock().map_or(Key::Other, Key::Lock));
            self.mortal.extend(entry.until_ms.map(|_| at));
        }
    }

    pub(crate) fn existing(&self, at: At) -> Existing {
        match self.keys.get(&at) {
            None => Existing::Nothing,
            Some(Key::Lock(id)) => Existing::Lock(*id),
            Some(Key::Other) => Existing::Other,
        }
    }

    /// Returns the reply of LOCK.FENCE for the lock.
    pub(crate) fn live_token(&self, at: At) -> Option<Token> {
        self.table().live_token(self.now.boot, self.existing(at))
    }

    /// Returns the description of the lock in INFO, with at most `shown_max` of its holders and of its waiters.
    pub(crate) fn described(&self, at: At, shown_max: usize) -> Option<Description<'static>> {
        let table = self.table();
        let told = table.describe(self.now.boot, at.lock_key(), self.existing(at), b"", shown_max)?;
        let Description { mode, holders, holds, waiters, queue } = told;
        let hold = |view: HoldView<'_>| {
            let HoldView { owner, token, left_ms, held_ms, client, count, binding } = view;
            let owner = OwnerText::Plain(name_of(&owner).as_bytes());
            HoldView { owner, token, left_ms, held_ms, client, count, binding }
        };
        let waiter = |WaiterView { owner, waited_ms, client, mode }| WaiterView {
            owner: name_of(owner).as_bytes(),
            waited_ms,
            client,
            mode,
        };
        let (holds, queue) = (holds.into_iter().map(hold).collect(), queue.into_iter().map(waiter).collect());
        Some(Description { mode, holders, holds, waiters, queue })
    }

    /// Returns true if the lock has expired leases that a command leaves to the pump, because the lock has many
    /// holders.
    pub(crate) fn leaves_ends_to_the_pump(&self, at: At) -> bool {
        matches!(self.keys.get(&at), Some(Key::Lock(id)) if self.table().leaves_ends_to_the_pump(self.now.boot, *id))
    }

    /// Returns the content of a dump of the key, live or not.
    pub(crate) fn saved(&self, at: At) -> Option<SavedLock> {
        match self.keys.get(&at) {
            Some(Key::Lock(id)) => self.table().save(self.now.boot, *id),
            _ => None,
        }
    }

    /// Returns true if this is the token of a live hold: LOCK.FENCE with a token.
    pub(crate) fn is_live(&self, at: At, token: Token) -> bool {
        self.table().is_live(self.now.boot, self.existing(at), token)
    }

    /// Applies this to the keys if possible. Returns true if it was possible.
    pub(crate) fn outside(&mut self, what: &Outside) -> Result<bool, String> {
        /// Far beyond the end of any run, in milliseconds of the wall clock.
        const NEVER_MS: &str = "9000000000000000";
        let replied = match *what {
            Outside::Del(at) => self.ask(0, at.db, &["DEL", at.name])?,
            Outside::Set(at) => self.ask(0, at.db, &["SET", at.name, "text"])?,
            Outside::Rename(from, to) if from == to || from.db != to.db => return Ok(false),
            Outside::Rename(from, to) => self.ask(0, from.db, &["RENAME", from.name, to.name])?,
            Outside::Move(at, db) if at.db == db => return Ok(false),
            Outside::Move(at, db) => self.ask(0, at.db, &["MOVE", at.name, &db.to_string()])?,
            Outside::Flush(db, lazy) => {
                let command = if db.is_some() { "FLUSHDB" } else { "FLUSHALL" };
                let how = if lazy == Lazy::Yes { "ASYNC" } else { "SYNC" };
                self.ask(0, db.unwrap_or(0), &[command, how])?
            }
            Outside::Swap(a, b) => self.ask(0, 0, &["SWAPDB", &a.to_string(), &b.to_string()])?,
            Outside::Restore(at, (name, ref saved)) => {
                self.restore((at.db, at.name), (name, saved.as_ref()))?
            }
            Outside::Expire(at) => self.ask(0, at.db, &["PEXPIREAT", at.name, NEVER_MS])?,
        };
        Ok(matches!(replied, Replied::Ok | Replied::Integer(1..)))
    }

    /// Checks the core's own records.
    pub(crate) fn check(&self) -> Result<(), String> {
        // The table's locks of values that are not freed yet, and have no name any more, are empty.
        let mut unfreed = self.unfreed();
        let table = self.table();
        table.keep_known(&mut unfreed);
        if let Some(id) = unfreed.iter().find(|&&id| table.is_held(id)) {
            return Err(format!("G15: {id:?} is held, and its key is gone"));
        }
        let unfreed = unfreed.into_iter().map(|id| (At::new(0, "").lock_key(), id));
        let keys = self.keys.iter().filter_map(|(at, key)| Some((at.lock_key(), key.lock()?)));
        table.check(keys.chain(unfreed))
    }
}
