//! One hold: its deadline, its renewals, and its end.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::{error, warn};

use crate::clock::{Moment, at_random};
use crate::error::{Cause, Error, Loss};
use crate::link::{lock, next_number};
use crate::rules::{RENEW_EARLIER, STRAY, WATCH_AFTER, renewal, sure};
use crate::wanted::{SHORTEST_LEASE, Wanted};

/// A grant: the token, and the time when its request was sent.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) wanted: Arc<Wanted>,
    pub(crate) token: i64,
    pub(crate) sent: Moment,
}

impl Grant {
    /// Returns true if its lease has expired.
    pub(crate) fn is_over(&self) -> bool {
        self.sent.age() >= sure(self.wanted.lease)
    }
}

/// The way in which a hold has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Released,
    Lost(Loss),
}

#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) lease: Duration,
    /// The lease that renewals ask for, unless the lock must stay taken for longer.
    pub(crate) next: Duration,
    pub(crate) deadline: Moment,
    pub(crate) renew_at: Moment,
    pub(crate) watch_at: Moment,
    /// The shortest lease of an unanswered renewal, and the time until which it may still reach the server.
    pub(crate) stray: Option<(Duration, Moment)>,
    /// The number of consecutive failed renewals, and the last error.
    pub(crate) failures: u32,
    pub(crate) cause: Option<Error>,
    pub(crate) end: Option<End>,
    /// The moment under which the keeper has filed it.
    pub(crate) filed: Option<Moment>,
}

/// One or several locks that are held together.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) id: u64,
    pub(crate) wanted: Arc<Wanted>,
    pub(crate) token: i64,
    pub(crate) granted_at: Moment,
    renews: bool,
    /// The time at which the hold ends at the latest.
    over_at: Moment,
    /// True if its holder has learned of its loss, and true if it was released after that.
    is_told: AtomicBool,
    is_given_up: AtomicBool,
    /// The number of futures that work under it.
    works: AtomicUsize,
    times: Mutex<Times>,
    pub(crate) ended: Notify,
    /// Allows one renewal at a time. Otherwise a repeated one might undo a lease that the holder has asked
    /// for meanwhile. And replies that are read in the wrong order might start a lease that the server has
    /// replaced.
    pub(crate) renewing: tokio::sync::Mutex<()>,
}

impl Held {
    pub(crate) fn new(grant: Grant, next: Duration, renews: bool, max_hold: Option<Duration>) -> Self {
        let (lease, granted_at) = (grant.wanted.lease, Moment::now());
        let (deadline, renew_at, watch_at) = (Moment::NEVER, Moment::NEVER, granted_at + WATCH_AFTER);
        let over_at = max_hold.map_or(Moment::NEVER, |most| grant.sent + most);
        let held = Self {
            id: next_number(),
            wanted: grant.wanted,
            token: grant.token,
            granted_at,
            renews,
            over_at,
            is_told: AtomicBool::default(),
            is_given_up: AtomicBool::default(),
            works: AtomicUsize::default(),
            times: Mutex::new(Times {
                lease,
                next,
                deadline,
                renew_at,
                watch_at,
                stray: None,
                failures: 0,
                cause: None,
                end: None,
                filed: None,
            }),
            ended: Notify::new(),
            renewing: tokio::sync::Mutex::new(()),
        };
        held.count_from(grant.sent, lease);
        held
    }

