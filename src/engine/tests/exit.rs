//! The way out: `redislock.leaving`.

use super::given::with_clients;
use crate::command::error::LEAVING;
use crate::engine::describe::Value;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::{drain, server_events, type_callbacks};
use crate::sim::server::inside::{PartBuf, Told};
use crate::sim::server::sim::{Sim, at, words};

const LOCKS_LEFT: &str =
    "leaving: no lock is granted any more; files need the module for the locks that are left";
const DONE: &str = "leaving: no lock is left: files that are written from now on load without the module";
const CALLED_OFF: &str = "leaving: it is called off, locks are granted again";
const PRIMARY: &str = "leaving: no lock is left here, but the primary of this replica still grants locks: set \
                       redislock.leaving to yes there";
const RESTART: &str = "leaving: no lock is left, but this server writes the clock of tokens into each file until it is \
                       restarted with redislock.leaving yes";

fn way(sim: &Sim) -> String {
    match sim.field("leaving") {
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

fn told(sim: &Sim) -> Vec<String> {
    ticks(&sim.inside.borrow().stream)
}

#[test]
fn leaving_turns_waiters_away_and_files_need_no_module_without_locks() {
    let mut sim = with_clients(2);
    let token = sim.number("LOCK.ACQUIRE k alice PX 30000");
    let handle = sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    assert_eq!((way(&sim).as_str(), type_callbacks::saved_clock(&sim).is_some()), ("no", true));
    sim.cron();
    assert!(sim.logged().is_empty());
    sim.switches("leaving", true);
    assert!(sim.rests());
    assert_eq!(sim.answers, [(handle, vec![PartBuf::Error(LEAVING.to_owned())])]);
    assert_eq!(told(&sim), [format!("LOCK.TICK {token} 0")]);
    assert_eq!(sim.error("LOCK.ACQUIRE l bob PX 30000"), LEAVING);
    assert_eq!(way(&sim), "locks-left");
    sim.cron();
    assert_eq!(sim.logged(), [LOCKS_LEFT]);
    sim.number("LOCK.RELEASE k alice");
    assert_eq!((way(&sim).as_str(), type_callbacks::saved_clock(&sim)), ("done", None));
    sim.cron();
    sim.cron();
    assert_eq!(sim.logged(), [DONE], "once");
    assert!(sim.is_idle(), "there is nothing to do");
    server_events::woken(&sim);
    assert!(sim.rests());
    assert_eq!(told(&sim).len(), 1, "once");
    sim.switches("leaving", false);
    sim.cron();
    assert_eq!(sim.logged(), [CALLED_OFF]);
    sim.number("LOCK.ACQUIRE l bob PX 30000");
}

#[test]
fn leaving_turns_waiters_away_a_few_in_a_turn() {
    let mut sim = with_clients(10);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let waits = |client| sim.waits(client, &format!("LOCK.ACQUIRE k o{client} PX 30000 BLOCK 0"));
    let handles: Vec<u64> = (2..11).map(waits).collect();
    assert!(sim.rests());
    sim.switches("leaving", true);
    let mut turns = 0;
    while sim.answers.len() < handles.len() {
        let told = sim.answers.len();
        sim.turn();
        assert!(sim.answers.len() - told <= 3, "{} are told, {told} before", sim.answers.len());
        turns += 1;
        assert!(turns < 20, "{told} are told");
    }
    let leaving = |handle| (handle, vec![PartBuf::Error(LEAVING.to_owned())]);
    assert_eq!(sim.answers, handles.into_iter().map(leaving).collect::<Vec<_>>());
}

#[test]
fn who_waits_while_leaving_is_called_off_in_the_same_turn_is_granted_what_was_released_meanwhile() {
    // G6: the pump has rejected no waiter yet, and the release granted nothing.
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let handle = sim.waits(2, "LOCK.ACQUIRE k bob PX 30000 BLOCK 0");
    assert!(sim.rests());
    sim.switches("leaving", true);
    sim.number("LOCK.RELEASE k alice");
    sim.switches("leaving", false);
    assert!(sim.rests());
    let told = |(answered, parts): &(u64, Vec<PartBuf>)| {
        *answered == handle && matches!(parts[..], [PartBuf::Integer(_)])
    };
    assert!(sim.answers.iter().any(told), "{:?}", sim.answers);
}

#[test]
fn leaving_is_not_announced_while_writes_pause_or_slots_leave() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.is_paused.set(true);
    sim.switches("leaving", true);
    assert!(sim.rests());
    assert!(told(&sim).is_empty());
    assert_eq!(way(&sim), "locks-left");
    server_events::slots_leave(&sim);
    sim.is_paused.set(false);
    sim.cron();
    assert!(sim.rests());
    assert!(told(&sim).is_empty());
    server_events::slots_have_left_or_stay(&sim);
    assert!(sim.rests());
    assert_eq!(told(&sim).len(), 1);
}

#[test]
fn the_log_waits_and_the_pump_comes_back_until_leaving_is_announced() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.number("LOCK.RELEASE k alice");
    server_events::slots_leave(&sim);
    sim.switches("leaving", true);
    assert!(sim.rests());
    assert_eq!(way(&sim), "primary-stays");
    sim.cron();
    assert!(sim.logged().is_empty(), "it is this server that has to tell");
    // No event reports that they have disconnected, and still it is logged.
    let _ = sim.with(|state| state.pump.moves = 0);
    sim.cron();
    assert!(sim.rests());
    assert_eq!(told(&sim).len(), 1);
    sim.cron();
    assert_eq!(sim.logged(), [DONE]);
}

