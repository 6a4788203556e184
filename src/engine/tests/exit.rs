//! The way out: `redislock.leaving`.

use super::given::with_clients;
use crate::command::error::LEAVING;
use crate::engine::describe::Value;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{events, leaving, values};
use crate::sim::server::inside::{PartBuf, Told};
use crate::sim::server::world::{World, at, words};

const LOCKS_LEFT: &str =
    "leaving: no lock is granted any more; files need the module for the locks that are left";
const DONE: &str = "leaving: no lock is left: files that are written from now on load without the module";
const CALLED_OFF: &str = "leaving: it is called off, locks are granted again";
const PRIMARY: &str = "leaving: no lock is left here, but the primary of this replica still grants locks: set \
                       redislock.leaving to yes there";
const RESTART: &str = "leaving: no lock is left, but this server writes the clock of tokens into each file until it is \
                       restarted with redislock.leaving yes";

fn way(world: &World) -> String {
    match world.field("leaving") {
        Value::Text(text) => text,
        number @ Value::Number(_) => panic!("{number:?}"),
    }
}

/// The records of the clock of tokens in this stream.
fn ticks(told: &[Told]) -> Vec<String> {
    let tick = told.iter().filter(|told| *told.words[0] == *b"LOCK.TICK");
    let text = |told: &Told| {
        told.words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
    };
    tick.map(text).collect()
}

fn told(world: &World) -> Vec<String> {
    ticks(&world.inside.borrow().stream)
}

#[test]
fn leaving_turns_waiters_away_and_files_need_no_module_without_locks() {
    let mut world = with_clients(2);
    let token = world.number("LOCK.ACQUIRE k alice PX 30000");
    let handle = world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    assert_eq!((way(&world).as_str(), values::saved_clock(&world).is_some()), ("no", true));
    world.cron();
    assert!(world.logged().is_empty());
    world.switches("leaving", true);
    assert!(world.rests());
    assert_eq!(world.answers, [(handle, vec![PartBuf::Error(LEAVING.to_owned())])]);
    assert_eq!(told(&world), [format!("LOCK.TICK {token} 0")]);
    assert_eq!(world.error("LOCK.ACQUIRE l bob PX 30000"), LEAVING);
    assert_eq!(way(&world), "locks-left");
    world.cron();
    assert_eq!(world.logged(), [LOCKS_LEFT]);
    world.number("LOCK.RELEASE k alice");
    assert_eq!((way(&world).as_str(), values::saved_clock(&world)), ("done", None));
    world.cron();
    world.cron();
    assert_eq!(world.logged(), [DONE], "once");
    assert!(world.is_idle(), "there is nothing to do");
    events::woken(&world);
    assert!(world.rests());
    assert_eq!(told(&world).len(), 1, "once");
    world.switches("leaving", false);
    world.cron();
    assert_eq!(world.logged(), [CALLED_OFF]);
    world.number("LOCK.ACQUIRE l bob PX 30000");
}

#[test]
fn leaving_turns_waiters_away_a_few_in_a_turn() {
    let mut world = with_clients(10);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    let waits = |client| world.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 0"));
    let handles: Vec<u64> = (2..11).map(waits).collect();
    assert!(world.rests());
    world.switches("leaving", true);
    let mut turns = 0;
    while world.answers.len() < handles.len() {
        let told = world.answers.len();
        world.turn();
        assert!(world.answers.len() - told <= 3, "{} are told, {told} before", world.answers.len());
        turns += 1;
        assert!(turns < 20, "{told} are told");
    }
    let leaving = |handle| (handle, vec![PartBuf::Error(LEAVING.to_owned())]);
    assert_eq!(world.answers, handles.into_iter().map(leaving).collect::<Vec<_>>());
}

#[test]
fn who_waits_while_leaving_is_called_off_in_the_same_turn_is_granted_what_was_released_meanwhile() {
    // G6: the pump has rejected no waiter yet, and the release granted nothing.
    let mut world = with_clients(2);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    let handle = world.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    assert!(world.rests());
    world.switches("leaving", true);
    world.number("LOCK.RELEASE k alice");
    world.switches("leaving", false);
    assert!(world.rests());
    let told = |(answered, parts): &(u64, Vec<PartBuf>)| {
        *answered == handle && matches!(parts[..], [PartBuf::Integer(_)])
    };
    assert!(world.answers.iter().any(told), "{:?}", world.answers);
}

#[test]
fn leaving_is_not_announced_while_writes_pause_or_slots_leave() {
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.is_paused.set(true);
    world.switches("leaving", true);
    assert!(world.rests());
    assert!(told(&world).is_empty());
    assert_eq!(way(&world), "locks-left");
    events::slots_leave(&world);
    world.is_paused.set(false);
    world.cron();
    assert!(world.rests());
    assert!(told(&world).is_empty());
    events::slots_have_left_or_stay(&world);
    assert!(world.rests());
    assert_eq!(told(&world).len(), 1);
}

