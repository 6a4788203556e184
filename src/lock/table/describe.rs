//! Read-only views for FENCE, INFO and the tests.

use super::rejected_waiters::RejectedWaiters;
use super::state::Table;
use super::task_queue::Noted;
use crate::lock::effect::{Existing, LockId, Task};
use crate::lock::locks::OwnerText;
use crate::lock::stats::Stats;
use crate::lock::tuning::Bound;
use crate::lock::types::{Binding, ClientId, LockKey, LockKeyBuf, Mode, Moment, Token};

/// A hold as INFO shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldView<'a> {
    /// The owner.
    pub owner: OwnerText<'a>,
    /// The fencing token; `None` for the lock of an old client.
    pub token: Option<Token>,
    /// The remaining lease.
    pub left_ms: u64,
    /// The time for which it has been held, as far as this server knows.
    pub held_ms: Option<u64>,
    /// The connection that acquired or renewed it last, where known.
    pub client: Option<ClientId>,
    /// The number of releases that it takes.
    pub count: u32,
    /// Its binding to its connection.
    pub binding: Binding,
}

/// A waiting request as INFO shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterView<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The time for which it has been waiting.
    pub waited_ms: u64,
    /// The connection that waits; `None` for a reservation without one.
    pub client: Option<ClientId>,
    /// The mode that it asks for.
    pub mode: Mode,
}

/// A lock that an owner holds or waits for, as HELDBY shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Possession {
    /// The key of the lock.
    pub lock_key: LockKeyBuf,
    /// The mode in which it is held or requested.
    pub mode: Mode,
    /// Its token and remaining lease; `None` if the owner waits.
    pub held: Option<(Token, u64)>,
}

/// A lock as INFO shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description<'a> {
    /// The mode in which it is held or requested.
    pub mode: Mode,
    /// The number of holders. For a lock with very many, expired ones count until the pump ends them.
    pub holders: usize,
    /// The first holders, in the order of their tokens.
    pub holds: Vec<HoldView<'a>>,
    /// The number of waiters.
    pub waiters: usize,
    /// The first waiters.
    pub queue: Vec<WaiterView<'a>>,
}

/// How many expired holds, which the pump has not ended yet, are skipped to find a live one.
const PASSED_MAX: Bound = Bound::of(1_000, 2);

impl Table {
    /// Returns true if a request waits for the lock at this key.
    #[must_use]
    pub fn is_waited_for(&self, lock_key: LockKey<'_>) -> bool {
        self.queues.at(lock_key).is_some()
    }

    /// Returns true if a lock has expired holders that are too many to end in one command.
    #[must_use]
    pub fn leaves_ends_to_the_pump(&self, now: Moment, lock: LockId) -> bool {
        self.locks.is_large(lock) && self.locks.holders(lock).any(|(_, hold)| hold.is_over(now))
    }

    /// Returns the newest token of a live hold, for LOCK.FENCE.
    #[must_use]
    pub fn live_token(&self, now: Moment, existing: Existing) -> Option<Token> {
        let Existing::Lock(lock) = existing else {
            return None;
        };
        let (_, newest) = self.locks.newest_hold(lock)?;
        if !newest.is_over(now) {
            return Some(newest.token());
        }
        let live = self.locks.holders(lock).filter(|(_, hold)| !hold.is_over(now));
        live.map(|(_, hold)| hold.token()).max()
    }

    /// Returns true if this is the token of a live hold, for LOCK.FENCE and LOCK.EXEC.
    #[must_use]
    pub fn is_live(&self, now: Moment, existing: Existing, token: Token) -> bool {
        let Existing::Lock(lock) = existing else {
            return false;
        };
        self.locks.hold_with(lock, token).is_some_and(|(_, hold)| !hold.is_over(now))
    }

    /// Decides whether LOCK.EXEC may run a command under this token. If not, counts that and returns the newest live
    /// token of the lock.
    pub fn fence(&mut self, now: Moment, existing: Existing, token: Token) -> Result<(), Option<Token>> {
        if self.is_live(now, existing, token) {
            return Ok(());
        }
        self.stats.fenced += 1;
        Err(self.live_token(now, existing))
    }

    /// Returns the token of this owner's hold, live or expired.
    #[must_use]
    pub fn token_of(&self, existing: Existing, owner: &[u8]) -> Option<Token> {
        let Existing::Lock(lock) = existing else {
            return None;
        };
        self.locks.hold_of(lock, owner).map(|(_, hold)| hold.token())
    }

    /// Returns the mode of a lock, whether its holders are live or expired.
    #[must_use]
    pub fn mode(&self, id: LockId) -> Option<Mode> {
        self.locks.mode(id)
    }

    /// Returns true if the lock has a holder, live or expired.
    #[inline]
    #[must_use]
    pub fn is_held(&self, id: LockId) -> bool {
        self.locks.mode(id).is_some()
    }

