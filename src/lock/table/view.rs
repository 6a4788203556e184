//! What FENCE, INFO and the tests want to know. Nothing here changes anything.

use std::borrow::Cow;

use super::*;

/// A hold as INFO shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldView<'a> {
    /// Who.
    pub owner: Cow<'a, [u8]>,
    /// The fencing token.
    pub token: Token,
    /// What is left of the lease.
    pub left_ms: u64,
    /// How long it has been held, as far as this server knows.
    pub held_ms: u64,
    /// The connection that acquired or renewed it last, where known.
    pub client: Option<ClientId>,
}

/// A waiting request as INFO shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterView<'a> {
    /// Who.
    pub owner: &'a [u8],
    /// How long it has been waiting.
    pub waited_ms: u64,
    /// The connection that waits.
    pub client: ClientId,
}

/// A lock as INFO shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description<'a> {
    /// Who holds.
    pub hold: Option<HoldView<'a>>,
    /// How many wait.
    pub waiters: usize,
    /// The first of them.
    pub line: Vec<WaiterView<'a>>,
}

impl Table {
    /// Whether somebody waits for the lock at this place.
    #[must_use]
    pub fn is_waited_for(&self, place: Place<'_>) -> bool {
        self.queues.at(place).is_some()
    }

    /// The token of the live hold at a found key. LOCK.FENCE.
    #[must_use]
    pub fn live_token(&self, now: Moment, found: Found) -> Option<Token> {
        self.live(now, found).map(|(_, hold)| hold.token())
    }

    /// The owner and the token that a lock has, live or not; for digests.
    #[must_use]
    pub fn identity(&self, id: LockId) -> Option<(Cow<'_, [u8]>, Token)> {
        let hold = self.locks.hold(id)?;
        Some((hold.owner(), hold.token()))
    }

    /// Whether somebody holds this lock, live or not.
    #[inline]
    #[must_use]
    pub fn is_held(&self, id: LockId) -> bool {
        self.locks.hold(id).is_some()
    }

    /// Everything about the lock at a place; `None` if nobody holds it and nobody waits for it.
    #[must_use]
    pub fn describe(
        &self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        waiters_max: usize,
    ) -> Option<Description<'_>> {
        let queue = self.queues.at(place);
        let hold = self.live(now, found).map(|(_, hold)| HoldView {
            owner: hold.owner(),
            token: hold.token(),
            left_ms: hold.left_ms(now),
            held_ms: hold.held_ms(now),
            client: hold.client(),
        });
        if hold.is_none() && queue.is_none() {
            return None;
        }
        let line = queue.into_iter().flat_map(|queue| self.queues.line(queue));
        Some(Description {
            hold,
            waiters: queue.and_then(|queue| self.queues.queue(queue)).map_or(0, |q| q.len),
            line: line
                .take(waiters_max)
                .map(|(_, waiter)| WaiterView {
                    owner: &waiter.request.owner,
                    waited_ms: now.ms_since(waiter.request.since),
                    client: waiter.request.client,
                })
                .collect(),
        })
    }

    /// How many keys of our type there are.
    #[must_use]
    pub const fn locks(&self) -> usize {
        self.locks.len()
    }

    /// How many of them are held.
    #[must_use]
    pub const fn holds(&self) -> usize {
        self.locks.holds()
    }

    /// How many requests wait.
    #[must_use]
    pub const fn waiters(&self) -> usize {
        self.queues.waiters()
    }

    /// What happened so far.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The newest token, 0 if there was none.
    #[must_use]
    pub const fn last_token(&self) -> u64 {
        self.clock.last()
    }

    /// Microseconds by which tokens are ahead of the wall clock.
    #[must_use]
    pub const fn token_lead_us(&self, wall_us: u64) -> u64 {
        self.clock.lead_us(wall_us)
    }

    /// Bytes that a lock occupies, its key not counted.
    #[must_use]
    pub fn memory_of(&self, id: LockId) -> usize {
        self.locks.memory_of(id)
    }

    /// Tells what is wrong with the table, if anything is: what is true after every step.
    ///
    /// `keys` is the keyspace: every key of our type with its value.
    pub fn check<'a>(&self, keys: impl Iterator<Item = (Place<'a>, LockId)>) -> Result<(), String> {
        let mut held = 0;
        let mut count = 0;
        for (place, id) in keys {
            count += 1;
            let lock = self.locks.get(id).ok_or_else(|| format!("{place:?} holds a dead number"))?;
            if let Some(hold) = lock.hold() {
                held += 1;
                if !lock.is_at(place) || lock.place().is_none_or(|own| own.as_place() != place) {
                    return Err(format!("{place:?} holds a lock of {:?}", lock.place()));
                }
                if hold.token().get() > self.clock.last() {
                    return Err(format!("{place:?} has a token that was never minted"));
                }
                if let Some(queue) = self.queues.at(place)
                    && !self.queues.queue(queue).is_some_and(|queue| queue.is_noted)
                    && self.queues.of_owner(queue, &hold.owner()).is_some()
                {
                    return Err(format!("the holder of {place:?} waits for it"));
                }
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
        self.queues.check()
    }
}
