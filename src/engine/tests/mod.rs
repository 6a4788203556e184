//! Tests of the engine that ships, on a simulated server.
//!
//! | file | what it is |
//! |---|---|
//! | `sim.rs`, `inside.rs` | the simulated server: it answers what the engine asks; what it has |
//! | `world.rs` | what happens to it: commands, turns of its event loop, keys that go, clients that leave |
//! | `keys.rs` | what the server's own commands do to keys |
//! | `bundles.rs` | transactions, scripts and WATCH |
//! | `disk.rs` | what it saves and loads |
//! | `look.rs` | what can be seen of it, and what must be so at rest |
//! | `life.rs` | long random lives of a primary and its replica; bugs that are put back are found |
//! | `single.rs` | one server, as the tests of the core drive it |
//! | `stories.rs` | what each promise is, in a few steps |
//! | `play/` | plays a script that real servers play, too |
//! | `simulation/` | groups of servers, and everything between them that goes wrong |

mod bundles;
mod disk;
mod inside;
mod keys;
mod life;
mod look;
mod play;
mod sim;
mod simulation;
pub(crate) mod single;
mod stories;
mod world;
