//! Every error that a client can see. The first word is the code (SPEC 9); the rest is one line that
//! names the argument and the accepted range.

use std::borrow::Cow;
use std::fmt;

use crate::lock::table::{NO_TOKENS, Refusal, TOO_MANY_LOCKS};

/// Bad input: nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// The owner has no or too many bytes.
    Owner,
    /// Not an integer in the range.
    Number {
        /// Option or argument.
        what: &'static str,
        /// Its unit, or nothing.
        unit: &'static str,
        /// Smallest accepted.
        min: u64,
        /// Largest accepted.
        max: u64,
    },
    /// No option of this command.
    Unknown {
        /// As it was written, made printable.
        name: String,
        /// The options there are.
        expected: &'static str,
    },
    /// An option is given twice.
    Repeated(&'static str),
    /// An option needs a value.
    NoValue(&'static str),
    /// Both PX and EX.
    TwoLeases,
    /// Neither PX nor EX.
    NoLease,
    /// EX, while no lease may be as long as a second.
    LeaseBelowSecond {
        /// The longest lease.
        max_ms: u64,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("ERR owner must be 1 to 256 bytes long"),
            Self::Number { what, unit, min, max } => {
                write!(f, "ERR {what} must be an integer from {min} to {max}")?;
                if unit.is_empty() {
                    return Ok(());
                }
                write!(f, " ({unit})")
            }
            Self::Unknown { name, expected } => {
                write!(f, "ERR syntax error: unknown option '{name}', expected {expected}")
            }
            Self::Repeated(name) => write!(f, "ERR syntax error: option {name} is given twice"),
            Self::NoValue(name) => write!(f, "ERR syntax error: option {name} needs a value"),
            Self::TwoLeases => f.write_str("ERR syntax error: give the lease by PX or by EX, not by both"),
            Self::NoLease => {
                f.write_str("ERR syntax error: a lease is required: PX milliseconds or EX seconds")
            }
            Self::LeaseBelowSecond { max_ms } => write!(
                f,
                "ERR EX cannot be used while redislock.max-lease is {max_ms}: use PX, from 1 to {max_ms} (milliseconds)"
            ),
        }
    }
}

/// The error for a request that cannot be served.
#[must_use]
pub fn refusal(refusal: Refusal) -> Cow<'static, str> {
    match refusal {
        Refusal::WrongType => WRONG_TYPE.into(),
        Refusal::LineIsFull(max) => {
            format!("LOCKQUEUE {max} requests wait for this lock already (redislock.max-waiters-per-lock)")
                .into()
        }
        Refusal::ServerIsFull(max) => {
            format!("LOCKQUEUE {max} requests wait on this server already (redislock.max-waiters)").into()
        }
        Refusal::NoTokens => NO_TOKENS.into(),
        Refusal::TooManyLocks => TOO_MANY_LOCKS.into(),
    }
}

/// The key holds something else. The server's own words.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// A replica decides nothing, not even if it may be written to.
pub const READ_ONLY: &str = "READONLY locks are granted by the primary; this server is a replica";

/// A newer request of the same owner took over the place in line.
pub const REPLACED: &str = "UNBLOCKED a newer request of the same owner took over this place in the queue";

/// This server stopped being a primary.
pub const DEMOTED: &str = "UNBLOCKED this server is no longer a primary; ask the new one";

/// The server may throw locks away when memory runs out.
pub const MAY_EVICT: &str = "ERR this server may evict locks: maxmemory is set and maxmemory-policy is allkeys-*; use a volatile-* policy or noeviction, or accept the loss with CONFIG SET redislock.allow-eviction yes";

/// A command of the replication stream came from a client.
pub const INTERNAL: &str =
    "ERR this command belongs to replication and append-only files; clients cannot use it";

/// A record of the replication stream that this version does not understand.
pub const BAD_RECORD: &str = "ERR malformed redislock record";

/// The bytes as they may stand in a line of an error: printable ASCII, at most 64 of them.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 64;
    let mut text: String =
        bytes.iter().take(SHOWN_BYTES_MAX).flat_map(|b| b.escape_ascii()).map(char::from).collect();
    if bytes.len() > SHOWN_BYTES_MAX {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_printable_line_whatever_was_sent() {
        let nasty = [b"\r\n+OK\r\n\0\xff'".as_slice(), &[b'a'; 10_000]].concat();
        let text = Invalid::Unknown { name: shown(&nasty), expected: "PX" }.to_string();
        assert!(text.len() < 512, "{}", text.len());
        assert!(text.bytes().all(|b| (b' '..=b'~').contains(&b)), "{text}");
        assert!(text.starts_with("ERR syntax error: unknown option '\\r\\n+OK"));
    }

    #[test]
    fn errors_name_argument_and_range() {
        let number = Invalid::Number { what: "PX", unit: "milliseconds", min: 1, max: 3_600_000 };
        assert_eq!(number.to_string(), "ERR PX must be an integer from 1 to 3600000 (milliseconds)");
        let token = Invalid::Number { what: "token", unit: "", min: 1, max: 9 };
        assert_eq!(token.to_string(), "ERR token must be an integer from 1 to 9");
        assert!(refusal(Refusal::LineIsFull(7)).starts_with("LOCKQUEUE 7 "));
        assert!(refusal(Refusal::WrongType).starts_with("WRONGTYPE "));
    }
}
