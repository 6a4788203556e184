//! Random lives.
//!
//! | file | what it is |
//! |---|---|
//! | `property.rs` | long random lives against the oracle and the checkers |
//! | `fuzz.rs` | random lives whose choices are bytes: a target of `scripts/fuzz` |

pub(crate) mod fuzz;
mod property;
