//! Hooks are called for lock events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Loss};
#[cfg(feature = "opentelemetry")]
pub use crate::otel::OpenTelemetry;

/// Functions that are called for lock events. Implement those that you need, or use [`Counters`] or `OpenTelemetry`.
///
/// A hook is called while the library works, so it must not block; a panic in it is ignored. `name` is the name of the
/// lock, or of the first of several.
#[allow(unused_variables)] // the names are for those who implement it
pub trait Hooks: Send + Sync + 'static {
    /// Called when an acquire begins. `granted`, `timed_out` or `failed` follows.
    fn requested(&self, name: &str) {}

    /// Called when an acquire has to wait.
    fn waiting(&self, name: &str) {}

    /// Called when a lock is granted. The request waited for `waited`.
    fn granted(&self, name: &str, waited: Duration) {}

    /// Called when a lock is not granted in time. The request waited for `waited`.
    fn timed_out(&self, name: &str, waited: Duration) {}

    /// Called when an acquire fails for another reason than a timeout; the error is `None` if its future was dropped.
    fn failed(&self, name: &str, waited: Duration, error: Option<&Error>) {}

    /// Called when a holder releases its hold. It lasted for `held`.
    fn released(&self, name: &str, held: Duration) {}

    /// Called when a hold is lost. It lasted for `held`.
    fn lost(&self, name: &str, held: Duration, reason: Loss) {}

    /// Called for each failed renewal. Renewals are retried until the hold's deadline.
    fn renewal_failed(&self, name: &str, error: &Error) {}

    /// Called when the server at this `host:port` answers again over a new connection.
    fn reconnected(&self, address: &str) {}
}

/// Hooks that do nothing.
impl Hooks for () {}

/// Hooks that count: `Arc<Counters>` for [`Builder::hooks`](crate::Builder::hooks), and a clone of it to read.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Granted acquires.
    pub grants: Counter,
    /// Acquires that ended in [`LockTimeout`](crate::Error::LockTimeout).
    pub timeouts: Counter,
    /// Lost holds.
    pub losses: Counter,
    /// Released holds.
    pub releases: Counter,
    /// Acquires that had to wait.
    pub waits: Counter,
    /// Failed renewals.
    pub renewal_failures: Counter,
    /// New connections after a failure.
    pub reconnects: Counter,
}

/// One of the [`Counters`].
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Hooks for Counters {
    fn waiting(&self, _: &str) {
        self.waits.add();
    }

    fn granted(&self, _: &str, _: Duration) {
        self.grants.add();
    }

    fn timed_out(&self, _: &str, _: Duration) {
        self.timeouts.add();
    }

    fn released(&self, _: &str, _: Duration) {
        self.releases.add();
    }

    fn lost(&self, _: &str, _: Duration, _: Loss) {
        self.losses.add();
    }

    fn renewal_failed(&self, _: &str, _: &Error) {
        self.renewal_failures.add();
    }

    fn reconnected(&self, _: &str) {
        self.reconnects.add();
    }
}
