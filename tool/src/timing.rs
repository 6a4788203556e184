//! The arithmetic by which a command is dead before its lease ends, without input or output.
//!
//! A moment is a duration since the boot of the machine, by CLOCK_BOOTTIME, which continues while the machine sleeps.

use std::time::Duration;

/// The time that the guard reserves for its own work, and for a busy machine.
pub const MARGIN: Duration = Duration::from_millis(250);

/// The pause between SIGTERM and SIGKILL: `--kill-after`, at most a third of the lease.
pub fn pause(kill_after: Duration, lease: Duration) -> Duration {
    kill_after.min(lease / 3)
}

/// Returns the lease of the next request: the lock stays taken for at least the rest of `--min-hold`.
pub fn next_lease(lease: Duration, rest: Duration) -> Duration {
    lease.max(rest)
}

/// When the guard ends a command, if no renewal moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// SIGTERM is sent,
    pub term: Duration,
    /// and SIGKILL.
    pub kill: Duration,
}

impl Deadline {
    /// From the moment at which the hold is no longer sure.
    pub fn new(unsure: Duration, pause: Duration) -> Self {
        let kill = unsure.saturating_sub(MARGIN);
        Self { term: kill.saturating_sub(pause), kill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sure(lease: Duration) -> Duration {
        lease - (lease / 100 + Duration::from_millis(2))
    }

    #[test]
    fn the_example_of_the_page_holds() {
        let (lease, sent) = (Duration::from_secs(30), Duration::from_secs(1000));
        let pause = pause(Duration::from_secs(10), lease);
        let deadline = Deadline::new(sent + sure(lease), pause);
        assert_eq!(deadline.term - sent, Duration::from_millis(19_448));
        assert_eq!(deadline.kill - sent, Duration::from_millis(29_448));
    }

    #[test]
    fn the_shortest_lease_leaves_time_for_a_renewal_before_the_first_signal() {
        let lease = Duration::from_secs(3);
        let pause = pause(Duration::from_secs(10), lease);
        let deadline = Deadline::new(sure(lease), pause);
        assert_eq!(pause, Duration::from_secs(1));
        assert!(lease / 3 < deadline.term && deadline.term < deadline.kill);
    }

    #[test]
    fn the_rest_of_the_minimal_hold_is_asked_for_while_it_is_longer() {
        let seconds = Duration::from_secs;
        assert_eq!(next_lease(seconds(30), seconds(50)), seconds(50));
        assert_eq!(next_lease(seconds(30), seconds(5)), seconds(30));
    }
}
