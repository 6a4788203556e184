//! A lock that is not held yet.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::Error;
use crate::held::Held;
use crate::hold::{Guard, Hold};
use crate::wanted::{Kind, Wanted, new_owner};

/// A lock, or several, and how it is to be taken. Taking it does not use it up: each
/// [`acquire`](Self::acquire) is a request of its own.
#[derive(Clone)]
#[must_use = "it takes nothing until it is acquired"]
pub struct Lock {
    engine: Arc<Engine>,
    names: Vec<Vec<u8>>,
    kind: Kind,
    lease: Duration,
    wait: Option<Duration>,
    renews: bool,
    longest: Option<Duration>,
    owner: Option<Vec<u8>>,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, names: Vec<Vec<u8>>, kind: Kind, lease: Duration) -> Self {
        Self { engine, names, kind, lease, wait: None, renews: true, longest: None, owner: None }
    }

    /// How long the server holds the lock unless it is renewed: 100 ms or more. The longest is its `redislock.max-lease` (an
    /// hour), or its `redislock.quarantine` if that is set and shorter. Default: that of the [`Locks`](crate::Locks).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long to wait for the lock at most; `Duration::ZERO`: not at all. Default: without end.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Whether the lease is renewed at each third of it; default: yes.
    pub fn renew(mut self, renews: bool) -> Self {
        self.renews = renews;
        self
    }

    /// For how long the hold may be renewed, more than 0: it ends at most one lease later, also where
    /// [`extend`](crate::Hold::extend) was called. To hold for 60 s at most, take a lease of 10 s, and 50 s here.
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = Some(longest);
        self
    }

    /// The owner that holds, in place of `host:pid:uuid`: 1 to 256 bytes, and not `*`.
    ///
    /// Requests of the same owner are one and the same for the server, so use it for one task. The task then never waits
    /// for itself, and the server sees its deadlocks with others. But two guards of one owner and one lock are one hold, and
    /// the first that goes gives it up for both.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.owner = Some(owner.as_ref().to_vec());
        self
    }

    fn wanted(&self) -> Result<Wanted, Error> {
        if self.longest == Some(Duration::ZERO) {
            return Err(Error::invalid("longest must be more than 0s: use renew(false) for a single lease"));
        }
        let owner = self.owner.clone().unwrap_or_else(new_owner);
        Wanted::new(self.names.clone(), self.kind, self.lease, owner)
    }

    /// Refuses what could never be taken, and what is not called in a runtime.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.wanted()?;
        self.engine.enter_open()
    }

    /// The names, for people.
    pub(crate) fn label(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        names.join(", ")
    }

    /// Takes the lock. If the future is dropped before it is done, nothing is held, and nobody waits.
    ///
    /// # Errors
    ///
    /// - [`Error::LockTimeout`] if it could not be acquired in time.
    /// - [`Error::Invalid`] for a name, lease, owner or limit out of its range, and outside of a tokio runtime. Also where
    ///   two of the independent servers have turned out to be one.
    /// - [`Error::ConnectionFailed`] if no server answers: for 10 s where the wait has no end, else until 2 s beyond it. A
    ///   server that answers and grants nothing yet, as one that loads its data or is a replica, is waited for.
    /// - [`Error::LockLost`] if the grant came after its lease, and no time is left to ask again.
    /// - What the server refuses: [`Error::Deadlock`], [`Error::LockKindMismatch`], [`Error::ModuleMissing`] and so on.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let (began, wanted) = (Moment::now(), self.wanted()?);
        let keeper = &self.engine.keeper;
        // Until the hold is kept: one that closes the locks meanwhile has to find it.
        let _acquiring = keeper.acquiring();
        let name = String::from_utf8_lossy(&self.names[0]);
        let granted = self.engine.acquire(wanted, self.wait).await.inspect_err(|error| {
            if matches!(error, Error::LockTimeout { .. }) {
                keeper.tell(|hooks| hooks.timed_out(&name, began.age()));
            }
        });
        let grant = granted.map_err(|error| error.of_lease(self.lease))?;
        keeper.tell(|hooks| hooks.granted(&name, began.age()));
        let guard = Guard::new(self.engine.clone(), Held::new(grant, self.renews, self.longest));
        guard.check()?; // the reply may have taken as long as the lease, and no time is left
        Ok(guard)
    }

    /// Takes the lock, does this work with it, and gives it up. When the lock is lost, the work is dropped, and this ends
    /// in [`Error::LockLost`]. An error of the work itself comes out as it is.
    pub async fn run<T, E, F, Work>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(Hold) -> Work,
        Work: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let guard = self.acquire().await?;
        let done = guard.run(work(guard.hold())).await?;
        match (done, guard.release().await) {
            (Ok(_), Err(error @ Error::LockLost { .. })) => Err(error.into()),
            // What no server has answered goes on in the background.
            (done, _) => done,
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        f.debug_struct("Lock")
            .field("names", &names)
            .field("lease", &self.lease)
            .field("wait", &self.wait)
            .finish()
    }
}
