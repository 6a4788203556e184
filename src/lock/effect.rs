//! Everything that a step may ask the engine to do.
//!
//! A step of the [table](super::table) never acts. It returns a [`Step`]: the change of its key, and the record for
//! replicas and files. It appends [`Effect`]s: answers to waiters, and events to publish. The engine applies them in
//! one fixed order: the key, all records, then events and answers in the order in which the step made them.

use super::types::{ClientId, LockKeyBuf, Moment, OwnerBuf, Token};

pub use super::locks::LockId;
pub use super::queue::WaiterId;

/// The content of the server's keyspace at a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// No key.
    Nothing,
    /// A key of our type, with this value.
    Lock(LockId),
    /// A string with a time to live that counts as a lock: it is held until then.
    Legacy(Legacy),
    /// A key of another type.
    Other,
}

/// A lock of an old client: `SET key value NX PX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Legacy {
    /// True if its value is the owner of this request.
    pub is_own: bool,
    /// The time at which the key expires.
    pub until: Moment,
}

/// The change of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key stays, and nothing that a reader could see changed.
    Nothing,
    /// Only the turn changed: a reservation has it now, and its owner sees that as a change of the key. There may be
    /// no key.
    Signalled,
    /// The key keeps its value, and the lock of that value changed.
    Touched,
    /// The key keeps its value, and another hold began: a time to live that a user gave to the old one is removed.
    Renewed,
    /// The key gets this value, whatever it had.
    Stored(LockId),
    /// The key stays, and has this many milliseconds to live from now.
    Lives(u64),
    /// The key is deleted.
    Deleted,
}

/// The fact that replicas and the append-only file receive for a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// There is nothing to replicate.
    Nothing,
    /// The client's request, word for word: a reader that applies it reaches the same result.
    AsAsked,
    /// The hold that this lock has now.
    Hold(LockId),
    /// This hold, in addition to the other holds of this lock.
    Holder(LockId, LockId),
    /// The hold with this token expired.
    Ended(Token),
    /// The key was deleted, in the server's own words.
    Deleted,
    /// The key has this many milliseconds to live, in the server's own words.
    Lives(u64),
}

/// The outcome of a step for its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step<R> {
    /// The reply to the caller.
    pub reply: R,
    /// The change of the key.
    pub change: Change,
    /// The record for replicas and files.
    pub record: Record,
}

impl<R> Step<R> {
    /// A step that changes nothing.
    pub const fn unchanged(reply: R) -> Self {
        Self { reply, change: Change::Nothing, record: Record::Nothing }
    }

    /// Returns this step with another reply.
    pub fn reply<S>(self, reply: S) -> Step<S> {
        Step { reply, change: self.change, record: self.record }
    }
}

/// Something that happened to the lock of this step, for keyspace events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A hold began.
    Acquired,
    /// The owner released a hold.
    Released,
    /// The lease of a hold expired.
    Expired,
    /// A hold was ended from outside: its key was deleted, overwritten, renamed.
    Broken,
}

/// The end of a wait. Each waiter gets exactly one (G7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The lock is granted. The hold is revoked if no reply that grants it is delivered.
    Granted {
        /// The key of the lock.
        lock_key: LockKeyBuf,
        /// The further locks, for a request for several locks.
        others: Vec<LockKeyBuf>,
        /// The new fencing token.
        token: Token,
        /// The owner, if the server minted it.
        minted_owner: Option<OwnerBuf>,
    },
    /// The wait timed out.
    TimedOut,
    /// The owner withdrew the request with a release.
    Withdrawn,
    /// A newer request of the same owner replaced this one in the queue.
    Replaced,
    /// This server was demoted: it no longer grants.
    Demoted,
    /// The wait was ended for this reason, the text of an error.
    Refused(&'static str),
    /// The lock has moved to another server: the text of the redirection.
    Moved(String),
}

/// An effect that the engine applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Replicate this too, after the step's own record and before anything is published or answered.
    Replicate(Record),
    /// Publish that this happened to the lock.
    Publish(Event),
    /// Answer the client that made this waiting request.
    Answer {
        /// The request.
        waiter: WaiterId,
        /// Its connection.
        client: ClientId,
        /// The answer for the client.
        answer: Answer,
    },
}

