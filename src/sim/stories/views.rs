//! The server's queries of the table, and its calls at the start and end of its life: each in isolation.

use crate::lock::effect::{Effects, Event, Existing, LockId, Task};
use crate::lock::table::{Decision, KeyRef, Limits, Notice, Possession, Refusal, Renewal, Table};
use crate::lock::tests::tuning::Lowered;
use crate::lock::types::{Binding, ClientId, Mode, Moment, Token};
use crate::sim::single::input::{How, Input, Keys, Reply};
use crate::sim::single::server::{At, Lazy};
use crate::sim::single::world::World;

const K: At = At::new(0, "k");
const L: At = At::new(1, "a lock whose name is longer than what a record holds without a place of its own");
/// Another lock in the database of the first one.
const BESIDE: At = At::new(0, "b");
const KEPT: Binding = Binding { ephemeral_ms: None, is_keepalive: true, is_running: false };

const fn acquire(at: At, owner: &'static str, client: u64, how: How) -> Input {
    Input::Acquire { at, owner, lease_ms: 30_000, wait: Some(0), client, minted: false, how }
}

/// Returns a LOCK.MACQUIRE of two keys.
fn both(owner: &'static str, client: u64, is_shared: bool) -> Input {
    let keys = Keys::of(&[K, BESIDE]);
    Input::AcquireMany { keys, owner, lease_ms: 30_000, wait: Some(0), client, minted: false, is_shared }
}

/// Returns a server that has received these inputs.
fn after(inputs: &[Input]) -> Result<World, String> {
    let mut world = World::new(1_000_000, 1_000_000);
    for input in inputs {
        world.step(input)?;
    }
    Ok(world)
}

fn lock_at(world: &World, at: At) -> Result<LockId, String> {
    match world.server.existing(at) {
        Existing::Lock(lock) => Ok(lock),
        existing => Err(format!("{existing:?} is at {at}")),
    }
}

#[test]
fn a_view_shows_holders_and_waiters() -> Result<(), String> {
    let mut world = after(&[acquire(K, "ann", 1, How::PLAIN)])?;
    let token = world.server.live_token(K).ok_or("no token")?;
    let existing = world.server.existing(K);
    let lock = lock_at(&world, K)?;
    let table = world.server.table();
    assert_eq!((table.is_waited_for(K.lock_key()), table.is_held(lock)), (false, true));
    assert_eq!(table.token_of(existing, b"ann"), Some(token));
    assert_eq!(table.token_of(existing, b"bob"), None);
    assert_eq!(table.token_of(Existing::Nothing, b"ann"), None);
    drop(table);
    world.step(&acquire(K, "bob", 2, How::PLAIN))?;
    assert!(world.server.table().is_waited_for(K.lock_key()));
    assert!(!world.server.table().is_waited_for(At::new(1, "k").lock_key()));
    // An expired lease is a hold until the pump has ended it.
    world.step(&Input::Pass(30_001_000))?;
    let table = world.server.table();
    assert_eq!((table.is_held(lock), table.token_of(existing, b"ann")), (true, Some(token)));
    drop(table);
    world.step(&Input::Release { at: K, owner: "ann", token: None })?;
    world.step(&Input::Pump)?;
    world.step(&Input::Release { at: K, owner: "bob", token: None })?;
    assert!(!world.server.table().is_held(lock));
    assert!(!world.server.table().is_waited_for(K.lock_key()));
    Ok(())
}

