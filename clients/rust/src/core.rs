//! The locks of one server, one primary, or one cluster: acquires, waits in the queue, renews, queries,
//! releases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::abandon::Errands;
use crate::clock::Moment;
use crate::engine::Settings;
use crate::error::Error;
use crate::held::{Grant, Held};
use crate::keeper::Keeper;
use crate::line::{Lines, May, Place};
use crate::link::Before;
use crate::request::{Answer, Ask, Failed};
use crate::rules::{ASKS_IN_KEEP, KEEP, LONG, PAUSE, POLL, WAIT_MARGIN, longest_wait, sure};
use crate::servers::{Servers, Topology};
use crate::wanted::{Line, Wanted};

#[path = "blocked.rs"]
mod blocked;

/// The limit of an acquire's wait, and the time when it began.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) wait: Option<Duration>,
    pub(crate) began: Moment,
}

impl Patience {
    pub(crate) fn new(wait: Option<Duration>) -> Self {
        Self { wait, began: Moment::now() }
    }

    /// Returns the rest of the wait.
    pub(crate) fn left(self) -> Duration {
        self.wait.map_or(Duration::MAX, |wait| (self.began + wait).left())
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// Returns the time until which a request is repeated. For a wait without a limit, that is as long as any
    /// server replies.
    fn until(self) -> Moment {
        self.wait.map_or(Moment::NEVER, |wait| self.began + wait + WAIT_MARGIN)
    }
}

/// The answer about a hold that may have been lost.
pub(crate) enum Look {
    Live,
    Lost,
    Unknown,
}

/// The locks of one server, one primary, or one cluster.
pub(crate) struct Core {
    pub(crate) servers: Servers,
    lines: Arc<Lines>,
    pub(crate) keeper: Arc<Keeper>,
    /// The requests that are given up in the background.
    pub(crate) errands: Errands,
    waiting: Semaphore,
    /// The milliseconds for which a queue position is kept: the server may allow less than we ask for.
    keep: AtomicU64,
    /// The longest wait that the server allows, once it is known.
    longest_block: Mutex<Duration>,
}

impl Core {
    pub(crate) fn new(topology: Topology, keeper: Arc<Keeper>, settings: &Settings) -> Self {
        let waiting = settings.max_queued;
        let lines = Arc::new(Lines::new(waiting));
        let (holders, waiters, told) = (keeper.clone(), lines.clone(), keeper.clone());
        let servers = Servers::new(
            topology,
            Arc::new(move |change| {
                waiters.changed(&change);
                holders.changed(&change);
            }),
            Box::new(move |address| told.tell(|hooks| hooks.reconnected(&address.to_string()))),
            settings.server_timeout,
        );
        let keep = AtomicU64::new(u64::try_from(KEEP.as_millis()).unwrap_or(u64::MAX));
        Self {
            servers,
            lines,
            keeper,
            errands: Errands::default(),
            waiting: Semaphore::new(waiting),
            keep,
            longest_block: Mutex::new(LONG),
        }
    }

    // Acquiring.

    /// Returns the grant; `None` if the lock was not granted in time. The caller gives up what is left on the
    /// server.
    pub(crate) async fn acquire(
        &self,
        wanted: &Arc<Wanted>,
        patience: Patience,
    ) -> Result<Option<Grant>, Error> {
        self.call_off(wanted);
        if patience.wait == Some(Duration::ZERO) {
            return self.attempt(wanted, patience.until()).await;
        }
        let waited = if wanted.names.len() > 1 {
            self.wait_blocked(wanted, patience).await?
        } else {
            self.wait_in_line(wanted, patience).await?
        };
        if waited.is_some() { Ok(waited) } else { self.attempt_last(wanted, patience.until()).await }
    }

    /// Asks once without a wait: only such a request learns of a quarantine, by an error that says how long
    /// it lasts.
    async fn attempt_last(&self, wanted: &Arc<Wanted>, until: Moment) -> Result<Option<Grant>, Error> {
        match self.attempt(wanted, until).await {
            Ok(granted) => Ok(granted),
            Err(error @ Error::Quarantine { .. }) => Err(error),
            Err(_) => Ok(None), // the time is over, whatever else is wrong now
        }
    }

