//! A view of a record, read in place.

use std::ops::Deref;

use zerocopy::FromBytes;

use super::hold_ext::HoldExt;
use super::id::LockId;
use super::name_codec;
use super::record::{self, Flag, Head, Name, Owner, SPILLED};
use super::store::{Locks, Spilled};
use crate::lock::types::{Binding, ClientId, LockKey, LockKeyBuf, Moment, Token};

/// An owner as the client sent it. For a UUID, a record stores only the 16 bytes.
#[derive(Clone, Debug)]
pub enum OwnerText<'a> {
    /// The text of a UUID.
    Uuid([u8; name_codec::UUID_TEXT]),
    /// Any other owner, borrowed from the record.
    Plain(&'a [u8]),
}

impl Deref for OwnerText<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Uuid(text) => text,
            Self::Plain(owner) => owner,
        }
    }
}

impl PartialEq for OwnerText<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for OwnerText<'_> {}

/// A view of a lock.
#[derive(Clone, Copy)]
pub struct Lock<'a> {
    pub(super) locks: &'a Locks,
    pub(super) index: u32,
    pub(super) head: &'a Head,
    pub(super) tail: &'a [u8],
}

impl<'a> Lock<'a> {
    /// Returns its hold; `None` for an empty lock, which counts as free (CONTRACT 5).
    #[inline]
    #[must_use]
    pub fn hold(self) -> Option<Hold<'a>> {
        Some(Hold { lock: self, token: self.head.token().filter(|_| self.head.has(Flag::Held))? })
    }

    fn ext(self) -> Option<&'a HoldExt> {
        if self.head.has(Flag::HoldExt) { self.locks.hold_exts.get(self.index) } else { None }
    }

    fn spilled(self) -> Option<&'a Spilled> {
        self.locks.spilled.get(&self.index)
    }

    fn name(self) -> Option<Name<'a>> {
        if self.head.shape == SPILLED {
            return Some(Name::Plain(self.spilled()?.lock_key.as_key()));
        }
        record::name(self.head, self.tail)
    }

    /// Returns the database and name of its key. A hold is bound to its name: a lock that was renamed has none.
    #[must_use]
    pub fn lock_key(self) -> Option<LockKeyBuf> {
        self.name()?.lock_key(&self.locks.prefixes)
    }

    /// Returns true if its key is that one.
    #[must_use]
    pub fn is_at(self, lock_key: LockKey<'_>) -> bool {
        self.name().is_some_and(|name| name.is(&self.locks.prefixes, lock_key))
    }

    /// Returns the database of its key.
    #[must_use]
    pub fn db(self) -> Option<u32> {
        self.name()?.db(&self.locks.prefixes)
    }
}

/// A view of one owner's hold on one lock (CONTRACT 1).
#[derive(Clone, Copy)]
pub struct Hold<'a> {
    lock: Lock<'a>,
    token: Token,
}

impl<'a> Hold<'a> {
    /// Returns the fencing token.
    #[must_use]
    pub const fn token(self) -> Token {
        self.token
    }

    /// Returns true if the lease has expired. The hold has ended, even if its record still exists.
    #[inline]
    #[must_use]
    pub fn is_over(self, now: Moment) -> bool {
        // A lease that was paused ends later than its record says.
        self.lock.head.until_us() <= now.0 && self.until_us().is_some_and(|until| until <= now.0)
    }

    /// Returns when the lease ends; `None` if its connection pauses it.
    fn until_us(self) -> Option<u64> {
        let Some(ext) = self.lock.ext().filter(|ext| ext.binding.is_paused()) else {
            return Some(self.lock.head.until_us());
        };
        self.lock.locks.hold_exts.runs_since(ext).map(|at| at.plus_ms(ext.lease_ms).0)
    }

    fn paused_ms(self) -> u64 {
        self.lock.ext().map_or(0, |ext| ext.lease_ms)
    }

    /// Returns true if a lease of this length, from now, would end later.
    #[must_use]
    pub fn ends_before(self, now: Moment, lease_ms: u64) -> bool {
        match self.until_us() {
            None => self.paused_ms() < lease_ms,
            Some(until) => until < now.plus_ms(lease_ms).0,
        }
    }

