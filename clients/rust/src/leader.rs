//! Elections: the holder of the lock leads.

use std::any::Any;
use std::fmt;
use std::future::{Future, pending};
use std::mem::discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, warn};

use crate::error::{Error, Loss};
use crate::hold::{Guard, Hold};
use crate::lock::Lock;
use crate::rules::LONGEST_PAUSE;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type OnElected = Box<dyn Fn(Hold) -> Work + Send + Sync>;
type OnDeposed = Box<dyn Fn(Loss) + Send + Sync>;
type OnError = Box<dyn Fn(&Error) + Send + Sync>;

/// The state of a candidate.
#[derive(Clone)]
enum State {
    /// It waits for its turn.
    Stands,
    /// The error of its latest attempt. It tries again.
    Failed(Error),
    Leads(Hold),
}

/// A candidate, which [stands](Self::stand) for election.
#[must_use = "a candidate does nothing until stand is called"]
pub struct Candidate {
    lock: Lock,
    on_elected: OnElected,
    on_deposed: OnDeposed,
    on_error: OnError,
}

impl Candidate {
    pub(crate) fn new(lock: Lock) -> Self {
        Self {
            lock,
            on_elected: Box::new(|_| Box::pin(async {})),
            on_deposed: Box::new(|_| {}),
            on_error: Box::new(|_| {}),
        }
    }

    /// Sets how long a leader keeps the lock after the server last heard from it: 100 ms or more.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lock = self.lock.lease(lease);
        self
    }

    /// Sets the work of the leader. The work is dropped when the lock is lost. When the work is done, the leader
    /// continues to lead. A panic in it releases the lock, ends the candidacy ([`Leader::is_standing`]), and calls
    /// [`on_error`](Self::on_error).
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
    /// An `async move |hold|` closure cannot be used if it takes variables from outside: its future borrows them, and
    /// stable Rust cannot ask that such a future may go to another thread.
    pub fn on_elected<F, Fut>(mut self, work: F) -> Self
    where
        F: Fn(Hold) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.on_elected = Box::new(move |hold| Box::pin(work(hold)));
        self
    }

    /// Sets a function that is called when the leader loses the lock, but not when it resigns. It then stands again.
    pub fn on_deposed(mut self, call: impl Fn(Loss) + Send + Sync + 'static) -> Self {
        self.on_deposed = Box::new(call);
        self
    }

    /// Sets a function that is called when the candidate cannot ask for the lock, for example because no server
    /// answers. It keeps trying, and calls this once for consecutive failures of the same variant. It also calls this
    /// after a panic in a callback, which ends the candidacy.
    pub fn on_error(mut self, call: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_error = Box::new(call);
        self
    }

    /// Stands for election in the background, until it [resigns](Leader::resign) or the
    /// [`Locks`](crate::Locks) are closed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a name or a lease that no server would accept, and outside of a tokio runtime.
    /// [`Error::Closed`] if the [`Locks`](crate::Locks) are closed.
    pub fn stand(self) -> Result<Leader, Error> {
        self.lock.check()?;
        let (resigned, (state, shown)) = (CancellationToken::new(), watch::channel(State::Stands));
        let hears = resigned.clone();
        let task = tokio::spawn(async move {
            let campaign = AssertUnwindSafe(self.campaign(&hears, &state)).catch_unwind().await;
            if let Err(panic) = campaign {
                self.panicked(&*panic, &state);
            }
        });
        Ok(Leader { resigned: resigned.drop_guard(), state: shown, task })
    }

    /// Reports why it has stopped standing.
    fn panicked(&self, panic: &(dyn Any + Send), state: &watch::Sender<State>) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        let name = self.lock.label();
        let error = Error::invalid(format!("the candidacy for '{name}' ends: a callback panicked: {text}"));
        error!("{error}");
        state.send_replace(State::Failed(error.clone()));
        // This callback may be the one that panicked.
        drop(catch_unwind(AssertUnwindSafe(|| (self.on_error)(&error))));
    }

    async fn campaign(&self, resigned: &CancellationToken, state: &watch::Sender<State>) {
        let mut told = None;
        loop {
            let elected = tokio::select! {
                biased;
                () = resigned.cancelled() => return,
                elected = self.lock.acquire() => elected,
            };
            match elected {
                Ok(guard) => {
                    told = None;
                    state.send_replace(State::Leads(guard.hold()));
                    let goes_on = self.lead(guard, resigned).await;
                    state.send_replace(State::Stands);
                    if !goes_on {
                        return;
                    }
                }
                Err(error) => {
                    let is_closed = matches!(error, Error::Closed);
                    if told.replace(discriminant(&error)) != Some(discriminant(&error)) && !is_closed {
                        warn!(
                            "could not stand for election for '{}', will retry: {error}",
                            self.lock.label()
                        );
                        (self.on_error)(&error);
                    }
                    state.send_replace(State::Failed(error));
                    if is_closed {
                        return;
                    }
                    sleep(LONGEST_PAUSE).await;
                }
            }
        }
    }

    /// Leads until it loses the lock; returns false if it has resigned.
    async fn lead(&self, guard: Guard, resigned: &CancellationToken) -> bool {
        let work = async {
            (self.on_elected)(guard.hold()).await;
            pending::<()>().await;
        };
        let loss = tokio::select! {
            biased;
            () = resigned.cancelled() => None,
            _ = guard.run(work) => guard.loss(),
        };
        match loss {
            Some(loss) => (self.on_deposed)(loss),
            // It has resigned either way: an unanswered release continues in the background.
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

/// Stands for election, and leads while it holds the lock. When this is dropped it resigns in the background.
#[must_use = "it resigns when this is dropped"]
pub struct Leader {
    resigned: DropGuard,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Leader {
    /// Waits until it leads. Returns the hold.
    ///
    /// # Errors
    ///
    /// The server's error in the latest attempt, if it is unlikely to pass, for example [`Error::ModuleMissing`] or a
    /// wrong password. The candidate keeps trying. While no server answers, this waits. [`Error::Closed`] after the
    /// [`Locks`](crate::Locks) were closed, and [`Error::Invalid`] after a panic in a callback.
    pub async fn elected(&self) -> Result<Hold, Error> {
        let mut state = self.state.clone();
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                State::Leads(hold) if hold.check().is_ok() => return Ok(hold),
                State::Failed(error) if !error.may_pass() => return Err(error),
                _ => {}
            }
            if state.changed().await.is_err() {
                return Err(Error::invalid("the candidacy ended, because its runtime has ended"));
            }
        }
    }

    /// Returns whether it leads or tries to: `false` after a panic in a callback, and after the [`Locks`](crate::Locks)
    /// were closed.
    pub fn is_standing(&self) -> bool {
        !self.task.is_finished()
    }

    /// Returns the hold while it leads.
    pub fn hold(&self) -> Option<Hold> {
        let now = self.state.borrow().clone();
        match now {
            State::Leads(hold) if hold.check().is_ok() => Some(hold),
            _ => None,
        }
    }

    /// Returns whether it leads now.
    pub fn is_leading(&self) -> bool {
        self.hold().is_some()
    }

    /// Ends the candidacy. When this is done, the lock is released.
    pub async fn resign(self) {
        drop(self.resigned);
        // An error means that the runtime has ended the task, or that a callback has panicked.
        drop(self.task.await);
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("is_standing", &self.is_standing())
            .field("hold", &self.hold())
            .finish()
    }
}
