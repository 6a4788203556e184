//! A simulated server.
//!
//! | file | what it is |
//! |---|---|
//! | `asked.rs` | its answers to the engine |
//! | `inside.rs` | its state |
//! | `sim.rs` | the server and its events: commands, turns, removed keys, closed connections |
//! | `keys.rs` | the server's own commands on keys |
//! | `bundles.rs` | transactions, scripts and WATCH |
//! | `disk.rs` | its snapshots and files |
//! | `look.rs` | its visible state, and its invariants at rest |

mod asked;
pub(crate) mod bundles;
pub(crate) mod disk;
pub(crate) mod inside;
pub(crate) mod keys;
pub(crate) mod look;
pub(crate) mod sim;
