//! The simulation: the engine that ships, run by tests on servers that do not exist.
//!
//! | folder or file | what it is |
//! |---|---|
//! | `server/` | a simulated server: what it answers the engine, its commands, its files, what can be seen of it |
//! | `single/` | a primary with its clients and the readers of its stream, driven step by step |
//! | `group/` | groups of servers, and everything between them that goes wrong |
//! | `life.rs` | long random lives of a primary and its replica; bugs that are put back are found |
//! | `oracle.rs`, `oracle/` | the rules of locking once more, naively |
//! | `checkers/` | the guarantees, as a client could hold the server to them |
//! | `model.rs`, `model/` | every sequence of inputs in small worlds; which seeded bugs are caught by what |
//! | `generators/` | long random lives against oracle and checkers; a fuzzing target of the same |
//! | `stories/` | stories that a reader can check, and tests in small worlds |
//! | `play/` | plays a script that real servers play, too |
//!
//! The core's own tests (`src/lock/tests`) and those of the engine (`src/engine/tests`) need none of it but `server/`.

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
