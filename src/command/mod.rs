//! Parses requests, and words errors. Pure, like the core.
//!
//! One file per command: its grammar in the doc comment, and `parse`. All arguments are parsed and checked before
//! anything is changed or replied (CONTRACT 2). Every error that a client can see is in [`error`]. [`table`]
//! describes the commands to the server, and [`slot`] redirects clients whose slot has left.

pub mod acquire;
pub mod args;
pub mod error;
pub mod exec;
pub mod fence;
pub mod heldby;
pub mod info;
pub mod internal;
pub mod macquire;
pub mod release;
pub mod renew;
pub mod slot;
pub mod table;
