//! The common core for one server, a cluster and independent servers: acquires, holds and releases.

use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::warn;

use crate::clock::Moment;
use crate::core::{Core, Look, Patience};
use crate::error::{Error, Loss};
use crate::held::{End, Grant, Held};
use crate::hooks::Hooks;
use crate::info::{Info, shown_version};
use crate::keeper::{Due, Keeper};
use crate::redlock;
use crate::rules::{
    LEASE, LONG_WAIT, LONGEST_PAUSE, NAP, NOBODYS, OWN_WAIT, PATIENCE, PAUSE, WAITING, renewal,
};
use crate::servers::Topology;
use crate::wanted::{HOST_LABEL, Wanted};

/// The locks of one client.
pub(crate) struct Engine {
    /// One, or one for each of several independent servers.
    pub(crate) cores: Vec<Arc<Core>>,
    pub(crate) keeper: Arc<Keeper>,
    /// Connections that are known to lead to different independent servers.
    pub(crate) apart: Mutex<Vec<u64>>,
    pub(crate) settings: Settings,
}

/// The settings of a client.
pub(crate) struct Settings {
    /// The lease of locks that set none.
    pub(crate) lease: Duration,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) max_queued: usize,
    /// The time for which no server may answer during an unlimited wait.
    pub(crate) server_timeout: Duration,
    /// The beginning of each owner.
    pub(crate) label: String,
    /// The prefix of each name.
    pub(crate) prefix: Vec<u8>,
}

impl Default for Settings {
    fn default() -> Self {
        let (label, prefix, hooks) = (HOST_LABEL.clone(), Vec::new(), Arc::new(()));
        Self { lease: LEASE, hooks, max_queued: WAITING, server_timeout: PATIENCE, label, prefix }
    }
}

impl Engine {
    pub(crate) fn new(topologies: Vec<Topology>, settings: Settings) -> Self {
        let keeper = Arc::new(Keeper::new(settings.hooks.clone()));
        #[cfg(feature = "testing")]
        crate::testing::note(&keeper);
        let core = |topology| Arc::new(Core::new(topology, keeper.clone(), &settings));
        let cores = topologies.into_iter().map(core).collect();
        Self { cores, keeper: keeper.clone(), apart: Mutex::default(), settings }
    }

    pub(crate) fn is_group(&self) -> bool {
        self.cores.len() > 1
    }

