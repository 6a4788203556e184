//! Exit codes, and errors that end in one.

use std::fmt;
use std::process::ExitCode;

use redislock_client::{Error, Loss};

/// Exit codes in addition to the command's own, after `sysexits.h`, `timeout` and the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// A wrong option or argument.
    Usage = 64,
    /// No server that grants: unreachable, in quarantine, too few replicas, or its queue is full.
    Unavailable = 69,
    /// Another owner holds the lock.
    Busy = 75,
    /// The user may not log in, or may not run the commands.
    NotAllowed = 77,
    /// The server is not set up for the request: no module, another type or kind, a lease out of its range.
    Config = 78,
    /// The lock was lost while the command ran.
    Lost = 79,
    /// The command was ended by `--max-hold`.
    MaxHold = 124,
    /// The tool itself failed.
    Internal = 125,
    /// The command cannot be executed.
    CannotExecute = 126,
    /// The command was not found.
    NotFound = 127,
}

/// An error that ends the tool: what it prints, and its exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A mistake in an option or an argument.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// A failure of the tool or of the system below it.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Returns the code for an error reply, by its first word and its text.
pub fn code_of_reply(text: &str) -> Code {
    match text.split(' ').next().unwrap_or_default() {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => Code::NotAllowed,
        "DEADLOCK" => Code::Busy,
        "WRONGTYPE" | "LOCKKIND" | "MOVED" | "ASK" => Code::Config,
        "ERR" if is_refused_by_settings(text) => Code::Config,
        "ERR" if text.contains("password") || text.contains("AUTH") => Code::NotAllowed,
        _ => Code::Unavailable,
    }
}

fn is_refused_by_settings(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["unknown command", "must be an integer from", "may evict locks", "grants no lock any more", "db index"]
        .iter()
        .any(|part| text.contains(part))
}

/// Returns what a loss means, for people.
pub fn meaning(loss: Loss) -> String {
    let text = match loss {
        Loss::Deadline => "its lease expired before it could be renewed",
        Loss::Renewal => "the server did not renew it",
        Loss::Push => "another ended it, or a failover lost it",
        other => return other.to_string(),
    };
    text.to_owned()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let code = match &error {
            Error::LockTimeout { .. } | Error::Deadlock { .. } => Code::Busy,
            Error::LoginRefused { .. } => Code::NotAllowed,
            Error::LockKindMismatch { .. } | Error::ModuleMissing { .. } | Error::Invalid { .. } => {
                Code::Config
            }
            Error::ServerRefused { message, .. } => code_of_reply(message),
            _ => Code::Unavailable,
        };
        Self { code, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_code_has_the_exit_code_of_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/errors.md");
        let page = std::fs::read_to_string(page).expect("the table of error codes");
        let rows: Vec<Vec<&str>> =
            page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split(" | ").collect())).collect();
        assert!(rows.len() > 10, "{rows:?}");
        for row in rows {
            let text = format!("{} {}", row[0], row[1]).replace('`', "");
            let code = code_of_reply(&text);
            let cell = if code == Code::Unavailable { "-".to_owned() } else { (code as u8).to_string() };
            assert_eq!(format!("{cell} |"), row[9], "{text}");
        }
        assert_eq!(code_of_reply("NEWCODE that no client knows"), Code::Unavailable);
    }

    #[test]
    fn reply_codes_follow_the_table() {
        for (text, code) in [
            ("NOPERM User has no permissions", Code::NotAllowed),
            ("NOAUTH Authentication required.", Code::NotAllowed),
            ("WRONGPASS invalid username-password pair", Code::NotAllowed),
            ("ERR AUTH <password> called without any password configured", Code::NotAllowed),
            ("WRONGTYPE Operation against a key", Code::Config),
            ("ERR unknown command 'LOCK.ACQUIRE'", Code::Config),
            ("ERR PX must be an integer from 1 to 5000 (milliseconds)", Code::Config),
            ("ERR this server may evict locks: set", Code::Config),
            ("READONLY You can't write", Code::Unavailable),
            ("OOM command not allowed", Code::Unavailable),
        ] {
            assert_eq!(code_of_reply(text), code, "{text}");
        }
    }
}
