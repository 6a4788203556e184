//! What is held, as its holder sees it.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::{Cause, Error, Loss};
use crate::held::{End, Held};
use crate::wanted::check_lease;

/// A view of what is held: it can be cloned and given to others, and says whether the hold lasts. The [`Guard`] is what
/// holds.
#[derive(Clone)]
pub struct Hold {
    engine: Arc<Engine>,
    held: Arc<Held>,
}

impl Hold {
    /// The fencing token: higher than those of all earlier holders. Hand it to what you write to, so that it refuses a
    /// late writer: `UPDATE ... SET fence = :token WHERE id = :id AND fence <= :token`.
    pub fn token(&self) -> u64 {
        u64::try_from(self.held.token).unwrap_or_default()
    }

    /// The name of the lock, or the names of all, with commas between.
    pub fn name(&self) -> String {
        self.held.wanted.label()
    }

    /// The owner that holds, as `LOCK.INFO` tells an operator: host, process, and an id of this hold.
    pub fn owner(&self) -> String {
        String::from_utf8_lossy(&self.held.wanted.owner).into_owned()
    }

    /// For how long the hold is sure to last, by this machine's own clock; it is renewed before that is over.
    pub fn remaining(&self) -> Duration {
        if self.held.end().is_some() { Duration::ZERO } else { self.held.deadline().left() }
    }

    /// Why the hold was lost; `None` if it was not.
    pub fn loss(&self) -> Option<Loss> {
        if self.held.end().is_none() && self.held.deadline().left().is_zero() {
            self.engine.lose(&self.held, self.held.expiry());
        }
        match self.held.end() {
            Some(End::Lost(reason)) => {
                self.held.is_told();
                Some(reason)
            }
            _ => None,
        }
    }

    /// Why the last renewal failed, as "no reply from the server": the cause of a loss by its
    /// [deadline](Loss::Deadline). `None` where none failed since the last that succeeded.
    pub fn cause(&self) -> Option<Cause> {
        self.held.cause()
    }

    /// The time that [remains](Self::remaining); [`Error::LockLost`] if the hold is over. Asks no server.
    pub fn check(&self) -> Result<Duration, Error> {
        self.engine.settle();
        let is_released = || (self.held.end() == Some(End::Released)).then_some(Loss::Release);
        match self.loss().or_else(is_released) {
            Some(reason) => Err(self.held.lost(reason)),
            None => Ok(self.remaining()),
        }
    }

    /// Waits until the hold is lost, and says why; `None` if it was given up.
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

    /// Does this work as long as the hold lasts: when it is lost, the work is dropped, and this ends in
    /// [`Error::LockLost`]. If the hold is over already, the work does not begin.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let _working = self.held.begin_work(); // before the check: closing may end the hold in between
        self.check()?; // a deadline that nobody has noticed is noticed by a timer, and the work would begin before that
        let done = tokio::select! {
            biased;
            _ = self.engine.until_end(&self.held) => None,
            done = work => Some(done),
        };
        self.check()?;
        done.ok_or_else(|| self.held.lost(Loss::Release))
    }

    /// Begins a lease of `lease` now; later renewals ask for `lease`, too. The shortest is 100 ms. The longest is the
    /// server's `redislock.max-lease` (an hour), or its `redislock.quarantine` if that is set and shorter. No lease goes
    /// beyond [`max_hold`](crate::Lock::max_hold).
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if the hold is over, and [`Error::Invalid`] for a lease out of its range. After any other
    /// error, as [`Error::ConnectionFailed`] if no server answers, nobody knows which lease the server has. So the hold
    /// counts on the shorter of the two, and is renewed for that. It also does if the future is dropped. A renewal that
    /// was not answered in time may still arrive: for 30 s the hold counts on no more than the lease of that renewal.
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

/// One lock, or several that were taken together. They are given up when this is dropped, in the background, or by
/// [`release`](Self::release), which can be waited for.
///
/// Before `main` ends, wait for `release` or for [`Locks::close`](crate::Locks::close), also on the way out of an error. A
/// guard that is dropped in the last moment may not get its release out; the lock then stays until its lease ends.
#[must_use = "the lock is given up when this is dropped"]
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

    /// A view of what is held, for others.
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// Gives the hold up.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if it was lost before. After any other error, as [`Error::ConnectionFailed`] when the server, or
    /// a majority of independent servers, did not answer, it goes on in the background.
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
