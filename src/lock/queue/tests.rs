//! Tests of queues alone: lookups, and the memory that empty queues leave.

use super::*;

fn lock_key(name: &[u8]) -> LockKey<'_> {
    LockKey { db: 0, name }
}

fn request(owner: &[u8], until: Option<Moment>) -> Request {
    Request {
        owner: owner.into(),
        owner_is_minted: false,
        lease_ms: 50,
        since: Moment(1),
        until,
        client: Some(ClientId(1)),
        mode: Mode::Exclusive,
        binding: Binding::NONE,
        is_reentrant: false,
    }
}

#[test]
fn a_wait_for_several_locks_times_out_once() {
    let mut queues = Queues::default();
    let until = Moment(5_000);
    let (k, l) = (lock_key(b"k"), lock_key(b"l"));
    let first_entry = queues.join_all(&[k, l], &request(b"ann", Some(until))).expect("it waits");
    assert_eq!((queues.timeouts.len(), queues.first_timeout()), (1, Some((until, first_entry))));
    assert_eq!(queues.head(queues.at(k).expect("a line")), Some(first_entry));
    assert_eq!(queues.waiters(), 2);
    queues.join(k, request(b"bob", None));
    let multis = |queues: &Queues| queues.queue(queues.at(k).expect("a line")).map(|queue| queue.multis);
    assert_eq!(multis(&queues), Some(1));
    queues.leave(first_entry);
    assert_eq!((queues.timeouts.len(), queues.waiters(), multis(&queues)), (0, 1, Some(0)));
}

#[test]
fn a_queue_is_noted_whose_waiters_may_get_in_when_one_leaves() {
    let mut queues = Queues::default();
    let shared = |owner: &[u8]| Request { mode: Mode::Shared, ..request(owner, None) };
    let first = queues.join(lock_key(b"k"), shared(b"ann"));
    let second = queues.join(lock_key(b"k"), shared(b"bob"));
    let plain = [
        queues.join(lock_key(b"l"), request(b"ann", None)),
        queues.join(lock_key(b"l"), request(b"bob", None)),
    ];
    queues.leave(plain[0]);
    assert!(!queues.has_left(), "the next one there gets the lock when it is free");
    queues.leave(first);
    assert!(queues.has_left());
    assert_eq!((queues.next_left(), queues.has_left()), (queues.at(lock_key(b"k")), false));
    queues.leave(second);
    assert!(!queues.has_left(), "nobody is left there");
}

#[test]
fn thousands_that_leave_one_queue_leave_no_memory() {
    // 262,144 bytes stayed allocated after 19,000 readers of one lock were granted it at once.
    let mut queues = Queues::default();
    let readers: Vec<_> = (0..3_000_u32)
        .map(|n| {
            queues.join(lock_key(b"k"), Request { mode: Mode::Shared, ..request(&n.to_be_bytes(), None) })
        })
        .collect();
    for reader in readers {
        queues.leave(reader);
    }
    assert!(queues.has_left() && queues.left.capacity() < 64, "{}", queues.left.capacity());
}

#[test]
fn no_number_of_queues_that_were_set_aside_is_given_again() {
    let mut queues = Queues::default();
    let mut old = Vec::new();
    for _ in 0..3 {
        let waiter =
            queues.join_all(&[lock_key(b"k"), lock_key(b"l")], &request(b"ann", None)).expect("it waits");
        let queue = queues.at(lock_key(b"k")).expect("a queue");
        let multi = queues.waiter(waiter).and_then(|waiter| waiter.multi).expect("it waits for several");
        for &(queue, waiter, multi) in &old {
            assert!(queues.queue(queue).is_none(), "{queue:?}");
            assert!(queues.waiter(waiter).is_none(), "{waiter:?}");
            assert!(queues.multi(multi).is_none(), "{multi:?}");
        }
        old.push((queue, waiter, multi));
        queues = queues.successor();
    }
}
