//! The input of a replica, or of a server that replays its append-only file: commands, line by line.
//!
//! ```text
//! A key owner PX ms ...     LOCK.ACQUIRE            P key HOLD token ms owner ...   LOCK.APPLY
//! M 2 key key owner PX ms   LOCK.MACQUIRE           T last told                     LOCK.TICK
//! R key owner               LOCK.RELEASE            D key, F key key                DEL, RENAME
//! N key owner PX ms         LOCK.RENEW              W ms                            time passes
//! ```

use super::replica::Replica;
use super::{reading, split};
use crate::command::args::{Bounds, integer};
use crate::command::internal::parse_tick;
use crate::command::{acquire, macquire, release, renew};
use crate::lock::codec::SavedHold;
use crate::lock::effect::Effects;
use crate::lock::table::{Granted, KeyRef, Release, Renewal};
use crate::lock::types::{LEASE_MS_MAX, LockKey};

const LINES_MAX: usize = 40;
const WORDS_MAX: usize = 24;

/// Applies the queues. Then it is promoted, and everything ends.
pub(crate) fn run(data: &[u8]) {
    let mut replica = Replica::default();
    for line in split(data, b'\n', LINES_MAX) {
        let words = split(line, b' ', WORDS_MAX);
        let last = replica.table.last_token();
        apply(&mut replica, &words);
        assert!(replica.table.last_token() >= last, "G4: the clock of tokens went back");
    }
    replica.check();
    replica.check_copies();
    replica.ask(b"a", b"newcomer", Default::default(), true);
    replica.pump();
    replica.release_all();
    replica.let_all_end();
}

/// One queue: words that are no record change nothing.
fn apply(replica: &mut Replica, words: &[&[u8]]) {
    match *words {
        [b"P", key, ref rest @ ..] => drop(replica.told(key, rest)),
        [b"A", key, ref rest @ ..] => drop(acquire(replica, key, rest)),
        [b"M", ref rest @ ..] => drop(acquire_many(replica, rest)),
        [b"R", key, ref rest @ ..] => drop(release(replica, key, rest)),
        [b"N", key, ref rest @ ..] => {
            if let Ok(renew::Renew { owner, lease_ms, token, raise }) =
                reading(|| renew::parse(rest, &Bounds::WIDEST))
            {
                let renewal = Renewal { owner, token, raise, lease_ms, client: None, bind_to: None };
                replica.step(key, |table, now, key_ref, _| table.apply_renew(now.boot, key_ref, &renewal));
            }
        }
        [b"T", ref rest @ ..] => {
            if let Some((last, replicated)) = reading(|| parse_tick(rest)) {
                let newest = replica.table.last_token().max(last);
                replica.table.clock().adopt(last, replicated);
                let clock = replica.table.clock();
                assert_eq!(
                    (clock.last_token(), clock.replicated_token()),
                    (newest, replicated),
                    "it counts from elsewhere"
                );
            }
        }
        [b"D", key] => replica.remove(key),
        [b"F", from, to] => replica.rename(from, to),
        [b"W", ms] => replica.pass_ms(integer(ms).map_or(0, |ms| ms.min(LEASE_MS_MAX))),
        _ => {}
    }
}

fn acquire(replica: &mut Replica, key: &[u8], words: &[&[u8]]) -> Option<()> {
    let parsed = reading(|| acquire::parse(words, &Bounds::WIDEST)).ok()?;
    let granted = granted(&parsed)?;
    let before = own(replica, key, granted.owner);
    replica.step(key, |table, now, key_ref, fx| table.apply_acquire(now.boot, key_ref, &granted, fx));
    let (before, after) = (before?, own(replica, key, granted.owner)?);
    let is_again = before.token == after.token && before.binding.is_none() && after.binding.is_none();
    assert!(!is_again || after.left_ms >= before.left_ms, "asking again made the lease shorter");
    Some(())
}

/// The hold of an owner.
fn own(replica: &Replica, key: &[u8], owner: &[u8]) -> Option<SavedHold> {
    replica.saved(key)?.holds.into_iter().find(|hold| *hold.owner == *owner)
}

fn release(replica: &mut Replica, key: &[u8], words: &[&[u8]]) -> Option<()> {
    let asked = reading(|| release::parse(words)).ok()?;
    let Release { owner, token } = asked;
    let (before, held) = (replica.saved(key), own(replica, key, owner));
    replica.step(key, |table, now, key_ref, fx| table.apply_release(now.boot, key_ref, &asked, fx));
    let is_meant = held.is_some_and(|hold| token.is_none_or(|token| token == hold.token));
    assert!(is_meant || replica.saved(key) == before, "a release of another hold changed something");
    Some(())
}

fn granted<'a>(parsed: &acquire::Acquire<'a>) -> Option<Granted<'a>> {
    let acquire::Acquire { owner, lease_ms, mode, is_reentrant, binding, .. } = *parsed;
    Some(Granted { owner: owner?, lease_ms, mode, is_reentrant, binding })
}

fn acquire_many(replica: &mut Replica, words: &[&[u8]]) -> Option<()> {
    let (names, parsed) = reading(|| macquire::parse(words, &Bounds::WIDEST)).ok()?;
    let granted = granted(&parsed)?;
    let mut refs = Vec::new();
    for name in names {
        refs.push(KeyRef { lock_key: LockKey { db: 0, name }, existing: replica.existing(name) });
    }
    let mut fx = vec![Effects::default(); refs.len()];
    let steps = replica.table.apply_acquire_many(replica.now(), &refs, &granted, &mut fx);
    for (name, step) in names.iter().zip(&steps) {
        replica.carry_out(name, step.change);
    }
    replica.check();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G13: a snapshot of more holders than places is one that no server reads back.
    #[test]
    fn a_full_semaphore_with_a_record_of_one_more_holder_ends_the_oldest() {
        let mut replica = Replica::default();
        for hold in [[b"5", b"x"], [b"7", b"y"], [b"6", b"z"]] {
            assert!(replica.told(b"a", &[b"HOLD", hold[0], b"5000", hold[1], b"2", b"1", b"NO", b"NO"]));
        }
        let left = replica.saved(b"a").map(|lock| lock.holds.iter().map(|hold| hold.token.get()).collect());
        assert_eq!(left, Some(vec![6, 7]));
        replica.check_copies();
    }
}
