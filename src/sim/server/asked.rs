//! The simulated server's answers to the engine that runs on it.

use std::cell::Cell;

use crate::command::internal::words_of;
use crate::engine::blocked_clients::Reply;
use crate::engine::flags::{Flags, Level};
use crate::engine::server::{self, Fact, MINTED_OWNER_BYTES, Part, Server, SlotOwner, To, Topic};
use crate::engine::shared::Shared;
use crate::engine::state::State;
use crate::lock::confirm::{ReplicaName, Seen};
use crate::lock::effect::{Event, Existing, LockId};
use crate::lock::table::Candidate;
use crate::lock::types::{ClientId, LockKey, LockKeyBuf, Moment, Now};
use crate::sim::server::inside::{At, Clockwork, Entry, Published, Told, Value, place};
use crate::sim::server::sim::Sim;

/// An open key.
pub(crate) struct OpenKey<'a> {
    sim: &'a Sim,
    at: At,
    is_changed: Cell<bool>,
}

impl Drop for OpenKey<'_> {
    fn drop(&mut self) {
        if self.is_changed.get() {
            self.sim.signal(&self.at);
        }
    }
}

impl server::Key for OpenKey<'_> {
    fn existing(&self) -> Existing {
        let inside = self.sim.inside.borrow();
        let entry = inside.keys.get(&self.at).filter(|entry| !self.sim.hides(&inside, &self.at, entry));
        match entry.map(|entry| &entry.value) {
            None => Existing::Nothing,
            Some(Value::Lock(lock)) => Existing::Lock(*lock),
            Some(Value::Text(_)) => Existing::Other,
        }
    }

    fn string_ttl_ms(&self) -> Option<u64> {
        let inside = self.sim.inside.borrow();
        let entry = inside.keys.get(&self.at).filter(|entry| matches!(entry.value, Value::Text(_)))?;
        entry.until_ms.map(|until| until.saturating_sub(inside.wall_us / 1000))
    }

    fn string(&self) -> Vec<u8> {
        match self.sim.inside.borrow().keys.get(&self.at).map(|entry| &entry.value) {
            Some(Value::Text(text)) => text.clone(),
            _ => Vec::new(),
        }
    }

    fn live_until(&self, wall_ms: u64) {
        self.touch();
        let mut inside = self.sim.inside.borrow_mut();
        inside.keys.get_mut(&self.at).expect("a key that is there").until_ms = Some(wall_ms);
    }

    fn persist(&self) {
        self.sim.may_call_back();
        let mut inside = self.sim.inside.borrow_mut();
        inside.keys.get_mut(&self.at).expect("a key that is there").until_ms = None;
    }

    fn touch(&self) {
        self.sim.may_call_back();
        self.is_changed.set(true);
    }

    fn store(&self, lock: LockId) {
        self.is_changed.set(true);
        self.sim.put(&self.at, Entry { value: Value::Lock(lock), until_ms: None });
    }

    fn delete(&self) {
        self.is_changed.set(true);
        self.sim.take(&self.at);
    }
}

impl Server for Sim {
    type Name<'a> = &'a [u8];
    type NameBuf<'a> = Vec<u8>;
    type Key<'a> = OpenKey<'a>;
    type Blocked = u64;
    type Alarm = Clockwork;

