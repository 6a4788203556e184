//! Ranks, compared with a walk over the queue; and what they cost.

use super::*;
use crate::lock::queue::Request;
use crate::lock::tests::random::Random;
use crate::lock::types::{Binding, ClientId, LockKey, Moment};

const PLACE: LockKey<'static> = LockKey { db: 0, name: b"k" };

fn request(owner: u64, mode: Mode, is_reservation: bool) -> Request {
    Request {
        owner: owner.to_string().into_bytes().into(),
        owner_is_minted: false,
        lease_ms: 50,
        since: Moment(1),
        until: is_reservation.then_some(Moment(9)),
        client: (!is_reservation).then_some(ClientId(owner)),
        mode,
        binding: Binding::NONE,
        is_reentrant: false,
    }
}

fn set_turns(queues: &mut Queues, queue: QueueId, turns: usize) -> bool {
    queues.looked(queue, None, None, turns)
}

/// Returns the number of reservations ahead, and whether anything bars the way, by walking over the queue.
fn walked(queues: &Queues, queue: QueueId, until: Option<WaiterId>, but: Option<WaiterId>) -> (usize, bool) {
    let ahead = queues.in_order(queue).take_while(|(id, _)| Some(*id) != until);
    ahead.filter(|(id, _)| Some(*id) != but).fold((0, false), |(reserved, is_barred), (_, waiter)| {
        match Standing::of(waiter) {
            Standing::Reserved => (reserved + 1, is_barred),
            Standing::Bar => (reserved, true),
        }
    })
}

fn compare(queues: &Queues) {
    queues.check().expect("the queues are whole");
    let Some(queue) = queues.at(PLACE) else {
        return;
    };
    let all: Vec<WaiterId> = queues.in_order(queue).map(|(id, _)| id).collect();
    for waiter in all.iter().copied().map(Some).chain([None]) {
        for but in all.iter().copied().filter(|&but| Some(but) != waiter).map(Some) {
            let (reserved, is_barred) = walked(queues, queue, waiter, but);
            let found = queues.reserved_ahead(queue, waiter, but);
            assert_eq!(found, (!is_barred).then_some(reserved), "without {but:?}");
        }
        let (reserved, is_barred) = walked(queues, queue, waiter, None);
        assert_eq!(queues.reserved_ahead(queue, waiter, None), (!is_barred).then_some(reserved));
        if let Some(waiter) = waiter {
            assert_eq!(queues.reservations_ahead(waiter), reserved);
        }
    }
    let is_bar = |id: &WaiterId| Standing::of(queues.waiter(*id).expect("it waits")) == Standing::Bar;
    for (number, &waiter) in all.iter().enumerate() {
        let next = all[number + 1..].iter().copied().find(|id| is_bar(id));
        if queues.queue(queue).expect("a queue").ranks.is_some() {
            assert_eq!(queues.next_bar(waiter), next);
        }
    }
    let bar = all.iter().copied().find(|id| is_bar(id));
    let at_head = bar.map_or(all.len(), |bar| all.iter().position(|&id| id == bar).expect("it is there"));
    if let Some(found) = queues.reserved_at_head(queue) {
        assert_eq!(found, (at_head, bar));
    }
}

#[test]
fn ranks_are_those_that_a_walk_over_the_queue_finds() {
    for seed in 0..20 {
        let (mut random, mut queues) = (Random::new(seed), Queues::default());
        let mut owners = 0;
        // Few leave while the queue grows beyond its first slots, and all in the end.
        for step in 0..400 {
            let queue = queues.at(PLACE);
            let all: Vec<WaiterId> =
                queue.map_or(Vec::new(), |queue| queues.in_order(queue).map(|(id, _)| id).collect());
            let mode = if random.percent(12) { Mode::Exclusive } else { Mode::Shared };
            let is_reservation = random.percent(75);
            let leaves = if step < 250 { 2 } else { 7 };
            match random.below(8) {
                n if n < leaves && !all.is_empty() => {
                    queues.leave(random.of(&all));
                }
                7 if !all.is_empty() => {
                    let old = random.of(&all);
                    let owner = queues.waiter(old).expect("it waits").request.owner.clone();
                    let new = Request { owner, ..request(0, mode, is_reservation) };
                    queues.replace_waiter(old, new);
                }
                _ => {
                    owners += 1;
                    queues.join(PLACE, request(owners, mode, is_reservation));
                }
            }
            compare(&queues);
        }
    }
}

