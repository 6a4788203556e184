//! A lock on its way between servers, and into files and out of them.

mod blocks;
mod saved;

pub use blocks::{BLOCK_BYTES_MAX, NEWEST_VERSION, lowest_version, read, write};
pub use saved::{Digested, SavedHold, SavedLock, digest};
