//! The inputs of a server, and their outcome.

use crate::lock::deadlock::Link;
use crate::lock::effect::{Answer, Event};
use crate::lock::table::{Limits, Refusal};
use crate::lock::types::{Binding, Mode, Token};
use crate::sim::server::inside::Told;
use crate::sim::single::server::{At, Lazy, Name, Outside};
use crate::sim::single::world::World;

/// The arguments of an acquire other than its lease and its wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct How {
    pub(crate) mode: Mode,
    pub(crate) is_reentrant: bool,
    pub(crate) binding: Binding,
    /// QUEUE: it waits by a reservation, and not on its connection.
    pub(crate) is_reservation: bool,
}

impl How {
    /// The options of a plain exclusive request.
    pub(crate) const PLAIN: Self =
        Self { mode: Mode::Exclusive, is_reentrant: false, binding: Binding::NONE, is_reservation: false };

    pub(crate) const fn of(mode: Mode) -> Self {
        Self { mode, ..Self::PLAIN }
    }
}

/// Up to three keys of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys([Option<At>; 3]);

impl Keys {
    pub(crate) const fn one(at: At) -> Self {
        Self([Some(at), None, None])
    }

    /// Returns the first three, each once.
    pub(crate) fn of(all: &[At]) -> Self {
        let mut keys = [None; 3];
        let mut count = 0;
        for &at in all {
            if count < keys.len() && !keys.contains(&Some(at)) {
                keys[count] = Some(at);
                count += 1;
            }
        }
        Self(keys)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = At> {
        self.0.into_iter().flatten()
    }

    pub(crate) fn contains(self, at: At) -> bool {
        self.iter().any(|key| key == at)
    }

    pub(crate) fn len(self) -> usize {
        self.iter().count()
    }

    pub(crate) fn first(self) -> Option<At> {
        self.0[0]
    }

    /// Returns true if these are the same, in any order.
    pub(crate) fn is_same_set(self, other: Self) -> bool {
        self.len() == other.len() && self.iter().all(|at| other.contains(at))
    }
}

/// Everything that can happen to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// LOCK.ACQUIRE. `wait`: BLOCK, with `Some(0)` for no limit; or QUEUE.
    Acquire {
        at: At,
        owner: Name,
        lease_ms: u64,
        wait: Option<u64>,
        client: u64,
        /// `*`: the server has just minted the owner, which the client's own words do not name.
        minted: bool,
        how: How,
    },
    /// LOCK.MACQUIRE.
    AcquireMany {
        keys: Keys,
        owner: Name,
        lease_ms: u64,
        wait: Option<u64>,
        client: u64,
        minted: bool,
        is_shared: bool,
    },
    Release {
        at: At,
        owner: Name,
        token: Option<Token>,
    },
    Renew {
        at: At,
        owner: Name,
        token: Option<Token>,
        raise: Option<Token>,
        lease_ms: u64,
        client: u64,
    },
    Fence(At),
    Del(At),
    Set(At),
    Rename(At, At),
    Move(At, u32),
    Flush(Option<u32>, Lazy),
    Swap(u32, u32),
    /// PEXPIRE, to a moment far beyond the end of any run.
    Expire(At),
    /// DUMP: the world keeps the last payload.
    Dump(At),
    /// A payload arrives from another server.
    Payload {
        name: Name,
        owner: Name,
        token: Token,
        left_ms: u64,
        how: How,
        /// Another owner that holds the lock, with the next token and the same lease.
        beside: Option<Name>,
    },
    /// RESTORE REPLACE of the last payload.
    Restore(At),
    /// RESTORE of the last payload with a time to live that has passed: the server reads the payload, and discards
    /// it.
    RestoreTooLate(At),
    /// A connection is closed.
    Close(u64),
    /// CLIENT UNBLOCK: the server answers the client itself.
    Unblock(u64),
    /// The user of this connection loses (or regains) the right to wait for locks.
    Forbid(u64, bool),
    /// The settings that the core applies.
    Limits(Limits),
    /// The setting: how long nothing new is granted after a promotion, in milliseconds; and true if the server starts
    /// with it.
    Quarantine(u64, bool),
    /// The setting: whether grants must be confirmed from now on.
    Confirm(bool),
    /// All replicas acknowledge everything: a client that waits for that is notified.
    Confirmed,
    /// Sets whether the server accepts writes from now on.
    Writes(Writes),
    /// The slot of this key moves to another node (or comes back).
    Elsewhere(At, bool),
    /// Time passes: microseconds. All messages under way to clients have arrived.
    Pass(u64),
    /// A user sets the wall clock.
    Wall(u64),
    /// The event loop runs the pump.
    Pump,
    /// The background thread has freed the values of lazy flushes.
    Free,
    /// A replica synchronizes in full. Its newest token from an earlier life is this far ahead.
    NewReplica(u64),
    /// A new append-only file begins.
    NewFile,
    /// The first reader, a replica, begins an append-only file of its own.
    NewFileOfReplica,
    /// This reader becomes the primary. Anything that the old one had not sent is lost.
    Promote(usize),
}

