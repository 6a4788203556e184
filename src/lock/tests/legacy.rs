//! Locks of old clients, which the core sees and does not store (legacy-strings): each rule in isolation.

use crate::lock::effect::{Answer, Change, Effect, Effects, Event, Existing, Legacy, Record, Step, Task};
use crate::lock::table::{
    Acquired, Ask, Block, Candidate, Decision, KeyRef, Refusal, Release, Renewal, Table, Wait,
};
use crate::lock::types::{Binding, ClientId, LockKey, Mode, Moment, Now, Token};

const DOOR: LockKey<'static> = LockKey { db: 0, name: b"door" };
const GATE: LockKey<'static> = LockKey { db: 0, name: b"gate" };

const fn at(ms: u64) -> Now {
    Now { boot: Moment(1_000_000 + ms * 1_000), wall_us: 1_000_000 + ms * 1_000 }
}

/// A lock that an old client holds until that time.
const fn held(is_own: bool, until_ms: u64) -> Existing {
    Existing::Legacy(Legacy { is_own, until: at(until_ms).boot })
}

/// A plain request, which waits if it has a connection.
pub(crate) fn ask(owner: &[u8], mode: Mode, client: Option<u64>) -> Ask<'_> {
    let client = client.map(ClientId);
    let wait = client.map(|client| Wait::Block(Block { client, until: None }));
    Ask {
        owner,
        owner_is_minted: false,
        lease_ms: 50,
        mode,
        is_reentrant: false,
        binding: Binding::NONE,
        wait,
        client,
        bind_to: None,
        must_be_explicit: false,
        cannot_confirm: false,
    }
}

fn acquire(table: &mut Table, now: Now, existing: Existing, ask: &Ask<'_>) -> Step<Acquired> {
    let mut fx = Effects::default();
    let step =
        table.acquire(now, KeyRef { lock_key: DOOR, existing }, ask, &mut |_| Decision::Granted, &mut fx);
    assert_eq!(fx.into_iter().count(), usize::from(matches!(step.reply, Acquired::Granted(_))));
    step
}

fn settle(table: &mut Table, now: Now, existing: Existing) -> (Step<()>, Vec<Effect>) {
    let mut fx = Effects::default();
    let step =
        table.settle(now, KeyRef { lock_key: DOOR, existing }, None, &mut |_| Decision::Granted, &mut fx);
    (step, fx.into_iter().collect())
}

