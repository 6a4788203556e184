//! The arguments and results of the steps of a [table](super), except for their [effects](crate::lock::effect).

use crate::lock::effect::{Answer, Existing, Step, WaiterId};
use crate::lock::locks::NewHold;
use crate::lock::queue::Request;
use crate::lock::types::{Binding, ClientId, LockKey, LockKeyBuf, Mode, Moment, OwnerBuf, Token};

/// The limits that a user can set (CONTRACT 7).
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

#[cfg(test)]
impl Limits {
    /// All tests build them here, so that a new one needs one place.
    pub(crate) const fn of(waiters_per_lock_max: usize, waiters_max: usize, holders_max: usize) -> Self {
        Self { waiters_per_lock_max, waiters_max, holders_max }
    }
}

/// Whether a waiting client may be granted this lock: the outside knows users, their rights, and
/// whether the server refuses writes.
///
/// Asked at the moment of the grant, because a right can be taken away during a wait (CONTRACT 4).
pub type Admission<'a> = &'a mut dyn FnMut(Candidate<'_>) -> Decision;

/// A waiter that is about to be granted a lock.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The connection that waits.
    pub client: ClientId,
    /// For which lock.
    pub lock_key: LockKey<'a>,
    /// For how many by one request, if that is LOCK.MACQUIRE.
    pub several: Option<usize>,
    /// The lease that it asked for, in milliseconds.
    pub lease_ms: u64,
    /// Its lease would be paused while the connection is open.
    pub is_keepalive: bool,
    /// Its requests are counted.
    pub is_reentrant: bool,
}

/// The verdict of an [`Admission`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The client may have the lock.
    Granted,
    /// It may not, any more: it is told so in these words, and the next in the queue is asked about.
    Refused(&'static str),
    /// Nobody may have any lock now: the queue stays as it is, and the pump looks again later.
    NotNow,
}

/// The answer to a waiter whose user lost the right to the lock.
pub const NO_PERMISSION: &str =
    "NOPERM this user may no longer run lock.acquire on this key; the request left the queue";

/// The answer to a waiter for several locks whose user lost the right to them.
pub const NO_PERMISSION_FOR_SEVERAL: &str =
    "NOPERM this user may no longer run lock.macquire on these keys; the request left the queue";

/// The error where a key holds a value of another type, in the server's own words.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The answer to a waiter when a lock comes to its key other than by a grant.
pub const ARRIVED: &str =
    "UNBLOCKED a lock came to this key by RESTORE, a migration or a loaded file; ask again to wait for it";

/// The error when no token is left below 2^53.
pub const NO_TOKENS: &str =
    "ERR no fencing token is left below 2^53: the token clock was set too far ahead by a loaded file";

/// The error when there are as many locks as numbers for them: more than a billion.
pub const TOO_MANY_LOCKS: &str = "ERR there are too many locks on this server: their numbers have run out";

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The owner that asks: 1 to 256 bytes.
    pub owner: &'a [u8],
    /// True if the server has just minted the owner.
    pub owner_is_minted: bool,
    /// For how long.
    pub lease_ms: u64,
    /// The mode in which to hold the lock.
    pub mode: Mode,
    /// True if asking again counts.
    pub is_reentrant: bool,
    /// The binding of the hold to the connection.
    pub binding: Binding,
    /// The wait in the queue, if it may wait.
    pub wait: Option<Wait>,
    /// The connection.
    pub client: Option<ClientId>,
    /// The connection, if the hold can be bound to it: it is a client's own.
    pub bind_to: Option<ClientId>,
    /// True if a grant must travel as a record that names owner and token. That is so if the client's own words do
    /// not tell them, or if a reader gets only a part of the stream.
    pub must_be_explicit: bool,
    /// True if a grant has to be confirmed by replicas, and too few of them could confirm one now.
    pub cannot_confirm: bool,
}

/// A wait in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// On a connection, which gets an answer when the wait ends.
    Block(Block),
    /// By a reservation that is kept until then, for the owner to ask again.
    Reservation {
        /// When it is given up.
        until: Moment,
    },
}

/// A wait on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The connection to answer.
    pub client: ClientId,
    /// Until when; `None`: without limit.
    pub until: Option<Moment>,
}

/// The outcome of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// The lock is the owner's, under this token.
    Granted(Token),
    /// It is not; nothing was changed.
    Busy,
    /// The request stands in the queue.
    Waiting(WaiterId),
    /// The request cannot be served.
    Refused(Refusal),
}

