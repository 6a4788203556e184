//! The locks of one server, one primary, or one cluster: acquires, waits in line, renews, looks, gives up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::Value;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::abandon::Errands;
use crate::clock::Moment;
use crate::error::{Error, Loss};
use crate::keeper::{Grant, Held, Keeper};
use crate::line::{Lines, May, Place};
use crate::link::{Before, Failure, lock};
use crate::rules::{
    ASKS_IN_KEEP, ATTEMPT, FIRST_LEASE, KEEP, LONG, LONGEST_PAUSE, PATIENCE, PAUSE, POLL, Step, WAIT_MARGIN,
    judge, longest_wait, sure,
};
use crate::servers::{Answer, Ask, Servers, Topology};
use crate::wanted::{Line, Wanted, fence};

/// How long an acquire may wait, and since when it does.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) wait: Option<Duration>,
    pub(crate) began: Moment,
}

impl Patience {
    pub(crate) fn new(wait: Option<Duration>) -> Self {
        Self { wait, began: Moment::now() }
    }

    /// What is left of it.
    pub(crate) fn left(self) -> Duration {
        self.wait.map_or(Duration::MAX, |wait| (self.began + wait).left())
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// Until when a request is repeated that the server does not answer.
    fn until(self) -> Moment {
        match self.wait {
            Some(wait) => self.began + wait + WAIT_MARGIN,
            None => Moment::now() + PATIENCE,
        }
    }
}

/// What a loss is noticed by, of a hold that is asked about.
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
    /// What is given up in the background.
    pub(crate) errands: Errands,
    waiting: Semaphore,
    /// For how long a place in line is kept, in milliseconds: the server may allow less than we ask for.
    keep: AtomicU64,
    /// The longest wait that the server allows, once it has told.
    longest_block: Mutex<Duration>,
}

