//! What INFO tells about the past (SPEC 8).

use hdrhistogram::Histogram;

/// How often each thing happened since the module was loaded, and how long waits and holds took.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Holds begun by a decision of this server, and those that go on as another kind or under a new token.
    pub grants: u64,
    /// Those of them that were waited for.
    pub contended_grants: u64,
    /// Holds given up by their owner, also for a new grant to the same, or taken back before the owner heard of them.
    pub releases: u64,
    /// Holds whose lease ran out.
    pub expirations: u64,
    /// Holds ended from outside: the key was deleted, overwritten, renamed.
    pub broken: u64,
    /// Waits that ended at their timeout.
    pub timeouts: u64,
    /// Waits that were refused because they would never have ended.
    pub deadlocks: u64,
    /// Commands that did not run because their token was not live.
    pub fenced: u64,
    /// How long granted requests had waited, in milliseconds.
    pub waits: Durations,
    /// How long ended holds had lasted, in milliseconds.
    pub holds: Durations,
}

/// Durations below this are counted one by one.
const SHORT_MS: usize = 64;

/// A distribution of durations in milliseconds, to two significant digits.
#[derive(Clone, Debug)]
pub struct Durations {
    /// How many lasted each of the first milliseconds: most do, and counting them here costs next to nothing.
    short: [u64; SHORT_MS],
    long: Option<Histogram<u64>>,
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
        // Made at its first use: an idle module holds no table. Bounds that the library accepts
        // cannot fail; without it the figure is merely missing.
        if self.long.is_none() {
            self.long = Histogram::new_with_bounds(1, super::types::LEASE_MS_MAX * 2, 2).ok();
        }
        if let Some(histogram) = &mut self.long {
            histogram.saturating_record(ms);
        }
    }

    /// The duration that this share (0.0 to 1.0) of all did not exceed, 0 if there were none.
    #[must_use]
    pub fn quantile_ms(&self, share: f64) -> u64 {
        let long = self.long.as_ref().map_or(0, Histogram::len);
        let all = self.short.iter().sum::<u64>() + long;
        let wanted = (all as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0);
        let mut seen = 0;
        for (ms, count) in (0..).zip(self.short) {
            seen += count;
            if seen as f64 >= wanted {
                return ms;
            }
        }
        let share = (wanted - seen as f64) / long.max(1) as f64;
        self.long.as_ref().map_or(0, |h| h.value_at_quantile(share).min(h.max()))
    }

    /// The longest, 0 if there were none.
    #[must_use]
    pub fn max_ms(&self) -> u64 {
        let short = self.short.iter().rposition(|&count| count > 0).unwrap_or(0) as u64;
        self.long.as_ref().map_or(short, Histogram::max)
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
}
