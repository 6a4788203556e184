//! A simulated server.
//!
//! | file | what it is |
//! |---|---|
//! | `asked.rs` | its answers when the engine asks |
//! | `inside.rs` | what it has |
//! | `sim.rs` | the server, and what happens to it: commands, turns, keys that go, clients that leave |
//! | `keys.rs` | what the server's own commands do to keys |
//! | `bundles.rs` | transactions, scripts and WATCH |
//! | `disk.rs` | what it saves and loads |
//! | `look.rs` | what can be seen of it, and what must be so at rest |

mod asked;
pub(crate) mod bundles;
pub(crate) mod disk;
pub(crate) mod inside;
pub(crate) mod keys;
pub(crate) mod look;
pub(crate) mod sim;
