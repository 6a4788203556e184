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

/// 64 megabytes, some of which the report of a fault takes: whatever takes more has believed a length that it read.
const MEMORY_BYTES_MAX: usize = 64 << 20;

#[global_allocator]
static ALLOCATOR: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, MEMORY_BYTES_MAX);

pub use fuzz::arguments::run as arguments;
pub use fuzz::decoder::run as decoder;
pub use fuzz::records::run as records;
pub use tests::fuzz::run as step;
