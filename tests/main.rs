//! The module, tried on a real server. One binary: the server is named by `REDISLOCK_SERVER`, the module by
//! `REDISLOCK_MODULE` (see `server/binary.rs`); without them it is Redis 7.0 and a fresh release build. Tests that
//! need no server are in `rules.rs`.
//!
//! | file | what it is about |
//! |---|---|
//! | `persistence.rs` | RDB files, `DEBUG RELOAD`, what comes back after a restart |
//! | `aof.rs` | the append-only file, with and without RDB preamble, rewritten or not |
//! | `token_clock.rs` | what must never lower the tokens |
//! | `wall_clock.rs` | steps of the wall clock |
//! | `replication.rs` | every event of a lock, on a primary, its replica and that one's replica |
//! | `resync.rs` | full and partial resynchronisation, under load |
//! | `stream.rs` | what exactly is replicated, and in what order |
//! | `promotion.rs` | changes of role |
//! | `pauses.rs` | times at which the server must not write |
//! | `cluster.rs` | slots |
//! | `redlock.rs` | `examples/redlock.rs`, a lock over several servers |
//! | `kill.rs` | `kill -9` under load |
//! | `hostile.rs` | payloads and files that somebody tampered with |
//! | `workload.rs` | a random load for the others |
//! | `server/` | the harness |
//!
//! A comment such as `// G4` names the guarantee of `docs/reference/guarantees.md` that a test defends.

mod aof;
mod cluster;
mod hostile;
mod kill;
mod pauses;
mod persistence;
mod promotion;
mod redlock;
mod replication;
mod resync;
mod server;
mod stream;
mod token_clock;
mod wall_clock;
mod workload;
