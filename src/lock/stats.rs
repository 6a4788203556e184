//! The counters and durations that INFO reports (CONTRACT 8).

use hdrhistogram::Histogram;

/// Counts of events since the module was loaded, and durations of waits and holds.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Holds that a decision of this server started, and those that continue as another kind or under a new token.
    pub grants: u64,
    /// The grants among them for which a request waited.
    pub contended_grants: u64,
    /// Holds released by their owner, also for a new grant to the same, or revoked before the grant was delivered.
    pub releases: u64,
    /// Holds whose lease expired.
    pub expirations: u64,
    /// Holds ended from outside: the key was deleted, overwritten, renamed.
    pub broken: u64,
    /// Live holds that moved away with their slot.
    pub left: u64,
    /// Waits that ended at their timeout.
    pub timeouts: u64,
    /// Waits that were refused because they would have closed a cycle.
    pub deadlocks: u64,
    /// Commands that did not run because their token was not live.
    pub fenced: u64,
    /// The waiting times of granted requests, in milliseconds.
    pub waits: Durations,
    /// The durations of ended holds, in milliseconds.
    pub holds: Durations,
}

/// Durations below this are counted one by one.
const SHORT_MS: usize = 64;

/// The upper bounds, in milliseconds, of the buckets that INFO shows: the same on every server, so that the counts of
/// several servers can be added up.
pub const BUCKETS_MS: [u64; 14] =
    [1, 2, 5, 10, 25, 50, 100, 250, 1_000, 5_000, 15_000, 60_000, 600_000, 3_600_000];

/// A distribution of durations in milliseconds: exact counts for each of [`BUCKETS_MS`], quantiles to two significant
/// digits.
#[derive(Clone, Debug)]
pub struct Durations {
    /// The number of durations of each of the first milliseconds. Most are that short, and counting them here costs
    /// almost nothing.
    short: [u64; SHORT_MS],
    long: Option<Box<Long>>,
}

/// The durations that are not counted in `short`.
#[derive(Clone, Debug)]
struct Long {
    histogram: Histogram<u64>,
    /// The number of durations up to each of [`BUCKETS_MS`] and longer than the one before.
    buckets: [u64; BUCKETS_MS.len()],
    sum_ms: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { short: [0; SHORT_MS], long: None }
    }
}

impl Durations {
    /// Counts one duration.
    #[inline]
    pub fn add(&mut self, ms: u64) {
        match usize::try_from(ms).ok().and_then(|ms| self.short.get_mut(ms)) {
            Some(count) => *count += 1,
            None => self.add_long(ms),
        }
    }

    #[cold]
    fn add_long(&mut self, ms: u64) {
        // Created on first use, so that an idle module has no table. Creating it cannot fail with bounds that the
        // library accepts; otherwise the figure is merely missing.
        if self.long.is_none() {
            let histogram = Histogram::new_with_bounds(1, super::types::LEASE_MS_MAX * 2, 2).ok();
            self.long = histogram
                .map(|histogram| Box::new(Long { histogram, buckets: Default::default(), sum_ms: 0 }));
        }
        if let Some(long) = &mut self.long {
            long.histogram.saturating_record(ms);
            long.sum_ms = long.sum_ms.saturating_add(ms);
            if let Some(count) = long.buckets.get_mut(BUCKETS_MS.partition_point(|&bound| bound < ms)) {
                *count += 1;
            }
        }
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.short.iter().sum::<u64>() + self.long.as_ref().map_or(0, |long| long.histogram.len())
    }

    /// Returns the sum of all durations, in milliseconds.
    #[must_use]
    pub fn sum_ms(&self) -> u64 {
        let short: u64 = (0..).zip(self.short).map(|(ms, count)| ms * count).sum();
        short.saturating_add(self.long.as_ref().map_or(0, |long| long.sum_ms))
    }

    /// Returns the number of durations up to each of [`BUCKETS_MS`].
    #[must_use]
    pub fn buckets(&self) -> [u64; BUCKETS_MS.len()] {
        let mut counts = self.long.as_ref().map_or_else(Default::default, |long| long.buckets);
        let mut long = 0;
        for (&bound, count) in BUCKETS_MS.iter().zip(&mut counts) {
            long += *count;
            let short = (0..).zip(self.short).take_while(|&(ms, _)| ms <= bound);
            *count = long + short.map(|(_, count)| count).sum::<u64>();
        }
        counts
    }

    /// Returns the duration that this share (0.0 to 1.0) of all did not exceed, 0 if there were none.
    #[must_use]
    pub fn quantile_ms(&self, share: f64) -> u64 {
        let long = self.long.as_ref().map(|long| &long.histogram);
        let all = self.count();
        let wanted = (all as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0);
        let mut seen = 0;
        for (ms, count) in (0..).zip(self.short) {
            seen += count;
            if seen as f64 >= wanted {
                return ms;
            }
        }
        let share = (wanted - seen as f64) / long.map_or(1, |h| h.len().max(1)) as f64;
        long.map_or(0, |h| h.value_at_quantile(share).min(h.max()))
    }

    /// Returns the longest duration, 0 if there were none.
    #[must_use]
    pub fn max_ms(&self) -> u64 {
        let short = self.short.iter().rposition(|&count| count > 0).unwrap_or(0) as u64;
        self.long.as_ref().map_or(short, |long| long.histogram.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_two_digits() {
        let mut durations = Durations::default();
        assert_eq!((durations.quantile_ms(0.5), durations.max_ms()), (0, 0));
        for ms in 1..=1000 {
            durations.add(ms);
        }
        assert!((495..=505).contains(&durations.quantile_ms(0.5)));
        assert!((980..=1000).contains(&durations.quantile_ms(0.99)));
        assert!((1000..=1007).contains(&durations.max_ms()));
        assert_eq!(durations.quantile_ms(0.01), 10);
        assert_eq!(durations.quantile_ms(0.0), 1);
        assert!((990..=1007).contains(&durations.quantile_ms(1.0)));
        durations.add(u64::MAX);
        assert!(durations.max_ms() >= 2 * super::super::types::LEASE_MS_MAX);
    }
    #[test]
    fn each_bucket_counts_what_lasted_no_longer_than_its_bound() {
        let mut durations = Durations::default();
        assert_eq!((durations.count(), durations.sum_ms(), durations.buckets()), (0, 0, [0; 14]));
        let mut all = vec![0, 0, 63, 64, 65, 3_600_001, 86_400_000];
        all.extend(BUCKETS_MS.iter().flat_map(|&bound| [bound - 1, bound, bound + 1]));
        for &ms in &all {
            durations.add(ms);
        }
        let counted = BUCKETS_MS.map(|bound| all.iter().filter(|&&ms| ms <= bound).count() as u64);
        assert_eq!(durations.buckets(), counted);
        assert_eq!((durations.count(), durations.sum_ms()), (all.len() as u64, all.iter().sum()));
    }
}
