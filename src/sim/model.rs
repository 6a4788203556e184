//! Searches every sequence of inputs up to a bound, in a small world. The worlds are in
//! [`crate::sim::model::worlds`].
//!
//! A state is whatever clients, the keyspace and the pump can distinguish; states that differ only in the names of
//! owners are one. Every state is judged, and every reader compared, on every path to it. Then the pump runs, so that
//! a lost wake-up shows wherever it was lost. The number of states is pinned: a model that silently shrinks fails.

mod worlds;

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};

use crate::lock::tests::tuning::Lowered;
use crate::lock::token::JUMP_US;
use crate::lock::types::{Binding, Mode, Token};
use crate::sabotage::{Rule, without};
use crate::sim::checkers::judge::Judge;
use crate::sim::single::input::{How, Input, Keys, Outcome};
use crate::sim::single::server::{At, Key, Name};
use crate::sim::single::world::World;

pub(crate) const K: At = At::new(0, "k");
pub(crate) const M: At = At::new(0, "m");
pub(crate) const K1: At = At::new(1, "k");
const PLACES: [At; 4] = [K, M, K1, At::new(1, "m")];
const OWNERS: [Name; 3] = ["a", "b", "c"];

/// The moves that may come next.
#[derive(Clone, Copy)]
pub(crate) enum Move {
    /// By this one of the owners, on its first connection or another one.
    Acquire {
        who: usize,
        at: At,
        wait: Option<u64>,
        connection: u64,
        how: How,
    },
    /// Both locks, all or none.
    AcquireBoth {
        who: usize,
        wait: Option<u64>,
        is_shared: bool,
    },
    Release {
        who: usize,
        at: At,
    },
    /// A release with the token of an earlier hold.
    ReleaseStale {
        who: usize,
        at: At,
    },
    Renew {
        who: usize,
        at: At,
        lease_ms: u64,
        connection: u64,
    },
    Close {
        who: usize,
        connection: u64,
    },
    /// A payload of another server with a token this far ahead.
    PayloadAhead(u64),
    /// The newest client that waits for replicas is unblocked.
    FailNewest,
    /// The oldest one is unblocked.
    FailOldest,
    /// A user sets the wall clock this far ahead of the newest token.
    WallAhead(u64),
    Plain(Input),
}

impl Move {
    const fn who(self) -> Option<usize> {
        match self {
            Self::Acquire { who, .. } | Self::Release { who, .. } | Self::ReleaseStale { who, .. } => {
                Some(who)
            }
            Self::AcquireBoth { who, .. } | Self::Renew { who, .. } | Self::Close { who, .. } => Some(who),
            Self::PayloadAhead(_)
            | Self::FailNewest
            | Self::FailOldest
            | Self::WallAhead(_)
            | Self::Plain(_) => None,
        }
    }

    fn input(self, world: &World) -> Input {
        match self {
            Self::Acquire { who, at, wait, connection, how } => {
                let (owner, client) = (OWNERS[who], client(who, connection));
                Input::Acquire { at, owner, lease_ms: LEASE_MS, wait, client, minted: false, how }
            }
            Self::AcquireBoth { who, wait, is_shared } => {
                let (keys, owner, client) = (Keys::of(&[K, M]), OWNERS[who], client(who, 2));
                Input::AcquireMany { keys, owner, lease_ms: LEASE_MS, wait, client, minted: false, is_shared }
            }
            Self::Release { who, at } => Input::Release { at, owner: OWNERS[who], token: None },
            Self::ReleaseStale { who, at } => {
                let live = world.server.live_token(at);
                let token = live.and_then(|token| Token::new(token.get() - 1)).or(Token::new(1));
                Input::Release { at, owner: OWNERS[who], token }
            }
            Self::Renew { who, at, lease_ms, connection } => {
                let (owner, client) = (OWNERS[who], client(who, connection));
                Input::Renew { at, owner, token: None, raise: None, lease_ms, client }
            }
            Self::Close { who, connection } => Input::Close(client(who, connection)),
            Self::PayloadAhead(ahead) => {
                let token = Token::new(world.server.table().last_token() + ahead);
                token.map_or(Input::Pump, |token| Input::Payload {
                    name: K.name,
                    owner: OWNERS[0],
                    token,
                    left_ms: LEASE_MS,
                    how: How::PLAIN,
                    beside: None,
                })
            }
            Self::FailNewest => world.confirming().last().map_or(Input::Pump, |last| Input::Unblock(last.0)),
            Self::FailOldest => {
                world.confirming().first().map_or(Input::Pump, |first| Input::Unblock(first.0))
            }
            Self::WallAhead(us) => Input::Wall(world.server.table().last_token() + us),
            Self::Plain(input) => input,
        }
    }
}

pub(crate) const LEASE_MS: u64 = 2;
const TASKS_MAX: usize = 2;
const READERS_MAX: usize = 2;
const CONFIRMING_MAX: usize = 2;
/// Searches until there is no new state, that is, sequences of any length.
pub(crate) const ANY_DEPTH: usize = usize::MAX;

