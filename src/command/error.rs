//! Every error that a client can see. The first word is the code (CONTRACT 9); the rest is one line that
//! names the argument and the accepted range.

use std::borrow::Cow;
use std::fmt;

use crate::lock::deadlock::Link;
use crate::lock::table::{NO_TOKENS, Refusal, TOO_MANY_LOCKS};
use crate::lock::types::{COUNT_MAX, Mode, Token};

pub use crate::lock::table::WRONG_TYPE;

/// Bad input. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// The owner is empty or too long.
    Owner,
    /// Not an integer in the accepted range.
    Number {
        /// The option or argument.
        what: &'static str,
        /// Its unit, or nothing.
        unit: &'static str,
        /// The smallest accepted value.
        min: u64,
        /// The largest accepted value.
        max: u64,
    },
    /// A token that would push the clock of tokens too far ahead.
    TooFarAhead {
        /// The highest token that is accepted now.
        highest: u64,
    },
    /// Not an option of this command.
    Unknown {
        /// The option as written, made printable.
        name: String,
        /// The options of the command.
        expected: &'static str,
    },
    /// An option is given twice.
    Repeated(&'static str),
    /// An option is the last word, and needs a value.
    NoValue {
        /// The option.
        name: &'static str,
        /// The error for an empty value, which names the accepted range.
        wanted: Box<Invalid>,
    },
    /// An argument is missing.
    Missing {
        /// The argument.
        what: &'static str,
        /// The grammar of the command.
        usage: &'static str,
    },
    /// A number where an option is expected, and no lease before it.
    BareLease {
        /// The number, made printable.
        number: String,
    },
    /// An error after the keys of LOCK.MACQUIRE; their count may be wrong.
    BehindKeys {
        /// The number of keys that the client announced.
        count: u64,
        /// The last of them, made printable.
        last: String,
        /// The argument after it, made printable.
        owner: String,
        /// The error after that.
        invalid: Box<Invalid>,
    },
    /// Two options that exclude each other.
    Both(&'static str, &'static str),
    /// A reservation for an owner that no client knows.
    PlaceOfNobody,
    /// Fewer keys than announced.
    NoKeys {
        /// The number that the client announced.
        count: u64,
        /// The number of arguments that were given.
        given: usize,
    },
    /// A duplicate key.
    SameKey(String),
    /// A command of this module within LOCK.EXEC; its name made printable.
    Nested(String),
    /// Both PX and EX.
    TwoLeases,
    /// Neither PX nor EX.
    NoLease,
    /// EX, where the longest lease is below a second.
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
            Self::TooFarAhead { highest } => write!(
                f,
                "ERR RAISE must be an integer from 1 to {highest}: a token may be ahead of this server's clock by \
                 redislock.max-token-lead at most"
            ),
            Self::Unknown { name, expected } => {
                write!(f, "ERR syntax error: unknown option '{name}', expected {expected}")
            }
            Self::Repeated(name) => write!(f, "ERR syntax error: option {name} is given twice"),
            Self::NoValue { name, wanted } => {
                let wanted = wanted.to_string();
                let wanted = wanted.split_once(" must be ").map_or(&*wanted, |(_, wanted)| wanted);
                write!(f, "ERR syntax error: option {name} needs a value: {wanted}")
            }
            Self::Missing { what, usage } => write!(f, "ERR syntax error: {what} is missing: {usage}"),
            Self::BareLease { number } => write!(
                f,
                "ERR syntax error: a lease needs its unit: PX {number} (milliseconds) or EX {number} (seconds)"
            ),
            Self::BehindKeys { count, last, owner, invalid } => {
                let invalid = invalid.to_string();
                let invalid = invalid.strip_prefix("ERR syntax error: ").unwrap_or(&invalid);
                write!(
                    f,
                    "ERR syntax error: numkeys is {count}, so '{last}' is the last key and '{owner}' is the owner; \
                     {invalid}"
                )
            }
            Self::Both(a, b) => write!(f, "ERR syntax error: give {a} or {b}, not both"),
            Self::PlaceOfNobody => f.write_str(
                "ERR QUEUE needs an owner of your own to come back with; '*' would be another one each time",
            ),
            Self::NoKeys { count, given } => write!(
                f,
                "ERR syntax error: numkeys is {count}, but {given} argument(s) follow: give that many keys, then the \
                 owner"
            ),
            Self::SameKey(name) => {
                write!(f, "ERR duplicate key '{name}': name each key once")
            }
            Self::Nested(name) => {
                write!(f, "ERR LOCK.EXEC does not run LOCK.* commands: send '{name}' by itself")
            }
            Self::TwoLeases => f.write_str("ERR syntax error: give the lease by PX or by EX, not by both"),
            Self::NoLease => {
                f.write_str("ERR syntax error: a lease is required: PX milliseconds or EX seconds")
            }
            Self::LeaseBelowSecond { max_ms } => write!(
                f,
                "ERR EX cannot be used where a lease lasts at most {max_ms} milliseconds: use PX, from 1 to {max_ms}"
            ),
        }
    }
}