    fn with<R>(&self, use_it: impl FnOnce(&mut State<u64, Clockwork>) -> R) -> Option<R> {
        // A caller further up is a bug of the engine, which a real server would hide.
        Some(use_it(&mut self.state.try_borrow_mut().expect("nobody is within the engine")))
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn boot(&self) -> Moment {
        if self.us_per_look.get() > 0 {
            self.inside.borrow_mut().boot_us += self.us_per_look.get();
        }
        Moment(self.inside.borrow().boot_us)
    }

    fn wall_us(&self) -> u64 {
        self.inside.borrow().wall_us
    }

    fn now(&self) -> Now {
        Now { boot: self.boot(), wall_us: self.wall_us() }
    }

    fn run_soon(&self, _is_late: bool) {
        self.may_call_back();
        self.inside.borrow_mut().pump_is_due = true;
    }

    fn new_owner(&self) -> [u8; MINTED_OWNER_BYTES] {
        let mut inside = self.inside.borrow_mut();
        inside.last_owner += 1;
        let text = format!("00000000-0000-4000-8000-{:012}", inside.last_owner);
        text.as_bytes().try_into().expect("as long as a UUID")
    }

    fn flags(&self) -> Flags {
        self.flags.get()
    }

    fn is_paused(&self) -> bool {
        self.may_call_back();
        self.is_paused.get()
    }

    fn refuses_writes(&self) -> bool {
        self.refuses_writes.get()
    }

    fn replicas(&self) -> Option<(u64, Vec<Seen>)> {
        self.may_call_back();
        let inside = self.inside.borrow();
        if self.flags.get().is_replica || inside.is_silent {
            return None;
        }
        let seen =
            |&(name, acknowledged): &(&str, u64)| Seen { name: ReplicaName(name.into()), acknowledged };
        Some((inside.offset, inside.replicas.values().map(seen).collect()))
    }

    fn listen(&self, to: Topic) -> bool {
        let mut inside = self.inside.borrow_mut();
        match to {
            Topic::Locks => inside.listens += 1,
            Topic::Turns => inside.tells_of_turns = true,
            Topic::Replicas if inside.is_deaf => return false,
            Topic::Replicas => inside.tells_of_turns = true,
        }
        true
    }

    fn ignore_turns(&self) {
        self.inside.borrow_mut().tells_of_turns = false;
    }

    fn may_evict(&self) -> bool {
        self.inside.borrow().evicts
    }

    fn has_listeners(&self) -> bool {
        !self.inside.borrow().is_unheard
    }

    fn log(&self, _level: Level, text: &str) {
        self.may_call_back();
        self.inside.borrow_mut().log.push(text.to_owned());
    }

    fn lock_key<'a>(&self, name: &'a [u8]) -> LockKey<'a>
    where
        'a: 'a,
    {
        LockKey { db: self.db.get(), name }
    }

    fn name_at(&self, lock_key: &LockKeyBuf) -> Option<Vec<u8>> {
        self.db.set(lock_key.db);
        Some(lock_key.name.to_vec())
    }

    fn name(name: &Vec<u8>) -> &[u8] {
        name
    }