/// The effects of a step, in this order. Most steps only publish one event: that has a field of its own, and nothing
/// is allocated or moved for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    first: Option<Event>,
    rest: Vec<Effect>,
}

impl Effects {
    /// Takes all effects. The memory stays here in the common case that there are none.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Self {
        let rest = if self.rest.is_empty() { Vec::new() } else { std::mem::take(&mut self.rest) };
        Self { first: self.first.take(), rest }
    }

    /// Publishes that this happened.
    #[inline]
    pub fn publish(&mut self, event: Event) {
        if self.first.is_none() && self.rest.is_empty() {
            self.first = Some(event);
        } else {
            self.rest.push(Effect::Publish(event));
        }
    }

    /// Answers this client, which waits.
    pub fn answer(&mut self, waiter: WaiterId, client: ClientId, answer: Answer) {
        self.rest.push(Effect::Answer { waiter, client, answer });
    }

    /// Replicates this too, after the step's own record and the records before it.
    pub fn replicate(&mut self, record: Record) {
        self.rest.push(Effect::Replicate(record));
    }

    /// Returns the records in addition to the step's own, in this order.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.rest.iter().filter_map(|effect| match effect {
            Effect::Replicate(record) => Some(*record),
            Effect::Publish(_) | Effect::Answer { .. } => None,
        })
    }

    /// Takes the first event, if it comes before everything else.
    #[inline]
    pub const fn take_first(&mut self) -> Option<Event> {
        self.first.take()
    }

    /// Takes everything but the event of [`Self::take_first`]. The records come before anything else.
    pub fn drain(&mut self) -> impl Iterator<Item = Effect> {
        self.rest.drain(..)
    }

    /// Returns true if there is nothing apart from the effect of [`Self::take_first`].
    #[inline]
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the number of effects that it has room for.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.rest.capacity()
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::iter::Chain<
        std::iter::Map<std::option::IntoIter<Event>, fn(Event) -> Effect>,
        std::vec::IntoIter<Effect>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        let publish: fn(Event) -> Effect = Effect::Publish;
        self.first.into_iter().map(publish).chain(self.rest)
    }
}

/// A task for the pump: its time has come, or a step or a callback noted it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// Nothing yet: the search for a task did some work and must be continued.
    AskAgain,
    /// This request has timed out: notify its client.
    TimeOut(WaiterId),
    /// The lease of this lock at this key has expired: end it.
    Expire(LockKeyBuf, LockId),
    /// The lock at this key may be free: grant it to the next waiter.
    Settle(LockKeyBuf),
    /// It may be the turn of this request for several locks.
    Multi(WaiterId),
    /// Readers do not know the present lease of the hold with this token: replicate it.
    ReplicateAgain(LockKeyBuf, Token),
    /// The owner of the hold with this token may never receive its grant: if so, end it, then settle.
    Revoke(LockKeyBuf, Token),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_comes_before_all_else_and_costs_no_memory() {
        let mut effects = Effects::default();
        effects.publish(Event::Acquired);
        assert_eq!((effects.is_drained(), effects.capacity()), (true, 0));
        effects.publish(Event::Released);
        effects.replicate(Record::Nothing);
        assert!(!effects.is_drained() && effects.capacity() >= 2);
        assert_eq!(effects.records().collect::<Vec<_>>(), [Record::Nothing]);
        assert_eq!(effects.take_first(), Some(Event::Acquired));
        assert_eq!(effects.take_first(), None);
        let rest: Vec<_> = effects.drain().collect();
        assert_eq!(rest, [Effect::Publish(Event::Released), Effect::Replicate(Record::Nothing)]);
        assert!(effects.is_drained() && effects.capacity() >= 2);
        effects.publish(Event::Acquired);
        let mut taken = effects.take();
        assert!(effects.capacity() >= 2 && effects.take_first().is_none(), "its memory stays");
        assert_eq!((taken.take_first(), taken.capacity()), (Some(Event::Acquired), 0));
        // After another effect, an event is not the first effect.
        effects.replicate(Record::Nothing);
        effects.publish(Event::Expired);
        assert_eq!(effects.take_first(), None);
        assert_eq!(effects.into_iter().count(), 2);
    }
}
