//! A server as the core sees it: a keyspace whose values are numbers of locks, and two clocks.
//!
//! It carries out what a step says becomes of a key, and what others do to keys without asking the core
//! (DEL, RENAME, FLUSHALL, ...), calling the core where a real server calls the module. Primary and
//! readers of its stream are both made of it.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::Fact;
use crate::lock::codec::SavedLock;
use crate::lock::effect::{Change, Existing, LockId, Record};
use crate::lock::table::{Description, Table};
use crate::lock::types::{LockKey, Mode, Moment, Now, Token};

/// A key, an owner: tests know all of theirs beforehand.
pub(crate) type Name = &'static str;

/// Where a key is.
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

/// What stands under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
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

/// What somebody does to keys without asking the core. It travels word for word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outside {
    /// DEL, UNLINK, eviction, the end of a user's EXPIRE.
    Del(At),
    /// SET and every other command that stores a foreign value.
    Set(At),
    Rename(At, At),
    Move(At, u32),
    /// FLUSHDB, or FLUSHALL for `None`. A lazy one frees the values later, on a background thread.
    Flush(Option<u32>, Lazy),
    Swap(u32, u32),
    /// RESTORE REPLACE; `None`: the payload was made under another name, or is that of an empty lock.
    Restore(At, Option<SavedLock>),
    /// PEXPIRE: the key is to go by itself, so late that nobody here lives to see it.
    Expire(At),
}

/// Whether the values of an emptied database are freed later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lazy {
    No,
    Yes,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Server {
    pub(super) table: Table,
    pub(super) now: Now,
    pub(super) keys: BTreeMap<At, Key>,
    /// Those of the keys to which somebody gave a time to live.
    pub(super) mortal: BTreeSet<At>,
    /// Whether it decides: a primary.
    pub(super) decides: bool,
    /// Values of emptied databases that the background thread has not freed yet.
    pub(super) unfreed: Vec<LockId>,
}

impl Server {
    pub(super) fn existing(&self, at: At) -> Existing {
        match self.keys.get(&at) {
            None => Existing::Nothing,
            Some(Key::Lock(id)) => Existing::Lock(*id),
            Some(Key::Other) => Existing::Other,
        }
    }

    /// What a reader of the lock is told: LOCK.FENCE.
    pub(super) fn live_token(&self, at: At) -> Option<Token> {
        self.table.live_token(self.now.boot, self.existing(at))
    }

