//! A lock as a row of numbers, for RDB files, DUMP payloads and slot migration.
//!
//! Everything is an unsigned integer, the owner's bytes included, so that a reader never allocates by
//! a length that somebody else wrote. What cannot have been written by this module is refused, never
//! repaired (G14).
//!
//! The row of a lock that very many hold is [packed](super::packed).
//!
//! ```text
//! version (1)
//! name      FNV-1a hash of the key: a payload restored under another name is an empty lock
//! kind      0: empty, nothing follows; 1: exclusive, one hold without more to say;
//!           2: exclusive; 3: shared; 4: limited; then how many places it has (0 but for limited) and how many
//!           holds follow, 1 to 1,000,000 (2: one)
//!
//! and for each hold:
//!
//! token     1 to 2^53 - 1, each greater than the one before
//! left      milliseconds of the lease that were left, 0 to 86,400,000
//! length    of the owner in bytes, 1 to 256
//! owner     ceil(length / 8) numbers of 8 bytes, little end first, filled up with zeros
//!
//! and behind each, but for kind 1:
//!
//! count     how many releases it takes, from 1
//! binding     the sum of 1: its connection keeps it alive; 2: it is cut with its connection; 4: the lease runs though
//!           its connection kept it alive, because that connection has closed
//! cut       milliseconds that are left when the connection closes; 0 without it
//! ```

use hashbrown::HashSet;

use crate::lock::types::{
    Binding, COUNT_MAX, LEASE_MS_MAX, LIMIT_MAX, Mode, OWNER_BYTES_MAX, OwnerBuf, Token,
};

const VERSION: u64 = 1;
const KIND_EMPTY: u64 = 0;
const KIND_PLAIN: u64 = 1;
const KIND_EXCLUSIVE: u64 = 2;
const KIND_SHARED: u64 = 3;
pub(super) const KIND_LIMITED: u64 = 4;

const KEPT_ALIVE: u64 = 1;
const EPHEMERAL: u64 = 2;
const RUNNING: u64 = 4;

/// Most holds of one lock.
const HOLDS_MAX: u64 = 1_000_000;

/// A hold on its way between servers: its lease is what was left of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedHold {
    /// The owner that holds.
    pub owner: OwnerBuf,
    /// The fencing token.
    pub token: Token,
    /// What was left of the lease.
    pub left_ms: u64,
    /// How many releases it takes.
    pub count: u32,
    /// What bound it to its connection.
    pub binding: Binding,
}

/// A lock on its way between servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedLock {
    /// How it is held.
    pub mode: Mode,
    /// By whom, in the order of their tokens; never empty.
    pub holds: Vec<SavedHold>,
}

/// The hash of a key's name, as the payload carries it (Fowler, Noll, Vo: FNV-1a, 64 bits).
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Writes a lock: calls `write` with each number.
pub fn encode(name: &[u8], lock: Option<&SavedLock>, mut write: impl FnMut(u64)) {
    write(VERSION);
    encode_row(name, lock, write);
}

/// Writes a lock without the version: calls `write` with each number.
pub(super) fn encode_row(name: &[u8], lock: Option<&SavedLock>, mut write: impl FnMut(u64)) {
    write(name_hash(name));
    let Some(lock) = lock else {
        write(KIND_EMPTY);
        return;
    };
    if let (Mode::Exclusive, [hold]) = (lock.mode, &*lock.holds)
        && hold.count == 1
        && hold.binding.is_none()
    {
        write(KIND_PLAIN);
        return encode_hold(hold, &mut write);
    }
    let (kind, limit) = match lock.mode {
        Mode::Exclusive => (KIND_EXCLUSIVE, 0),
        Mode::Shared => (KIND_SHARED, 0),
        Mode::Limit(limit) => (KIND_LIMITED, u64::from(limit)),
    };
    write(kind);
    write(limit);
    write(lock.holds.len() as u64);
    for hold in &lock.holds {
        encode_hold(hold, &mut write);
        write(u64::from(hold.count));
        let running = if hold.binding.is_running { RUNNING } else { 0 };
        let kept = running | if hold.binding.is_keepalive { KEPT_ALIVE } else { 0 };
        write(kept | hold.binding.ephemeral_ms.map_or(0, |_| EPHEMERAL));
        write(hold.binding.ephemeral_ms.unwrap_or(0));
    }
}

fn encode_hold(hold: &SavedHold, write: &mut impl FnMut(u64)) {
    write(hold.token.get());
    write(hold.left_ms.min(LEASE_MS_MAX));
    write(hold.owner.len() as u64);
    for chunk in hold.owner.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        write(u64::from_le_bytes(bytes));
    }
}

/// Reads a lock that stood under `name` and is not packed, or tells why it cannot be one.
///
/// `read` gives the next number, or `None` when there is no more.
pub fn decode(name: &[u8], mut read: impl FnMut() -> Option<u64>) -> Result<Option<SavedLock>, &'static str> {
    if read().ok_or(CUT_SHORT)? != VERSION {
        return Err("its version is not known to this module");
    }
    decode_row(name, 0, read)
}

