//! Every sequence of inputs up to a bound, in three small worlds.
//!
//! A state is what clients, the keyspace and the pump could tell apart; owners that could change places
//! are the same. Every state is judged, and every reader compared, on every way into it; then the pump
//! is run, so that a lost wake-up shows wherever it was lost. The number of states is pinned:
//! a model that silently shrinks fails.
//!
//! # Which seeded bugs are caught by what
//!
//! Each was put into a copy of the core by hand, once, and the tests were run: F a test of single facts
//! (`reader.rs`), S the stories, P the random lives, 1 to 3 the models below. Where two are in one row,
//! what caught both. Nothing survived but one: a reader that shortens a lease at a retry. It cannot
//! matter, because a retry is told only if it makes the lease longer on the primary, and it arrives later.
//!
//! | broken | how | caught by |
//! |---|---|---|
//! | G1 | the pump grants what is held | S P 1 2 3 |
//! | G1 | an acquire takes what another holds | S P 1 2 3 |
//! | G1 | a payload restored under another name keeps its hold | S P |
//! | G2 | a lease ends 1 ms early | S P 1 |
//! | G2 | a retry shortens the lease | S P 1 |
//! | G2 | what is left is rounded down in a dump | P |
//! | G3 | a renewal, or a retry, leaves the old deadline | P 1 |
//! | G3 | the pump looks at leases only if nobody waits with a timeout | S P 1 |
//! | G4 | tokens follow the wall clock back | S P |
//! | G4 | a restored token does not raise the clock | S P 3 |
//! | G4 | a snapshot does not raise the clock, or lowers it | S P 3 |
//! | G4 | a reader does not keep the token that it hears | S P 1 2 3 |
//! | G5 | a newcomer takes a free lock past the line | S P 1 2 |
//! | G5 | the last in line is granted first | S P 1 |
//! | G5 | a retry goes to the end of the line | S P 1 |
//! | G6 | a broken hold is not noted for the pump | S P 1 2 3 |
//! | G6 | SWAPDB, or a lazy FLUSHALL, is not noted | S P 2 |
//! | G6 | a line is not looked at again after refused writes | S P |
//! | G6 | a note is never taken off its line | S P |
//! | G6 | the line stops at who may not have the lock | S P |
//! | G6 | a release lets the key go, and the line with it | S P 1 2 3 |
//! | G7 | a timeout, or a withdrawal, is not answered | S P 1 |
//! | G7 | who was replaced is not told | S P 1 2 3 |
//! | G7 | a timeout is answered twice | S P 1 |
//! | G7 | who waited too long is granted | S P 1 |
//! | G7 | a request that took over a place has no timeout | P 1 |
//! | G7 | demotion forgets the lines | S P 3 |
//! | G8 | a closed connection stays in line | S P 1 |
//! | G8 | an undelivered grant is kept | S P 1 |
//! | G9 | a retry gets a new token | S P 1 2 3 |
//! | G9 | a repeated request stands in line twice | S P 1 2 3 |
//! | G9 | a holder that asks again waits for itself | S P 1 2 3 |
//! | G9 | whom a RESTORE made hold what it waits for goes on waiting | P 3 |
//! | G9 | a request that took over a place keeps the old lease | S P |
//! | G10 | anybody releases | F S P 1 2 3 |
//! | G10 | the token that a release names is not looked at | F S P 1 |
//! | G10 | a token that is not the hold's takes it back | P 1 |
//! | G10 | a grant that its owner knows of by now is taken back | P 1 |
//! | G10 | SWAPDB breaks the locks of every database | S P |
//! | G10 | a closed connection ends a hold | P |
//! | G10 | a renamed lock keeps its hold | S P 2 3 |
//! | G13 | a jump of the clock travels as it was asked | S P 3 |
//! | G13 | the same owner's grant after its lease travels as it was asked | P 1 2 |
//! | G13 | an expiry, or a grant that was taken back, is not told | S P 1 |
//! | G13 | a renewal, or a longer retry, is not told | S P 1 |
//! | G13 | nothing is named in a new file, or in a replica's | S P 3 |
//! | G13 | a restored token counts as told | S P 3 |
//! | G13 | a reader counts from its newest token, or from an older life's | P 3 |
//! | G13 | an empty lock keeps its old place | S P 2 |
//! | G13 | the end of a hold ends whatever stands there | F |

