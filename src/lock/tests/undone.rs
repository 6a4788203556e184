//! What an owner holds after an upgrade that it waited for was granted, could not be confirmed, and was undone (CONTRACT 6).

use super::legacy::ask;
use crate::lock::effect::{Change, Effects, Existing, Step, UndoRecord};
use crate::lock::table::{Acquired, Ask, Decision, KeyRef, Release, Table};
use crate::lock::types::{Binding, ClientId, LockKey, Mode, Moment, Now};

const DOOR: LockKey<'static> = LockKey { db: 0, name: b"door" };
const NOW: Now = Now { boot: Moment(1_000_000), wall_us: 1_000_000 };
const CUT: Binding = Binding { ephemeral_ms: Some(5), is_keepalive: false, is_running: false };

/// What stands at the door after this step.
fn after<R>(step: &Step<R>, before: Existing) -> Existing {
    match step.change {
        Change::Stored(lock) => Existing::Lock(lock),
        _ => before,
    }
}

fn acquire(table: &mut Table, existing: Existing, ask: &Ask<'_>) -> (Acquired, Existing) {
    let key_ref = KeyRef { lock_key: DOOR, existing };
    let step = table.acquire(NOW, key_ref, ask, &mut |_| Decision::Granted, &mut Effects::default());
    (step.reply, after(&step, existing))
}

/// Alice shares the lock with bob, bound like this to connection 1. She waits on connection 2 to hold it alone, for
/// longer and bound like this, and is granted that when bob releases. Then it is undone.
fn undone(before: Binding, upgrade: Binding) -> (Table, Existing) {
    let mut table = Table::default();
    table.set_confirms(true);
    let alice = |mode, binding, lease_ms, client| Ask {
        binding,
        lease_ms,
        bind_to: client,
        client,
        ..ask(b"alice", mode, client.map(|ClientId(client)| client))
    };
    let shared = Ask { wait: None, ..alice(Mode::Shared, before, 50, Some(ClientId(1))) };
    let (_, existing) = acquire(&mut table, Existing::Nothing, &shared);
    let (_, existing) = acquire(&mut table, existing, &ask(b"bob", Mode::Shared, None));
    let (reply, existing) =
        acquire(&mut table, existing, &alice(Mode::Exclusive, upgrade, 500, Some(ClientId(2))));
    assert!(matches!(reply, Acquired::Waiting(_)), "{reply:?}");
    table.take_begun();
    let (key_ref, bob) = (KeyRef { lock_key: DOOR, existing }, Release { owner: b"bob", token: None });
    let step = table.release(NOW, key_ref, &bob, &mut |_| Decision::Granted, &mut Effects::default());
    let existing = after(&step, existing);
    let begun = table.take_begun();
    let [granted] = &begun[..] else { panic!("{begun:?}") };
    assert_eq!(granted.undo, UndoRecord::of(b"alice", false, true));
    let (key_ref, undo) = (KeyRef { lock_key: DOOR, existing }, (granted.token, granted.undo.clone()));
    let step = table.undo(NOW, key_ref, undo, &mut |_| Decision::Granted, &mut Effects::default());
    (table, after(&step, existing))
}

fn left_ms(table: &Table, existing: Existing) -> Vec<u64> {
    let told = table.describe(NOW.boot, DOOR, existing, b"", usize::MAX).expect("somebody holds it");
    told.holds.iter().map(|hold| hold.left_ms).collect()
}

fn close(table: &mut Table, client: u64) {
    table.disconnected(NOW.boot, ClientId(client));
}

#[test]
fn the_hold_of_before_is_cut_when_its_own_connection_closes() {
    let (mut table, existing) = undone(CUT, Binding::NONE);
    close(&mut table, 1);
    assert_eq!(left_ms(&table, existing), [5]);
}

#[test]
fn the_hold_of_before_is_not_cut_with_a_connection_that_was_refused() {
    let (mut table, existing) = undone(Binding::NONE, CUT);
    close(&mut table, 2);
    assert_eq!(left_ms(&table, existing), [50]);
}
