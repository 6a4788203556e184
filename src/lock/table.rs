//! The locks of one server.
//!
//! The table is the unit of the core, and not the single lock, because owners, deadlines and tokens
//! span locks. Its steps are spread over files by who calls them:
//!
//! * [`decide`]: a client asks, on a primary. The only place where a request becomes a hold.
//! * [`wake`]: something ended by itself or from outside: leases, timeouts, closed connections, keys
//!   that went away.
//! * [`apply`]: facts decided elsewhere: the replication stream, the append-only file, RDB.
//! * [`view`]: what INFO, FENCE and the tests want to know.

mod apply;
mod decide;
mod view;
mod wake;

use std::collections::VecDeque;

use super::arena::Arena;
use super::deadline::Deadlines;
use super::effect::{Answer, Change, Effect, Event, Found, LockId, Record, Step, Task, WaiterId};
use super::hold::{Hold, Lock};
use super::queue::Queues;
use super::stats::Stats;
use super::token::{TokenClock, Travel};
use super::types::{ClientId, Moment, Now, Place, PlaceBuf, Token};

pub use decide::{Acquired, Ask, Block, Refusal, Renewal};
pub use view::{Description, HoldView, WaiterView};
pub use wake::Due;

/// What the user has set a bound to (SPEC 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most waiters of one lock.
    pub waiters_per_lock_max: usize,
    /// Most waiters of all locks.
    pub waiters_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { waiters_per_lock_max: 10_000, waiters_max: 20_000 }
    }
}

/// Whether a waiting client may be granted this lock: the outside knows users, their rights, and
/// whether the server refuses writes.
///
/// Asked at the moment of the grant, because a right can be taken away during a wait (SPEC 4).
pub type Gate<'a> = &'a mut dyn FnMut(ClientId, Place<'_>) -> Admission;

/// What a [`Gate`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The client may have the lock.
    Granted,
    /// Its user may not: the request is answered with an error, and the next in line is asked about.
    Forbidden,
    /// Nobody may have any lock now: the line stays as it is, and the pump looks again later.
    NotNow,
}

/// The locks of one server. See the [module](self).
#[derive(Default)]
pub struct Table {
    locks: Arena<Lock>,
    leases: Deadlines<Lock>,
    queues: Queues,
    clock: TokenClock,
    tasks: VecDeque<Task>,
    /// Broken holds that somebody waits behind: to be published before the next grant.
    broken_first: VecDeque<PlaceBuf>,
    /// Broken holds that nobody waits behind: to be published when nothing else is to be done.
    broken: VecDeque<PlaceBuf>,
    stats: Stats,
    limits: Limits,
}

/// A hold about to begin.
struct NewHold<'a> {
    owner: &'a [u8],
    lease_ms: u64,
    client: Option<ClientId>,
}

impl Table {
    /// Sets the limits, from the next request on. Nobody who waits already is turned away.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The clock of tokens.
    pub const fn clock(&mut self) -> &mut TokenClock {
        &mut self.clock
    }

    /// The hold at a found key whose lease has not ended.
    fn live(&self, now: Moment, found: Found) -> Option<(LockId, &Hold)> {
        let Found::Lock(id) = found else {
            return None;
        };
        let hold = self.locks.get(id)?.live(now)?;
        Some((id, hold))
    }

    /// Begins a hold with this token at the place: in the lock that is found there, or in a new one.
    fn begin_hold(
        &mut self,
        now: Moment,
        place: Place<'_>,
        found: Found,
        new: &NewHold<'_>,
        token: Token,
    ) -> (LockId, Change) {
        let hold = Hold {
            owner: new.owner.into(),
            token,
            since: now,
            until: now.plus_ms(new.lease_ms),
            client: new.client,
            is_known: false,
        };
        let until = hold.until;
        let (id, change) = match found {
            Found::Lock(id) if self.locks.get(id).is_some() => {
                if let Some(lock) = self.locks.get_mut(id) {
                    // An empty lock may stand under another name than the one it was made for.
                    if lock.place.as_place() != place {
                        lock.place = place.to_owned();
                    }
                    lock.hold = Some(hold);
                    lock.is_doubtful = false;
                }
                (id, Change::Renewed)
            }
            _ => {
                let id = self.locks.insert(Lock::new(place, Some(hold)));
                (id, Change::Stored(id))
            }
        };
        self.leases.set(&mut self.locks, id, until);
        (id, change)
    }

