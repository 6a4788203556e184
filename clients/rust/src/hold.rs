//! A hold, as its holder sees it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::{Cause, Error, Loss};
use crate::held::{End, Held};
use crate::wanted::check_lease;

/// A view of a hold, which can be cloned and shared. The [`Guard`] owns the hold.
#[derive(Clone)]
pub struct Hold {
    engine: Arc<Engine>,
    held: Arc<Held>,
}

impl Hold {
    /// Returns the fencing token, which is higher than those of all earlier holders. Pass it to the resource that you
    /// write to, and have that reject a lower token: `UPDATE ... SET fence = :token WHERE id = :id AND fence <=
    /// :token`.
    pub fn token(&self) -> u64 {
        u64::try_from(self.held.token).unwrap_or_default()
    }

    /// Returns the name of the lock, or the names of all locks separated by commas, without the prefix.
    pub fn name(&self) -> String {
        self.held.wanted.label()
    }

    /// Returns the owner, as `LOCK.INFO` shows it: the label and a UUID, unless you set one.
    pub fn owner(&self) -> String {
        String::from_utf8_lossy(&self.held.wanted.owner).into_owned()
    }

    /// Returns how long the lock is certainly held, by the clock of this machine. Renewals extend it in time.
    pub fn remaining(&self) -> Duration {
        self.held.left().unwrap_or_default()
    }

    /// Returns the time until the deadline; `None` if the hold has ended. Ends it at its deadline, which the
    /// scheduler may not have noticed yet.
    fn left(&self) -> Option<Duration> {
        let left = self.held.left();
        if left.is_some_and(|left| left.is_zero()) {
            self.engine.lose(&self.held, self.held.expiry());
            return None;
        }
        left
    }

    /// Returns the reason for the loss of the hold; `None` if it was not lost.
    pub fn loss(&self) -> Option<Loss> {
        self.left();
        match self.held.end() {
            Some(End::Lost(reason)) => {
                self.held.is_told();
                Some(reason)
            }
            _ => None,
        }
    }

    /// Returns why the last renewal failed, which is the cause of a loss by its [deadline](Loss::Deadline). `None` if
    /// no renewal has failed since the last one that succeeded.
    pub fn cause(&self) -> Option<Cause> {
        self.held.cause()
    }

    /// Returns the time that [remains](Self::remaining), or [`Error::LockLost`] if the hold has ended. Asks no server.
    pub fn check(&self) -> Result<Duration, Error> {
        self.engine.settle();
        // A hold that has ended without a loss was released.
        self.left().ok_or_else(|| self.held.lost(self.loss().unwrap_or(Loss::Release)))
    }

    /// Waits until the hold is lost, and returns the reason; `None` if it was released.
    pub fn lost(&self) -> impl Future<Output = Option<Loss>> + Send + use<> {
        let hold = self.clone();
        async move {
            match hold.engine.until_end(&hold.held).await {
                End::Lost(reason) => {
                    hold.held.is_told();
                    Some(reason)
                }
                End::Released => None,
            }
        }
    }

    /// Does this work as long as the hold lasts. When the lock is lost, the work is dropped, and this returns
    /// [`Error::LockLost`]. If the hold has already ended, the work does not start.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let _working = self.held.begin_work(); // before the look at its end: closing may come in between
        let mut work = pin!(work);
        // Under a hold that has ended, it neither begins nor goes on.
        let working = poll_fn(|context| match self.left() {
            Some(_) => work.as_mut().poll(context),
            None => Poll::Pending,
        });
        let done = tokio::select! {
            biased;
            done = working => Some(done),
            _ = self.engine.until_end(&self.held) => None,
        };
        self.check()?;
        done.ok_or_else(|| self.held.lost(Loss::Release))
    }

    /// Starts a new lease now, and later renewals use the same length. The shortest is 100 ms. The longest is the
    /// server's `redislock.max-lease` (an hour), or its `redislock.quarantine` if that is set and shorter. No lease
    /// goes beyond [`max_hold`](crate::Lock::max_hold).
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the hold has ended, and [`Error::Invalid`] for a lease out of its range. After
    /// any other error, or if the future is dropped, either lease may be in force on the server. The hold
    /// then assumes the shorter of the old and the new lease, and renews for that. A renewal that was not
    /// answered in time may still arrive: for 30 s, the hold relies only on the lease of that renewal.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.check()?;
        check_lease(lease)?;
        self.engine.renew(&self.held, Some(lease)).await.map_err(|error| error.of_lease(lease, None))?;
        self.check().map(drop) // it may have ended meanwhile
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name())
            .field("token", &self.held.token)
            .field("owner", &self.owner())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// One lock, or several that were acquired together. They are released in the background when this is dropped, or by
/// [`release`](Self::release), which you can await.
///
/// Before `main` ends, await `release` or [`Locks::close`](crate::Locks::close), also if it ends with an error. If a
/// guard is dropped just before the process ends, its release may not be sent; the lock then stays taken until its
/// lease expires.
#[must_use = "the lock is released when this is dropped"]
#[derive(Debug)]
pub struct Guard {
    hold: Hold,
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, held: Held) -> Self {
        let held = Arc::new(held);
        engine.keeper.keep(&held);
        if engine.keeper.closing.is_cancelled() {
            engine.lose(&held, Loss::Close);
        }
        Self { hold: Hold { engine, held } }
    }

    /// Keeps the lock taken for this time from now, whatever happens to the hold.
    pub(crate) fn park(&self, least: Option<Duration>) {
        if let Some(least) = least {
            self.hold.held.wanted.park(Moment::now() + least);
        }
    }

    /// Returns a view of the hold, for others.
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if it was lost before. After any other error, for example [`Error::ConnectionFailed`] if the
    /// server, or a majority of independent servers, did not answer, the release continues in the background.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.engine.release(&self.hold.held).await
    }
}

impl Deref for Guard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.hold.engine.let_go(&self.hold.held);
    }
}
