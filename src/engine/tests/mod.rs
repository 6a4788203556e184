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
//! | `given.rs` | what the stories below have in common |
//! | `replies.rs`, `shown.rs` | what commands that take no lock reply; what INFO tells |
//! | `refusals.rs`, `roads.rs` | what is refused, and to whom; how a command comes |
//! | `notes.rs` | what the server's log is told |
//! | `exit.rs` | the way out: `redislock.leaving` |
//! | `preset.rs` | settings, and what `loadmodule` takes |
//! | `grants.rs` | what readers are told of a grant, and who is blocked; locks of old clients |
//! | `pace.rs` | how much is done in one turn of the event loop, and that the rest is not forgotten |
//! | `fates.rs` | each sequence by which a hold is delivered or revoked |
//! | `revoked.rs` | what becomes of a hold of which its owner is not told |
//! | `moved.rs` | slots that leave, and what came with them |
//! | `play/` | plays a script that real servers play, too |
//! | `simulation/` | groups of servers, and everything between them that goes wrong |

mod bundles;
mod disk;
mod exit;
mod fates;
mod given;
mod grants;
mod inside;
mod keys;
mod life;
mod look;
mod moved;
mod notes;
mod orphans;
mod pace;
mod play;
mod preset;
mod refusals;
mod replies;
mod returned;
mod revoked;
mod roads;
mod shown;
mod sim;
mod simulation;
pub(crate) mod single;
mod stories;
mod world;
