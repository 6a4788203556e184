//! The tool while it waits for the lock and holds it: renews, passes signals on, and sends the guard each new
//! deadline.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use redislock_client::{Error, Guard, Hold, Lock, Locks, Loss};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use crate::channel::{Cause, FRAME, Order, Report};
use crate::exit::{Code, Failure, meaning};
use crate::options::OnLoss;
use crate::os::{Change, next_change, now, send};
use crate::processes::descendants;
use crate::report::{Event, Level, Reporter};
use crate::run::{GuardProcess, Task, code_of_errno};
use crate::signals::Signals;
use crate::timing::{Deadline, next_lease};
use crate::values::shown;

/// Sleeps are cut to this: a timer pauses while the machine sleeps, and the clock of leases does not.
const NAP: Duration = Duration::from_secs(1);
/// Between two renewals that fail.
const RETRY: Duration = Duration::from_millis(250);
/// For how long the release, or what leaves a queue, is tried.
const FAREWELL: Duration = Duration::from_secs(2);
/// The shortest lease that the client asks for.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// Between two looks for processes, where the tool does the work of its guard.
const TICK: Duration = Duration::from_millis(20);

/// The outcome of the tool.
pub enum Outcome {
    Exit(u8),
    /// As the command did, or by a signal that came while it waited.
    Signal(i32),
    /// The lock was not granted.
    Refused(Error),
}

/// The way in which the command ended.
enum End {
    Status(i32, Cause),
    NotStarted(i32),
    TooLate,
    /// The guard has died, and the tool has ended the command.
    Unguarded,
}

type Renewal = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

pub struct Holder<'a> {
    task: &'a Task,
    reporter: &'a Reporter,
    label: String,
    guard: Pid,
    channel: UnixStream,
    terminal: Option<OwnedFd>,
    signals: Signals,
    /// The group of the command.
    group: Option<Pid>,
    may_stop: bool,
    token: Option<u64>,
}

impl<'a> Holder<'a> {
    pub fn new(task: &'a Task, reporter: &'a Reporter, guard: GuardProcess) -> io::Result<Self> {
        guard.channel.set_nonblocking(true)?;
        Ok(Self {
            task,
            reporter,
            label: task.label(),
            guard: guard.pid,
            channel: UnixStream::from_std(guard.channel)?,
            may_stop: guard.terminal.is_some(),
            terminal: guard.terminal,
            signals: Signals::listen()?,
            group: None,
            token: None,
        })
    }

    fn say(&self, level: Level, event: &str, reason: Option<String>, words: &str) {
        self.say_exit(level, event, reason, None, words);
    }

    fn say_exit(&self, level: Level, event: &str, reason: Option<String>, exit: Option<i32>, words: &str) {
        let (lock, owner) = (self.label.as_str(), Some(self.task.owner.as_str()));
        self.reporter.say(level, &Event { event, lock, token: self.token, owner, reason, exit }, words);
    }

    /// Takes the lock, has the command run, gives the lock up.
    pub async fn run(mut self, locks: &Locks, lock: &Lock) -> Result<Outcome, Failure> {
        let granted = {
            let acquiring = lock.acquire();
            tokio::pin!(acquiring);
            loop {
                tokio::select! {
                    biased;
                    signal = self.signals.next() => match signal {
                        libc::SIGCHLD => reap(),
                        libc::SIGWINCH => {}
                        // The default of this one stops the tool, which keeps no place in the queue then.
                        libc::SIGTSTP => raise(Signal::SIGSTOP).unwrap_or_default(),
                        signal => break Err(Outcome::Signal(signal)),
                    },
                    granted = &mut acquiring => break granted.map_err(Outcome::Refused),
                }
            }
        };
        let guard = match granted {
            Ok(guard) => guard,
            Err(outcome) => {
                // Leaves the queue, where the client stood in one.
                drop(timeout(FAREWELL, locks.close()).await);
                return Ok(outcome);
            }
        };
        self.token = Some(guard.token());
        self.say(Level::Detail, "granted", None, &format!("holds '{}', token {}", self.label, guard.token()));
        let mut hold = Held::new(guard.hold(), self.task);
        self.extend(&hold);
        self.order(Order::Begin { token: guard.token() });
        let end = self.hold(&mut hold).await;
        self.take_terminal_back();
        Ok(self.give_up(guard, hold, end).await)
    }

