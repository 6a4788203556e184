//! What the engine keeps where everybody can look at any time: from within a step, from a callback, from a thread of
//! the server's own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::flags::Flags;
use super::settings::Settings;
use crate::lock::effect::LockId;

/// A note that is set and not set.
#[derive(Debug, Default)]
pub struct Note(AtomicBool);

impl Note {
    const fn new(value: bool) -> Self {
        Self(AtomicBool::new(value))
    }

    /// Returns true if it is set.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it or not, and says what it was.
    pub fn set(&self, value: bool) -> bool {
        self.0.swap(value, Ordering::Relaxed)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Shared {
    /// The user's settings.
    pub settings: Settings,
    /// It is a node of a cluster.
    is_cluster: Note,
    /// Every command comes from a client that asks.
    hears_clients_only: Note,
    /// The server reports its events. Without them nobody would say when its role changes.
    pub hears_events: Note,
    /// Somebody could hear a keyspace event: a client, or another module, which needs no setting.
    pub events_are_heard: Note,
    /// The server may evict keys that have no time to live.
    pub may_evict: Note,
    /// The log knows that grants are refused for the sake of eviction: once for each configuration.
    pub eviction_is_logged: Note,
    /// A replica came or went, and the list was not read again.
    pub has_missed_replica: Note,
    /// Grants and renewals are answered when they are confirmed. So it is until all that was not confirmed is undone,
    /// too, when nothing has to be confirmed any more.
    pub holds_back: Note,
    /// The server reports turns of its event loop, and replicas.
    pub hears_replicas: Note,
    /// The server reports turns of its event loop.
    pub hears_turns: Note,
    /// CLIENT UNBLOCK loses the reply of a client that was answered in the same turn of the event loop (Redis 7.0).
    /// Known at load.
    pub loses_answers: Note,
    /// A module can write nothing at the head of an RDB file (not Redis 7.0). Known at load.
    pub has_optional_aux: Note,
    /// The type was registered with a callback that this server calls for each file, whatever there is to write: on
    /// Redis 7.0, unless the module was loaded to leave.
    pub must_write_clock: Note,
    /// The number of the lock whose key is being deleted by ourselves; 0: none.
    letting_go: AtomicU64,
    /// How many values of our type were given to the server, less those whose end the main thread was told of. Only the
    /// main thread writes it: a load and a store, which no other thread can come between.
    values: AtomicU64,
    /// The number of values that were freed where the table could not be used.
    values_freed_elsewhere: AtomicU64,
    /// Locks whose values were freed where the table could not be used.
    graveyard: Mutex<Vec<LockId>>,
    graveyard_is_used: AtomicBool,
}

impl Shared {
    /// The state of a new server: nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            settings: Settings::new(),
            is_cluster: Note::new(false),
            hears_clients_only: Note::new(false),
            hears_events: Note::new(false),
            events_are_heard: Note::new(true),
            may_evict: Note::new(false),
            eviction_is_logged: Note::new(false),
            has_missed_replica: Note::new(false),
            holds_back: Note::new(false),
            hears_replicas: Note::new(false),
            hears_turns: Note::new(false),
            loses_answers: Note::new(false),
            has_optional_aux: Note::new(false),
            must_write_clock: Note::new(false),
            letting_go: AtomicU64::new(0),
            values: AtomicU64::new(0),
            values_freed_elsewhere: AtomicU64::new(0),
            graveyard: Mutex::new(Vec::new()),
            graveyard_is_used: AtomicBool::new(false),
        }
    }

    /// Returns true if no lock is granted because it might be evicted.
    #[inline]
    #[must_use]
    pub fn grants_none_for_eviction(&self) -> bool {
        self.may_evict.is_set() && !self.settings.allows_eviction()
    }

    /// Returns true if it is a node of a cluster.
    #[inline]
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.is_cluster.is_set()
    }

    /// Whether every command comes from a client that asks, so that nobody needs to look. That is so on a primary
    /// that loads nothing, and not in a cluster, where slots come in as facts.
    #[inline]
    #[must_use]
    pub fn hears_clients_only(&self) -> bool {
        self.hears_clients_only.is_set()
    }

    /// Takes note of the server's role: at each event that can change it, and in each run of the pump.
    pub fn note_role(&self, flags: Flags) {
        self.is_cluster.set(flags.is_cluster);
        self.hears_clients_only.set(flags.decides() && !flags.is_cluster && self.hears_events.is_set());
    }

    /// Something begins after which facts may come: look at each command, until the role is noted again.
    pub fn expect_facts(&self) {
        self.hears_clients_only.set(false);
    }

    /// Whether this lock's key is being deleted by ourselves. The server's callbacks about it have nothing to do.
    #[inline]
    #[must_use]
    pub fn is_letting_go(&self, lock: LockId) -> bool {
        self.letting_go.load(Ordering::Relaxed) == lock.number()
    }

    /// Deletes the key of a lock that nobody holds, and so its value; the caller forgets the lock.
    #[inline]
    pub fn let_go(&self, lock: LockId, delete: impl FnOnce()) {
        self.letting_go.store(lock.number(), Ordering::Relaxed);
        delete();
        self.letting_go.store(0, Ordering::Relaxed);
        self.note_freed();
    }

    /// The server was given a value. Only on the main thread.
    #[inline]
    pub fn note_stored(&self) {
        self.values.store(self.values.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The server has freed a value, and said so on the main thread.
    #[inline]
    pub fn note_freed(&self) {
        self.values.store(self.values.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    /// The number of values of our type in the server, in its keyspace or not freed yet. Each of them, in a file, needs
    /// the module, even one that no lock stands for any more. Only on the main thread: there it is never too low.
    #[must_use]
    pub fn values(&self) -> u64 {
        let freed_elsewhere = self.values_freed_elsewhere.load(Ordering::Acquire);
        self.values.load(Ordering::Relaxed).wrapping_sub(freed_elsewhere)
    }

    /// A value was freed on a thread that must not touch the table, or while the table was in use.
    pub fn bury_later(&self, lock: LockId) {
        self.values_freed_elsewhere.fetch_add(1, Ordering::Release);
        if let Ok(mut graveyard) = self.graveyard.lock() {
            graveyard.push(lock);
            self.graveyard_is_used.store(true, Ordering::Release);
        }
    }

    /// Returns true if values were freed elsewhere that nobody has taken yet.
    #[must_use]
    pub fn has_dead(&self) -> bool {
        self.graveyard_is_used.load(Ordering::Acquire)
    }

    /// Takes those that were freed elsewhere.
    pub fn take_dead(&self) -> Vec<LockId> {
        if !self.graveyard_is_used.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        let dead = self.graveyard.lock().map(|mut graveyard| std::mem::take(&mut *graveyard));
        dead.unwrap_or_default()
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new()
    }
}