#[test]
fn the_log_waits_and_the_pump_comes_back_until_leaving_is_announced() {
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.number("LOCK.RELEASE k alice");
    events::slots_leave(&world);
    world.switches("leaving", true);
    assert!(world.rests());
    assert_eq!(way(&world), "primary-stays");
    world.cron();
    assert!(world.logged().is_empty(), "it is this server that has to tell");
    // No event reports that they have disconnected, and still it is logged.
    let _ = world.with(|state| state.pump.moves = 0);
    world.cron();
    assert!(world.rests());
    assert_eq!(told(&world).len(), 1);
    world.cron();
    assert_eq!(world.logged(), [DONE]);
}

/// The number of keys with values that files need the module for.
fn keys_left(world: &World) -> usize {
    world.inside.borrow().keys.values().filter(|entry| entry.value.lock().is_some()).count()
}

#[test]
fn a_value_that_no_lock_stands_for_any_more_keeps_the_module() {
    let (plain, readers, permits) = (
        "LOCK.ACQUIRE k x PX 60000",
        "LOCK.ACQUIRE k x PX 60000 SHARED",
        "LOCK.ACQUIRE k x PX 60000 LIMIT 2",
    );
    for lock in [plain, readers, permits] {
        for step in ["RENAME k other", "MOVE k 1", "SWAPDB 0 1", "SWAPDB 0 0"] {
            let mut world = with_clients(1);
            world.number(lock);
            world.told(step);
            assert!(world.rests());
            world.switches("leaving", true);
            world.cron();
            assert!(world.rests());
            assert_eq!((keys_left(&world), way(&world).as_str()), (1, "locks-left"), "{lock}, {step}");
            assert_eq!(world.logged().last().map(String::as_str), Some(LOCKS_LEFT), "{lock}, {step}");
            // And when that value goes, nothing is left.
            for (db, name) in [(0, "other"), (1, "k"), (0, "k")] {
                world.send(1, db, &format!("DEL {name}"));
            }
            world.cron();
            assert!(world.rests());
            assert_eq!((keys_left(&world), way(&world).as_str()), (0, "done"), "{lock}, {step}");
        }
    }
}

#[test]
fn a_restored_value_keeps_the_module_until_it_goes() {
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE k x PX 60000");
    let payload = world.dump(&at(0, "k")).expect("it is there");
    world.told("RENAME k empty");
    let empty = world.dump(&at(0, "empty")).expect("it is there");
    world.told("DEL empty");
    world.switches("leaving", true);
    assert!(world.rests());
    assert_eq!(way(&world), "done");
    for (payload, until) in [(&payload, ""), (&empty, ""), (&payload, " REPLACE"), (&empty, " REPLACE")] {
        assert_eq!(world.told(&format!("RESTORE k 0 {payload}{until}")), [PartBuf::Ok]);
        assert_eq!(way(&world), "locks-left");
        assert!(matches!(world.told("COPY k l")[..], [PartBuf::Error(_)]));
        if until.is_empty() {
            world.told("DEL k");
            assert_eq!(way(&world), "done");
        }
    }
    world.told("SET k text");
    assert_eq!(way(&world), "done");
}

#[test]
fn values_of_a_whole_data_set_keep_the_module_until_all_are_freed() {
    for is_replica in [false, true] {
        let mut from = with_clients(1);
        for name in ["k", "l", "m"] {
            from.number(&format!("LOCK.ACQUIRE {name} x PX 60000 SHARED"));
        }
        from.told("RENAME k other");
        assert!(from.rests());
        let snapshot = from.snapshot();
        let mut world = World::started_as(Flags { is_replica, ..Flags::default() }, |_| ());
        world.connect(1);
        world.switches("leaving", true);
        let is_left = |world: &mut World| {
            world.cron();
            assert!(world.rests());
            way(world) == "locks-left"
        };
        assert!(!is_left(&mut world));
        world.synchronise(&snapshot).expect("it loads");
        assert!(is_left(&mut world));
        let flush = Flags { is_fact: is_replica, ..world.flags.get() };
        assert_eq!(world.told_as(flush, words("FLUSHALL ASYNC")), [PartBuf::Ok]);
        assert!(is_left(&mut world), "they are not freed yet");
        world.free_late();
        assert!(!is_left(&mut world));
        world.synchronise(&snapshot).expect("it loads");
        assert!(is_left(&mut world));
        assert_eq!(world.told_as(flush, words("FLUSHALL SYNC")), [PartBuf::Ok]);
        assert!(!is_left(&mut world));
    }
}