use std::collections::{BTreeSet, HashSet};

use super::input::{Input, Outcome};
use super::judge::Judge;
use super::server::{At, Key, Lazy, Name};
use super::world::World;
use crate::lock::token::JUMP_US;
use crate::lock::types::Token;

const K: At = At::new(0, "k");
const M: At = At::new(0, "m");
const K1: At = At::new(1, "k");
const PLACES: [At; 4] = [K, M, K1, At::new(1, "m")];
const OWNERS: [Name; 3] = ["a", "b", "c"];

/// What may be done next.
#[derive(Clone, Copy)]
enum Move {
    /// By this one of the owners, on its first connection or another one.
    Acquire {
        who: usize,
        at: At,
        wait: Option<u64>,
        connection: u64,
    },
    Release {
        who: usize,
        at: At,
    },
    /// A release that names the token before the one that holds.
    ReleaseStale {
        who: usize,
        at: At,
    },
    Renew {
        who: usize,
        at: At,
        lease_ms: u64,
    },
    Close {
        who: usize,
        connection: u64,
    },
    /// A payload of another server whose token is this far ahead.
    PayloadAhead(u64),
    /// The wall clock is set this far ahead of the newest token.
    WallAhead(u64),
    Plain(Input),
}

impl Move {
    const fn who(self) -> Option<usize> {
        match self {
            Self::Acquire { who, .. } | Self::Release { who, .. } | Self::ReleaseStale { who, .. } => {
                Some(who)
            }
            Self::Renew { who, .. } | Self::Close { who, .. } => Some(who),
            Self::PayloadAhead(_) | Self::WallAhead(_) | Self::Plain(_) => None,
        }
    }

    fn input(self, world: &World) -> Input {
        match self {
            Self::Acquire { who, at, wait, connection } => {
                let client = client(who, connection);
                Input::Acquire { at, owner: OWNERS[who], lease_ms: LEASE_MS, wait, client, minted: false }
            }
            Self::Release { who, at } => Input::Release { at, owner: OWNERS[who], token: None },
            Self::ReleaseStale { who, at } => {
                let live = world.server.live_token(at);
                let token = live.and_then(|token| Token::new(token.get() - 1)).or(Token::new(1));
                Input::Release { at, owner: OWNERS[who], token }
            }
            Self::Renew { who, at, lease_ms } => {
                Input::Renew { at, owner: OWNERS[who], token: None, lease_ms, client: client(who, 0) }
            }
            Self::Close { who, connection } => Input::Close(client(who, connection)),
            Self::PayloadAhead(ahead) => {
                let token = Token::new(world.server.table.last_token() + ahead);
                token.map_or(Input::Pump, |token| Input::Payload {
                    name: K.name,
                    owner: OWNERS[0],
                    token,
                    left_ms: LEASE_MS,
                })
            }
            Self::WallAhead(us) => Input::Wall(world.server.table.last_token() + us),
            Self::Plain(input) => input,
        }
    }
}

const LEASE_MS: u64 = 2;
const TASKS_MAX: usize = 2;
const READERS_MAX: usize = 2;
/// The search ends when there is no new state: then it has seen every sequence of any length.
const ANY_DEPTH: usize = usize::MAX;

const fn client(who: usize, connection: u64) -> u64 {
    10 * (who as u64 + 1) + connection
}

/// A world and what may happen in it.
struct Model {
    begin: Vec<Input>,
    moves: Vec<Move>,
    depth: usize,
}

/// A state, by a way that leads to it.
#[derive(Clone)]
struct State {
    way: Vec<Input>,
    judge: Judge,
    /// Who has a part in it.
    owners: Vec<Name>,
}

/// What a search found.
struct Found {
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

    /// Breadth first, so that the first way to a broken guarantee is a shortest one.
    fn search(&self) -> Result<Found, String> {
        let mut found = Found { states: 1, steps: 0, seen: BTreeSet::new() };
        let mut known = HashSet::new();
        let mut edge = vec![State { way: Vec::new(), judge: Judge::default(), owners: Vec::new() }];
        known.insert(fingerprint(&mut self.world(&[])?, &edge[0].judge).0);
        for _ in 0..self.depth {
            if edge.is_empty() {
                break;
            }
            let mut next = Vec::new();
            for (print, state) in self.grow(&edge)? {
                found.steps += 1;
                found.seen.extend(&state.judge.seen);
                if known.insert(print) {
                    next.push(state);
                }
            }
            edge = next;
        }
        found.states = known.len();
        Ok(found)
    }

