//! Everything that the engine asks of a server.
//!
//! There are two implementations: [`redis`](crate::redis), by the module API of a real server, and a simulated server
//! in the tests. Calls are dispatched at compile time, and cost nothing.
//!
//! A method may call the engine back before it returns, wherever the real server does: while a key is replaced or
//! deleted, and while an event is published. So no caller may be within [`Server::with`], except for methods of which
//! this page says that they call nothing back.

use std::fmt::Debug;
use std::hash::Hash;

use super::blocked_clients::Reply;
use super::flags::{Flags, Level};
use super::shared::Shared;
use super::state::{Alarm, State};
use crate::lock::codec::SavedHold;
use crate::lock::confirm::Seen;
use crate::lock::effect::{Event, Existing, LockId};
use crate::lock::table::Candidate;
use crate::lock::types::{ClientId, LockKey, LockKeyBuf, Mode, Moment, Now, Token};

/// The length of an owner that the server mints.
pub const MINTED_OWNER_BYTES: usize = 36;

/// A server. See the [module](self).
pub trait Server: Sized {
    /// The name of a key, as the running command or callback has it.
    type Name<'a>: Copy + AsRef<[u8]>;
    /// The name of a key that the engine has chosen.
    type NameBuf<'a>
    where
        Self: 'a;
    /// An open key. Dropping it closes the key, and notifies clients that watch it if it was changed.
    type Key<'a>: Key
    where
        Self: 'a;
    /// A blocked client, until it was answered and the server has released it.
    type Blocked: Copy + Eq + Hash + Debug;
    /// Wakes the event loop.
    type Alarm: Alarm;

    // The engine's state.

    /// Runs `use_it` on the engine's state. `None` if this is not the server's main thread, or a caller is within
    /// `with` already, which the rule above excludes.
    fn with<R>(&self, use_it: impl FnOnce(&mut State<Self::Blocked, Self::Alarm>) -> R) -> Option<R>;
    /// The part of the engine's state that any thread may read at any time. Calls nothing back.
    fn shared(&self) -> &Shared;

    // Time.

    /// Returns the clock of leases and waits (G2). Calls nothing back.
    fn boot(&self) -> Moment;
    /// Returns the microseconds since the epoch. Calls nothing back.
    fn wall_us(&self) -> u64;
    /// Returns both clocks at the cost of one: the wall clock may lag by as much as tokens may. Calls nothing back.
    fn now(&self) -> Now;
    /// Runs the pump once the running command or event has ended. `is_late` is true if an earlier request has not
    /// been served.
    fn run_soon(&self, is_late: bool);

    /// Returns a unique owner: a UUID in its usual form. Calls nothing back.
    fn new_owner(&self) -> [u8; MINTED_OWNER_BYTES];

    // The server's role and current state.

    /// Returns the flags of the server and of the running command. Calls nothing back.
    fn flags(&self) -> Flags;
    /// Returns true if the server has promised not to write now.
    fn is_paused(&self) -> bool;
    /// Returns true if it would refuse a write: too few replicas, a disk error. May be called within
    /// [`Server::with`]: it runs only LOCK.TICK without arguments, which does not use the state.
    fn refuses_writes(&self) -> bool;
    /// Returns the offset of the stream, and those of the replicas. `None` if this server is no primary, or does not
    /// say.
    fn replicas(&self) -> Option<(u64, Vec<Seen>)>;
    /// Subscribes the engine to a topic. Returns false if this server does not report all of it.
    fn listen(&self, to: Topic) -> bool;
    /// Ends the reports of turns. Not to be called while the server reports anything.
    fn ignore_turns(&self);
    /// Returns true if, by its configuration, it may evict keys without a time to live.
    fn may_evict(&self) -> bool;
    /// Returns true if, by its configuration and modules, anything could listen to keyspace events.
    fn has_listeners(&self) -> bool;
    /// Writes to the log.
    fn log(&self, level: Level, text: &str);

    // Keys.

