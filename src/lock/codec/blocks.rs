//! A lock as blocks of bytes, for RDB files, DUMP payloads and slot migration.
//!
//! A value is one block, or several if very many hold the lock. Each block is a string of at most 16 KiB, so that neither
//! side ever has more than one of them in memory. The lowest version that can express a value is written. Numbers begin
//! with their lowest byte.
//!
//! ```text
//! block     version (1 byte), flags (1 byte; 1: the last block), in the first one the head, rows
//! head      FNV-1a hash of the key (8 bytes): a payload restored under another name is an empty lock
//!           kind (1 byte), 0: empty, nothing follows; 1: exclusive, one row; 2: shared; 3: limited
//!           limited: the limit (4 bytes); shared and limited: how many rows follow, in all blocks (4 bytes)
//! row       length of the rest (2 bytes)
//!           token (7 bytes), greater than that of the row before
//!           milliseconds of the lease that were left (4 bytes)
//!           flags (1 byte), the sum of 1: a count follows; 2: a cut follows; 4: its connection keeps it alive; 8: the
//!           lease runs all the same, because that connection has closed
//!           count, how many releases it takes, from 2 (4 bytes)
//!           cut, milliseconds that are left when its connection closes (4 bytes)
//!           owner, all that is left of the row
//! ```
//!
//! Bytes that this module cannot have written are refused, never repaired (G14).

use crate::lock::tuning::Bound;
use std::ops::Deref;

use hashbrown::HashSet;
use smallvec::SmallVec;

use super::saved::{SavedHold, SavedLock};
use crate::lock::types::{
    Binding, COUNT_MAX, LEASE_MS_MAX, LIMIT_MAX, Mode, OWNER_BYTES_MAX, OwnerBuf, Token,
};

/// Longest block.
pub const BLOCK_BYTES_MAX: usize = Bound::of(16 * 1024, 320).fixed();

/// Newest version of values and records that this module reads.
pub const NEWEST_VERSION: u8 = if cfg!(feature = "next-format") { 2 } else { 1 };

const IS_LAST: u8 = 1;

const KIND_EMPTY: u8 = 0;
const KIND_EXCLUSIVE: u8 = 1;
const KIND_SHARED: u8 = 2;
const KIND_LIMITED: u8 = 3;

const COUNTED: u8 = 1;
const EPHEMERAL: u8 = 2;
const KEPT_ALIVE: u8 = 4;
const RUNNING: u8 = 8;

/// Bytes of a token.
const TOKEN_BYTES: usize = 7;
/// Bytes of the shortest row after its length.
const ROW_BYTES_MIN: usize = TOKEN_BYTES + 4 + 1 + 1;
/// Most holds of one lock.
const HOLDS_MAX: usize = 1_000_000;

/// A block of one row is written without an allocation.
type Block = SmallVec<[u8; 320]>;

/// Returns the lowest version that can express a lock held in this mode, or a record of one of its holds.
///
/// The tests build a module with the feature `next-format`, in which every mode but exclusive needs version 2.
#[must_use]
pub const fn lowest_version(mode: Mode) -> u8 {
    if matches!(mode, Mode::Exclusive) { 1 } else { NEWEST_VERSION }
}

/// The hash of a key's name, as the payload carries it (Fowler, Noll, Vo: FNV-1a, 64 bits).
fn name_hash(name: &[u8]) -> [u8; 8] {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash.to_le_bytes()
}

/// Writes a lock: calls `put` with each block.
pub fn write(name: &[u8], lock: Option<&SavedLock>, mut put: impl FnMut(&[u8])) {
    let version = lowest_version(lock.map_or(Mode::Exclusive, |lock| lock.mode));
    let mut block = Block::new();
    block.extend_from_slice(&[version, 0]);
    block.extend_from_slice(&name_hash(name));
    let holds = match lock {
        None => {
            block.push(KIND_EMPTY);
            &[]
        }
        Some(SavedLock { mode, holds }) => {
            let count = &holds.len().to_le_bytes()[..4];
            match *mode {
                Mode::Exclusive => block.push(KIND_EXCLUSIVE),
                Mode::Shared => {
                    block.push(KIND_SHARED);
                    block.extend_from_slice(count);
                }
                Mode::Limit(limit) => {
                    block.push(KIND_LIMITED);
                    block.extend_from_slice(&limit.to_le_bytes());
                    block.extend_from_slice(count);
                }
            }
            holds.as_slice()
        }
    };
    for hold in holds {
        let start = block.len();
        write_row(&mut block, hold);
        if block.len() > BLOCK_BYTES_MAX {
            put(&block[..start]);
            block.drain(2..start);
        }
    }
    block[1] = IS_LAST;
    put(&block);
}

