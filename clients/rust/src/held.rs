//! One hold: until when it lasts, when it is renewed, and what has become of it.

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

/// What was had: the token, and when the request that got it was sent.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) wanted: Arc<Wanted>,
    pub(crate) token: i64,
    pub(crate) sent: Moment,
}

impl Grant {
    /// Whether nothing is left of it.
    pub(crate) fn is_over(&self) -> bool {
        self.sent.age() >= sure(self.wanted.lease)
    }
}

/// How a hold has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Released,
    Lost(Loss),
}

#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) lease: Duration,
    /// What renewals ask for, unless the lock has to stay taken for longer.
    pub(crate) next: Duration,
    pub(crate) deadline: Moment,
    pub(crate) renew_at: Moment,
    pub(crate) watch_at: Moment,
    /// The shortest lease of a renewal that went unanswered, and until when it may still reach the server.
    pub(crate) stray: Option<(Duration, Moment)>,
    /// How many attempts to renew have failed since one succeeded, and why the last one did.
    pub(crate) failures: u32,
    pub(crate) cause: Option<Error>,
    pub(crate) end: Option<End>,
    /// Under which moment the keeper has it.
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
    /// When the hold ends at the latest.
    over_at: Moment,
    /// Whether its holder has learned of its loss, and whether it was given up after that.
    is_told: AtomicBool,
    is_given_up: AtomicBool,
    /// How many futures work under it.
    works: AtomicUsize,
    times: Mutex<Times>,
    pub(crate) ended: Notify,
    /// One renewal at a time. Else one that is sent again might undo a lease that the holder has asked for meanwhile. And
    /// replies that are seen in the wrong order might count a lease that the server has replaced.
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

    /// Counts a lease from the moment at which it was asked for. An older renewal that comes late may still cut it, so
    /// no more is sure than the lease of that one.
    pub(crate) fn count_from(&self, sent: Moment, lease: Duration) {
        let mut times = self.times();
        times.stray = times.stray.filter(|(_, until)| sent < *until);
        let surely = times.stray.map_or(lease, |(stray, _)| lease.min(stray));
        // At random, so that holds which began together are not renewed together for ever.
        let due = sent + (renewal(surely) - at_random(renewal(surely) / RENEW_EARLIER));
        times.lease = lease;
        times.deadline = (sent + sure(surely)).min(self.over_at);
        // The last lease reaches to the end of the longest hold.
        let is_last = self.is_last(&times);
        times.renew_at = if self.renews && !is_last { due } else { Moment::NEVER };
        let (failures, _) = (mem::take(&mut times.failures), times.cause.take());
        drop(times);
        if failures > 0 {
            warn!("renewed lock '{}' after {failures} failed renewals", self.wanted.label());
        }
    }

    /// Notes that a lease is asked for, which may be shorter than the one before. Until that is answered, and if it
    /// never is, the server may have begun it or may still do so. So no more is sure, and no more is renewed.
    pub(crate) fn may_count_from(&self, sent: Moment, lease: Duration) {
        let mut times = self.times();
        times.lease = times.lease.min(lease);
        times.next = times.next.min(lease);
        times.deadline = times.deadline.min(sent + sure(lease));
        if times.renew_at != Moment::NEVER {
            times.renew_at = times.renew_at.min(sent + renewal(lease));
        }
    }

    /// Notes that a renewal for this lease went unanswered.
    pub(crate) fn may_come_late(&self, lease: Duration) {
        let mut times = self.times();
        let shortest = times.stray.map_or(lease, |(stray, _)| stray.min(lease));
        times.stray = Some((shortest, Moment::now() + STRAY));
    }

    pub(crate) fn lease(&self) -> Duration {
        self.times().lease
    }

    /// Whether the deadline is that of the longest hold.
    fn is_last(&self, times: &Times) -> bool {
        let margin = times.lease - sure(times.lease) + Duration::from_millis(1);
        self.over_at != Moment::NEVER && times.deadline + margin >= self.over_at
    }

    /// The lease that a renewal asks for by itself: the last one is cut to what is left. `None`: there is no time for one.
    pub(crate) fn renewed_lease(&self) -> Option<Duration> {
        let lease = self.times().next.max(self.wanted.parked());
        Some(lease.min(self.longest_left())).filter(|lease| *lease >= SHORTEST_LEASE)
    }

    /// Until when a renewal for this lease may be asked for: a later one could end too late.
    pub(crate) fn ask_until(&self, lease: Duration) -> Moment {
        if self.over_at == Moment::NEVER {
            return self.deadline();
        }
        let spare = self.longest_left().saturating_sub(lease);
        self.deadline().min(Moment::now() + spare.max(lease / 2))
    }

    /// For how long it may still last at most.
    pub(crate) fn longest_left(&self) -> Duration {
        if self.over_at == Moment::NEVER { Duration::MAX } else { self.over_at.left() }
    }

    /// What its end by its deadline is: the longest hold is over, or no renewal has succeeded in time.
    pub(crate) fn expiry(&self) -> Loss {
        if self.is_last(&self.times()) { Loss::MaxHold } else { Loss::Deadline }
    }

    /// Why the last renewal failed.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.times().cause.clone().map(|cause| Arc::new(cause) as Cause)
    }

    /// Notes that its holder learned of the loss.
    pub(crate) fn is_told(&self) {
        self.is_told.store(true, Ordering::Relaxed);
    }

    /// Whether this call is the first to give up what was lost: then what is left of it is released.
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

    /// Whether a renewal is due, which the caller then begins.
    pub(crate) fn takes_renewal(&self) -> bool {
        let mut times = self.times();
        let is_due = times.renew_at <= Moment::now();
        if is_due {
            times.renew_at = Moment::NEVER;
        }
        is_due
    }

    /// The loss of the hold.
    pub(crate) fn lost(&self, reason: Loss) -> Error {
        self.is_told();
        Error::LockLost { name: self.wanted.label(), reason, source: self.cause() }
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.times().deadline
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.times().end
    }

    /// Notes when a renewal that has failed is tried again.
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
