use super::*;
use crate::lock::tests::visits;

const fn at(ms: u64) -> Moment {
    Moment(ms * 1000)
}

fn seen(replicas: &[(&str, u64)]) -> Vec<Seen> {
    let seen = replicas.iter();
    seen.map(|&(name, acknowledged)| Seen { name: ReplicaName(name.into()), acknowledged }).collect()
}

/// A primary since 0, with these replicas since 0.
fn primary(replicas: &[(&str, u64)]) -> Confirmations {
    let mut all = Confirmations::default();
    all.begin(at(0));
    all.see(at(0), &seen(replicas));
    all
}

const ALL: Rule = Rule::All { replicas: 2 };
const MOST: Rule = Rule::Majority { replicas: 1, stable_ms: 100 };

#[test]
fn confirm_all_needs_every_replica() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let wait = all.wait(at(5), at(50), ALL).expect("both are there");
    assert!(all.has_new());
    assert_eq!(all.poll(at(6)), [], "nothing was sent yet");
    all.sent(40);
    assert!(!all.has_new());
    all.see(at(7), &seen(&[("a", 40), ("b", 39)]));
    assert_eq!(all.poll(at(7)), []);
    all.see(at(8), &seen(&[("a", 41), ("b", 40)]));
    assert_eq!(all.poll(at(8)), [(wait, Verdict::Confirmed)]);
    assert!(all.is_empty());
}

#[test]
fn what_was_acknowledged_before_does_not_count() {
    // The replicas are far ahead of what they had when last seen, and still behind what is being sent.
    let mut all = primary(&[("a", 39), ("b", 39)]);
    let wait = all.wait(at(5), at(50), ALL).expect("both are there");
    all.sent(40);
    assert_eq!(all.poll(at(6)), []);
    assert_eq!(all.poll(at(50)), [(wait, Verdict::Failed)]);
}

#[test]
fn many_confirmed_waits_are_answered_in_several_turns() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let waits: Vec<_> = (0..5).filter_map(|n| all.wait(at(1), at(50 + n), ALL)).collect();
    all.sent(10);
    all.see(at(3), &seen(&[("a", 10), ("b", 10)]));
    let confirmed = |range: std::ops::Range<usize>| -> Vec<_> {
        waits[range].iter().map(|&id| (id, Verdict::Confirmed)).collect()
    };
    assert_eq!(all.take_some_over(at(3), 2, 9), confirmed(0..2));
    assert!(all.has_backlog());
    assert_eq!(all.take_some_over(at(4), 0, 9), []);
    assert!(all.has_backlog(), "nobody was told, and others are to be");
    // A client that is not notified in time is never notified.
    let mut over = vec![(waits[2], Verdict::Failed)];
    over.extend(confirmed(3..5));
    assert_eq!(all.take_some_over(at(52), 2, 9), over);
    assert!(!all.has_backlog() && all.is_empty());
}

#[test]
fn waits_beyond_one_turn_end_in_the_next_ones_without_replicas() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let waits: Vec<_> = (0..3).filter_map(|_| all.wait(at(1), at(50), ALL)).collect();
    // Before anything was sent.
    all.waive_acks();
    all.sent(10);
    all.see(at(2), &seen(&[]));
    for &wait in &waits {
        assert_eq!(all.take_some_over(at(3), 1, 9), [(wait, Verdict::Confirmed)]);
    }
    assert!(all.is_empty() && !all.has_backlog());
}

#[test]
fn requests_of_one_turn_wait_for_one_offset() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let first = all.wait(at(1), at(50), ALL);
    all.sent(10);
    let (second, third) = (all.wait(at(2), at(50), ALL), all.wait(at(2), at(50), ALL));
    all.sent(20);
    all.see(at(3), &seen(&[("a", 10), ("b", 15)]));
    assert_eq!(all.poll(at(3)), [(first.unwrap(), Verdict::Confirmed)]);
    all.see(at(4), &seen(&[("a", 20), ("b", 20)]));
    let over = [second, third].map(|wait| (wait.unwrap(), Verdict::Confirmed));
    assert_eq!(all.poll(at(4)), over);
}

#[test]
fn a_wait_is_looked_at_once_for_each_replica_however_long_another_one_is_silent() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let turns = 1_000;
    visits::take();
    for turn in 1..=turns {
        all.wait(at(1), at(50), ALL).expect("both are there");
        all.sent(10 * turn);
        all.see(at(2), &seen(&[("a", 10 * turn), ("b", 0)]));
        assert_eq!(all.poll(at(2)), []);
        // The newest by the one replica, the oldest by the other one.
        assert!(visits::take() <= 2, "{turn} wait");
    }
    all.see(at(3), &seen(&[("a", 10 * turns), ("b", 10 * turns)]));
    let confirmed = all.poll(at(3)).into_iter().map(|over| over.1);
    assert_eq!(confirmed.collect::<Vec<_>>(), vec![Verdict::Confirmed; 1_000]);
    assert!(visits::take() <= 1_001);
}

