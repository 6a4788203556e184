//! A lock whose grant waits for replicas leaves with its slot, and comes back. Its owner may have received it where it
//! was meanwhile.

use super::revoked::{is_refused, passes, that_confirms};
use crate::engine::type_callbacks;
use crate::sim::server::inside::{Slot, Told, Value};
use crate::sim::server::sim::{Sim, at, words};

/// A grant for Alice that is not confirmed yet, with its handle and token.
fn granted() -> (Sim, u64, String) {
    let mut sim = that_confirms();
    let grant = sim.waits(1, "LOCK.ACQUIRE k alice PX 60000");
    let token = sim.look(&[at(0, "k")])[&at(0, "k")].holders[0].token;
    (sim, grant, token.expect("it has one").to_string())
}

/// Its slot leaves, with the lock. Returns the commands for another node.
fn leaves(sim: &mut Sim) -> String {
    let payload = sim.dump(&at(0, "k")).expect("it is there");
    sim.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
    assert!(sim.take(&at(0, "k")).is_some());
    assert!(sim.rests());
    payload
}

/// It comes back: a key at a time, or as the stream of a slot brings it.
fn comes_back(sim: &mut Sim, payload: &str, token: &str, is_streamed: bool) {
    sim.inside.borrow_mut().slots = Vec::new();
    if is_streamed {
        sim.apply(&Told { db: 0, words: words(&format!("LOCK.APPLY k HOLD {token} 60000 alice")) });
    } else {
        sim.told(&format!("RESTORE k {payload}"));
    }
    assert!(sim.rests());
}

fn holds(sim: &Sim) -> bool {
    sim.look(&[at(0, "k")])[&at(0, "k")].holders.iter().any(|holder| *holder.owner == *b"alice")
}

#[test]
fn an_unconfirmed_grant_is_not_revoked_when_its_lock_has_come_back() {
    // G1: another owner would have been granted the lock.
    for is_streamed in [false, true] {
        let (mut sim, grant, token) = granted();
        let payload = leaves(&mut sim);
        comes_back(&mut sim, &payload, &token, is_streamed);
        passes(&mut sim, 1_001);
        assert!(is_refused(&sim, grant));
        passes(&mut sim, 5_000);
        assert!(holds(&sim), "{is_streamed}");
        assert_eq!(sim.state().table.undelivered(), 0);
    }
}

#[test]
fn what_could_not_be_revoked_in_time_is_not_revoked_when_its_lock_has_come_back() {
    for is_streamed in [false, true] {
        let (mut sim, _, token) = granted();
        sim.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
        passes(&mut sim, 1_001);
        assert!(sim.state().table.has_put_off(), "its key is still here");
        let payload = leaves(&mut sim);
        comes_back(&mut sim, &payload, &token, is_streamed);
        passes(&mut sim, 5_000);
        assert!(holds(&sim), "{is_streamed}");
        assert_eq!(sim.state().table.undelivered(), 0);
    }
}

#[test]
fn nothing_is_kept_of_a_hold_whose_lock_came_back_before_the_old_one_was_freed() {
    for is_streamed in [false, true] {
        let (mut sim, _, token) = granted();
        sim.inside.borrow_mut().slots = vec![("k", Slot::Elsewhere)];
        passes(&mut sim, 1_001);
        assert!(sim.state().table.has_put_off(), "its key is still here");
        let payload = sim.dump(&at(0, "k")).expect("it is there");
        let old = sim.inside.borrow_mut().keys.remove(&at(0, "k")).expect("it is there");
        let Value::Lock(lock) = old.value else { panic!("{:?}", old.value) };
        type_callbacks::unlinked(&sim, lock);
        sim.leave_to_thread(std::iter::once(old.value));
        comes_back(&mut sim, &payload, &token, is_streamed);
        passes(&mut sim, 5_000);
        sim.free_late();
        passes(&mut sim, 1);
        assert!(holds(&sim), "{is_streamed}");
        assert_eq!(sim.state().table.undelivered(), 0, "{is_streamed}");
    }
}