/// Reads what stands behind the version. Refuses a lock that fewer than `fewest` hold.
pub(super) fn decode_row(
    name: &[u8],
    fewest: u64,
    mut read: impl FnMut() -> Option<u64>,
) -> Result<Option<SavedLock>, &'static str> {
    let mut next = || read().ok_or(CUT_SHORT);
    let is_same_name = next()? == name_hash(name);
    let kind = next()?;
    if fewest > 0 && matches!(kind, KIND_EMPTY | KIND_PLAIN) {
        return Err(BADLY_PACKED);
    }
    if kind == KIND_EMPTY {
        return Ok(None);
    }
    if kind == KIND_PLAIN {
        let lock = SavedLock { mode: Mode::Exclusive, holds: vec![decode_hold(&mut next)?] };
        return Ok(is_same_name.then_some(lock));
    }
    let (limit, count) = (next()?, next()?);
    let mode = match (kind, u32::try_from(limit)) {
        (KIND_EXCLUSIVE, Ok(0)) if count == 1 => Mode::Exclusive,
        (KIND_SHARED, Ok(0)) => Mode::Shared,
        (KIND_LIMITED, Ok(permits @ 1..=LIMIT_MAX)) if count <= limit => Mode::Limit(permits),
        _ => return Err("its kind is not known to this module"),
    };
    if count == 0 || count > HOLDS_MAX {
        return Err("it has no or too many holders");
    }
    if count < fewest {
        return Err(BADLY_PACKED);
    }
    // Grows with what is really read, never by what is claimed.
    let mut holds: Vec<SavedHold> = Vec::new();
    for _ in 0..count {
        let mut hold = decode_hold(&mut next)?;
        hold.count =
            u32::try_from(next()?).ok().filter(|count| (1..=COUNT_MAX).contains(count)).ok_or(BAD_COUNT)?;
        let (binding, cut_ms) = (next()?, next()?);
        let is_acknowledged = matches!(binding & (KEPT_ALIVE | RUNNING), 0 | KEPT_ALIVE | 5) && binding <= 7;
        if !is_acknowledged || cut_ms > LEASE_MS_MAX || (binding & EPHEMERAL == 0 && cut_ms > 0) {
            return Err("its tie to a connection is not known to this module");
        }
        hold.binding.is_keepalive = binding & KEPT_ALIVE != 0;
        hold.binding.is_running = binding & RUNNING != 0;
        hold.binding.ephemeral_ms = (binding & EPHEMERAL != 0).then_some(cut_ms);
        if holds.last().is_some_and(|last| last.token >= hold.token) {
            return Err(BAD_ORDER);
        }
        holds.push(hold);
    }
    if !are_distinct(&holds) {
        return Err(BAD_ORDER);
    }
    Ok(is_same_name.then_some(SavedLock { mode, holds }))
}

pub(super) const BADLY_PACKED: &str = "it is not packed as this module packs";
pub(super) const CUT_SHORT: &str = "it is cut short";
const BAD_COUNT: &str = "its count is out of range";
const BAD_ORDER: &str = "its holders are not in order";

/// Whether each owner holds once.
fn are_distinct(holds: &[SavedHold]) -> bool {
    let mut owners = HashSet::with_capacity(holds.len());
    holds.iter().all(|hold| owners.insert(&*hold.owner))
}