    fn open(&self, name: &[u8], to: To) -> OpenKey<'_> {
        self.may_call_back();
        let at = place(self.db.get(), name);
        if matches!(to, To::Write) && self.is_over(&at) {
            self.expire(&at);
        }
        OpenKey { sim: self, at, is_changed: Cell::new(false) }
    }

    fn keys_of(&self, words: &[&[u8]]) -> Vec<usize> {
        (1..words.len().min(2)).collect()
    }

    fn has_all(&self, names: &[&[u8]]) -> bool {
        self.may_call_back();
        let inside = self.inside.borrow();
        let is_here = |name: &&[u8]| inside.slots.is_empty() || inside.is_ours(&place(self.db.get(), name));
        names.iter().all(is_here)
    }

    fn sees_all_keys(&self) -> bool {
        !self.inside.borrow().sees_first_key_alone
    }

    fn slot_owner(&self, name: &[u8]) -> SlotOwner {
        self.may_call_back();
        let inside = self.inside.borrow();
        if inside.is_cluster_down {
            return SlotOwner::Unknown;
        }
        let is_ours = inside.slots.is_empty() || inside.is_ours(&place(self.db.get(), name));
        if is_ours { SlotOwner::Ours } else { SlotOwner::Others }
    }

    fn node_of(&self, slot: u16) -> Option<String> {
        self.may_call_back();
        self.inside.borrow().has_left(slot).then(|| "host:1".to_owned())
    }

    fn replicate(&self, fact: Fact<'_, &[u8]>) {
        self.may_call_back();
        // A real server aborts.
        let may_write = !self.is_paused.get() || self.inside.borrow().running.is_some();
        assert!(may_write, "{fact:?} is written outside of a command, while the server is paused");
        match fact {
            Fact::AsAsked => {
                let words = self.inside.borrow().running.clone();
                self.propagate(self.db.get(), words.expect("a command runs"));
            }
            Fact::Hold(name, mode, hold) => {
                let (token, left_ms) = (hold.token.get().to_string(), hold.left_ms.to_string());
                let said = words_of(mode, hold).map(|words| words.map(|word| word.to_string()));
                let (token, left_ms) = (token.as_bytes(), left_ms.as_bytes());
                let mut words = vec![&b"LOCK.APPLY"[..], name, b"HOLD", token, left_ms, &hold.owner];
                words.extend(said.iter().flatten().map(String::as_bytes));
                self.tell(&words);
            }
            Fact::Ended(name, token) => {
                self.tell(&[b"LOCK.APPLY", name, b"ENDED", token.get().to_string().as_bytes()]);
            }
            Fact::Deleted(name) => self.tell(&[b"DEL", name]),
            Fact::Lives(name, wall_ms) => self.tell(&[b"PEXPIREAT", name, wall_ms.to_string().as_bytes()]),
            Fact::Tick { last, replicated } => {
                let words = [b"LOCK.TICK".to_vec(), last.to_string().into(), replicated.to_string().into()];
                self.inside.borrow_mut().file.push(Told { db: 0, words: words.into() });
            }
            Fact::FreshStart(last) => self.tell(&[b"LOCK.TICK", last.to_string().as_bytes(), b"0"]),
        }
    }

    fn ask_replicas(&self) {
        self.may_call_back();
        self.inside.borrow_mut().asked += 1;
    }

    fn publish(&self, name: &[u8], event: Event) {
        self.may_call_back();
        let at = place(self.db.get(), name);
        self.inside.borrow_mut().published.push(Published::Lock(at, event));
    }

    fn client(&self) -> Option<ClientId> {
        self.client.get().map(ClientId)
    }

    fn is_connected(&self, client: ClientId) -> bool {
        self.inside.borrow().connected.contains(&client.0)
    }

    fn may_acquire(&self, who: Candidate<'_>) -> bool {
        !self.inside.borrow().forbidden.contains(&who.client.0)
    }

    fn block(&self) -> Option<u64> {
        self.may_call_back();
        let client = self.client.get().filter(|_| !self.flags.get().denies_blocking)?;
        let mut inside = self.inside.borrow_mut();
        if inside.blocks_nobody {
            return None;
        }
        let handle = inside.free_handles.pop().unwrap_or_else(|| {
            inside.last_handle += 1;
            inside.last_handle
        });
        inside.blocked.insert(handle, client);
        inside.has_blocked = Some(handle);
        Some(handle)
    }

    fn unblock(&self, blocked: u64, reply: Option<Reply>) {
        self.may_call_back();
        let mut inside = self.inside.borrow_mut();
        assert!(inside.blocked.contains_key(&blocked), "G7: {blocked} was let go of before");
        let is_new = inside.unblocked.iter().all(|(other, _)| *other != blocked);
        assert!(is_new, "G7: {blocked} is answered twice");
        inside.unblocked.push_back((blocked, reply));
    }

    fn has_dropped_reply(&self, client: ClientId, _since: Moment) -> bool {
        self.may_call_back();
        self.inside.borrow().closing.get(&client.0) == Some(&false)
    }

    fn close(&self, client: ClientId) {
        self.may_call_back();
        self.inside.borrow_mut().connected.remove(&client.0);
    }

    fn reply(&self, part: Part<'_>) {
        self.inside.borrow_mut().reply.push(part.into());
    }
}
