//! Random lives of all locks, compared with a map that keeps everything as it is.

mod lives;
mod random;

use std::collections::{BTreeMap, BTreeSet};

use super::record::UNTIL_MAX;
use super::slab::SLOT_BITS;
use super::store::{Due, Locks, Spilled, tick};
use super::{LockId, NewHold};
use crate::lock::types::{Binding, ClientId, LEASE_MS_MAX, LockKey, LockKeyBuf, Mode, Moment, Token};
use random::Random;

/// A lock that `ann` holds with this token.
pub(super) fn held_by_ann(locks: &mut Locks, token: u64, client: Option<ClientId>) -> LockId {
    let token = Token::new(token).expect("valid");
    let new = NewHold { owner: b"ann", token, lease_ms: 100, client, binding: Binding::NONE };
    locks.insert(Moment(9_000_000), LockKey { db: 0, name: b"k" }, Some(&new)).expect("there is room")
}

/// The number of random runs.
const LIVES: u64 = 8;

/// The expected state of a hold.
#[derive(Clone, PartialEq, Debug)]
struct OwnHold {
    owner: Vec<u8>,
    token: Token,
    until: Moment,
    since: Moment,
    client: Option<ClientId>,
    /// Not to be returned as due before this moment.
    postponed: Option<Moment>,
}

/// The expected state of a lock.
#[derive(Clone, PartialEq, Debug)]
struct OwnLock {
    lock_key: LockKeyBuf,
    hold: Option<OwnHold>,
}

/// The locks, their expected state, and the dead numbers.
struct World {
    locks: Locks,
    own: BTreeMap<LockId, OwnLock>,
    dead: Vec<LockId>,
    now: Moment,
    token: u64,
    client: u64,
    random: Random,
}

