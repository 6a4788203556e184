//! Many lives, on all cores.
//!
//! `scripts/simulate` starts the big run. The environment chooses the seeds: `REDISLOCK_SIM_FIRST`,
//! `REDISLOCK_SIM_SEEDS`, `REDISLOCK_SIM_STEPS` (events for each seed), `REDISLOCK_SIM_TRACE` (prints the events).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Group;
use super::plan::{CONTROLS, Control, Plan};
use super::points::Seen;
use crate::lock::tests::tuning::Lowered;
use crate::sabotage;
#[cfg(feature = "sabotage")]
use crate::sabotage::Rule;

/// The number of runs that reach every case that must be seen at least once.
const SEEDS: u64 = 600;

/// The number of steps in a run.
const STEPS: u64 = 1_000;

/// The number of steps between two full checks.
const STEPS_BETWEEN_CHECKS: u64 = 100;

/// The number of lines of a trace that are shown.
const LINES_MAX: usize = 120;

/// A violation, and the steps that led to it.
struct Fault {
    wrong: String,
    trace: Vec<String>,
}

/// Lives one life.
fn live(seed: u64, plan: Plan, steps: u64, is_traced: bool) -> Result<(Seen, Vec<String>), Fault> {
    let mut group = Group::new(seed, plan, is_traced);
    let without = group.plan.without;
    let lived = sabotage::without(without, || {
        Lowered::of(seed)
            .one_by_one()
            .during(|| catch_unwind(AssertUnwindSafe(|| go_through(&mut group, steps))))
    });
    let trace = group.trace.take().unwrap_or_default();
    match lived.unwrap_or_else(|panic| Err(said_by(panic.as_ref()))) {
        Ok(()) => Ok((group.seen, trace)),
        Err(wrong) => Err(Fault { wrong, trace }),
    }
}

fn go_through(group: &mut Group, steps: u64) -> Result<(), String> {
    for number in 0..steps {
        group.step().map_err(|wrong| format!("step {number}: {wrong}"))?;
        if number % STEPS_BETWEEN_CHECKS == 0 {
            group.check().map_err(|wrong| format!("step {number}: {wrong}"))?;
        }
    }
    group.come_to_rest().map_err(|wrong| format!("at the end: {wrong}"))
}

/// Returns the message of a panic: the simulated server was used wrongly, or an assertion of the engine failed.
fn said_by(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why");
    format!("a panic: {text}")
}

/// Lives the lives of `seeds` seeds on all cores, and stops at the first fault. Returns the lowest seed with a fault.
fn live_all(first: u64, seeds: u64, steps: u64) -> Result<Seen, String> {
    let next = AtomicU64::new(first);
    let is_over = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = || {
        let mut seen = Seen::default();
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                break;
            }
            match live(seed, Plan::of(seed), steps, false) {
                Ok((other, _)) => seen.add(&other),
                Err(_) => {
                    is_over.store(true, Ordering::Relaxed);
                    return Err(seed);
                }
            }
        }
        Ok(seen)
    };
    let mut all = Seen::default();
    let mut faulty = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(Ok(seen)) => all.add(&seen),
                Ok(Err(seed)) => faulty.push(seed),
                Err(_) => faulty.push(u64::MAX),
            }
        }
    });
    match faulty.into_iter().min() {
        None => Ok(all),
        Some(seed) => Err(tell(seed, steps)),
    }
}