#[test]
fn too_few_replicas_fail_at_once() {
    let mut all = primary(&[("a", 0)]);
    assert_eq!(all.wait(at(1), at(50), ALL), None);
    // One replica disconnects in the middle.
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let wait = all.wait(at(1), at(50), ALL).unwrap();
    all.sent(10);
    all.see(at(2), &seen(&[("a", 10)]));
    assert_eq!(all.poll(at(2)), [(wait, Verdict::Failed)]);
}

#[test]
fn a_replica_that_left_and_came_back_does_not_count() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let wait = all.wait(at(1), at(50), MOST);
    assert_eq!(wait, None, "neither is seasoned, nor is the primary");
    let wait = all.wait(at(100), at(500), MOST).unwrap();
    all.sent(10);
    all.see(at(101), &seen(&[("a", 0)]));
    all.see(at(102), &seen(&[("a", 0), ("b", 10)]));
    assert_eq!(all.poll(at(102)), [], "b has it, but by a connection that is new");
    all.see(at(103), &seen(&[("a", 10), ("b", 10)]));
    assert_eq!(all.poll(at(103)), [(wait, Verdict::Confirmed)]);
    // Of the next one b's acknowledgement does not count either, until its connection is old enough.
    all.wait(at(201), at(500), MOST).unwrap();
    all.sent(20);
    all.see(at(201), &seen(&[("a", 10), ("b", 20)]));
    assert_eq!(all.poll(at(201)), []);
    let wait = all.wait(at(202), at(500), MOST).unwrap();
    all.sent(20);
    assert_eq!(all.poll(at(202)), [(wait, Verdict::Confirmed)]);
}

#[test]
fn a_new_primary_confirms_nothing_by_majority() {
    let mut all = primary(&[("a", 0)]);
    assert!(all.wait(at(100), at(500), MOST).is_some());
    all.begin(at(200));
    all.see(at(200), &seen(&[("a", 0)]));
    assert_eq!(all.wait(at(299), at(500), MOST), None);
    assert!(all.wait(at(300), at(500), MOST).is_some());
}

#[test]
fn a_group_of_one_needs_no_replica() {
    let mut all = primary(&[]);
    let wait = all.wait(at(1), at(50), Rule::All { replicas: 0 }).unwrap();
    all.sent(10);
    assert_eq!(all.poll(at(1)), [(wait, Verdict::Confirmed)]);
}

const EITHER: Rule = Rule::Majority { replicas: 1, stable_ms: 0 };

#[test]
fn with_more_replicas_than_the_group_has_all_still_means_all() {
    let mut all = primary(&[("a", 0), ("b", 0), ("c", 0)]);
    let wait = all.wait(at(1), at(50), ALL).unwrap();
    all.sent(10);
    all.see(at(2), &seen(&[("a", 10), ("b", 10), ("c", 9)]));
    assert_eq!(all.poll(at(2)), []);
    all.see(at(3), &seen(&[("a", 10), ("b", 10), ("c", 10)]));
    assert_eq!(all.poll(at(3)), [(wait, Verdict::Confirmed)]);
}

#[test]
fn a_replica_that_reconnects_before_its_old_connection_is_dead_does_not_count() {
    let mut all = primary(&[("a", 0)]);
    let wait = all.wait(at(100), at(500), MOST).unwrap();
    all.sent(10);
    all.see(at(101), &seen(&[("a", 0), ("a", 10)]));
    assert_eq!(all.poll(at(101)), [(wait, Verdict::Failed)]);
    assert!(!all.can_confirm(at(101), MOST));
    // Until the old one is dead, and for a quarantine from then on.
    all.see(at(150), &seen(&[("a", 0), ("a", 10)]));
    all.see(at(151), &seen(&[("a", 10)]));
    assert!(!all.can_confirm(at(249), MOST));
    assert!(all.can_confirm(at(250), MOST));
}

#[test]
fn the_moment_from_which_a_majority_confirms_is_known_beforehand() {
    let mut all = Confirmations::default();
    let of = |replicas| Rule::Majority { replicas, stable_ms: 100 };
    assert_eq!(all.confirms_from(of(0)), None, "it is no primary");
    all.begin(at(10));
    assert_eq!([0, 1].map(|needed| all.confirms_from(of(needed))), [Some(at(110)), None]);
    all.see(at(30), &seen(&[("a", 0)]));
    all.see(at(20), &seen(&[("a", 0), ("b", 0)]));
    let moments = [Some(110), Some(120), Some(130), None].map(|ms| ms.map(at));
    assert_eq!([0, 1, 2, 3].map(|needed| all.confirms_from(of(needed))), moments);
    for (needed, from) in (0..).zip(moments).filter_map(|(needed, from)| Some((needed, from?))) {
        assert!(!all.can_confirm(Moment(from.0 - 1), of(needed)) && all.can_confirm(from, of(needed)));
    }
    assert_eq!(all.confirms_from(Rule::All { replicas: 1 }), None, "no time must pass");
}

