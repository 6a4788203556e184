//! The sources of the core and the commands, with what fuzzing lets bytes do with them: see `targets/mod.rs`.

#[path = "../../../src/command/mod.rs"]
#[forbid(unsafe_code)]
pub mod command;
#[path = "../targets/mod.rs"]
mod fuzz;
#[path = "../../../src/lock/mod.rs"]
#[forbid(unsafe_code)]
pub mod lock;
#[path = "../../../src/sabotage.rs"]
#[allow(dead_code)]
mod sabotage;
#[path = "../../../src/lock/tests/mod.rs"]
#[allow(dead_code, unused_imports)]
mod tests;

/// 32 megabytes: whatever takes more has believed a length that it read.
const MEMORY_BYTES_MAX: usize = 32 << 20;

#[global_allocator]
static ALLOCATOR: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, MEMORY_BYTES_MAX);

/// The words of a command.
pub fn arguments(data: &[u8]) {
    fuzz::arguments::run(data);
}

/// A payload, and what becomes of its lock.
pub fn decoder(data: &[u8]) {
    fuzz::decoder::run(data);
}

/// What a replica is told.
pub fn records(data: &[u8]) {
    fuzz::records::run(data);
}

/// The choices of a random life.
pub fn step(data: &[u8]) {
    tests::fuzz::run(data);
}
