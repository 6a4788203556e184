//! The sources of the core, the commands and the engine, and their tests (`build.rs`), with what fuzzing lets bytes do with them: see `targets/mod.rs`.

#[path = "../../../src/command/mod.rs"]
#[forbid(unsafe_code)]
#[allow(dead_code, unused_imports)]
pub mod command;
#[path = "../../../src/engine/mod.rs"]
#[forbid(unsafe_code)]
#[allow(dead_code, unused_imports)]
pub mod engine;
#[path = "../targets/mod.rs"]
#[allow(dead_code, unused_imports)]
mod fuzz;
#[path = "../../../src/lock/mod.rs"]
#[forbid(unsafe_code)]
#[allow(dead_code, unused_imports)]
pub mod lock;
#[path = "../../../src/sabotage.rs"]
#[allow(dead_code, unused_imports)]
mod sabotage;
#[path = "../../../src/sim/mod.rs"]
#[forbid(unsafe_code)]
#[allow(dead_code, unused_imports)]
mod sim;

/// 32 megabytes: whatever takes more has believed a length that it read.
const MEMORY_BYTES_MAX: usize = 32 << 20;

#[global_allocator]
static ALLOCATOR: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, MEMORY_BYTES_MAX);

unsafe extern "C" {
    /// In `compares.c`: comparisons are reported to the fuzzer while the flag is up.
    fn compares_follow(flag: *const bool);
}

/// Runs an input, and shows the fuzzer the comparisons of its bytes.
fn live(data: &[u8], run: fn(&[u8])) {
    // SAFETY: 1. The flag is a static: pointers to it stay valid. 2. There is one thread.
    unsafe { compares_follow(fuzz::IS_READING.as_ptr()) };
    run(data);
}

/// The words of a command.
pub fn arguments(data: &[u8]) {
    live(data, fuzz::arguments::run);
}

/// A payload, and the fate of its lock.
pub fn decoder(data: &[u8]) {
    live(data, fuzz::decoder::run);
}

/// The records that a replica receives.
pub fn records(data: &[u8]) {
    live(data, fuzz::records::run);
}

/// The choices of a random life.
pub fn step(data: &[u8]) {
    live(data, sim::generators::fuzz::run);
}
