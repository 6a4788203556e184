//! The guarantees, as a client could hold the server to them.
//!
//! | file | what it is |
//! |---|---|
//! | `judge.rs` | checks every grant, end and answer against the guarantees |
//! | `verdicts.rs` | the outcomes that a request may have |
//! | `begun.rs` | the rules for new holds |
//! | `arrived.rs` | locks that arrive other than by a grant |
//! | `book.rs` | the state of a hold, and whether a wait can end |

pub(crate) mod arrived;
pub(crate) mod begun;
pub(crate) mod book;
pub(crate) mod judge;
pub(crate) mod verdicts;