    /// Ends the hold of a lock, whatever the reason, and returns it.
    fn end_hold(&mut self, id: LockId) -> Option<Hold> {
        let hold = self.locks.get_mut(id)?.hold.take()?;
        self.leases.clear(&mut self.locks, id);
        Some(hold)
    }

    /// Ends the hold at a found key if its lease has run out; returns its token.
    fn end_if_over(&mut self, now: Moment, found: Found, fx: &mut Vec<Effect>) -> Option<Token> {
        let Found::Lock(id) = found else {
            return None;
        };
        let is_over = self.locks.get(id)?.hold.as_ref()?.is_over(now);
        if !is_over {
            return None;
        }
        let hold = self.end_hold(id)?;
        self.stats.expirations += 1;
        self.stats.holds.add(now.ms_since(hold.since));
        fx.push(Effect::Publish(Event::Expired));
        Some(hold.token)
    }

    /// Takes a request out of its line and answers it.
    fn answer(&mut self, waiter: WaiterId, answer: Answer, fx: &mut Vec<Effect>) {
        if let Some(left) = self.queues.leave(waiter) {
            fx.push(Effect::Answer { waiter, client: left.request.client, answer });
        }
    }

    /// Grants a free lock to the first in line who can have it. `None`: nobody waits (any more).
    fn grant_next(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        gate: Gate<'_>,
        fx: &mut Vec<Effect>,
    ) -> Option<Step<()>> {
        let queue = self.queues.at(place)?;
        while let Some(id) = self.queues.head(queue) {
            let request = &self.queues.waiter(id)?.request;
            if request.until.is_some_and(|until| until <= now.boot) {
                self.stats.timeouts += 1;
                self.answer(id, Answer::TimedOut, fx);
                continue;
            }
            match gate(request.client, place) {
                Admission::Granted => {}
                Admission::Forbidden => {
                    self.answer(id, Answer::Refused(NO_PERMISSION), fx);
                    continue;
                }
                Admission::NotNow => {
                    self.note(place);
                    return None;
                }
            }
            let Some((token, _)) = self.clock.mint(now.wall_us) else {
                self.answer(id, Answer::Refused(NO_TOKENS), fx);
                continue;
            };
            let request = self.queues.leave(id)?.request;
            let new =
                NewHold { owner: &request.owner, lease_ms: request.lease_ms, client: Some(request.client) };
            let (lock, change) = self.begin_hold(now.boot, place, found, &new, token);
            self.stats.grants += 1;
            self.stats.contended_grants += 1;
            self.stats.waits.add(now.boot.ms_since(request.since));
            fx.push(Effect::Publish(Event::Acquired));
            fx.push(Effect::Answer {
                waiter: id,
                client: request.client,
                answer: Answer::Granted {
                    place: place.to_owned(),
                    token,
                    minted_owner: request.owner_is_minted.then_some(request.owner),
                },
            });
            return Some(Step { reply: (), change, record: Record::Hold(lock) });
        }
        None
    }

    /// Grants a lock that has just lost its hold to the next in line, or lets the key go.
    fn pass_on(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        record: Record,
        gate: Gate<'_>,
        fx: &mut Vec<Effect>,
    ) -> Step<()> {
        // What the stream says of the new hold replaces the old one: one record for both.
        self.grant_next(now, place, found, gate, fx).unwrap_or(Step {
            reply: (),
            change: Change::Deleted,
            record,
        })
    }
}

/// What a waiter is told whose user lost the right to the lock.
pub const NO_PERMISSION: &str =
    "NOPERM this user may no longer run lock.acquire on this key; the request left the queue";

/// What is said when no token is left below 2^53.
pub const NO_TOKENS: &str =
    "ERR no fencing token is left below 2^53: the token clock was set too far ahead by a loaded file";