    /// Describes the lock at a key, with at most this many holders and waiters. `None` if it has neither. The lock of
    /// an old client is shown with `legacy_owner`.
    #[must_use]
    pub fn describe<'s>(
        &'s self,
        now: Moment,
        lock_key: LockKey<'_>,
        existing: Existing,
        legacy_owner: &'s [u8],
        shown_max: usize,
    ) -> Option<Description<'s>> {
        let queue = self.queues.at(lock_key).and_then(|queue| Some((queue, self.queues.queue(queue)?)));
        let lock = match existing {
            Existing::Lock(lock) => Some(lock),
            _ => None,
        };
        let legacy = match existing {
            Existing::Legacy(legacy) => Some((legacy, legacy_owner)),
            _ => None,
        };
        let mut holds: Vec<HoldView<'_>> = lock
            .into_iter()
            .flat_map(|lock| self.locks.holders(lock))
            .take(shown_max.saturating_add(PASSED_MAX.get()))
            .filter(|(_, hold)| !hold.is_over(now))
            .take(shown_max)
            .map(|(_, hold)| HoldView {
                owner: hold.owner(),
                token: Some(hold.token()),
                left_ms: hold.left_ms(now),
                held_ms: Some(hold.held_ms(now)),
                client: hold.client(),
                count: hold.count(),
                binding: hold.binding(),
            })
            .collect();
        if let Some((legacy, owner)) = legacy {
            holds.push(HoldView {
                owner: OwnerText::Plain(owner),
                token: None,
                left_ms: now.ms_until(legacy.until),
                held_ms: None,
                client: None,
                count: 1,
                binding: Binding::NONE,
            });
        }
        let held_as = match legacy {
            Some(_) => Some(Mode::Exclusive),
            None => lock.and_then(|lock| self.locks.mode(lock)).filter(|_| !holds.is_empty()),
        };
        let all = lock.map_or(0, |lock| self.locks.holders_of(lock));
        let holders = if holds.len() < shown_max { holds.len() } else { all.max(holds.len()) };
        let mode = held_as.or(queue.map(|(_, queue)| queue.mode))?;
        let waiters = queue.into_iter().flat_map(|(queue, _)| self.queues.in_order(queue));
        Some(Description {
            mode,
            holders,
            holds,
            waiters: queue.map_or(0, |(_, queue)| queue.len),
            queue: waiters
                .take(shown_max)
                .map(|(_, waiter)| WaiterView {
                    owner: &waiter.request.owner,
                    waited_ms: now.ms_since(waiter.request.since),
                    client: waiter.request.client,
                    mode: waiter.request.mode,
                })
                .collect(),
        })
    }

    /// Returns all that this owner holds and waits for, for LOCK.HELDBY. Searches all locks of the server.
    #[must_use]
    pub fn held_by(&self, now: Moment, owner: &[u8]) -> Vec<Possession> {
        let mut all: Vec<Possession> = self
            .locks
            .all_of_owner(owner)
            .into_iter()
            .filter(|(_, _, hold)| !hold.is_over(now))
            .filter_map(|(mode, lock, hold)| {
                let held = Some((hold.token(), hold.left_ms(now)));
                Some(Possession { lock_key: lock.lock_key()?, mode, held })
            })
            .collect();
        all.extend(self.queues.all_of_owner(owner).filter_map(|(_, waiter)| {
            let lock_key = self.queues.queue(waiter.queue)?.lock_key.clone();
            Some(Possession { lock_key, mode: waiter.request.mode, held: None })
        }));
        // By name, and held before awaited: the order of records means nothing to a client.
        all.sort_by(|a, b| {
            (a.lock_key.db, &a.lock_key.name, a.held.is_none()).cmp(&(
                b.lock_key.db,
                &b.lock_key.name,
                b.held.is_none(),
            ))
        });
        all
    }

    /// Returns the number of held locks, and of keys whose exclusive lock has no holder.
    #[must_use]
    pub const fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Returns the number of held locks.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.locks.held()
    }

    /// Returns the number of holds.
    #[must_use]
    pub const fn holds(&self) -> usize {
        self.locks.holds()
    }

    /// Returns the number of waiting requests.
    #[must_use]
    pub const fn waiters(&self) -> usize {
        self.queues.waiters()
    }

    /// Returns the counters.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the newest token, 0 if there was none.
    #[must_use]
    pub const fn last_token(&self) -> u64 {
        self.clock.last_token()
    }

    /// Returns by how many microseconds tokens are ahead of the wall clock.
    #[must_use]
    pub const fn token_lead_us(&self, wall_us: u64) -> u64 {
        self.clock.lead_us(wall_us)
    }

    /// Returns the bytes that a lock occupies, not counting its key.
    #[must_use]
    pub fn memory_of(&self, id: LockId) -> usize {
        self.locks.memory_of(id)
    }

    /// Checks the invariants that hold after every step, and returns the first violation.
    ///
    /// `keys` is the keyspace: every key of our type with its value.
    pub fn check<'a>(&self, keys: impl Iterator<Item = (LockKey<'a>, LockId)>) -> Result<(), String> {
        self.undelivered.check(&self.locks, &self.notes)?;
        let (mut held, mut count) = (0, 0);
        for (lock_key, id) in keys {
            count += 1;
            if !id.is_list() && self.locks.may_know(id) {
                self.locks.get(id).ok_or_else(|| format!("{lock_key:?} holds a dead number"))?;
            } else if self.locks.holders_of(id) == 0 {
                // An empty lock, which is not counted: several owners held it under another name, or its database was
                // swapped.
                count -= 1;
                continue;
            }
            let queue = self.queues.at(lock_key);
            for (holder, hold) in self.locks.holders(id) {
                held += 1;
                let lock = self.locks.get(holder).ok_or("a hold without a record")?;
                if !lock.is_at(lock_key) || lock.lock_key().is_none_or(|own| own.as_key() != lock_key) {
                    return Err(format!("{lock_key:?} holds a lock of {:?}", lock.lock_key()));
                }
                if hold.token().get() > self.clock.last_token() {
                    return Err(format!("{lock_key:?} has a token that was never minted"));
                }
                let waits = queue.and_then(|queue| self.queues.of_owner(queue, &hold.owner()));
                let waits_in_vain =
                    waits.and_then(|waiter| self.queues.waiter(waiter)).is_some_and(|waiter| {
                        let is_noted = self.queues.queue(waiter.queue).is_some_and(|queue| queue.is_noted);
                        let is_same = Some(waiter.request.mode) == self.locks.mode(id);
                        !is_noted && is_same && waiter.multi.is_none()
                    });
                if waits_in_vain {
                    return Err(format!("a holder of {lock_key:?} waits for it"));
                }
            }
            match (self.locks.mode(id), self.locks.holders_of(id)) {
                (Some(Mode::Limit(limit)), holders) if holders > limit as usize => {
                    return Err(format!("{lock_key:?} has {holders} holders of {limit}"));
                }
                (Some(Mode::Exclusive), holders) if holders > 1 => {
                    return Err(format!("{lock_key:?} has {holders} exclusive holders"));
                }
                _ => {}
            }
        }
        if held != self.locks.holds() || count != self.locks.len() {
            return Err(format!(
                "{count} keys, {held} held, but {} locks and {} leases",
                self.locks.len(),
                self.locks.holds()
            ));
        }
        self.locks.check()?;
        self.rejected.iter().try_for_each(RejectedWaiters::check)?;
        self.check_notes()?;
        self.queues.check()
    }

    /// Returns an error if the tasks are inconsistent: each marked queue and request is listed once.
    fn check_notes(&self) -> Result<(), String> {
        let there = self.notes.iter().filter(|noted| noted.is_still_there(&self.queues));
        let (mut queues, mut multis) = (Vec::new(), Vec::new());
        for noted in there {
            match noted {
                Noted::Queue(id) => queues.push(*id),
                Noted::Task(task) => {
                    if let Task::Multi(first_entry) = **task {
                        multis.extend(self.queues.waiter(first_entry).map(|entry| entry.multi));
                    }
                }
            }
        }
        self.queues.check_notes(&queues, &multis)
    }
}

