//! Encodes a lock for other servers, and for files, and decodes it.

mod blocks;
mod saved;

pub use blocks::{BLOCK_BYTES_MAX, NEWEST_VERSION, lowest_version, read, write};
pub use saved::{Digested, SavedHold, SavedLock, digest};
