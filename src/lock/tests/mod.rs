//! Tests of the core as a whole; those of one file are in it.
//!
//! | file | what it is |
//! |---|---|
//! | `scenario.rs`, `wording.rs`, `testdata/*.txt` | stories that a reader can check |
//! | `property.rs` | long random lives against the oracle |
//! | `model.rs`, `models.rs` | every sequence of inputs in small worlds; which seeded bugs are caught by what |
//! | `judge.rs`, `verdicts.rs`, `begun.rs` | the guarantees, as a client could hold the server to them |
//! | `oracle.rs`, `rules.rs`, `pumped.rs` | the rules of locking once more, naively |
//! | `book.rs` | what a hold is worth, and whether a wait can end, for both |
//! | `bounds.rs` | how far a search for deadlocks goes |
//! | `holder_lists.rs` | locks with dozens of holders |
//! | `lowered.rs`, `limits.rs` | bounds that a test lowers, so that small worlds get to them; what the oracle makes of it |
//! | `legacy.rs` | locks of old clients, rule by rule |
//! | `minted.rs` | tokens that were minted and are nobody's |
//! | `deadlocks.rs` | a small world full of deadlocks, against a search by brute force |
//! | `arrived.rs` | locks that come other than by a grant, for judge and oracle |
//! | `world.rs`, `asks.rs`, `input.rs` | a primary with its clients, run by the engine that ships |
//! | `server.rs`, `reader.rs` | a simulated server of `src/engine/tests`; replicas and files, fed by the stream |
//! | `facts.rs` | what a reader makes of what it is told |
//! | `regression.rs` | bugs that the others found |
//! | `fuzz.rs` | random lives whose choices are bytes: a target of `scripts/fuzz` |
//! | `views.rs` | what the server asks the table |
//! | `random.rs` | random numbers that are the same in every run |

mod arrived;
mod asks;
mod begun;
mod book;
mod bounds;
mod deadlocks;
mod facts;
pub(crate) mod fuzz;
mod holder_lists;
pub(crate) mod input;
mod judge;
pub(super) mod legacy;
mod limits;
pub(crate) mod lowered;
mod minted;
mod model;
mod models;
mod oracle;
mod property;
mod pumped;
pub(crate) mod random;
mod reader;
mod regression;
mod rules;
mod scenario;
pub(crate) mod server;
mod unconfirmed;
mod verdicts;
mod views;
pub(crate) mod visits;
mod wording;
mod world;