fn write_row(block: &mut Block, hold: &SavedHold) {
    let SavedHold { ref owner, token, left_ms, count, binding } = *hold;
    let has = |flag, is_so| if is_so { flag } else { 0 };
    let flags = has(COUNTED, count > 1)
        | has(EPHEMERAL, binding.ephemeral_ms.is_some())
        | has(KEPT_ALIVE, binding.is_keepalive)
        | has(RUNNING, binding.is_running);
    let ms = |ms: u64| (ms.min(LEASE_MS_MAX) as u32).to_le_bytes();
    let start = block.len();
    block.extend_from_slice(&[0, 0]);
    block.extend_from_slice(&token.get().to_le_bytes()[..TOKEN_BYTES]);
    block.extend_from_slice(&ms(left_ms));
    block.push(flags);
    if count > 1 {
        block.extend_from_slice(&count.to_le_bytes());
    }
    if let Some(cut_ms) = binding.ephemeral_ms {
        block.extend_from_slice(&ms(cut_ms));
    }
    block.extend_from_slice(owner);
    let length = (block.len() - start - 2).to_le_bytes();
    block[start..start + 2].copy_from_slice(&length[..2]);
}

const CUT_SHORT: &str = "it is cut short";
const TOO_LONG: &str = "it has a block of more than 16 KiB";
const UNKNOWN_VERSION: &str = "its version is not known to this module: a newer one has written it";
const MIXED_VERSIONS: &str = "its blocks have different versions";
const UNKNOWN_FLAGS: &str = "it has flags that are not known to this module";
const UNKNOWN_KIND: &str = "its kind is not known to this module";
const TRAILING: &str = "it goes on behind its end";
const NO_ROWS: &str = "it has a block without a holder";
const BAD_NUMBER: &str = "it has no or too many holders";
const BAD_TOKEN: &str = "its token is out of range";
const BAD_LEASE: &str = "its lease is out of range";
const BAD_COUNT: &str = "its count is out of range";
const BAD_OWNER: &str = "its owner is not 1 to 256 bytes long";
const BAD_ORDER: &str = "its tokens are not in order";
const REPEATED: &str = "an owner holds it twice";

/// Reads a lock that was stored under `name`, or returns the reason why it is invalid. `next` returns the next block,
/// `None` if there is none.
pub fn read<B: Deref<Target = [u8]>>(
    name: &[u8],
    mut next: impl FnMut() -> Option<B>,
) -> Result<Option<SavedLock>, &'static str> {
    let mut block = next().ok_or(CUT_SHORT)?;
    let (version, mut is_last, mut rows) = open(&block)?;
    let is_same_name = take(&mut rows)? == name_hash(name);
    let Some((mode, count)) = read_kind(&mut rows)? else {
        return if is_last && rows.is_empty() { Ok(None) } else { Err(TRAILING) };
    };
    // The memory grows with the bytes that are really read, never with the claimed length. Holds under another name
    // are read and discarded.
    let room = if is_same_name { count.min(rows.len() / ROW_BYTES_MIN) } else { 0 };
    let (mut holds, mut number, mut newest) = (Vec::with_capacity(room), 0, None);
    loop {
        if rows.is_empty() {
            return Err(NO_ROWS);
        }
        while !rows.is_empty() {
            if number == count {
                return Err(TRAILING);
            }
            let hold = read_row(&mut rows)?;
            if newest >= Some(hold.token) {
                return Err(BAD_ORDER);
            }
            (number, newest) = (number + 1, Some(hold.token));
            if is_same_name {
                holds.push(hold);
            }
        }
        if is_last {
            break;
        }
        block = next().ok_or(CUT_SHORT)?;
        if block.first() != Some(&version) {
            return Err(MIXED_VERSIONS);
        }
        (_, is_last, rows) = open(&block)?;
    }
    if number < count {
        return Err(CUT_SHORT);
    }
    if !are_distinct(&holds) {
        return Err(REPEATED);
    }
    Ok(is_same_name.then_some(SavedLock { mode, holds }))
}

/// Returns the version of a block, whether it is the last one, and its content.
fn open(block: &[u8]) -> Result<(u8, bool, &[u8]), &'static str> {
    if block.len() > BLOCK_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let mut rest = block;
    let [version, flags] = take(&mut rest)?;
    if !(1..=NEWEST_VERSION).contains(&version) {
        return Err(UNKNOWN_VERSION);
    }
    if flags & !IS_LAST != 0 {
        return Err(UNKNOWN_FLAGS);
    }
    Ok((version, flags == IS_LAST, rest))
}