    /// Sends an order. If it does not fit, it is dropped: without it, the guard ends the command earlier, not
    /// later.
    fn order(&self, order: Order) {
        drop(self.channel.try_write(&order.to_frame()));
    }

    fn extend(&self, held: &Held) {
        if self.task.options.on_loss != OnLoss::Warn {
            self.order(Order::Extend(Deadline::new(held.deadline, self.task.pause)));
        }
    }

    /// Renews until the command has ended with all that it left.
    async fn hold(&mut self, held: &mut Held) -> End {
        let mut lost = Box::pin(held.hold.lost());
        let mut renewal: Option<Renewal> = None;
        loop {
            tokio::select! {
                biased;
                report = next_report(&self.channel) => match report {
                    Some(report) => if let Some(end) = self.hear(report, held) { return end },
                    None => {
                        self.replace_guard().await;
                        return End::Unguarded;
                    }
                },
                reason = &mut lost, if held.loss.is_none() => self.lost(held, reason),
                signal = self.signals.next() => self.pass_on(signal),
                () = held.until_longest() => {
                    held.is_over = true;
                    self.say(Level::Notice, "max-hold", None, &format!("'{}': --max-hold has passed", self.label));
                    self.order(Order::Terminate);
                }
                renewed = next_renewal(&mut renewal) => {
                    renewal = None;
                    self.renewed(held, renewed);
                }
                () = held.until_renewal(), if renewal.is_none() && held.loss.is_none() => {
                    if held.renew_at <= now() {
                        renewal = Some(held.renew());
                    }
                }
                () = sleep(TICK), if held.must_kill(self.task) => self.kill_beside_guard(),
            }
        }
    }

    fn hear(&mut self, report: Report, held: &Held) -> Option<End> {
        match report {
            Report::Began { group } => {
                self.group = Some(Pid::from_raw(group));
                self.say(Level::Detail, "began", None, &format!("runs the command as process {group}"));
            }
            Report::Stopped { .. } => self.stop(held),
            Report::Leftovers => {
                let words = "the command has ended; ends what it left";
                self.say(Level::Detail, "leftovers", None, words);
            }
            Report::Failed { errno } => return Some(End::NotStarted(errno)),
            Report::TooLate => return Some(End::TooLate),
            Report::Ended { status, cause } => return Some(End::Status(status, cause)),
        }
        None
    }

    fn lost(&self, held: &mut Held, reason: Option<Loss>) {
        let Some(reason) = reason else { return };
        held.loss = Some(reason);
        let what = match self.task.options.on_loss {
            OnLoss::Warn => "the command continues",
            OnLoss::Term | OnLoss::Kill => "ends the command",
        };
        let words = format!("lost '{}': {}; {what}", self.label, meaning(reason));
        self.say(Level::Notice, "lost", Some(reason.to_string()), &words);
        match self.task.options.on_loss {
            OnLoss::Term => self.order(Order::Terminate),
            OnLoss::Kill => self.order(Order::Kill),
            OnLoss::Warn => {}
        }
    }

    fn renewed(&self, held: &mut Held, renewed: Result<(), Error>) {
        match renewed {
            Ok(()) => {
                held.count();
                held.is_failing = false;
                self.extend(held);
                let left = shown(held.deadline.saturating_sub(now()));
                self.say(Level::Detail, "renewed", None, &format!("renewed '{}' for {left}", self.label));
            }
            Err(Error::LockLost { .. }) => held.renew_at = Duration::MAX,
            Err(error) => {
                held.renew_at = now() + RETRY;
                if !std::mem::replace(&mut held.is_failing, true) {
                    let words = format!("cannot renew '{}', tries again: {error}", self.label);
                    self.say(Level::Notice, "renewal-failed", Some(error.to_string()), &words);
                }
            }
        }
    }

    // Signals and the terminal.

    fn pass_on(&mut self, signal: i32) {
        match signal {
            libc::SIGCHLD => reap(),
            libc::SIGTSTP => {
                self.may_stop = true;
                self.order(Order::Signal(signal));
            }
            signal => self.order(Order::Signal(signal)),
        }
    }

