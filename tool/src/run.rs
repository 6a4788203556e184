//! `redislock run`: forks the guard, takes the lock, and lets the guard run the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use redislock_client::{Error, Lock, Locks};

use crate::exit::{Code, Failure};
use crate::guard::{Plan, guard};
use crate::holder::{Holder, Outcome};
use crate::options::{OnBusy, Run};
use crate::report::{Event, Level, Reporter, Voice};
use crate::show::Shown;
use crate::target::Place;
use crate::timing::{next_lease, pause};
use crate::{nodes, os, values};

/// The longest owner that a server takes.
const LONGEST_OWNER: usize = 256;

/// The checked request.
pub struct Task {
    pub options: Run,
    pub name: OsString,
    pub command: Vec<OsString>,
    pub owner: String,
    pub pause: Duration,
}

impl Task {
    pub fn new(options: Run) -> Result<Self, Failure> {
        let (name, command) = split(&options.words)?;
        let mut key = options.prefix.clone();
        key.push(name);
        let pause = pause(options.kill_after, options.lease);
        let owner = owner(options.label.as_deref());
        Ok(Self { name: key, command: command.to_vec(), owner, pause, options })
    }

    /// The name of the lock for people.
    pub fn label(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn lock(&self, locks: &Locks) -> Lock {
        let (key, options) = (self.name.as_bytes(), &self.options);
        let lock = match (options.semaphore, options.shared) {
            (Some(limit), _) => locks.semaphore(key, limit),
            (None, true) => locks.read(key),
            (None, false) => locks.lock(key),
        };
        let lock = lock.owner(&self.owner).renew(false).lease(next_lease(options.lease, options.min_hold));
        match options.wait.limit() {
            Some(wait) => lock.wait(wait),
            None => lock,
        }
    }

    fn voice(&self) -> Voice {
        let level = match (self.options.quiet, self.options.verbose) {
            (true, _) => Level::Error,
            (_, true) => Level::Detail,
            _ => Level::Notice,
        };
        // A reader of events gets all of them.
        let level = if self.options.json && !self.options.quiet { Level::Detail } else { level };
        Voice { level, is_json: self.options.json }
    }
}

/// Splits the words after the options.
fn split(words: &[OsString]) -> Result<(&OsStr, &[OsString]), Failure> {
    const FORM: &str = "redislock run [OPTIONS] NAME [--] COMMAND [ARG...]";
    let Some((name, command)) = words.split_first() else {
        return Err(Failure::usage(format!("NAME: expected {FORM}")));
    };
    if name.is_empty() {
        return Err(Failure::usage("NAME: expected the name of a lock, not an empty word"));
    }
    if name.as_bytes().starts_with(b"-") {
        let option = name.to_string_lossy();
        return Err(Failure::usage(format!("{option}: no such option; expected {FORM}")));
    }
    let command = match command.split_first() {
        Some((dashes, rest)) if dashes == "--" => rest,
        Some((option, _)) if option.as_bytes().starts_with(b"-") => {
            let option = option.to_string_lossy();
            return Err(Failure::usage(format!("{option}: options stand before NAME; expected {FORM}")));
        }
        _ => command,
    };
    match command.first() {
        Some(program) if !program.is_empty() => Ok((name, command)),
        _ => Err(Failure::usage(format!("COMMAND: expected a command behind NAME: {FORM}"))),
    }
}

/// Returns a new, unique owner, which names the machine, the process, and the label.
fn owner(label: Option<&str>) -> String {
    let host = nix::unistd::gethostname().map(OsString::into_vec).unwrap_or_default();
    let host = String::from_utf8_lossy(&host).into_owned();
    let label = label.map(|label| format!("{label}:")).unwrap_or_default();
    let rest = format!(":{}:{label}{}", std::process::id(), uuid::Uuid::new_v4());
    let room = LONGEST_OWNER.saturating_sub(rest.len());
    let host: String = host.chars().filter(char::is_ascii_graphic).take(room).collect();
    host + &rest
}

/// The guard, as the tool sees it.
pub struct GuardProcess {
    pub pid: Pid,
    pub channel: UnixStream,
    /// The terminal, if the command gets it.
    pub terminal: Option<OwnedFd>,
}

/// Forks the guard; it never returns there.
fn start_guard(task: &Task) -> io::Result<GuardProcess> {
    let mask = os::block_signals()?;
    let inherited = os::Inherited { mask, ignores_children: os::wait_for_children() };
    nix::sys::prctl::set_child_subreaper(true)?;
    let (ours, theirs) = UnixStream::pair()?;
    let stdin = io::stdin();
    let takes_terminal = stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| group == getpgrp());
    let terminal = takes_terminal.then(|| stdin.as_fd().try_clone_to_owned()).transpose()?;
    let Some(pid) = os::fork_guard()? else {
        drop((ours, terminal));
        let plan = Plan {
            words: task.command.clone(),
            name: task.name.clone(),
            owner: task.owner.clone().into(),
            pause: task.pause,
            leave_children: task.options.leave_children,
            takes_terminal,
            inherited,
        };
        exit(i32::from(guard(plan, theirs).is_err()));
    };
    drop(theirs);
    let mut mask = mask;
    // The tool may put another group into the foreground while it is in the background itself.
    mask.add(Signal::SIGTTOU);
    SigSet::thread_set_mask(&mask)?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok(GuardProcess { pid, channel: ours, terminal })
}

