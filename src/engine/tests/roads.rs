//! The ways in which a command arrives, and the time since which the server delivers its events.

use super::given::with_clients;
use crate::engine::events;
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::sim::server::inside::PartBuf;
use crate::sim::server::world::{World, words};

fn listens(world: &World) -> u32 {
    world.inside.borrow().listens
}

#[test]
fn a_server_delivers_its_events_from_the_first_command_on() {
    let mut world = with_clients(1);
    assert_eq!(listens(&world), 0);
    assert!(!world.shared().hears_clients_only(), "nobody would tell of facts");
    world.number("LOCK.ACQUIRE k alice PX 30000");
    world.number("LOCK.ACQUIRE l alice PX 30000");
    assert_eq!(listens(&world), 1);
    assert!(world.shared().hears_clients_only());
}

#[test]
fn a_node_of_a_cluster_looks_at_each_command() {
    let cluster = Flags { is_cluster: true, ..Flags::default() };
    let mut world = World::started_as(cluster, |_| ());
    world.connect(1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    assert!(world.rests());
    assert!(world.shared().is_cluster() && !world.shared().hears_clients_only());
}

#[test]
fn a_server_that_needs_its_role_listens_from_the_start() {
    let set = |name: &'static str| {
        World::started_as(Flags::default(), move |world| {
            crate::sim::server::world::set_number(&world.shared().settings, name, 1_000);
        })
    };
    assert_eq!(listens(&set("quarantine")), 1);
    assert_eq!(listens(&set("max-lease")), 0);
    let leaves = World::started_as(Flags::default(), |world| world.shared().settings.switches()[2].set(true));
    assert_eq!(listens(&leaves), 1);
    let later = World::started();
    later.sets("max-lease", 1_000);
    assert_eq!(listens(&later), 0);
    later.sets("quarantine", 1_000);
    assert_eq!(listens(&later), 1);
    let later = World::started();
    later.switches("leaving", true);
    assert_eq!(listens(&later), 1);
    let later = World::started();
    later.confirms();
    assert_eq!(listens(&later), 1);
}

#[test]
fn listeners_are_looked_for_once_the_first_data_set_is_loaded() {
    let mut world = World::started();
    world.inside.borrow_mut().is_unheard = true;
    events::loading(&world);
    let loading = Flags { is_loading: true, is_fact: true, ..Flags::default() };
    assert_eq!(world.told_as(loading, words("LOCK.TICK 7 7")), [PartBuf::Ok]);
    assert_eq!(listens(&world), 1);
    assert!(world.shared().events_are_heard.is_set(), "nobody has looked");
    events::loaded(&world);
    assert!(!world.shared().events_are_heard.is_set());
}

#[test]
fn events_are_published_only_if_they_have_a_listener() {
    let mut world = with_clients(1);
    world.number("LOCK.ACQUIRE k alice PX 30000");
    let before = world.inside.borrow().published.len();
    assert_eq!(before, 1);
    world.inside.borrow_mut().is_unheard = true;
    crate::engine::first_use::look_for_listeners(&world);
    world.number("LOCK.ACQUIRE l alice PX 30000");
    world.told("DEL k");
    assert!(world.rests());
    let inside = world.inside.borrow();
    let others = inside.published[before..]
        .iter()
        .filter(|one| matches!(one, crate::sim::server::inside::Published::Lock(..)));
    assert_eq!(others.count(), 0);
}