/// Compares an age, which is reported within a millisecond unless it was ever beyond what 31 bits hold.
fn same_age(told_ms: u64, since: Moment, now: Moment) -> bool {
    let age_ms = now.ms_since(since);
    age_ms >= 1 << 30 || (told_ms <= age_ms && age_ms - told_ms <= 1)
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Moment(1_000_000);
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Connections cross the half of their numbers on the way.
        let client = (1 << 32) - 2_000;
        Self {
            locks: Locks::default(),
            own: BTreeMap::new(),
            dead: Vec::new(),
            now,
            token: 7,
            client,
            random,
        }
    }

    fn any(&mut self) -> Option<LockId> {
        let (index, generation) = (self.random.below(1 << 12) as u32, self.random.below(256) as u8);
        let from = LockId::new(self.locks.epoch, index, generation);
        let found = self.own.range(from..).next().or_else(|| self.own.iter().next());
        found.map(|(id, _)| *id)
    }

    fn new_client(&mut self) -> Option<ClientId> {
        self.client += self.random.below(3);
        // The half number 0 means "unknown".
        (self.random.below(5) > 0 && self.client as u32 != 0).then_some(ClientId(self.client))
    }

    fn new_hold(&mut self) -> (OwnHold, u64) {
        let lease_ms = self.random.lease_ms();
        self.token += 1 + self.random.below(1 << 30);
        let hold = OwnHold {
            owner: self.random.owner(),
            token: Token::new(self.token).expect("small"),
            until: self.now.plus_ms(lease_ms),
            since: self.now,
            client: self.new_client(),
            postponed: None,
        };
        (hold, lease_ms)
    }

    fn insert(&mut self) {
        let lock_key = self.random.lock_key();
        let (hold, lease_ms) = self.new_hold();
        let hold = (self.random.below(6) > 0).then_some(hold);
        let new = hold.as_ref().map(|hold| NewHold {
            owner: &hold.owner,
            token: hold.token,
            lease_ms,
            client: hold.client,
            binding: Binding::NONE,
        });
        let id = self.locks.insert(self.now, lock_key.as_key(), new.as_ref()).expect("there is room");
        let before = self.own.insert(id, OwnLock { lock_key, hold });
        assert!(before.is_none() && !self.dead.iter().rev().take(30).any(|dead| *dead == id), "{id:?} twice");
        self.look(id);
    }

    fn begin(&mut self, id: LockId) {
        let (hold, lease_ms) = self.new_hold();
        let lock_key =
            if self.random.below(4) == 0 { self.random.lock_key() } else { self.own[&id].lock_key.clone() };
        let new = NewHold {
            owner: &hold.owner,
            token: hold.token,
            lease_ms,
            client: hold.client,
            binding: Binding::NONE,
        };
        self.locks.begin(id, self.now, lock_key.as_key(), &new);
        self.own.insert(id, OwnLock { lock_key, hold: Some(hold) });
    }

    fn end(&mut self, id: LockId) {
        let ended = self.locks.end(id, self.now);
        let own = self.own.get_mut(&id).and_then(|lock| lock.hold.take());
        assert_eq!(ended.map(|ended| ended.token), own.as_ref().map(|own| own.token));
        if let (Some(ended), Some(own)) = (ended, own) {
            assert!(same_age(ended.held_ms, own.since, self.now), "{ended:?} of {own:?} at {:?}", self.now);
        }
    }

    fn extend(&mut self, id: LockId) {
        let lease_ms = self.random.lease_ms();
        self.locks.extend(id, self.now, lease_ms);
        let (now, lock) = (self.now, self.own.get_mut(&id));
        if let Some(hold) = lock.and_then(|lock| lock.hold.as_mut()) {
            (hold.until, hold.postponed) = (now.plus_ms(lease_ms), None);
        }
    }

    fn note(&mut self, id: LockId) {
        let client = self.new_client();
        self.locks.note_shown(id, client);
        let Some(lock) = self.own.get_mut(&id) else { return };
        if let Some(hold) = &mut lock.hold {
            hold.client = client.or(hold.client);
        }
    }

    fn remove(&mut self, id: LockId) {
        let is_free = self.own[&id].hold.is_none();
        if self.random.below(2) == 0 {
            assert_eq!(self.locks.remove_free(id), is_free);
            if !is_free {
                return;
            }
        } else {
            self.locks.remove(id, self.now);
        }
        self.own.remove(&id);
        self.dead.push(id);
    }

    /// A dead number does nothing, unless its slot has lived through all generations and the number is alive again.
    fn use_the_dead(&mut self) {
        let Some(&id) = self.dead.get(self.random.below(self.dead.len().max(1) as u64) as usize) else {
            return;
        };
        if self.own.contains_key(&id) {
            return;
        }
        assert!(self.locks.get(id).is_none() && self.locks.hold(id).is_none());
        assert_eq!(self.locks.end(id, self.now), None);
        self.extend(id);
        self.note(id);
        self.locks.postpone(id, self.now);
        let (hold, lease_ms) = self.new_hold();
        let new =
            NewHold { owner: &hold.owner, token: hold.token, lease_ms, client: None, binding: Binding::NONE };
        self.locks.begin(id, self.now, LockKey { db: 0, name: b"dead" }, &new);
        self.locks.remove(id, self.now);
        assert!(self.locks.remove_free(id));
    }

    /// Has the pump handle some or all of the expired leases.
    fn work_off(&mut self) {
        let most = if self.random.below(2) == 0 { self.random.below(20) } else { u64::MAX };
        for _ in 0..most {
            match self.locks.due(self.now) {
                Due::Nothing => {
                    self.nothing_is_overdue();
                    return;
                }
                Due::AskAgain => {}
                Due::Lease(id) => self.is_over(id),
            }
        }
    }

    fn is_over(&mut self, id: LockId) {
        let hold = self.own[&id].hold.clone().expect("it is held");
        assert!(hold.until <= self.now, "{id:?} is told as over at {:?}: {hold:?}", self.now);
        assert!(self.locks.hold(id).is_some_and(|hold| hold.is_over(self.now)));
        match self.random.below(4) {
            0 => self.extend(id),
            1 => {
                let at = self.now.plus_ms(self.random.below(3_000));
                self.locks.postpone(id, at);
                let hold = self.own.get_mut(&id).and_then(|lock| lock.hold.as_mut());
                hold.expect("it is held").postponed = Some(at);
            }
            2 => {
                self.locks.remove(id, self.now);
                self.own.remove(&id);
                self.dead.push(id);
            }
            _ => self.end(id),
        }
    }

    /// A lookup finds the end of a lease in the first whole millisecond after it.
    fn nothing_is_overdue(&self) {
        for (id, lock) in &self.own {
            if let Some(hold) = &lock.hold {
                let at = hold.postponed.map_or(hold.until, |at| at.max(hold.until));
                assert!(tick(at.0) > self.now.0 / 1_000, "{id:?} was over at {at:?}, now {:?}", self.now);
            }
        }
    }

    fn pass_time(&mut self) {
        let us = match self.random.below(100) {
            0 => self.random.below(48) * 3_600_000_000 + self.random.below(1 << 32),
            1 if self.random.below(20) == 0 => self.random.below(60) * 86_400_000_000,
            2..40 => self.random.below(5_000_000),
            _ => self.random.below(1_500),
        };
        self.now = Moment(self.now.0 + us);
    }

    fn look(&self, id: LockId) {
        let (lock, own) = (self.locks.get(id).expect("alive"), &self.own[&id]);
        let lock_key = own.lock_key.as_key();
        assert_eq!(lock.lock_key().as_ref(), Some(&own.lock_key));
        assert!(lock.is_at(lock_key) && lock.db() == Some(lock_key.db));
        assert!(!lock.is_at(LockKey { db: lock_key.db + 1, ..lock_key }));
        let mut longer = b"0".to_vec();
        longer.extend_from_slice(lock_key.name);
        assert!(!lock.is_at(LockKey { name: &longer, ..lock_key }));
        assert!(self.locks.memory_of(id) >= own.hold.as_ref().map_or(0, |hold| hold.owner.len() / 3));
        let Some(hold) = lock.hold() else {
            assert!(own.hold.is_none(), "{own:?} is lost");
            return;
        };
        let own = own.hold.as_ref().expect("nobody should hold it");
        assert!(*hold.owner() == *own.owner && hold.is_of(&own.owner));
        let mut other = own.owner.clone();
        other[own.token.get() as usize % own.owner.len()] ^= 1 << (own.token.get() >> 9 & 7);
        assert!(
            !hold.is_of(&other)
                && !hold.is_of(&own.owner[1..])
                && !hold.is_of(&[&own.owner[..], b"0"].concat()),
            "{own:?}"
        );
        assert_eq!(hold.token(), own.token);
        assert_eq!(hold.client(), own.client, "the newest is {}", self.client);
        assert_eq!(hold.is_over(self.now), own.until <= self.now);
        assert_eq!(hold.left_ms(self.now), self.now.ms_until(own.until));
        assert_eq!(hold.ends_before(self.now, 5_000), own.until < self.now.plus_ms(5_000));
        assert!(same_age(hold.held_ms(self.now), own.since, self.now), "{own:?} at {:?}", self.now);
    }

    fn look_at_all(&self) {
        assert_eq!(self.locks.check(), Ok(()));
        let found: Vec<LockId> = self.locks.iter().map(|(id, _)| id).collect();
        assert!(found.iter().copied().collect::<BTreeSet<_>>().iter().eq(self.own.keys()));
        assert_eq!((found.len(), self.locks.len()), (self.own.len(), self.own.len()));
        assert_eq!(self.locks.holds(), self.own.values().filter(|lock| lock.hold.is_some()).count());
        for &id in self.own.keys() {
            self.look(id);
        }
        let ends = self.own.values().filter_map(|lock| lock.hold.as_ref());
        let ends = ends.map(|hold| hold.postponed.map_or(hold.until, |at| at.max(hold.until)));
        if let Some(first) = ends.min() {
            let next = self.locks.next_end().expect("something ends");
            assert!(tick(next.0) <= tick(first.0).max(self.now.0 / 1_000), "{next:?} is after {first:?}");
        }
    }

    fn step(&mut self, most: usize) {
        let is_full = self.own.len() >= most;
        match self.random.below(16) {
            0..=3 if !is_full => return self.insert(),
            4 => return self.pass_time(),
            5 => return self.work_off(),
            6 => return self.use_the_dead(),
            _ => {}
        }
        let Some(id) = self.any() else { return };
        match self.random.below(10) {
            0 | 1 => self.begin(id),
            2 => self.end(id),
            3 | 4 => self.extend(id),
            5 => self.note(id),
            6 | 7 => self.remove(id),
            _ => {}
        }
        if self.own.contains_key(&id) {
            self.look(id);
        }
    }

    /// Removes everything: no memory is left in use, and freed room is reused.
    fn finish(mut self, most: usize) {
        let ids: Vec<LockId> = self.own.keys().copied().collect();
        for id in ids {
            self.locks.remove(id, self.now);
        }
        self.own.clear();
        self.look_at_all();
        assert!(self.locks.is_empty() && self.locks.spilled.is_empty());
        assert!(self.locks.prefixes.uses().all(|uses| uses == 0));
        assert_eq!(self.locks.leases.next_tick(), None);
        self.now = self.now.plus_ms(3_000);
        while self.locks.due(self.now) != Due::Nothing {}
        assert!(self.locks.postponed.is_empty() && self.locks.next_end().is_none());
        let pages_max = 64 + most * 50 / 8_000;
        for number in 0..most {
            let name = format!("again:{number}");
            let id =
                self.locks.insert(self.now, LockKey { db: 0, name: name.as_bytes() }, None).expect("room");
            assert!(id.index() >> SLOT_BITS < pages_max as u32, "{id:?} is far out");
        }
    }
}

