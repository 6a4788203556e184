//! Holds that connections keep alive, when the server stops deciding and when it decides again.

use super::given::with_clients;
use crate::engine::server::Server;
use crate::sim::server::inside::PartBuf;
use crate::sim::server::world::World;

const HOLDS: usize = 40;

fn held(world: &World) -> usize {
    world.with(|state| state.table.holds()).expect("nobody is within the engine")
}

fn tasks(world: &World) -> usize {
    world.with(|state| state.table.tasks()).expect("nobody is within the engine")
}

fn is_sorted(world: &World) -> bool {
    world.with(|state| !state.table.has_unbound()).expect("nobody is within the engine")
}

/// A replica that was the primary until now, and whose clients hold many locks by this option.
fn demoted(option: &str) -> World {
    let mut world = with_clients(3);
    for number in 0..HOLDS {
        world.number(&format!("LOCK.ACQUIRE k{number} alice PX 1000 {option}"));
    }
    assert!(world.rests());
    world.takes_role(true);
    world
}

/// A server that was demoted, decides again, and has not finished the work that follows.
fn half_promoted() -> World {
    let mut world = demoted("KEEPALIVE");
    assert!(world.rests());
    world.takes_role(false);
    world.us_per_look.set(300);
    world.turn();
    world.turn();
    world.us_per_look.set(0);
    assert!(records(&world) > 0 && records(&world) < HOLDS, "{} records", records(&world));
    world
}

/// The number of holds whose leases run according to the stream.
fn records(world: &World) -> usize {
    let inside = world.inside.borrow();
    let runs = |words: &[Vec<u8>]| words.iter().any(|word| word == b"RUNS");
    inside.stream.iter().filter(|told| runs(&told.words)).count()
}

#[test]
fn a_server_that_is_demoted_forgets_its_connections_some_in_a_turn() {
    // G16
    for option in ["EPHEMERAL 60000", "KEEPALIVE"] {
        let mut world = demoted(option);
        world.us_per_look.set(300);
        let mut turns = 0;
        while !is_sorted(&world) {
            world.turn();
            turns += 1;
            assert!(turns < 40, "{option}");
        }
        assert!(turns > 2, "{option}: {turns} turns");
        world.us_per_look.set(0);
        assert!(world.rests());
        // Nothing that its clients do concerns them any more.
        world.disconnect(1);
        world.passes(5_000);
        assert!(world.rests());
        assert_eq!((held(&world), records(&world)), (HOLDS, 0));
    }
}

#[test]
fn a_server_that_is_promoted_lets_kept_leases_run_some_in_a_turn() {
    // G16
    let mut world = demoted("KEEPALIVE");
    assert!(world.rests());
    world.takes_role(false);
    world.us_per_look.set(300);
    let (mut before, mut turns) = (0, 0);
    while before < HOLDS {
        world.turn();
        let now = records(&world);
        assert!(now - before <= 12, "{now} were told, {before} before");
        assert!(tasks(&world) <= 12, "{} are to be told", tasks(&world));
        (before, turns) = (now, turns + 1);
        assert!(turns < 40);
    }
    world.us_per_look.set(0);
    assert!(world.rests());
    assert_eq!((records(&world), held(&world)), (HOLDS, HOLDS), "each is told once");
    // It runs since the promotion, to the millisecond in which that was.
    world.passes(1_000);
    assert!(world.rests());
    assert_eq!(held(&world), 0);
}

#[test]
fn a_lease_that_runs_is_judged_so_before_its_turn_has_come() {
    let mut world = half_promoted();
    world.passes(500);
    let left = |parts: &[PartBuf]| {
        let at = parts.iter().position(|part| *part == PartBuf::Bytes(b"lease-left-ms".to_vec()));
        at.and_then(|at| parts.get(at + 1).cloned())
    };
    let told = world.told(&format!("LOCK.INFO k{}", HOLDS - 1));
    assert!(matches!(left(&told), Some(PartBuf::Integer(490..=500))), "{told:?}");
    world.passes(500);
    // G6: no request waits for a lock whose lease has expired.
    world.number(&format!("LOCK.ACQUIRE k{} bob PX 60000", HOLDS - 1));
    assert!(world.rests());
    assert_eq!(held(&world), 1);
}

#[test]
fn what_its_owner_asks_for_meanwhile_is_not_cut() {
    // G2
    let mut world = half_promoted();
    let [renewed, again, shared] = [1, 2, 3].map(|number| HOLDS - number);
    assert_eq!(world.number(&format!("LOCK.RENEW k{renewed} alice PX 3000")), 1);
    world.number(&format!("LOCK.ACQUIRE k{again} alice PX 3000"));
    world.number(&format!("LOCK.ACQUIRE k{shared} alice PX 3000 SHARED"));
    assert!(world.rests());
    world.disconnect(1);
    world.passes(2_990);
    assert!(world.rests());
    assert_eq!(held(&world), 3);
    world.passes(11);
    assert!(world.rests());
    assert_eq!(held(&world), 0);
}

#[test]
fn a_promotion_that_is_taken_back_half_way_leaves_every_lease_as_it_was() {
    let mut world = half_promoted();
    let bound = world.number(&format!("LOCK.ACQUIRE k{} alice PX 1000 KEEPALIVE", HOLDS - 1));
    world.takes_role(true);
    world.passes(600);
    assert!(world.rests());
    world.takes_role(false);
    assert!(world.rests());
    // Leases of the first promotion run since then, and the one that a connection kept alive since the second.
    world.passes(400);
    assert!(world.rests());
    assert_eq!((held(&world), world.number(&format!("LOCK.FENCE k{}", HOLDS - 1))), (1, bound));
    world.passes(601);
    assert!(world.rests());
    assert_eq!(held(&world), 0);
}

#[test]
fn a_file_that_is_written_half_way_has_leases_that_run() {
    let mut world = half_promoted();
    world.passes(600);
    let file = world.save();
    let mut loaded = World::started();
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
    let mut world = with_clients(2);
    world.number("LOCK.ACQUIRE k alice PX 1000 SHARED KEEPALIVE");
    world.is_paused.set(true);
    world.reload().expect("what was saved is loaded");
    assert!(world.rests());
    world.is_paused.set(false);
    assert_eq!(records(&world), 0);
    world.number("LOCK.ACQUIRE other bob PX 1000");
    assert!(world.rests());
    assert_eq!(records(&world), 1);
}
