//! A payload, as DUMP gives it, and as a file, a RESTORE or another server brings it.

use std::collections::BTreeSet;

use super::reading;
use super::replica::Replica;
use crate::lock::codec::{BLOCK_BYTES_MAX, Piece, SavedLock, decode, encode, read, write};
use crate::lock::types::COUNT_MAX;
use crate::lock::types::{LEASE_MS_MAX, LIMIT_MAX, Mode, OWNER_BYTES_MAX};

const NAME: &[u8] = b"door";

/// Reads the bytes behind the first as numbers of eight, and lets the lock that they are live. The first says how.
pub(crate) fn run(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let numbers: Vec<u64> = rest.chunks(8).map(number).collect();
    let mut taken = 0;
    let mut next = || {
        taken += 1;
        numbers.get(taken - 1).copied()
    };
    let read = reading(|| decode(NAME, &mut next));
    assert!(taken <= numbers.len() + 1, "it reads on behind the end");
    let empty_or_lock = match read {
        Err(reason) => return assert!(reason.len() < 100 && reason.is_ascii(), "{reason}"),
        Ok(saved) => saved,
    };
    if let Some(saved) = &empty_or_lock {
        check(saved);
        check_written(saved, &numbers[..taken]);
    }
    check_packed(empty_or_lock.as_ref(), rest);
    live(empty_or_lock.as_ref(), how);
}

/// What is written, packed or not, is read as it was. Any bytes in the blocks are a lock as this module could have
/// written it, or are refused.
fn check_packed(saved: Option<&SavedLock>, bytes: &[u8]) {
    let mut pieces = Vec::new();
    write(NAME, saved, |piece| pieces.push(piece));
    assert_eq!(read(NAME, &mut pieces.into_iter()).as_ref(), Ok(&saved.cloned()));
    let blocks = bytes.chunks(BLOCK_BYTES_MAX).map(|block| Piece::Block(block.to_vec()));
    let mut pieces = std::iter::once(Piece::Number(2)).chain(blocks);
    if let Ok(Some(saved)) = reading(|| read(NAME, &mut pieces)) {
        check(&saved);
    }
}

/// Up to eight bytes, the little end first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// It is a lock as this module could have written it (G14).
fn check(saved: &SavedLock) {
    let most = match saved.mode {
        Mode::Exclusive => 1,
        Mode::Shared => 1_000_000,
        Mode::Limit(limit) => limit,
    };
    assert!((1..=most as usize).contains(&saved.holds.len()) && most <= LIMIT_MAX, "{saved:?}");
    assert!(saved.holds.is_sorted_by(|a, b| a.token < b.token), "{saved:?}");
    let owners: BTreeSet<&[u8]> = saved.holds.iter().map(|hold| &*hold.owner).collect();
    assert_eq!(owners.len(), saved.holds.len(), "an owner holds twice: {saved:?}");
    for hold in &saved.holds {
        assert!((1..=OWNER_BYTES_MAX).contains(&hold.owner.len()), "{hold:?}");
        assert!(hold.left_ms <= LEASE_MS_MAX && (1..=COUNT_MAX).contains(&hold.count), "{hold:?}");
        assert!(hold.binding.ephemeral_ms.is_none_or(|ms| ms <= LEASE_MS_MAX), "{hold:?}");
        assert!(hold.binding.is_keepalive || !hold.binding.is_running, "{hold:?}");
    }
}

/// What was read is written with the same numbers: there is one way to say it, but for the two of the plain lock.
fn check_written(saved: &SavedLock, read: &[u64]) {
    let mut written = Vec::new();
    encode(NAME, Some(saved), |number| written.push(number));
    let (mut left, read_again) = (written.iter().copied(), decode(NAME, written_by(&written)));
    assert_eq!(read_again.as_ref().ok().and_then(Option::as_ref), Some(saved));
    let is_short = written.len() < read.len();
    assert!(is_short || read.iter().all(|&number| left.next() == Some(number)), "{read:?} is {written:?}");
}

fn written_by(numbers: &[u64]) -> impl FnMut() -> Option<u64> {
    let mut numbers = numbers.iter().copied();
    move || numbers.next()
}

/// The lock comes to a server, perhaps over another one, and goes in one of the ways in which locks go.
fn live(saved: Option<&SavedLock>, how: u8) {
    let mut replica = Replica::default();
    if how & 1 != 0 {
        replica.told(b"door", &[b"HOLD", b"7", b"5000", b"somebody"]);
        replica.ask(NAME, b"waits", Mode::Shared, true);
    }
    replica.restore(NAME, saved);
    assert_eq!(replica.saved(NAME).as_ref(), saved, "it is not what was restored");
    replica.ask(NAME, b"newcomer", if how & 2 == 0 { Mode::Exclusive } else { Mode::Shared }, how & 4 != 0);
    replica.pump();
    replica.check_copies();
    if how & 8 == 0 {
        replica.release_all();
    }
    replica.let_all_end();
}
