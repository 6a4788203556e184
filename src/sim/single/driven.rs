//! One simulated server with the engine that ships, as the tests of the core drive it: models, random lives, stories.
//!
//! It acts only when asked to: answers reach their clients, and the pump runs, when a test says so.

use std::cell::{Ref, RefMut};
use std::rc::Rc;

use crate::command::internal::words_of;
use crate::engine::blocked_clients::{Reply, Stage};
use crate::engine::flags::Flags;
use crate::engine::server::{MINTED_OWNER_BYTES, Server as _};
use crate::engine::{confirm, pump, quarantine, server_events, type_callbacks};
use crate::lock::codec::SavedLock;
use crate::lock::effect::{Answer, Event, LockId};
use crate::lock::table::{Limits, Table};
use crate::lock::types::{LockKey, LockKeyBuf, Token};
use crate::sim::server::inside::{PartBuf, Published, Slot, Told, Value, place};
use crate::sim::server::keys::as_text;
use crate::sim::server::sim::{Said, set_number};
use crate::sim::single::server::Server;

/// The reply to a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Replied {
    Error(String),
    Integer(u64),
    Null,
    Ok,
    /// A minted owner and its token.
    Owner(Vec<u8>, u64),
    /// The client is blocked; the number of the block.
    Later(u64),
}

/// The progress of a blocked client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    InQueue,
    /// It has this, and is notified once the replicas have acknowledged it.
    Confirming(Option<Answer>),
    /// It has this answer. `None` if the server has released it in another way.
    Answered(Option<Answer>),
}

/// More runs than the pump ever needs.
const RUNS_MAX: usize = 1_000;

