//! The locks of one server.
//!
//! The table is the unit of the core, and not the single lock, because owners, deadlines and tokens
//! span locks. Its steps are spread over files by who calls them:
//!
//! * [`decide`]: a client asks, on a primary. What the plain exclusive lock needs is done here, on a short path.
//! * [`kinds`]: the same for requests and locks of all kinds; [`multi`]: for several locks in one step.
//! * [`line`]: who is let in when a lock, or a place in it, is free.
//! * [`wake`]: something ended by itself or from outside: leases, timeouts, closed connections, keys
//!   that went away.
//! * [`apply`]: facts decided elsewhere: the replication stream, the append-only file, RDB.
//! * [`outbox`]: what is to be published, in its order.
//! * [`beside`]: a data set that is loaded while another one is served.
//! * [`leaving`]: no lock is granted any more, because the module is to go.
//! * [`view`]: what INFO, FENCE and the tests want to know.

mod apply;
mod beside;
mod decide;
mod hold;
mod kinds;
mod leaving;
mod line;
mod multi;
mod outbox;
mod quarantine;
mod undo;
mod view;
mod wake;

use std::collections::VecDeque;

use super::deadlock::{Link, Looked};
use super::effect::{
    Answer, Change, Effects, Event, Found, Legacy, LockId, Record, Stake, Step, Task, Undo, WaiterId,
};
use super::locks::{Ended, Hold, Locks, NewHold};
use super::queue::{Queues, Request};
use super::stats::Stats;
use super::token::{TokenClock, Travel};
use super::types::{ClientId, Mode, Moment, Now, Place, PlaceBuf, Tie, Token};
use crate::sabotage::{self, Rule};

pub use apply::Granted;
pub use beside::Gone;
pub use decide::{Acquired, Ask, Block, Refusal, Renewal, Wait};
pub use kinds::COUNT_MAX;
pub use multi::{Spot, Steps};
pub use outbox::Notice;
pub use view::{Description, HoldView, Possession, WaiterView};
pub use wake::Due;

/// What the user has set a bound to (SPEC 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most waiters of one lock.
    pub waiters_per_lock_max: usize,
    /// Most waiters of all locks.
    pub waiters_max: usize,
    /// Most holders of a shared lock.
    pub holders_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { waiters_per_lock_max: 10_000, waiters_max: 20_000, holders_max: 10_000 }
    }
}

/// Whether a waiting client may be granted this lock: the outside knows users, their rights, and
/// whether the server refuses writes.
///
/// Asked at the moment of the grant, because a right can be taken away during a wait (SPEC 4).
pub type Gate<'a> = &'a mut dyn FnMut(Applicant<'_>) -> Admission;

/// Who waits, and is about to be granted a lock.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    /// The connection that waits.
    pub client: ClientId,
    /// For which lock.
    pub place: Place<'a>,
    /// For others too (LOCK.MACQUIRE).
    pub wants_several: bool,
    /// The lease that it asked for, in milliseconds.
    pub lease_ms: u64,
    /// Its lease would stand still while the connection is open.
    pub is_kept_alive: bool,
}

/// What a [`Gate`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The client may have the lock.
    Granted,
    /// It may not, any more: it is told so in these words, and the next in line is asked about.
    Refused(&'static str),
    /// Nobody may have any lock now: the line stays as it is, and the pump looks again later.
    NotNow,
}

/// The locks of one server. See the [module](self).
#[derive(Default)]
pub struct Table {
    locks: Locks,
    queues: Queues,
    clock: TokenClock,
    /// A data set that is being loaded, and not served yet.
    beside: Option<Box<beside::Beside>>,
    /// How many sets of locks were begun beside another one.
    sets: u32,
    tasks: VecDeque<Task>,
    outbox: outbox::Outbox,
    stats: Stats,
    limits: Limits,
    /// Until when nothing new is granted.
    quarantine: Option<quarantine::Quarantine>,
    /// What began in this step, to be confirmed. `None`: nothing has to be.
    begun: Option<Vec<Stake>>,
    /// Whether nothing new is granted because the module is to go.
    is_leaving: bool,
    /// Whether there is a quarantine, anything has to be confirmed, or the module is to go: then the short path will
    /// not do.
    is_restricted: bool,
    /// Why the request refused last would have waited for itself.
    cycle: Vec<Link>,
    /// How much the search for it looked at last.
    looked: Looked,
}

impl Table {
    /// Sets the limits, from the next request on. Nobody who waits already is turned away.
    pub fn set_limits(&mut self, limits: Limits) {
        let has_room = limits.holders_max > self.limits.holders_max;
        self.limits = limits;
        if has_room {
            self.note_everything();
        }
    }

    /// The clock of tokens.
    pub const fn clock(&mut self) -> &mut TokenClock {
        &mut self.clock
    }

    /// The hold at a found key whose lease has not ended.
    #[inline(always)]
    fn live(&self, now: Moment, found: Found) -> Option<(LockId, Hold<'_>)> {
        self.any_hold(found).filter(|(_, hold)| !hold.is_over(now))
    }

    /// The hold at a found key, even if its lease is over by this server's clock.
    #[inline]
    fn any_hold(&self, found: Found) -> Option<(LockId, Hold<'_>)> {
        let Found::Lock(id) = found else {
            return None;
        };
        Some((id, self.locks.hold(id)?))
    }

    /// Ends the hold at a found key if its lease has run out; returns its token.
    #[inline]
    fn end_if_over(&mut self, now: Moment, found: Found, fx: &mut Effects) -> Option<Token> {
        let (id, hold) = self.any_hold(found)?;
        if !hold.is_over(now) {
            return None;
        }
        let Ended { token, held_ms } = self.locks.end(id, now)?;
        self.stats.expirations += 1;
        self.stats.holds.add(held_ms);
        fx.publish(Event::Expired);
        Some(token)
    }