    async fn attempt(&self, wanted: &Arc<Wanted>, until: Moment) -> Result<Option<Grant>, Error> {
        let command = wanted.acquire(wanted.lease, Line::No);
        let ask = Ask::new(wanted.name(), &command, until);
        let answer = self.servers.request(Ask { wanted: Some(wanted), ..ask }).await?;
        Ok(grant(wanted, &answer))
    }

    /// Keeps a queue position over the shared connection, and asks when the server reports a change.
    async fn wait_in_line(&self, wanted: &Arc<Wanted>, patience: Patience) -> Result<Option<Grant>, Error> {
        let mut place = self.lines.join(wanted.name(), wanted.is_named);
        let (mut lease, mut times) = (wanted.lease, 0);
        let mut behind_since = None;
        loop {
            if times > 0 {
                place.clear(); // a call before its first request makes it ask once more at most
            }
            let blocked = match place.may_ask() {
                May::Ask => Duration::ZERO,
                May::NotYet => LONG,
                // A waiter that is not called in time asks anyway, because its position may lapse.
                May::AfterOthers => {
                    (*behind_since.get_or_insert_with(Moment::now) + self.keep() / ASKS_IN_KEEP).left()
                }
            };
            if !blocked.is_zero() {
                if patience.is_over() {
                    return Ok(None);
                }
                self.tell_of_waiting(wanted, times);
                times = times.max(1);
                place.sleep(patience.left().min(blocked)).await;
                continue;
            }
            behind_since = None;
            let answer = match self.ask_in_line(wanted, lease, &place, times > 0, patience).await {
                Ok(answer) => answer,
                Err(error) => {
                    self.bear(wanted, error, patience).await?;
                    continue;
                }
            };
            place.asked(answer.number, answer.link);
            if let Some(grant) = grant(wanted, &answer) {
                if lease >= wanted.lease {
                    return Ok(Some(grant));
                }
                if let Some(grant) = self.begin(wanted, grant.token, grant.sent + sure(lease)).await? {
                    return Ok(Some(grant));
                }
            }
            if patience.is_over() {
                return Ok(None);
            }
            self.tell_of_waiting(wanted, times);
            times += 1;
            lease = wanted.first_lease;
            self.sleep_in_line(&place, times, patience).await;
        }
    }