    /// What INFO tells of the lock, with so many of those who hold it and of those who wait.
    pub(super) fn described(&self, at: At, shown_max: usize) -> Option<Description<'_>> {
        self.table.describe(self.now.boot, at.lock_key(), self.existing(at), b"", shown_max)
    }

    /// Whether the lock has so many holders that a command does not end all whose leases are over, and there are some.
    pub(super) fn leaves_ends_to_the_pump(&self, at: At) -> bool {
        matches!(self.keys.get(&at), Some(Key::Lock(id)) if self.table.leaves_ends_to_the_pump(self.now.boot, *id))
    }

    /// What a dump of the key would say, live or not.
    pub(super) fn saved(&self, at: At) -> Option<SavedLock> {
        match self.keys.get(&at) {
            Some(Key::Lock(id)) => self.table.save(self.now.boot, *id),
            _ => None,
        }
    }

    /// Whether this is the token of a live hold: LOCK.FENCE with a token.
    pub(super) fn is_live(&self, at: At, token: Token) -> bool {
        self.table.is_live(self.now.boot, self.existing(at), token)
    }

    /// A record that names a hold, or the end of one, as it travels.
    pub(super) fn fact(&self, at: At, record: Record) -> Result<Fact, String> {
        let (mode, holder) = match record {
            Record::Hold(lock) => (Some(Mode::Exclusive), lock),
            Record::Holder(holders, holder) => (self.table.mode(holders), holder),
            Record::Ended(token) => return Ok(Fact::Ended(at, token)),
            Record::Nothing | Record::AsAsked | Record::Deleted | Record::Lives(_) => {
                return Err(format!("{record:?} names nothing"));
            }
        };
        let saved = mode.zip(self.table.save_hold(self.now.boot, holder));
        let saved = saved.filter(|_| self.table.stands_for(self.existing(at), holder));
        let (mode, hold) = saved.ok_or_else(|| format!("G13: {record:?} at {at} is told and not there"))?;
        Ok(Fact::Hold(at, mode, hold))
    }

    /// What the step said becomes of its key.
    pub(super) fn carry_out(&mut self, at: At, change: Change) {
        match change {
            Change::Nothing | Change::Signalled | Change::Touched | Change::Lives(_) => {}
            Change::Renewed => drop(self.mortal.remove(&at)),
            Change::Stored(id) => {
                self.remove(at);
                self.keys.insert(at, Key::Lock(id));
            }
            Change::Deleted => self.remove(at),
        }
    }

    /// The key leaves its name; its value lives on.
    fn unlink(&mut self, at: At) -> Option<Key> {
        let key = self.keys.remove(&at)?;
        self.mortal.remove(&at);
        if let Key::Lock(id) = key {
            self.table.unlinked(self.now.boot, id, self.decides);
        }
        Some(key)
    }

    fn remove(&mut self, at: At) {
        if let Some(Key::Lock(id)) = self.unlink(at) {
            self.table.forget(self.now.boot, id, self.decides);
        }
    }

    /// Does this to the keys, if it can be done; tells whether it was.
    pub(super) fn outside(&mut self, what: &Outside) -> bool {
        match *what {
            Outside::Del(at) => {
                let is_there = self.keys.contains_key(&at);
                self.remove(at);
                is_there
            }
            Outside::Set(at) => {
                self.remove(at);
                self.keys.insert(at, Key::Other);
                true
            }
            Outside::Rename(from, to) => from != to && self.rename(from, to),
            Outside::Move(at, db) => {
                let to = At { db, ..at };
                to != at && !self.keys.contains_key(&to) && self.rename(at, to)
            }
            Outside::Flush(db, lazy) => {
                self.flush(db, lazy);
                true
            }
            Outside::Swap(a, b) => {
                self.swap(a, b);
                true
            }
            Outside::Restore(at, ref saved) => {
                // The server reads the payload first and deletes the old key then.
                let id = self.loaded(at, saved.as_ref());
                self.remove(at);
                self.keys.insert(at, Key::Lock(id));
                true
            }
            Outside::Expire(at) => {
                let is_there = self.keys.contains_key(&at);
                self.mortal.extend(is_there.then_some(at));
                is_there
            }
        }
    }

    /// A lock as it is read from a file.
    pub(super) fn loaded(&mut self, at: At, saved: Option<&SavedLock>) -> LockId {
        self.table.load(self.now.boot, at.lock_key(), saved).expect("there is room for a few locks")
    }

    /// RESTORE REPLACE of a key that is past its time: the payload is read, and no key comes to hold it.
    pub(super) fn restore_too_late(&mut self, at: At, saved: Option<&SavedLock>) {
        let id = self.loaded(at, saved);
        self.remove(at);
        self.table.discard(self.now.boot, id);
    }

    fn rename(&mut self, from: At, to: At) -> bool {
        if !self.keys.contains_key(&from) {
            return false;
        }
        self.remove(to);
        let is_mortal = self.mortal.contains(&from);
        if let Some(key) = self.unlink(from) {
            self.keys.insert(to, key);
            self.mortal.extend(is_mortal.then_some(to));
        }
        true
    }

    fn flush(&mut self, db: Option<u32>, lazy: Lazy) {
        let mut gone = Vec::new();
        self.keys.retain(|at, key| {
            let stays = db.is_some_and(|db| db != at.db);
            if let (Key::Lock(id), false) = (*key, stays) {
                gone.push(id);
            }
            stays
        });
        self.mortal.retain(|at| self.keys.contains_key(at));
        // The server says so before it frees anything.
        self.table.flushed(self.now.boot, db, self.decides);
        match lazy {
            Lazy::No => gone.into_iter().for_each(|id| self.table.forget(self.now.boot, id, self.decides)),
            Lazy::Yes => self.unfreed.append(&mut gone),
        }
    }

    /// The background thread has freed the values of emptied databases.
    pub(super) fn free(&mut self) {
        for id in std::mem::take(&mut self.unfreed) {
            self.table.forget(self.now.boot, id, self.decides);
        }
    }

    fn swap(&mut self, a: u32, b: u32) {
        let swapped = |db: u32| match db {
            _ if db == a => b,
            _ if db == b => a,
            _ => db,
        };
        let moved = |at: At| At { db: swapped(at.db), ..at };
        let keys = std::mem::take(&mut self.keys).into_iter();
        self.keys = keys.map(|(at, key)| (moved(at), key)).collect();
        self.mortal = std::mem::take(&mut self.mortal).into_iter().map(moved).collect();
        self.table.swapped(self.now.boot, a, b, self.decides);
    }

    /// What is wrong with the core's own records, if anything is.
    pub(super) fn check(&self) -> Result<(), String> {
        // Values that are not freed yet, under no name any more: what the table knows of them is empty.
        let mut unfreed = self.unfreed.clone();
        self.table.keep_known(&mut unfreed);
        if let Some(id) = unfreed.iter().find(|&&id| self.table.is_held(id)) {
            return Err(format!("G15: {id:?} is held, and its key is gone"));
        }
        let unfreed = unfreed.into_iter().map(|id| (At::new(0, "").lock_key(), id));
        let keys = self.keys.iter().filter_map(|(at, key)| Some((at.lock_key(), key.lock()?)));
        self.table.check(keys.chain(unfreed))
    }

    /// An empty one, with these clocks.
    pub(super) fn at_clocks(boot: Moment, wall_us: u64) -> Self {
        Self { now: Now { boot, wall_us }, ..Self::default() }
    }
}

/// What a snapshot has: an RDB file, or what a full synchronisation sends. The clock's hands are at the head of it.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) last: u64,
    replicated: u64,
    keys: Vec<(At, Key, Option<SavedLock>)>,
    mortal: BTreeSet<At>,
}

impl Snapshot {
    /// The server as it is now.
    pub(super) fn of(server: &mut Server) -> Self {
        let (last, replicated) = (server.table.last_token(), server.table.clock().replicated_token());
        let keys = server.keys.iter().map(|(&at, &key)| (at, key, server.saved(at))).collect();
        Self { last, replicated, keys, mortal: server.mortal.clone() }
    }

    /// Loads it into a server without keys.
    pub(super) fn load(&self, server: &mut Server) {
        server.table.begin_load();
        // A file that was written before the first grant says nothing of the clock.
        if self.last > 0 {
            server.table.loaded_clock().adopt(self.last, self.replicated);
        }
        for (at, key, saved) in &self.keys {
            let loaded = match key {
                Key::Lock(_) => Key::Lock(server.loaded(*at, saved.as_ref())),
                Key::Other => Key::Other,
            };
            server.keys.insert(*at, loaded);
        }
        server.mortal.clone_from(&self.mortal);
    }
}
