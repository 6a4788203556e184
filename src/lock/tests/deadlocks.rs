//! G11 in a small world that is full of it: four owners, three locks of all kinds, several waits of each owner,
//! and nothing but asking and giving up. Every answer is compared with a search by brute force, which acts out
//! how everybody gives up everything as soon as he can (see [`super::book::Scene::comes_true`]): who is refused
//! would have waited for ever, and who waits does not.

use std::collections::BTreeMap;

use super::input::{How, Input, Keys, Reply};
use super::judge::Judge;
use super::random::Random;
use super::server::{At, Name};
use super::world::World;
use crate::lock::table::Refusal;
use crate::lock::types::Mode;

const OWNERS: [Name; 4] = ["ann", "bob", "cem", "dee"];
const PLACES: [At; 3] = [At::new(0, "k"), At::new(0, "m"), At::new(0, "n")];
const LEASE_MS: u64 = 60_000;

fn input(random: &mut Random, modes: [Mode; 3]) -> Input {
    let (owner, which) = (random.of(&OWNERS), random.below(3) as usize);
    let at = PLACES[which];
    // Every wait has a connection of its own, so that an owner can have several.
    let client = u64::from(owner.as_bytes()[0]) * 10 + which as u64;
    let wait = Some(0).filter(|_| random.percent(75));
    match random.below(100) {
        0..15 => {
            let mut ats: Vec<At> = (0..3).map(|n| PLACES[(which + n) % 3]).collect();
            ats.truncate(2 + random.below(2) as usize);
            let keys = Keys::of(&ats);
            let (client, is_shared) = (client + 5, random.percent(50));
            Input::AcquireMany { keys, owner, lease_ms: LEASE_MS, wait, client, minted: false, is_shared }
        }
        15..85 => {
            let other = random.of(&[Mode::Exclusive, Mode::Shared]);
            let is_limited = matches!(modes[which], Mode::Limit(_));
            let mode = if is_limited || random.percent(60) { modes[which] } else { other };
            let how = How { is_place: wait.is_some() && random.percent(5), ..How::of(mode) };
            let wait = if how.is_place { Some(LEASE_MS) } else { wait };
            Input::Acquire { at, owner, lease_ms: LEASE_MS, wait, client, minted: false, how }
        }
        85..95 => Input::Release { at, owner, token: None },
        95..97 => Input::Close(client),
        _ => Input::Pump,
    }
}

/// What kind of wait was refused.
fn kind_of(input: &Input, judge: &Judge, world: &World) -> &'static str {
    match *input {
        Input::AcquireMany { .. } => "several",
        Input::Acquire { at, owner, how, .. } if judge.own(at, owner, world).is_some() => match how.mode {
            Mode::Exclusive => "upgrade",
            _ => "other",
        },
        Input::Acquire { how, .. } => match how.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Limit(_) => "limit",
        },
        _ => "other",
    }
}

#[test]
fn a_wait_is_refused_if_and_only_if_it_would_never_end() -> Result<(), String> {
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..LIVES {
        let mut random = Random::new(seed);
        let modes =
            [(); 3].map(|()| random.of(&[Mode::Exclusive, Mode::Shared, Mode::Limit(1), Mode::Limit(2)]));
        let (mut world, mut judge) = (World::new(1_000_000, 0), Judge::default());
        for step in 0..30 {
            let input = input(&mut random, modes);
            let kind = kind_of(&input, &judge, &world);
            let out = world.step(&input)?;
            let judged = judge.judge(&input, &out, &world).and_then(|()| world.check());
            judged.map_err(|wrong| format!("seed {seed}, step {step}: {input:?}: {wrong}"))?;
            if out.reply == Reply::Refused(Refusal::Deadlock) {
                *refused.entry(kind).or_default() += 1;
            }
        }
    }
    println!("{refused:?}");
    let missing =
        ["exclusive", "limit", "several", "shared", "upgrade"].map(|kind| (kind, refused.get(kind)));
    let missing: Vec<_> = missing.iter().filter(|(_, count)| count.is_none_or(|&count| count < 20)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("hardly ever: {missing:?}")) }
}

/// How many random lives are lived.
const LIVES: u64 = 2_000;
