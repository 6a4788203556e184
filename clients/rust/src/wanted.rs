//! The request of one acquire, and the commands for it.

use std::borrow::Cow;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use redis::Cmd;
use uuid::Uuid;

use crate::clock::Moment;
use crate::error::Error;
use crate::rules::{FIRST_LEASE, NOBODYS, milliseconds};

/// The shortest lease: it leaves time for a renewal, and a shorter one is most likely a mistake in the unit.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The longest owner that the server accepts.
const LONGEST_OWNER: usize = 256;
/// Makes the server generate an owner for each request, which no later request could name.
const MADE_UP: &[u8] = b"*";
/// The most names that the server accepts together,
const MOST_NAMES: usize = 64;
/// and the most permits of a semaphore.
const HIGHEST_LIMIT: u32 = 1_000_000;

/// The longest label: an owner is a label and a UUID.
const LONGEST_LABEL: usize = 200;

/// Identifies the process of an owner for operators, unless the program sets a label: host and process.
pub(crate) static HOST_LABEL: LazyLock<String> = LazyLock::new(|| {
    let host: String = rustix::system::uname().nodename().to_string_lossy().chars().take(64).collect();
    // 64 characters may be 256 bytes.
    let host = if host.len() > LONGEST_LABEL / 2 { "host" } else { &host };
    format!("{host}:{}", process::id())
});

/// Returns a new, unique owner.
pub(crate) fn new_owner(label: &str) -> Vec<u8> {
    let mut uuid = Uuid::encode_buffer();
    [label, ":", Uuid::new_v4().hyphenated().encode_lower(&mut uuid)].concat().into_bytes()
}

/// Refuses a label that cannot begin an owner.
pub(crate) fn check_label(label: &str) -> Result<(), Error> {
    if (1..=LONGEST_LABEL).contains(&label.len()) {
        return Ok(());
    }
    Err(Error::invalid(format!("label must be from 1 to {LONGEST_LABEL} bytes long, not {}", label.len())))
}

/// Refuses a lease that is too short to be renewed.
pub(crate) fn check_lease(lease: Duration) -> Result<(), Error> {
    if lease < SHORTEST_LEASE {
        return Err(Error::invalid(format!("lease must be {SHORTEST_LEASE:?} or more, not {lease:?}")));
    }
    Ok(())
}

/// Refuses a name that no server would accept.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.is_empty() { Err(Error::invalid("the name of a lock must not be empty")) } else { Ok(()) }
}

/// Refuses an owner that no server would accept, or that no later request could name.
pub(crate) fn check_owner(owner: &[u8]) -> Result<(), Error> {
    if !(1..=LONGEST_OWNER).contains(&owner.len()) {
        let text = format!("owner must be from 1 to {LONGEST_OWNER} bytes long, not {}", owner.len());
        return Err(Error::invalid(text));
    }
    if owner == MADE_UP {
        let range = format!("owner must be from 1 to {LONGEST_OWNER} bytes long");
        return Err(Error::invalid(format!("{range}, and not *, which is another owner each time")));
    }
    Ok(())
}

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By one owner.
    Exclusive,
    /// By several readers.
    Shared,
    /// By this many owners at most.
    Limit(u32),
}

/// The way in which a request waits on the server.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    /// Not at all.
    No,
    /// With a queue position that the server keeps for this time.
    Queue(Duration),
    /// For this time, over a blocked connection.
    Block(Duration),
}

/// The request of one acquire, with an owner of its own.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// With the prefix of each.
    pub(crate) names: Vec<Vec<u8>>,
    /// The length of each name's prefix in bytes.
    pub(crate) prefix: usize,
    pub(crate) kind: Kind,
    pub(crate) lease: Duration,
    /// The lease that a request asks for after a wait.
    pub(crate) first_lease: Duration,
    pub(crate) owner: Vec<u8>,
    /// True if the program names the owner, which may then hold other locks.
    pub(crate) is_named: bool,
    /// The time until which the lock stays taken, whatever happens to its holder.
    parked_until: OnceLock<Moment>,
    /// True if a request went unanswered, and may reach the server late.
    doubtful: AtomicBool,
    /// True if the latest request is in flight, or was granted.
    grantable: AtomicBool,
    /// True if any request was sent at all.
    sent: AtomicBool,
}

