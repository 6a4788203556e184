//! Keys whose time to live has ended while requests wait (G6): the pump opens them, which removes them.

use super::given::with_clients;
use crate::engine::flags::Flags;
use crate::sim::server::inside::{PartBuf, Slot};
use crate::sim::server::sim::Sim;

/// A lock of this name whose key has a second to live, and a request that waits for it. The server removes only keys
/// that somebody opens.
fn with_waiter(mut sim: Sim, name: &str) -> Sim {
    sim.inside.borrow_mut().expires_opened_keys_alone = true;
    sim.number(&format!("LOCK.ACQUIRE {name} alice PX 60000"));
    sim.waits(2, &format!("LOCK.ACQUIRE {name} bob PX 60000 BLOCK 0"));
    assert_eq!(sim.number(&format!("PEXPIRE {name} 1000")), 1);
    assert!(sim.rests());
    sim
}

fn node() -> Sim {
    let sim = Sim::started_as(Flags { is_cluster: true, ..Flags::default() }, |_| ());
    (1..=2).for_each(|client| sim.connect(client));
    sim
}

/// Returns true if the request was granted when time passed and the cron ran.
fn is_granted(sim: &mut Sim, ms: u64) -> bool {
    sim.passes(ms);
    sim.cron();
    assert!(sim.rests());
    matches!(&sim.answers[..], [(_, parts)] if matches!(parts[..], [PartBuf::Integer(_)]))
}

#[test]
fn a_request_is_granted_when_the_key_expires_that_nobody_opens() {
    let mut sim = with_waiter(with_clients(2), "k");
    assert!(!is_granted(&mut sim, 999));
    sim.passes(1);
    assert!(sim.rests() && sim.answers.is_empty(), "only the cron looks");
    assert!(is_granted(&mut sim, 0));
}

/// Copying a long name ten times a second costs more than the server's own expiry can be late.
#[test]
fn a_key_with_a_longer_name_than_4096_bytes_is_left_to_the_server() {
    let mut sim = with_waiter(with_clients(2), &"k".repeat(4096));
    assert!(is_granted(&mut sim, 1000));
    let mut sim = with_waiter(with_clients(2), &"k".repeat(4097));
    assert!(!is_granted(&mut sim, 1000));
    sim.inside.borrow_mut().expires_opened_keys_alone = false;
    assert!(is_granted(&mut sim, 0));
}

/// There the name says whether its slot has left.
#[test]
fn a_node_of_a_cluster_looks_at_names_of_any_length() {
    let mut sim = with_waiter(node(), &"k".repeat(4097));
    assert!(is_granted(&mut sim, 1000));
}

#[test]
fn a_key_whose_slot_has_left_or_that_nobody_serves_is_not_removed() {
    let mut sim = with_waiter(node(), "k");
    sim.inside.borrow_mut().is_cluster_down = true;
    assert!(!is_granted(&mut sim, 1000));
    sim.inside.borrow_mut().is_cluster_down = false;
    sim.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
    assert!(!is_granted(&mut sim, 0));
    assert!(matches!(&sim.answers[0].1[..], [PartBuf::Error(text)] if text.starts_with("MOVED ")));
}

#[test]
fn a_paused_server_removes_no_key() {
    let mut sim = with_waiter(with_clients(2), "k");
    sim.is_paused.set(true);
    assert!(!is_granted(&mut sim, 1000));
    sim.is_paused.set(false);
    assert!(is_granted(&mut sim, 0));
}