#[test]
fn a_lock_whose_value_another_thread_has_freed_keeps_the_module_until_its_end_is_published() {
    let mut world = with_clients(1);
    (0..9).for_each(|number| _ = world.number(&format!("LOCK.ACQUIRE k{number} x PX 60000")));
    world.switches("leaving", true);
    assert!(world.rests());
    let gone = std::mem::take(&mut world.inside.borrow_mut().keys);
    world.leave_to_thread(gone.into_values().map(|entry| entry.value));
    world.free_late();
    // INFO examines only a few of them.
    assert_eq!(way(&world), "locks-left");
    world.cron();
    assert!(world.rests());
    assert_eq!(way(&world), "done");
}

#[test]
fn a_replica_that_leaves_waits_for_its_primary() {
    let replica = Flags { is_replica: true, ..Flags::default() };
    let mut world = World::started_as(replica, |_| ());
    let fact = Flags { is_fact: true, ..replica };
    assert_eq!(world.told_as(fact, words("LOCK.TICK 7 7")), [PartBuf::Ok]);
    world.switches("leaving", true);
    world.cron();
    assert!(world.rests());
    assert_eq!((way(&world).as_str(), values::saved_clock(&world)), ("primary-stays", Some((7, 7))));
    assert_eq!(world.logged(), [PRIMARY]);
    assert!(told(&world).is_empty(), "a replica tells nobody");
    assert_eq!(world.told_as(fact, words("LOCK.TICK 7 0")), [PartBuf::Ok]);
    assert_eq!((way(&world).as_str(), values::saved_clock(&world)), ("done", None));
}

#[test]
fn a_server_that_writes_the_clock_into_each_file_has_to_be_restarted() {
    let world = World::started();
    world.shared().has_optional_aux.set(false);
    assert_eq!(values::saved_clock(&world), Some((0, 0)), "it is asked for each file");
    world.shared().must_write_clock.set(true);
    world.switches("leaving", true);
    world.cron();
    assert_eq!(way(&world), "restart-needed");
    assert_eq!(world.logged(), [RESTART]);
}

#[test]
fn only_a_server_that_knows_no_optional_clock_and_is_to_stay_must_write_it() {
    for (has_optional_aux, is_leaving, must_write) in
        [(true, false, false), (true, true, false), (false, false, true), (false, true, false)]
    {
        let world = World::started();
        world.shared().has_optional_aux.set(has_optional_aux);
        world.switches("leaving", is_leaving);
        assert_eq!(leaving::must_write_clock(world.shared()), must_write, "{has_optional_aux} {is_leaving}");
        assert_eq!(world.shared().must_write_clock.is_set(), must_write);
    }
}

#[test]
fn leaving_cannot_be_called_off_where_files_keep_no_clock() {
    let world = World::started();
    let shared = world.shared();
    let refuses =
        |switch, value, has_type| leaving::refusal_of_setting(shared, switch, value, has_type).is_some();
    let [others @ .., leaving] = shared.settings.switches();
    let all = || {
        [(false, false), (false, true), (true, false), (true, true)].map(|(value, has_type)| {
            assert!(others.iter().all(|switch| !refuses(switch, value, has_type)));
            refuses(leaving, value, has_type)
        })
    };
    assert_eq!(all(), [false; 4]);
    shared.has_optional_aux.set(false);
    assert_eq!(all(), [false, true, false, false]);
    shared.must_write_clock.set(true);
    assert_eq!(all(), [false; 4]);
}

#[test]
fn a_new_append_only_file_records_the_token_clock() {
    let file = |world: &World| ticks(&world.inside.borrow().file);
    let mut world = World::started_as(Flags { has_aof: true, ..Flags::default() }, |_| ());
    world.connect(1);
    events::forked(&world);
    assert!(world.rests());
    assert!(file(&world).is_empty(), "nothing was granted");
    let token = world.number("LOCK.ACQUIRE k alice PX 30000");
    events::forked(&world);
    world.is_paused.set(true);
    assert!(world.rests());
    assert!(file(&world).is_empty(), "nothing may be written");
    world.is_paused.set(false);
    events::slots_leave(&world);
    assert!(world.rests());
    assert!(file(&world).is_empty(), "slots are on their way out");
    events::slots_have_left_or_stay(&world);
    assert!(world.rests());
    let said = file(&world);
    assert!(matches!(&said[..], [tick] if tick.starts_with(&format!("LOCK.TICK {token} "))), "{said:?}");
    events::woken(&world);
    assert!(world.rests());
    assert_eq!(file(&world).len(), 1, "once");
    let mut without = with_clients(1);
    without.number("LOCK.ACQUIRE k alice PX 30000");
    events::forked(&without);
    assert!(without.rests());
    assert!(file(&without).is_empty(), "it keeps none");
}

#[test]
fn the_clock_of_tokens_ends_at_two_to_the_53() {
    let world = World::started();
    let last = 1 << 53;
    assert!(values::load_clock(&world, last, 0).is_err());
    assert!(values::load_clock(&world, 0, last).is_err());
    assert!(values::load_clock(&world, last - 1, last - 1).is_ok());
    assert_eq!(values::saved_clock(&world), Some((last - 1, last - 1)));
}