const PLACE: LockKey<'_> = LockKey { db: 3, name: b"lock:order:7" };

fn new_hold(owner: &[u8], token: u64, lease_ms: u64) -> NewHold<'_> {
    NewHold {
        owner,
        token: Token::new(token).expect("small"),
        lease_ms,
        client: None,
        binding: Binding::NONE,
    }
}

/// Ends all expired holds and returns their tokens, in the order in which they were found.
fn end_all(locks: &mut Locks, now: Moment) -> Vec<u64> {
    let mut tokens = Vec::new();
    loop {
        match locks.due(now) {
            Due::Nothing => return tokens,
            Due::AskAgain => {}
            Due::Lease(id) => {
                tokens.extend(locks.end(id, now).map(|ended| ended.token.get()));
                locks.remove(id, now);
            }
        }
    }
}

#[test]
fn leases_that_end_together_end_in_the_order_in_which_they_began() {
    for lease_ms in [1, 63, 64, 700, 4_096, 262_144, LEASE_MS_MAX] {
        let (mut locks, mut expected) = (Locks::default(), Vec::new());
        let end = Moment(5_000_000 + lease_ms * 1_000);
        for token in 1..=200 {
            // They begin at different times. Leases that end before are handled, so that the wheel turns.
            let begin = 5_000 + lease_ms * (token - 1) / 200;
            let now = Moment(begin * 1_000);
            let left_ms = now.ms_until(end);
            locks.insert(now, PLACE, Some(&new_hold(b"a", token, left_ms))).expect("room");
            locks.insert(now, PLACE, Some(&new_hold(b"b", 1_000 + token, 0))).expect("room");
            assert_eq!(end_all(&mut locks, now), [1_000 + token]);
            expected.push(token);
        }
        assert_eq!(end_all(&mut locks, Moment(end.0 - 1)), []);
        assert_eq!(end_all(&mut locks, end), expected, "leases of {lease_ms} ms");
        assert!(locks.is_empty());
    }
}