#[test]
fn a_lock_is_described_as_long_as_anybody_holds_it_or_waits() -> Result<(), String> {
    let how = How::of(Mode::Limit(2));
    let mut world = after(&[acquire(K, "ann", 1, how), Input::Pass(5_000), acquire(K, "ann", 1, how)])?;
    world.step(&acquire(K, "bob", 2, How { binding: KEPT, ..how }))?;
    world.step(&acquire(K, "carol", 3, how))?;
    world.step(&acquire(K, "dan", 4, how))?;
    world.step(&Input::Pass(7_000))?;
    let first = world.server.table().token_of(world.server.existing(K), b"ann").ok_or("no token")?;
    let newest = world.server.live_token(K);
    {
        let told = world.server.described(K, 1).ok_or("nothing")?;
        assert_eq!((told.mode, told.waiters, told.queue.len()), (Mode::Limit(2), 2, 1));
        assert_eq!((told.holders, told.holds.len(), &*told.holds[0].owner), (2, 1, &b"ann"[..]));
        let told = world.server.described(K, 9).ok_or("nothing")?;
        assert_eq!((told.holders, told.waiters, told.queue.len()), (2, 2, 2));
        let waits = &told.queue[0];
        assert_eq!((waits.owner, waits.waited_ms, waits.client), (&b"carol"[..], 7, Some(ClientId(3))));
        let [ann, bob] = &told.holds[..] else {
            return Err(format!("{:?}", told.holds));
        };
        assert_eq!((&*ann.owner, ann.token, ann.left_ms), (&b"ann"[..], Some(first), 29_993));
        assert_eq!(
            (ann.held_ms, ann.client, ann.count, ann.binding),
            (Some(12), Some(ClientId(1)), 1, Binding::NONE)
        );
        assert_eq!((&*bob.owner, bob.token, bob.left_ms), (&b"bob"[..], newest, 30_000));
        assert_eq!((bob.count, bob.binding), (1, KEPT));
        assert_eq!(world.server.described(L, 1), None);
    }
    // An expired lease is not shown; a waiter is.
    world.step(&Input::Close(2))?;
    world.step(&Input::Pass(30_001_000))?;
    {
        let told = world.server.described(K, 9).ok_or("nothing")?;
        assert_eq!((told.mode, told.holds.len(), told.waiters, told.queue.len()), (how.mode, 0, 2, 2));
    }
    for (client, owner) in [(3, "carol"), (4, "dan")] {
        world.step(&Input::Close(client))?;
        world.step(&Input::Release { at: K, owner, token: None })?;
    }
    assert_eq!(world.server.described(K, 9), None);
    Ok(())
}

#[test]
fn a_repeated_request_has_waited_since_the_first_one() -> Result<(), String> {
    let several = |client| both("carol", client, false);
    let mut world = after(&[acquire(K, "ann", 1, How::PLAIN), acquire(K, "bob", 2, How::PLAIN), several(3)])?;
    world.step(&Input::Pass(7_000))?;
    world.step(&acquire(K, "bob", 4, How::PLAIN))?;
    world.step(&several(5))?;
    world.step(&Input::Pass(3_000))?;
    let told = world.server.described(K, 9).ok_or("nothing")?;
    let line: Vec<_> = told.queue.iter().map(|one| (one.owner, one.waited_ms, one.client)).collect();
    assert_eq!(line, [(&b"bob"[..], 10, Some(ClientId(4))), (&b"carol"[..], 10, Some(ClientId(5)))]);
    // The result is the same if all requests are for this lock alone.
    let mut world = after(&[acquire(K, "ann", 1, How::PLAIN), acquire(K, "bob", 2, How::PLAIN)])?;
    world.step(&Input::Pass(7_000))?;
    world.step(&acquire(K, "bob", 4, How::PLAIN))?;
    world.step(&Input::Pass(3_000))?;
    let told = world.server.described(K, 9).ok_or("nothing")?;
    assert_eq!(told.queue.iter().map(|one| one.waited_ms).collect::<Vec<_>>(), [10]);
    Ok(())
}

#[test]
fn a_downgraded_holder_has_held_since_it_held_alone() -> Result<(), String> {
    let down = acquire(K, "ann", 1, How::of(Mode::Shared));
    let mut world = after(&[acquire(K, "ann", 1, How::PLAIN), Input::Pass(5_000_000), down])?;
    world.step(&Input::Pass(2_000))?;
    world.step(&acquire(K, "bob", 2, How::of(Mode::Shared)))?;
    let told = world.server.described(K, 9).ok_or("nothing")?;
    assert_eq!((told.mode, told.holds.len()), (Mode::Shared, 2));
    assert_eq!((told.holds[0].held_ms, told.holds[0].left_ms), (Some(5_002), 29_998));
    Ok(())
}

#[test]
fn every_deadlock_is_counted() -> Result<(), String> {
    let mut world = after(&[
        acquire(K, "ann", 1, How::PLAIN),
        acquire(L, "bob", 2, How::PLAIN),
        acquire(L, "ann", 3, How::PLAIN),
    ])?;
    for count in 1..=3 {
        let out = world.step(&acquire(K, "bob", 4, How::PLAIN))?;
        assert_eq!(out.reply, Reply::Refused(Refusal::Deadlock));
        assert_eq!((world.server.table().stats().deadlocks, world.server.table().waiters()), (count, 1));
    }
    Ok(())
}

