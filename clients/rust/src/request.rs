//! Sends requests to the server of a lock, and repeats them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::address::Address;
use crate::clock::Moment;
use crate::error::Error;
use crate::link::{Before, Failure, Link, Request};
use crate::rules::{ATTEMPT, KEEP, LONGEST_PAUSE, LONGEST_RECONNECT, PAUSE, Step, judge};
use crate::servers::Servers;
use crate::wanted::Wanted;

/// The failure of an attempt that had no time left to connect.
const TOO_LATE: &str = "it took too long to connect";

/// A reply, and the time when its request was sent.
pub(crate) struct Answer {
    pub(crate) reply: Value,
    pub(crate) sent: Moment,
    /// The number of the request, and that of its connection.
    pub(crate) number: u64,
    pub(crate) link: u64,
    /// True if the request was sent before and not answered: it may have been executed then.
    pub(crate) is_repeated: bool,
    /// True if an earlier copy may still arrive, because the fate of an abandoned connection is unknown.
    pub(crate) may_come_late: bool,
}

/// The fate of a request that was sent before.
#[derive(Clone, Copy, Default)]
struct Earlier {
    is_unanswered: bool,
    may_come_late: bool,
}

/// The function that is called for each failed attempt.
pub(crate) type Failed<'a> = &'a (dyn Fn(&Error) + Send + Sync);

/// A request for the server that has this lock.
pub(crate) struct Ask<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) command: &'a Cmd,
    /// The time until which it is repeated.
    pub(crate) until: Moment,
    /// Called for each failed attempt.
    pub(crate) failed: Option<Failed<'a>>,
    /// The acquire that it is for, which records that it went unanswered.
    pub(crate) wanted: Option<&'a Wanted>,
    /// The command that is sent first if the server reports changes.
    pub(crate) before: Option<Before<'a>>,
}

impl<'a> Ask<'a> {
    pub(crate) fn new(name: &'a [u8], command: &'a Cmd, until: Moment) -> Self {
        Self { name, command, until, failed: None, wanted: None, before: None }
    }
}

impl Servers {
    /// Returns the time left at this moment for a request that began then. An unlimited one has as long as
    /// servers reply at all.
    fn left(&self, ask: &Ask<'_>, began: Moment, now: Moment) -> Duration {
        let until =
            if ask.until == Moment::NEVER { began.max(self.heard()) + self.timeout } else { ask.until };
        until - now
    }

    /// Returns the reply of the server that has this lock. Repeats the request until its time is up.
    pub(crate) async fn request(&self, ask: Ask<'_>) -> Result<Answer, Error> {
        let (began, mut pause, mut earlier, mut asking) =
            (Moment::now(), PAUSE, Earlier::default(), None::<Address>);
        let (mut refused, mut broken, mut now) = (None::<Error>, None::<Error>, began);
        loop {
            let address = asking.clone().or_else(|| self.address(ask.name));
            let left = self.left(&ask, began, now);
            let failure = match self.attempt(&ask, asking.as_ref(), &mut earlier, now, left).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            asking = None;
            let step = match &failure {
                Failure::Broken(..) => Step::Again,
                Failure::Refused(text) => match judge(text) {
                    Step::Moved { .. } if self.is_single() => return Err(Error::from_reply(text)),
                    step => step,
                },
            };
            // The last attempt may have been cut short: the failure before it says more.
            let is_cut = matches!(&failure, Failure::Broken(why, _) if why == TOO_LATE);
            let (is_refusal, error) =
                (matches!(failure, Failure::Refused(_)), failure.told(address.as_ref()));
            if !is_cut || broken.is_none() && refused.is_none() {
                ask.failed.inspect(|failed| failed(&error));
            }
            match step {
                Step::Fail => return Err(error),
                Step::Again | Step::Elsewhere => self.forget(address.as_ref()),
                Step::Moved { slot, host, port } => self.moved(slot, host, port, address.as_ref()),
                Step::Ask { host, port } => asking = Some(Address { host: host.into(), port }),
            }
            if is_refusal {
                ask.wanted.inspect(|wanted| self.is_refused(wanted, &error));
                (refused, broken) = (Some(error), None);
            } else if !is_cut || broken.is_none() {
                broken = Some(error);
            }
            let left = self.left(&ask, began, Moment::now());
            if left.is_zero() || self.closed.load(Ordering::Acquire) {
                return Err(last_of(refused, broken));
            }
            sleep(pause.min(left)).await;
            (pause, now) = ((2 * pause).min(LONGEST_PAUSE), Moment::now());
        }
    }

