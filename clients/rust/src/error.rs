//! The errors of the library.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::rules::longest_lease;
use crate::wanted::SHORTEST_LEASE;

/// The cause of an error, as [`source`](std::error::Error::source) returns it.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// The reason for the loss of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended before it could be renewed.
    Deadline,
    /// The server rejected a renewal, because the hold had ended.
    Renewal,
    /// A push message from the server reported the end of the hold.
    Push,
    /// The hold had already ended when it was released.
    Release,
    /// The hold reached its [`max_hold`](crate::Lock::max_hold).
    MaxHold,
    /// Its [`Locks`](crate::Locks) were closed.
    Close,
}

impl Loss {
    /// Describes it for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Deadline => "its lease ended before it could be renewed",
            Self::Renewal => "the server rejected a renewal, because the hold had ended",
            Self::Push => "the server reported the end of the hold",
            Self::Release => "it had already ended when it was released",
            Self::MaxHold => "it reached its max_hold",
            Self::Close => "its Locks were closed",
        }
    }

    /// Returns the name of the reason that all client libraries use: `deadline`, `renewal`, `push`, `release`,
    /// `max_hold` or `close`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Renewal => "renewal",
            Self::Push => "push",
            Self::Release => "release",
            Self::MaxHold => "max_hold",
            Self::Close => "close",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One step of a [deadlock](Error::Deadlock).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The owner that waits,
    pub owner: String,
    /// the lock that it waits for,
    pub name: String,
    /// and the owner that holds it.
    pub holder: String,
}