#[test]
fn holds_and_waits_of_an_owner_are_listed_in_order() -> Result<(), String> {
    let shared = How::of(Mode::Shared);
    let mut world = after(&[
        acquire(L, "ann", 1, shared),
        acquire(L, "bob", 2, shared),
        acquire(At::new(0, "m"), "bob", 3, How::PLAIN),
        acquire(At::new(0, "m"), "ann", 4, How::PLAIN),
        acquire(K, "ann", 5, How::PLAIN),
    ])?;
    let ages = |world: &World| world.server.table().held_by(world.server.now.boot, b"ann");
    let token = world.server.live_token(K).ok_or("no token")?;
    let first = world.server.table().token_of(world.server.existing(L), b"ann").ok_or("no token")?;
    let possession = |at: At, mode, held| Possession { lock_key: at.lock_key().to_owned(), mode, held };
    let waits = possession(At::new(0, "m"), Mode::Exclusive, None);
    assert_eq!(
        ages(&world),
        [
            possession(K, Mode::Exclusive, Some((token, 30_000))),
            waits.clone(),
            possession(L, Mode::Shared, Some((first, 30_000))),
        ]
    );
    // A lock whose lease has expired is not held.
    world.step(&Input::Pass(30_001_000))?;
    assert_eq!(ages(&world), [waits]);
    assert_eq!(world.server.table().held_by(world.server.now.boot, b"nobody"), []);
    Ok(())
}

#[test]
fn a_lock_occupies_its_record_and_what_does_not_fit_into_it() -> Result<(), String> {
    let mut world = after(&[acquire(K, "ann", 1, How::PLAIN), acquire(L, "ann", 1, How::PLAIN)])?;
    let bytes = |world: &World, at| lock_at(world, at).map(|lock| world.server.table().memory_of(lock));
    let (short, long) = (bytes(&world, K)?, bytes(&world, L)?);
    assert!((16..=128).contains(&short), "{short}");
    assert!(long >= short + L.name.len() && long < short + L.name.len() + 128, "{short} and {long}");
    // A lock with several holders: each of them has a record.
    let m = At::new(0, "m");
    let mut before = 0;
    for (owner, client) in [("ann", 1), ("bob", 2), ("carol", 3)] {
        world.step(&acquire(m, owner, client, How::of(Mode::Limit(3))))?;
        let now = bytes(&world, m)?;
        assert!(now >= before + short && now < before + short + 512, "{before}, then {now}");
        before = now;
    }
    Ok(())
}

#[test]
fn it_is_known_whether_any_hold_has_a_binding() -> Result<(), String> {
    let bindings =
        |world: &World| (world.server.table().has_bindings(), world.server.table().may_have_bindings());
    let mut world = after(&[acquire(K, "ann", 1, How::PLAIN)])?;
    assert_eq!(bindings(&world), (false, false));
    world.step(&acquire(K, "carol", 3, How::PLAIN))?;
    assert_eq!(bindings(&world), (false, false), "none comes out of the queue");
    world.step(&Input::Close(3))?;
    let kept = How { binding: KEPT, ..How::PLAIN };
    world.step(&acquire(K, "bob", 2, kept))?;
    // The entry leaves the queue with its binding.
    assert_eq!(bindings(&world), (false, true));
    world.step(&Input::Release { at: K, owner: "ann", token: None })?;
    assert_eq!(bindings(&world), (true, true));
    // Also when its connection is closed.
    world.step(&Input::Close(2))?;
    assert_eq!(bindings(&world), (true, true));
    world.step(&Input::Release { at: K, owner: "bob", token: None })?;
    assert_eq!(bindings(&world), (false, false));
    Ok(())
}

#[test]
fn leases_kept_by_a_connection_of_another_life_are_listed_until_they_run() -> Result<(), String> {
    let kept = How { binding: KEPT, ..How::PLAIN };
    let lock_keys = [K, At::new(0, "m"), At::new(0, "n")];
    let mut world = after(&[])?;
    for (at, client) in lock_keys.into_iter().zip(1..) {
        world.step(&acquire(at, "ann", client, kept))?;
    }
    let now = world.server.now.boot;
    let mut table = world.server.table_mut();
    assert_eq!((table.has_orphaned(), table.orphaned(0, 9)), (false, vec![]));
    table.forget_connections();
    assert!(table.has_orphaned());
    assert_eq!((table.sort_unbound(2), table.orphaned(0, 9).len()), (false, 2), "some at a time");
    while !table.sort_unbound(1) {}
    let orphaned = table.orphaned(0, 9);
    let mut existing: Vec<_> = orphaned.iter().map(|(_, lock_key)| lock_key.name.to_vec()).collect();
    existing.sort();
    assert_eq!(existing, [b"k", b"m", b"n"]);
    assert_eq!(table.orphaned(0, 2), orphaned[..2]);
    assert_eq!(table.orphaned(orphaned[1].0.index() + 1, 2), orphaned[2..]);
    // Closed connections no longer change them.
    table.disconnected(now, ClientId(1));
    assert_eq!(table.orphaned(0, 9), orphaned);
    table.let_run(&[orphaned[0].0], now);
    assert_eq!(table.orphaned(0, 9), orphaned[1..]);
    assert!(table.has_tasks(), "readers are to be told");
    drop(table);
    world.step(&Input::Pass(30_001_000))?;
    let over = lock_keys.map(|at| world.server.live_token(at).is_none());
    assert_eq!(over.iter().filter(|&&over| over).count(), 1);
    let now = world.server.now.boot;
    assert!(world.server.table_mut().let_orphaned_run(now));
    while world.server.table_mut().due(now, true).is_some_and(|task| task == Task::AskAgain) {}
    assert!(!world.server.table().has_orphaned());
    Ok(())
}