/// The reason for which a request cannot be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The lock is held, or waited for, in a way that excludes this one.
    OtherKind(Mode),
    /// The owner holds the lock at this place among the keys already, in another way than it asks for.
    Held(usize),
    /// The server may have forgotten locks, and grants none for this many milliseconds.
    Quarantine(u64),
    /// Nothing could be confirmed, so nothing was done.
    Unconfirmable,
    /// The module is to go, so no lock is granted any more.
    Leaving,
    /// The wait would never end: it would close the cycle that `Table::take_cycle` gives.
    Deadlock,
    /// It is held as many times as can be counted.
    TooManyTimes,
    /// The token is to be raised of a hold that is one of several, in this mode.
    Several(Mode),
    /// The key holds a value of another type.
    WrongType,
    /// This many wait for the lock already.
    QueueIsFull(usize),
    /// This many wait on the server already.
    ServerIsFull(usize),
    /// No token is left.
    NoTokens,
    /// No number for a lock is left.
    TooManyLocks,
}

/// A request to give up a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release<'a> {
    /// Whose hold.
    pub owner: &'a [u8],
    /// Only if it has this token.
    pub token: Option<Token>,
}

/// A request to make a lease last from now.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// Whose hold.
    pub owner: &'a [u8],
    /// Only if it has this token.
    pub token: Option<Token>,
    /// The lowest token that it, and any later one, may have.
    pub raise: Option<Token>,
    /// The length of the lease, in milliseconds.
    pub lease_ms: u64,
    /// The connection.
    pub client: Option<ClientId>,
    /// The connection, if the hold can be bound to it: it is a client's own.
    pub bind_to: Option<ClientId>,
}

/// A key of a step and what was found there.
#[derive(Clone, Copy, Debug)]
pub struct KeyRef<'a> {
    /// The key.
    pub lock_key: LockKey<'a>,
    /// The value that was found there.
    pub existing: Existing,
}

/// The outcome of a step that is about several keys: what to tell the caller, and what becomes of each key.
pub type Steps<R> = (R, Vec<Step<()>>);

/// A request that the primary granted.
#[derive(Clone, Copy, Debug)]
pub struct Granted<'a> {
    /// The owner that asked.
    pub owner: &'a [u8],
    /// For how long.
    pub lease_ms: u64,
    /// The mode in which the lock is held.
    pub mode: Mode,
    /// True if asking again counts.
    pub is_reentrant: bool,
    /// The binding of the hold to a connection of the primary's.
    pub binding: Binding,
}

/// The waiter for this; a reservation has none.
pub(super) fn candidate<'a>(
    request: &Request,
    lock_key: LockKey<'a>,
    several: Option<usize>,
) -> Option<Candidate<'a>> {
    let Request { client, lease_ms, binding, is_reentrant, .. } = *request;
    let is_keepalive = binding.is_keepalive;
    Some(Candidate { client: client?, lock_key, several, lease_ms, is_keepalive, is_reentrant })
}

impl Ask<'_> {
    /// The hold that it is granted under this token.
    #[inline(always)]
    pub(super) const fn hold(&self, token: Token) -> NewHold<'_> {
        let Self { owner, lease_ms, client, binding, .. } = *self;
        NewHold { owner, token, lease_ms, client, binding }
    }

    /// Its entry in the queue.
    pub(super) fn request(&self, now: Moment, wait: Wait) -> Request {
        let (client, until) = match wait {
            Wait::Block(block) => (Some(block.client), block.until),
            Wait::Reservation { until } => (None, Some(until)),
        };
        Request {
            owner: OwnerBuf::from_slice(self.owner),
            owner_is_minted: self.owner_is_minted,
            lease_ms: self.lease_ms,
            since: now,
            until,
            client,
            mode: self.mode,
            binding: self.binding,
            is_reentrant: self.is_reentrant,
        }
    }
}

impl Request {
    /// The hold that it is granted under this token.
    #[inline(always)]
    pub(super) fn hold(&self, token: Token) -> NewHold<'_> {
        let Self { ref owner, lease_ms, client, binding, .. } = *self;
        NewHold { owner, token, lease_ms, client, binding }
    }

    /// The answer to its client when it is granted this lock, and the others with it.
    pub(super) fn granted(self, lock_key: LockKey<'_>, others: Vec<LockKeyBuf>, token: Token) -> Answer {
        let minted_owner = self.owner_is_minted.then_some(self.owner);
        Answer::Granted { lock_key: lock_key.to_owned(), others, token, minted_owner }
    }
}

impl Wait {
    /// The reply to a request that has joined the queue.
    pub(super) const fn reply(self, waiter: WaiterId) -> Acquired {
        match self {
            Self::Block(_) => Acquired::Waiting(waiter),
            Self::Reservation { .. } => Acquired::Busy,
        }
    }
}
