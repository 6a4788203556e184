//! Everything that the engine asks of a server, in our words.
//!
//! There are two implementations: [`redis`](crate::redis) by the module API of a real server, and a simulated server
//! in the tests. All is dispatched at compile time, and costs nothing.
//!
//! A method may call the engine back before it returns, wherever the real server does: while a key is replaced or
//! deleted, while an event is published. So nobody may be within [`Server::with`] when one is called, but for those of
//! which this page says that they call nobody.

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
    /// The name of a key that the engine names.
    type NameBuf<'a>
    where
        Self: 'a;
    /// A key that is open. It is closed when dropped: then those who watch it are told if it was changed.
    type Key<'a>: Key
    where
        Self: 'a;
    /// A blocked client, until it is answered and the server has let go of it.
    type Blocked: Copy + Eq + Hash + Debug;
    /// Wakes the event loop.
    type Alarm: Alarm;

    // The engine's own.

    /// Runs `use_it` on what the engine keeps. `None`: this is not the server's main thread, or a caller further up is
    /// within `with`, which the rule of this page excludes.
    fn with<R>(&self, use_it: impl FnOnce(&mut State<Self::Blocked, Self::Alarm>) -> R) -> Option<R>;
    /// The part of the engine's state that any thread can read at any time. Calls nobody.
    fn shared(&self) -> &Shared;

    // Time.

    /// The clock of leases and waits (G2). Calls nobody.
    fn boot(&self) -> Moment;
    /// Microseconds since the epoch. Calls nobody.
    fn wall_us(&self) -> u64;
    /// Both clocks, at the price of one: the wall clock may lag by what tokens may lag anyway. Calls nobody.
    fn now(&self) -> Now;
    /// Runs the pump as soon as the running command or event ends. `is_late`: it was asked for before, and did not
    /// come.
    fn run_soon(&self, is_late: bool);

    /// A unique owner: a UUID, written as usual. Calls nobody.
    fn new_owner(&self) -> [u8; MINTED_OWNER_BYTES];

    // The server's role and its present activity.

    /// The flags of the server and of the running command. Calls nobody.
    fn flags(&self) -> Flags;
    /// Returns true if it has promised somebody that nothing is written now.
    fn is_paused(&self) -> bool;
    /// Returns true if it would refuse a write: too few replicas, a disk error. May be asked from within
    /// [`Server::with`]: all that runs is LOCK.TICK without arguments, which does not go there.
    fn refuses_writes(&self) -> bool;
    /// The offset of the stream, and that of each replica. `None`: this server is no primary, or does not say.
    fn replicas(&self) -> Option<(u64, Vec<Seen>)>;
    /// Subscribes the engine to this topic. `false`: this server does not report all of it.
    fn listen(&self, to: Topic) -> bool;
    /// Ends the reports of the server's turns. Not to be called while it reports anything.
    fn ignore_turns(&self);
    /// Returns true if it may evict keys that have no time to live, by its configuration.
    fn may_evict(&self) -> bool;
    /// Returns true if anybody could hear a keyspace event, by its configuration and its modules.
    fn has_listeners(&self) -> bool;
    /// Writes into the log.
    fn log(&self, level: Level, text: &str);

    // Keys.

    /// The database and the name of a key. Calls nobody.
    fn lock_key<'a>(&self, name: Self::Name<'a>) -> LockKey<'a>;
    /// The name of this key, whose database is selected from here on. `None`: there is no memory.
    fn name_at<'a>(&'a self, lock_key: &LockKeyBuf) -> Option<Self::NameBuf<'a>>;
    /// The name that this buffer holds. Calls nobody.
    fn name<'a>(name: &'a Self::NameBuf<'_>) -> Self::Name<'a>;
    /// Opens a key.
    fn open(&self, name: Self::Name<'_>, to: To) -> Self::Key<'_>;
    /// The positions of the keys among these words, a command of the server's. Empty for a command that it does not
    /// know.
    fn keys_of(&self, words: &[Self::Name<'_>]) -> Vec<usize>;
    /// Whether the running command may use all of these keys, which are of one slot, as far as that is on its way
    /// from here or to here.
    fn has_all(&self, names: &[Self::Name<'_>]) -> bool;
    /// Returns true if it has seen to all keys of a command that has several, and not to the first alone.
    fn sees_all_keys(&self) -> bool;
    /// Whose the slot of the key is.
    fn slot_owner(&self, name: Self::Name<'_>) -> SlotOwner;
    /// The address of another server that has this slot: `host:port`. `None`: there is none, or it is unknown.
    fn node_of(&self, slot: u16) -> Option<String>;

    // Records for replicas and files, events for listeners.

    /// Writes a fact for replicas and files.
    fn replicate(&self, fact: Fact<'_, Self::Name<'_>>);
    /// Asks the replicas how far they are.
    fn ask_replicas(&self);
    /// Publishes a keyspace event.
    fn publish(&self, name: Self::Name<'_>, event: Event);

    // Clients.

    /// The connection that runs the command; `None` where there is none. In a script, and in another module's call, it
    /// is one that [`Self::is_connected`] does not know.
    fn client(&self) -> Option<ClientId>;
    /// Returns true if a client has this connection now. Calls nobody.
    fn is_connected(&self, client: ClientId) -> bool;
    /// Whether the user of this client may run the command that it waits in, on this key, by the rules as they are now.
    /// Calls nobody.
    fn may_acquire(&self, who: Candidate<'_>) -> bool;
    /// Blocks the client of the running command. `None`: it cannot be blocked.
    fn block(&self) -> Option<Self::Blocked>;
    /// Answers a blocked client, or lets go of one that is gone (`None`). Once for each.
    fn unblock(&self, blocked: Self::Blocked, reply: Option<Reply>);
    /// Whether this connection, which closes just now, closes before what it was last answered was sent. A server that
    /// cannot tell says no.
    fn has_dropped_reply(&self, client: ClientId) -> bool;
    /// Closes a connection. One that is closed already is not found.
    fn close(&self, client: ClientId);

    // Replies to the running command.

    /// Sends a part of the reply. Calls nobody.
    fn reply(&self, part: Part<'_>);
}

/// The topics of a server's reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    /// Everything that has to be known of a server whose locks are used.
    Locks,
    /// The turns of its event loop.
    Turns,
    /// The turns of its event loop, and the coming and going of replicas.
    Replicas,
}

/// A record for replicas and files, with the name of its key.
#[derive(Clone, Copy, Debug)]
pub enum Fact<'a, N> {
    /// The running command, word for word.
    AsAsked,
    /// This owner holds.
    Hold(N, Mode, &'a SavedHold),
    /// The hold with this token ended without a release.
    Ended(N, Token),
    /// The key went, in the server's own words.
    Deleted(N),
    /// Until when the key lives, in the server's own words; in milliseconds of the wall clock.
    Lives(N, u64),
    /// The clock of tokens, for the append-only file alone.
    Tick {
        /// The newest token.
        last: u64,
        /// The newest one that readers of the stream know.
        replicated: u64,
    },
    /// Readers of the stream count from nothing; no token up to this one is new.
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