#[test]
fn a_value_without_a_hold_is_forgotten_at_once_and_no_other_one() -> Result<(), String> {
    let world = after(&[acquire(K, "ann", 1, How::PLAIN)])?;
    let held = lock_at(&world, K)?;
    assert!(!world.server.table_mut().forget_free(held));
    assert_eq!(world.server.table().locks(), 1);
    let m = At::new(0, "m");
    let empty = world.server.table_mut().load(world.server.now.boot, m.lock_key(), None).ok_or("no room")?;
    assert_eq!(world.server.table().locks(), 2);
    assert!(world.server.table_mut().forget_free(empty));
    assert_eq!((world.server.table().locks(), world.server.table().holds()), (1, 1));
    Ok(())
}

#[test]
fn more_holders_are_let_in_as_soon_as_there_may_be_more() -> Result<(), String> {
    let shared = How::of(Mode::Shared);
    let limit = |holders| Input::Limits(Limits::of(10, 10, holders));
    let holders = |world: &World| world.server.table().holds();
    let mut world = after(&[
        limit(2),
        acquire(K, "ann", 1, shared),
        acquire(K, "bob", 2, shared),
        acquire(K, "carol", 3, shared),
    ])?;
    for (number, expected) in [(2, 2), (1, 2), (2, 2), (3, 3)] {
        let has_room = number > world.limits.holders_max;
        world.step(&limit(number))?;
        assert_eq!(world.server.table().has_tasks(), has_room, "{number}");
        world.step(&Input::Pump)?;
        assert_eq!(holders(&world), expected, "{number}");
    }
    Ok(())
}

/// Returns the next event to publish.
fn next_notice(table: &mut Table) -> Option<Notice> {
    std::iter::from_fn(|| table.next_notice()).flatten().next()
}

#[test]
fn what_the_pump_is_to_look_at_is_counted() -> Result<(), String> {
    let mut world = after(&[acquire(K, "ann", 1, How::PLAIN), acquire(L, "bob", 2, How::PLAIN)])?;
    let tasks = |table: &Table| (table.has_tasks(), table.tasks());
    assert_eq!(tasks(&world.server.table()), (false, 0));
    // Broken, with no waiters.
    world.server.outside(&crate::sim::single::server::Outside::Del(K))?;
    assert_eq!(tasks(&world.server.table()), (true, 0));
    assert!(world.server.table().has_notices());
    world.step(&acquire(L, "carol", 3, How::PLAIN))?;
    // Broken, and carol is next.
    world.server.outside(&crate::sim::single::server::Outside::Flush(None, Lazy::No))?;
    assert_eq!(tasks(&world.server.table()), (true, 1));
    assert!(world.server.table_mut().next_task().is_some());
    assert_eq!(tasks(&world.server.table()), (true, 0));
    assert_eq!(world.server.table_mut().next_task(), None);
    for name in ["k", L.name] {
        let notice = next_notice(&mut world.server.table_mut()).ok_or("nothing is published")?;
        assert_eq!((&*notice.lock_key.name, notice.event), (name.as_bytes(), Event::Broken));
    }
    assert_eq!(next_notice(&mut world.server.table_mut()), None);
    assert_eq!(tasks(&world.server.table()), (false, 0));
    Ok(())
}

#[test]
fn a_connection_with_many_holds_lets_go_of_them_step_by_step() -> Result<(), String> {
    Lowered::ONE_BY_ONE.during(let_go_step_by_step)
}

