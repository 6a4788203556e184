//! A lock that is not held yet.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::{Engine, Settings};
use crate::error::Error;
use crate::held::Held;
use crate::hold::{Guard, Hold};
use crate::keeper::Keeper;
use crate::rules::FIRST_LEASE;
use crate::wanted::{Kind, SHORTEST_LEASE, Wanted, check_lease, listed, new_owner};

/// Describes one or several locks, and their options. It holds nothing itself, and can be acquired any number of times.
#[derive(Clone)]
#[must_use = "it takes nothing until it is acquired"]
pub struct Lock {
    engine: Arc<Engine>,
    names: Vec<Vec<u8>>,
    kind: Kind,
    lease: Duration,
    wait: Option<Duration>,
    renews: bool,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    owner: Option<Vec<u8>>,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, names: Vec<Vec<u8>>, kind: Kind) -> Self {
        let (lease, max_hold, min_hold) = (engine.settings.lease, None, None);
        Self { engine, names, kind, lease, wait: None, renews: true, max_hold, min_hold, owner: None }
    }

    /// Sets how long the server keeps the lock unless it is renewed: 100 ms or more. The longest is its
    /// `redislock.max-lease` (an hour), or its `redislock.quarantine` if that is set and shorter. Default: that of the
    /// [`Locks`](crate::Locks).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long to wait for the lock; `Duration::ZERO` does not wait. Default: no limit.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets whether the lease is renewed, at each third of it. Default: yes.
    pub fn renew(mut self, renews: bool) -> Self {
        self.renews = renews;
        self
    }

    /// Sets how long the hold lasts at most: 100 ms or more. It counts from before the granted request was sent, and
    /// the last lease is shortened to fit. Then the hold is lost ([`Loss::MaxHold`](crate::Loss::MaxHold)). Default: no
    /// limit.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    /// Sets how long the lock stays taken at least, counted from its grant, whatever happens to the holder: 100 ms or
    /// more. An earlier release ends the hold, but the server keeps the lock for the rest of that time. For a job that
    /// must run once a minute, on any one of many machines, use [`try_acquire`](Self::try_acquire) with 50 seconds. Not
    /// for readers or independent servers. Default: none.
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.min_hold = Some(least);
        self
    }

    /// Sets one owner for the several locks of a task, so that the server detects its deadlocks: 1 to 256 bytes, and
    /// not `*`. Default: the label and a UUID.
    ///
    /// The server treats requests of the same owner as one, so the task never waits for itself. But two guards of one
    /// owner and one lock are one hold, and the first guard that is dropped releases it for both. Use an owner in one
    /// task only.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.owner = Some(owner.as_ref().to_vec());
        self
    }

    fn wanted(&self) -> Result<Wanted, Error> {
        check_lease(self.lease)?;
        if let Some(most) = self.max_hold.filter(|most| *most < SHORTEST_LEASE) {
            return Err(Error::invalid(format!("max_hold must be {SHORTEST_LEASE:?} or more, not {most:?}")));
        }
        self.check_min_hold()?;
        let lease = self.renewed_lease().max(self.min_hold.unwrap_or_default());
        let Settings { label, prefix, .. } = &self.engine.settings;
        let owner = self.owner.clone().unwrap_or_else(|| new_owner(label));
        let mut wanted = Wanted::new(self.names.clone(), prefix.len(), self.kind, lease, owner)?;
        wanted.is_named = self.owner.is_some();
        wanted.first_lease = lease.min(FIRST_LEASE.max(self.min_hold.unwrap_or_default()));
        Ok(wanted)
    }

    /// Returns the lease that renewals ask for.
    fn renewed_lease(&self) -> Duration {
        self.lease.min(self.max_hold.unwrap_or(self.lease))
    }

    fn check_min_hold(&self) -> Result<(), Error> {
        let Some(least) = self.min_hold else { return Ok(()) };
        let what = match self.max_hold.filter(|most| *most < least) {
            _ if least < SHORTEST_LEASE => format!("must be {SHORTEST_LEASE:?} or more, not {least:?}"),
            Some(most) => format!("must be max_hold ({most:?}) or less, not {least:?}"),
            None if self.kind == Kind::Shared || self.engine.is_group() => {
                "must not be set for readers or independent servers: it is for exclusive locks and semaphores"
                    .to_owned()
            }
            None => return Ok(()),
        };
        Err(Error::invalid(format!("min_hold {what}")))
    }

    /// Refuses a request that no server would grant, or that is made outside of a runtime.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.wanted()?;
        self.engine.enter_open()
    }

    /// Returns the names, for people.
    pub(crate) fn label(&self) -> String {
        listed(&self.names, self.engine.settings.prefix.len())
    }

    /// Waits for the lock. If the future is dropped before it is done, nothing is held, and no request stays in the
    /// queue.
    ///
    /// # Errors
    ///
    /// - [`Error::LockTimeout`] if it was not granted in time.
    /// - [`Error::Invalid`] for a name, lease, owner or limit out of its range, and outside of a tokio runtime. Also if
    ///   two of the independent servers turn out to be one.
    /// - [`Error::ConnectionFailed`] if no server answers: for 10 s if the wait has no limit, otherwise until 2 s after
    ///   its end. If a server answers but grants no locks for now, because it loads its data or is a replica, the wait
    ///   continues.
    /// - [`Error::LockLost`] if the grant arrived after its lease had expired, and no time is left to ask again.
    /// - The server's errors: [`Error::Deadlock`], [`Error::LockKindMismatch`], [`Error::ModuleMissing`] and so on.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let (began, wanted) = (Moment::now(), self.wanted()?);
        let keeper = &self.engine.keeper;
        // Until the hold is tracked: closing the locks meanwhile must find it.
        let _acquiring = keeper.acquiring.token();
        let name = String::from_utf8_lossy(&self.names[0][self.engine.settings.prefix.len()..]);
        let mut asked = Asked::new(keeper, &name, began);
        let granted = self.engine.acquire(wanted, self.wait).await;
        let granted = granted.map_err(|error| error.of_lease(self.lease, self.min_hold));
        asked.ends(granted.as_ref().err());
        let grant = granted?;
        let guard = Guard::new(
            self.engine.clone(),
            Held::new(grant, self.renewed_lease(), self.renews, self.max_hold),
        );
        guard.check()?; // the reply may have taken as long as the lease, and no time is left
        guard.park(self.min_hold);
        Ok(guard)
    }

    /// Takes the lock if it is free now. Returns `None` only if the server replied that another owner holds it. It does
    /// not wait, and leaves no position in the queue.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Self::acquire), except [`Error::LockTimeout`].
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        match self.clone().wait(Duration::ZERO).acquire().await {
            Err(Error::LockTimeout { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Acquires the lock, does this work, and releases the lock. When the lock is lost, the work is dropped, and this
    /// returns [`Error::LockLost`]. Errors from the work propagate unchanged.
    pub async fn run<T, E, F, Work>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(Hold) -> Work,
        Work: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let guard = self.acquire().await?;
        let done = guard.run(async { work(guard.hold()).await }).await?;
        match (done, guard.release().await) {
            (Ok(_), Err(error @ Error::LockLost { .. })) => Err(error.into()),
            // An unanswered release continues in the background.
            (done, _) => done,
        }
    }
}

/// A request that was reported to hooks, which also learn of its end.
struct Asked<'a> {
    keeper: &'a Keeper,
    name: &'a str,
    began: Moment,
    is_over: bool,
}

impl<'a> Asked<'a> {
    fn new(keeper: &'a Keeper, name: &'a str, began: Moment) -> Self {
        keeper.tell(|hooks| hooks.requested(name));
        Self { keeper, name, began, is_over: false }
    }

    fn ends(&mut self, error: Option<&Error>) {
        self.is_over = true;
        let (name, waited) = (self.name, self.began.age());
        self.keeper.tell(|hooks| match error {
            None => hooks.granted(name, waited),
            Some(Error::LockTimeout { .. }) => hooks.timed_out(name, waited),
            error => hooks.failed(name, waited, error),
        });
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.keeper.tell(|hooks| hooks.failed(self.name, self.began.age(), None));
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("names", &self.label())
            .field("lease", &self.lease)
            .field("wait", &self.wait)
            .finish()
    }
}
