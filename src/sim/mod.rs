//! The simulation: the engine that ships, run by tests on simulated servers.
//!
//! | folder or file | what it is |
//! |---|---|
//! | `server/` | a simulated server: its answers to the engine, its commands, its files, its visible state |
//! | `single/` | a primary with its clients and the readers of its stream, driven step by step |
//! | `group/` | groups of servers, and the faults between them |
//! | `life.rs` | long random lives of a primary and its replica; bugs that are put back are found |
//! | `oracle.rs`, `oracle/` | the rules of locking once more, naively |
//! | `checkers/` | the guarantees, as a client could hold the server to them |
//! | `model.rs`, `model/` | every sequence of inputs in small worlds; which tests catch which seeded bugs |
//! | `generators/` | long random lives against oracle and checkers; a fuzzing target of the same |
//! | `stories/` | stories that a reader can check, and tests in small worlds |
//! | `play/` | plays a script that real servers play, too |
//!
//! The core's own tests (`src/lock/tests`) and those of the engine (`src/engine/tests`) need only `server/` of it.

mod checkers;
pub(crate) mod generators;
mod group;
mod life;
mod model;
mod oracle;
mod play;
pub(crate) mod server;
pub(crate) mod single;
mod stories;
