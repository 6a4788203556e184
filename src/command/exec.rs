//! `LOCK.EXEC key token command [arg ...]`

use super::args::token;
use super::error::{Invalid, shown};
use crate::lock::types::Token;

/// A command to run under a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exec<'a, A> {
    /// The token that must belong to a live hold.
    pub token: Token,
    /// The command's name and its arguments; not empty.
    pub words: &'a [A],
}

/// Parses the arguments after the key.
pub fn parse<A: AsRef<[u8]>>(args: &[A]) -> Result<Exec<'_, A>, Invalid> {
    const USAGE: &str = "LOCK.EXEC key token command [arg ...]";
    let missing = |what| Invalid::Missing { what, usage: USAGE };
    let (number, words) = args.split_first().ok_or(missing("the token"))?;
    let token = token("token", number.as_ref())?;
    let name = words.first().ok_or(missing("the command"))?.as_ref();
    if is_ours(name) {
        return Err(Invalid::Nested(shown(name)));
    }
    Ok(Exec { token, words })
}

/// Returns true if this names one of the module's own commands. They are steps of their own, and deeply nested
/// LOCK.EXEC would exhaust the stack.
#[must_use]
pub fn is_ours(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"lock.";
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// Returns true if a command that can block would: always, except for the commands of streams, which block by option.
#[must_use]
pub fn would_block<A: AsRef<[u8]>>(words: &[A]) -> bool {
    let is = |at, word| is_at(words, at, word);
    if !is(0, b"XREAD") && !is(0, b"XREADGROUP") {
        return true;
    }
    let mut at = 1;
    // Skips names and numbers: a group may be called BLOCK.
    while at < words.len() && !is(at, b"STREAMS") {
        at += match () {
            () if is(at, b"BLOCK") => return true,
            () if is(at, b"GROUP") => 3,
            () if is(at, b"COUNT") || is(at, b"CLAIM") => 2,
            () => 1,
        };
    }
    false
}

/// Returns true if this is the word at this position, in any case.
fn is_at<A: AsRef<[u8]>>(words: &[A], at: usize, word: &[u8]) -> bool {
    words.get(at).is_some_and(|w| w.as_ref().eq_ignore_ascii_case(word))
}

/// Returns true for a command of vector sets that waits for a thread: VADD with CAS, or VSIM without NOTHREAD. Redis
/// 8.0 and later have them, and do not report that they can block. A server crashes if one blocks within a module's
/// call.
#[must_use]
pub fn waits_for_a_thread<A: AsRef<[u8]>>(words: &[A]) -> bool {
    // They read options up to the first zero.
    let is_cas = |w: &A| w.as_ref().split(|&b| b == 0).next().is_some_and(|w| w.eq_ignore_ascii_case(b"CAS"));
    is_at(words, 0, b"VADD") && words.iter().skip(2).any(is_cas)
        || is_at(words, 0, b"VSIM") && !has_option_nothread(words)
}

/// Returns true if VSIM has the option NOTHREAD. An element or a filter may have that name, too. An unknown word may
/// take a value, so nothing after it is trusted.
fn has_option_nothread<A: AsRef<[u8]>>(words: &[A]) -> bool {
    let is_one_of = |at, options: &[&[u8]]| options.iter().any(|option| is_at(words, at, option));
    // The vector is that of an element, or bytes, or numbers after their count.
    let numbers = || str::from_utf8(words.get(3)?.as_ref()).ok()?.parse::<usize>().ok();
    let behind_vector = match () {
        () if is_one_of(2, &[b"ELE", b"FP32"]) => Some(4),
        () if is_one_of(2, &[b"VALUES"]) => numbers().and_then(|count| count.checked_add(4)),
        () => None,
    };
    let Some(mut at) = behind_vector else {
        return false;
    };
    while at < words.len() && !is_one_of(at, &[b"NOTHREAD"]) {
        at += match () {
            () if is_one_of(at, &[b"WITHSCORES", b"WITHATTRIBS", b"TRUTH"]) => 1,
            () if is_one_of(at, &[b"COUNT", b"EPSILON", b"EF", b"FILTER", b"FILTER-EF"]) => 2,
            () => return false,
        };
    }
    at < words.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_and_a_command_with_its_arguments() {
        let exec = parse(&["7", "SET", "x", "1"]).unwrap();
        assert_eq!((exec.token.get(), exec.words), (7, ["SET", "x", "1"].as_slice()));
        assert_eq!(parse(&["7", ""]).unwrap().words, [""]);
        for bad in ["0", "-1", "9007199254740992", "x", ""] {
            assert!(matches!(parse(&[bad, "SET"]), Err(Invalid::Number { what: "token", .. })), "{bad}");
        }
        let error = |args: &[&str]| parse(args).unwrap_err().to_string();
        let usage = "LOCK.EXEC key token command [arg ...]";
        assert_eq!(error(&["7"]), format!("ERR syntax error: the command is missing: {usage}"));
        assert_eq!(error(&[]), format!("ERR syntax error: the token is missing: {usage}"));
    }

    #[test]
    fn exec_refuses_the_modules_own_commands() {
        for name in ["LOCK.EXEC", "lock.exec", "Lock.Release", "LOCK.", "lock.apply", "LOCK.whatever"] {
            assert_eq!(parse(&["7", name, "door"]), Err(Invalid::Nested(name.to_owned())));
        }
        for name in ["LOCK", "LOCKS.EXEC", " lock.exec", "xlock.exec", "l"] {
            assert!(parse(&["7", name]).is_ok(), "{name}");
        }
    }

    #[test]
    fn only_the_block_option_makes_reading_streams_block() {
        let block = |line: &str| would_block(&line.split(' ').collect::<Vec<_>>());
        for line in
            ["BLPOP a 0", "WAIT 1 0", "xread BLOCK 0 STREAMS s $", "XREAD COUNT 1 block 0 streams s $"]
        {
            assert!(block(line), "{line}");
        }
        assert!(block("XREADGROUP GROUP g c COUNT 1 NOACK BLOCK 0 STREAMS s >"));
        for line in [
            "XREAD STREAMS s 0",
            "xread count 1 streams s 0",
            "XREAD STREAMS block 0",
            "XREADGROUP GROUP block c STREAMS s >",
            "XREADGROUP GROUP g block COUNT 1 NOACK STREAMS s >",
            "XREAD",
            "XREADGROUP GROUP",
        ] {
            assert!(!block(line), "{line}");
        }
    }

    #[test]
    fn vector_sets_are_searched_and_filled_on_a_thread_by_their_options() {
        let waits = |line: &str| waits_for_a_thread(&line.split(' ').collect::<Vec<_>>());
        for line in [
            "VSIM v ELE e",
            "vsim v VALUES 2 1 1 WITHSCORES COUNT 3",
            "VSIM v ELE NOTHREAD",
            "VSIM v FP32 NOTHREAD",
            "VSIM v ELE e FILTER NOTHREAD",
            "VSIM v VALUES 3 1 1 NOTHREAD",
            "VSIM v VALUES x 1 NOTHREAD",
            "VSIM v ELE e NEWER NOTHREAD",
            "VSIM v OTHER e NOTHREAD",
            "VSIM v",
            "VSIM",
            "VADD v VALUES 2 1 1 e CAS",
            "vadd v REDUCE 1 VALUES 2 1 1 e EF 5 cas",
            "VADD v VALUES 2 1 1 e CAS\0X",
        ] {
            assert!(waits(line), "{line}");
        }
        for line in [
            "VSIM v ELE e NOTHREAD",
            "vsim v fp32 bytes withscores count 3 nothread",
            "VSIM v VALUES 2 1 1 NOTHREAD",
            "VSIM v VALUES 0 NOTHREAD",
            "VSIM v ELE e FILTER f FILTER-EF 5 WITHATTRIBS TRUTH EPSILON 1 EF 9 NOTHREAD COUNT 1",
            "VADD v VALUES 2 1 1 e",
            "VADD v VALUES 2 1 1 CAST",
            "VADD CAS VALUES 2 1 1 e NOQUANT",
            "VCARD v",
            "SET v CAS",
        ] {
            assert!(!waits(line), "{line}");
        }
    }
}
