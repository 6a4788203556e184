//! Very many waits that end together.

use super::*;

#[test]
fn waits_that_fail_together_end_some_at_a_time() {
    for is_lost in [true, false] {
        let mut all = primary(&[("a", 0), ("b", 0)]);
        let waits: Vec<_> = (0..5).map(|_| all.wait(at(1), at(50), ALL).expect("both are there")).collect();
        all.sent(40);
        let mut now = at(50);
        if is_lost {
            now = at(2);
            all.see(now, &seen(&[("a", 0)]));
        }
        let failed = |waits: &[WaitId]| waits.iter().map(|&id| (id, Verdict::Failed)).collect::<Vec<_>>();
        assert_eq!(all.take_some_over(now, 9, 2), failed(&waits[..2]));
        assert!(all.is_behind());
        // One wait leaves meanwhile. A grant past its deadline is not delivered, though all replicas have it by now.
        all.leave(waits[2]);
        all.see(now, &seen(&[("a", 40), ("b", 40)]));
        assert_eq!(all.take_some_over(now, 9, 0), []);
        assert!(all.is_behind());
        assert_eq!(all.take_some_over(now, 9, 9), failed(&waits[3..]));
        assert!(all.is_empty() && !all.is_behind());
    }
}

#[test]
fn a_hopeless_wait_is_confirmed_if_no_replica_is_required() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let waits = [1, 2].map(|_| all.wait(at(1), at(50), ALL).expect("both are there"));
    all.sent(40);
    all.see(at(2), &seen(&[("a", 0)]));
    assert_eq!(all.take_some_over(at(2), 9, 1), [(waits[0], Verdict::Failed)]);
    all.need_nobody();
    assert_eq!(all.take_some_over(at(2), 9, 9), [(waits[1], Verdict::Confirmed)]);
    assert!(all.is_empty() && !all.is_behind());
}

#[test]
fn what_is_gone_is_not_what_comes_after_it() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let before = all.wait(at(1), at(50), ALL).expect("both are there");
    all.drop_all();
    all.begin(at(2));
    all.see(at(2), &seen(&[("a", 0), ("b", 0)]));
    let after = all.wait(at(2), at(50), ALL).expect("both are there");
    all.sent(40);
    assert!(all.is_gone(before) && !all.is_gone(after));
    all.leave(before);
    all.see(at(3), &seen(&[("a", 40), ("b", 40)]));
    assert_eq!(all.take_over(at(3)), [(after, Verdict::Confirmed)]);
    assert_eq!(all.take_gone(), Some(before));
}