    /// Returns the remaining lease in milliseconds, rounded up: 0 if and only if it has expired.
    #[must_use]
    pub fn left_ms(self, now: Moment) -> u64 {
        self.until_us().map_or_else(|| self.paused_ms(), |until| now.ms_until(Moment(until)))
    }

    /// Returns the number of releases that end it.
    #[must_use]
    pub fn count(self) -> u32 {
        self.lock.ext().map_or(1, |ext| ext.count)
    }

    /// Returns its binding to a connection.
    #[must_use]
    pub fn binding(self) -> Binding {
        let Some(ext) = self.lock.ext() else {
            return Binding::NONE;
        };
        let is_running = ext.binding.is_running || self.lock.locks.hold_exts.runs_since(ext).is_some();
        Binding { is_running, ..ext.binding }
    }

    /// Returns how long it has been held, in milliseconds, as far as this server knows.
    #[must_use]
    pub fn held_ms(self, now: Moment) -> u64 {
        self.lock.head.held_ms(now)
    }

    /// Returns the connection that acquired or renewed it last, if known.
    #[must_use]
    pub fn client(self) -> Option<ClientId> {
        self.lock.head.client(self.lock.locks.newest_client)
    }

    #[inline(always)]
    fn stored_owner(self) -> Option<Owner<'a>> {
        if self.lock.head.shape == SPILLED {
            return Some(Owner::Plain(&self.lock.spilled()?.owner));
        }
        record::owner(self.lock.head, self.lock.tail)
    }

    /// Returns the owner.
    #[must_use]
    pub fn owner(self) -> OwnerText<'a> {
        match self.stored_owner() {
            Some(Owner::Uuid(bytes)) => OwnerText::Uuid(name_codec::uuid_text(bytes)),
            Some(Owner::Plain(owner)) => OwnerText::Plain(owner),
            None => OwnerText::Plain(&[]),
        }
    }

    /// Returns true if this is the owner.
    #[inline(always)]
    #[must_use]
    pub fn is_of(self, owner: &[u8]) -> bool {
        match self.stored_owner() {
            Some(Owner::Uuid(bytes)) => name_codec::is_uuid_text(bytes, owner),
            Some(Owner::Plain(own)) => *own == *owner,
            None => false,
        }
    }
}

impl Locks {
    /// Returns the lock with this number.
    #[inline]
    #[must_use]
    pub fn get(&self, id: LockId) -> Option<Lock<'_>> {
        let (head, tail) = self.head(id)?;
        Some(Lock { locks: self, index: id.index(), head, tail })
    }

    /// Returns the hold of the lock with this number.
    #[inline]
    #[must_use]
    pub fn hold(&self, id: LockId) -> Option<Hold<'_>> {
        self.get(id)?.hold()
    }

    /// Returns all locks, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (LockId, Lock<'_>)> {
        self.records.0.iter().filter_map(|(index, bytes)| {
            let (head, tail) = Head::ref_from_prefix(bytes).ok()?;
            Some((self.id(index, head.generation()), Lock { locks: self, index, head, tail }))
        })
    }

    pub(super) const fn id(&self, index: u32, generation: u8) -> LockId {
        LockId::new(self.epoch, index, generation)
    }

    #[inline]
    pub(super) fn head(&self, id: LockId) -> Option<(&Head, &[u8])> {
        self.records.head(id.index()).filter(|(head, _)| id.has_generation(self.epoch, head.generation()))
    }

    #[inline]
    pub(super) fn head_mut(&mut self, id: LockId) -> Option<&mut Head> {
        let set = self.epoch;
        self.records.head_mut(id.index()).filter(|head| id.has_generation(set, head.generation()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::held_by_ann;
    use super::*;

    #[test]
    fn a_hold_is_restored_until_its_owner_shows_on_a_connection() {
        let mut locks = Locks::default();
        let own = held_by_ann(&mut locks, 1, Some(ClientId(7)));
        let restored = held_by_ann(&mut locks, 2, None);
        let is_restored =
            |locks: &Locks| [own, restored].map(|id| locks.hold(id).map(|hold| hold.client().is_none()));
        assert_eq!(is_restored(&locks), [Some(false), Some(true)]);
        locks.note_shown(restored, None);
        assert_eq!(is_restored(&locks), [Some(false), Some(true)], "nobody knows its connection");
        locks.note_shown(restored, Some(ClientId(8)));
        assert_eq!(is_restored(&locks), [Some(false), Some(false)]);
    }
}
