//! Holds that connections keep alive, when the server stops deciding and when it decides again.

use super::given::with_clients;
use crate::engine::server::Server;
use crate::sim::server::inside::PartBuf;
use crate::sim::server::sim::Sim;

const HOLDS: usize = 40;

fn held(sim: &Sim) -> usize {
    sim.with(|state| state.table.holds()).expect("nobody is within the engine")
}

fn tasks(sim: &Sim) -> usize {
    sim.with(|state| state.table.tasks()).expect("nobody is within the engine")
}

fn is_sorted(sim: &Sim) -> bool {
    sim.with(|state| !state.table.has_unbound()).expect("nobody is within the engine")
}

/// A replica that was the primary until now, and whose clients hold many locks by this option.
fn demoted(option: &str) -> Sim {
    let mut sim = with_clients(3);
    for number in 0..HOLDS {
        sim.number(&format!("LOCK.ACQUIRE k{number} alice PX 1000 {option}"));
    }
    assert!(sim.rests());
    sim.takes_role(true);
    sim
}

/// A server that was demoted, decides again, and has not finished the work that follows.
fn half_promoted() -> Sim {
    let mut sim = demoted("KEEPALIVE");
    assert!(sim.rests());
    sim.takes_role(false);
    sim.us_per_look.set(300);
    sim.turn();
    sim.turn();
    sim.us_per_look.set(0);
    assert!(records(&sim) > 0 && records(&sim) < HOLDS, "{} records", records(&sim));
    sim
}

/// The number of holds whose leases run according to the stream.
fn records(sim: &Sim) -> usize {
    let inside = sim.inside.borrow();
    let runs = |words: &[Vec<u8>]| words.iter().any(|word| word == b"RUNS");
    inside.stream.iter().filter(|told| runs(&told.words)).count()
}

#[test]
fn a_server_that_is_demoted_forgets_its_connections_some_in_a_turn() {
    // G16
    for option in ["EPHEMERAL 60000", "KEEPALIVE"] {
        let mut sim = demoted(option);
        sim.us_per_look.set(300);
        let mut turns = 0;
        while !is_sorted(&sim) {
            sim.turn();
            turns += 1;
            assert!(turns < 40, "{option}");
        }
        assert!(turns > 2, "{option}: {turns} turns");
        sim.us_per_look.set(0);
        assert!(sim.rests());
        // Nothing that its clients do concerns them any more.
        sim.disconnect(1);
        sim.passes(5_000);
        assert!(sim.rests());
        assert_eq!((held(&sim), records(&sim)), (HOLDS, 0));
    }
}

#[test]
fn a_server_that_is_promoted_lets_kept_leases_run_some_in_a_turn() {
    // G16
    let mut sim = demoted("KEEPALIVE");
    assert!(sim.rests());
    sim.takes_role(false);
    sim.us_per_look.set(300);
    let (mut before, mut turns) = (0, 0);
    while before < HOLDS {
        sim.turn();
        let now = records(&sim);
        assert!(now - before <= 12, "{now} were told, {before} before");
        assert!(tasks(&sim) <= 12, "{} are to be told", tasks(&sim));
        (before, turns) = (now, turns + 1);
        assert!(turns < 40);
    }
    sim.us_per_look.set(0);
    assert!(sim.rests());
    assert_eq!((records(&sim), held(&sim)), (HOLDS, HOLDS), "each is told once");
    // It runs since the promotion, to the millisecond in which that was.
    sim.passes(1_000);
    assert!(sim.rests());
    assert_eq!(held(&sim), 0);
}

#[test]
fn a_lease_that_runs_is_judged_so_before_its_turn_has_come() {
    let mut sim = half_promoted();
    sim.passes(500);
    let left = |parts: &[PartBuf]| {
        let at = parts.iter().position(|part| *part == PartBuf::Bytes(b"lease-left-ms".to_vec()));
        at.and_then(|at| parts.get(at + 1).cloned())
    };
    let told = sim.told(&format!("LOCK.INFO k{}", HOLDS - 1));
    assert!(matches!(left(&told), Some(PartBuf::Integer(490..=500))), "{told:?}");
    sim.passes(500);
    // G6: no request waits for a lock whose lease has expired.
    sim.number(&format!("LOCK.ACQUIRE k{} bob PX 60000", HOLDS - 1));
    assert!(sim.rests());
    assert_eq!(held(&sim), 1);
}

#[test]
fn what_its_owner_asks_for_meanwhile_is_not_cut() {
    // G2
    let mut sim = half_promoted();
    let [renewed, again, shared] = [1, 2, 3].map(|number| HOLDS - number);
    assert_eq!(sim.number(&format!("LOCK.RENEW k{renewed} alice PX 3000")), 1);
    sim.number(&format!("LOCK.ACQUIRE k{again} alice PX 3000"));
    sim.number(&format!("LOCK.ACQUIRE k{shared} alice PX 3000 SHARED"));
    assert!(sim.rests());
    sim.disconnect(1);
    sim.passes(2_990);
    assert!(sim.rests());
    assert_eq!(held(&sim), 3);
    sim.passes(11);
    assert!(sim.rests());
    assert_eq!(held(&sim), 0);
}

#[test]
fn a_promotion_that_is_taken_back_half_way_leaves_every_lease_as_it_was() {
    let mut sim = half_promoted();
    let bound = sim.number(&format!("LOCK.ACQUIRE k{} alice PX 1000 KEEPALIVE", HOLDS - 1));
    sim.takes_role(true);
    sim.passes(600);
    assert!(sim.rests());
    sim.takes_role(false);
    assert!(sim.rests());
    // Leases of the first promotion run since then, and the one that a connection kept alive since the second.
    sim.passes(400);
    assert!(sim.rests());
    assert_eq!((held(&sim), sim.number(&format!("LOCK.FENCE k{}", HOLDS - 1))), (1, bound));
    sim.passes(601);
    assert!(sim.rests());
    assert_eq!(held(&sim), 0);
}

#[test]
fn a_file_that_is_written_half_way_has_leases_that_run() {
    let mut sim = half_promoted();
    sim.passes(600);
    let file = sim.save();
    let mut loaded = Sim::started();
    loaded.read_files(&file, &[]).expect("it is read");
    assert!(loaded.rests());
    loaded.passes(390);
    assert!(loaded.rests());
    assert_eq!(held(&loaded), HOLDS);
    loaded.passes(10);
    assert!(loaded.rests());
    assert_eq!(held(&loaded), 0);
}

#[test]
fn a_command_after_a_pause_replicates_running_leases_at_once() {
    let mut sim = with_clients(2);
    sim.number("LOCK.ACQUIRE k alice PX 1000 SHARED KEEPALIVE");
    sim.is_paused.set(true);
    sim.reload().expect("what was saved is loaded");
    assert!(sim.rests());
    sim.is_paused.set(false);
    assert_eq!(records(&sim), 0);
    sim.number("LOCK.ACQUIRE other bob PX 1000");
    assert!(sim.rests());
    assert_eq!(records(&sim), 1);
}