/// Returns the error for a request that was refused. `key` is the key of the refusal, and `cycle` the cycle of waits,
/// if any.
#[must_use]
pub fn refusal(refusal: Refusal, key: &[u8], cycle: &[Link]) -> Cow<'static, str> {
    match refusal {
        Refusal::WrongType => WRONG_TYPE.into(),
        Refusal::QueueIsFull(max) => {
            format!("LOCKQUEUE {max} requests wait for this lock already (redislock.max-waiters-per-lock)")
                .into()
        }
        Refusal::ServerIsFull(max) => {
            format!("LOCKQUEUE {max} requests wait on this server already (redislock.max-waiters)").into()
        }
        Refusal::OtherKind(mode) => {
            format!("LOCKKIND this lock is {} now; all its holders and waiters must use that kind", kind(mode))
                .into()
        }
        Refusal::Held(_) => format!(
            "LOCKHELD '{}' is held by this owner already, but not in the requested way: release every key that this \
             request names, then ask again",
            shown(key)
        )
        .into(),
        Refusal::Quarantine(left_ms) => format!(
            "QUARANTINE {left_ms} milliseconds are left in which this server grants no new lock: it may have lost some"
        )
        .into(),
        Refusal::Unconfirmable => CANNOT_CONFIRM.into(),
        Refusal::Leaving => LEAVING.into(),
        Refusal::Deadlock => deadlock(cycle).into(),
        Refusal::Several(mode) => format!(
            "ERR RAISE is for exclusive locks: this one is {}, and each of its holders has a token of its own",
            if let Mode::Limit(limit) = mode { format!("LIMIT {limit}") } else { "SHARED".to_owned() }
        )
        .into(),
        Refusal::TooManyTimes => {
            format!("ERR this owner holds the lock {COUNT_MAX} times already (REENTRANT)").into()
        }
        Refusal::NoTokens => NO_TOKENS.into(),
        Refusal::TooManyLocks => TOO_MANY_LOCKS.into(),
    }
}

/// Returns the kind of a lock in words.
fn kind(mode: Mode) -> String {
    match mode {
        Mode::Exclusive | Mode::Shared => "exclusive or SHARED".to_owned(),
        Mode::Limit(limit) => format!("LIMIT {limit}"),
    }
}

/// Describes a cycle of waits in one line: which owner waits for which lock, and for whom there.
fn deadlock(cycle: &[Link]) -> String {
    const LINKS_SHOWN: usize = 8;
    let mut text = "DEADLOCK this wait would never end:".to_owned();
    for (number, link) in cycle.iter().take(LINKS_SHOWN).enumerate() {
        let comma = if number > 0 { "," } else { "" };
        let (owner, name, awaited) = (shown(&link.owner), shown(&link.lock_key.name), shown(&link.awaited));
        text.push_str(&format!("{comma} '{owner}' waits for '{name}' and there for '{awaited}'"));
    }
    if cycle.len() > LINKS_SHOWN {
        text.push_str(&format!(", and {} more", cycle.len() - LINKS_SHOWN));
    }
    text
}