impl Input {
    /// Returns this input from a connection that the server reads: it does not read a blocked one.
    pub(crate) fn heard(self, world: &World) -> Self {
        match self {
            Self::Acquire { at, owner, lease_ms, wait, client, minted, how } => {
                let client = world.one_that_is_heard(client);
                Self::Acquire { at, owner, lease_ms, wait, client, minted, how }
            }
            Self::AcquireMany { keys, owner, lease_ms, wait, client, minted, is_shared } => {
                let client = world.one_that_is_heard(client);
                Self::AcquireMany { keys, owner, lease_ms, wait, client, minted, is_shared }
            }
            Self::Renew { at, owner, token, raise, lease_ms, client } => {
                let client = world.one_that_is_heard(client);
                Self::Renew { at, owner, token, raise, lease_ms, client }
            }
            _ => self,
        }
    }

    /// Returns the client that sends it, if the server may be unable to read from it now.
    pub(crate) const fn client(&self) -> Option<u64> {
        match *self {
            Self::Acquire { client, .. } | Self::AcquireMany { client, .. } | Self::Renew { client, .. } => {
                Some(client)
            }
            _ => None,
        }
    }
}

/// The server's policy on writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Writes {
    #[default]
    Allowed,
    /// Too few replicas, or a disk error: leases end, and nothing is granted.
    Refused,
    /// CLIENT PAUSE, or a failover under way: the pump answers timeouts only.
    Paused,
}

/// The immediate reply to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Reply {
    /// No client asked, or the server itself refused the command.
    #[default]
    None,
    Granted(Token),
    Busy,
    /// It waits; the number of the wait.
    Waiting(u32),
    Refused(Refusal),
    /// 1 or 0; for events: true if they could happen.
    Bool(bool),
    Token(Option<Token>),
}

/// The end of a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answered {
    pub(crate) wait: u32,
    pub(crate) at: At,
    pub(crate) client: u64,
    pub(crate) answer: Answer,
}

/// The outcome of an input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reply: Reply,
    /// The changes of keys, as clients that watch or track them see them.
    pub(crate) changes: Vec<(At, &'static str)>,
    /// The records sent to replicas.
    pub(crate) facts: Vec<Told>,
    /// Changes of keys that bypass the core.
    pub(crate) outside: Vec<Outside>,
    pub(crate) events: Vec<(At, Event)>,
    pub(crate) answers: Vec<Answered>,
    /// The holds named by replies that were sent.
    pub(crate) delivered: Vec<(At, Token)>,
    /// The holds named by replies that are never sent.
    pub(crate) undelivered: Vec<(At, Token)>,
    /// The cycle that a request would have closed.
    pub(crate) cycle: Vec<Link>,
}

/// A reply that names a hold, on its way to its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InFlight {
    pub(crate) at: At,
    pub(crate) owner: Name,
    pub(crate) token: Token,
    pub(crate) client: u64,
}
