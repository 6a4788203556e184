//! The decisions, without input or output: constants, deadlines, and what follows from a reply.

use std::time::Duration;

use crc16::{State, XMODEM};

/// A token that no hold ever has: a release with it ends a wait, and no hold.
pub(crate) const NOBODYS: i64 = 1;
/// How long a hold lasts unless it is renewed.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// A hundredth of a lease is not counted on, for clocks that run at different speeds,
const DRIFT_PART: u32 = 100;
/// and neither is this.
const MARGIN: Duration = Duration::from_millis(2);
/// A hold is renewed when this part of its lease is over.
const RENEW_PART: u32 = 3;
/// It comes up to this part of that time earlier, at random.
pub(crate) const RENEW_EARLIER: u32 = 10;
/// Most waiters of a process that stand in the server's line of one lock; the others stand behind them in the process.
/// So a process with a thousand waiters does not keep another one out. Also the most connections that wait (`BLOCK`).
pub(crate) const WAITING: usize = 16;
/// How long beyond its wait a request may go unanswered: a little less than the two seconds that users are told.
pub(crate) const WAIT_MARGIN: Duration = Duration::from_millis(1800);
/// For how long no server may answer, where a wait has no end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// After this a request that is not answered is sent again, over a new connection.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(2);
/// How late a request may reach the server that was not answered, and whose connection was given up.
pub(crate) const STRAY: Duration = Duration::from_secs(30);
/// For how long a place in line is kept for a client that does not ask again,
pub(crate) const KEEP: Duration = Duration::from_secs(5);
/// and how often it asks in that time.
pub(crate) const ASKS_IN_KEEP: u32 = 3;
/// The first lease of a client that has waited: one that dies before it renews holds up others no longer.
pub(crate) const FIRST_LEASE: Duration = Duration::from_secs(5);
/// From a grant until the server is asked to tell of its end: most holds are over before.
pub(crate) const WATCH_AFTER: Duration = Duration::from_millis(20);
/// Between two attempts,
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// and at most, for pauses double.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause before the second attempt to connect again, at random; it doubles with each attempt,
pub(crate) const RECONNECT: Duration = Duration::from_millis(50);
/// up to this.
pub(crate) const LONGEST_RECONNECT: Duration = Duration::from_secs(1);
/// How often a blocked request is asked about over the shared connection.
pub(crate) const PROBE: Duration = Duration::from_millis(1500);
/// After this a wait is logged, and whenever it has doubled.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(30);
/// After this a wait is logged for a lock that is held by the same client.
pub(crate) const OWN_WAIT: Duration = Duration::from_secs(1);
/// How long a wait without an end is asked for in one request over a connection of its own.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How often a waiter asks whether it is its turn, where the server does not tell.
pub(crate) const POLL: Duration = Duration::from_millis(100);
/// How long closing takes at most, unless the program says so.
pub(crate) const FAREWELL: Duration = Duration::from_secs(5);
/// How long the scheduler sleeps at most while something is held: its timer stands still while the machine sleeps.
pub(crate) const NAP: Duration = Duration::from_secs(1);
/// Of independent servers, each may take this part of a lease to answer,
const EACH_PART: u32 = 10;
/// and at most this.
const EACH_MOST: Duration = Duration::from_millis(500);
/// The longest pause, at random, between two attempts at independent servers.
pub(crate) const BACK_OFF: Duration = Duration::from_millis(200);

/// The oldest module that has all that this library asks for, as HELLO tells versions: 300 is 0.3.0.
pub(crate) const MODULE_VERSION_MIN: u64 = 300;

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// For how long a hold of this lease may count on it, from before its request was sent.
pub(crate) fn sure(lease: Duration) -> Duration {
    lease.saturating_sub(lease / DRIFT_PART + MARGIN)
}

/// When a hold of this lease is renewed at the latest, from before its last request was sent.
pub(crate) fn renewal(lease: Duration) -> Duration {
    lease / RENEW_PART
}

/// For how long one of several independent servers is waited for.
pub(crate) fn each(lease: Duration) -> Duration {
    (lease / EACH_PART).min(EACH_MOST)
}

/// A duration as the server wants it: at least one millisecond.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// How many of `servers` servers are more than half.
pub(crate) fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// The slot of a name in a cluster.
pub(crate) fn slot(name: &[u8]) -> u16 {
    let open = name.iter().position(|byte| *byte == b'{').map_or(name.len(), |at| at + 1);
    let tag =
        name[open..].iter().position(|byte| *byte == b'}').map_or(&[][..], |end| &name[open..open + end]);
    State::<XMODEM>::calculate(if tag.is_empty() { name } else { tag }) % SLOTS
}

/// What a client does next when the server replied an error.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// It tells its caller.
    Fail,
    /// It asks again after a pause, at the server that is the primary then.
    Again,
    /// The same, over a new connection: the server is no primary, and its address may lead to another one now.
    Elsewhere,
    /// It asks the node that has the slot now.
    Moved { slot: u16, host: String, port: u16 },
    /// It asks this node, once.
    Ask { host: String, port: u16 },
}

/// What follows from an error of the server.
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

/// The longest wait that this server allows (`redislock.max-wait`), if this error tells it.
pub(crate) fn longest_wait(text: &str) -> Option<Duration> {
    most_of("QUEUE", text).or_else(|| most_of("BLOCK", text))
}

/// The longest lease that this server allows, if this error tells it: its `redislock.max-lease`, or its
/// `redislock.quarantine` if that is set and shorter.
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