/// Reads the mode of the lock and the number of its holders; `None` for an empty lock.
fn read_kind(rest: &mut &[u8]) -> Result<Option<(Mode, usize)>, &'static str> {
    let [kind] = take(rest)?;
    let (mode, most) = match kind {
        KIND_EMPTY => return Ok(None),
        KIND_EXCLUSIVE => return Ok(Some((Mode::Exclusive, 1))),
        KIND_SHARED => (Mode::Shared, HOLDS_MAX),
        KIND_LIMITED => match u32::from_le_bytes(take(rest)?) {
            limit @ 1..=LIMIT_MAX => (Mode::Limit(limit), limit as usize),
            _ => return Err(UNKNOWN_KIND),
        },
        _ => return Err(UNKNOWN_KIND),
    };
    let count = u32::from_le_bytes(take(rest)?) as usize;
    if (1..=most).contains(&count) { Ok(Some((mode, count))) } else { Err(BAD_NUMBER) }
}

fn read_row(rows: &mut &[u8]) -> Result<SavedHold, &'static str> {
    let length = usize::from(u16::from_le_bytes(take(rows)?));
    let (mut row, rest) = rows.split_at_checked(length).ok_or(CUT_SHORT)?;
    *rows = rest;
    let mut token = [0; 8];
    token[..TOKEN_BYTES].copy_from_slice(&take::<TOKEN_BYTES>(&mut row)?);
    let token = Token::new(u64::from_le_bytes(token)).ok_or(BAD_TOKEN)?;
    let ms = |row: &mut &[u8]| {
        let ms = u64::from(u32::from_le_bytes(take(row)?));
        if ms <= LEASE_MS_MAX { Ok(ms) } else { Err(BAD_LEASE) }
    };
    let left_ms = ms(&mut row)?;
    let [flags] = take(&mut row)?;
    let has = |flag| flags & flag != 0;
    if flags >= RUNNING << 1 || has(RUNNING) && !has(KEPT_ALIVE) {
        return Err(UNKNOWN_FLAGS);
    }
    let count = if has(COUNTED) { u32::from_le_bytes(take(&mut row)?) } else { 1 };
    if has(COUNTED) && !(2..=COUNT_MAX).contains(&count) {
        return Err(BAD_COUNT);
    }
    let ephemeral_ms = if has(EPHEMERAL) { Some(ms(&mut row)?) } else { None };
    if row.is_empty() || row.len() > OWNER_BYTES_MAX {
        return Err(BAD_OWNER);
    }
    let binding = Binding { ephemeral_ms, is_keepalive: has(KEPT_ALIVE), is_running: has(RUNNING) };
    Ok(SavedHold { owner: OwnerBuf::from_slice(row), token, left_ms, count, binding })
}

/// Takes the first bytes of the rest.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (first, others) = rest.split_first_chunk().ok_or(CUT_SHORT)?;
    *rest = others;
    Ok(*first)
}