/// The errors of this library.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The lock was not granted in time.
    #[non_exhaustive]
    LockTimeout {
        /// The name of the lock, or the names of all.
        name: String,
        /// The limit of the caller's wait.
        wait: Duration,
    },
    /// The hold ended before its release.
    #[non_exhaustive]
    LockLost {
        /// The name of the lock, or the names of all.
        name: String,
        /// The reason for the loss.
        reason: Loss,
        /// The error of the last failed renewal, if one failed.
        source: Option<Cause>,
    },
    /// The wait would never end: the owners that it waits for are themselves waiting for this owner.
    #[non_exhaustive]
    Deadlock {
        /// The owners in the cycle, each with the lock that it waits for and the holder of that lock.
        cycle: Vec<Wait>,
        /// The server's message.
        message: String,
    },
    /// The token does not belong to a live hold of the lock.
    #[non_exhaustive]
    Fenced {
        /// The name of the lock.
        name: String,
        /// The token.
        token: u64,
    },
    /// The lock is of another kind now, or a semaphore with another limit.
    #[non_exhaustive]
    LockKindMismatch {
        /// The server's message.
        message: String,
    },
    /// The owner already holds the lock in another mode: release it first, then ask.
    #[non_exhaustive]
    AlreadyHeld {
        /// The server's message.
        message: String,
    },
    /// The queue of the lock, or of the server, is full.
    #[non_exhaustive]
    QueueFull {
        /// The server's message.
        message: String,
    },
    /// The server grants no new locks yet, because it may have lost some.
    #[non_exhaustive]
    Quarantine {
        /// The rest of the quarantine.
        left: Duration,
    },
    /// Too few replicas confirmed the grant: the owner may or may not hold the lock.
    #[non_exhaustive]
    NotConfirmed {
        /// The server's message.
        message: String,
    },
    /// The server does not know the commands.
    #[non_exhaustive]
    ModuleMissing {
        /// The server's message, and how to load the module.
        message: String,
    },
    /// The server refused the login: the password or the user is missing or wrong.
    #[non_exhaustive]
    LoginRefused {
        /// The server's message.
        message: String,
    },
    /// No server that grants locks answered in time.
    #[non_exhaustive]
    ConnectionFailed {
        /// The last failure, and the server at which it happened.
        message: String,
        /// The driver's error, if it had one.
        source: Option<Cause>,
    },
    /// The locks are closed.
    Closed,
    /// Any other error of the server.
    #[non_exhaustive]
    ServerRefused {
        /// The server's message.
        message: String,
    },
    /// An argument is invalid, and nothing was acquired.
    #[non_exhaustive]
    Invalid {
        /// The reason.
        message: String,
    },
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    pub(crate) fn connection(message: impl Into<String>) -> Self {
        Self::ConnectionFailed { message: message.into(), source: None }
    }

    /// Returns true if a server has refused a request, and has granted nothing for it.
    pub(crate) const fn granted_nothing(&self) -> bool {
        matches!(
            self,
            Self::Deadlock { .. }
                | Self::Fenced { .. }
                | Self::LockKindMismatch { .. }
                | Self::AlreadyHeld { .. }
                | Self::QueueFull { .. }
                | Self::Quarantine { .. }
                | Self::LoginRefused { .. }
                | Self::ServerRefused { .. }
        )
    }

    /// Returns the error for this reply of the server.
    pub(crate) fn from_reply(text: &str) -> Self {
        let message = text.to_owned();
        let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
        match code {
            "DEADLOCK" => Self::Deadlock { cycle: cycle(rest), message },
            "LOCKKIND" => Self::LockKindMismatch { message },
            "LOCKHELD" => Self::AlreadyHeld { message },
            "LOCKQUEUE" => Self::QueueFull { message },
            "NOREPLICAS" => Self::NotConfirmed { message },
            "QUARANTINE" => {
                let left = rest.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default();
                Self::Quarantine { left: Duration::from_millis(left) }
            }
            "ERR" if rest.to_ascii_lowercase().starts_with("unknown command") => Self::ModuleMissing {
                // The words of the request follow.
                message: format!(
                    "{}. The module redislock is not loaded on this server: start it with \
                     `loadmodule /path/to/libredislock.so` in its configuration, or MODULE LOAD it once.",
                    message.split(", with args").next().unwrap_or_default()
                ),
            },
            "MOVED" => Self::ServerRefused {
                message: format!(
                    "{message}: this server is a node of a cluster: Locks::builder().cluster([..])"
                ),
            },
            "WRONGPASS" => Self::LoginRefused { message },
            "NOAUTH" => Self::LoginRefused {
                message: "NOAUTH this server wants a password, and its address names none: \
                          redis://:password@host:port"
                    .to_owned(),
            },
            _ => Self::ServerRefused { message },
        }
    }

    /// Translates an error of a request with this lease: the server's own message says which leases are too
    /// long.
    pub(crate) fn of_lease(self, lease: Duration, min_hold: Option<Duration>) -> Self {
        let Self::ServerRefused { message } = &self else { return self };
        let Some(most) = longest_lease(message) else { return self };
        // The error does not say which of the two it is.
        let bound =
            "the server's redislock.max-lease, or its redislock.quarantine if that is set and shorter";
        let (what, asked) = match min_hold.filter(|least| *least > lease) {
            Some(least) => ("lease (or min_hold)", least),
            None => ("lease", lease),
        };
        Self::invalid(format!("{what} must be from {SHORTEST_LEASE:?} to {most:?} ({bound}), not {asked:?}"))
    }

    /// Returns true if the error may well be temporary: a request that can wait tries again.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::ConnectionFailed { .. }
                | Self::LockTimeout { .. }
                | Self::LockLost { .. }
                | Self::NotConfirmed { .. }
                | Self::Quarantine { .. }
                | Self::QueueFull { .. }
        )
    }

    /// Returns true if another value was written over the lock, so that no owner holds it.
    pub(crate) fn is_overwritten(&self) -> bool {
        matches!(self, Self::ServerRefused { message } if message.starts_with("WRONGTYPE"))
    }

    /// Returns true if the server refused it, and would refuse another request likewise.
    pub(crate) fn is_refusal(&self) -> bool {
        !matches!(self, Self::ConnectionFailed { .. } | Self::Closed)
    }
}