    /// Takes a request out of its line and answers it, unless nobody waits for the answer.
    fn answer(&mut self, waiter: WaiterId, answer: Answer, fx: &mut Effects) {
        let lead = self.queues.lead(waiter);
        if let Some(client) = self.queues.leave(waiter).and_then(|left| left.request.client) {
            fx.answer(lead, client, answer);
        }
    }

    /// A value of another type stands where these wait: it stays, and they are told what a request that comes later is
    /// told (SPEC 5). Returns whether it is so. Nothing is written, so nobody need admit them.
    #[cold]
    #[inline(never)]
    fn dismiss_from_other(&mut self, place: Place<'_>, found: Found, fx: &mut Effects) -> bool {
        let is_other = found == Found::Other && !sabotage::removes(Rule::WrittenOver);
        if is_other {
            self.dismiss(place, &Answer::Refused(WRONG_TYPE), fx);
        }
        is_other
    }

    /// Whether the short path will do: a lock that one holds at most, with nothing to it but its lease, and a line
    /// of requests for just that.
    #[inline(always)]
    fn is_plain(&self, place: Place<'_>, found: Found) -> bool {
        let is_plain_lock = match found {
            Found::Lock(lock) => !lock.is_crowd() && !self.locks.has_extra(lock),
            Found::Nothing | Found::Other => true,
            Found::Legacy(_) => false,
        };
        is_plain_lock
            && !self.is_restricted
            && (self.queues.waiters() == 0
                || self.queues.at(place).is_none_or(|queue| self.queues.is_plain(queue)))
    }

    /// Grants a free lock to the first in line who can have it. `None`: nobody waits (any more).
    #[inline]
    fn grant_next(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Option<Step<()>> {
        // The usual case.
        if self.queues.waiters() == 0 {
            return None;
        }
        self.grant_in_line(now, place, found, gate, fx)
    }

    fn grant_in_line(
        &mut self,
        now: Now,
        place: Place<'_>,
        found: Found,
        gate: Gate<'_>,
        fx: &mut Effects,
    ) -> Option<Step<()>> {
        let queue = self.queues.at(place)?;
        if self.dismiss_from_other(place, found, fx) {
            return None;
        }
        while let Some(id) = self.queues.head(queue) {
            let request = &self.queues.waiter(id)?.request;
            if request.until.is_some_and(|until| until <= now.boot) {
                self.stats.timeouts += 1;
                self.answer(id, Answer::TimedOut, fx);
                continue;
            }
            let applicant = applicant(request, place, false)?;
            match gate(applicant) {
                Admission::Granted => {}
                Admission::Refused(reason) => {
                    self.answer(id, Answer::Refused(reason), fx);
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
            let client = applicant.client;
            let Request { owner, lease_ms, tie, .. } = &self.queues.waiter(id)?.request;
            let new = NewHold { owner, token, lease_ms: *lease_ms, client: Some(client), tie: *tie };
            let begun = begin_hold(&mut self.locks, now.boot, place, found, &new);
            let Some((lock, change)) = begun else {
                self.answer(id, Answer::Refused(TOO_MANY_LOCKS), fx);
                continue;
            };
            let request = self.queues.leave(id)?.request;
            self.stats.grants += 1;
            self.count_waited(now.boot, request.since, 1);
            if let Some(queue) = self.queues.queue_mut(queue) {
                queue.lock = Some(lock);
            }
            fx.publish(Event::Acquired);
            let answer = Answer::Granted {
                place: place.to_owned(),
                others: Vec::new(),
                token,
                minted_owner: request.owner_is_minted.then_some(request.owner),
            };
            fx.answer(id, client, answer);
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
        fx: &mut Effects,
    ) -> Step<()> {
        // What the stream says of the new hold replaces the old one: one record for both.
        self.grant_next(now, place, found, gate, fx).unwrap_or(Step {
            reply: (),
            change: Change::Deleted,
            record,
        })
    }
}

/// Begins a hold at the place: in the lock that is found there, or in a new one. `None`: there are too
/// many locks.
#[inline]
fn begin_hold(
    locks: &mut Locks,
    now: Moment,
    place: Place<'_>,
    found: Found,
    new: &NewHold<'_>,
) -> Option<(LockId, Change)> {
    match found {
        Found::Lock(id) if locks.get(id).is_some() => {
            // An empty lock may stand under another name than the one it was made for.
            locks.begin(id, now, place, new);
            Some((id, Change::Renewed))
        }
        _ => {
            let id = locks.insert(now, place, Some(new))?;
            Some((id, Change::Stored(id)))
        }
    }
}

/// Who waits for this; nobody does for a place in line.
fn applicant<'a>(request: &Request, place: Place<'a>, wants_several: bool) -> Option<Applicant<'a>> {
    let Request { client, lease_ms, tie, .. } = *request;
    Some(Applicant { client: client?, place, wants_several, lease_ms, is_kept_alive: tie.is_kept_alive })
}

/// What a waiter is told whose user lost the right to the lock.
pub const NO_PERMISSION: &str =
    "NOPERM this user may no longer run lock.acquire on this key; the request left the queue";

/// The same, for who waited for several.
pub const NO_PERMISSION_FOR_SEVERAL: &str =
    "NOPERM this user may no longer run lock.macquire on these keys; the request left the queue";

/// What is said where a key holds a value of another type, in the server's own words.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// What is said when no token is left below 2^53.
pub const NO_TOKENS: &str =
    "ERR no fencing token is left below 2^53: the token clock was set too far ahead by a loaded file";

/// What is said when there are as many locks as numbers for them: more than a billion.
pub const TOO_MANY_LOCKS: &str = "ERR there are too many locks on this server: their numbers have run out";
