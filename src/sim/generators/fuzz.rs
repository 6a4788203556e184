//! Random lives whose choices are bytes: the fuzzing of the core's steps.
//!
//! The [life](crate::sim::generators::property) is the same; an input replaces the numbers of its [`Random`]. So each
//! input is judged and compared with the oracle after every step, and a fuzzer that searches for new paths steers by
//! the choices.

use crate::lock::tests::random::Random;
use crate::sim::generators::property::{Kinds, Life};

/// Longer lives find little more, and cost as much as many short ones.
const STEPS_MAX: usize = 60;

/// Lives the life that these bytes choose. The first byte is its seed, which decides how the world begins.
pub(crate) fn run(data: &[u8]) {
    let Some((&seed, choices)) = data.split_first() else { return };
    if let Err(wrong) = live(u64::from(seed), choices) {
        panic!("{wrong}");
    }
}

fn live(seed: u64, choices: &[u8]) -> Result<(), String> {
    let mut life = Life::new(seed, Kinds::All)?;
    life.random = Random::given(choices);
    for number in 0..STEPS_MAX {
        if life.random.is_used_up() {
            break;
        }
        life.step().map_err(|wrong| format!("step {number}: {wrong}"))?;
    }
    Ok(())
}
