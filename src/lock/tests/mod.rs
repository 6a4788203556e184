//! Tests of the core as a whole; those of one file are in it.
//!
//! | file | what it is |
//! |---|---|
//! | `tuning.rs` | bounds that a test lowers, so that small worlds get to them |
//! | `legacy.rs` | locks of old clients, rule by rule |
//! | `minted.rs` | tokens that were minted and are nobody's |
//! | `unconfirmed.rs` | holds that replicas have not confirmed |
//! | `random.rs` | random numbers that are the same in every run |
//! | `visits.rs` | counts what a step looks at |
//!
//! What needs an engine and a server is in `src/sim`.

pub(crate) mod legacy;
mod minted;
pub(crate) mod random;
pub(crate) mod tuning;
mod unconfirmed;
pub(crate) mod visits;
