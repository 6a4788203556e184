//! The guard: a process with one thread that starts the command, and ends it and all that it left when its time has
//! come or when the tool has died.
//!
//! It is a child subreaper, so each process below the command stays below the guard, whatever session or group it is
//! in. The guard blocks all signals, and is in a group of its own: what ends the tool does not end the guard.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::{Pid, setpgid};

use crate::channel::{Cause, FRAME, Order, Report};
use crate::os::{Change, Inherited, next_change, now, send, spawn};
use crate::processes::descendants;
use crate::timing::Deadline;

/// The interval at which processes are searched for while they are being ended.
const TICK: Duration = Duration::from_millis(50);

/// The command that the guard starts, and the way to end it.
pub struct Plan {
    pub words: Vec<OsString>,
    pub name: OsString,
    pub owner: OsString,
    pub pause: Duration,
    pub leave_children: bool,
    pub takes_terminal: bool,
    pub inherited: Inherited,
}

/// Runs the guard until the tool has closed its end. It is called in the forked child with all signals blocked.
pub fn guard(plan: Plan, channel: UnixStream) -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)?;
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let guard = Guard {
        changes: SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
        timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?,
        plan,
        channel,
        phase: Phase::Idle,
        status: 0,
        lease: None,
        ladder: None,
        is_terminated: false,
        cause: Cause::Itself,
        is_open: true,
        are_asked_to_end: false,
    };
    guard.run()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was started.
    Idle,
    /// The command runs, and leads this group.
    Running(Pid),
    /// The command has ended, and left processes.
    Leftovers,
    /// Nothing is left.
    Done,
}

struct Guard {
    plan: Plan,
    channel: UnixStream,
    changes: SignalFd,
    timer: TimerFd,
    phase: Phase,
    status: i32,
    /// The deadline of the lease; `None` if the lease ends nothing.
    lease: Option<Deadline>,
    /// The deadline that an order or a first signal has set. Renewals do not move it.
    ladder: Option<Deadline>,
    is_terminated: bool,
    cause: Cause,
    /// True while the tool lives.
    is_open: bool,
    /// True once the processes left behind were sent SIGTERM.
    are_asked_to_end: bool,
}

impl Guard {
    fn run(mut self) -> io::Result<()> {
        while self.is_open || matches!(self.phase, Phase::Running(_) | Phase::Leftovers) {
            self.sleep()?;
            // Ignoring what was read: a signal only says that something has changed.
            while let Ok(Some(_)) = self.changes.read_signal() {}
            self.reap();
            self.enforce();
        }
        Ok(())
    }

