//! The numbers of locks.

/// The number of a lock: what the server's keyspace stores as the value of the key. Never 0.
///
/// It finds its lock and no other one: it carries the mark of its slot, which counts the slot's lives, and the number
/// of its [`Set`]. The number of a crowd, a lock that several hold, is that of its place in an arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(u64);

// A number is made of a mark and an index.
#[allow(clippy::cast_possible_truncation)]
impl LockId {
    /// This is a record, and no crowd. No number is 0 either way: the edge stores it where null means "no value".
    const RECORD: u64 = 1 << 63;
    const MARK_SHIFT: u32 = 32;

    /// The number as the edge may store it.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The id with this number. A number that was never given out finds nothing.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(super) const fn new(set: Set, index: u32, mark: u8) -> Self {
        Self(Self::RECORD | ((set.0 | mark as u32) as u64) << Self::MARK_SHIFT | index as u64)
    }

    pub(super) const fn index(self) -> u32 {
        self.0 as u32
    }

    /// Whether this is the number of the record with this mark at its index, in this set.
    #[inline]
    pub(super) const fn has_mark(self, set: Set, mark: u8) -> bool {
        self.0 >> Self::MARK_SHIFT == Self::RECORD >> Self::MARK_SHIFT | (set.0 | mark as u32) as u64
    }

    /// The set of which this record is, if it is one.
    pub(super) const fn set(self) -> Set {
        Set(((self.0 & !Self::RECORD) >> Self::MARK_SHIFT) as u32 & !0xff)
    }

    /// Whether this is a lock that several may hold.
    #[inline]
    #[must_use]
    pub const fn is_crowd(self) -> bool {
        self.0 & Self::RECORD == 0
    }
}

/// Which set of locks a record is of: a data set that is loaded beside another one has a set of its own, and no number
/// of the one finds anything in the other, nor in a later one.
///
/// Shifted to where it stands in a number: above the mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Set(u32);

impl Set {
    const SHIFT: u32 = 8;
    /// How many there are before they begin anew: four million loads.
    const COUNT: u32 = 1 << 22;

    pub(super) const fn new(number: u32) -> Self {
        Self((number % Self::COUNT) << Self::SHIFT)
    }
}

impl std::fmt::Debug for LockId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_crowd() { "crowd " } else { "" };
        write!(f, "#{kind}{}.{}", self.index(), (self.0 & !Self::RECORD) >> Self::MARK_SHIFT)
    }
}
