//! Locks with dozens of holders: beyond a few, the core finds them in another way, and no longer examines each of
//! them in every step.

use crate::lock::tests::random::Random;
use crate::lock::types::{Binding, Mode, Token};
use crate::sim::checkers::judge::Judge;
use crate::sim::single::input::{How, Input};
use crate::sim::single::server::{At, Name};
use crate::sim::single::world::World;

const K: At = At::new(0, "k");

/// Adds and removes holders, one by one and all at once, until there have been few and many of them several times.
fn live(seed: u64, mode: Mode) -> Result<usize, String> {
    let owners: Vec<Name> = (0..40).map(|n| &*format!("owner-{n}").leak()).collect();
    let (mut random, mut world, mut judge) = (Random::new(seed), World::new(1_000_000, 0), Judge::default());
    world.step(&Input::NewReplica(0))?;
    world.step(&Input::Confirm(seed % 2 == 1))?;
    let (mut most, mut has_passed) = (0, false);
    for step in 0..1_200 {
        let owner = random.of(&owners);
        let client = random.below(30);
        let lease_ms = 1 + random.below(if step % 400 < 250 { 90 } else { 8 });
        let binding = Binding {
            ephemeral_ms: random.percent(5).then_some(3),
            // An unconfirmed lease of this kind has no bounded end.
            is_keepalive: random.percent(3) && !world.confirms,
            is_running: false,
        };
        let how = How { mode, is_reentrant: false, binding, is_reservation: false };
        let token = world.server.live_token(K).filter(|_| random.percent(20));
        // In a large list, the pump ends expired holds; it runs at once.
        let is_pump_next = std::mem::take(&mut has_passed);
        let input = match random.below(100) {
            _ if is_pump_next => Input::Pump,
            0..55 => {
                let wait = Some(1 + random.below(20)).filter(|_| random.percent(30));
                Input::Acquire { at: K, owner, lease_ms, wait, client, minted: false, how }
            }
            55..65 => Input::Release { at: K, owner, token },
            65..72 => Input::Renew { at: K, owner, token, raise: None, lease_ms, client },
            72..86 => Input::Pass(1_000 * random.below(4)),
            86..89 if !world.confirming().is_empty() => {
                let clients: Vec<u64> = world.confirming().into_iter().map(|(client, _)| client).collect();
                Input::Unblock(random.of(&clients))
            }
            89 if world.confirms => Input::Confirmed,
            86..97 => Input::Pump,
            97..99 => Input::Close(client),
            _ => random.of(&[
                Input::Dump(K),
                Input::Restore(K),
                Input::Del(K),
                Input::NewFile,
                Input::Promote(0),
            ]),
        };
        if matches!(input, Input::NewFile) && world.readers.len() > 2 {
            continue;
        }
        has_passed = matches!(input, Input::Pass(_));
        let input = input.heard(&world);
        let out = world.step(&input)?;
        world.catch_up()?;
        let judged = judge.judge(&input, &out, &world).and_then(|()| world.check());
        judged.map_err(|wrong| format!("seed {seed}, step {step}: {input:?}: {wrong}"))?;
        most = most.max(judge.live(K, &world).count());
        let newest = judge.live(K, &world).map(|hold| hold.token).max();
        if newest.map(Token::get) != world.server.live_token(K).map(Token::get) {
            return Err(format!("seed {seed}, step {step}: the newest token is not {newest:?}"));
        }
    }
    if seed % 2 == 1 && !judge.seen.contains("taken back") {
        return Err(format!("seed {seed}: {:?} happened", judge.seen));
    }
    Ok(most)
}

#[test]
fn a_list_of_holders_grows_and_shrinks() -> Result<(), String> {
    for seed in 0..4 {
        let shared = live(seed, Mode::Shared)?;
        let limited = live(seed, Mode::Limit(25))?;
        if shared < 15 || limited < 15 {
            return Err(format!("seed {seed}: there were never more than {shared} and {limited} holders"));
        }
    }
    Ok(())
}

/// Expired holds that have not ended yet are skipped, but only a few of them.
#[test]
fn a_view_of_very_many_holders_looks_at_a_few_and_shows_them() -> Result<(), String> {
    let mut world = World::new(1_000_000, 0);
    let shown = |world: &World, max| {
        let lock = world.server.described(K, max).expect("somebody holds");
        (lock.holders, lock.holds.len())
    };
    for client in 0..20 {
        let (owner, lease_ms) = (&*format!("owner-{client}").leak(), if client < 2 { 1 } else { 9 });
        let how = How::of(Mode::Shared);
        world.step(&Input::Acquire { at: K, owner, lease_ms, wait: None, client, minted: false, how })?;
    }
    assert_eq!([20, 3, 100].map(|max| shown(&world, max)), [(20, 20), (20, 3), (20, 20)]);
    world.step(&Input::Pass(2_000))?;
    // Two leases have expired; the pump has not run yet.
    assert_eq!([18, 3, 100].map(|max| shown(&world, max)), [(20, 18), (20, 3), (18, 18)]);
    Ok(())
}