/// The number of keys with values that files need the module for.
fn keys_left(sim: &Sim) -> usize {
    sim.inside.borrow().keys.values().filter(|entry| entry.value.lock().is_some()).count()
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
            let mut sim = with_clients(1);
            sim.number(lock);
            sim.told(step);
            assert!(sim.rests());
            sim.switches("leaving", true);
            sim.cron();
            assert!(sim.rests());
            assert_eq!((keys_left(&sim), way(&sim).as_str()), (1, "locks-left"), "{lock}, {step}");
            assert_eq!(sim.logged().last().map(String::as_str), Some(LOCKS_LEFT), "{lock}, {step}");
            // And when that value goes, nothing is left.
            for (db, name) in [(0, "other"), (1, "k"), (0, "k")] {
                sim.send(1, db, &format!("DEL {name}"));
            }
            sim.cron();
            assert!(sim.rests());
            assert_eq!((keys_left(&sim), way(&sim).as_str()), (0, "done"), "{lock}, {step}");
        }
    }
}

#[test]
fn a_restored_value_keeps_the_module_until_it_goes() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k x PX 60000");
    let payload = sim.dump(&at(0, "k")).expect("it is there");
    sim.told("RENAME k empty");
    let empty = sim.dump(&at(0, "empty")).expect("it is there");
    sim.told("DEL empty");
    sim.switches("leaving", true);
    assert!(sim.rests());
    assert_eq!(way(&sim), "done");
    for (payload, until) in [(&payload, ""), (&empty, ""), (&payload, " REPLACE"), (&empty, " REPLACE")] {
        assert_eq!(sim.told(&format!("RESTORE k 0 {payload}{until}")), [PartBuf::Ok]);
        assert_eq!(way(&sim), "locks-left");
        assert!(matches!(sim.told("COPY k l")[..], [PartBuf::Error(_)]));
        if until.is_empty() {
            sim.told("DEL k");
            assert_eq!(way(&sim), "done");
        }
    }
    sim.told("SET k text");
    assert_eq!(way(&sim), "done");
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
        let mut sim = Sim::started_as(Flags { is_replica, ..Flags::default() }, |_| ());
        sim.connect(1);
        sim.switches("leaving", true);
        let is_left = |sim: &mut Sim| {
            sim.cron();
            assert!(sim.rests());
            way(sim) == "locks-left"
        };
        assert!(!is_left(&mut sim));
        sim.synchronise(&snapshot).expect("it loads");
        assert!(is_left(&mut sim));
        let flush = Flags { is_fact: is_replica, ..sim.flags.get() };
        assert_eq!(sim.told_as(flush, words("FLUSHALL ASYNC")), [PartBuf::Ok]);
        assert!(is_left(&mut sim), "they are not freed yet");
        sim.free_late();
        assert!(!is_left(&mut sim));
        sim.synchronise(&snapshot).expect("it loads");
        assert!(is_left(&mut sim));
        assert_eq!(sim.told_as(flush, words("FLUSHALL SYNC")), [PartBuf::Ok]);
        assert!(!is_left(&mut sim));
    }
}

#[test]
fn a_lock_whose_value_another_thread_has_freed_keeps_the_module_until_its_end_is_published() {
    let mut sim = with_clients(1);
    (0..9).for_each(|number| _ = sim.number(&format!("LOCK.ACQUIRE k{number} x PX 60000")));
    sim.switches("leaving", true);
    assert!(sim.rests());
    let gone = std::mem::take(&mut sim.inside.borrow_mut().keys);
    sim.leave_to_thread(gone.into_values().map(|entry| entry.value));
    sim.free_late();
    // INFO examines only a few of them.
    assert_eq!(way(&sim), "locks-left");
    sim.cron();
    assert!(sim.rests());
    assert_eq!(way(&sim), "done");
}

