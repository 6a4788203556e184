//! State that any thread may read at any time: within a step, in a callback, or on a thread of the server's own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::flags::Flags;
use super::settings::Settings;
use crate::lock::effect::LockId;

/// An atomic flag.
#[derive(Debug, Default)]
pub struct Note(AtomicBool);

impl Note {
    const fn new(value: bool) -> Self {
        Self(AtomicBool::new(value))
    }

    /// Returns the flag.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the flag, and returns its previous value.
    pub fn set(&self, value: bool) -> bool {
        self.0.swap(value, Ordering::Relaxed)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Shared {
    /// The user's settings.
    pub settings: Settings,
    /// This server is a node of a cluster.
    is_cluster: Note,
    /// Every command is a request of a client.
    hears_clients_only: Note,
    /// The server reports its events. Without them, changes of its role would go unnoticed.
    pub hears_events: Note,
    /// A client or another module may listen to keyspace events. A module needs no setting for that.
    pub events_are_heard: Note,
    /// The server may evict keys without a time to live.
    pub may_evict: Note,
    /// The log says that grants are refused because of eviction: once per configuration.
    pub eviction_is_logged: Note,
    /// A replica connected or disconnected, and the list was not read since.
    pub has_missed_replica: Note,
    /// Grants and renewals are answered once replicas have confirmed them: `confirm` is not `local`.
    pub holds_back: Note,
    /// The server reports the turns of its event loop, and its replicas.
    pub hears_replicas: Note,
    /// The server reports the turns of its event loop.
    pub hears_turns: Note,
    /// CLIENT UNBLOCK loses the reply of a client that was answered in the same turn of the event loop (Redis 7.0).
    /// Known at load.
    pub loses_answers: Note,
    /// A module may write nothing at the head of an RDB file (not on Redis 7.0). Known at load.
    pub has_optional_aux: Note,
    /// The type was registered with a callback that this server calls for each file: on Redis 7.0, unless the module
    /// was loaded to be removed.
    pub must_write_clock: Note,
    /// The number of the lock whose key the module is deleting; 0 if none.
    letting_go: AtomicU64,
    /// How many values of our type the server has, less those whose end was reported to the main thread. Only the
    /// main thread writes it, by a load and a store.
    values: AtomicU64,
    /// The number of values that were freed while the table could not be used.
    values_freed_elsewhere: AtomicU64,
    /// Locks whose values were freed while the table could not be used.
    graveyard: Mutex<Vec<LockId>>,
    graveyard_is_used: AtomicBool,
}

impl Shared {
    /// Returns the state of a new server.
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

    /// Returns true if this server is a node of a cluster.
    #[inline]
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.is_cluster.is_set()
    }

    /// Returns true if every command is a request of a client, and its source need not be examined. That is so on a
    /// primary that loads nothing and is in no cluster, where slots arrive as facts.
    #[inline]
    #[must_use]
    pub fn hears_clients_only(&self) -> bool {
        self.hears_clients_only.is_set()
    }

    /// Records the server's role: at each event that can change it, and in each run of the pump.
    pub fn note_role(&self, flags: Flags) {
        self.is_cluster.set(flags.is_cluster);
        self.hears_clients_only.set(flags.decides() && !flags.is_cluster && self.hears_events.is_set());
    }

    /// Examines the source of each command until the role is recorded again, because facts may arrive.
    pub fn expect_facts(&self) {
        self.hears_clients_only.set(false);
    }

    /// Returns true if the module is deleting this lock's key. The server's callbacks about it then have nothing to
    /// do.
    #[inline]
    #[must_use]
    pub fn is_letting_go(&self, lock: LockId) -> bool {
        self.letting_go.load(Ordering::Relaxed) == lock.number()
    }

    /// Deletes the key of a lock without holders, and its value. The caller forgets the lock.
    #[inline]
    pub fn let_go(&self, lock: LockId, delete: impl FnOnce()) {
        self.letting_go.store(lock.number(), Ordering::Relaxed);
        delete();
        self.letting_go.store(0, Ordering::Relaxed);
        self.note_freed();
    }

    /// Counts a value that was given to the server. Main thread only.
    #[inline]
    pub fn note_stored(&self) {
        self.values.store(self.values.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Uncounts a value that the server has freed, as reported on the main thread.
    #[inline]
    pub fn note_freed(&self) {
        self.values.store(self.values.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    /// Returns the number of values of our type in the server, in its keyspace or not freed yet. A file with any of
    /// them needs the module, even if no lock belongs to it. Main thread only: there it is never too low.
    #[must_use]
    pub fn values(&self) -> u64 {
        let freed_elsewhere = self.values_freed_elsewhere.load(Ordering::Acquire);
        self.values.load(Ordering::Relaxed).wrapping_sub(freed_elsewhere)
    }

    /// Notes a value that was freed on another thread, or while the table was in use.
    pub fn bury_later(&self, lock: LockId) {
        self.values_freed_elsewhere.fetch_add(1, Ordering::Release);
        if let Ok(mut graveyard) = self.graveyard.lock() {
            graveyard.push(lock);
            self.graveyard_is_used.store(true, Ordering::Release);
        }
    }

    /// Returns true if such values are waiting to be forgotten.
    #[must_use]
    pub fn has_dead(&self) -> bool {
        self.graveyard_is_used.load(Ordering::Acquire)
    }

    /// Takes the locks of such values.
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