    /// Logs a temporary refusal, once until the server grants again.
    pub(crate) fn is_refused(&self, wanted: &Wanted, error: &Error) {
        if !self.refuses.swap(true, Ordering::Relaxed) {
            warn!("waiting for lock '{}': {error}", wanted.label());
        }
    }

    async fn attempt(
        &self,
        ask: &Ask<'_>,
        node: Option<&Address>,
        earlier: &mut Earlier,
        now: Moment,
        left: Duration,
    ) -> Result<Answer, Failure> {
        let at_once = if node.is_none() { self.at_once(ask.name) } else { None };
        let (link, sent) = match at_once {
            Some(link) => (link, now),
            None => {
                // A renewal learns why it fails before its time is up.
                let most = if ask.failed.is_some() { left / 2 } else { left };
                let link = self.link_in(most.max(5 * PAUSE).min(2 * ATTEMPT), ask.name, node).await?;
                (link, Moment::now())
            }
        };
        // A node that the slot is still moving to reports no changes.
        let before = ask.before.filter(|_| link.is_told() && node.is_none());
        let request = Request { command: ask.command, asks: node.is_some(), before };
        let most = ATTEMPT.min((left / 2).max(5 * PAUSE));
        ask.wanted.inspect(|wanted| wanted.sends());
        match link.call_for(&request, most).await {
            Ok((reply, number)) => {
                self.hears();
                if ask.wanted.is_some() || ask.failed.is_some() {
                    self.refuses.store(false, Ordering::Relaxed);
                    if link.serves() {
                        self.is_served(node.cloned().or_else(|| self.address(ask.name)));
                    }
                }
                ask.wanted.filter(|_| reply == Value::Nil).inspect(|wanted| wanted.got_nothing());
                let Earlier { is_unanswered: is_repeated, may_come_late } = *earlier;
                Ok(Answer { reply, sent, number, link: link.number, is_repeated, may_come_late })
            }
            Err(failure @ Failure::Broken(..)) => {
                earlier.is_unanswered = true;
                earlier.may_come_late |= link.is_given_up();
                ask.wanted.inspect(|wanted| wanted.doubt());
                Err(failure)
            }
            Err(Failure::Refused(text)) => {
                self.hears();
                // A request that fails with NOREPLICAS may have been executed, and may stay so.
                if !text.starts_with("NOREPLICAS") {
                    ask.wanted.inspect(|wanted| wanted.got_nothing());
                }
                Err(leave(&link, text))
            }
        }
    }

    /// Records that a server does what only a primary does, for the first time over a new connection.
    fn is_served(&self, address: Option<Address>) {
        let Some(address) = address else { return };
        let door = self.door(&address);
        door.tries.store(0, Ordering::Relaxed);
        if door.has_served.swap(true, Ordering::Relaxed) {
            info!("reconnected to {address}");
            (self.on_reconnect)(&address);
        }
    }

    async fn link_in(
        &self,
        most: Duration,
        name: &[u8],
        node: Option<&Address>,
    ) -> Result<Arc<Link>, Failure> {
        let linking = async {
            match node {
                Some(address) => self.link_to(address).await,
                None => self.link(name).await,
            }
        };
        if let Ok(linked) = timeout(most, linking).await {
            return linked;
        }
        // While it waited for its turn, another task may have failed: this is that failure.
        let address = node.cloned().or_else(|| self.address(name));
        let failure = address.and_then(|address| self.door(&address).failure());
        Err(failure.unwrap_or_else(|| Failure::broken(TOO_LATE)))
    }
}

/// Closes the connection over which a server refused what only a primary does, if its address may now lead
/// elsewhere.
fn leave(link: &Link, text: String) -> Failure {
    let is_long = text.starts_with("LOADING") && link.age() > LONGEST_RECONNECT;
    if is_long || judge(&text) == Step::Elsewhere {
        link.leave(&text);
    } else if text.starts_with("QUARANTINE") && (link.has_served() || link.age() > 3 * KEEP) {
        // It was the primary, and its address may lead to another server by now.
        link.close();
        return Failure::broken(text);
    }
    Failure::Refused(text)
}

/// Picks the final error of a request: a refusal says more than a connection that ended after it.
fn last_of(refused: Option<Error>, broken: Option<Error>) -> Error {
    match (refused, broken) {
        (
            Some(Error::ConnectionFailed { message, .. }),
            Some(Error::ConnectionFailed { message: then, source }),
        ) => Error::ConnectionFailed { message: format!("{message}; then {then}"), source },
        (Some(error), _) | (None, Some(error)) => error,
        (None, None) => Error::connection("no server was asked"),
    }
}