/// Returns the error for a token without a live hold; `live` is the newest token that has one.
#[must_use]
pub fn fenced(token: Token, live: Option<Token>) -> String {
    let token = token.get();
    match live.map(Token::get) {
        None => format!("FENCED token {token} is not live: this lock has no live token"),
        Some(live) if live > token => {
            format!("FENCED token {token} is not live: this lock is held with the newer token {live}")
        }
        Some(live) => format!("FENCED token {token} is not live: this lock is held with token {live}"),
    }
}

/// Returns the error for a command that would block, which is impossible within one step.
#[must_use]
pub fn would_block(name: &[u8]) -> String {
    format!("ERR LOCK.EXEC does not run commands that block: '{}'", shown(name))
}

/// Returns the error for an unknown command.
#[must_use]
pub fn unknown_command(name: &[u8]) -> String {
    format!("ERR unknown command '{}'", shown(name))
}

/// Keys of several slots; in the server's words.
pub const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Some keys of a moving slot are not here; in the server's words.
pub const SLOT_IS_MOVING: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

/// The server cannot be asked whether a command blocks.
pub const EXEC_IN_THE_DARK: &str = "ERR LOCK.EXEC needs the command COMMAND, which rename-command has renamed or disabled on this server: it cannot know which commands block";

/// LOCK.EXEC was called within LOCK.EXEC, through another module.
pub const EXEC_WITHIN: &str = "ERR LOCK.EXEC cannot run within LOCK.EXEC";

/// A hold cannot be bound without a connection.
pub const NO_CONNECTION: &str = "ERR EPHEMERAL and KEEPALIVE tie a hold to the connection that asks: they cannot be used in a script, a function or another module's call";

/// A replica decides nothing, even if it is writable.
pub const READ_ONLY: &str = "READONLY locks are granted by the primary; this server is a replica";

/// A newer request of the same owner replaced this one in the queue.
pub const REPLACED: &str = "UNBLOCKED a newer request of the same owner took over this place in the queue";

/// This server was demoted.
pub const DEMOTED: &str = "UNBLOCKED this server is no longer a primary; ask the new one";

/// Too few replicas are connected, or were for long enough.
pub const CANNOT_CONFIRM: &str = "NOREPLICAS too few replicas are connected, or they connected less than a quarantine ago, or this server became primary less than a quarantine ago (see INFO redislock); nothing was done";

/// This client cannot wait for replicas.
pub const CANNOT_WAIT: &str = "NOREPLICAS a grant or a renewal must wait for replicas (redislock.confirm), which is impossible in MULTI, in a script or on a connection that must not block; nothing was done";

/// Too few replicas acknowledged a grant in time.
pub const GRANT_UNCONFIRMED: &str = "NOREPLICAS too few replicas confirmed the grant: one left, or redislock.confirm-timeout or the lease ended; you may or may not hold it: ask again as the same owner, or release";

/// Too few replicas acknowledged a renewal in time.
pub const RENEWAL_UNCONFIRMED: &str = "NOREPLICAS too few replicas confirmed the renewal: one left, or redislock.confirm-timeout or the lease is over; count on the shorter of the old and the new lease";

/// A paused lease has no end that a quarantine could wait for.
pub const KEPT_UNCONFIRMED: &str = "ERR KEEPALIVE cannot be used while redislock.confirm is all or majority: a paused lease has no bounded end";

/// After an unconfirmed request, the count of a hold would be unknown.
pub const COUNTED_UNCONFIRMED: &str =
    "ERR REENTRANT cannot be used while redislock.confirm is all or majority: count in the client";