/// Lives a life with a fault again, for its trace.
fn tell(seed: u64, steps: u64) -> String {
    let plan = Plan::of(seed);
    let Err(Fault { wrong, trace }) = live(seed, plan.clone(), steps, true) else {
        return format!("seed {seed} had a fault, and has none when it is lived again");
    };
    let skipped = trace.len().saturating_sub(LINES_MAX);
    format!(
        "{plan:#?}\n... {skipped} lines\n{}\n\nseed {seed}, {wrong}\nto see it again: scripts/simulate 1 {seed}",
        trace[skipped..].join("\n")
    )
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// As many lives as every run of the tests has time for; `scripts/simulate` lives more of them.
#[test]
fn a_group_keeps_what_it_promises() {
    let first = from_environment("REDISLOCK_SIM_FIRST", 0);
    let seeds = from_environment("REDISLOCK_SIM_SEEDS", SEEDS);
    let steps = from_environment("REDISLOCK_SIM_STEPS", STEPS);
    if std::env::var_os("REDISLOCK_SIM_TRACE").is_some()
        && let Ok((_, trace)) = live(first, Plan::of(first), steps, true)
    {
        println!("{}", trace.join("\n"));
    }
    let seen = live_all(first, seeds, steps).unwrap_or_else(|fault| panic!("{fault}"));
    println!("{}{seeds} seeds from {first}, {steps} events each: nothing is wrong", seen.table());
    let is_enough = seeds < SEEDS || seen.missing().is_empty();
    assert!(is_enough, "it never happened: {:?}", seen.missing());
}

/// Thousands of other lives did not meet these faults. In the first, a lock with several holders moves with its slot
/// and comes back. One of its holds must be revoked, and the old holds are not freed yet. In the second, a primary is
/// demoted and promoted between the deletion of a lock and the notice of it. In the third, a slot is back before the
/// server that had a reservation there has had a turn.
#[test]
fn lives_that_showed_rare_faults_are_lived_again() {
    for seed in [11_347, 20_317_152, 52_015_173] {
        live_all(seed, 1, STEPS).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

/// Returns the first life that breaks a promise under this control.
fn first_broken(control: Control) -> Option<u64> {
    (0..2_000).find(|&seed| {
        let lived = live(seed, Plan::of_control(control, seed), STEPS, false);
        lived.is_err_and(|fault| fault.wrong.contains(control.breaks()))
    })
}

/// Breaks each row of docs/reference/failover-guarantees.md that says yes, two owners can both receive one lock, and
/// each assumption about moving slots. A simulation that could not see that would prove nothing.
#[test]
fn what_cannot_be_promised_is_seen_to_break() {
    assert_all_break(&CONTROLS);
}

#[cfg(feature = "sabotage")]
#[test]
fn what_rests_on_a_rule_that_is_left_out_is_seen_to_break() {
    assert_all_break(&super::plan::CONTROLS_LEFT_OUT);
}

fn assert_all_break(controls: &[Control]) {
    let unseen: Vec<&Control> = controls.iter().filter(|&&control| first_broken(control).is_none()).collect();
    assert!(unseen.is_empty(), "no life shows what {unseen:?} must show");
}

/// The most runs until a bug that was put back is found.
#[cfg(feature = "sabotage")]
const LIVES_UNTIL_SEEN: u64 = 2_000;

/// Returns the first run that finds that this rule is left out, and its message.
#[cfg(feature = "sabotage")]
fn first_without(rule: Rule) -> Option<(u64, String)> {
    (0..LIVES_UNTIL_SEEN).find_map(|seed| {
        let plan = Plan { without: Some(rule), ..Plan::of(seed) };
        live(seed, plan, STEPS, false).err().map(|fault| (seed, fault.wrong))
    })
}

/// Bugs that the engine or the core had, or could have. Others are controls, which need lives of their own.
#[cfg(feature = "sabotage")]
#[test]
fn bugs_that_are_put_back_are_seen() {
    let rules = [
        Rule::PumpAsked,
        Rule::LeaverWakes,
        Rule::AnsweredOnce,
        Rule::Forgotten,
        Rule::Revoke,
        Rule::AskedOutside,
        Rule::SentAwayLater,
        Rule::BesideReservations,
        Rule::TimeToLive,
        Rule::WakeUp,
        Rule::Disconnect,
        Rule::Replicas,
        Rule::ExpiryLate,
        Rule::EventOrder,
    ];
    for rule in rules {
        let seen = first_without(rule);
        let (seed, wrong) = seen.unwrap_or_else(|| panic!("{rule:?} can be left out, and no life notices"));
        println!("{rule:?}: life {seed}: {}", wrong.lines().next().unwrap_or(""));
    }
}