    pub(crate) fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.times)
    }

    /// Starts a lease at the moment when it was requested. An older renewal that arrives late may still
    /// shorten it, so only that shorter lease is certain.
    pub(crate) fn count_from(&self, sent: Moment, lease: Duration) {
        let mut times = self.times();
        times.stray = times.stray.filter(|(_, until)| sent < *until);
        let surely = times.stray.map_or(lease, |(stray, _)| lease.min(stray));
        // Random offsets spread the renewals of holds that began together.
        let due = sent + (renewal(surely) - at_random(renewal(surely) / RENEW_EARLIER));
        times.lease = lease;
        times.deadline = (sent + sure(surely)).min(self.over_at);
        // The last lease lasts until the end of the longest hold.
        let is_last = self.is_last(&times);
        times.renew_at = if self.renews && !is_last { due } else { Moment::NEVER };
        let (failures, _) = (mem::take(&mut times.failures), times.cause.take());
        drop(times);
        if failures > 0 {
            warn!("renewed lock '{}' after {failures} failed renewals", self.wanted.label());
        }
    }

    /// Records that a lease is requested, which may be shorter than the one before. Until it is answered, the
    /// server may have started it or may still do so. So only the shorter lease is certain, and only that one
    /// is renewed.
    pub(crate) fn may_count_from(&self, sent: Moment, lease: Duration) {
        let mut times = self.times();
        times.lease = times.lease.min(lease);
        times.next = times.next.min(lease);
        times.deadline = times.deadline.min(sent + sure(lease));
        if times.renew_at != Moment::NEVER {
            times.renew_at = times.renew_at.min(sent + renewal(lease));
        }
    }

    /// Records that a renewal for this lease went unanswered.
    pub(crate) fn may_come_late(&self, lease: Duration) {
        let mut times = self.times();
        let shortest = times.stray.map_or(lease, |(stray, _)| stray.min(lease));
        times.stray = Some((shortest, Moment::now() + STRAY));
    }

    pub(crate) fn lease(&self) -> Duration {
        self.times().lease
    }

    /// Returns true if the deadline is the end of the longest hold.
    fn is_last(&self, times: &Times) -> bool {
        let margin = times.lease - sure(times.lease) + Duration::from_millis(1);
        self.over_at != Moment::NEVER && times.deadline + margin >= self.over_at
    }

    /// Returns the lease that an automatic renewal asks for: the last one is cut to the rest. `None`: no time
    /// is left.
    pub(crate) fn renewed_lease(&self) -> Option<Duration> {
        let lease = self.times().next.max(self.wanted.parked());
        Some(lease.min(self.longest_left())).filter(|lease| *lease >= SHORTEST_LEASE)
    }

    /// Returns the time until which a renewal for this lease may be requested: a later one could end too
    /// late.
    pub(crate) fn ask_until(&self, lease: Duration) -> Moment {
        if self.over_at == Moment::NEVER {
            return self.deadline();
        }
        let spare = self.longest_left().saturating_sub(lease);
        self.deadline().min(Moment::now() + spare.max(lease / 2))
    }

    /// Returns the longest time that it may still last.
    pub(crate) fn longest_left(&self) -> Duration {
        if self.over_at == Moment::NEVER { Duration::MAX } else { self.over_at.left() }
    }

    /// Returns the reason for its end by its deadline: the longest hold has ended, or no renewal has
    /// succeeded in time.
    pub(crate) fn expiry(&self) -> Loss {
        if self.is_last(&self.times()) { Loss::MaxHold } else { Loss::Deadline }
    }

    /// Returns the error of the last renewal.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.times().cause.clone().map(|cause| Arc::new(cause) as Cause)
    }

    /// Records that its holder learned of the loss.
    pub(crate) fn is_told(&self) {
        self.is_told.store(true, Ordering::Relaxed);
    }

    /// Returns true if this call is the first to release a lost hold: then the server's hold is released.
    pub(crate) fn gives_up(&self) -> bool {
        let is_first = !self.is_given_up.swap(true, Ordering::Relaxed);
        let is_closed = self.end() == Some(End::Lost(Loss::Close));
        if is_first && !is_closed && !self.is_told.load(Ordering::Relaxed) {
            error!(
                "lock '{}' was lost, and its holder released it without being notified",
                self.wanted.label()
            );
        }
        is_first
    }

    /// Counts work under it until the result is dropped.
    pub(crate) fn begin_work(&self) -> Working<'_> {
        self.works.fetch_add(1, Ordering::SeqCst);
        Working(self)
    }

    pub(crate) fn is_worked_under(&self) -> bool {
        self.works.load(Ordering::SeqCst) > 0
    }

    /// Returns true if a renewal is due, which the caller then starts.
    pub(crate) fn takes_renewal(&self) -> bool {
        let mut times = self.times();
        let is_due = times.renew_at <= Moment::now();
        if is_due {
            times.renew_at = Moment::NEVER;
        }
        is_due
    }

    /// Returns the error for the loss of the hold.
    pub(crate) fn lost(&self, reason: Loss) -> Error {
        self.is_told();
        Error::LockLost { name: self.wanted.label(), reason, source: self.cause() }
    }

    /// Returns the time until its deadline; `None` if it has ended.
    pub(crate) fn left(&self) -> Option<Duration> {
        let (deadline, end) = {
            let times = self.times();
            (times.deadline, times.end)
        };
        if end.is_none() { Some(deadline.left()) } else { None }
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.times().deadline
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.times().end
    }

    /// Sets the time at which a failed renewal is retried.
    pub(crate) fn renew_again_at(&self, at: Moment) {
        if self.renews && at + SHORTEST_LEASE <= self.over_at {
            self.times().renew_at = at;
        }
    }

    pub(crate) fn watch_at(&self, at: Moment) {
        self.times().watch_at = at;
    }

    /// Waits for its end.
    pub(crate) async fn until_end(&self) -> End {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Some(end) = self.end() {
                return end;
            }
            ended.await;
        }
    }
}

/// Work under a hold, until this is dropped.
pub(crate) struct Working<'a>(&'a Held);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.works.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wanted::Kind;

    #[test]
    fn renewals_are_spread_at_random_and_never_late() {
        let (sent, lease) = (Moment::now(), Duration::from_secs(30));
        let wanted = Wanted::new(vec![b"k".into()], 0, Kind::Exclusive, lease, b"me".to_vec());
        let wanted = Arc::new(wanted.unwrap());
        let due = |_| {
            let held = Held::new(Grant { wanted: wanted.clone(), token: 1, sent }, lease, true, None);
            held.times().renew_at - sent
        };
        let mut dues: Vec<_> = (0..100).map(due).collect();
        dues.sort();
        assert!(dues[0] >= Duration::from_secs(9) && dues[99] <= Duration::from_secs(10), "{dues:?}");
        assert!(dues[99] - dues[0] > Duration::from_millis(500), "{dues:?}");
    }
}
