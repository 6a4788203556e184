//! The basic types of the core: moments, leases, tokens, lock keys, owners.
//!
//! Each is a newtype with its limits, so that a count of milliseconds is never taken for one of
//! microseconds and a token never for a time.

use crate::lock::tuning::Bound;
use std::fmt;

/// Longest owner, in bytes (CONTRACT 1).
pub const OWNER_BYTES_MAX: usize = 256;

/// Largest token: it must survive a client that stores numbers in a double (CONTRACT 1: below 2^53).
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// Longest lease that any setting can allow, in milliseconds (CONTRACT 7: max-lease, a day).
///
/// It also bounds records and files: a hold that no server can have granted is rejected.
pub const LEASE_MS_MAX: u64 = 86_400_000;

/// A moment on the machine's boot-time clock, in microseconds (G2: no wall clock decides a lease).
///
/// Microseconds, because a lease counted in whole milliseconds from a clock cut to milliseconds
/// would end up to one millisecond early.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// Returns the moment `ms` milliseconds later.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1000)))
    }

    /// Returns the milliseconds from `self` to `later`, rounded up; 0 if `later` has passed.
    #[must_use]
    pub const fn ms_until(self, later: Self) -> u64 {
        later.0.saturating_sub(self.0).div_ceil(1000)
    }

    /// Returns the whole milliseconds from `earlier` to `self`.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1000
    }
}

/// Both clocks, read once at the edge of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// The boot-time clock: leases and waits.
    pub boot: Moment,
    /// Microseconds since the Unix epoch: tokens only.
    pub wall_us: u64,
}

/// A fencing token: 1 to [`TOKEN_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Token(u64);

impl Token {
    /// Returns the token with this number, if that is a valid token.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number >= 1 && number <= TOKEN_MAX { Some(Self(number)) } else { None }
    }

    /// Returns the number that clients see.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The mode of a hold (CONTRACT 2). All holders and waiters of a lock agree on its kind: exclusive and shared are one
/// kind, each limit is one of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Mode {
    /// Held by one owner.
    #[default]
    Exclusive,
    /// Held by any number, as long as it is not held exclusively.
    Shared,
    /// Held by at most this many owners, 1 to [`LIMIT_MAX`]: a semaphore.
    Limit(u32),
}

impl Mode {
    /// Returns true if a lock can be requested in both modes at the same time.
    #[must_use]
    pub const fn agrees_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Limit(a), Self::Limit(b)) => a == b,
            (Self::Limit(_), _) | (_, Self::Limit(_)) => false,
            _ => true,
        }
    }
}

/// Most holders of a semaphore.
pub const LIMIT_MAX: u32 = 1_000_000;

/// Most times that a hold can be acquired again (REENTRANT).
pub const COUNT_MAX: u32 = 1_000_000_000;

/// The binding of a hold to the connection that acquired or renewed it last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Binding {
    /// When the connection closes, the lease is cut to at most this.
    pub ephemeral_ms: Option<u64>,
    /// While the connection is open, the lease is paused.
    pub is_keepalive: bool,
    /// The lease runs all the same, because the connection has closed and the owner has not reconnected.
    pub is_running: bool,
}

impl Binding {
    /// No binding: only the lease limits the hold.
    pub const NONE: Self = Self { ephemeral_ms: None, is_keepalive: false, is_running: false };

    /// Returns true if the lease is paused.
    #[must_use]
    pub const fn is_paused(self) -> bool {
        self.is_keepalive && !self.is_running
    }

    /// Returns true if there is no binding.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.ephemeral_ms.is_none() && !self.is_keepalive
    }
}

/// A connection, by the server's number for it. It does not identify a holder: the owner does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ClientId(pub u64);

/// Longest owner that is stored without an allocation: the text of a UUID fits.
const OWNER_INLINE: usize = Bound::of(40, 2).fixed();

/// An owned copy of an owner.
pub type OwnerBuf = smallvec::SmallVec<[u8; OWNER_INLINE]>;

/// The database and key of a lock. Borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct LockKey<'a> {
    /// Number of the database.
    pub db: u32,
    /// The key, any bytes.
    pub name: &'a [u8],
}

impl LockKey<'_> {
    /// Returns an owned copy.
    #[must_use]
    pub fn to_owned(self) -> LockKeyBuf {
        LockKeyBuf { db: self.db, name: self.name.into() }
    }
}

/// The database and key of a lock. Owned.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LockKeyBuf {
    /// Number of the database.
    pub db: u32,
    /// The key, any bytes.
    pub name: Box<[u8]>,
}

impl LockKeyBuf {
    /// Returns this lock key, borrowed.
    #[must_use]
    pub fn as_key(&self) -> LockKey<'_> {
        LockKey { db: self.db, name: &self.name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_asked() {
        // G2: the remaining time is rounded up, the elapsed time is rounded down.
        let start = Moment(1_999);
        let end = start.plus_ms(30);
        assert_eq!(end, Moment(31_999));
        assert_eq!(start.ms_until(end), 30);
        assert_eq!(Moment(2_000).ms_until(end), 30);
        assert_eq!(Moment(31_999).ms_until(end), 0);
        assert_eq!(Moment(31_998).ms_since(start), 29);
    }

    #[test]
    fn moments_saturate() {
        assert_eq!(Moment(u64::MAX).plus_ms(1), Moment(u64::MAX));
        assert_eq!(Moment(5).plus_ms(u64::MAX), Moment(u64::MAX));
        assert_eq!(Moment(0).ms_since(Moment(9)), 0);
    }

    #[test]
    fn a_lock_key_is_its_database_and_its_name() {
        let lock_key = LockKey { db: 1, name: b"a" };
        assert_eq!(lock_key.to_owned().as_key(), lock_key);
        for other in
            [LockKey { db: 0, name: b"a" }, LockKey { db: 1, name: b"b" }, LockKey { db: 1, name: b"" }]
        {
            assert_ne!(other.to_owned().as_key(), lock_key);
        }
    }

    #[test]
    fn tokens_stay_below_two_to_the_53() {
        assert_eq!(Token::new(0), None);
        assert_eq!(Token::new(1).map(Token::get), Some(1));
        assert_eq!(Token::new(TOKEN_MAX).map(Token::get), Some(9_007_199_254_740_991));
        assert_eq!(Token::new(TOKEN_MAX + 1), None);
    }
}
