//! Waits for several locks at once, over connections of their own (BLOCK).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::Value;
use tokio::time::{sleep, timeout};

use super::{Core, Patience};
use crate::address::Address;
use crate::clock::Moment;
use crate::error::{Error, Loss};
use crate::held::Grant;
use crate::link::{Failure, lock};
use crate::rules::{ATTEMPT, PROBE, Step, WAIT_MARGIN, judge, longest_wait, sure};
use crate::servers::back_off;
use crate::wanted::{Line, Wanted};

/// The outcome of a waiting request.
enum Blocked {
    Granted(Grant),
    /// It was granted, but the grant expired before it was known.
    Lost,
    /// Its time is up, or another server must be asked.
    Ended,
    /// The connection ended.
    Broken,
}

/// A request that waits over a connection of its own. It is sent when its reply is first awaited.
struct Waiting {
    reply: BoxFuture<'static, Result<(Value, u64), Failure>>,
    address: Address,
    /// How long it waits.
    most: Duration,
}

impl Core {
    /// Waits for several locks at once, over a connection of its own.
    pub(super) async fn wait_blocked(
        &self,
        wanted: &Arc<Wanted>,
        patience: Patience,
    ) -> Result<Option<Grant>, Error> {
        let (mut times, mut tries) = (0, 0);
        loop {
            // This uses the shared connection, which finds the primary and pauses between two attempts for
            // all waiters.
            match self.attempt(wanted, patience.until()).await {
                // A waiting request is granted after the quarantine.
                Err(error @ Error::Quarantine { .. }) => self.servers.is_refused(wanted, &error),
                Ok(None) => {}
                settled => return settled,
            }
            if patience.is_over() {
                return Ok(None);
            }
            self.tell_of_waiting(wanted, times);
            times = 1;
            // The server must see the deadlocks of an owner that holds a lock, so its request needs no permit
            // to connect.
            let entering = async {
                tokio::select! {
                    biased;
                    () = self.keeper.until_owner_holds(wanted) => None,
                    permit = self.waiting.acquire() => permit.ok(),
                }
            };
            let Ok(_permit) = timeout(patience.left(), entering).await else { return Ok(None) };
            sleep(back_off(tries).min(patience.left())).await;
            match self.block(wanted, patience).await? {
                Blocked::Granted(grant) => return Ok(Some(grant)),
                Blocked::Lost if patience.is_over() => {
                    return Err(Error::LockLost {
                        name: wanted.label(),
                        reason: Loss::Renewal,
                        source: None,
                    });
                }
                Blocked::Ended | Blocked::Lost => tries = 0,
                Blocked::Broken => tries += 1,
            }
        }
    }

    /// Sends one waiting request, and asks at intervals over the shared connection whether it was granted:
    /// the network may have lost the grant, or the request.
    async fn block(&self, wanted: &Arc<Wanted>, patience: Patience) -> Result<Blocked, Error> {
        let shared = || self.servers.ready(wanted.name()).map(|link| link.number);
        let asked_over = shared();
        let mut was_doubtful = wanted.is_doubtful();
        let Some(mut sent) = self.send_blocked(wanted, patience).await else { return Ok(Blocked::Broken) };
        let mut again = Moment::now() + sent.most * 2 / 3;
        let reply = loop {
            if let Ok(reply) = timeout(PROBE.min(again.left()), sent.reply.as_mut()).await {
                break reply;
            }
            if again.left().is_zero() {
                again = Moment::NEVER;
                // A wait that is about to end needs no newer request.
                let newer = if patience.left() > sent.most / 3 {
                    self.send_blocked(wanted, patience).await
                } else {
                    None
                };
                if let Some(newer) = newer {
                    // It takes over the positions in the queues, before the older one ends and loses them.
                    let mut older = std::mem::replace(&mut sent, newer);
                    tokio::select! {
                        biased;
                        reply = sent.reply.as_mut() => {
                            was_doubtful = true; // the older one may be granted yet
                            break reply;
                        }
                        replaced = timeout(ATTEMPT, older.reply.as_mut()) => {
                            if !matches!(replaced, Ok(Ok(_) | Err(Failure::Refused(_)))) {
                                return Ok(Blocked::Broken);
                            }
                        }
                    }
                    again = Moment::now() + sent.most * 2 / 3;
                }
                continue;
            }
            // A plain request leaves the queue position unchanged, and gets the token if the lock was
            // granted.
            match self.attempt(wanted, patience.until()).await {
                Ok(Some(grant)) => return Ok(Blocked::Granted(grant)),
                Ok(None) | Err(Error::Quarantine { .. }) if shared() == asked_over => {}
                Ok(None) | Err(Error::Quarantine { .. }) => return Ok(Blocked::Broken),
                Err(error) => return Err(error),
            }
        };
        self.unblocked(wanted, reply, was_doubtful, &sent.address).await
    }

    /// Handles the reply to a waiting request.
    async fn unblocked(
        &self,
        wanted: &Arc<Wanted>,
        reply: Result<(Value, u64), Failure>,
        was_doubtful: bool,
        address: &Address,
    ) -> Result<Blocked, Error> {
        let text = match reply {
            Ok((value, _)) => {
                self.servers.hears();
                wanted.trust(was_doubtful);
                let Value::Int(token) = value else { return Ok(Blocked::Ended) };
                // It was granted at some time during the wait, and not after this moment.
                let begun = self.begin(wanted, token, Moment::now() + sure(wanted.first_lease)).await?;
                return Ok(begun.map_or(Blocked::Lost, Blocked::Granted));
            }
            Err(Failure::Broken(..)) => return Ok(Blocked::Broken),
            Err(Failure::Refused(text)) => text,
        };
        wanted.trust(was_doubtful);
        match (longest_wait(&text), judge(&text)) {
            (Some(most), _) => *lock(&self.longest_block) = most,
            (None, Step::Fail) => return Err(Error::from_reply(&text)),
            (None, Step::Moved { .. }) if self.servers.is_single() => return Err(Error::from_reply(&text)),
            (None, Step::Moved { slot, host, port }) => self.servers.moved(slot, host, port, Some(address)),
            (None, _) => return Ok(Blocked::Broken), // the shared connection learns the same
        }
        Ok(Blocked::Ended)
    }

    /// Prepares a waiting request over a new connection; `None` if it cannot connect.
    async fn send_blocked(&self, wanted: &Arc<Wanted>, patience: Patience) -> Option<Waiting> {
        let most = patience.left().min(*lock(&self.longest_block));
        let linking = timeout(patience.left().min(2 * ATTEMPT), self.servers.own_link(wanted.name())).await;
        let Ok(Ok((link, address))) = linking else { return None };
        let command = wanted.acquire(wanted.first_lease, Line::Block(most));
        // If it is cancelled or cut, the request may have been granted without a reply.
        wanted.doubt();
        let reply = async move { link.call(&command, most + WAIT_MARGIN).await };
        Some(Waiting { reply: Box::pin(reply), address, most })
    }
}