#[test]
fn a_clock_that_has_run_too_far_grants_nothing_and_loses_nothing() {
    let mut locks = Locks::default();
    let last = Moment(UNTIL_MAX - 1_000_000);
    let long = [b'q'; 500];
    for name in [PLACE.name, b"x", &long[..]] {
        let lock_key = LockKey { db: 0, name };
        assert_eq!(locks.insert(last, lock_key, Some(&new_hold(b"a", 1, 1_001))), None);
        assert!(locks.insert(last, lock_key, None).is_some_and(|id| locks.remove_free(id)));
        let id = locks.insert(last, lock_key, Some(&new_hold(b"a", 1, 1_000))).expect("in time");
        assert_eq!(locks.hold(id).map(|hold| hold.left_ms(last)), Some(1_000));
        assert_eq!(end_all(&mut locks, Moment(UNTIL_MAX + 1_000)), [1]);
        assert!(locks.is_empty() && locks.check().is_ok());
    }
}

fn live(seed: u64, steps: u64, most: usize) {
    let mut world = World::new(seed);
    for step in 0..steps {
        world.step(most);
        if step % 2_048 == 0 {
            world.look_at_all();
        }
    }
    world.finish(most);
}

#[test]
fn locks_are_what_a_naive_map_says_under_random_use() {
    for seed in 1..=LIVES {
        live(seed, 30_000, 10 << (seed % 8));
    }
}

#[test]
fn a_slot_that_is_used_again_and_again_never_shows_what_it_was() {
    // Few locks: every slot lives through all of its generations many times.
    live(99, 60_000, 3);
}

#[test]
fn what_does_not_fit_into_a_record_is_counted_with_it() {
    let mut locks = Locks::default();
    let (now, name, owner) = (Moment(1_000), [b'n'; 700], [b'o'; 200]);
    let token = Token::new(7).expect("valid");
    let hold = NewHold { owner: &owner, token, lease_ms: 50, client: None, binding: Binding::NONE };
    let long = locks.insert(now, LockKey { db: 0, name: &name }, Some(&hold)).expect("there is room");
    let record = locks.records.0.size(long.index());
    assert_eq!(locks.memory_of(long), record + size_of::<Spilled>() + 700 + 200);
}

#[test]
fn a_number_is_returned_as_it_is_stored_and_found_again() {
    let mut locks = Locks::default();
    assert!(locks.is_empty());
    let holders = locks.form(Mode::Shared);
    let record = locks.insert(Moment(1_000), LockKey { db: 0, name: b"k" }, None).expect("there is room");
    assert!(!locks.is_empty());
    for id in [holders, record] {
        assert_eq!(LockId::from_number(id.number()), id);
        assert_ne!(id.number(), 0);
    }
    assert_ne!(holders.number(), record.number());
    let told = [holders, record].map(|id| format!("{id:?}"));
    assert!(told[0].starts_with("#crowd 0.") && told[1].starts_with("#0."), "{told:?}");
}
