//! A server with a table, a keyspace and a clock, which applies records like a replica and then decides like a
//! primary.
//!
//! It carries out the edge's steps, in order, and compares its locks with those of a snapshot and a rewritten
//! append-only file.

use std::collections::BTreeMap;

use super::reading;
use crate::command::internal::{Apply, parse_apply};
use crate::lock::codec::{SavedLock, read, write};
use crate::lock::effect::{Change, Effects, Existing, LockId, Record, Step, Task};
use crate::lock::table::{Acquired, Ask, Block, Decision, KeyRef, Release, Table, Wait};
use crate::lock::types::{Binding, ClientId, LEASE_MS_MAX, LockKey, Mode, Moment, Now};

/// More than can be due at once.
const PUMP_STEPS_MAX: usize = 20_000;

/// See the [module](self).
pub(super) struct Replica {
    pub(super) table: Table,
    keys: BTreeMap<Vec<u8>, LockId>,
    now: Now,
    decides: bool,
    clients: u64,
}

impl Default for Replica {
    fn default() -> Self {
        let now = Now { boot: Moment(5_000_000_000), wall_us: 1_780_000_000_000_000 };
        Self { table: Table::default(), keys: BTreeMap::new(), now, decides: false, clients: 0 }
    }
}

const fn lock_key(name: &[u8]) -> LockKey<'_> {
    LockKey { db: 0, name }
}

impl Replica {
    pub(super) const fn now(&self) -> Moment {
        self.now.boot
    }

    pub(super) fn existing(&self, name: &[u8]) -> Existing {
        self.keys.get(name).map_or(Existing::Nothing, |&id| Existing::Lock(id))
    }

    /// The content of the key in a snapshot.
    pub(super) fn saved(&self, name: &[u8]) -> Option<SavedLock> {
        self.keys.get(name).and_then(|&id| self.table.save(self.now.boot, id))
    }

    /// Lets a step be about this key, and carries it out.
    pub(super) fn step<R>(
        &mut self,
        name: &[u8],
        step: impl FnOnce(&mut Table, Now, KeyRef<'_>, &mut Effects) -> Step<R>,
    ) -> R {
        let key_ref = KeyRef { lock_key: lock_key(name), existing: self.existing(name) };
        let step = step(&mut self.table, self.now, key_ref, &mut Effects::default());
        self.carry_out(name, step.change);
        self.check();
        step.reply
    }

    pub(super) fn carry_out(&mut self, name: &[u8], change: Change) {
        match change {
            Change::Nothing | Change::Signalled | Change::Touched | Change::Renewed | Change::Lives(_) => {}
            Change::Stored(id) => self.store(name, id),
            Change::Deleted => self.remove(name),
        }
    }

    fn store(&mut self, name: &[u8], id: LockId) {
        self.remove(name);
        self.keys.insert(name.to_vec(), id);
    }

    /// DEL, or the end of a key otherwise.
    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(id) = self.keys.remove(name) {
            self.table.unlinked(self.now.boot, id, self.decides);
            self.table.forget(self.now.boot, id, self.decides);
        }
    }