const fn client(who: usize, connection: u64) -> u64 {
    10 * (who as u64 + 1) + connection
}

/// A world and its possible moves.
pub(crate) struct Model {
    pub(crate) begin: Vec<Input>,
    pub(crate) moves: Vec<Move>,
    pub(crate) depth: usize,
}

/// A state, with a path to it.
#[derive(Clone)]
struct State {
    way: Vec<Input>,
    judge: Judge,
    /// The owners that appear in it.
    owners: Vec<Name>,
}

/// The result of a search.
struct Outcomes {
    states: usize,
    steps: usize,
    seen: BTreeSet<&'static str>,
}

impl Model {
    fn world(&self, way: &[Input]) -> Result<World, String> {
        let mut world = World::new(1_000_000, 0);
        for input in self.begin.iter().chain(way) {
            step(&mut world, input)?;
        }
        Ok(world)
    }

    /// Searches breadth first, so that the first path to a broken guarantee is a shortest one.
    fn search(&self) -> Result<Outcomes, String> {
        let mut result = Outcomes { states: 1, steps: 0, seen: BTreeSet::new() };
        let mut known = HashSet::new();
        let mut edge = vec![State { way: Vec::new(), judge: Judge::default(), owners: Vec::new() }];
        known.insert(fingerprint(&mut self.world(&[])?, &edge[0].judge).0);
        for _ in 0..self.depth {
            if edge.is_empty() {
                break;
            }
            let mut next = Vec::new();
            for (print, state) in self.grow(&edge)? {
                result.steps += 1;
                result.seen.extend(&state.judge.seen);
                if known.insert(print) {
                    next.push(state);
                }
            }
            edge = next;
        }
        result.states = known.len();
        Ok(result)
    }

    /// Returns all states one move further, using all processors.
    fn grow(&self, edge: &[State]) -> Result<Vec<(Vec<u8>, State)>, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = edge.len().div_ceil(threads).max(1);
        let (lowered, rule) = (Lowered::now(), LEFT_OUT.get());
        std::thread::scope(|scope| {
            let workers: Vec<_> = edge
                .chunks(share)
                .map(|states| {
                    let follow = || states.iter().try_fold(Vec::new(), |all, state| self.follow(state, all));
                    scope.spawn(move || without(rule, || lowered.during(follow)))
                })
                .collect();
            let mut all = Vec::new();
            for worker in workers {
                all.append(&mut worker.join().map_err(|_| "a worker panicked")??);
            }
            Ok(all)
        })
    }

    /// Tries all moves from one state.
    fn follow(&self, state: &State, mut all: Vec<(Vec<u8>, State)>) -> Result<Vec<(Vec<u8>, State)>, String> {
        let mut world = self.world(&state.way)?;
        let before = fingerprint(&mut world, &state.judge).0;
        let outer = |world: &World| (world.time, world.server.now, world.dump.clone());
        let outer_before = outer(&world);
        let has_part = |who: usize| state.owners.contains(&OWNERS[who]);
        // Owners that do not appear are all alike, so the first of them moves for all.
        let stranger = (0..OWNERS.len()).find(|&who| !has_part(who));
        for &next in &self.moves {
            if next.who().is_some_and(|who| !has_part(who) && Some(who) != stranger) {
                continue;
            }
            let input = next.input(&world);
            // A server does not read from a client that is blocked.
            if input.client().is_some_and(|client| world.is_blocked(client)) {
                continue;
            }
            // A pump that never runs may have any number of tasks.
            if world.server.table().tasks() > TASKS_MAX && input != Input::Pump {
                continue;
            }
            // Nor is there an end to grants that are never confirmed.
            if world.confirming().len() > CONFIRMING_MAX && !matches!(input, Input::Unblock(_) | Input::Pump)
            {
                continue;
            }
            if world.readers.len() >= READERS_MAX && matches!(input, Input::NewReplica(_) | Input::NewFile) {
                continue;
            }
            let mut way = state.way.clone();
            way.push(input);
            let mut judge = state.judge.clone();
            let (print, owners) =
                take(&mut world, &mut judge, &input).map_err(|wrong| format!("{wrong}\nafter {way:#?}"))?;
            if print == before {
                // If nothing happened at all, the world can be reused.
                if outer(&world) != outer_before || !judge.agrees_with(&state.judge) {
                    world = self.world(&state.way)?;
                }
                continue;
            }
            let mut later = judge.clone();
            take(&mut world, &mut later, &Input::Pump)
                .map_err(|wrong| format!("{wrong}\nafter {way:#?}, Pump"))?;
            judge.seen.append(&mut later.seen);
            all.push((print, State { way, judge, owners }));
            world = self.world(&state.way)?;
        }
        Ok(all)
    }
}

fn step(world: &mut World, input: &Input) -> Result<Outcome, String> {
    let out = world.step(input)?;
    world.catch_up()?;
    Ok(out)
}

/// Takes one step with everything checked. Returns the state that it led to.
fn take(world: &mut World, judge: &mut Judge, input: &Input) -> Result<(Vec<u8>, Vec<Name>), String> {
    let out = step(world, input)?;
    judge.judge(input, &out, world)?;
    world.check()?;
    Ok(fingerprint(world, judge))
}