    /// The command was stopped: the tool stops as well, so that the shell shows the job as stopped.
    fn stop(&self, held: &Held) {
        let left = shown(held.deadline.saturating_sub(now()));
        let words = format!("the command is stopped; without the tool '{}' is lost in {left}", self.label);
        self.say(Level::Notice, "stopped", None, &words);
        if !self.may_stop {
            return;
        }
        self.reporter.flush();
        self.take_terminal_back();
        raise(Signal::SIGSTOP).unwrap_or_default();
        // Continued, in the foreground or not.
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group)
            && tcgetpgrp(terminal).is_ok_and(|front| front == getpgrp())
        {
            tcsetpgrp(terminal, group).ok();
        }
        self.order(Order::Signal(libc::SIGCONT));
    }

    /// Makes the tool's group the foreground again, if the command's is.
    fn take_terminal_back(&self) {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group)
            && tcgetpgrp(terminal).is_ok_and(|front| front == group)
        {
            tcsetpgrp(terminal, getpgrp()).ok();
        }
    }

    // In the place of the guard.

    /// The deadline has passed, and the guard has reported no end: it may be stopped.
    fn kill_beside_guard(&self) {
        send(self.guard, libc::SIGCONT);
        for pid in descendants(Some(self.guard)).unwrap_or_default() {
            send(pid, libc::SIGKILL);
        }
    }

    /// The guard has died, and its descendants now belong to the tool: kills all of them.
    async fn replace_guard(&self) {
        self.say(Level::Error, "guard-died", None, "the guard has died: kills the command");
        loop {
            if let Some(group) = self.group {
                send(Pid::from_raw(-group.as_raw()), libc::SIGKILL);
            }
            for pid in descendants(None).unwrap_or_default() {
                send(pid, libc::SIGKILL);
            }
            loop {
                match next_change(WaitPidFlag::empty()) {
                    Change::Of(..) => {}
                    Change::None => break,
                    Change::NoChild => return,
                }
            }
            sleep(TICK).await;
        }
    }

    // The end.

    async fn give_up(&self, guard: Guard, held: Held, end: End) -> Outcome {
        let warns = self.task.options.on_loss == OnLoss::Warn;
        let is_late = matches!(end, End::TooLate | End::Status(_, Cause::Deadline));
        let mut is_lost = held.loss.is_some() || is_late;
        let started = !matches!(end, End::NotStarted(_) | End::TooLate);
        if held.loss.is_none() {
            is_lost |= self.release(guard, &held, started).await;
        } else {
            // The hold ends with its lease. A release would cut the rest of --min-hold.
            std::mem::forget(guard);
        }
        let outcome = match end {
            _ if is_lost && !warns => Outcome::Exit(Code::Lost as u8),
            End::Status(..) if held.is_over => Outcome::Exit(Code::MaxHold as u8),
            End::Status(status, _) if libc::WIFSIGNALED(status) => Outcome::Signal(libc::WTERMSIG(status)),
            End::Status(status, _) => Outcome::Exit(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(255)),
            End::NotStarted(errno) => {
                let program = self.task.command.first().map(|word| word.to_string_lossy());
                let error = io::Error::from_raw_os_error(errno);
                let words = format!("cannot run '{}': {error}", program.unwrap_or_default());
                self.say(Level::Error, "error", Some(error.to_string()), &words);
                Outcome::Exit(code_of_errno(errno) as u8)
            }
            End::TooLate => Outcome::Exit(Code::Lost as u8),
            End::Unguarded => Outcome::Exit(Code::Internal as u8),
        };
        if is_late {
            let words = format!("'{}' could not be renewed in time: the command was ended", self.label);
            self.say(Level::Notice, "ended", Some("deadline".to_owned()), &words);
        }
        let exit = match outcome {
            Outcome::Exit(code) => i32::from(code),
            Outcome::Signal(signal) => 128 + signal,
            Outcome::Refused(_) => i32::from(Code::Unavailable as u8),
        };
        self.say_exit(Level::Detail, "exit", None, Some(exit), &format!("exits with {exit}"));
        outcome
    }

    /// Gives the lock up, or keeps it for the rest of `--min-hold`. Returns whether it was lost before.
    async fn release(&self, guard: Guard, held: &Held, started: bool) -> bool {
        let left = guard.remaining();
        let rest = if started { held.rest(self.task) } else { Duration::ZERO };
        let done = async {
            if rest.is_zero() {
                guard.release().await
            } else {
                let kept = guard.extend(rest.max(SHORTEST_LEASE)).await;
                // The server ends it: the client must not.
                std::mem::forget(guard);
                kept
            }
        };
        let (event, words, reason) = match timeout(FAREWELL, done).await {
            Ok(Ok(())) if rest.is_zero() => {
                self.say(Level::Detail, "released", None, &format!("released '{}'", self.label));
                return false;
            }
            Ok(Ok(())) => {
                let words = format!("'{}' stays taken for {} (--min-hold)", self.label, shown(rest));
                self.say(Level::Detail, "kept", None, &words);
                return false;
            }
            Ok(Err(Error::LockLost { .. })) => {
                let words = format!("lost '{}' before its release", self.label);
                self.say(Level::Notice, "lost", Some(Loss::Release.to_string()), &words);
                return true;
            }
            Ok(Err(error)) => ("unreleased", error.to_string(), Some(error.to_string())),
            Err(_) => ("unreleased", "no server answered".to_owned(), None),
        };
        let words = format!(
            "the release of '{}' failed ({words}); it may stay taken for {}",
            self.label,
            shown(left)
        );
        self.say(Level::Notice, event, reason, &words);
        false
    }
}

