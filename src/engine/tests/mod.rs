//! Tests of the engine that ships, on a simulated server.
//!
//! | file | what it is |
//! |---|---|
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
//! | `expired_keys.rs` | keys whose time to live ends while requests wait |
//! | `moved.rs` | slots that leave, and what came with them |

mod exit;
mod expired_keys;
mod fates;
mod given;
mod grants;
mod moved;
mod notes;
mod orphans;
mod pace;
mod preset;
mod refusals;
mod replies;
mod returned;
mod revoked;
mod roads;
mod shown;
mod stories;