/// Returns the distinguishable state, and the owners that appear in it.
fn fingerprint(world: &mut World, judge: &Judge) -> (Vec<u8>, Vec<Name>) {
    let mut print = Vec::with_capacity(64);
    // Owners in the order in which they appear: their names do not matter.
    let mut owners: Vec<Name> = Vec::new();
    let mut number_of = |owner: Name| match owners.iter().position(|&other| other == owner) {
        Some(number) => number as u8,
        None => {
            owners.push(owner);
            owners.len() as u8 - 1
        }
    };
    let left = |until: u64| until.saturating_sub(world.time).div_ceil(1000).min(200) as u8;
    for at in PLACES {
        print.push(match world.server.keys.get(&at) {
            None => 0,
            Some(Key::Other) => 1,
            Some(Key::Lock(_)) if world.server.saved(at).is_none() => 2,
            Some(Key::Lock(_)) => 3,
        });
        for promise in judge.live(at, world) {
            let in_flight = world.in_flight.iter().find(|grant| grant.token == promise.token);
            let in_flight = in_flight.map_or(9, |grant| grant.client % 10) as u8;
            print.extend([
                promise.outstanding.map_or(10, |count| 11 + count as u8),
                number_of(promise.owner),
                promise.left_ms(world.time).min(200) as u8,
                in_flight,
                kind(promise.mode),
                promise.count.min(200) as u8,
                promise.client.map_or(9, |client| (client % 10) as u8),
            ]);
            print.extend(bound(promise.binding));
        }
        for pending in judge.queues.get(&at).into_iter().flatten() {
            let until = pending.until.map_or(255, left);
            print.extend([6, number_of(pending.owner), (pending.client % 10) as u8, until]);
            let is_reservation = u8::from(pending.is_reservation());
            print.extend([kind(pending.mode), pending.keys.len() as u8, is_reservation]);
            print.extend(bound(pending.binding));
        }
        print.push(7);
    }
    for (client, holds) in world.confirming() {
        for hold in holds {
            let is_left = judge.own(hold.at, hold.owner, world).is_some_and(|own| own.token == hold.token);
            print.extend([9, (client % 10) as u8, number_of(hold.owner), u8::from(is_left)]);
        }
    }
    if let Some((name, Some(saved))) = &world.dump
        && let Some(saved) = saved.holds.first()
    {
        let held = PLACES.iter().any(|&at| world.server.live_token(at) == Some(saved.token));
        let owner = world.owner(&saved.owner).map(&mut number_of);
        let ahead = saved.token.get() > world.server.table().last_token();
        print.extend([8, name.as_bytes()[0], owner.unwrap_or(9), saved.left_ms as u8]);
        print.extend([held, ahead].map(u8::from));
    }
    let (lead, is_told, tasks) = {
        let mut table = world.server.table_mut();
        let (last, told) = (table.last_token(), table.clock().replicated_token());
        (world.server.now.wall_us.saturating_sub(last), told == last, table.tasks())
    };
    print.extend([tasks as u8, world.server.unfreed().len() as u8]);
    print.extend([u8::from(lead >= JUMP_US), u8::from(is_told)]);
    print.extend(world.readers.iter().flat_map(|reader| reader.fingerprint(&world.server)));
    (print, owners)
}

const fn kind(mode: Mode) -> u8 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Limit(limit) => 1 + limit as u8,
    }
}

fn bound(binding: Binding) -> [u8; 2] {
    let cut_ms = binding.ephemeral_ms.map_or(99, |ms| ms as u8);
    [cut_ms, u8::from(binding.is_keepalive) + 2 * u8::from(binding.is_running)]
}

thread_local! {
    static LEFT_OUT: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Returns the fault that the first states of a model find if the engine leaves out this rule.
#[cfg(feature = "sabotage")]
pub(crate) fn wrong_without(rule: Rule, model: &Model) -> Option<String> {
    let before = LEFT_OUT.replace(Some(rule));
    let result = without(Some(rule), || model.search());
    LEFT_OUT.set(before);
    result.err()
}

pub(crate) fn moves_of(
    who: impl IntoIterator<Item = usize>,
    moves: impl Fn(usize) -> Vec<Move>,
) -> Vec<Move> {
    who.into_iter().flat_map(moves).collect()
}

pub(crate) fn plain(inputs: &[Input]) -> impl Iterator<Item = Move> {
    inputs.iter().copied().map(Move::Plain)
}

pub(crate) fn check(model: &Model, states: usize, sometimes: &[&str]) -> Result<(), String> {
    let result = model.search()?;
    println!("{} states, {} steps", result.states, result.steps);
    let missing: Vec<_> = sometimes.iter().filter(|what| !result.seen.contains(*what)).collect();
    if !missing.is_empty() {
        return Err(format!("it never happened: {missing:?}"));
    }
    if result.states != states {
        return Err(format!("{} states were found, {states} are known", result.states));
    }
    Ok(())
}