/// Runs the command. Returns the exit code of the tool, unless it dies by a signal.
pub fn run(options: Run, is_from_environment: bool) -> Result<u8, Failure> {
    let task = Task::new(options)?;
    let place = Place::of(&task.options.server, is_from_environment)?;
    let locks = place.locks()?;
    let system = |error: io::Error| Failure::internal(error.to_string());
    let guard = start_guard(&task).map_err(system)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
    let reporter = Reporter::start(task.voice()).map_err(system)?;
    let outcome = runtime.block_on(async {
        let lock = task.lock(&locks);
        Holder::new(&task, &reporter, guard).map_err(system)?.run(&locks, &lock).await
    });
    let code = match outcome {
        Ok(Outcome::Exit(code)) => code,
        Ok(Outcome::Signal(signal)) => {
            reporter.flush();
            os::die_by(signal)
        }
        Ok(Outcome::Refused(error)) => refused(&task, &place, &reporter, error),
        Err(failure) => {
            say_failure(&task, &reporter, &failure);
            failure.code as u8
        }
    };
    reporter.flush();
    Ok(code)
}

/// Says why the lock was not granted.
fn refused(task: &Task, place: &Place, reporter: &Reporter, error: Error) -> u8 {
    if !matches!(error, Error::LockTimeout { .. }) {
        let mut failure = Failure::from(error);
        if let Some(rest) = failure.message.strip_prefix("lease must be ") {
            let is_hold = task.options.min_hold > task.options.lease;
            failure.message = format!("{} must be {rest}", if is_hold { "--min-hold" } else { "--lease" });
        }
        say_failure(task, reporter, &failure);
        return failure.code as u8;
    }
    if task.options.on_busy == OnBusy::Skip {
        return 0;
    }
    let (label, code) = (task.label(), task.options.busy_code);
    // The end of the guard would interrupt a read that has a time-out.
    os::block_signals().unwrap_or(SigSet::empty());
    let shown = nodes::ask_for(place, &nodes::lock_command("LOCK.INFO", task.name.as_bytes()));
    let unknown = shown.as_ref().err().map(|failure| format!("; cannot ask by whom: {failure}"));
    let shown = shown.ok().and_then(|value| Shown::of(task.name.as_bytes(), value));
    let holder = shown.as_ref().and_then(|shown| shown.holders.first());
    let words = match holder {
        Some(holder) => {
            let held = values::shown(Duration::from_millis(holder.held_ms));
            format!("'{label}' is held by {} for {held}, token {}", holder.owner, holder.token)
        }
        None => format!("'{label}' was held by another{}", unknown.unwrap_or_default()),
    };
    let event = Event {
        event: "busy",
        lock: &label,
        token: holder.map(|holder| holder.token),
        owner: holder.map(|holder| holder.owner.as_str()),
        exit: Some(i32::from(code)),
        ..Event::default()
    };
    reporter.say(Level::Notice, &event, &words);
    code
}

fn say_failure(task: &Task, reporter: &Reporter, failure: &Failure) {
    let lock = task.label();
    let (reason, exit) = (Some(failure.message.clone()), Some(failure.code as i32));
    let event = Event { event: "error", lock: &lock, owner: Some(&task.owner), reason, exit, token: None };
    reporter.say(Level::Error, &event, &failure.message);
}

/// The code for a command that could not be started.
pub fn code_of_errno(errno: i32) -> Code {
    if errno == libc::ENOENT { Code::NotFound } else { Code::CannotExecute }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn everything_behind_the_name_is_the_command() {
        for (text, command) in [
            ("k true", "true"),
            ("k -- true --wait 5s", "true --wait 5s"),
            ("k -- -odd", "-odd"),
            ("k sh -c --", "sh -c --"),
            ("k -- -- x", "-- x"),
        ] {
            let words_of = words(text);
            let (name, found) = split(&words_of).unwrap();
            assert_eq!((name, found.to_vec()), (OsStr::new("k"), words(command)), "{text}");
        }
    }

    #[test]
    fn a_missing_name_or_command_is_refused() {
        for (text, part) in [
            ("k", "COMMAND: "),
            ("k --", "COMMAND: "),
            ("k --wait 5s true", "--wait: options stand before NAME"),
            ("--odd k true", "--odd: no such option"),
            (" true", "NAME: "),
        ] {
            let message = split(&words(text)).unwrap_err().message;
            assert!(message.starts_with(part), "{text}: {message}");
        }
        assert!(split(&[]).is_err());
    }

    #[test]
    fn owners_differ_and_carry_the_label() {
        let (one, other) = (owner(Some("nightly")), owner(Some("nightly")));
        assert!(one != other && one.contains(":nightly:") && one.len() <= LONGEST_OWNER);
        assert!(owner(None).contains(&format!(":{}:", std::process::id())));
    }
}
