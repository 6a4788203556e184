//! Elections: whoever holds the lock leads.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::error::{Error, Loss};
use crate::hold::{Guard, Hold};
use crate::link::lock;
use crate::lock::Lock;
use crate::rules::LONGEST_PAUSE;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type OnElected = Box<dyn Fn(Hold) -> Work + Send + Sync>;
type OnDeposed = Box<dyn Fn(Loss) + Send + Sync>;

/// A candidate: who [stands](Self::stand) for election.
#[must_use = "it does nothing until it stands"]
pub struct Candidate {
    lock: Lock,
    on_elected: OnElected,
    on_deposed: OnDeposed,
}

impl Candidate {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock, on_elected: Box::new(|_| Box::pin(async {})), on_deposed: Box::new(|_| {}) }
    }

    /// How long the server takes it for the leader without having heard of it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lock = self.lock.lease(lease);
        self
    }

    /// What it does as the leader. The work is dropped when it leads no more.
    ///
    /// The work may be done several times, so it owns what it uses:
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # fn work_of(locks: redislock_client::Locks) {
    /// let terms = std::sync::Arc::new(AtomicU64::new(0));
    /// let candidate = locks.leader("nightly-job").on_elected(move |hold| {
    ///     let terms = terms.clone();
    ///     async move {
    ///         terms.fetch_max(hold.token(), Ordering::Relaxed);
    ///     }
    /// });
    /// # }
    /// ```
    ///
    /// An `async move |hold|` closure does not do if it uses variables from outside: its future borrows them, and stable
    /// Rust cannot ask that such a future may go to another thread.
    pub fn on_elected<F, Fut>(mut self, work: F) -> Self
    where
        F: Fn(Hold) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.on_elected = Box::new(move |hold| Box::pin(work(hold)));
        self
    }

    /// What is called when it was deposed: not when it resigned. It stands again then.
    pub fn on_deposed(mut self, call: impl Fn(Loss) + Send + Sync + 'static) -> Self {
        self.on_deposed = Box::new(call);
        self
    }

    /// Stands for election in the background, until it [resigns](Leader::resign).
    pub fn stand(self) -> Leader {
        let (resigned, hold) = (watch::Sender::new(false), Arc::new(Mutex::new(None)));
        let task = tokio::spawn(self.campaign(resigned.subscribe(), hold.clone()));
        Leader { resigned, hold, task }
    }

    async fn campaign(self, mut resigned: watch::Receiver<bool>, shown: Arc<Mutex<Option<Hold>>>) {
        loop {
            let elected = tokio::select! {
                biased;
                () = until(&mut resigned) => return,
                elected = self.lock.acquire() => elected,
            };
            match elected {
                Ok(guard) => {
                    *lock(&shown) = Some(guard.hold());
                    let goes_on = self.lead(guard, &mut resigned).await;
                    *lock(&shown) = None;
                    if !goes_on {
                        return;
                    }
                }
                Err(Error::Closed | Error::Invalid { .. }) => return,
                Err(_) => sleep(LONGEST_PAUSE).await,
            }
        }
    }

    /// Leads until it is deposed; false if it has resigned.
    async fn lead(&self, guard: Guard, resigned: &mut watch::Receiver<bool>) -> bool {
        let work = async {
            (self.on_elected)(guard.hold()).await;
            pending::<()>().await;
        };
        let loss = tokio::select! {
            biased;
            () = until(resigned) => None,
            loss = guard.lost() => loss,
            () = work => None,
        };
        match loss {
            Some(loss) => (self.on_deposed)(loss),
            // It leads no more either way: what no server has answered goes on in the background.
            None => drop(guard.release().await),
        }
        loss.is_some()
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// Waits until it has resigned, or is dropped.
async fn until(resigned: &mut watch::Receiver<bool>) {
    drop(resigned.wait_for(|resigned| *resigned).await);
}

/// Stands for election, and leads while it holds the lock. When this is dropped it resigns in the background.
#[must_use = "it resigns when this is dropped"]
#[derive(Debug)]
pub struct Leader {
    resigned: watch::Sender<bool>,
    hold: Arc<Mutex<Option<Hold>>>,
    task: JoinHandle<()>,
}

impl Leader {
    /// The hold by which it leads now.
    pub fn hold(&self) -> Option<Hold> {
        lock(&self.hold).clone().filter(|hold| hold.check().is_ok())
    }

    /// Whether it leads now.
    pub fn is_leading(&self) -> bool {
        self.hold().is_some()
    }

    /// Stands no more; when this is done, the lock is given up.
    pub async fn resign(self) {
        self.resigned.send_replace(true);
        // An error says that the runtime has ended the task, or that a callback has panicked.
        drop(self.task.await);
    }
}