fn decode_hold(next: &mut impl FnMut() -> Result<u64, &'static str>) -> Result<SavedHold, &'static str> {
    let token = Token::new(next()?).ok_or("its token is out of range")?;
    let left_ms = next()?;
    if left_ms > LEASE_MS_MAX {
        return Err("its lease is out of range");
    }
    let length = usize::try_from(next()?).unwrap_or(usize::MAX);
    if length == 0 || length > OWNER_BYTES_MAX {
        return Err("its owner is not 1 to 256 bytes long");
    }
    let mut bytes = [0; OWNER_BYTES_MAX];
    let filled_up = &mut bytes[..length.next_multiple_of(8)];
    for chunk in filled_up.chunks_exact_mut(8) {
        chunk.copy_from_slice(&next()?.to_le_bytes());
    }
    let (owner, filling) = filled_up.split_at(length);
    if filling.iter().any(|&byte| byte != 0) {
        return Err("its owner is not filled up with zeros");
    }
    Ok(SavedHold { owner: OwnerBuf::from_slice(owner), token, left_ms, count: 1, binding: Binding::NONE })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::lock::codec) fn written(name: &[u8], lock: Option<&SavedLock>) -> Vec<u64> {
        let mut numbers = Vec::new();
        encode(name, lock, |number| numbers.push(number));
        numbers
    }

    fn read(name: &[u8], numbers: &[u64]) -> Result<Option<SavedLock>, &'static str> {
        let mut numbers = numbers.iter().copied();
        decode(name, || numbers.next())
    }

    fn hold_with(token: u64, owner: &[u8]) -> SavedHold {
        let token = Token::new(token).expect("valid");
        SavedHold { owner: owner.into(), token, left_ms: 30_000, count: 1, binding: Binding::NONE }
    }

    fn hold(owner: &[u8]) -> SavedLock {
        SavedLock { mode: Mode::Exclusive, holds: vec![hold_with(1_795_243_208_114_201, owner)] }
    }

    /// Locks of all kinds.
    pub(in crate::lock::codec) fn locks() -> Vec<SavedLock> {
        let bound = |binding, count| SavedHold { binding, count, ..hold_with(9, b"tied") };
        let kept = Binding { is_keepalive: true, ..Binding::NONE };
        let cut = Binding { ephemeral_ms: Some(0), ..Binding::NONE };
        let both = Binding { ephemeral_ms: Some(LEASE_MS_MAX), is_keepalive: true, is_running: true };
        vec![
            hold(b"alone"),
            SavedLock { mode: Mode::Exclusive, holds: vec![bound(kept, 1)] },
            SavedLock { mode: Mode::Exclusive, holds: vec![bound(Binding::NONE, 7)] },
            SavedLock { mode: Mode::Shared, holds: vec![hold_with(1, b"a"), bound(cut, 2)] },
            SavedLock {
                mode: Mode::Limit(3),
                holds: vec![hold_with(1, b"a"), hold_with(2, b"b"), bound(both, 1)],
            },
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        for length in 1..=OWNER_BYTES_MAX {
            let owner: Vec<u8> = (0..length).map(|n| (n * 7 + 255) as u8).collect();
            let hold = hold(&owner);
            assert_eq!(read(b"k", &written(b"k", Some(&hold))), Ok(Some(hold)));
        }
        assert_eq!(read(b"k", &written(b"k", None)), Ok(None));
        for lock in locks() {
            assert_eq!(read(b"k", &written(b"k", Some(&lock))), Ok(Some(lock)));
        }
    }

    #[test]
    fn a_payload_under_another_name_is_an_empty_lock() {
        assert_eq!(read(b"other", &written(b"k", Some(&hold(b"a")))), Ok(None));
    }

    #[test]
    fn every_cut_and_every_wrong_field_of_a_shared_lock_is_refused() {
        let lock = &locks()[4];
        let good = written(b"k", Some(lock));
        for cut in 0..good.len() {
            assert!(read(b"k", &good[..cut]).is_err(), "cut at {cut}");
        }
        // version, name, kind, places, holds; token, left, length, owner, count, binding, cut; the next token
        let wrong = [
            (2, 5),
            (2, KIND_SHARED),
            (2, KIND_EXCLUSIVE),
            (3, 0),
            (3, 2),
            (3, u64::from(LIMIT_MAX) + 1),
            (4, 0),
            (4, 4),
            (9, 0),
            (9, u64::from(COUNT_MAX) + 1),
            (10, 4),
            (11, 1),
            (12, 1),
            (15, u64::from(b'a')),
        ];
        for (index, value) in wrong {
            let mut bad = good.clone();
            bad[index] = value;
            assert!(read(b"k", &bad).is_err(), "field {index} = {value}");
        }
    }

    #[test]
    fn every_cut_and_every_wrong_field_is_refused() {
        let good = written(b"k", Some(&hold(b"owner-of-12b")));
        for cut in 0..good.len() {
            assert!(read(b"k", &good[..cut]).is_err(), "cut at {cut}");
        }
        let wrong = [
            (0, 2),
            (2, 9),
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
    fn a_payload_at_a_limit_is_read_and_one_beyond_it_is_not() {
        let mut longest = hold(b"a");
        longest.holds[0].left_ms = LEASE_MS_MAX;
        assert_eq!(read(b"k", &written(b"k", Some(&longest))), Ok(Some(longest)));
        // Several holders of what one alone can hold.
        let mut shared = written(b"k", Some(&locks()[3]));
        shared[2] = KIND_EXCLUSIVE;
        assert_eq!(read(b"k", &shared), Err("its kind is not known to this module"));
        // As many holders as there may be are looked for, and no more.
        let claimed = |count| read(b"k", &[VERSION, name_hash(b"k"), KIND_SHARED, 0, count]);
        assert_eq!(claimed(HOLDS_MAX), Err("it is cut short"));
        assert_eq!(claimed(HOLDS_MAX + 1), Err("it has no or too many holders"));
        assert_eq!(claimed(0), Err("it has no or too many holders"));
    }

    #[test]
    fn random_numbers_never_allocate_much_or_panic() {
        let mut seed = 11_u64;
        let locks = locks();
        for round in 0..100_000_u64 {
            let mut numbers = written(b"k", locks.get(round as usize % locks.len()));
            for _ in 0..=round % 3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
                let index = (seed >> 40) as usize % numbers.len();
                numbers[index] ^= 1 << ((seed >> 30) % 64);
            }
            if let Ok(Some(lock)) = read(b"k", &numbers) {
                assert!(!lock.holds.is_empty() && lock.holds.len() <= 3);
                for hold in lock.holds {
                    assert!(!hold.owner.is_empty() && hold.owner.len() <= OWNER_BYTES_MAX);
                    assert!(hold.left_ms <= LEASE_MS_MAX && hold.count >= 1);
                }
            }
        }
    }
}
