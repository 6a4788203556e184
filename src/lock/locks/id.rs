//! The numbers of locks.

/// The number of a lock: the value that the server's keyspace stores at the key. Never 0.
///
/// It finds its own lock or nothing: it carries the number of its [`Epoch`] and the generation of its slot, which
/// counts how often the slot was occupied. The number of a list of holders is that of its place in an arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(u64);

// A number is made of a generation and an index.
#[allow(clippy::cast_possible_truncation)]
impl LockId {
    /// Marks a record, as opposed to a list of holders. No number is 0 either way: the edge stores it where null
    /// means "no value".
    const RECORD: u64 = 1 << 63;
    const MARK_SHIFT: u32 = 32;

    /// Returns the number, in the form that the edge stores.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Returns the id with this number. A number that was never issued finds nothing.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(super) const fn new(epoch: Epoch, index: u32, generation: u8) -> Self {
        Self(Self::RECORD | ((epoch.0 | generation as u32) as u64) << Self::MARK_SHIFT | index as u64)
    }

    /// Returns the position of its record.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    /// Returns true if this is the number of the record with this generation at its index, in this epoch.
    #[inline]
    pub(super) const fn has_generation(self, epoch: Epoch, generation: u8) -> bool {
        self.0 >> Self::MARK_SHIFT == Self::RECORD >> Self::MARK_SHIFT | (epoch.0 | generation as u32) as u64
    }

    /// Returns the set of locks that this record belongs to, if this is the number of a record.
    pub(super) const fn epoch(self) -> Epoch {
        Epoch(((self.0 & !Self::RECORD) >> Self::MARK_SHIFT) as u32 & !0xff)
    }

    /// Returns true if this is a lock that may have several holders.
    #[inline]
    #[must_use]
    pub const fn is_list(self) -> bool {
        self.0 & Self::RECORD == 0
    }
}

/// The set of locks that a record belongs to. A flush starts another set, in which no number of an older one finds
/// anything.
///
/// Shifted to its place in a number: above the generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Epoch(u32);

impl Epoch {
    const SHIFT: u32 = 8;
    /// The number of epochs before they repeat: four million flushes.
    const COUNT: u32 = 1 << 22;

    pub(super) const fn new(number: u32) -> Self {
        Self((number % Self::COUNT) << Self::SHIFT)
    }
}

impl std::fmt::Debug for LockId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_list() { "crowd " } else { "" };
        write!(f, "#{kind}{}.{}", self.index(), (self.0 & !Self::RECORD) >> Self::MARK_SHIFT)
    }
}
