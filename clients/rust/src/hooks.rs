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
pub struct Counters {
    grants: AtomicU64,
    timeouts: AtomicU64,
    losses: AtomicU64,
    releases: AtomicU64,
    waits: AtomicU64,
    renewal_failures: AtomicU64,
    reconnects: AtomicU64,
}

impl Counters {
    /// Acquires that were granted.
    pub fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// Acquires that ended in [`LockTimeout`](crate::Error::LockTimeout).
    pub fn timeouts(&self) -> u64 {
        self.timeouts.load(Ordering::Relaxed)
    }

    /// Holds that were lost.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Holds that were given up by their holders.
    pub fn releases(&self) -> u64 {
        self.releases.load(Ordering::Relaxed)
    }

    /// Acquires that waited in line.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Attempts to renew that failed.
    pub fn renewal_failures(&self) -> u64 {
        self.renewal_failures.load(Ordering::Relaxed)
    }

    /// Connections that took the place of one that had ended.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Hooks for Counters {
    fn waiting(&self, _: &str) {
        add(&self.waits);
    }

    fn granted(&self, _: &str, _: Duration) {
        add(&self.grants);
    }

    fn timed_out(&self, _: &str, _: Duration) {
        add(&self.timeouts);
    }

    fn released(&self, _: &str, _: Duration) {
        add(&self.releases);
    }

    fn lost(&self, _: &str, _: Duration, _: Loss) {
        add(&self.losses);
    }

    fn renewal_failed(&self, _: &str, _: &Error) {
        add(&self.renewal_failures);
    }

    fn reconnected(&self, _: &str) {
        add(&self.reconnects);
    }
}
