//! Holds that go on under another token in the step that began them.

use super::*;

const ALONE: UndoRecord = UndoRecord { owner: Vec::new(), counts: false, is_upgrade: true };

/// What goes on from one token to another one.
fn goes_on(was: u64, token: u64, undo: UndoRecord) -> PendingGrant {
    PendingGrant { was: Token::new(was), ..pending_grant("x", token, undo) }
}

/// A client is told of `x` under this token.
fn told(all: &mut Confirmations, token: u64) -> WaitId {
    let lock_key = pending_grant("x", token, BEGUN).lock_key;
    all.wait_to_answer(at(1), EITHER, 50, Token::new(token), [lock_key]).expect("one is there")
}

fn waits_for(all: &Confirmations, wait: WaitId) -> Vec<(u64, bool, bool)> {
    let pending_grants = all.pending_grants(wait).iter();
    pending_grants.map(|its| (its.token.get(), its.undo.counts, its.undo.is_upgrade)).collect()
}

#[test]
fn each_client_waits_for_what_its_own_request_began_of_a_hold_that_went_on() {
    let mut all = primary(&[("a", 0)]);
    all.note_begun(vec![
        pending_grant("x", 7, BEGUN),
        goes_on(7, 8, ALONE),
        goes_on(8, 9, UndoRecord::NOTHING),
    ]);
    let (shared, last, alone) = (told(&mut all, 7), told(&mut all, 9), told(&mut all, 8));
    assert_eq!(waits_for(&all, shared), [(9, true, false)]);
    assert_eq!(waits_for(&all, alone), [(9, false, true)]);
    assert_eq!(waits_for(&all, last), [(9, false, false)]);
    // A client that asked again in the same step began nothing.
    let again = told(&mut all, 7);
    assert_eq!(waits_for(&all, again), [(9, false, false)]);
    // What the others began is for the last of them to undo.
    all.sent(10);
    [shared, last, alone].into_iter().for_each(|wait| all.leave(wait));
    assert!(!all.has_undo());
    all.leave(again);
    let both = UndoRecord { counts: true, ..ALONE };
    assert_eq!(
        undone(&mut all).into_iter().map(|its| (its.token.get(), its.undo)).collect::<Vec<_>>(),
        [(9, both)]
    );
}

#[test]
fn a_token_that_another_hold_has_since_is_that_holds() {
    let mut all = primary(&[("a", 0)]);
    let of = |owner: &[u8]| UndoRecord { owner: owner.into(), ..UndoRecord::NOTHING };
    all.note_begun(vec![goes_on(7, 8, of(b"alice"))]);
    // Bob raised his to just what alice's was.
    all.note_begun(vec![goes_on(5, 7, of(b"bob"))]);
    for _ in 0..2 {
        let wait = told(&mut all, 7);
        assert_eq!(waits_for(&all, wait), [(7, false, false)]);
    }
}

#[test]
fn a_hold_that_has_its_earlier_token_again_is_found_under_that() {
    let mut all = primary(&[("a", 0)]);
    // What nobody was told of was taken back.
    all.note_begun(vec![goes_on(7, 8, ALONE), goes_on(8, 7, UndoRecord::NOTHING)]);
    for token in [8, 7, 8, 7] {
        let wait = told(&mut all, token);
        assert_eq!(waits_for(&all, wait)[0].0, 7);
    }
    // The next turn knows nothing of it.
    all.forget_begun();
    let wait = told(&mut all, 8);
    assert_eq!(waits_for(&all, wait), [(8, false, false)]);
}

#[test]
fn a_hold_that_goes_on_under_its_own_token_leads_nowhere() {
    let mut all = primary(&[("a", 0)]);
    all.note_begun(vec![goes_on(7, 7, UndoRecord::NOTHING)]);
    for _ in 0..2 {
        let wait = told(&mut all, 7);
        assert_eq!(waits_for(&all, wait), [(7, false, false)]);
    }
}
