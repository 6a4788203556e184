//! The decisions, without I/O: constants, deadlines, and the consequences of a reply.

use std::time::Duration;

use crc16::{State, XMODEM};

/// A token that no hold ever has. A release with it ends a wait but no hold.
pub(crate) const NOBODYS: i64 = 1;
/// The default lease.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// A holder does not rely on a hundredth of its lease, because clocks run at different speeds,
const DRIFT_PART: u32 = 100;
/// nor on this.
const MARGIN: Duration = Duration::from_millis(2);
/// A hold is renewed after this fraction of its lease.
const RENEW_PART: u32 = 3;
/// The renewal is up to this fraction of that time earlier, at random.
pub(crate) const RENEW_EARLIER: u32 = 10;
/// The most waiters of a process in the server's queue of one lock. Further ones wait in the process, so a
/// process with a thousand waiters does not shut out another one. Also the most connections that wait
/// (`BLOCK`).
pub(crate) const WAITING: usize = 16;
/// The time beyond its wait for which a request may go unanswered: a little less than the two seconds in the
/// docs.
pub(crate) const WAIT_MARGIN: Duration = Duration::from_millis(1800);
/// The time for which no server may answer during an unlimited wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The time after which an unanswered request is sent again, over a new connection.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(2);
/// The delay with which an unanswered request may reach the server after its connection was abandoned.
pub(crate) const STRAY: Duration = Duration::from_secs(30);
/// The time for which a queue position is kept for a client that does not ask again,
pub(crate) const KEEP: Duration = Duration::from_secs(5);
/// and the number of its requests in that time.
pub(crate) const ASKS_IN_KEEP: u32 = 3;
/// The first lease of a client that has waited: if it dies before it renews, others wait no longer.
pub(crate) const FIRST_LEASE: Duration = Duration::from_secs(5);
/// The time from a grant until the client subscribes to its end: most holds end earlier.
pub(crate) const WATCH_AFTER: Duration = Duration::from_millis(20);
/// The pause between two attempts,
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// and the longest one, since pauses double.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The longest random pause before the second attempt to reconnect. It doubles with each attempt,
pub(crate) const RECONNECT: Duration = Duration::from_millis(50);
/// up to this.
pub(crate) const LONGEST_RECONNECT: Duration = Duration::from_secs(1);
/// The interval at which the shared connection asks about a blocked request.
pub(crate) const PROBE: Duration = Duration::from_millis(1500);
/// The time after which a wait is logged, and again whenever it has doubled.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(30);
/// The time after which a wait is logged for a lock that the same client holds.
pub(crate) const OWN_WAIT: Duration = Duration::from_secs(1);
/// The time for which an unlimited wait is requested at once, over a connection of its own.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The polling interval of a waiter, if the server does not report changes.
pub(crate) const POLL: Duration = Duration::from_millis(100);
/// The most time that closing takes, unless the program sets another limit.
pub(crate) const FAREWELL: Duration = Duration::from_secs(5);
/// The longest sleep of the scheduler while something is held: its timer stops while the machine sleeps.
pub(crate) const NAP: Duration = Duration::from_secs(1);
/// The share of a lease that each independent server may take to answer,
const EACH_PART: u32 = 10;
/// and the upper limit.
const EACH_MOST: Duration = Duration::from_millis(500);
/// The longest random pause between two attempts at independent servers.
pub(crate) const BACK_OFF: Duration = Duration::from_millis(200);

/// The oldest module that has everything this library needs, in the form that HELLO reports versions: 300 is
/// 0.3.0.
pub(crate) const MODULE_VERSION_MIN: u64 = 300;

/// The number of slots in a cluster.
const SLOTS: u16 = 16_384;

/// Returns the time for which a hold of this lease is certain, counted from before its request was sent.
pub(crate) fn sure(lease: Duration) -> Duration {
    lease.saturating_sub(lease / DRIFT_PART + MARGIN)
}

/// Returns the time of the latest renewal of a hold of this lease, counted from before its last request was
/// sent.
pub(crate) fn renewal(lease: Duration) -> Duration {
    lease / RENEW_PART
}

/// Returns the time limit of one of several independent servers.
pub(crate) fn each(lease: Duration) -> Duration {
    (lease / EACH_PART).min(EACH_MOST)
}

/// Converts a duration to milliseconds for the server, at least one.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Returns the number that is more than half of `servers`.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Returns the slot of a name in a cluster.
pub(crate) fn slot(name: &[u8]) -> u16 {
    let open = name.iter().position(|byte| *byte == b'{').map_or(name.len(), |at| at + 1);
    let tag =
        name[open..].iter().position(|byte| *byte == b'}').map_or(&[][..], |end| &name[open..open + end]);
    State::<XMODEM>::calculate(if tag.is_empty() { name } else { tag }) % SLOTS
}