#[cfg(test)]
mod tests {
    use super::super::requests::{Ask, Decision, KeyRef};
    use super::*;
    use crate::lock::effect::{Change, Effects};
    use crate::lock::tests::legacy::ask;
    use crate::lock::types::Now;

    #[test]
    fn a_fenced_command_is_counted_and_told_the_live_token() {
        let (mut table, mut fx) = (Table::default(), Effects::default());
        let now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };
        let lock_key = LockKey { db: 0, name: b"door" };
        let [old, live] = [1, 1_000_000].map(|number| Token::new(number).unwrap());
        assert_eq!(table.fence(now.boot, Existing::Nothing, old), Err(None));
        let ask = Ask { lease_ms: 10, ..ask(b"alice", Mode::Exclusive, None) };
        let key_ref = KeyRef { lock_key, existing: Existing::Nothing };
        let step = table.acquire(now, key_ref, &ask, &mut |_| Decision::Granted, &mut fx);
        let Change::Stored(lock) = step.change else { panic!("{step:?}") };
        assert_eq!(table.fence(now.boot, Existing::Lock(lock), live), Ok(()));
        assert_eq!(table.fence(now.boot, Existing::Lock(lock), old), Err(Some(live)));
        let later = now.boot.plus_ms(10);
        assert_eq!(table.fence(later, Existing::Lock(lock), live), Err(None));
        assert_eq!(table.stats.fenced, 3);
    }
}
