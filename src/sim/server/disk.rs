//! Saves and loads a simulated server: snapshots, for its files and its replicas, and a log of commands.

use crate::engine::flags::Flags;
use crate::engine::server_events;
use crate::engine::type_callbacks;
use crate::lock::codec::SavedLock;
use crate::lock::types::LockKey;
use crate::sim::server::inside::{At, Entry, Told, Value};
use crate::sim::server::sim::Sim;

/// The saved value of a key.
#[derive(Clone, Debug)]
enum Saved {
    Lock(Option<SavedLock>),
    Text(Vec<u8>),
}

/// An RDB file, or the data of a full synchronization.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// Both hands of the clock of tokens, at its head.
    clock: Option<(u64, u64)>,
    keys: Vec<(At, Saved, Option<u64>)>,
}

impl Sim {
    /// Forks a child, which saves the data of that moment.
    pub(crate) fn save(&self) -> Snapshot {
        server_events::forked(self);
        self.snapshot()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let keys: Vec<(At, Entry)> =
            self.inside.borrow().keys.iter().map(|(at, entry)| (at.clone(), entry.clone())).collect();
        let saved = |entry: &Entry| match &entry.value {
            Value::Lock(lock) => Saved::Lock(type_callbacks::saved(self, *lock)),
            Value::Text(text) => Saved::Text(text.clone()),
        };
        let keys = keys.into_iter().map(|(at, entry)| (at, saved(&entry), entry.until_ms)).collect();
        Snapshot { clock: type_callbacks::saved_clock(self), keys }
    }

    /// Starts the server, which reads its files.
    pub(crate) fn read_files(&mut self, snapshot: &Snapshot, log: &[Told]) -> Result<(), String> {
        let before = self.begin_to_load();
        self.load(snapshot)?;
        for told in log {
            self.obeys(told).map_err(|wrong| format!("a log: {wrong}"))?;
        }
        self.end_load(before);
        Ok(())
    }

    /// Makes a replica discard its data, and load the data that its primary has sent.
    pub(crate) fn synchronise(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        self.empty();
        let before = self.begin_to_load();
        self.load(snapshot)?;
        self.end_load(before);
        Ok(())
    }

    /// DEBUG RELOAD: the server saves, discards its data, and loads the saved file.
    pub(crate) fn reload(&mut self) -> Result<(), String> {
        self.synchronise(&self.snapshot())
    }

    /// DEBUG LOADAOF: the server discards its data, and replays its append-only file from the start.
    pub(crate) fn load_file(&mut self, file: &[Told]) -> Result<(), String> {
        let offset = self.inside.borrow().offset;
        self.empty();
        let before = self.begin_to_load();
        for told in file {
            self.obeys(told).map_err(|wrong| format!("a file: {wrong}"))?;
        }
        self.end_load(before);
        // Replicas receive none of it.
        self.inside.borrow_mut().offset = offset;
        Ok(())
    }

    /// Removes all keys at once, and notifies only clients that watch them or keep copies.
    fn empty(&self) {
        server_events::flushed(self, None);
        self.signal_all(None);
        let gone = std::mem::take(&mut self.inside.borrow_mut().keys);
        gone.into_values()
            .filter_map(|entry| entry.value.lock())
            .for_each(|lock| type_callbacks::freed(self, lock));
    }

    fn begin_to_load(&self) -> Flags {
        let before = self.flags.get();
        server_events::loading(self);
        self.flags.set(Flags { is_loading: true, ..before });
        before
    }

    fn end_load(&self, before: Flags) {
        self.flags.set(before);
        server_events::loaded(self);
    }

    fn load(&self, Snapshot { clock, keys }: &Snapshot) -> Result<(), String> {
        if let Some((last, replicated)) = *clock {
            type_callbacks::load_clock(self, last, replicated)?;
        }
        for ((db, name), saved, until_ms) in keys {
            let value = match saved {
                Saved::Text(text) => Value::Text(text.clone()),
                Saved::Lock(saved) => {
                    Value::Lock(type_callbacks::load(self, LockKey { db: *db, name }, saved.as_ref())?)
                }
            };
            let now_ms = self.inside.borrow().wall_us / 1000;
            let is_over = until_ms.is_some_and(|until| until < now_ms);
            if is_over && !self.flags.get().is_replica {
                // A primary does not load it, and replicates nothing.
                if let Value::Lock(lock) = value {
                    type_callbacks::freed(self, lock);
                }
                continue;
            }
            let entry = Entry { value, until_ms: *until_ms };
            self.inside.borrow_mut().keys.insert((*db, name.clone()), entry);
        }
        Ok(())
    }
}