    /// Sleeps until a process has changed, the tool says something, or the next moment has come.
    fn sleep(&mut self) -> io::Result<()> {
        match self.next_moment() {
            Some(at) => {
                // A moment of 0 would disarm the timer.
                let at = TimeSpec::from(at.max(Duration::from_nanos(1)));
                self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
            None => self.timer.unset()?,
        }
        let open = PollFlags::POLLIN;
        let mut watched =
            vec![PollFd::new(self.changes.as_fd(), open), PollFd::new(self.timer.as_fd(), open)];
        if self.is_open {
            watched.push(PollFd::new(self.channel.as_fd(), open));
        }
        poll(&mut watched, PollTimeout::NONE)?;
        let speaks = watched.get(2).is_some_and(|channel| channel.any().unwrap_or(true));
        drop(watched);
        if speaks {
            self.hear();
        }
        Ok(())
    }

    fn next_moment(&self) -> Option<Duration> {
        let is_ending = self.phase == Phase::Leftovers || self.ladder.is_some() || !self.is_open;
        let tick = (is_ending && self.phase != Phase::Done).then(|| now() + TICK);
        let deadline = self.lease.filter(|_| matches!(self.phase, Phase::Running(_)));
        let due = deadline.map(|lease| if self.is_terminated { lease.kill } else { lease.term });
        // A moment that is past comes at once, and so again and again: what it asks for is repeated by the tick.
        tick.into_iter().chain(due.filter(|at| *at > now() || tick.is_none())).min()
    }

    /// Takes the next order. An end of the pipe, or nonsense, counts as the death of the tool.
    fn hear(&mut self) {
        let mut bytes = [0; FRAME];
        let order = match self.channel.read_exact(&mut bytes) {
            Ok(()) => Order::of_frame(&bytes),
            Err(_) => None,
        };
        match order {
            Some(Order::Begin { token }) => self.begin(token),
            Some(Order::Extend(deadline)) => self.lease = Some(deadline),
            Some(Order::Terminate) => self.start_ladder(Cause::Order, now()),
            Some(Order::Kill) => {
                self.blame(Cause::Order);
                let now = now();
                self.ladder = Some(Deadline { term: now, kill: now });
            }
            Some(Order::Signal(signal)) => self.signal(signal),
            None => self.is_open = false,
        }
    }

    fn begin(&mut self, token: u64) {
        if self.phase != Phase::Idle {
            return;
        }
        if self.lease.is_some_and(|lease| now() >= lease.term) || self.ladder.is_some() {
            self.phase = Phase::Done;
            self.report(Report::TooLate);
            return;
        }
        let Some((program, words)) = self.plan.words.split_first() else { return };
        let mut command = Command::new(program);
        command.args(words);
        command.env("REDISLOCK_NAME", &self.plan.name).env("REDISLOCK_OWNER", &self.plan.owner);
        command.env("REDISLOCK_TOKEN", token.to_string());
        let started = spawn(&mut command, self.plan.inherited, self.plan.takes_terminal);
        let report = match started.map(|child| i32::try_from(child.id())) {
            Ok(Ok(group)) => {
                self.phase = Phase::Running(Pid::from_raw(group));
                // A reader of the command's output must see its end, and not wait for the guard's.
                drop(leave_standard_streams());
                Report::Began { group }
            }
            Ok(Err(_)) => Report::Failed { errno: libc::EOVERFLOW },
            Err(error) => {
                self.phase = Phase::Done;
                Report::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) }
            }
        };
        self.report(report);
    }

    /// Tells the tool. If that has died, the next look at the pipe shows it.
    fn report(&mut self, report: Report) {
        drop(self.channel.write_all(&report.to_frame()));
    }

    /// Remembers what ends the command, the first time.
    fn blame(&mut self, cause: Cause) {
        if self.cause == Cause::Itself {
            self.cause = cause;
        }
    }

    /// Sets the moments of SIGTERM and SIGKILL, unless they are set.
    fn start_ladder(&mut self, cause: Cause, from: Duration) {
        if self.ladder.is_none() {
            self.blame(cause);
            self.ladder = Some(Deadline { term: from, kill: from + self.plan.pause });
        }
    }

    /// Sends a signal to the group of the command, or to all that it left.
    fn signal(&mut self, signal: i32) {
        match self.phase {
            Phase::Running(group) => {
                let group = Pid::from_raw(-group.as_raw());
                send(group, signal);
                if signal == libc::SIGTERM {
                    send(group, libc::SIGCONT);
                }
            }
            Phase::Leftovers => self.signal_all(signal),
            Phase::Idle | Phase::Done => {}
        }
    }

    fn signal_all(&self, signal: i32) {
        for pid in descendants(None).unwrap_or_default() {
            send(pid, signal);
        }
    }

    /// Sees which processes have ended or stopped.
    fn reap(&mut self) {
        loop {
            match next_change(WaitPidFlag::WUNTRACED) {
                Change::Of(pid, status) if self.phase == Phase::Running(pid) => {
                    if libc::WIFSTOPPED(status) {
                        self.report(Report::Stopped { signal: libc::WSTOPSIG(status) });
                    } else {
                        self.command_ended(status);
                    }
                }
                Change::Of(..) => {}
                Change::None => return,
                Change::NoChild => {
                    if self.phase == Phase::Leftovers {
                        self.done();
                    }
                    return;
                }
            }
        }
    }

    fn command_ended(&mut self, status: i32) {
        self.status = status;
        if self.plan.leave_children {
            self.done();
            return;
        }
        self.phase = Phase::Leftovers;
    }

    fn done(&mut self) {
        self.phase = Phase::Done;
        self.report(Report::Ended { status: self.status, cause: self.cause });
    }

    /// Does what is due.
    fn enforce(&mut self) {
        let now = now();
        if !self.is_open {
            // The tool has died: all goes at once.
            self.kill_all();
            return;
        }
        match self.phase {
            Phase::Idle | Phase::Done => {}
            Phase::Leftovers => {
                if self.is_time_to_kill(now) {
                    self.kill_all();
                } else if !std::mem::replace(&mut self.are_asked_to_end, true) {
                    self.ask_all_to_end();
                    let kill = now + self.plan.pause;
                    let kill = self.ladder.map_or(kill, |ladder| ladder.kill.min(kill));
                    self.ladder = Some(Deadline { term: now, kill });
                }
            }
            Phase::Running(_) => {
                if self.is_time_to_kill(now) {
                    self.blame(Cause::Deadline);
                    self.kill_all();
                } else if !self.is_terminated && self.is_time_to_end(now) {
                    self.is_terminated = true;
                    self.start_ladder(Cause::Deadline, now);
                    self.signal(libc::SIGTERM);
                }
            }
        }
    }

    fn is_time_to_kill(&self, now: Duration) -> bool {
        [self.lease, self.ladder].into_iter().flatten().any(|deadline| now >= deadline.kill)
    }

    fn is_time_to_end(&self, now: Duration) -> bool {
        [self.lease, self.ladder].into_iter().flatten().any(|deadline| now >= deadline.term)
    }

    /// Sends SIGTERM to each process that was left. A process that one of them starts for its cleanup does
    /// not get it.
    fn ask_all_to_end(&mut self) {
        self.report(Report::Leftovers);
        for pid in descendants(None).unwrap_or_default() {
            send(pid, libc::SIGTERM);
            send(pid, libc::SIGCONT);
        }
    }

    /// Kills the group and then every descendant. Processes that they start meanwhile are found in the next
    /// round.
    fn kill_all(&self) {
        if let Phase::Running(group) = self.phase {
            send(Pid::from_raw(-group.as_raw()), libc::SIGKILL);
        }
        if matches!(self.phase, Phase::Running(_) | Phase::Leftovers) {
            self.signal_all(libc::SIGKILL);
        }
    }
}

/// Puts the null device in the place of the standard streams.
pub fn leave_standard_streams() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(())
}