/// Reads `'ben' waits for 'left' and there for 'ann', 'ann' waits for ...`.
fn cycle(text: &str) -> Vec<Wait> {
    let (mut words, mut steps) = (text.split('\'').skip(1).step_by(2), Vec::new());
    while let (Some(owner), Some(name), Some(holder)) = (words.next(), words.next(), words.next()) {
        steps.push(Wait { owner: owner.to_owned(), name: name.to_owned(), holder: holder.to_owned() });
    }
    steps
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LockTimeout { name, wait } if wait.is_zero() => {
                write!(f, "could not acquire '{name}': another owner holds it, and the wait is 0")
            }
            Self::LockTimeout { name, wait } => write!(f, "could not acquire '{name}' within {wait:?}"),
            Self::LockLost { name, reason, source } => {
                write!(f, "lost lock '{name}' ({reason}): {}", reason.text())?;
                source.iter().try_for_each(|source| write!(f, ": {source}"))
            }
            Self::Fenced { name, token } => {
                write!(f, "the token {token} does not belong to a live hold of '{name}'")
            }
            Self::Quarantine { left } => write!(f, "the server grants no new locks for another {left:?}"),
            Self::Closed => f.write_str("these locks are closed"),
            Self::Deadlock { message, .. }
            | Self::LockKindMismatch { message }
            | Self::AlreadyHeld { message }
            | Self::QueueFull { message }
            | Self::NotConfirmed { message }
            | Self::ModuleMissing { message }
            | Self::LoginRefused { message }
            | Self::ConnectionFailed { message, .. }
            | Self::ServerRefused { message }
            | Self::Invalid { message } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::LockLost { source, .. } | Self::ConnectionFailed { source, .. } => {
                source.as_ref().map(|source| source.as_ref() as _)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Step, judge};

    #[test]
    fn each_error_code_is_what_the_table_says() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");
        let page = std::fs::read_to_string(page).expect("the table of error codes");
        let rows: Vec<Vec<&str>> =
            page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split(" | ").collect())).collect();
        assert!(rows.len() > 10, "{rows:?}");
        for row in rows {
            let text = format!("{} {}", row[0], row[1]).replace('`', "");
            let error = format!("{:?}", Error::from_reply(&text));
            let kind = if judge(&text) == Step::Fail { error.split(' ').next() } else { Some("again") };
            let cell = if row[6] == "-" { "ServerRefused" } else { row[6].trim_matches('`') };
            assert_eq!(kind, Some(cell), "{text}");
        }
    }

    #[test]
    fn an_unknown_code_is_a_general_refusal_with_the_text() {
        let text = "NEWCODE that no client knows";
        let error = Error::from_reply(text);
        assert!(judge(text) == Step::Fail && matches!(error, Error::ServerRefused { .. }), "{error:?}");
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn the_cycle_of_a_deadlock_is_read() {
        let text = "DEADLOCK this wait would never end: 'ben' waits for 'left' and there for 'ann', \
                    'ann' waits for 'right' and there for 'ben'";
        let Error::Deadlock { cycle, .. } = Error::from_reply(text) else { panic!("{text}") };
        let found: Vec<_> =
            cycle.iter().map(|w| (w.owner.as_str(), w.name.as_str(), w.holder.as_str())).collect();
        assert_eq!(found, [("ben", "left", "ann"), ("ann", "right", "ben")]);
    }

    #[test]
    fn a_quarantine_says_how_long() {
        let error = Error::from_reply("QUARANTINE 4711 milliseconds are left in which");
        assert!(
            matches!(error, Error::Quarantine { left } if left == Duration::from_millis(4711)),
            "{error}"
        );
    }

    #[test]
    fn a_lease_that_is_too_long_is_told_with_its_range() {
        let text = "ERR PX must be an integer from 1 to 3600000 (milliseconds)";
        assert_eq!(
            Error::from_reply(text).of_lease(Duration::from_secs(7200), None).to_string(),
            "lease must be from 100ms to 3600s (the server's redislock.max-lease, \
             or its redislock.quarantine if that is set and shorter), not 7200s"
        );
    }

    #[test]
    fn a_missing_module_says_how_to_load_it() {
        let error = Error::from_reply("ERR unknown command 'LOCK.ACQUIRE', with args beginning with: ");
        assert!(error.to_string().contains("loadmodule"), "{error}");
        assert!(matches!(error, Error::ModuleMissing { .. }));
    }
}
