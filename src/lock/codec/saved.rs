//! The content of a lock in files, payloads and records, and its digest for `DEBUG DIGEST-VALUE`.

use crate::lock::types::{Binding, Mode, OwnerBuf, Token};

/// A hold in transit between servers: its lease is the time that remained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedHold {
    /// The owner.
    pub owner: OwnerBuf,
    /// The fencing token.
    pub token: Token,
    /// The remaining lease.
    pub left_ms: u64,
    /// The number of releases that end it.
    pub count: u32,
    /// Its binding to its connection.
    pub binding: Binding,
}

/// A lock in transit between servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedLock {
    /// The mode of its holds.
    pub mode: Mode,
    /// Its holds, in the order of their tokens; never empty.
    pub holds: Vec<SavedHold>,
}

/// A part of a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Digested<'a> {
    /// A number.
    Number(i64),
    /// Some bytes.
    Bytes(&'a [u8]),
}

/// Adds a lock to a digest; `None` for a lock without a hold.
///
/// The lease is left out, because it differs between servers by the age of their copies. A lock that the first
/// version could express keeps the digest that the first version gave it.
pub fn digest<'a>(lock: Option<&'a SavedLock>, mut add: impl FnMut(Digested<'a>)) {
    use Digested::{Bytes, Number};
    let Some(SavedLock { mode, holds }) = lock else {
        add(Bytes(&[]));
        return add(Number(0));
    };
    let is_of_first_version = *mode == Mode::Exclusive && holds.iter().all(|hold| hold.count == 1);
    if !is_of_first_version {
        add(Number(match *mode {
            Mode::Exclusive => 0,
            Mode::Shared => -1,
            Mode::Limit(limit) => i64::from(limit),
        }));
    }
    for hold in holds {
        add(Bytes(&hold.owner));
        add(Number(hold.token.get().cast_signed()));
        if !is_of_first_version {
            add(Number(i64::from(hold.count)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Digested::{Bytes, Number};
    use super::*;

    fn digest_of(mode: Mode, count: u32, left_ms: u64) -> Vec<String> {
        let hold = SavedHold {
            owner: b"ann"[..].into(),
            token: Token::new(7).unwrap(),
            left_ms,
            count,
            binding: Binding::NONE,
        };
        let mut parts = Vec::new();
        digest(Some(&SavedLock { mode, holds: vec![hold] }), |part| parts.push(format!("{part:?}")));
        parts
    }

    #[test]
    fn a_digest_has_all_but_the_lease_and_is_that_of_the_first_version_where_that_knew_the_lock() {
        let parts = |parts: &[Digested<'_>]| parts.iter().map(|part| format!("{part:?}")).collect::<Vec<_>>();
        let first = parts(&[Bytes(b"ann"), Number(7)]);
        assert_eq!(digest_of(Mode::Exclusive, 1, 100), first);
        assert_eq!(digest_of(Mode::Exclusive, 1, 200), first);
        let later = |mode, count| parts(&[Number(mode), Bytes(b"ann"), Number(7), Number(count)]);
        assert_eq!(digest_of(Mode::Exclusive, 2, 100), later(0, 2));
        assert_eq!(digest_of(Mode::Shared, 1, 100), later(-1, 1));
        assert_eq!(digest_of(Mode::Limit(3), 1, 100), later(3, 1));
        let mut empty = Vec::new();
        digest(None, |part| empty.push(part));
        assert_eq!(empty, [Bytes(b""), Number(0)]);
    }
}
