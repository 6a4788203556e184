//! A lock on its way between servers, and into files and out of them.

mod packed;
mod row;

pub use packed::{BLOCK_BYTES_MAX, Piece, Source, read, write};
pub use row::{SavedHold, SavedLock, decode, encode, name_hash};
