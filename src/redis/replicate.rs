//! Writes the module's own records for replicas and append-only files: see `src/command/internal.rs`.

use std::ffi::c_longlong;

use redis_module::raw;

use super::api::{Ctx, KeptStr, Str, api};
use super::api_table::calls;
use crate::command::internal::{Word, words_of};
use crate::engine::server::Fact;
use crate::lock::codec::{SavedHold, lowest_version};
use crate::lock::types::Mode;

// Each hand-over uses it.
static HOLD: KeptStr = KeptStr::new("HOLD");
/// The version of all records, except where [`lowest_version`] differs.
static FIRST: KeptStr = KeptStr::new("1");
static SECOND: KeptStr = KeptStr::new("2");

/// Creates the parts of a record. Called once, at load.
pub(crate) fn begin() -> Result<(), &'static str> {
    [&HOLD, &FIRST, &SECOND]
        .into_iter()
        .try_for_each(|word| word.get().map(|_| ()))
        .ok_or("there is no memory for a word of the records for replicas")
}

/// The buffer for the digits of numbers.
type Digits = itoa::Buffer;

/// Writes the fact "this owner holds" by one of the server's two functions that write commands from a format: to the
/// first argument, for a key of this name.
///
/// Everything except the name and the verb is passed as bytes. The server makes a string of these with one
/// allocation; of a number, with two.
macro_rules! write_hold {
    ($function:ident, $into:expr, $name:expr, $mode:expr, $hold:expr) => {{
        let (into, name, hold): (_, _, &SavedHold) = ($into, $name, $hold);
        let (mut token, mut left_ms) = (Digits::new(), Digits::new());
        let (token, left_ms) = (token.format(hold.token.get()), left_ms.format(hold.left_ms));
        // It was made at load.
        let version = if lowest_version($mode) == 1 { &FIRST } else { &SECOND };
        let (command, Some(version), Some(verb)) = (c"LOCK.APPLY".as_ptr(), version.get(), HOLD.get()) else {
            return;
        };
        let (version, verb) = (version.as_ptr(), verb.as_ptr());
        let (token, token_len) = (token.as_ptr(), token.len());
        let (left_ms, left_ms_len) = (left_ms.as_ptr(), left_ms.len());
        let (owner, len) = (hold.owner.as_ptr(), hold.owner.len());
        if let Some(words) = words_of($mode, hold) {
            let mut digits = [Digits::new(); 4];
            let [mode, count, cut, kept] = written(&words, &mut digits);
            let format = c"sssbbbbbbb".as_ptr();
            // SAFETY: 1. the caller's arguments are live; 2. the format takes three strings, and seven buffers with
            // their lengths, which live until the end of this block.
            unsafe {
                api!(
                    $function, into, command, format, name, version, verb, token, token_len, left_ms, left_ms_len,
                    owner, len, mode.as_ptr(), mode.len(), count.as_ptr(), count.len(), cut.as_ptr(), cut.len(),
                    kept.as_ptr(), kept.len()
                )
            };
        } else {
            let format = c"sssbbb".as_ptr();
            // SAFETY: the same without the last four.
            unsafe {
                api!(
                    $function, into, command, format, name, version, verb, token, token_len, left_ms, left_ms_len,
                    owner, len
                )
            };
        }
    }};
}

/// Writes a fact to the replication stream and the append-only file.
///
/// Callers pass a constant fact, so the compiler removes the choice.
#[inline(always)]
pub(super) fn replicate(ctx: &Ctx, fact: Fact<'_, Str<'_>>) {
    let (to, apply, tick) = (ctx.as_ptr(), c"LOCK.APPLY".as_ptr(), c"LOCK.TICK".as_ptr());
    let first = c"1".as_ptr();
    // SAFETY: 1. a live context and strings; 2. s in a format takes a string, c a C string, l a long long.
    unsafe {
        match fact {
            Fact::AsAsked => _ = (calls().replicate_verbatim)(to),
            Fact::Hold(name, mode, hold) => replicate_hold(ctx, name, mode, hold),
            Fact::Ended(name, token) => {
                let (ended, token) = (c"ENDED".as_ptr(), token.get() as c_longlong);
                api!(RedisModule_Replicate, to, apply, c"sccl".as_ptr(), name.as_ptr(), first, ended, token);
            }
            Fact::Deleted(name) => {
                api!(RedisModule_Replicate, to, c"DEL".as_ptr(), c"s".as_ptr(), name.as_ptr());
            }
            Fact::Lives(name, wall_ms) => {
                let (command, until) = (c"PEXPIREAT".as_ptr(), c_longlong::try_from(wall_ms));
                let until = until.unwrap_or(c_longlong::MAX);
                api!(RedisModule_Replicate, to, command, c"sl".as_ptr(), name.as_ptr(), until);
            }
            Fact::Tick { last, replicated } => {
                let (last, replicated) = (last as c_longlong, replicated as c_longlong);
                // R keeps it from replicas.
                api!(RedisModule_Replicate, to, tick, c"cllR".as_ptr(), first, last, replicated);
            }
            Fact::FreshStart(last) => {
                let (last, replicated) = (last as c_longlong, 0 as c_longlong);
                api!(RedisModule_Replicate, to, tick, c"cll".as_ptr(), first, last, replicated);
            }
        }
    }
}

fn replicate_hold(ctx: &Ctx, name: Str<'_>, mode: Mode, hold: &SavedHold) {
    write_hold!(RedisModule_Replicate, ctx.as_ptr(), name.as_ptr(), mode, hold);
}

/// Writes the fact "this owner holds" to an append-only file that is being rewritten. Takes the stream and the name
/// of the running callback.
pub(crate) fn emit_hold(
    io: *mut raw::RedisModuleIO,
    name: *mut raw::RedisModuleString,
    mode: Mode,
    hold: &SavedHold,
) {
    write_hold!(RedisModule_EmitAOF, io, name, mode, hold);
}

/// Writes the fact "an empty lock exists here" to such a file.
pub(crate) fn emit_empty(io: *mut raw::RedisModuleIO, name: *mut raw::RedisModuleString) {
    let (apply, first, empty) = (c"LOCK.APPLY".as_ptr(), c"1".as_ptr(), c"EMPTY".as_ptr());
    // SAFETY: the stream of the running callback; the format takes a string and two C strings.
    unsafe { api!(RedisModule_EmitAOF, io, apply, c"scc".as_ptr(), name, first, empty) };
}

/// Returns these words as letters and digits.
fn written<'a>(words: &[Word; 4], digits: &'a mut [Digits; 4]) -> [&'a str; 4] {
    let mut all = [""; 4];
    for ((text, word), digits) in all.iter_mut().zip(words).zip(digits) {
        *text = match *word {
            Word::Letters(letters) => letters,
            Word::Number(number) => digits.format(number),
        };
    }
    all
}

/// Asks the replicas for their offsets.
pub(crate) fn ask_replicas(ctx: &Ctx) {
    let (command, format) = (c"REPLCONF".as_ptr(), c"Acc".as_ptr());
    // SAFETY: the format takes two C strings after the command, and A keeps it from files.
    unsafe { api!(RedisModule_Replicate, ctx.as_ptr(), command, format, c"GETACK".as_ptr(), c"*".as_ptr()) };
}
