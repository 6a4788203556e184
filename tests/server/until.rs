//! Waiting for a condition: always bounded, never by a sleep that hopes to be long enough.

use std::time::{Duration, Instant};

use super::binary::VALGRIND;

/// The limit for anything that should take a few milliseconds.
const LIMIT: Duration = Duration::from_secs(15);

const PAUSE: Duration = Duration::from_millis(5);

/// A time limit, stretched where the server is known to be slow.
pub fn patient(limit: Duration) -> Duration {
    if *VALGRIND { limit * 20 } else { limit }
}

pub const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Asks until there is an answer.
#[track_caller]
pub fn await_some<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let limit = patient(LIMIT);
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain until {what}");
        std::thread::sleep(PAUSE);
    }
}

#[track_caller]
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    await_some(what, || is_so().then_some(()));
}

/// Lets time pass in which something must not happen.
pub fn let_pass(duration: Duration) {
    std::thread::sleep(duration);
}