    /// Returns the database and the name of a key. Calls nothing back.
    fn lock_key<'a>(&self, name: Self::Name<'a>) -> LockKey<'a>;
    /// Selects the database of this key, and returns its name. `None` if memory is exhausted.
    fn name_at<'a>(&'a self, lock_key: &LockKeyBuf) -> Option<Self::NameBuf<'a>>;
    /// Returns the name in this buffer. Calls nothing back.
    fn name<'a>(name: &'a Self::NameBuf<'_>) -> Self::Name<'a>;
    /// Opens a key.
    fn open(&self, name: Self::Name<'_>, to: To) -> Self::Key<'_>;
    /// Returns the positions of the keys in this command. Empty for a command that the server does not know.
    fn keys_of(&self, words: &[Self::Name<'_>]) -> Vec<usize>;
    /// Returns true if the running command may use all of these keys, which are of one slot, even if that slot is
    /// moving.
    fn has_all(&self, names: &[Self::Name<'_>]) -> bool;
    /// Returns true if the server has checked all keys of a command with several, and not only the first.
    fn sees_all_keys(&self) -> bool;
    /// Returns which node owns the slot of a key.
    fn slot_owner(&self, name: Self::Name<'_>) -> SlotOwner;
    /// Returns the address of another server that owns this slot, as `host:port`. `None` if there is none, or it is
    /// unknown.
    fn node_of(&self, slot: u16) -> Option<String>;

    // Records for replicas and files, and events for listeners.

    /// Writes a fact for replicas and files.
    fn replicate(&self, fact: Fact<'_, Self::Name<'_>>);
    /// Asks the replicas for their offsets.
    fn ask_replicas(&self);
    /// Publishes a keyspace event.
    fn publish(&self, name: Self::Name<'_>, event: Event);

    // Clients.

    /// Returns the connection that runs the command; `None` without one. In a script, or a call by another module, it
    /// is one that [`Self::is_connected`] does not know.
    fn client(&self) -> Option<ClientId>;
    /// Returns true if a client has this connection now. Calls nothing back.
    fn is_connected(&self, client: ClientId) -> bool;
    /// Returns true if this client's user may still run, on this key, the command in which it waits. Calls nothing
    /// back.
    fn may_acquire(&self, who: Candidate<'_>) -> bool;
    /// Blocks the client of the running command. `None` if it cannot be blocked.
    fn block(&self) -> Option<Self::Blocked>;
    /// Answers a blocked client, or releases one that has disconnected (`None`). Once for each.
    fn unblock(&self, blocked: Self::Blocked, reply: Option<Reply>);
    /// Returns true if this connection, which is just closing, was not sent the answer that the server accepted at
    /// `since`, in this turn. A server that cannot tell returns false.
    fn has_dropped_reply(&self, client: ClientId, since: Moment) -> bool;
    /// Closes a connection. Does nothing if it is closed already.
    fn close(&self, client: ClientId);

    // Replies to the running command.

    /// Sends a part of the reply. Calls nothing back.
    fn reply(&self, part: Part<'_>);
}

/// The topics of a server's reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    /// Everything that must be known while locks are used.
    Locks,
    /// The turns of its event loop.
    Turns,
    /// The turns of its event loop, and replicas that connect and disconnect.
    Replicas,
}

/// A record for replicas and files, with the name of its key.
#[derive(Clone, Copy, Debug)]
pub enum Fact<'a, N> {
    /// The running command, in the words of the client.
    AsAsked,
    /// This owner holds the lock.
    Hold(N, Mode, &'a SavedHold),
    /// The hold with this token ended without a release.
    Ended(N, Token),
    /// The key was deleted; in the server's own command.
    Deleted(N),
    /// The key expires at this time, in milliseconds of the wall clock; in the server's own command.
    Lives(N, u64),
    /// The clock of tokens, for the append-only file alone.
    Tick {
        /// The newest token.
        last: u64,
        /// The newest one that readers of the stream know.
        replicated: u64,
    },
    /// Readers of the stream count from nothing; no later token is as low as this one.
    FreshStart(u64),
}

/// A part of the reply to the running command. A reply is one part, or a list or map with the parts that follow it.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// An error.
    Error(&'a str),
    /// That the command takes another number of arguments.
    WrongArity,
    /// An integer.
    Integer(u64),
    /// Nothing.
    Null,
    /// OK.
    Ok,
    /// Yes or no.
    Bool(bool),
    /// Some bytes.
    Bytes(&'a [u8]),
    /// A list: how many elements follow.
    Array(usize),
    /// A map: how many pairs follow.
    Map(usize),
}

/// The purpose for which a key is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// Look at it.
    Read,
    /// Change it.
    Write,
}

/// The server that answers for a key, by its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotOwner {
    /// This server.
    Ours,
    /// No node, because the cluster is down: the slot may be this server's.
    Unknown,
    /// Another server, or this one does not have the key and its slot is on its way.
    Others,
}

/// A key that is open.
pub trait Key {
    /// The content of the keyspace here.
    fn existing(&self) -> Existing;
    /// The remaining time to live of a string; `None`: it is no string, or has none.
    fn string_ttl_ms(&self) -> Option<u64>;
    /// The value of a string, one byte more than an owner can have at most.
    fn string(&self) -> Vec<u8>;
    /// Gives the key a time to live, until this moment of the wall clock in milliseconds. Only of a key that is there.
    fn live_until(&self, wall_ms: u64);
    /// Takes away the time to live that a user may have given to the key. Only of a key that is there.
    fn persist(&self);
    /// The lock of its value was changed.
    fn touch(&self);
    /// Makes this lock the value of the key, whatever was there.
    fn store(&self, lock: LockId);
    /// Deletes the key.
    fn delete(&self);
}