    /// RENAME: a hold is bound to its name.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) {
        if from == to || !self.keys.contains_key(from) {
            return;
        }
        self.remove(to);
        if let Some(id) = self.keys.remove(from) {
            self.table.unlinked(self.now.boot, id, self.decides);
            self.keys.insert(to.to_vec(), id);
        }
        self.check();
    }

    /// RESTORE REPLACE: the payload is read first, and then the old key goes.
    pub(super) fn restore(&mut self, name: &[u8], saved: Option<&SavedLock>) {
        let id = self.table.load(self.now.boot, lock_key(name), saved).expect("there is room");
        self.store(name, id);
        self.check();
    }

    /// LOCK.APPLY. Returns whether the record was understood.
    pub(super) fn told(&mut self, name: &[u8], words: &[&[u8]]) -> bool {
        let Some(record) = reading(|| parse_apply(words)) else {
            return false;
        };
        self.step(name, |table, now, key_ref, fx| match &record {
            Apply::Hold(mode, hold) => table.apply_hold(now.boot, key_ref, *mode, hold, fx),
            Apply::Ended(token) => table.apply_ended(now.boot, key_ref, *token, fx),
            Apply::Empty if key_ref.existing == Existing::Nothing => {
                table.apply_empty(now.boot, key_ref.lock_key)
            }
            Apply::Empty => Step { reply: (), change: Change::Nothing, record: Record::Nothing },
        });
        true
    }

    /// A client asks for the lock, as long as it takes if it waits.
    pub(super) fn ask(&mut self, name: &[u8], owner: &[u8], mode: Mode, waits: bool) {
        self.decides = true;
        self.clients += 1;
        let client = ClientId(self.clients);
        let wait = waits.then_some(Wait::Block(Block { client, until: Some(self.now.boot.plus_ms(500)) }));
        let ask = Ask {
            owner,
            owner_is_minted: false,
            lease_ms: 100,
            mode,
            is_reentrant: false,
            binding: Binding::NONE,
            wait,
            client: Some(client),
            bind_to: None,
            must_be_explicit: false,
            cannot_confirm: false,
        };
        let before = self.table.last_token();
        let reply = self.step(name, |table, now, key_ref, fx| {
            table.acquire(now, key_ref, &ask, &mut |_| Decision::Granted, fx)
        });
        match reply {
            Acquired::Granted(token) => {
                let own =
                    self.saved(name).and_then(|lock| lock.holds.into_iter().find(|h| *h.owner == *owner));
                assert_eq!(own.map(|own| own.token), Some(token), "a grant without a hold");
            }
            // G4, G14: a request that is refused or waits has minted nothing for itself.
            Acquired::Waiting(_) => assert!(waits && self.table.waiters() > 0),
            Acquired::Busy | Acquired::Refused(_) => assert!(self.table.last_token() >= before),
        }
    }

    /// Does all due work, as the event loop does.
    pub(super) fn pump(&mut self) {
        self.decides = true;
        self.table.let_orphaned_run(self.now.boot);
        for _ in 0..PUMP_STEPS_MAX {
            let due = self.table.due(self.now.boot, true);
            let Some(task) = due.or_else(|| self.table.next_task()) else {
                return self.check();
            };
            self.perform(task);
        }
        panic!("G3: the pump never ends");
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::TimeOut(waiter) => self.table.time_out(waiter, &mut Effects::default()),
            Task::Expire(at, id) if self.table.stands_for(self.existing(&at.name), id) => {
                self.settle(&at.name, Some(id));
            }
            Task::Expire(_, id) => self.table.lost(self.now.boot, id, self.now.boot.plus_ms(1_000)),
            Task::Settle(at) => self.settle(&at.name, None),
            Task::AskAgain | Task::Multi(_) | Task::ReplicateAgain(..) | Task::Revoke(..) => {}
        }
    }

    fn settle(&mut self, name: &[u8], due: Option<LockId>) {
        self.step(name, |table, now, key_ref, fx| {
            table.settle(now, key_ref, due, &mut |_| Decision::Granted, fx)
        });
    }

    /// Time passes.
    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.now.boot = self.now.boot.plus_ms(ms);
    }

    /// Every owner releases its holds. G10: that is all it takes.
    pub(super) fn release_all(&mut self) {
        for (name, id) in self.keys.clone() {
            let Some(saved) = self.table.save(self.now.boot, id) else { continue };
            for hold in saved.holds.iter().filter(|hold| hold.count <= 3 && hold.left_ms > 0) {
                for _ in 0..hold.count {
                    let is_released = self.step(&name, |table, now, key_ref, fx| {
                        let admission: crate::lock::table::Admission<'_> = &mut |_| Decision::Granted;
                        let asked = Release { owner: &hold.owner, token: None };
                        table.release(now, key_ref, &asked, admission, fx)
                    });
                    assert_eq!(is_released, Some(true), "{hold:?} cannot be released");
                }
            }
        }
        self.pump();
    }

    /// G3: when every lease and every wait has ended, and every connection closed, nothing is left but empty locks.
    pub(super) fn let_all_end(&mut self) {
        for _ in 0..3 {
            self.pass_ms(LEASE_MS_MAX + 2);
            self.pump();
            // The leases that these kept alive run from here.
            for client in 1..=self.clients {
                self.table.disconnected(self.now.boot, ClientId(client));
            }
        }
        let counts = (self.table.holds(), self.table.waiters());
        let left: Vec<_> = self.keys.keys().map(|name| self.saved(name)).collect();
        assert_eq!(counts, (0, 0), "holds and waiters are left: {left:?}");
        let names: Vec<Vec<u8>> = self.keys.keys().cloned().collect();
        names.iter().for_each(|name| self.remove(name));
        self.check();
        assert_eq!(self.table.locks(), 0, "locks are left");
    }

    pub(super) fn check(&self) {
        let keys = self.keys.iter().map(|(name, &id)| (lock_key(name), id));
        if let Err(wrong) = self.table.check(keys) {
            panic!("{wrong}");
        }
    }

    /// G13: a snapshot, and a rewritten append-only file, bring back the same locks.
    pub(super) fn check_copies(&self) {
        let (mut loaded, mut replayed) = (Self::default(), Self::default());
        for name in self.keys.keys() {
            let saved = self.saved(name);
            let mut blocks = Vec::new();
            write(name, saved.as_ref(), |block| blocks.push(block.to_vec()));
            let mut blocks = blocks.into_iter();
            let read = read(name, || blocks.next());
            assert_eq!(read.as_ref(), Ok(&saved), "a snapshot says something else");
            loaded.restore(name, saved.as_ref());
            match &saved {
                None => assert!(replayed.told(name, &[b"EMPTY"])),
                Some(lock) => replayed.rewritten(name, lock),
            }
            for copy in [&loaded, &replayed] {
                assert_eq!(copy.saved(name), saved, "a copy is different");
            }
        }
    }

    /// The records of a lock in a rewritten file, as `src/redis/replicate.rs` writes them.
    fn rewritten(&mut self, name: &[u8], lock: &SavedLock) {
        let mode = match lock.mode {
            Mode::Exclusive => "EXCLUSIVE".to_owned(),
            Mode::Shared => "SHARED".to_owned(),
            Mode::Limit(limit) => limit.to_string(),
        };
        for hold in &lock.holds {
            let cut = hold.binding.ephemeral_ms.map_or("NO".to_owned(), |ms| ms.to_string());
            let kept = match (hold.binding.is_keepalive, hold.binding.is_running) {
                (false, _) => "NO",
                (true, is_running) => ["YES", "RUNS"][usize::from(is_running)],
            };
            let [token, left, count] =
                [hold.token.get(), hold.left_ms, hold.count.into()].map(|number| number.to_string());
            let said = [&token, &left].map(String::as_bytes);
            let more = [&mode, &count, &cut].map(String::as_bytes);
            let kept = kept.as_bytes();
            let words = [b"HOLD", said[0], said[1], &hold.owner, more[0], more[1], more[2], kept];
            assert!(self.told(name, &words), "an own record is not understood: {hold:?}");
        }
    }
}
