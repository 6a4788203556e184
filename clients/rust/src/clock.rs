//! A clock that cannot be set and that keeps counting while the machine sleeps, if there is one.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// One moment on both tokio's clock and this one, once a test has begun to use tokio's.
#[cfg(feature = "testing")]
static OF_TESTS: std::sync::OnceLock<(std::time::Instant, Moment)> = std::sync::OnceLock::new();

/// Uses tokio's clock from now on, which a test can pause and advance.
#[cfg(feature = "testing")]
pub(crate) fn use_the_clock_of_tests() {
    let now = Moment::now();
    OF_TESTS.get_or_init(|| (std::time::Instant::now(), now));
}

/// A moment of this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// Later than all others.
    pub(crate) const NEVER: Self = Self(Duration::MAX);

    /// Returns the present moment.
    pub(crate) fn now() -> Self {
        #[cfg(feature = "testing")]
        if let Some((instant, moment)) = OF_TESTS.get() {
            let now = tokio::time::Instant::now().into_std();
            let (since, until) =
                (now.saturating_duration_since(*instant), instant.saturating_duration_since(now));
            return Self((moment.0 + since).saturating_sub(until));
        }
        let time = clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
    }

    /// Returns the time until then; zero if it is past.
    pub(crate) fn left(self) -> Duration {
        self - Self::now()
    }

    /// Returns the time since then.
    pub(crate) fn age(self) -> Duration {
        Self::now() - self
    }
}

/// Returns a random pause. Each hasher has other keys, which take no system call.
pub(crate) fn at_random(most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    most.mul_f64(f64::from(u32::try_from(random & 0xffff_ffff).unwrap_or_default()) / f64::from(u32::MAX))
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl Sub for Moment {
    type Output = Duration;

    fn sub(self, other: Self) -> Duration {
        self.0.saturating_sub(other.0)
    }
}
