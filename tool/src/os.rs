//! The only unsafe code: forking, what runs between fork and exec, and dying by a signal.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::wait::WaitPidFlag;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork, getpid, tcsetpgrp};

/// The time since the boot of the machine, also while it slept.
pub fn now() -> Duration {
    // The clock exists on every Linux that this runs on; 0 would let no command begin.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Blocks all signals; returns the mask from before.
pub fn block_signals() -> nix::Result<SigSet> {
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    Ok(before)
}

/// Restores the default action of SIGCHLD; returns whether it was ignored. Then no child could be waited for.
pub fn wait_for_children() -> bool {
    let was_ignored = is_ignored(Signal::SIGCHLD);
    if was_ignored {
        // SAFETY: the default action runs no code of this process.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    was_ignored
}

/// Forks. Returns `None` in the child.
pub fn fork_guard() -> nix::Result<Option<Pid>> {
    // SAFETY: this process has a single thread: it is called before any runtime or thread starts. So no lock can be
    // held by a thread that the child lacks, and the child may use all of the library.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// The signal state that a command inherits from the process that started the tool.
#[derive(Clone, Copy)]
pub struct Inherited {
    /// The signals that are blocked.
    pub mask: SigSet,
    pub ignores_children: bool,
}

/// Starts a command as the leader of a process group, with these signals, and in the foreground of its terminal if it
/// takes that.
pub fn spawn(command: &mut Command, inherited: Inherited, takes_terminal: bool) -> io::Result<Child> {
    command.process_group(0);
    let prepare = move || {
        if takes_terminal {
            // SIGTTOU is blocked here. Without the terminal the command runs in the background.
            tcsetpgrp(io::stdin(), getpid()).ok();
        }
        if inherited.ignores_children {
            // SAFETY: ignoring a signal runs no code of this process, and is allowed between fork and exec.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        }
        inherited.mask.thread_set_mask().map_err(io::Error::from)
    };
    // SAFETY: the closure runs between fork and exec in a process with one thread. It makes system calls, and neither
    // allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Returns true if this process ignores the signal, as under nohup.
pub fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one, to memory of the right size and alignment. All
    // of it is zeroed before, which is a valid value.
    unsafe {
        libc::sigaction(signal as libc::c_int, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Ends this process by the signal that ended the command. Returns the exit code of a shell, where the signal does not
/// end it, as in the first process of a container.
pub fn die_by(signal: i32) -> u8 {
    // A core dump would be one of this process, not of the command.
    nix::sys::prctl::set_dumpable(false).ok();
    // SAFETY: restoring the default action runs no code of this process. The mask is a zeroed set, which is valid, and
    // is filled before it is used. raise has no conditions.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(mask.as_mut_ptr());
        libc::sigaddset(mask.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, mask.as_ptr(), std::ptr::null_mut());
        libc::raise(signal);
    }
    u8::try_from(128 + (signal & 0x7f)).unwrap_or(255)
}

/// Sends any signal by its number, real-time signals too. A negative id names a process group.
///
/// It does nothing where the process has ended meanwhile, or has become another user.
pub fn send(pid: Pid, signal: i32) {
    // SAFETY: kill takes plain numbers and has no conditions.
    unsafe { libc::kill(pid.as_raw(), signal) };
}

/// A child that changed, and its status as waitpid gives it.
pub enum Change {
    Of(Pid, i32),
    /// No child has changed.
    None,
    /// There is no child.
    NoChild,
}

/// Takes the next change of any child. The status stays a plain number, for it may name a real-time signal.
pub fn next_change(flags: WaitPidFlag) -> Change {
    let mut status = 0;
    // SAFETY: the call writes one integer, which lives until it returns.
    match unsafe { libc::waitpid(-1, &raw mut status, flags.bits() | libc::WNOHANG) } {
        0 => Change::None,
        pid if pid > 0 => Change::Of(Pid::from_raw(pid), status),
        _ => Change::NoChild,
    }
}