/// The clients that were granted a lock.
fn granted(effects: &[Effect]) -> Vec<(u64, Token)> {
    let of = |effect: &Effect| match *effect {
        Effect::Answer { client, answer: Answer::Granted { token, .. }, .. } => Some((client.0, token)),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

#[test]
fn an_old_lock_excludes_everybody_even_an_owner_of_the_same_name() {
    let mut table = Table::default();
    for is_own in [false, true] {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let step = acquire(&mut table, at(0), held(is_own, 30), &ask(b"bob", mode, None));
            assert_eq!(step, Step::unchanged(Acquired::Busy));
        }
    }
    let step = acquire(&mut table, at(0), held(false, 30), &ask(b"bob", Mode::Limit(2), None));
    assert_eq!(step.reply, Acquired::Refused(Refusal::OtherKind(Mode::Exclusive)));
    assert_eq!((table.stats().grants, table.waiters()), (0, 0));
}

#[test]
fn waiters_are_granted_when_an_old_lock_is_gone_and_not_before() {
    let mut table = Table::default();
    for (owner, client) in [(b"bob", 2), (b"eve", 5)] {
        let step = acquire(&mut table, at(0), held(false, 30), &ask(owner, Mode::Exclusive, Some(client)));
        assert!(matches!(
            step,
            Step { reply: Acquired::Waiting(_), change: Change::Nothing, record: Record::Nothing }
        ));
    }
    // It expires without an event, so the core checks it when it should be gone.
    let look = table.next_deadline(true).expect("somebody waits");
    assert!((at(30).boot..=at(40).boot).contains(&look), "{look:?}");
    assert_eq!(table.due(look, true), Some(Task::Settle(DOOR.to_owned())));
    // The old client extended it.
    let (step, effects) = settle(&mut table, at(31), held(false, 90));
    assert_eq!((step, effects), (Step::unchanged(()), vec![]));
    assert!(table.next_deadline(true).is_some_and(|look| look >= at(90).boot), "looks again");
    let (step, effects) = settle(&mut table, at(40), Existing::Nothing);
    assert!(matches!((step.change, step.record), (Change::Stored(_), Record::Hold(_))));
    let granted = granted(&effects);
    assert_eq!(granted.iter().map(|granted| granted.0).collect::<Vec<_>>(), [2], "first come, first served");
    assert_eq!(table.waiters(), 1);
}

#[test]
fn the_owner_that_is_its_value_releases_and_renews_an_old_lock() {
    let mut table = Table::default();
    let mut fx = Effects::default();
    let step = acquire(&mut table, at(0), held(false, 30), &ask(b"bob", Mode::Exclusive, Some(2)));
    assert!(matches!(step.reply, Acquired::Waiting(_)));
    let renew = |table: &mut Table, is_own: bool, token: Option<Token>| {
        let renewal =
            Renewal { owner: b"old", token, raise: None, lease_ms: 70, client: None, bind_to: None };
        let mut fx = Effects::default();
        let key_ref = KeyRef { lock_key: DOOR, existing: held(is_own, 30) };
        table.renew(at(10), key_ref, &renewal, &mut |_| Decision::Granted, &mut fx)
    };
    assert_eq!(renew(&mut table, false, None), Step::unchanged(Ok(false)), "another's");
    assert_eq!(renew(&mut table, true, Token::new(7)), Step::unchanged(Ok(false)), "it has no token");
    let lives = Step { reply: Ok(true), change: Change::Lives(70), record: Record::Lives(70) };
    assert_eq!(renew(&mut table, true, None), lives);
    assert!(
        table.next_deadline(true).is_some_and(|look| look >= at(80).boot),
        "and is waited for to its new end"
    );
    let mut release = |is_own: bool, token: Option<Token>| {
        let admission = &mut |_: Candidate<'_>| Decision::Granted;
        let key_ref = KeyRef { lock_key: DOOR, existing: held(is_own, 80) };
        table.release(at(20), key_ref, &Release { owner: b"old", token }, admission, &mut fx)
    };
    assert_eq!(release(false, None), Step::unchanged(Some(false)), "another's");
    assert_eq!(release(true, Token::new(7)), Step::unchanged(Some(false)), "it has no token");
    let step = release(true, None);
    assert_eq!((step.reply, step.record), (Some(true), Record::Deleted));
    assert!(matches!(step.change, Change::Stored(_)), "the waiter has it");
    assert_eq!((table.stats().releases, table.stats().grants), (1, 1));
    let effects: Vec<Effect> = fx.into_iter().collect();
    assert_eq!(effects.iter().filter(|effect| **effect == Effect::Publish(Event::Released)).count(), 1);
    assert_eq!(granted(&effects).len(), 1);
}

#[test]
fn several_locks_are_not_taken_while_one_is_an_old_lock() {
    let mut table = Table::default();
    let mut take = |existing: Existing| {
        let refs =
            [KeyRef { lock_key: GATE, existing: Existing::Nothing }, KeyRef { lock_key: DOOR, existing }];
        let mut fx = [Effects::default(), Effects::default()];
        let ask = ask(b"bob", Mode::Exclusive, None);
        table.acquire_many(at(0), &refs, &ask, &mut |_| Decision::Granted, &mut fx)
    };
    assert_eq!(take(held(false, 30)), (Acquired::Busy, vec![Step::unchanged(()); 2]));
    assert!(matches!(take(Existing::Nothing).0, Acquired::Granted(_)));
}

#[test]
fn an_old_lock_has_a_holder_and_no_token() {
    let table = Table::default();
    let view = table.describe(at(10).boot, DOOR, held(false, 30), b"old", 10).expect("it is held");
    assert_eq!(view.mode, Mode::Exclusive);
    let [hold] = &view.holds[..] else { panic!("{view:?}") };
    assert_eq!((&*hold.owner, hold.token, hold.left_ms), (&b"old"[..], None, 20));
    assert_eq!(table.live_token(at(10).boot, held(false, 30)), None);
}
