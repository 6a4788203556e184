//! A lock as a row of numbers, for RDB files, DUMP payloads and slot migration.
//!
//! Everything is an unsigned integer, the owner's bytes included, so that a reader never allocates by
//! a length that somebody else wrote. What cannot have been written by this module is refused, never
//! repaired (G14).
//!
//! ```text
//! version (1)
//! name      FNV-1a hash of the key: a payload restored under another name is an empty lock
//! kind      0: empty, nothing follows; 1: exclusive
//! token     1 to 2^53 - 1
//! left      milliseconds of the lease that were left, 0 to 86,400,000
//! length    of the owner in bytes, 1 to 256
//! owner     ceil(length / 8) numbers of 8 bytes, little end first, filled up with zeros
//! ```

use super::types::{LEASE_MS_MAX, OWNER_BYTES_MAX, Token};

const VERSION: u64 = 1;
const KIND_EMPTY: u64 = 0;
const KIND_EXCLUSIVE: u64 = 1;

/// A hold on its way between servers: its lease is what was left of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedHold {
    /// Who holds.
    pub owner: Box<[u8]>,
    /// The fencing token.
    pub token: Token,
    /// What was left of the lease.
    pub left_ms: u64,
}

/// The hash of a key's name, as the payload carries it (Fowler, Noll, Vo: FNV-1a, 64 bits).
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Writes a lock: calls `write` with each number.
pub fn encode(name: &[u8], hold: Option<&SavedHold>, mut write: impl FnMut(u64)) {
    write(VERSION);
    write(name_hash(name));
    let Some(hold) = hold else {
        write(KIND_EMPTY);
        return;
    };
    write(KIND_EXCLUSIVE);
    write(hold.token.get());
    write(hold.left_ms.min(LEASE_MS_MAX));
    write(hold.owner.len() as u64);
    for chunk in hold.owner.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        write(u64::from_le_bytes(bytes));
    }
}

/// Reads a lock that stood under `name`, or tells why it cannot be one.
///
/// `read` gives the next number, or `None` when there is no more.
pub fn decode(name: &[u8], mut read: impl FnMut() -> Option<u64>) -> Result<Option<SavedHold>, &'static str> {
    let mut next = || read().ok_or("it is cut short");
    if next()? != VERSION {
        return Err("its version is not known to this module");
    }
    let is_same_name = next()? == name_hash(name);
    match next()? {
        KIND_EMPTY => return Ok(None),
        KIND_EXCLUSIVE => {}
        _ => return Err("its kind is not known to this module"),
    }
    let token = Token::new(next()?).ok_or("its token is out of range")?;
    let left_ms = next()?;
    if left_ms > LEASE_MS_MAX {
        return Err("its lease is out of range");
    }
    let length = usize::try_from(next()?).unwrap_or(usize::MAX);
    if length == 0 || length > OWNER_BYTES_MAX {
        return Err("its owner is not 1 to 256 bytes long");
    }
    let mut owner = Vec::with_capacity(OWNER_BYTES_MAX);
    for _ in 0..length.div_ceil(8) {
        owner.extend_from_slice(&next()?.to_le_bytes());
    }
    if owner.drain(length..).any(|byte| byte != 0) {
        return Err("its owner is not filled up with zeros");
    }
    let hold = SavedHold { owner: owner.into(), token, left_ms };
    Ok(is_same_name.then_some(hold))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &[u8], hold: Option<&SavedHold>) -> Vec<u64> {
        let mut numbers = Vec::new();
        encode(name, hold, |number| numbers.push(number));
        numbers
    }

    fn read(name: &[u8], numbers: &[u64]) -> Result<Option<SavedHold>, &'static str> {
        let mut numbers = numbers.iter().copied();
        decode(name, || numbers.next())
    }

    fn hold(owner: &[u8]) -> SavedHold {
        SavedHold {
            owner: owner.into(),
            token: Token::new(1_795_243_208_114_201).expect("valid"),
            left_ms: 30_000,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        for length in 1..=OWNER_BYTES_MAX {
            let owner: Vec<u8> = (0..length).map(|n| (n * 7 + 255) as u8).collect();
            let hold = hold(&owner);
            assert_eq!(read(b"k", &written(b"k", Some(&hold))), Ok(Some(hold)));
        }
        assert_eq!(read(b"k", &written(b"k", None)), Ok(None));
    }

    #[test]
    fn under_another_name_it_is_an_empty_lock() {
        assert_eq!(read(b"other", &written(b"k", Some(&hold(b"a")))), Ok(None));
    }

    #[test]
    fn every_cut_and_every_wrong_field_is_refused() {
        let good = written(b"k", Some(&hold(b"owner-of-12b")));
        for cut in 0..good.len() {
            assert!(read(b"k", &good[..cut]).is_err(), "cut at {cut}");
        }
        let wrong = [
            (0, 2),
            (2, 2),
            (3, 0),
            (3, 1 << 53),
            (4, LEASE_MS_MAX + 1),
            (5, 0),
            (5, 257),
            (5, u64::MAX),
            (7, 1 << 32 | 0x6232_3100),
        ];
        for (index, value) in wrong {
            let mut bad = good.clone();
            bad[index] = value;
            assert!(read(b"k", &bad).is_err(), "field {index} = {value}");
        }
    }

    #[test]
    fn random_numbers_never_allocate_much_or_panic() {
        let mut seed = 11_u64;
        for round in 0..100_000_u64 {
            let mut numbers = written(b"k", Some(&hold(b"some-owner")));
            for _ in 0..=round % 3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
                let index = (seed >> 40) as usize % numbers.len();
                numbers[index] ^= 1 << ((seed >> 30) % 64);
            }
            if let Ok(Some(hold)) = read(b"k", &numbers) {
                assert!(!hold.owner.is_empty() && hold.owner.len() <= OWNER_BYTES_MAX);
                assert!(hold.left_ms <= LEASE_MS_MAX);
            }
        }
    }
}
