//! The state inside a simulated server: a keyspace, a stream and a file, clients, replicas, slots, two clocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use smallvec::SmallVec;

use crate::command::slot::slot_of;
use crate::engine::blocked_clients::Reply;
use crate::engine::server::Part;
use crate::engine::state::Alarm;
use crate::lock::effect::{Event, LockId};
use crate::lock::types::Moment;

/// The database and name of a key.
pub(crate) type At = (u32, SmallVec<[u8; 16]>);

/// Returns the database and name of a key.
pub(crate) fn place(db: u32, name: &[u8]) -> At {
    (db, SmallVec::from_slice(name))
}

/// A command, word by word.
pub(crate) type Words = Rc<[Vec<u8>]>;

/// The value of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    Lock(LockId),
    Text(Vec<u8>),
}

impl Value {
    pub(crate) const fn lock(&self) -> Option<LockId> {
        match *self {
            Self::Lock(lock) => Some(lock),
            Self::Text(_) => None,
        }
    }
}

/// A key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// The time at which it expires, in milliseconds of the wall clock.
    pub(crate) until_ms: Option<u64>,
}

/// A part of a reply, as sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PartBuf {
    Error(String),
    Integer(u64),
    Null,
    Ok,
    Bool(bool),
    Bytes(Vec<u8>),
    Array(usize),
    Map(usize),
}

impl From<Part<'_>> for PartBuf {
    fn from(part: Part<'_>) -> Self {
        match part {
            Part::Error(text) => Self::Error(text.to_owned()),
            Part::WrongArity => Self::Error("ERR wrong number of arguments".to_owned()),
            Part::Integer(number) => Self::Integer(number),
            Part::Null => Self::Null,
            Part::Ok => Self::Ok,
            Part::Bool(truth) => Self::Bool(truth),
            Part::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Part::Array(len) => Self::Array(len),
            Part::Map(len) => Self::Map(len),
        }
    }
}

/// A published event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Published {
    Lock(At, Event),
    /// The server's own: a key was written or removed.
    Key(At, &'static str),
    /// An event of all keys.
    All(&'static str),
}

/// A command for replicas and files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) db: u32,
    pub(crate) words: Words,
}

/// The location of a slot that is not simply on this server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// It is moving to another server: this one serves the keys that are still here.
    Leaving,
    /// Another server has it, or it is still moving here.
    Elsewhere,
}

/// Sets the alarm of the server.
#[derive(Default)]
pub(crate) struct Clockwork {
    pub(crate) at: Option<Moment>,
}

impl Alarm for Clockwork {
    fn set(&mut self, at: Moment) -> bool {
        self.at = Some(at);
        true
    }
}

/// The state of the server. It is not borrowed while the engine is called.
#[derive(Default)]
pub(crate) struct Inside {
    pub(crate) boot_us: u64,
    pub(crate) wall_us: u64,
    pub(crate) keys: BTreeMap<At, Entry>,
    /// The commands sent to replicas, until a test takes them.
    pub(crate) stream: Vec<Told>,
    /// The total length of the stream.
    pub(crate) offset: u64,
    /// The content of its file, if it has one.
    pub(crate) file: Vec<Told>,
    pub(crate) published: Vec<Published>,
    /// The changed keys, as clients that keep copies of them see them; `None`: all of them.
    pub(crate) changed: BTreeSet<Option<Vec<u8>>>,
    /// The watched keys, each with the number of the connection that watches it.
    pub(crate) watched: BTreeSet<(At, u64)>,
    /// Clients whose EXEC does nothing, because a key that they watch was changed.
    pub(crate) dirty: BTreeSet<u64>,
    pub(crate) log: Vec<String>,
    pub(crate) connected: BTreeSet<u64>,
    /// Connections that are closed at the end of this turn; true if their replies are sent first.
    pub(crate) closing: BTreeMap<u64, bool>,
    /// Blocked clients that the server has not released.
    pub(crate) blocked: BTreeMap<u64, u64>,
    /// Clients that were answered or released in this turn, by their handles.
    pub(crate) unblocked: VecDeque<(u64, Option<Reply>)>,
    pub(crate) last_handle: u64,
    /// Released handles: like addresses, they are reused.
    pub(crate) free_handles: Vec<u64>,
    pub(crate) last_owner: u64,
    /// The reply to the running command.
    pub(crate) reply: Vec<PartBuf>,
    pub(crate) running: Option<Words>,
    /// The running command has blocked its client; the number of the block.
    pub(crate) has_blocked: Option<u64>,
    pub(crate) pump_is_due: bool,
    pub(crate) forbidden: BTreeSet<u64>,
    /// Replicas by the number of their connection: their address, and the offset of the stream that they have
    /// acknowledged.
    pub(crate) replicas: BTreeMap<u32, (&'static str, u64)>,
    /// Keys of slots that are not simply this server's.
    pub(crate) slots: Vec<(&'static str, Slot)>,
    pub(crate) asked: u64,
    /// True if it removes a key whose time to live has passed only when the key is opened.
    pub(crate) expires_opened_keys_alone: bool,
    /// True if it may evict keys.
    pub(crate) evicts: bool,
    /// True if the server delivers no keyspace events.
    pub(crate) is_unheard: bool,
    /// True if it checks only the first key of a command with several keys.
    pub(crate) sees_first_key_alone: bool,
    /// True if it does not report its replicas.
    pub(crate) is_deaf: bool,
    /// True if no server serves any slot, and clients are refused.
    pub(crate) is_cluster_down: bool,
    /// True if it does not answer ROLE.
    pub(crate) is_silent: bool,
    /// True if it can block no client, and does not report that beforehand.
    pub(crate) blocks_nobody: bool,
    /// The number of its requests for events.
    pub(crate) listens: u32,
    /// True if it reports the turns of its event loop.
    pub(crate) tells_of_turns: bool,
}

impl Inside {
    /// Notifies all clients that watch these keys of a change.
    pub(crate) fn touch(&mut self, is_changed: impl Fn(&At) -> bool) {
        let existing = self.watched.iter().filter(|(at, _)| is_changed(at)).map(|(_, client)| *client);
        let existing: Vec<u64> = existing.collect();
        self.dirty.extend(existing);
    }

    /// Releases a blocked client. Returns its number.
    pub(crate) fn let_go(&mut self, handle: u64) -> Option<u64> {
        let client = self.blocked.remove(&handle)?;
        self.free_handles.push(handle);
        Some(client)
    }

    /// Returns true if another server has this slot.
    pub(crate) fn has_left(&self, slot: u16) -> bool {
        self.slots.iter().any(|(name, whose)| *whose == Slot::Elsewhere && slot_of(name.as_bytes()) == slot)
    }

    /// Returns true if this key is in a slot that this server does not fully own: it is not looked up here, so it
    /// does not expire.
    pub(crate) fn is_moving(&self, at: &At) -> bool {
        self.slots.iter().any(|(name, _)| name.as_bytes() == &*at.1)
    }

    /// Returns true if this server serves a key of this name.
    pub(crate) fn is_ours(&self, at: &At) -> bool {
        match self.slots.iter().find(|(name, _)| name.as_bytes() == &*at.1) {
            None => true,
            Some((_, Slot::Leaving)) => self
                .keys
                .get(at)
                .is_some_and(|entry| entry.until_ms.is_none_or(|until| until > self.wall_us / 1000)),
            Some((_, Slot::Elsewhere)) => false,
        }
    }
}