    /// Checks the runtime before each request of the program, which would panic outside of one.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<(), Error> {
        self.settle();
        let here = Handle::try_current();
        here.map(drop).map_err(|_| Error::invalid("this needs a tokio runtime: call it in one"))
    }

    /// Like `enter`, but also refuses if the locks are closed.
    pub(crate) fn enter_open(self: &Arc<Self>) -> Result<(), Error> {
        if self.keeper.closing.is_cancelled() { Err(Error::Closed) } else { self.enter() }
    }

    /// Moves the tracking of holds to this runtime, if it runs in none.
    pub(crate) fn settle(self: &Arc<Self>) {
        self.keeper.settle(|| schedule(Arc::downgrade(self), self.keeper.clone()));
    }

    // Acquiring.

    /// Returns the grant. If the future is dropped, or returns an error, nothing is held.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        wanted: Wanted,
        wait: Option<Duration>,
    ) -> Result<Grant, Error> {
        self.enter()?;
        let patience = Patience::new(wait);
        let attempt = Attempt::new(self, Arc::new(wanted));
        let granted = {
            let acquiring = pin!(async {
                loop {
                    let granted = if self.is_group() {
                        redlock::acquire(self, &attempt.wanted, patience).await?
                    } else {
                        self.cores[0].acquire(&attempt.wanted, patience).await?
                    };
                    match granted {
                        // The reply took as long as the lease, or this process was suspended.
                        Some(grant) if grant.is_over() && !patience.is_over() => {}
                        settled => return Ok(settled),
                    }
                }
            });
            // In place, because select! moves them, and they are large.
            let logging = pin!(self.log_waits(&attempt.wanted, patience.began));
            tokio::select! {
                biased;
                () = self.keeper.closing.cancelled() => Err(Error::Closed),
                granted = acquiring => granted,
                never = logging => match never {},
            }
        };
        match granted {
            Ok(Some(grant)) => {
                attempt.succeeds();
                Ok(grant)
            }
            Ok(None) => {
                let name = attempt.wanted.label();
                if wait == Some(Duration::ZERO) && !attempt.wanted.is_doubtful() {
                    attempt.succeeds(); // nothing is left behind
                } else {
                    attempt.gives_way();
                }
                Err(Error::LockTimeout { name, wait: wait.unwrap_or_default() })
            }
            Err(error) => {
                if error.granted_nothing() {
                    attempt.gives_way();
                }
                Err(error)
            }
        }
    }

    /// Logs long waits while this is polled.
    async fn log_waits(&self, wanted: &Wanted, began: Moment) -> Infallible {
        // Most locks are granted by the first reply, which polls this no more, so they need no timer.
        let mut is_first = true;
        poll_fn(|_| if mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
        sleep((began + OWN_WAIT).left()).await;
        let label = wanted.label();
        if let Some(since) =
            self.keeper.held_since(&wanted.names).filter(|_| self.keeper.may_log(wanted.name()))
        {
            warn!(
                "waiting for lock '{label}', which this client itself has held for {:?}: a task that acquires a \
                 lock twice waits for itself",
                since.age()
            );
        }
        let mut waited = LONG_WAIT;
        sleep((began + LONG_WAIT).left()).await;
        loop {
            if self.keeper.may_log(wanted.name()) {
                // Each of several independent servers may name another holder.
                let holder = if self.is_group() { None } else { self.cores[0].holder(wanted).await };
                let holder = holder.map(|holder| format!(": held by {holder}")).unwrap_or_default();
                warn!("waiting for lock '{label}' for {waited:?}{holder}");
            }
            sleep(waited).await;
            waited *= 2;
        }
    }

    // Holding.

    fn handle(self: &Arc<Self>, due: Due) {
        let Due { held, is_over, renew, look } = due;
        if is_over {
            self.lose(&held, held.expiry());
            return;
        }
        if renew {
            let (engine, held) = (self.clone(), held.clone());
            self.keeper.spawn(async move { drop(engine.renew(&held, None).await) });
        }
        if look {
            let engine = self.clone();
            self.keeper.spawn(async move { engine.look(&held).await });
        }
    }

    /// Starts a new lease of this length, or loses the hold.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        held: &Arc<Held>,
        lease: Option<Duration>,
    ) -> Result<(), Error> {
        self.enter()?;
        let _alone = held.renewing.lock().await;
        // Work may continue under a hold that was lost because the locks were closed.
        if held.end().is_some_and(|end| end != End::Lost(Loss::Close)) {
            return Ok(()); // while it waited for another renewal
        }
        let left = held.longest_left();
        if let Some(lease) = lease.filter(|lease| *lease > left) {
            let text = format!("lease must be {left:?} or less, not {lease:?}: max_hold bounds this hold");
            return Err(Error::invalid(text));
        }
        let asked = lease;
        let lease = lease.map(|lease| lease.max(held.wanted.parked()).min(left));
        let Some(lease) = lease.or_else(|| held.renewed_lease()) else {
            return Ok(()); // the hold is about to be over
        };
        let until = held.ask_until(lease);
        held.may_count_from(Moment::now(), lease);
        let until = until.min(held.deadline());
        self.keeper.refile(held);
        let renewed = if self.is_group() {
            redlock::renew(self, held, lease).await
        } else {
            self.cores[0].renew(held, lease, until).await
        };
        let result = match renewed {
            Ok(Some(sent)) => {
                held.count_from(sent, lease);
                if let Some(asked) = asked {
                    held.times().next = asked;
                }
                Ok(())
            }
            Ok(None) => {
                self.lose(held, Loss::Renewal);
                Err(held.lost(Loss::Renewal))
            }
            Err(error) => {
                // The failure may be temporary, such as a lack of replicas. If it is not, the deadline ends
                // the hold.
                held.renew_again_at(Moment::now() + LONGEST_PAUSE);
                Err(error)
            }
        };
        self.keeper.refile(held);
        result
    }

    async fn look(self: &Arc<Self>, held: &Arc<Held>) {
        let seen =
            if self.is_group() { redlock::look(self, held).await } else { self.cores[0].look(held).await };
        match seen {
            Look::Live => {}
            Look::Lost => self.lose(held, Loss::Push),
            Look::Unknown => {
                held.watch_at(Moment::now() + LONGEST_PAUSE);
                self.keeper.refile(held);
            }
        }
    }

    /// Waits for the end of the hold. It checks the deadline itself, and that holds are tracked: the runtime
    /// that tracked them may have ended before this one.
    pub(crate) async fn until_end(self: &Arc<Self>, held: &Held) -> End {
        while Handle::try_current().is_ok() {
            self.settle();
            let nap = held.deadline().left().min(renewal(held.lease())).min(NAP);
            if let Ok(end) = timeout(nap, held.until_end()).await {
                return end;
            }
            if held.deadline().left().is_zero() {
                self.lose(held, held.expiry());
            }
        }
        held.until_end().await
    }

    /// Ends the hold as lost. The holder may still work under it, so the server's hold is released only when
    /// the holder releases it.
    pub(crate) fn lose(&self, held: &Held, reason: Loss) {
        if self.keeper.finish(held, End::Lost(reason)) {
            self.tell_loss(held, reason);
        }
    }

    fn tell_loss(&self, held: &Held, reason: Loss) {
        let (name, source) = (held.wanted.label(), held.cause());
        warn!("{}", Error::LockLost { name, reason, source });
        self.keeper.tell(|hooks| hooks.lost(&held.wanted.short(), held.granted_at.age(), reason));
    }

    // Releasing.

    /// Releases the hold. If a server does not answer in time, the release continues in the background.
    pub(crate) async fn release(self: &Arc<Self>, held: &Held) -> Result<(), Error> {
        self.enter()?;
        if !self.keeper.finish(held, End::Released) {
            return match held.end() {
                // The server's hold is released with the guard.
                Some(End::Lost(reason)) => Err(held.lost(reason)),
                _ => Ok(()),
            };
        }
        let mut ending = Ending { engine: self, held, loss: None };
        let mut attempt = Attempt::new(self, held.wanted.clone());
        attempt.token = Some(held.token);
        let was_held = if self.is_group() {
            redlock::release(self, &held.wanted, held.token).await
        } else {
            self.cores[0].release(&held.wanted, held.token).await
        };
        let was_held = was_held?;
        if !held.wanted.is_doubtful() {
            attempt.succeeds();
        }
        if was_held {
            return Ok(());
        }
        ending.loss = Some(Loss::Release);
        Err(held.lost(Loss::Release))
    }

    /// Releases the hold in the background.
    pub(crate) fn let_go(self: &Arc<Self>, held: &Held) {
        if self.keeper.finish(held, End::Released) {
            drop(Ending { engine: self, held, loss: None });
            self.abandon(&held.wanted, Some(held.token));
        } else if matches!(held.end(), Some(End::Lost(_))) && held.gives_up() {
            self.abandon(&held.wanted, Some(held.token));
        }
    }

    /// Releases in the background all that this request got or may still get, or the hold that has this
    /// token.
    pub(crate) fn abandon(self: &Arc<Self>, wanted: &Arc<Wanted>, token: Option<i64>) {
        self.settle();
        // An independent server that could not raise its token has a lower one.
        let token = token.filter(|_| !self.is_group());
        for core in &self.cores {
            core.abandon(wanted, token);
        }
    }

    /// Notifies all holders and waiters that the locks are closed, releases holds without running work, and
    /// ends all connections. Takes this time at most, and asks no server if it is zero.
    pub(crate) async fn close(self: &Arc<Self>, time: Duration) {
        self.keeper.closing.cancel();
        // A part of the time is reserved for the release of the holds that end last.
        let (until, works_until) = (Moment::now() + time, Moment::now() + time / 5 * 4);
        let mut kept = self.keeper.all();
        kept.iter().for_each(|held| self.lose(held, Loss::Close));
        loop {
            if !time.is_zero() {
                kept.retain(|held| !self.give_up_idle(held));
            }
            let is_done = kept.is_empty() && self.keeper.acquiring.is_empty();
            if is_done || works_until.left().is_zero() {
                break;
            }
            for held in kept.iter().filter(|held| held.takes_renewal()) {
                self.handle(Due { held: held.clone(), is_over: false, renew: true, look: false });
            }
            sleep(PAUSE).await;
        }
        if !time.is_zero() {
            self.keeper.working.close();
            drop(timeout(until.left(), self.keeper.working.wait()).await);
        }
        if !kept.is_empty() {
            let names: Vec<_> = kept.iter().map(|held| held.wanted.label()).collect();
            warn!(
                "closed while work under '{}' runs: it stays taken until its lease expires",
                names.join("', '")
            );
        }
        for core in &self.cores {
            core.servers.close();
        }
    }

    /// Releases holds that closing has lost, unless work continues under them. Returns whether none does.
    fn give_up_idle(self: &Arc<Self>, held: &Held) -> bool {
        let is_idle = !held.is_worked_under();
        if is_idle && held.gives_up() {
            self.abandon(&held.wanted, Some(held.token));
        }
        is_idle
    }

    // Queries.

    pub(crate) async fn fence(self: &Arc<Self>, name: &[u8], token: i64) -> Result<bool, Error> {
        self.enter_open()?;
        if self.is_group() {
            redlock::fence(self, name, token).await
        } else {
            self.cores[0].fence(name, token).await
        }
    }

    /// Returns the version of the module; of several servers, the oldest.
    pub(crate) async fn ping(self: &Arc<Self>, name: &[u8]) -> Result<String, Error> {
        self.enter_open()?;
        let core = &self.cores[0];
        let oldest = if self.is_group() { redlock::ping(self, name).await? } else { core.ping(name).await? };
        Ok(shown_version(oldest))
    }

    pub(crate) async fn info(self: &Arc<Self>, name: &[u8]) -> Result<Option<Info>, Error> {
        self.enter_open()?;
        if self.is_group() {
            return Err(Error::invalid("info is not for independent servers: each has its own"));
        }
        self.cores[0].info(name).await
    }
}

