//! The guarantees, as a client could hold the server to them.
//!
//! | file | what it is |
//! |---|---|
//! | `judge.rs` | every grant, end and answer against the guarantees |
//! | `verdicts.rs` | which outcomes a request may have |
//! | `begun.rs` | what no grant may break |
//! | `arrived.rs` | locks that come other than by a grant |
//! | `book.rs` | what a hold is worth, and whether a wait can end |

pub(crate) mod arrived;
pub(crate) mod begun;
pub(crate) mod book;
pub(crate) mod judge;
pub(crate) mod verdicts;