impl Wanted {
    /// Refuses arguments that no server would accept.
    pub(crate) fn new(
        names: Vec<Vec<u8>>,
        prefix: usize,
        kind: Kind,
        lease: Duration,
        owner: Vec<u8>,
    ) -> Result<Self, Error> {
        if !(1..=MOST_NAMES).contains(&names.len()) {
            return Err(Error::invalid(format!("many takes 1 to {MOST_NAMES} names, not {}", names.len())));
        }
        names.iter().try_for_each(|name| check_name(&name[prefix..]))?;
        let is_again = |(at, name): &(usize, &Vec<u8>)| names[..*at].contains(name);
        if let Some((_, twice)) = names.iter().enumerate().find(is_again) {
            let name = String::from_utf8_lossy(&twice[prefix..]);
            return Err(Error::invalid(format!("many takes each name once, and {name} is named twice")));
        }
        check_lease(lease)?;
        check_owner(&owner)?;
        match kind {
            Kind::Limit(_) if names.len() > 1 => {
                return Err(Error::invalid("several semaphores cannot be taken together"));
            }
            Kind::Limit(limit) if !(1..=HIGHEST_LIMIT).contains(&limit) => {
                let text = format!("limit must be from 1 to {HIGHEST_LIMIT}, not {limit}");
                return Err(Error::invalid(text));
            }
            _ => {}
        }
        Ok(Self::of(names, prefix, kind, lease, owner))
    }

    /// Makes a request for the same locks with another owner.
    pub(crate) fn anew(&self, label: &str) -> Self {
        Self::of(self.names.clone(), self.prefix, self.kind, self.lease, new_owner(label))
    }

    fn of(names: Vec<Vec<u8>>, prefix: usize, kind: Kind, lease: Duration, owner: Vec<u8>) -> Self {
        let [doubtful, grantable, sent] = <[AtomicBool; 3]>::default();
        let (first_lease, parked_until) = (lease.min(FIRST_LEASE), OnceLock::new());
        let is_named = false;
        Self {
            names,
            prefix,
            kind,
            lease,
            first_lease,
            owner,
            is_named,
            parked_until,
            doubtful,
            grantable,
            sent,
        }
    }

    /// Returns the first name, by which the server is found.
    pub(crate) fn name(&self) -> &[u8] {
        &self.names[0]
    }

    /// Returns the names, for people.
    pub(crate) fn label(&self) -> String {
        listed(&self.names, self.prefix)
    }

    /// Returns the first name, for hooks.
    pub(crate) fn short(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name()[self.prefix..])
    }

    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    /// Returns true if the server may have granted it, judging by requests and replies.
    pub(crate) fn may_be_granted(&self) -> bool {
        self.is_doubtful() || self.grantable.load(Ordering::Relaxed)
    }

    /// Returns true if there may be anything to give up.
    pub(crate) fn was_sent(&self) -> bool {
        self.is_doubtful() || self.sent.load(Ordering::Relaxed)
    }

    /// Records that a request is sent.
    pub(crate) fn sends(&self) {
        self.sent.store(true, Ordering::Relaxed);
        self.grantable.store(true, Ordering::Relaxed);
    }

    /// Records that it was answered, and has got nothing.
    pub(crate) fn got_nothing(&self) {
        self.grantable.store(false, Ordering::Relaxed);
    }

    /// Records that a request went unanswered.
    pub(crate) fn doubt(&self) {
        self.doubtful.store(true, Ordering::Relaxed);
    }

    /// Records that it was answered after all.
    pub(crate) fn trust(&self, was_doubtful: bool) {
        self.doubtful.store(was_doubtful, Ordering::Relaxed);
    }

    /// Acquires the lock or all of the locks, waits, or keeps a queue position.
    pub(crate) fn acquire(&self, lease: Duration, line: Line) -> Cmd {
        let mut command = if self.names.len() > 1 {
            let mut command = command("LOCK.MACQUIRE");
            command.arg(self.names.len()).arg(&self.names);
            command
        } else {
            let mut command = command("LOCK.ACQUIRE");
            command.arg(self.name());
            command
        };
        command.arg(&self.owner).arg("PX").arg(milliseconds(lease));
        match line {
            Line::No => {}
            Line::Queue(keep) => drop(command.arg("QUEUE").arg(milliseconds(keep))),
            Line::Block(wait) => drop(command.arg("BLOCK").arg(milliseconds(wait))),
        }
        match self.kind {
            Kind::Exclusive => {}
            Kind::Shared => drop(command.arg("SHARED")),
            Kind::Limit(limit) => drop(command.arg("LIMIT").arg(limit)),
        }
        command
    }

    /// Starts a new lease.
    pub(crate) fn renew(&self, name: &[u8], lease: Duration, which: &str, token: i64) -> Cmd {
        let mut command = command("LOCK.RENEW");
        command.arg(name).arg(&self.owner).arg("PX").arg(milliseconds(lease)).arg(which).arg(token);
        command
    }

    /// Keeps the lock taken until then: an earlier release only ends the hold.
    pub(crate) fn park(&self, until: Moment) {
        self.parked_until.get_or_init(|| until);
    }

    /// Returns the time for which the lock must stay taken, in whole milliseconds.
    pub(crate) fn parked(&self) -> Duration {
        let left = self.parked_until.get().map_or(Duration::ZERO, |until| until.left());
        Duration::from_millis(u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }

    /// Releases the hold; without a token, also ends the wait. If the lock must stay taken, its lease is cut
    /// to the rest instead.
    pub(crate) fn release(&self, name: &[u8], token: Option<i64>) -> Cmd {
        let parked = self.parked();
        if let Some(token) = token.filter(|token| *token != NOBODYS && !parked.is_zero()) {
            return self.renew(name, parked, "TOKEN", token);
        }
        let mut command = command("LOCK.RELEASE");
        command.arg(name).arg(&self.owner);
        if let Some(token) = token {
            command.arg("TOKEN").arg(token);
        }
        command
    }
}

