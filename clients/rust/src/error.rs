//! What can go wrong.

use std::fmt;
use std::time::Duration;

use crate::rules::longest_lease;
use crate::wanted::SHORTEST_LEASE;

/// What noticed that a hold is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended before the server could be asked.
    Deadline,
    /// A renewal was answered with no.
    Renewal,
    /// The server told of it.
    Push,
    /// It was over already when its holder gave it up.
    Release,
    /// Its [`Locks`](crate::Locks) were closed.
    Close,
}

impl Loss {
    /// A word for it: `deadline`, `renewal`, `push`, `release` or `close`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Renewal => "renewal",
            Self::Push => "push",
            Self::Release => "release",
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
pub struct Wait {
    /// The owner that waits,
    pub owner: String,
    /// for which lock,
    pub name: String,
    /// and there for whom.
    pub holder: String,
}

/// What can go wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The lock was not to be had in time.
    LockTimeout {
        /// The name of the lock, or the names of all.
        name: String,
        /// How long the caller would have waited.
        wait: Duration,
    },
    /// The hold is over, though its holder did not give it up.
    LockLost {
        /// The name of the lock, or the names of all.
        name: String,
        /// What noticed.
        reason: Loss,
    },
    /// The wait would never end: the owners that it waits for wait, in turn, for this owner.
    Deadlock {
        /// It says who waits for which lock, and there for whom.
        cycle: Vec<Wait>,
        /// What the server said.
        message: String,
    },
    /// The fencing token is not that of a live hold of the lock.
    Fenced {
        /// The name of the lock.
        name: String,
        /// The token.
        token: u64,
    },
    /// The lock is of another kind now: exclusive or shared, or a semaphore with another limit.
    LockKindMismatch {
        /// What the server said.
        message: String,
    },
    /// Too many wait already.
    QueueFull {
        /// What the server said.
        message: String,
    },
    /// The server grants no new lock yet: it may have lost some.
    Quarantine {
        /// For how long it will grant none.
        left: Duration,
    },
    /// Too few replicas have confirmed the grant, which was undone.
    NotConfirmed {
        /// What the server said.
        message: String,
    },
    /// The server does not know the commands.
    ModuleMissing {
        /// What the server said, and how to load the module.
        message: String,
    },
    /// No server answered in time.
    ConnectionFailed {
        /// What happened last.
        message: String,
    },
    /// The locks were closed.
    Closed,
    /// The server refused the request, for a reason that has no variant of its own.
    Refused {
        /// What the server said.
        message: String,
    },
    /// The request makes no sense: nothing was taken.
    Invalid {
        /// Why.
        message: String,
    },
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    pub(crate) fn connection(message: impl fmt::Display) -> Self {
        Self::ConnectionFailed { message: message.to_string() }
    }

    /// Whether it says that a server has refused a request, and has granted nothing for it.
    pub(crate) const fn granted_nothing(&self) -> bool {
        matches!(
            self,
            Self::Deadlock { .. }
                | Self::Fenced { .. }
                | Self::LockKindMismatch { .. }
                | Self::QueueFull { .. }
                | Self::Quarantine { .. }
                | Self::Refused { .. }
        )
    }

    /// The error that this reply of the server is.
    pub(crate) fn from_reply(text: &str) -> Self {
        let message = text.to_owned();
        let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
        match code {
            "DEADLOCK" => Self::Deadlock { cycle: cycle(rest), message },
            "LOCKKIND" => Self::LockKindMismatch { message },
            "LOCKQUEUE" => Self::QueueFull { message },
            "NOREPLICAS" => Self::NotConfirmed { message },
            "QUARANTINE" => {
                let left = rest.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default();
                Self::Quarantine { left: Duration::from_millis(left) }
            }
            "ERR" if rest.to_ascii_lowercase().starts_with("unknown command") => Self::ModuleMissing {
                // What follows are the words of the request.
                message: format!(
                    "{}. The module redislock is not loaded on this server: start it with \
                     `loadmodule /path/to/libredislock.so` in its configuration, or MODULE LOAD it once.",
                    message.split(", with args").next().unwrap_or_default()
                ),
            },
            "MOVED" => Self::Refused {
                message: format!(
                    "{message}: this server is a node of a cluster: Locks::builder().cluster([..])"
                ),
            },
            "NOAUTH" => Self::Refused {
                message: "NOAUTH this server wants a password, and its address names none: \
                          redis://:password@host:port"
                    .to_owned(),
            },
            _ => Self::Refused { message },
        }
    }

    /// Translates an error of a request with this lease: the server says in other words which leases are too long.
    pub(crate) fn of_lease(self, lease: Duration) -> Self {
        let Self::Refused { message } = &self else { return self };
        let Some(most) = longest_lease(message) else { return self };
        // The error does not tell which of the two it is.
        let bound =
            "redislock.max-lease of the server, or its redislock.quarantine if that is set and shorter";
        Self::invalid(format!("lease must be from {SHORTEST_LEASE:?} to {most:?} ({bound}), not {lease:?}"))
    }

    /// What happened, without the words for the kind of error.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::ConnectionFailed { message } => message.clone(),
            other => other.to_string(),
        }
    }

    /// Whether it may well be over by itself: a request that can wait tries again.
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

    /// Whether another value was written over the lock, and so nobody holds it.
    pub(crate) fn is_overwritten(&self) -> bool {
        matches!(self, Self::Refused { message } if message.starts_with("WRONGTYPE"))
    }

    /// Whether the server refused it: another request would be answered likewise.
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
                write!(f, "{name} is held by another, and the request was not to wait")
            }
            Self::LockTimeout { name, wait } => write!(f, "{name} was not to be had in {wait:?}"),
            Self::LockLost { name, reason } => write!(f, "the lock {name} is held no more ({reason})"),
            Self::Fenced { name, token } => {
                write!(f, "the token {token} is not that of a live hold of {name}")
            }
            Self::Quarantine { left } => write!(f, "the server grants no new lock for another {left:?}"),
            Self::ConnectionFailed { message } => write!(f, "no server answered in time: {message}"),
            Self::Closed => f.write_str("these locks were closed"),
            Self::Deadlock { message, .. }
            | Self::LockKindMismatch { message }
            | Self::QueueFull { message }
            | Self::NotConfirmed { message }
            | Self::ModuleMissing { message }
            | Self::Refused { message }
            | Self::Invalid { message } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

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
            Error::from_reply(text).of_lease(Duration::from_secs(7200)).to_string(),
            "lease must be from 100ms to 3600s (redislock.max-lease of the server, \
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