#[test]
fn a_replica_that_leaves_waits_for_its_primary() {
    let replica = Flags { is_replica: true, ..Flags::default() };
    let mut sim = Sim::started_as(replica, |_| ());
    let fact = Flags { is_fact: true, ..replica };
    assert_eq!(sim.told_as(fact, words("LOCK.TICK 7 7")), [PartBuf::Ok]);
    sim.switches("leaving", true);
    sim.cron();
    assert!(sim.rests());
    assert_eq!((way(&sim).as_str(), type_callbacks::saved_clock(&sim)), ("primary-stays", Some((7, 7))));
    assert_eq!(sim.logged(), [PRIMARY]);
    assert!(told(&sim).is_empty(), "a replica tells nobody");
    assert_eq!(sim.told_as(fact, words("LOCK.TICK 7 0")), [PartBuf::Ok]);
    assert_eq!((way(&sim).as_str(), type_callbacks::saved_clock(&sim)), ("done", None));
}

#[test]
fn a_server_that_writes_the_clock_into_each_file_has_to_be_restarted() {
    let sim = Sim::started();
    sim.shared().has_optional_aux.set(false);
    assert_eq!(type_callbacks::saved_clock(&sim), Some((0, 0)), "it is asked for each file");
    sim.shared().must_write_clock.set(true);
    sim.switches("leaving", true);
    sim.cron();
    assert_eq!(way(&sim), "restart-needed");
    assert_eq!(sim.logged(), [RESTART]);
}

#[test]
fn only_a_server_that_knows_no_optional_clock_and_is_to_stay_must_write_it() {
    for (has_optional_aux, is_leaving, must_write) in
        [(true, false, false), (true, true, false), (false, false, true), (false, true, false)]
    {
        let sim = Sim::started();
        sim.shared().has_optional_aux.set(has_optional_aux);
        sim.switches("leaving", is_leaving);
        assert_eq!(drain::must_write_clock(sim.shared()), must_write, "{has_optional_aux} {is_leaving}");
        assert_eq!(sim.shared().must_write_clock.is_set(), must_write);
    }
}

#[test]
fn leaving_cannot_be_called_off_where_files_keep_no_clock() {
    let sim = Sim::started();
    let shared = sim.shared();
    let refuses =
        |switch, value, has_type| drain::refusal_of_setting(shared, switch, value, has_type).is_some();
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
    let file = |sim: &Sim| ticks(&sim.inside.borrow().file);
    let mut sim = Sim::started_as(Flags { has_aof: true, ..Flags::default() }, |_| ());
    sim.connect(1);
    server_events::forked(&sim);
    assert!(sim.rests());
    assert!(file(&sim).is_empty(), "nothing was granted");
    let token = sim.number("LOCK.ACQUIRE k alice PX 30000");
    server_events::forked(&sim);
    sim.is_paused.set(true);
    assert!(sim.rests());
    assert!(file(&sim).is_empty(), "nothing may be written");
    sim.is_paused.set(false);
    server_events::slots_leave(&sim);
    assert!(sim.rests());
    assert!(file(&sim).is_empty(), "slots are on their way out");
    server_events::slots_have_left_or_stay(&sim);
    assert!(sim.rests());
    let said = file(&sim);
    assert!(matches!(&said[..], [tick] if tick.starts_with(&format!("LOCK.TICK {token} "))), "{said:?}");
    server_events::woken(&sim);
    assert!(sim.rests());
    assert_eq!(file(&sim).len(), 1, "once");
    let mut without = with_clients(1);
    without.number("LOCK.ACQUIRE k alice PX 30000");
    server_events::forked(&without);
    assert!(without.rests());
    assert!(file(&without).is_empty(), "it keeps none");
}

#[test]
fn the_clock_of_tokens_ends_at_two_to_the_53() {
    let sim = Sim::started();
    let last = 1 << 53;
    assert!(type_callbacks::load_clock(&sim, last, 0).is_err());
    assert!(type_callbacks::load_clock(&sim, 0, last).is_err());
    assert!(type_callbacks::load_clock(&sim, last - 1, last - 1).is_ok());
    assert_eq!(type_callbacks::saved_clock(&sim), Some((last - 1, last - 1)));
}
