//! The remaining lease, and a check that nothing has shortened it.

use std::time::Instant;

use super::Client;

/// The remaining lease at a moment.
pub struct Lease {
    key: String,
    token: i64,
    left_ms: i64,
    read_at: Instant,
}

impl Lease {
    #[track_caller]
    pub fn read(client: &mut Client, key: &str) -> Lease {
        // Before the question: the server's answer is of a later moment, so the lease ends no earlier than counted here.
        let read_at = Instant::now();
        let hold = client.hold(key).unwrap_or_else(|| panic!("{key} is not held"));
        Lease { key: key.into(), token: hold.token, left_ms: hold.lease_left_ms, read_at }
    }

    /// G2: the same hold still has at least its earlier lease, less the time that has passed; and no more than
    /// `most_ms`.
    #[track_caller]
    pub fn assert_kept(&self, client: &mut Client, most_ms: i64) {
        let hold = client.hold(&self.key).unwrap_or_else(|| panic!("{} is lost", self.key));
        assert_eq!(hold.token, self.token, "the token of {}", self.key);
        let due_ms = self.left_ms - i64::try_from(self.read_at.elapsed().as_millis()).unwrap();
        let left_ms = hold.lease_left_ms;
        assert!(left_ms >= due_ms - 1, "{} had {due_ms} ms to go and has {left_ms}", self.key);
        assert!(left_ms <= most_ms, "{} has {left_ms} ms of {most_ms}", self.key);
    }
}