#[test]
fn a_queue_without_reservations_has_no_ranks() {
    let mut queues = Queues::default();
    for owner in 0..3 {
        queues.join(PLACE, request(owner, Mode::Shared, false));
    }
    let queue = queues.at(PLACE).expect("a queue");
    assert!(queues.queue(queue).expect("it is there").ranks.is_none());
    assert_eq!(queues.reserved_ahead(queue, None, None), None);
    assert_eq!(queues.reserved_ahead(queue, queues.head(queue), None), Some(0));
    let last = queues.join(PLACE, request(9, Mode::Shared, true));
    assert_eq!((queues.reserved_ahead(queue, Some(last), None), queues.reservations_ahead(last)), (None, 0));
}

#[test]
fn a_turn_is_new_once() {
    let mut queues = Queues::default();
    let entries: Vec<WaiterId> =
        (0..4).map(|owner| queues.join(PLACE, request(owner, Mode::Limit(2), true))).collect();
    let queue = queues.at(PLACE).expect("a queue");
    assert!(set_turns(&mut queues, queue, 2) && !set_turns(&mut queues, queue, 2));
    queues.leave(entries[0]);
    assert!(set_turns(&mut queues, queue, 2), "the third has moved up");
    queues.leave(entries[3]);
    assert!(!set_turns(&mut queues, queue, 2), "the last had no turn");
    assert!(!set_turns(&mut queues, queue, 0) && set_turns(&mut queues, queue, 1), "it was lost in between");
}

#[test]
fn the_work_grows_with_the_logarithm_of_the_queue() {
    for slots in [64, 4_096, 1 << 20] {
        let mut sums = Sums::new(slots);
        for slot in [0, slots / 2, slots - 1] {
            sums.change(slot, true);
        }
        assert_eq!([0, 1, slots - 1, slots].map(|slot| sums.below(slot)), [0, 1, 2, 3]);
        let touched = |before: &Sums, after: &Sums| {
            before.nodes.iter().zip(&after.nodes).filter(|(before, after)| before != after).count()
        };
        let before = Sums { nodes: sums.nodes.clone(), all: sums.all };
        sums.change(1, true);
        assert!(touched(&before, &sums) <= slots.ilog2() as usize + 1, "{slots}");
    }
}

#[test]
fn a_reservation_that_is_asked_for_again_keeps_its_turn_and_one_that_waits_instead_gives_it_up() {
    let mut queues = Queues::default();
    let reserved = |owner| request(owner, Mode::Limit(2), true);
    let entries: Vec<WaiterId> = (0..4).map(|owner| queues.join(PLACE, reserved(owner))).collect();
    let queue = queues.at(PLACE).expect("a queue");
    assert!(set_turns(&mut queues, queue, 2));
    let (_, first) = queues.replace_waiter(entries[0], reserved(0)).expect("it stands there");
    assert!(!set_turns(&mut queues, queue, 2), "nobody has a turn that had none before");
    // The first one is granted as soon as it waits on a connection.
    let (_, first) =
        queues.replace_waiter(first, request(0, Mode::Limit(2), false)).expect("it stands there");
    queues.leave(first);
    assert!(set_turns(&mut queues, queue, 2), "the third one has moved up");
}

#[test]
fn slots_are_reassigned_only_when_a_queue_has_doubled() {
    let mut queues = Queues::default();
    let (mut slots, mut times) = (0, 0);
    for owner in 1..=1_000 {
        queues.join(PLACE, request(owner, Mode::Shared, true));
        let queue = queues.at(PLACE).and_then(|queue| queues.queue(queue)).expect("a queue");
        let ranks = queue.ranks.as_ref().expect("it has ranks");
        if ranks.slots.len() != slots {
            (slots, times) = (ranks.slots.len(), times + 1);
            assert!(slots - ranks.end >= queue.len, "{slots} slots for {owner}");
        }
    }
    assert!(times <= 10, "{times} times");
}