/// After an unconfirmed request, the token of a hold would be unknown.
pub const RAISED_UNCONFIRMED: &str = "ERR RAISE cannot be used while redislock.confirm is all or majority: a token that is raised must be known at once";

/// The request has waited since before the quarantine was set or shortened.
pub const LONGER_THAN_QUARANTINE: &str = "ERR PX is more than redislock.quarantine, which was set while this request waited; the request left the queue";

/// The server may evict locks when memory runs out.
pub const MAY_EVICT: &str = "ERR this server may evict locks: maxmemory is set and maxmemory-policy is allkeys-*; use a volatile-* policy or noeviction, or accept the loss with CONFIG SET redislock.allow-eviction yes";

/// The module is being removed from this server.
pub const LEAVING: &str = "ERR this server grants no lock any more: redislock.leaving is yes; what is held can be renewed and released";

/// A client sent a command of the replication stream.
pub const INTERNAL: &str =
    "ERR this command belongs to replication and append-only files; clients cannot use it";

/// A record of the replication stream that this version cannot read.
pub const BAD_RECORD: &str = "ERR malformed redislock record";

/// A record, of the replication stream or an append-only file, in a version that this module does not know.
pub const UNKNOWN_RECORD: &str = "ERR redislock record of a version that this module does not know: a newer one has written it, or 0.1 or 0.2; see Upgrade in docs/operations/install-and-upgrade.md";

/// Returns the bytes in a form that fits an error line: printable ASCII, at most 64 characters.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 64;
    shown_up_to(SHOWN_BYTES_MAX, bytes)
}

/// Returns one of several words in a form that fits an error line: printable ASCII, at most 12 characters.
#[must_use]
pub fn shown_shortly(bytes: &[u8]) -> String {
    const SHORT_BYTES_MAX: usize = 12;
    shown_up_to(SHORT_BYTES_MAX, bytes)
}

fn shown_up_to(bytes_max: usize, bytes: &[u8]) -> String {
    let mut text: String =
        bytes.iter().take(bytes_max).flat_map(|b| b.escape_ascii()).map(char::from).collect();
    if bytes.len() > bytes_max {
        text.push_str("...");
    }
    text
}

/// Returns the reply of LOCK.EXEC in place of this error of the server. For a command that lacks rights within a
/// call, Redis 7.0 uses other words than for the command alone, and no code.
#[must_use]
pub fn refusal_of_rights(error: &str) -> Option<String> {
    let reason = error.trim_start_matches("ERR ").strip_prefix("acl verification failed, ")?;
    Some(format!("NOPERM {}", reason.trim_end()))
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
        assert!(refusal(Refusal::QueueIsFull(7), b"k", &[]).starts_with("LOCKQUEUE 7 "));
        assert!(refusal(Refusal::WrongType, b"k", &[]).starts_with("WRONGTYPE "));
    }

    #[test]
    fn a_fenced_command_is_told_its_token_and_the_live_one() {
        let told = |live| fenced(Token::new(17).unwrap(), live);
        assert_eq!(told(None), "FENCED token 17 is not live: this lock has no live token");
        let newer = "FENCED token 17 is not live: this lock is held with the newer token 23";
        assert_eq!(told(Token::new(23)), newer);
        assert_eq!(told(Token::new(5)), "FENCED token 17 is not live: this lock is held with token 5");
    }

    #[test]
    fn a_refusal_of_rights_has_its_code_on_every_server() {
        let refused =
            refusal_of_rights("ERR acl verification failed, can't run this command or subcommand\r\n");
        assert_eq!(refused.as_deref(), Some("NOPERM can't run this command or subcommand"));
        assert_eq!(refusal_of_rights("NOPERM User ann has no permissions"), None);
        assert_eq!(refusal_of_rights("ERR value is not an integer or out of range"), None);
    }
}
