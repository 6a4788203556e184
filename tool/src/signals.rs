//! The signals that the tool passes on.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};

use crate::os::is_ignored;

/// The signals that are passed on to the command, and SIGCHLD.
const SIGNALS: [Signal; 9] = [
    Signal::SIGCHLD,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGTSTP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];
/// The number of signals of one kind that may wait: they merge anyway.
const WAITING: usize = 16;

/// The signals that have come, by their numbers.
pub struct Signals {
    come: Receiver<i32>,
}

impl Signals {
    /// Listens to all but those that are ignored already, as below nohup.
    pub fn listen() -> io::Result<Self> {
        let (sender, come) = channel(WAITING);
        for kind in SIGNALS.into_iter().filter(|kind| *kind == Signal::SIGCHLD || !is_ignored(*kind)) {
            let number = kind as i32;
            let (mut source, sender) = (signal(SignalKind::from_raw(number))?, sender.clone());
            tokio::spawn(async move {
                while source.recv().await.is_some() && sender.send(number).await.is_ok() {}
            });
        }
        Ok(Self { come })
    }

    /// The next one. It can be dropped at any moment, and then loses none.
    pub async fn next(&mut self) -> i32 {
        match self.come.recv().await {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }
}
