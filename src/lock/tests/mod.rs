//! Tests of the core as a whole; those of a single file are in that file.
//!
//! | file | what it is |
//! |---|---|
//! | `tuning.rs` | bounds that a test lowers, so that small worlds reach them |
//! | `legacy.rs` | locks of old clients, rule by rule |
//! | `minted.rs` | tokens that were minted and have no hold |
//! | `unconfirmed.rs` | holds that replicas have not confirmed |
//! | `random.rs` | random numbers that are the same in every run |
//! | `visits.rs` | counts the visits of a step |
//!
//! Tests that need an engine and a server are in `src/sim`.

pub(crate) mod legacy;
mod minted;
pub(crate) mod random;
pub(crate) mod tuning;
mod unconfirmed;
pub(crate) mod visits;
