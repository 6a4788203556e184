//! Tests of the engine that ships, on a simulated server.
//!
//! | file | what it is |
//! |---|---|
//! | `sim.rs`, `inside.rs` | the simulated server: it answers what the engine asks; what it has |
//! | `world.rs` | what happens to it: commands, turns of its event loop, keys that go, clients that leave |
//! | `disk.rs` | what it saves and loads |
//! | `look.rs` | what can be seen of it, and what must be so at rest |
//! | `life.rs` | long random lives of a primary and its replica; bugs that are put back are found |
//! | `stories.rs` | what each promise is, in a few steps |
//! | `simulation/` | groups of servers, and everything between them that goes wrong |

mod disk;
mod inside;
mod life;
mod look;
mod sim;
mod simulation;
mod stories;
mod world;