/// Returns true if no owner holds twice.
fn are_distinct(holds: &[SavedHold]) -> bool {
    if holds.len() < 2 {
        return true;
    }
    let mut owners = HashSet::with_capacity(holds.len());
    holds.iter().all(|hold| owners.insert(&*hold.owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &[u8], lock: Option<&SavedLock>) -> Vec<Vec<u8>> {
        let mut blocks = Vec::new();
        write(name, lock, |block| blocks.push(block.to_vec()));
        blocks
    }

    fn read_blocks(name: &[u8], blocks: &[Vec<u8>]) -> Result<Option<SavedLock>, &'static str> {
        let mut blocks = blocks.iter().cloned();
        read(name, || blocks.next())
    }

    fn hold_with(token: u64, owner: &[u8]) -> SavedHold {
        let token = Token::new(token).expect("valid");
        SavedHold { owner: owner.into(), token, left_ms: 30_000, count: 1, binding: Binding::NONE }
    }

    fn hold(owner: &[u8]) -> SavedLock {
        SavedLock { mode: Mode::Exclusive, holds: vec![hold_with(1_795_243_208_114_201, owner)] }
    }

    /// Locks of all kinds. The last two take several blocks.
    fn locks() -> Vec<SavedLock> {
        let bound = |binding, count| SavedHold { binding, count, ..hold_with(9, b"tied") };
        let kept = Binding { is_keepalive: true, ..Binding::NONE };
        let cut = Binding { ephemeral_ms: Some(0), ..Binding::NONE };
        let both = Binding { ephemeral_ms: Some(LEASE_MS_MAX), is_keepalive: true, is_running: true };
        let many = |many: u64| (1..=many).map(|token| hold_with(token, &token.to_le_bytes())).collect();
        vec![
            hold(b"alone"),
            SavedLock { mode: Mode::Exclusive, holds: vec![bound(kept, 1)] },
            SavedLock { mode: Mode::Exclusive, holds: vec![bound(Binding::NONE, COUNT_MAX)] },
            SavedLock { mode: Mode::Shared, holds: vec![hold_with(1, b"a"), bound(cut, 2)] },
            SavedLock {
                mode: Mode::Limit(3),
                holds: vec![hold_with(1, b"a"), hold_with(2, b"b"), bound(both, 7)],
            },
            SavedLock { mode: Mode::Shared, holds: many(50) },
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        for length in 1..=OWNER_BYTES_MAX {
            let owner: Vec<u8> = (0..length).map(|n| (n * 7 + 255) as u8).collect();
            let hold = hold(&owner);
            assert_eq!(read_blocks(b"k", &written(b"k", Some(&hold))), Ok(Some(hold)));
        }
        assert_eq!(read_blocks(b"k", &written(b"k", None)), Ok(None));
        for lock in locks() {
            assert_eq!(read_blocks(b"k", &written(b"k", Some(&lock))), Ok(Some(lock)));
        }
    }

    #[test]
    fn a_payload_under_another_name_is_an_empty_lock() {
        for lock in locks() {
            assert_eq!(read_blocks(b"other", &written(b"k", Some(&lock))), Ok(None));
        }
    }

    /// Returns all but the version and the flags of the blocks.
    fn body(blocks: &[Vec<u8>]) -> Vec<u8> {
        blocks.iter().flat_map(|block| &block[2..]).copied().collect()
    }

    #[test]
    fn an_ordinary_lock_is_one_block_and_many_holders_are_full_ones() {
        let lock = hold(b"01234567-89ab-cdef-0123-456789abcdef");
        let blocks = written(b"k", Some(&lock));
        assert_eq!((blocks.len(), blocks[0].len()), (1, 2 + 8 + 1 + 2 + 7 + 4 + 1 + 36));
        let blocks = written(b"k", locks().last());
        assert!(blocks.len() > 2, "{blocks:?}");
        for pair in blocks.windows(2) {
            let next_row = 2 + usize::from(u16::from_le_bytes([pair[1][2], pair[1][3]]));
            assert!(pair[0].len() <= BLOCK_BYTES_MAX && pair[0].len() + next_row > BLOCK_BYTES_MAX);
            assert_eq!((pair[0][..2] == [1, 0], pair[1][0]), (true, 1));
        }
        assert_eq!(blocks.last().expect("blocks")[1], IS_LAST);
    }

    #[test]
    fn every_cut_and_every_wrong_bit_is_refused_or_read_as_another_lock() {
        for lock in locks() {
            let good = written(b"k", Some(&lock));
            for number in 0..good.len() {
                assert_eq!(read_blocks(b"k", &good[..number]), Err(CUT_SHORT));
                let with = |block: &[u8]| {
                    let mut blocks = good.clone();
                    blocks[number] = block.to_vec();
                    read_blocks(b"k", &blocks)
                };
                let block = &good[number];
                for cut in 0..block.len() {
                    assert!(with(&block[..cut]).is_err_and(|why| why.len() < 80), "cut at {cut}");
                }
                assert!(with(&[block, &b"x"[..]].concat()).is_err(), "something follows");
                for bit in 0..block.len() * 8 {
                    let mut bad = block.clone();
                    bad[bit / 8] ^= 1 << (bit % 8);
                    let read = with(&bad);
                    assert_ne!(read.as_ref(), Ok(&Some(lock.clone())), "bit {bit} of block {number}");
                    // There is one encoding of each lock.
                    if let Ok(Some(other)) = read {
                        let mut blocks = good.clone();
                        blocks[number] = bad;
                        assert_eq!(body(&written(b"k", Some(&other))), body(&blocks), "bit {bit}");
                    }
                }
            }
        }
    }

    /// Returns the reason why the block of this lock is refused after these bytes were written at `at`.
    fn refusal(lock: &SavedLock, at: usize, bytes: &[u8]) -> Option<&'static str> {
        let mut blocks = written(b"k", Some(lock));
        assert_eq!(blocks.len(), 1);
        blocks[0][at..at + bytes.len()].copy_from_slice(bytes);
        read_blocks(b"k", &blocks).err()
    }

    #[test]
    fn every_field_beyond_its_range_is_refused() {
        let (kind, row) = (10, 11);
        let of = |at: usize, bytes: &[u8]| refusal(&hold(b"owner"), at, bytes);
        assert_eq!(of(0, &[1]), None);
        for version in [0, NEWEST_VERSION + 1, 255] {
            assert_eq!(of(0, &[version]), Some(UNKNOWN_VERSION));
        }
        for flags in [2, 3, 128] {
            assert_eq!(of(1, &[flags]), Some(UNKNOWN_FLAGS));
        }
        assert_eq!(of(kind, &[KIND_EMPTY]), Some(TRAILING));
        assert_eq!(of(kind, &[KIND_LIMITED + 1]), Some(UNKNOWN_KIND));
        assert_eq!(of(row + 2, &[0; 7]), Some(BAD_TOKEN));
        assert_eq!(of(row + 2, &[0, 0, 0, 0, 0, 0, 32]), Some(BAD_TOKEN));
        assert_eq!(of(row + 9, &(LEASE_MS_MAX as u32).to_le_bytes()), None);
        assert_eq!(of(row + 9, &(LEASE_MS_MAX as u32 + 1).to_le_bytes()), Some(BAD_LEASE));
        for flags in [RUNNING, 16, 128] {
            assert_eq!(of(row + 13, &[flags]), Some(UNKNOWN_FLAGS));
        }
        assert_eq!(of(row, &[12]), Some(BAD_OWNER));
        let counted = |count: u32| refusal(&locks()[2], row + 14, &count.to_le_bytes());
        assert_eq!(counted(2), None);
        for count in [0, 1, COUNT_MAX + 1] {
            assert_eq!(counted(count), Some(BAD_COUNT), "a plain row says 1");
        }
        let mut longest = written(b"k", Some(&hold(&[b'o'; OWNER_BYTES_MAX])));
        longest[0].push(b'o');
        longest[0][row..row + 2].copy_from_slice(&(12 + OWNER_BYTES_MAX as u16 + 1).to_le_bytes());
        assert_eq!(read_blocks(b"k", &longest), Err(BAD_OWNER));
    }

    #[test]
    fn holders_and_their_order_are_checked() {
        // After the kind: the limit, the number of holders, and the first row.
        let limited = |at: usize, number: u32| refusal(&locks()[4], at, &number.to_le_bytes());
        assert_eq!((limited(11, 0), limited(11, LIMIT_MAX + 1)), (Some(UNKNOWN_KIND), Some(UNKNOWN_KIND)));
        assert_eq!(limited(11, 2), Some(BAD_NUMBER), "more hold than may");
        assert_eq!((limited(15, 0), limited(15, 4)), (Some(BAD_NUMBER), Some(BAD_NUMBER)));
        assert_eq!((limited(15, 2), limited(15, 3)), (Some(TRAILING), None));
        let claimed = |count: u32| refusal(&locks()[3], 11, &count.to_le_bytes());
        assert_eq!(
            (claimed(HOLDS_MAX as u32), claimed(HOLDS_MAX as u32 + 1)),
            (Some(CUT_SHORT), Some(BAD_NUMBER))
        );
        let of = |holds: &[(u64, &[u8])]| {
            let holds = holds.iter().map(|&(token, owner)| hold_with(token, owner)).collect();
            read_blocks(b"k", &written(b"k", Some(&SavedLock { mode: Mode::Shared, holds })))
        };
        assert_eq!(of(&[(2, b"a"), (2, b"b")]), Err(BAD_ORDER));
        assert_eq!(of(&[(2, b"a"), (1, b"b")]), Err(BAD_ORDER));
        assert_eq!(of(&[(1, b"a"), (2, b"b"), (3, b"a")]), Err(REPEATED));
    }

    #[test]
    fn blocks_that_are_longer_empty_or_of_several_versions_are_refused() {
        let good = written(b"k", locks().last());
        assert_eq!(read_blocks(b"k", &[vec![1; BLOCK_BYTES_MAX + 1]]), Err(TOO_LONG));
        assert_eq!(read_blocks(b"k", &[]), Err(CUT_SHORT));
        let mut empty = good.clone();
        empty.insert(1, vec![1, 0]);
        assert_eq!(read_blocks(b"k", &empty), Err(NO_ROWS));
        let mut last = good.clone();
        last[1][1] = IS_LAST;
        assert_eq!(read_blocks(b"k", &last), Err(CUT_SHORT), "as many were claimed");
        let mut unended = good;
        unended.last_mut().expect("blocks")[1] = 0;
        assert_eq!(read_blocks(b"k", &unended), Err(CUT_SHORT));
        unended[1][0] = 2;
        assert_eq!(read_blocks(b"k", &unended), Err(MIXED_VERSIONS));
    }
}