/// The hold, and its deadline.
struct Held {
    hold: Hold,
    lease: Duration,
    min_hold: Duration,
    granted_at: Duration,
    longest_at: Option<Duration>,
    /// When the hold is no longer sure.
    deadline: Duration,
    renew_at: Duration,
    loss: Option<Loss>,
    is_failing: bool,
    /// True once `--max-hold` has passed.
    is_over: bool,
}

impl Held {
    fn new(hold: Hold, task: &Task) -> Self {
        let granted_at = now();
        let mut held = Self {
            hold,
            lease: task.options.lease,
            min_hold: task.options.min_hold,
            granted_at,
            longest_at: task.options.max_hold.map(|most| granted_at + most),
            deadline: Duration::ZERO,
            renew_at: Duration::ZERO,
            loss: None,
            is_failing: false,
            is_over: false,
        };
        held.count();
        held
    }

    /// Reads how long the hold is sure, and renews when a third of that has passed.
    fn count(&mut self) {
        // In this order the moment is never later than the client's own.
        let now = now();
        let left = self.hold.remaining();
        self.deadline = now + left;
        self.renew_at = now + left / 3;
    }

    /// Returns the rest of `--min-hold`.
    fn rest(&self, task: &Task) -> Duration {
        (self.granted_at + task.options.min_hold).saturating_sub(now())
    }

    fn renew(&self) -> Renewal {
        let (hold, rest) = (self.hold.clone(), (self.granted_at + self.min_hold).saturating_sub(now()));
        let lease = next_lease(self.lease, rest);
        Box::pin(async move { hold.extend(lease).await })
    }

    async fn until_renewal(&self) {
        sleep(self.renew_at.saturating_sub(now()).min(NAP)).await;
    }

    async fn until_longest(&self) {
        match self.longest_at.filter(|_| !self.is_over) {
            Some(at) => {
                while at > now() {
                    sleep(at.saturating_sub(now()).min(NAP)).await;
                }
            }
            None => pending().await,
        }
    }

    /// Returns true if all processes should be dead by now.
    fn must_kill(&self, task: &Task) -> bool {
        task.options.on_loss != OnLoss::Warn && self.loss == Some(Loss::Deadline)
    }
}

async fn next_renewal(renewal: &mut Option<Renewal>) -> Result<(), Error> {
    match renewal {
        Some(renewal) => renewal.await,
        None => pending().await,
    }
}

/// The next report of the guard; `None` if it has died.
async fn next_report(channel: &UnixStream) -> Option<Report> {
    let mut bytes = [0; FRAME];
    loop {
        channel.ready(Interest::READABLE).await.ok()?;
        match channel.try_read(&mut bytes) {
            // A frame is written at once, and so read at once.
            Ok(FRAME) => return Report::of_frame(&bytes),
            Ok(_) => return None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Reaps what ends below the tool, as the first process of a container has to.
fn reap() {
    while let Change::Of(..) = next_change(WaitPidFlag::empty()) {}
}