impl Server {
    pub(crate) fn table(&self) -> Ref<'_, Table> {
        Ref::map(self.sim.state(), |state| &state.table)
    }

    pub(crate) fn table_mut(&self) -> RefMut<'_, Table> {
        RefMut::map(self.sim.state_mut(), |state| &mut state.table)
    }

    /// Sends a client's command.
    pub(crate) fn ask(&mut self, client: u64, db: u32, words: &[&str]) -> Result<Replied, String> {
        self.sim.connect(client);
        let words: Rc<[Vec<u8>]> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        match self.sim.asks(client, db, words.clone()) {
            Said::Later(handle) => Ok(Replied::Later(handle)),
            Said::Now(mut parts) => match (parts.len(), parts.pop()) {
                (1, Some(PartBuf::Integer(number))) => Ok(Replied::Integer(number)),
                (1, Some(PartBuf::Error(text))) => Ok(Replied::Error(text)),
                (1, Some(PartBuf::Null)) => Ok(Replied::Null),
                (1, Some(PartBuf::Ok)) => Ok(Replied::Ok),
                (3, Some(PartBuf::Integer(token))) => match parts.pop() {
                    Some(PartBuf::Bytes(owner)) => Ok(Replied::Owner(owner, token)),
                    part => Err(format!("{words:?} is replied {part:?}")),
                },
                (_, last) => Err(format!("{words:?} is replied {parts:?} {last:?}")),
            },
        }
    }

    /// Applies a fact from a primary or a file, which must change something.
    pub(crate) fn obeys(&mut self, told: &Told) -> Result<(), String> {
        self.sim.obeys(told)
    }

    /// Takes the records for replicas since the last call.
    pub(crate) fn take_stream(&self) -> Vec<Told> {
        std::mem::take(&mut self.sim.inside.borrow_mut().stream)
    }

    /// Takes the records for its file since then.
    pub(crate) fn take_file(&self) -> Vec<Told> {
        std::mem::take(&mut self.sim.inside.borrow_mut().file)
    }

    /// Takes the events of locks since then.
    pub(crate) fn take_events(&self) -> Vec<(u32, Vec<u8>, Event)> {
        let mut inside = self.sim.inside.borrow_mut();
        inside.log.clear();
        let published = std::mem::take(&mut inside.published);
        let of_lock = |published| match published {
            Published::Lock((db, name), event) => Some((db, name.to_vec(), event)),
            Published::Key(..) | Published::All(_) => None,
        };
        published.into_iter().filter_map(of_lock).collect()
    }

    /// Takes the keys that changed since then, as clients that keep copies of them see them; `None`: all of them.
    pub(crate) fn take_changed(&self) -> Vec<Option<Vec<u8>>> {
        std::mem::take(&mut self.sim.inside.borrow_mut().changed).into_iter().collect()
    }

    /// Returns values of emptied databases that no thread has freed yet.
    pub(crate) fn unfreed(&self) -> Vec<LockId> {
        self.sim.unfreed.iter().filter_map(Value::lock).collect()
    }

    /// Frees them as a thread does, and lets the engine free their dead locks.
    pub(crate) fn free(&mut self) {
        self.sim.free_late();
        let decides = self.sim.flags.get().decides();
        while !pump::free_dead_locks(&self.sim, decides) {}
    }

    /// Returns the progress of the client that is blocked under this number.
    pub(crate) fn progress(&self, handle: u64) -> Progress {
        let answer = |reply: &Reply| match reply {
            Reply::Answer(answer) => Some(answer.clone()),
            Reply::Renewed(_) => None,
        };
        match self.sim.state().clients.stage(handle) {
            Some(Stage::InQueue(_)) => Progress::InQueue,
            Some(Stage::Confirming(_, reply)) => Progress::Confirming(answer(reply)),
            Some(Stage::Paced(reply)) => Progress::Answered(answer(reply)),
            Some(Stage::Answered) | None => {
                let inside = self.sim.inside.borrow();
                let own = inside.unblocked.iter().find(|(other, _)| *other == handle);
                Progress::Answered(own.and_then(|(_, reply)| reply.as_ref()).and_then(answer))
            }
        }
    }

    /// Closes the connection of a client. A reply that was sent and not read is lost with it.
    pub(crate) fn close(&mut self, client: u64) {
        self.sim.disconnect(client);
        self.send(Some(client));
    }

    pub(crate) fn unblock(&mut self, client: u64) {
        self.sim.client_unblock(client);
        self.sim.end_turn();
    }

    /// Delivers answers to clients: to all, or to one of them.
    pub(crate) fn send(&mut self, only: Option<u64>) {
        let is_meant = |(handle, _): &(u64, Option<Reply>)| {
            let inside = self.sim.inside.borrow();
            only.is_none_or(|client| inside.blocked.get(handle) == Some(&client))
        };
        let all = std::mem::take(&mut self.sim.inside.borrow_mut().unblocked);
        let (now, later): (Vec<_>, Vec<_>) = all.into_iter().partition(is_meant);
        self.sim.inside.borrow_mut().unblocked = now.into();
        self.sim.send_answers();
        self.sim.inside.borrow_mut().unblocked.extend(later);
        self.sim.answers.clear();
    }

    /// Returns true if the server still blocks a client under this number.
    pub(crate) fn is_blocked(&self, handle: u64) -> bool {
        self.sim.inside.borrow().blocked.contains_key(&handle)
    }

    /// Returns true if the client waits for replicas, and the holds that its reply will name then, or already names.
    pub(crate) fn owed(&self, handle: u64) -> (bool, Vec<(LockKeyBuf, Token)>) {
        let mut holds = Vec::new();
        let mut note = |reply: &Reply| {
            reply.for_each_hold(|lock_key, token| holds.push((lock_key.to_owned(), token)));
        };
        let is_confirming = match self.sim.state().clients.stage(handle) {
            Some(Stage::Confirming(_, reply)) => {
                note(reply);
                true
            }
            Some(Stage::Paced(reply)) => {
                note(reply);
                false
            }
            Some(Stage::Answered) => {
                let inside = self.sim.inside.borrow();
                let own = inside.unblocked.iter().find(|(other, _)| *other == handle);
                own.and_then(|(_, reply)| reply.as_ref()).into_iter().for_each(note);
                false
            }
            Some(Stage::InQueue(_)) | None => false,
        };
        (is_confirming, holds)
    }

    /// Does the work for confirmations, before the event loop sleeps.
    pub(crate) fn looks_at_replicas(&self) {
        if self.sim.shared().hears_replicas.is_set() {
            confirm::turn(&self.sim);
        }
    }

    /// Returns true if the pump will run unprompted for all pending work: now, if that needs no time to pass.
    pub(crate) fn is_pump_asked(&self) -> bool {
        if self.sim.inside.borrow().pump_is_due {
            return true;
        }
        let (now, state) = (self.sim.boot(), self.sim.state());
        let needed = if state.has_work() { Some(now) } else { state.table.next_deadline(true) };
        needed.is_none_or(|needed| state.wake.alarm.at.is_some_and(|at| at <= needed.max(now)))
    }

    /// Runs the pump as often as it asks for it. Returns false if that never ends.
    pub(crate) fn pump(&self) -> bool {
        let now = self.sim.boot();
        let goes_off = {
            let alarm = &mut self.sim.state_mut().wake.alarm.at;
            alarm.take_if(|at| *at <= now).is_some()
        };
        if goes_off {
            server_events::woken(&self.sim);
        }
        self.sim.inside.borrow_mut().pump_is_due = true;
        for _ in 0..RUNS_MAX {
            if !std::mem::take(&mut self.sim.inside.borrow_mut().pump_is_due) {
                return true;
            }
            pump::run(&self.sim);
        }
        false
    }

    /// Has the replicas acknowledge everything.
    pub(crate) fn acknowledges(&self) {
        let mut inside = self.sim.inside.borrow_mut();
        let offset = inside.offset;
        inside.replicas.values_mut().for_each(|(_, acknowledged)| *acknowledged = offset);
    }

    /// Sets whether grants must be confirmed, by one replica.
    pub(crate) fn set_confirms(&self, confirms: bool) {
        let settings = &self.sim.shared().settings;
        settings.set_confirm(u8::from(confirms));
        set_number(settings, "group-size", 2);
        set_number(settings, "confirm-timeout", 60_000);
        self.sim.inside.borrow_mut().replicas.insert(1, ("replica:1", 0));
        server_events::settings_changed(&self.sim, true);
        confirm::replica_changed(&self.sim);
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        self.sim.shared().settings.set_limits(limits);
        server_events::settings_changed(&self.sim, true);
    }

    /// Sets the quarantine, and applies it as a start does if `is_start`.
    pub(crate) fn set_quarantine(&self, length_ms: u64, is_start: bool) {
        let settings = &self.sim.shared().settings;
        set_number(settings, "quarantine", length_ms as i64);
        server_events::settings_changed(&self.sim, true);
        if is_start {
            quarantine::begin(&self.sim, "a test says so");
        }
    }

    /// Sets whether the server refuses writes, or is even paused.
    pub(crate) fn set_writes(&self, are_refused: bool, is_paused: bool) {
        self.sim.refuses_writes.set(are_refused);
        self.sim.is_paused.set(is_paused);
    }

    pub(crate) fn forbid(&self, client: u64, is_forbidden: bool) {
        let mut inside = self.sim.inside.borrow_mut();
        if is_forbidden {
            inside.forbidden.insert(client);
        } else {
            inside.forbidden.remove(&client);
        }
    }

    /// Moves the slot of a key to another server, or back.
    pub(crate) fn set_elsewhere(&self, name: &'static str, is_elsewhere: bool) {
        let mut inside = self.sim.inside.borrow_mut();
        inside.slots.retain(|(other, _)| *other != name);
        inside.slots.extend(is_elsewhere.then_some((name, Slot::Elsewhere)));
    }

    /// RESTORE REPLACE of this, which was dumped under this name.
    pub(crate) fn restore(
        &mut self,
        (db, name): (u32, &str),
        payload: (&str, Option<&SavedLock>),
    ) -> Result<Replied, String> {
        let payload = as_text(payload.0.as_bytes(), payload.1);
        self.ask(0, db, &["RESTORE", name, &payload])
    }

    /// Restores a payload past its time: it is read, and no key comes to hold it. Returns true if a key was there.
    pub(crate) fn restore_too_late(
        &self,
        (db, name): (u32, &str),
        saved: Option<&SavedLock>,
    ) -> Result<bool, String> {
        let sim = &self.sim;
        let lock = type_callbacks::load(sim, LockKey { db, name: name.as_bytes() }, saved)?;
        let at = place(db, name.as_bytes());
        let was_there = sim.take(&at).is_some();
        if was_there {
            sim.signal(&at);
            sim.propagate(db, [b"DEL".to_vec(), at.1.to_vec()].into());
        }
        type_callbacks::freed(sim, lock);
        Ok(was_there)
    }

    /// Returns the next owner that it mints. No two servers mint the same.
    pub(crate) fn next_owner(&self) -> [u8; MINTED_OWNER_BYTES] {
        let next = self.sim.new_owner();
        self.sim.inside.borrow_mut().last_owner -= 1;
        next
    }

    /// Returns the number of owners that it has minted.
    pub(crate) fn owners(&self) -> u64 {
        self.sim.inside.borrow().last_owner
    }

    pub(crate) fn set_owners(&self, owners: u64) {
        self.sim.inside.borrow_mut().last_owner = owners;
    }

    /// Makes this server load everything that `primary` has, as a replica does.
    pub(crate) fn synchronise(&mut self, primary: &Self) -> Result<(), String> {
        let snapshot = primary.sim.save();
        self.sim.synchronise(&snapshot)?;
        // The pump of the loading server has nothing to decide.
        self.pump();
        Ok(())
    }

    /// Begins an append-only file. Returns its rewritten part: the commands that name all current holds.
    pub(crate) fn begin_file(&self) -> Vec<Told> {
        let sim = &self.sim;
        let flags = sim.flags.get();
        sim.flags.set(Flags { has_aof: true, ..flags });
        server_events::forked(sim);
        let keys: Vec<_> = sim.inside.borrow().keys.iter().map(|(at, e)| (at.clone(), e.clone())).collect();
        let mut told = Vec::new();
        for ((db, name), entry) in keys {
            let mut tell = |words: &[&[u8]]| {
                told.push(Told { db, words: words.iter().map(|word| word.to_vec()).collect() })
            };
            match entry.value {
                Value::Text(text) => tell(&[b"SET", &name, &text]),
                Value::Lock(lock) => match type_callbacks::saved(sim, lock) {
                    None => tell(&[b"LOCK.APPLY", &name, b"EMPTY"]),
                    Some(SavedLock { mode, holds }) => holds.iter().for_each(|hold| {
                        let numbers = [hold.token.get(), hold.left_ms].map(|number| number.to_string());
                        let how = words_of(mode, hold).map(|words| words.map(|word| word.to_string()));
                        let [token, left] = [&numbers[0], &numbers[1]].map(|number| number.as_bytes());
                        let mut words = vec![&b"LOCK.APPLY"[..], &name, b"HOLD", token, left, &hold.owner];
                        words.extend(how.iter().flatten().map(String::as_bytes));
                        tell(&words);
                    }),
                },
            }
            if let Some(until) = entry.until_ms {
                tell(&[b"PEXPIREAT", &name, until.to_string().as_bytes()]);
            }
        }
        told
    }

    /// Makes another server the primary.
    pub(crate) fn demote(&self) {
        self.sim.takes_role(true);
        while !pump::reject_waiters(&self.sim, self.sim.boot()) {}
    }

    /// Makes this server the primary.
    pub(crate) fn promote(&self) {
        self.sim.takes_role(false);
    }
}
