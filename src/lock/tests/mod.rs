//! Tests of the core as a whole; those of one file stand in it.
//!
//! | file | what it is |
//! |---|---|
//! | `scenario.rs`, `testdata/*.txt` | stories that a reader can check |
//! | `property.rs` | long random lives against the oracle |
//! | `model.rs` | every sequence of inputs in three small worlds; which seeded bugs are caught by what |
//! | `judge.rs` | the guarantees, as a client could hold the server to them |
//! | `oracle.rs` | the rules of locking once more, naively |
//! | `world.rs`, `input.rs` | a primary with its clients: carries out what the core decides |
//! | `server.rs`, `reader.rs` | a keyspace with its clocks; replicas and files, fed by the stream |
//! | `regression.rs` | bugs that the others found |
//! | `random.rs` | random numbers that are the same in every run |

mod input;
mod judge;
mod model;
mod oracle;
mod property;
mod random;
mod reader;
mod regression;
mod scenario;
mod server;
mod world;
