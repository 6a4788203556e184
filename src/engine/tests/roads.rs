//! The ways in which a command arrives, and the time since which the server delivers its events.

use super::given::with_clients;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::server_events;
use crate::sim::server::inside::PartBuf;
use crate::sim::server::sim::{Sim, words};

fn listens(sim: &Sim) -> u32 {
    sim.inside.borrow().listens
}

#[test]
fn a_server_delivers_its_events_from_the_first_command_on() {
    let mut sim = with_clients(1);
    assert_eq!(listens(&sim), 0);
    assert!(!sim.shared().hears_clients_only(), "nobody would tell of facts");
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    sim.number("LOCK.ACQUIRE l alice PX 30000");
    assert_eq!(listens(&sim), 1);
    assert!(sim.shared().hears_clients_only());
}

#[test]
fn a_node_of_a_cluster_looks_at_each_command() {
    let cluster = Flags { is_cluster: true, ..Flags::default() };
    let mut sim = Sim::started_as(cluster, |_| ());
    sim.connect(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    assert!(sim.rests());
    assert!(sim.shared().is_cluster() && !sim.shared().hears_clients_only());
}

#[test]
fn a_server_that_needs_its_role_listens_from_the_start() {
    let set = |name: &'static str| {
        Sim::started_as(Flags::default(), move |sim| {
            crate::sim::server::sim::set_number(&sim.shared().settings, name, 1_000);
        })
    };
    assert_eq!(listens(&set("quarantine")), 1);
    assert_eq!(listens(&set("max-lease")), 0);
    let leaves = Sim::started_as(Flags::default(), |sim| sim.shared().settings.switches()[2].set(true));
    assert_eq!(listens(&leaves), 1);
    let later = Sim::started();
    later.sets("max-lease", 1_000);
    assert_eq!(listens(&later), 0);
    later.sets("quarantine", 1_000);
    assert_eq!(listens(&later), 1);
    let later = Sim::started();
    later.switches("leaving", true);
    assert_eq!(listens(&later), 1);
    let later = Sim::started();
    later.confirms();
    assert_eq!(listens(&later), 1);
}

#[test]
fn listeners_are_looked_for_once_the_first_data_set_is_loaded() {
    let mut sim = Sim::started();
    sim.inside.borrow_mut().is_unheard = true;
    server_events::loading(&sim);
    let loading = Flags { is_loading: true, is_fact: true, ..Flags::default() };
    assert_eq!(sim.told_as(loading, words("LOCK.TICK 7 7")), [PartBuf::Ok]);
    assert_eq!(listens(&sim), 1);
    assert!(sim.shared().events_are_heard.is_set(), "nobody has looked");
    server_events::loaded(&sim);
    assert!(!sim.shared().events_are_heard.is_set());
}

#[test]
fn events_are_published_only_if_they_have_a_listener() {
    let mut sim = with_clients(1);
    sim.number("LOCK.ACQUIRE k alice PX 30000");
    let before = sim.inside.borrow().published.len();
    assert_eq!(before, 1);
    sim.inside.borrow_mut().is_unheard = true;
    crate::engine::lazy_subscribe::look_for_listeners(&sim);
    sim.number("LOCK.ACQUIRE l alice PX 30000");
    sim.told("DEL k");
    assert!(sim.rests());
    let inside = sim.inside.borrow();
    let others = inside.published[before..]
        .iter()
        .filter(|one| matches!(one, crate::sim::server::inside::Published::Lock(..)));
    assert_eq!(others.count(), 0);
}