    async fn ask_in_line(
        &self,
        wanted: &Wanted,
        lease: Duration,
        place: &Place<'_>,
        watches: bool,
        patience: Patience,
    ) -> Result<Answer, Error> {
        let command = wanted.acquire(lease, Line::Queue(self.keep()));
        let watch = |link| place.watch(link);
        let ask = Ask::new(wanted.name(), &command, patience.until());
        let before = watches.then_some(&watch as Before<'_>);
        self.servers.request(Ask { wanted: Some(wanted), before, ..ask }).await
    }

    fn keep(&self) -> Duration {
        Duration::from_millis(self.keep.load(Ordering::Relaxed))
    }

    /// Sleeps until it is called, or must ask again to keep its position.
    async fn sleep_in_line(&self, place: &Place<'_>, times: u32, patience: Patience) {
        if !place.is_first() {
            // The waiter ahead calls it earlier, so all ask in their order.
            place.sleep(patience.left().min(2 * self.keep() / ASKS_IN_KEEP)).await;
        } else if place.is_watched() {
            place.sleep(patience.left().min(self.keep() / ASKS_IN_KEEP)).await;
        } else if times > 1 {
            // The server does not report changes.
            place.sleep(patience.left().min(POLL)).await;
        }
    }

    /// Calls the hook the first time.
    fn tell_of_waiting(&self, wanted: &Wanted, times: u32) {
        if times == 0 {
            self.keeper.tell(|hooks| hooks.waiting(&wanted.short()));
        }
    }

    /// Waits after temporary errors, and learns the server's limits from others; returns all other errors.
    async fn bear(&self, wanted: &Wanted, error: Error, patience: Patience) -> Result<(), Error> {
        match &error {
            Error::Quarantine { left } if *left < patience.left() => {
                self.servers.is_refused(wanted, &error);
                // The address may lead to another server before the quarantine ends.
                sleep(KEEP.min(*left + PAUSE)).await;
                Ok(())
            }
            Error::ServerRefused { message } => match longest_wait(message) {
                Some(most) => {
                    // Another request may have learned the limit first.
                    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
                    self.keep.fetch_min(most, Ordering::Relaxed);
                    Ok(())
                }
                None => Err(error),
            },
            _ => Err(error),
        }
    }

    /// Renews once after a wait, and counts from that; `None` if the lock was already lost, or no server
    /// answers.
    async fn begin(&self, wanted: &Arc<Wanted>, token: i64, until: Moment) -> Result<Option<Grant>, Error> {
        // Whatever the reply, the lock was granted.
        let was_doubtful = wanted.is_doubtful();
        wanted.doubt();
        let sent = match self.renewed(wanted, wanted.lease, token, until, None).await {
            Err(Error::ConnectionFailed { .. }) => return Ok(None), // the wait may last longer
            sent => sent?,
        };
        wanted.trust(was_doubtful);
        Ok(sent.map(|(sent, _)| Grant { wanted: wanted.clone(), token, sent }))
    }

    /// Renews the leases. Returns the time they start at, and whether an older request may arrive late;
    /// `None` if any of the locks is lost.
    async fn renewed(
        &self,
        wanted: &Wanted,
        lease: Duration,
        token: i64,
        until: Moment,
        failed: Option<Failed<'_>>,
    ) -> Result<Option<(Moment, bool)>, Error> {
        let renewals = wanted.names.iter().map(|name| async move {
            let command = wanted.renew(name, lease, "TOKEN", token);
            self.servers.request(Ask { failed, ..Ask::new(name, &command, until) }).await
        });
        let answers = try_join_all(renewals).await?;
        let is_live = answers.iter().all(|answer| answer.reply == Value::Int(1));
        let is_late = answers.iter().any(|answer| answer.may_come_late);
        Ok(answers.iter().map(|answer| answer.sent).min().filter(|_| is_live).map(|sent| (sent, is_late)))
    }

    // Holding.

    /// Renews a lease. Returns the time it starts at; `None` if it is lost. Reports each failed attempt.
    pub(crate) async fn renew(
        &self,
        held: &Held,
        lease: Duration,
        until: Moment,
    ) -> Result<Option<Moment>, Error> {
        let failed = |error: &Error| self.keeper.failed(held, error);
        let renewed = self.renewed(&held.wanted, lease, held.token, until, Some(&failed)).await;
        if matches!(renewed, Ok(Some((_, true)))) {
            held.may_come_late(lease);
        }
        match renewed {
            Err(error) if error.is_overwritten() => Ok(None),
            answer => Ok(answer?.map(|(sent, _)| sent)),
        }
    }

    /// Asks whether the hold is live, and subscribes to its next change.
    pub(crate) async fn look(&self, held: &Held) -> Look {
        for name in &held.wanted.names {
            match self.fence(name, held.token).await {
                Ok(true) => {}
                Ok(false) => return Look::Lost,
                Err(error) if error.is_overwritten() => return Look::Lost,
                Err(error) if error.is_refusal() => {}
                Err(_) => return Look::Unknown,
            }
        }
        Look::Live
    }

    // Releasing.

    /// Returns whether all locks were still held, as far as known.
    pub(crate) async fn release(&self, wanted: &Wanted, token: i64) -> Result<bool, Error> {
        let until = Moment::now() + WAIT_MARGIN;
        let release = async |name: &Vec<u8>| {
            let command = wanted.release(name, Some(token));
            match self.servers.request(Ask::new(name, &command, until)).await {
                Ok(answer) => Ok(answer.reply == Value::Int(1) || answer.is_repeated),
                Err(error) if error.is_overwritten() => Ok(false),
                Err(error) => Err(error),
            }
        };
        if let [name] = &wanted.names[..] {
            return release(name).await;
        }
        // In boxes, because try_join_all moves them.
        let releases = wanted.names.iter().map(|name| Box::pin(release(name)));
        Ok(try_join_all(releases).await?.into_iter().all(|was_held| was_held))
    }
}

fn grant(wanted: &Arc<Wanted>, answer: &Answer) -> Option<Grant> {
    let Value::Int(token) = answer.reply else { return None };
    Some(Grant { wanted: wanted.clone(), token, sent: answer.sent })
}