impl Core {
    pub(crate) fn new(topology: Topology, keeper: Arc<Keeper>, waiting: usize) -> Self {
        let lines = Arc::new(Lines::new(waiting));
        let (holders, waiters) = (keeper.clone(), lines.clone());
        let servers = Servers::new(
            topology,
            Arc::new(move |change| {
                waiters.changed(&change);
                holders.changed(&change);
            }),
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

    /// The grant; None if it was not to be had in time. What is left behind is for the caller to give up.
    pub(crate) async fn acquire(
        &self,
        wanted: &Arc<Wanted>,
        patience: Patience,
    ) -> Result<Option<Grant>, Error> {
        self.call_off(wanted);
        if patience.wait == Some(Duration::ZERO) {
            return self.attempt(wanted, Moment::now() + WAIT_MARGIN).await;
        }
        let waited = if wanted.names.len() > 1 {
            self.wait_blocked(wanted, patience).await?
        } else {
            self.wait_in_line(wanted, patience).await?
        };
        if waited.is_some() { Ok(waited) } else { self.attempt_last(wanted).await }
    }

    /// Asks once without a wait: only such a request is told of a quarantine, by an error that says how long.
    async fn attempt_last(&self, wanted: &Arc<Wanted>) -> Result<Option<Grant>, Error> {
        match self.attempt(wanted, Moment::now() + WAIT_MARGIN).await {
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

    /// Keeps a place in line over the shared connection, and asks when the server tells of a change.
    async fn wait_in_line(&self, wanted: &Arc<Wanted>, patience: Patience) -> Result<Option<Grant>, Error> {
        let mut place = self.lines.join(wanted.name());
        let (mut lease, mut times) = (wanted.lease, 0);
        let mut behind_since = None;
        loop {
            place.clear();
            let blocked = match place.may_ask() {
                May::Ask => Duration::ZERO,
                May::NotYet => LONG,
                // A waiter that is not called in time asks all the same, for its place may lapse.
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
                    self.bear(error, patience).await?;
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
            lease = lease.min(FIRST_LEASE);
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

    /// Until it is called, or has to ask in order to keep its place.
    async fn sleep_in_line(&self, place: &Place<'_>, times: u32, patience: Patience) {
        if !place.is_first() {
            // The one before calls it earlier: so all ask in their order.
            place.sleep(patience.left().min(2 * self.keep() / ASKS_IN_KEEP)).await;
        } else if place.is_watched() {
            place.sleep(patience.left().min(self.keep() / ASKS_IN_KEEP)).await;
        } else if times > 1 {
            // The server does not tell.
            place.sleep(patience.left().min(POLL)).await;
        }
    }

    /// Tells the hooks, the first time.
    fn tell_of_waiting(&self, wanted: &Wanted, times: u32) {
        if times == 0 {
            self.keeper.tell(|hooks| hooks.waiting(&wanted.short()));
        }
    }

    /// Waits for what passes, learns what the server allows; hands on all else.
    async fn bear(&self, error: Error, patience: Patience) -> Result<(), Error> {
        match &error {
            Error::Quarantine { left } if *left < patience.left() => {
                sleep(*left + PAUSE).await;
                Ok(())
            }
            Error::Refused { message } => match longest_wait(message) {
                Some(most) if most < self.keep() => {
                    self.keep.store(u64::try_from(most.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
                    Ok(())
                }
                _ => Err(error),
            },
            _ => Err(error),
        }
    }

    /// Renews once after a wait, and counts from that; None if the lock was lost already.
    async fn begin(&self, wanted: &Arc<Wanted>, token: i64, until: Moment) -> Result<Option<Grant>, Error> {
        // Whatever comes, it was granted.
        let was_doubtful = wanted.is_doubtful();
        wanted.doubt();
        let sent = self.renewed(wanted, wanted.lease, token, until).await?;
        wanted.trust(was_doubtful);
        Ok(sent.map(|(sent, _)| Grant { wanted: wanted.clone(), token, sent }))
    }

    /// Renews the leases. Returns from when they count, and whether an older request may come late; None if any of the
    /// locks is lost.
    async fn renewed(
        &self,
        wanted: &Wanted,
        lease: Duration,
        token: i64,
        until: Moment,
    ) -> Result<Option<(Moment, bool)>, Error> {
        let renewals = wanted.names.iter().map(|name| async move {
            let command = wanted.renew(name, lease, "TOKEN", token);
            self.servers.request(Ask::new(name, &command, until)).await
        });
        let answers = try_join_all(renewals).await?;
        let is_live = answers.iter().all(|answer| answer.reply == Value::Int(1));
        let is_late = answers.iter().any(|answer| answer.may_come_late);
        Ok(answers.iter().map(|answer| answer.sent).min().filter(|_| is_live).map(|sent| (sent, is_late)))
    }

    /// Waits for several locks at once, over a connection of its own.
    async fn wait_blocked(&self, wanted: &Arc<Wanted>, patience: Patience) -> Result<Option<Grant>, Error> {
        match self.attempt(wanted, patience.until()).await {
            Ok(None) | Err(Error::Quarantine { .. }) => {} // a waiter is let in when it is over
            settled => return settled,
        }
        self.tell_of_waiting(wanted, 0);
        let lease = wanted.lease.min(FIRST_LEASE);
        let mut reached = Moment::now();
        while !patience.is_over() {
            let Ok(permit) = timeout(patience.left(), self.waiting.acquire()).await else { break };
            let _permit = permit.map_err(|_| Error::Closed)?;
            match self.block(wanted, lease, patience).await {
                Ok(Value::Int(token)) => {
                    // It was granted at any time of the wait, and not after this moment.
                    let until = Moment::now() + sure(lease);
                    let lost = || Error::LockLost { name: wanted.label(), reason: Loss::Renewal };
                    return self.begin(wanted, token, until).await?.map(Some).ok_or_else(lost);
                }
                Ok(_) => reached = Moment::now(),
                Err(Failure::Refused(text)) => return Err(Error::from_reply(&text)),
                Err(Failure::Broken(why)) => {
                    let most = patience.wait.map_or(PATIENCE, |wait| wait.saturating_add(WAIT_MARGIN));
                    if reached.age() > most {
                        return Err(Error::connection(why));
                    }
                    sleep(LONGEST_PAUSE.min(patience.left())).await;
                }
            }
        }
        Ok(None)
    }

    /// Sends one request that waits. Returns nil also if the server said that another one has to be asked.
    async fn block(&self, wanted: &Wanted, lease: Duration, patience: Patience) -> Result<Value, Failure> {
        let most = patience.left().min(*lock(&self.longest_block));
        let linking = timeout(patience.left(), self.servers.own_link(wanted.name())).await;
        let (link, address) =
            linking.unwrap_or_else(|_| Err(Failure::Broken("it took too long".to_owned())))?;
        let command = wanted.acquire(lease, Line::Block(most));
        // It may be cancelled, or be cut: then the request may have been granted unheard.
        let was_doubtful = wanted.is_doubtful();
        wanted.doubt();
        let text = match link.call(&command, most + WAIT_MARGIN).await {
            Ok((value, _)) => {
                wanted.trust(was_doubtful);
                return Ok(value);
            }
            Err(Failure::Broken(why)) => {
                self.servers.forget(Some(&address));
                return Err(Failure::Broken(why).at(&address));
            }
            Err(Failure::Refused(text)) => text,
        };
        wanted.trust(was_doubtful);
        match (longest_wait(&text), judge(&text)) {
            (Some(most), _) => *lock(&self.longest_block) = most,
            (None, Step::Fail) => return Err(Failure::Refused(text)),
            (None, Step::Moved { .. }) if self.servers.is_single() => return Err(Failure::Refused(text)),
            (None, Step::Moved { slot, host, port }) => self.servers.moved(slot, host, port, Some(&address)),
            (None, _) => {
                self.servers.forget(Some(&address));
                sleep(PAUSE).await;
            }
        }
        Ok(Value::Nil)
    }

    // Holding.

    /// Renews a lease. Returns from when it counts; None if it is lost.
    pub(crate) async fn renew(&self, held: &Held, lease: Duration) -> Result<Option<Moment>, Error> {
        let renewed = self.renewed(&held.wanted, lease, held.token, held.deadline()).await;
        if matches!(renewed, Ok(Some((_, true)))) {
            held.may_come_late(lease);
        }
        match renewed {
            Err(error) if error.is_overwritten() => Ok(None),
            answer => Ok(answer?.map(|(sent, _)| sent)),
        }
    }

    /// Asks whether the hold is live, and to be told of its next change.
    pub(crate) async fn look(&self, held: &Held) -> Look {
        for name in &held.wanted.names {
            let command = fence(name, Some(held.token));
            let address = self.servers.address(name);
            let reply = match self.servers.link(name).await {
                Ok(link) => link.call(&command, ATTEMPT).await,
                Err(failure) => Err(failure),
            };
            match reply {
                Ok((Value::Int(0), _)) => return Look::Lost,
                Ok(_) => {}
                Err(Failure::Refused(text)) if text.starts_with("WRONGTYPE") => return Look::Lost,
                Err(Failure::Refused(text)) if judge(&text) == Step::Fail => {}
                Err(_) => {
                    self.servers.forget(address.as_ref());
                    return Look::Unknown;
                }
            }
        }
        Look::Live
    }

    // Giving up.

    /// Whether all was still held, as far as one knows.
    pub(crate) async fn release(&self, wanted: &Wanted, token: i64) -> Result<bool, Error> {
        let until = Moment::now() + WAIT_MARGIN;
        let releases = wanted.names.iter().map(|name| async move {
            let command = wanted.release(name, Some(token));
            match self.servers.request(Ask::new(name, &command, until)).await {
                Ok(answer) => Ok(answer.reply == Value::Int(1) || answer.is_repeated),
                Err(error) if error.is_overwritten() => Ok(false),
                Err(error) => Err(error),
            }
        });
        Ok(try_join_all(releases).await?.into_iter().all(|was_held| was_held))
    }

    // Asking.

    /// Whether the token is that of a live hold.
    pub(crate) async fn fence(&self, name: &[u8], token: i64) -> Result<bool, Error> {
        let command = fence(name, Some(token));
        let ask = Ask::new(name, &command, Moment::now() + WAIT_MARGIN);
        Ok(self.servers.request(ask).await?.reply == Value::Int(1))
    }

    /// The names of all locks that this owner holds, on all servers.
    pub(crate) async fn held_by(&self, owner: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut command = redis::cmd("LOCK.HELDBY");
        command.arg(owner);
        let mut names = Vec::new();
        for address in self.servers.primaries().await.map_err(error_of)? {
            let asked = async { self.servers.link_to(&address).await?.call(&command, ATTEMPT).await };
            let (reply, _) = asked.await.map_err(|failure| error_of(failure.at(&address)))?;
            let Value::Array(rows) = reply else { continue };
            names.extend(rows.into_iter().filter_map(held_name));
        }
        Ok(names)
    }
}

fn grant(wanted: &Arc<Wanted>, answer: &Answer) -> Option<Grant> {
    let Value::Int(token) = answer.reply else { return None };
    Some(Grant { wanted: wanted.clone(), token, sent: answer.sent })
}

fn error_of(failure: Failure) -> Error {
    match failure {
        Failure::Broken(why) => Error::connection(why),
        Failure::Refused(text) => Error::from_reply(&text),
    }
}

/// The name in a row of `LOCK.HELDBY`, if the row is about a hold.
fn held_name(row: Value) -> Option<Vec<u8>> {
    let Value::Array(row) = row else { return None };
    let mut columns = row.into_iter();
    let (Some(Value::BulkString(name)), Some(state)) = (columns.next(), columns.next()) else { return None };
    let is_held = match state {
        Value::BulkString(state) => state == b"held",
        Value::SimpleString(state) => state == "held",
        _ => false,
    };
    is_held.then_some(name)
}