/// The client's next step after an error reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// It returns the error to its caller.
    Fail,
    /// It asks again after a pause, at the server that is then the primary.
    Again,
    /// The same, over a new connection: the server is not a primary, and its address may now lead to another
    /// one.
    Elsewhere,
    /// It asks the node that has the slot now.
    Moved { slot: u16, host: String, port: u16 },
    /// It asks this node, once.
    Ask { host: String, port: u16 },
}

/// Decides the next step after an error of the server.
pub(crate) fn judge(text: &str) -> Step {
    let mut words = text.split_ascii_whitespace();
    let code = words.next().unwrap_or_default();
    match code {
        "MOVED" | "ASK" => redirection(code == "MOVED", words.next(), words.next()).unwrap_or(Step::Fail),
        "READONLY" | "UNBLOCKED" | "MASTERDOWN" => Step::Elsewhere,
        "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" => Step::Again,
        _ => Step::Fail,
    }
}

fn redirection(is_moved: bool, slot: Option<&str>, address: Option<&str>) -> Option<Step> {
    let (host, port) = address?.rsplit_once(':')?;
    let (host, port) = (host.to_owned(), port.parse().ok()?);
    if is_moved {
        Some(Step::Moved { slot: slot?.parse().ok()?, host, port })
    } else {
        Some(Step::Ask { host, port })
    }
}

/// Returns the longest wait that this server allows (`redislock.max-wait`), if the error names it.
pub(crate) fn longest_wait(text: &str) -> Option<Duration> {
    most_of("QUEUE", text).or_else(|| most_of("BLOCK", text))
}

/// Returns the longest lease that this server allows, if the error names it: its `redislock.max-lease`, or
/// its `redislock.quarantine` if that is set and shorter.
pub(crate) fn longest_lease(text: &str) -> Option<Duration> {
    most_of("PX", text)
}

fn most_of(option: &str, text: &str) -> Option<Duration> {
    let rest = text.strip_prefix("ERR ")?.strip_prefix(option)?;
    let range = rest.strip_prefix(" must be an integer from ")?;
    let most = range.split_once(" to ")?.1.split_ascii_whitespace().next()?;
    most.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_counts_on_its_lease_less_a_hundredth_and_two_milliseconds() {
        assert_eq!(sure(Duration::from_secs(30)), Duration::from_millis(29_698));
        assert_eq!(sure(Duration::from_millis(1)), Duration::ZERO);
        assert_eq!(renewal(Duration::from_secs(30)), Duration::from_secs(10));
    }

    #[test]
    fn errors_say_what_to_do_next() {
        assert_eq!(judge("READONLY You can't write against a read only replica."), Step::Elsewhere);
        assert_eq!(judge("UNBLOCKED this server is no longer a primary; ask the new one"), Step::Elsewhere);
        assert_eq!(judge("LOADING Redis is loading the dataset in memory"), Step::Again);
        assert_eq!(judge("LOCKKIND this lock is LIMIT 2 now"), Step::Fail);
        let host = || "::1".to_owned();
        assert_eq!(judge("MOVED 3999 ::1:7001"), Step::Moved { slot: 3999, host: host(), port: 7001 });
        assert_eq!(judge("ASK 3999 ::1:7001"), Step::Ask { host: host(), port: 7001 });
        assert_eq!(judge("MOVED nonsense"), Step::Fail);
    }

    #[test]
    fn the_longest_wait_is_read_from_the_error() {
        let text = "ERR QUEUE must be an integer from 1 to 3000 (milliseconds)";
        assert_eq!(longest_wait(text), Some(Duration::from_secs(3)));
        let text = "ERR PX must be an integer from 1 to 3000 (milliseconds)";
        assert_eq!((longest_wait(text), longest_lease(text)), (None, Some(Duration::from_secs(3))));
    }

    #[test]
    fn names_with_the_same_hash_tag_are_in_one_slot() {
        assert_eq!(slot(b"{tag}a"), slot(b"{tag}b"));
        assert_eq!(slot(b"123456789"), 12_739);
        assert_eq!(slot(b"{}a"), 10_875);
    }

    #[test]
    fn a_majority_is_more_than_half() {
        assert_eq!([1, 2, 3, 4, 5].map(majority), [1, 2, 2, 3, 3]);
    }
}
