//! What fuzzing lets bytes do. Each target takes any bytes, and panics if what comes of them is wrong.
//!
//! | target | the bytes are | what must hold |
//! |---|---|---|
//! | `decoder` | the numbers of a payload, then what happens to its lock | what is read is a lock, and is written as read |
//! | `arguments` | the words of a command | a request in its bounds that can be said otherwise, or one line of an error |
//! | `records` | lines of a replication stream or an append-only file | no lock breaks a rule; snapshot and rewrite say the same |
//! | `step` | the choices of a random life: `src/lock/tests/fuzz.rs` | the oracle agrees, the judge keeps every guarantee |
//!
//! The tests of the crate replay every input that is kept in `tests/fuzz/corpus` and `tests/fuzz/found`;
//! `scripts/fuzz` looks for others.

pub(crate) mod arguments;
pub(crate) mod decoder;
pub(crate) mod records;
#[cfg(test)]
mod replay;
mod replica;

/// The pieces between these bytes, up to so many.
fn split(data: &[u8], at: u8, pieces_max: usize) -> Vec<&[u8]> {
    data.split(|&byte| byte == at).take(pieces_max).collect()
}