#[test]
fn a_server_that_was_demoted_waits_for_nothing_and_confirms_nothing() {
    let mut all = primary(&[("a", 0)]);
    let wait = all.wait(at(100), at(500), MOST).unwrap();
    all.drop_all();
    assert!(all.has_gone() && all.is_gone(wait) && all.is_empty());
    assert_eq!(all.take_gone(), Some(wait));
    while all.has_gone() {
        assert_eq!(all.take_gone(), None);
    }
    assert!(all.is_empty() && all.next_deadline().is_none() && !all.has_new());
    all.see(at(101), &seen(&[("a", 10)]));
    assert!(!all.can_confirm(at(1000), MOST));
}

#[test]
fn an_acknowledgement_that_comes_late_is_none() {
    let mut all = primary(&[("a", 0)]);
    let wait = all.wait(at(1), at(50), EITHER).unwrap();
    all.sent(10);
    all.see(at(50), &seen(&[("a", 10)]));
    assert_eq!(all.poll(at(50)), [(wait, Verdict::Failed)]);
}

#[test]
fn a_change_that_was_missed_leaves_no_replica_to_wait_for() {
    let mut all = primary(&[("a", 0)]);
    let wait = all.wait(at(1), at(50), EITHER).unwrap();
    all.sent(10);
    all.forget_replicas();
    all.see(at(2), &seen(&[("a", 10)]));
    assert_eq!(all.poll(at(2)), [(wait, Verdict::Failed)]);
}

#[test]
fn replicas_are_counted_and_those_that_are_there_long_enough() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    all.see(at(30), &seen(&[("a", 0), ("b", 0), ("c", 0)]));
    assert_eq!(all.replicas(at(99), 100), (3, 0));
    assert_eq!(all.replicas(at(100), 100), (3, 2));
    assert_eq!(all.replicas(at(129), 100), (3, 2));
    assert_eq!(all.replicas(at(130), 100), (3, 3));
    all.see(at(131), &[]);
    assert_eq!(all.replicas(at(500), 100), (0, 0));
}

#[test]
fn waits_are_counted() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    assert_eq!((all.len(), all.is_empty()), (0, true));
    for count in 1..=3 {
        all.wait(at(1), at(50), ALL).expect("both are there");
        assert_eq!((all.len(), all.is_empty()), (count, false));
    }
    all.sent(10);
    all.poll(at(50));
    assert_eq!((all.len(), all.is_empty()), (0, true));
}

#[test]
fn a_wait_that_needs_no_replica_ends_when_its_record_is_sent() {
    let mut all = primary(&[]);
    let nobody = Rule::Majority { replicas: 0, stable_ms: 0 };
    let wait = all.wait(at(1), at(50), nobody).expect("nobody is needed");
    assert_eq!(all.poll(at(2)), []);
    all.sent(10);
    assert_eq!(all.poll(at(2)), [(wait, Verdict::Confirmed)]);
}

#[test]
fn what_can_never_be_confirmed_waits_for_nothing() {
    let mut all = primary(&[]);
    assert_eq!(all.wait(at(1), at(50), EITHER), None);
    assert!(all.is_empty() && all.next_deadline().is_none());
}

#[test]
fn waits_end_when_nothing_has_to_be_confirmed_any_more() {
    let mut all = primary(&[("a", 0)]);
    let waits = [at(40), at(50)].map(|until| all.wait(at(1), until, EITHER).unwrap());
    all.sent(10);
    assert_eq!(all.next_deadline(), Some(at(40)));
    all.waive_acks();
    assert_eq!(all.poll(at(2)), waits.map(|wait| (wait, Verdict::Confirmed)));
    assert!(all.is_empty() && all.next_deadline().is_none());
}

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
        assert!(all.has_backlog());
        // One wait leaves meanwhile. A grant past its deadline is not delivered, though all replicas have it by now.
        all.leave(waits[2]);
        all.see(now, &seen(&[("a", 40), ("b", 40)]));
        assert_eq!(all.take_some_over(now, 9, 0), []);
        assert!(all.has_backlog());
        assert_eq!(all.take_some_over(now, 9, 9), failed(&waits[3..]));
        assert!(all.is_empty() && !all.has_backlog());
    }
}

#[test]
fn a_hopeless_wait_is_confirmed_if_no_replica_is_required() {
    let mut all = primary(&[("a", 0), ("b", 0)]);
    let waits = [1, 2].map(|_| all.wait(at(1), at(50), ALL).expect("both are there"));
    all.sent(40);
    all.see(at(2), &seen(&[("a", 0)]));
    assert_eq!(all.take_some_over(at(2), 9, 1), [(waits[0], Verdict::Failed)]);
    all.waive_acks();
    assert_eq!(all.take_some_over(at(2), 9, 9), [(waits[1], Verdict::Confirmed)]);
    assert!(all.is_empty() && !all.has_backlog());
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
    assert_eq!(all.poll(at(3)), [(after, Verdict::Confirmed)]);
    assert_eq!(all.take_gone(), Some(before));
}
