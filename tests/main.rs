//! Tests of the module on a real server, in one binary. `REDISLOCK_SERVER` names the server, `REDISLOCK_MODULE` the
//! module (see `server/binary.rs`); the default is Redis 7.0 and a fresh release build. Tests that need no server are
//! in `rules.rs`.
//!
//! | file | what it is about |
//! |---|---|
//! | `persistence.rs` | RDB files, `DEBUG RELOAD`, locks after a restart |
//! | `aof.rs` | the append-only file, with and without RDB preamble, rewritten or not |
//! | `token_clock.rs` | events that must never lower the tokens |
//! | `wall_clock.rs` | steps of the wall clock |
//! | `replication.rs` | every event of a lock, on a primary, its replica and the replica of that |
//! | `resync.rs` | full and partial resynchronization, under load |
//! | `stream.rs` | the exact records and their order |
//! | `promotion.rs` | changes of role |
//! | `pauses.rs` | times at which the server must not write |
//! | `cluster.rs` | slots |
//! | `redlock.rs` | `examples/redlock.rs`, a lock over several servers |
//! | `kill.rs` | `kill -9` under load |
//! | `hostile.rs` | tampered payloads and files |
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