fn let_go_step_by_step() -> Result<(), String> {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let cut = Binding { ephemeral_ms: Some(5), ..Binding::NONE };
    let mut world = after(&[])?;
    for name in names {
        world.step(&acquire(At::new(0, name), "ann", 1, How { binding: cut, ..How::PLAIN }))?;
    }
    let left = |world: &World, name| {
        let lock = world.server.described(At::new(0, name), 1).map(|lock| lock.holds[0].left_ms);
        lock.unwrap_or(0)
    };
    let cut = |world: &World| names.iter().filter(|name| left(world, name) <= 5).count();
    world.step(&Input::Close(1))?;
    assert_eq!(cut(&world), 1, "the others are next");
    // The closed connection no longer ends a hold that its owner renews meanwhile, in a script or not.
    for (name, client) in [("g", Some(ClientId(2))), ("h", None)] {
        let (at, now, mut fx) = (At::new(0, name), world.server.now, Effects::default());
        let key_ref = KeyRef { lock_key: at.lock_key(), existing: world.server.existing(at) };
        let renewal =
            Renewal { owner: b"ann", token: None, raise: None, lease_ms: 40_000, client, bind_to: client };
        let mut table = world.server.table_mut();
        let step = table.renew(now, key_ref, &renewal, &mut |_| Decision::Granted, &mut fx);
        assert_eq!(step.reply, Ok(true));
    }
    // And no lease is longer for having waited.
    world.step(&Input::Pass(3_000))?;
    world.step(&Input::Pump)?;
    assert_eq!(names.map(|name| left(&world, name)), [2, 2, 2, 2, 2, 2, 39_997, 39_997]);
    world.step(&Input::Pass(2_000))?;
    world.step(&Input::Pump)?;
    assert_eq!(world.server.table().holds(), 2);
    // A server that no longer decides leaves the rest to the one that does.
    for name in names {
        let how = How { binding: KEPT, ..How::PLAIN };
        let (at, lease_ms, minted) = (At::new(0, name), 30_000, false);
        world.step(&Input::Acquire { at, owner: "bob", lease_ms, wait: None, client: 3, minted, how })?;
    }
    world.step(&Input::Close(3))?;
    world.server.table_mut().forget_connections();
    while !world.server.table_mut().sort_unbound(1) {}
    assert_eq!(world.server.table().orphaned(0, 99).len(), names.len() - 2 - 1);
    Ok(())
}

#[test]
fn records_of_a_closed_connection_do_not_pile_up() -> Result<(), String> {
    const HOLDS: usize = 500;
    let mut world = after(&[])?;
    let how = How { binding: Binding { ephemeral_ms: Some(5), ..Binding::NONE }, ..How::PLAIN };
    let names: Vec<_> = (0..HOLDS).map(|number| &*format!("k{number}").leak()).collect();
    for name in &names {
        world.step(&acquire(At::new(0, name), "ann", 1, how))?;
    }
    let now = world.server.now.boot;
    let mut table = world.server.table_mut();
    table.disconnected(now, ClientId(1));
    // The pump alternates between due work and noted work.
    let (mut told, mut most) = (0, 0);
    while let due @ Some(_) = table.due(now, true) {
        assert!(matches!(due, Some(Task::AskAgain)), "{due:?}");
        most = most.max(table.tasks());
        told += usize::from(matches!(table.next_task(), Some(Task::ReplicateAgain(..))));
    }
    while table.next_task().is_some() {
        told += 1;
    }
    assert_eq!(told, HOLDS);
    assert!(most <= 33, "{most} are noted");
    Ok(())
}

#[test]
fn a_quarantine_is_reported_to_its_last_millisecond() {
    let mut table = Table::default();
    let at = |ms: u64| Moment(1_000_000 + ms * 1_000);
    assert_eq!(table.quarantine_left_ms(at(0)), None);
    table.begin_quarantine(at(0), 50);
    assert_eq!(table.quarantine_left_ms(at(0)), Some(50));
    assert_eq!(table.quarantine_left_ms(at(49)), Some(1));
    assert_eq!(table.quarantine_left_ms(at(50)), None);
    table.set_quarantine(at(40), 80);
    assert_eq!(table.quarantine_left_ms(at(50)), Some(30));
    table.set_quarantine(at(60), 60);
    assert_eq!(table.quarantine_left_ms(at(59)), None);
    // A quarantine that has ended does not start again.
    table.set_quarantine(at(61), 500);
    assert_eq!(table.quarantine_left_ms(at(61)), None);
}

#[test]
fn the_lead_of_tokens_over_the_wall_clock_is_reported() -> Result<(), String> {
    let mut table = Table::default();
    assert_eq!(table.token_lead_us(0), 0);
    table.clock().raise(Token::new(5_000).ok_or("no token")?);
    assert_eq!([4_000, 5_000, 6_000].map(|wall_us| table.token_lead_us(wall_us)), [1_000, 0, 0]);
    Ok(())
}