/// Calls the hooks for the end of a hold when this is dropped, even if no server answers the release.
struct Ending<'a> {
    engine: &'a Engine,
    held: &'a Held,
    loss: Option<Loss>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let held = self.held;
        match self.loss {
            Some(loss) => self.engine.tell_loss(held, loss),
            None => {
                self.engine.keeper.tell(|hooks| hooks.released(&held.wanted.short(), held.granted_at.age()))
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.keeper.wake.notify_one();
        for core in &self.cores {
            core.servers.close();
        }
    }
}

/// Renews all holds of an engine, and ends those whose deadline has passed, as long as the engine exists.
async fn schedule(engine: Weak<Engine>, keeper: Arc<Keeper>) {
    loop {
        keeper.until_due().await;
        let Some(engine) = engine.upgrade() else { return };
        for due in keeper.due() {
            engine.handle(due);
        }
    }
}

/// A request that is given up when this is dropped, unless it has succeeded.
pub(crate) struct Attempt<'a> {
    engine: &'a Arc<Engine>,
    pub(crate) wanted: Arc<Wanted>,
    token: Option<i64>,
    is_open: bool,
    _busy: TaskTrackerToken,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, wanted: Arc<Wanted>) -> Self {
        Self { engine, wanted, token: None, is_open: true, _busy: engine.keeper.acquiring.token() }
    }

    /// Records that nothing was granted. The owner keeps what it holds by another request, such as a read
    /// that it wanted to upgrade.
    fn gives_way(mut self) {
        if !self.engine.is_group() && !self.wanted.is_doubtful() {
            self.token = Some(NOBODYS);
        }
    }

    /// Records that there is nothing to give up.
    pub(crate) fn succeeds(mut self) {
        self.is_open = false;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_open && self.wanted.was_sent() {
            // A request that was cancelled while it waited has got nothing, like one that failed.
            let spares = self.token.is_none() && !self.engine.is_group() && !self.wanted.may_be_granted();
            self.engine.abandon(&self.wanted, if spares { Some(NOBODYS) } else { self.token });
        }
    }
}