    /// All states one move further, on all processors.
    fn grow(&self, edge: &[State]) -> Result<Vec<(Vec<u8>, State)>, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = edge.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let workers: Vec<_> = edge
                .chunks(share)
                .map(|states| {
                    scope.spawn(|| states.iter().try_fold(Vec::new(), |all, state| self.follow(state, all)))
                })
                .collect();
            let mut all = Vec::new();
            for worker in workers {
                all.append(&mut worker.join().map_err(|_| "a worker panicked")??);
            }
            Ok(all)
        })
    }

    /// All moves from one state.
    fn follow(&self, state: &State, mut all: Vec<(Vec<u8>, State)>) -> Result<Vec<(Vec<u8>, State)>, String> {
        let mut world = self.world(&state.way)?;
        let before = fingerprint(&mut world, &state.judge).0;
        let outer = |world: &World| (world.time, world.server.now, world.dump.clone());
        let outer_before = outer(&world);
        let has_part = |who: usize| state.owners.contains(&OWNERS[who]);
        // Those without a part are all the same: the first of them moves for all.
        let stranger = (0..OWNERS.len()).find(|&who| !has_part(who));
        for &next in &self.moves {
            if next.who().is_some_and(|who| !has_part(who) && Some(who) != stranger) {
                continue;
            }
            let input = next.input(&world);
            // A pump that is never run may have any number of tasks.
            if world.server.table.tasks() > TASKS_MAX && input != Input::Pump {
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
                // Where nothing at all happened, the world can be used again.
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

/// One step with everything checked, and where it led.
fn take(world: &mut World, judge: &mut Judge, input: &Input) -> Result<(Vec<u8>, Vec<Name>), String> {
    let out = step(world, input)?;
    judge.judge(input, &out, world)?;
    world.check()?;
    Ok(fingerprint(world, judge))
}

/// What could be told apart, and who has a part in it.
fn fingerprint(world: &mut World, judge: &Judge) -> (Vec<u8>, Vec<Name>) {
    let mut print = Vec::with_capacity(64);
    // Owners in the order in which they appear: which is which is nobody's business.
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
        if let Some(promise) = judge.promises.get(&at).filter(|promise| world.time < promise.until) {
            let in_flight = world.in_flight.iter().find(|grant| grant.token == promise.token);
            let in_flight = in_flight.map_or(9, |grant| grant.client % 10) as u8;
            print.extend([
                10 + u8::from(promise.is_ownerless) + 2 * u8::from(promise.is_known),
                number_of(promise.owner),
                left(promise.until),
                in_flight,
            ]);
        }
        for pending in judge.lines.get(&at).into_iter().flatten() {
            let until = pending.until.map_or(255, left);
            print.extend([6, number_of(pending.owner), (pending.client % 10) as u8, until]);
        }
        print.push(7);
    }
    if let Some((name, Some(saved))) = &world.dump {
        let held = PLACES.iter().any(|&at| world.server.live_token(at) == Some(saved.token));
        let owner = world.owner(&saved.owner).map(&mut number_of);
        let ahead = saved.token.get() > world.server.table.last_token();
        print.extend([
            8,
            name.as_bytes()[0],
            owner.unwrap_or(9),
            saved.left_ms as u8,
            u8::from(held),
            u8::from(ahead),
        ]);
    }
    let table = &mut world.server.table;
    let lead = world.server.now.wall_us.saturating_sub(table.last_token());
    let is_told = table.clock().told() == table.last_token();
    print.extend([table.tasks() as u8, world.server.unfreed.len() as u8]);
    print.extend([u8::from(lead >= JUMP_US), u8::from(is_told)]);
    print.extend(world.readers.iter().flat_map(|reader| reader.fingerprint(&world.server)));
    (print, owners)
}

fn moves_of(who: impl IntoIterator<Item = usize>, moves: impl Fn(usize) -> Vec<Move>) -> Vec<Move> {
    who.into_iter().flat_map(moves).collect()
}

fn plain(inputs: &[Input]) -> impl Iterator<Item = Move> {
    inputs.iter().copied().map(Move::Plain)
}

fn check(model: &Model, states: usize, sometimes: &[&str]) -> Result<(), String> {
    let found = model.search()?;
    println!("{} states, {} steps", found.states, found.steps);
    let missing: Vec<_> = sometimes.iter().filter(|what| !found.seen.contains(*what)).collect();
    if !missing.is_empty() {
        return Err(format!("it never happened: {missing:?}"));
    }
    if found.states != states {
        return Err(format!("{} states were found, {states} are known", found.states));
    }
    Ok(())
}

/// Three owners, two connections each, one lock: everything that a client can do.
#[test]
fn one_lock() -> Result<(), String> {
    let mut moves = moves_of(0..3, |who| {
        vec![
            Move::Acquire { who, at: K, wait: Some(0), connection: 0 },
            Move::Acquire { who, at: K, wait: Some(0), connection: 1 },
            Move::Acquire { who, at: K, wait: Some(1), connection: 0 },
            Move::Acquire { who, at: K, wait: Some(3), connection: 0 },
            Move::Acquire { who, at: K, wait: None, connection: 0 },
            Move::Release { who, at: K },
            Move::ReleaseStale { who, at: K },
            Move::Renew { who, at: K, lease_ms: 1 },
            Move::Renew { who, at: K, lease_ms: 4 },
            Move::Close { who, connection: 0 },
            Move::Close { who, connection: 1 },
        ]
    });
    moves.extend(plain(&[Input::Pass(1000), Input::Pump, Input::Del(K), Input::Set(K)]));
    let model = Model { begin: vec![Input::NewReplica(0)], moves, depth: ANY_DEPTH };
    let sometimes = [
        "broken",
        "expired and passed on",
        "granted out of the line",
        "left the line",
        "release refused",
        "renewed",
        "renewed, shorter",
        "replaced",
        "retried",
        "retried, lease kept",
        "taken back",
        "taken back and passed on",
        "timed out",
        "withdrawn",
        "wrong type",
    ];
    check(&model, 1391, &sometimes)
}

/// Two owners, two names, two databases: everything that others can do to keys.
#[test]
fn keys_that_go_and_come() -> Result<(), String> {
    let mut moves = moves_of(0..2, |who| {
        let on = |at| Move::Acquire { who, at, wait: Some(0), connection: 0 };
        vec![on(K), on(M), on(K1), Move::Release { who, at: K }]
    });
    moves.extend(plain(&[
        Input::Del(K),
        Input::Set(K),
        Input::Rename(K, M),
        Input::Rename(M, K),
        Input::Move(K, 1),
        Input::Swap(0, 1),
        Input::Flush(None, Lazy::No),
        Input::Flush(Some(0), Lazy::Yes),
        Input::Free,
        Input::Pass(LEASE_MS * 1000),
        Input::Pump,
    ]));
    let model = Model { begin: vec![Input::NewReplica(0)], moves, depth: 7 };
    let sometimes = ["broken", "expired and passed on", "granted out of the line", "waited", "withdrawn"];
    check(&model, 9948, &sometimes)
}

/// Two owners, one lock, and every reader of its stream: replicas, files, files of replicas.
#[test]
fn readers_and_clocks() -> Result<(), String> {
    let mut moves = moves_of(0..2, |who| {
        vec![Move::Acquire { who, at: K, wait: Some(0), connection: 0 }, Move::Release { who, at: K }]
    });
    moves.extend([Move::WallAhead(JUMP_US), Move::WallAhead(JUMP_US - 1), Move::PayloadAhead(5)]);
    moves.extend(plain(&[
        Input::Wall(0),
        Input::Restore(K),
        Input::NewReplica(100),
        Input::NewFile,
        Input::NewFileOfReplica,
        Input::Promote(0),
        Input::Pump,
    ]));
    let model = Model { begin: vec![], moves, depth: ANY_DEPTH };
    let sometimes = ["demoted", "granted out of the line", "promoted", "restored"];
    check(&model, 8814, &sometimes)
}
