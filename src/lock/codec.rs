//! A lock on its way between servers, and into files and out of them.

mod digest;
mod packed;
mod row;

pub use digest::{Digested, digest};
pub use packed::{BLOCK_BYTES_MAX, Piece, Source, read, write};
pub use row::{SavedHold, SavedLock, decode, encode, name_hash};
