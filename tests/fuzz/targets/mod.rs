//! The targets of fuzzing. Each target takes any bytes, and panics at a wrong result.
//!
//! * `decoder`: the bytes are the blocks of a payload. They are read as a lock, which is written as it was read, and
//!   lives to its end on a server.
//! * `arguments`: the words of a command. They are read as a second grammar says, or refused in one line.
//! * `records`: the queues of a replication stream or an append-only file. No lock breaks a rule, and a snapshot and a
//!   rewritten file say the same of it.
//! * `step`: the choices of a random life, in `src/sim/generators/fuzz.rs`. The oracle agrees, and the judge keeps
//!   every guarantee.
//!
//! The tests of the crate replay every input that is kept in `tests/fuzz/corpus` and `tests/fuzz/found`;
//! `scripts/fuzz` looks for others.

pub(crate) mod arguments;
pub(crate) mod decoder;
pub(crate) mod records;
#[cfg(test)]
mod replay;
mod replica;

use std::sync::atomic::{AtomicBool, Ordering};

/// True while bytes of the input are compared: a fuzzer watches that, to find bytes that are worth a try.
pub(crate) static IS_READING: AtomicBool = AtomicBool::new(false);

/// Reads a part of the input.
fn reading<T>(read: impl FnOnce() -> T) -> T {
    IS_READING.store(true, Ordering::Relaxed);
    let what = read();
    IS_READING.store(false, Ordering::Relaxed);
    what
}

/// The first `pieces_max` pieces of `data` between the bytes that equal `at`.
fn split(data: &[u8], at: u8, pieces_max: usize) -> Vec<&[u8]> {
    data.split(|&byte| byte == at).take(pieces_max).collect()
}
