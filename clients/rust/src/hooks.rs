//! What a program can be told about its locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Loss};
#[cfg(feature = "opentelemetry")]
pub use crate::otel::OpenTelemetry;

/// What a program is told: implement what you need, or use [`Counters`] or `OpenTelemetry`.
///
/// A hook is called in the middle of the work, so it must be quick; a panic in it does no harm. `name` is the name of the lock,
/// or of the first of several.
#[allow(unused_variables)] // the names are for those who implement it
pub trait Hooks: Send + Sync + 'static {
    /// An acquire begins. Its end is one of `granted`, `timed_out` and `failed`.
    fn requested(&self, name: &str) {}

    /// An acquire waits in line.
    fn waiting(&self, name: &str) {}

    /// A lock was granted. The request had waited for `waited`.
    fn granted(&self, name: &str, waited: Duration) {}

    /// A lock was not to be had in time. The request had waited for `waited`.
    fn timed_out(&self, name: &str, waited: Duration) {}

    /// An acquire ended in an error that is no time-out, or `None` if its future was dropped.
    fn failed(&self, name: &str, waited: Duration, error: Option<&Error>) {}

    /// A hold was given up by its holder. It had lasted for `held`.
    fn released(&self, name: &str, held: Duration) {}

    /// A hold was lost. It had lasted for `held`.
    fn lost(&self, name: &str, held: Duration, reason: Loss) {}

    /// A renewal failed, and is tried again. Called for each attempt.
    fn renewal_failed(&self, name: &str, error: &Error) {}

    /// The server at this `host:port` serves again over a new connection, after the one before had ended.
    fn reconnected(&self, address: &str) {}
}

/// Hooks that do nothing.
impl Hooks for () {}

/// Hooks that count: `Arc<Counters>` for [`Builder::hooks`](crate::Builder::hooks), and a clone of it to read.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Acquires that were granted.
    pub grants: Counter,
    /// Acquires that ended in [`LockTimeout`](crate::Error::LockTimeout).
    pub timeouts: Counter,
    /// Holds that were lost.
    pub losses: Counter,
    /// Holds that were given up by their holders.
    pub releases: Counter,
    /// Acquires that waited in line.
    pub waits: Counter,
    /// Attempts to renew that failed.
    pub renewal_failures: Counter,
    /// Connections that took the place of one that had ended.
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
