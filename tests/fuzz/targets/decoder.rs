//! A payload, as DUMP gives it, and as a file, a RESTORE or another server brings it.

use std::collections::BTreeSet;

use super::reading;
use super::replica::Replica;
use crate::lock::codec::{BLOCK_BYTES_MAX, SavedLock, read, write};
use crate::lock::types::COUNT_MAX;
use crate::lock::types::{LEASE_MS_MAX, LIMIT_MAX, Mode, OWNER_BYTES_MAX};

const NAME: &[u8] = b"door";

/// Reads the bytes after the first as blocks, each after two bytes of its length, and lets the lock that they are
/// live. The first says how.
pub(crate) fn run(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let mut blocks = split(rest).into_iter();
    let mut taken = Vec::new();
    let mut next = || {
        taken.push(blocks.next()?);
        taken.last().copied()
    };
    let empty_or_lock = match reading(|| read(NAME, &mut next)) {
        Err(reason) => return assert!(reason.len() < 100 && reason.is_ascii(), "{reason}"),
        Ok(saved) => saved,
    };
    if let Some(saved) = &empty_or_lock {
        check(saved);
        check_written(saved, &taken);
    }
    live(empty_or_lock.as_ref(), how);
}

/// The blocks; the last may be shorter than it says.
fn split(mut rest: &[u8]) -> Vec<&[u8]> {
    let mut blocks = Vec::new();
    while let Some((length, others)) = rest.split_first_chunk() {
        let (block, behind) = others.split_at(usize::from(u16::from_le_bytes(*length)).min(others.len()));
        blocks.push(block);
        rest = behind;
    }
    blocks
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

/// A lock is written with the bytes that it was read from, wherever a block ends: its encoding is unique.
fn check_written(saved: &SavedLock, taken: &[&[u8]]) {
    let mut written = Vec::new();
    write(NAME, Some(saved), |block| written.push(block.to_vec()));
    assert!(written.iter().all(|block| block.len() <= BLOCK_BYTES_MAX), "{written:?}");
    let bodies: Vec<&[u8]> = written.iter().map(|block| &block[2..]).collect();
    let read_bodies: Vec<&[u8]> = taken.iter().map(|block| &block[2..]).collect();
    assert_eq!(bodies.concat(), read_bodies.concat(), "{saved:?}");
    let mut blocks = written.into_iter();
    assert_eq!(read(NAME, || blocks.next()).as_ref().map(Option::as_ref), Ok(Some(saved)));
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