/// Begins a command, with room for the words of most of them.
fn command(name: &str) -> Cmd {
    let mut command = Cmd::with_capacity(8, 256);
    command.arg(name);
    command
}

/// Lists names for people, without their prefixes.
pub(crate) fn listed(names: &[Vec<u8>], prefix: usize) -> String {
    let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(&name[prefix..])).collect();
    names.join(", ")
}

/// Asks whether the token is live. On a connection that receives pushes, it also subscribes to the next
/// change.
pub(crate) fn fence(name: &[u8], token: Option<i64>) -> Cmd {
    let mut command = command("LOCK.FENCE");
    command.arg(name).arg(token);
    command
}

/// A release by an owner that never exists: a write that changes nothing.
pub(crate) fn release_nothing(name: &[u8]) -> Cmd {
    let mut command = command("LOCK.RELEASE");
    command.arg(name).arg(new_owner(&HOST_LABEL)).arg("TOKEN").arg(NOBODYS);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Cmd) -> String {
        String::from_utf8(command.get_packed_command()).unwrap()
    }

    #[test]
    fn owners_differ_and_name_the_process() {
        let (one, other) = (new_owner(&HOST_LABEL), new_owner(&HOST_LABEL));
        assert_ne!(one, other);
        assert!(String::from_utf8(one).unwrap().contains(&format!(":{}:", process::id())));
    }

    #[test]
    fn several_names_are_taken_by_one_request() {
        let wanted = Wanted::new(
            vec![b"a".into(), b"b".into()],
            0,
            Kind::Shared,
            Duration::from_secs(1),
            b"me".to_vec(),
        )
        .unwrap();
        let packed = words(&wanted.acquire(wanted.lease, Line::No));
        assert_eq!(
            packed.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>(),
            ["LOCK.MACQUIRE", "2", "a", "b", "me", "PX", "1000", "SHARED"]
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let second = Duration::from_secs(1);
        let wanted = |names: &[&str], kind, owner: &str| {
            let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            Wanted::new(names, 0, kind, second, owner.into())
        };
        let refused = |names: &[&str], kind, owner: &str| wanted(names, kind, owner).unwrap_err().to_string();
        let alone = Kind::Exclusive;
        assert_eq!(refused(&[], alone, "me"), "many takes 1 to 64 names, not 0");
        assert!(wanted(&["a"; 65], alone, "me").is_err());
        assert_eq!(refused(&["a", ""], alone, "me"), "the name of a lock must not be empty");
        assert_eq!(refused(&["a", "b", "a"], alone, "me"), "many takes each name once, and a is named twice");
        assert_eq!(refused(&["a"], alone, ""), "owner must be from 1 to 256 bytes long, not 0");
        let long = "x".repeat(257);
        assert!(wanted(&["a"], alone, &long[1..]).is_ok());
        assert_eq!(refused(&["a"], alone, &long), "owner must be from 1 to 256 bytes long, not 257");
        assert!(refused(&["a"], alone, "*").ends_with("and not *, which is another owner each time"));
        assert!(wanted(&["a"], Kind::Limit(1_000_000), "me").is_ok());
        assert_eq!(refused(&["a"], Kind::Limit(0), "me"), "limit must be from 1 to 1000000, not 0");
        assert_eq!(
            refused(&["a"], Kind::Limit(1_000_001), "me"),
            "limit must be from 1 to 1000000, not 1000001"
        );
        assert!(wanted(&["a", "b"], Kind::Limit(2), "me").is_err());
    }

    #[test]
    fn a_lease_that_is_too_short_to_be_renewed_is_refused() {
        assert!(check_lease(SHORTEST_LEASE).is_ok());
        let refused = check_lease(Duration::from_millis(99)).unwrap_err().to_string();
        assert_eq!(refused, "lease must be 100ms or more, not 99ms");
    }
}
