//! Releases, in the background, what a request got or may still get.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::{Either, FutureExt, ready};
use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::clock::Moment;
use crate::core::Core;
use crate::link::{Failure, Link, Request, lock};
use crate::request::Ask;
use crate::rules::{ATTEMPT, LONGEST_PAUSE, PATIENCE};
use crate::wanted::Wanted;

impl Core {
    /// Releases all that this request got or may still get; with a token, the hold that has it. It sends a
    /// release at once, after all earlier requests, and repeats it in the background until a server has
    /// answered.
    pub(crate) fn abandon(self: &Arc<Self>, wanted: &Arc<Wanted>, token: Option<i64>) {
        for name in &wanted.names {
            let command = wanted.release(name, token);
            let sent = self.servers.ready(name).map(|link| send_now(link, command));
            let key = wanted.release(name, None).get_packed_command();
            let again = self.clone().give_up(wanted.clone(), name.clone(), token);
            let errand = Arc::new(Errand {
                wanted: wanted.clone(),
                has_token: token.is_some(),
                is_sent: sent.is_some(),
                again: Mutex::new(Some(Box::pin(again))),
                is_off: Notify::new(),
            });
            // A late release would end the owner's next hold, too: an owner that asks again while a server
            // still has its hold gets the same token.
            let filed = self.file(key, errand.clone());
            self.keeper.spawn(self.keeper.working.track_future(async move {
                errand.run(sent).await;
                drop(filed);
            }));
        }
    }

    /// An unanswered request may still arrive, so its grant is released a little later, and again.
    async fn give_up(self: Arc<Self>, wanted: Arc<Wanted>, name: Vec<u8>, token: Option<i64>) {
        let (began, mut pause) = (Moment::now(), 2 * LONGEST_PAUSE);
        while began.age() < wanted.lease.min(3 * PATIENCE) {
            let command = wanted.release(&name, token); // with the rest of its min_hold as of now
            let asked = self.servers.request(Ask::new(&name, &command, Moment::now() + PATIENCE)).await;
            if self.keeper.closing.is_cancelled() || (asked.is_ok() && !wanted.is_doubtful()) {
                return;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Files the errand, so that a later request for the same locks can call it off. The later of two
    /// releases does that, too.
    fn file(self: &Arc<Self>, key: Vec<u8>, errand: Arc<Errand>) -> Filed {
        let mut errands = lock(&self.errands);
        let same = errands.entry(key.clone()).or_default();
        if !errand.has_token {
            same.drain(..).for_each(|earlier| earlier.call_off(&errand.wanted));
        }
        same.push(errand.clone());
        drop(errands);
        Filed { core: self.clone(), key, errand }
    }

    /// Stops giving up earlier requests of this owner.
    pub(crate) fn call_off(&self, wanted: &Wanted) {
        let mut errands = lock(&self.errands);
        if errands.is_empty() {
            return;
        }
        for name in &wanted.names {
            let same = errands.remove(&wanted.release(name, None).get_packed_command());
            same.into_iter().flatten().for_each(|errand| errand.call_off(wanted));
        }
    }
}

/// The errands that are under way, each under the release without a token that it would send.
pub(crate) type Errands = Mutex<HashMap<Vec<u8>, Vec<Arc<Errand>>>>;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request that is being given up.
pub(crate) struct Errand {
    wanted: Arc<Wanted>,
    /// True if it ends only one hold.
    has_token: bool,
    /// True if the release was sent once, after the request that it gives up.
    is_sent: bool,
    /// The work that remains if one release was not enough, until it is called off.
    again: Mutex<Option<Work>>,
    is_off: Notify,
}

impl Errand {
    async fn run(&self, sent: Option<impl Future<Output = Reply>>) {
        let reply = match sent {
            Some(reply) => timeout(ATTEMPT, reply).await.ok(),
            None => None,
        };
        let is_done = matches!(reply, Some(Ok(_)));
        if !is_done && reply.is_some() {
            self.wanted.doubt();
        }
        if is_done && !self.wanted.is_doubtful() {
            return;
        }
        let again = poll_fn(|context| match lock(&self.again).as_mut() {
            Some(again) => again.as_mut().poll(context),
            None => Poll::Ready(()),
        });
        tokio::select! {
            () = again => {}
            () = self.is_off.notified() => {}
        }
    }

    /// Stops threads from sending anything more for it; the server executes earlier requests before later
    /// ones. A request that was not given up may still arrive, even after the one that calls this off. So the
    /// newer request inherits its doubt.
    fn call_off(&self, by: &Wanted) {
        drop(lock(&self.again).take());
        self.is_off.notify_one();
        if !self.is_sent || self.wanted.is_doubtful() {
            by.doubt();
        }
    }
}

/// An errand that can be called off until this is dropped, for example by a runtime that ends.
struct Filed {
    core: Arc<Core>,
    key: Vec<u8>,
    errand: Arc<Errand>,
}

impl Drop for Filed {
    fn drop(&mut self) {
        let mut errands = lock(&self.core.errands);
        if let Some(same) = errands.get_mut(&self.key) {
            same.retain(|errand| !Arc::ptr_eq(errand, &self.errand));
            if same.is_empty() {
                errands.remove(&self.key);
            }
        }
    }
}

type Reply = Result<(Value, u64), Failure>;

/// Sends it after all earlier requests, without waiting for the reply.
fn send_now(link: Arc<Link>, command: Cmd) -> impl Future<Output = Reply> + Send {
    let mut sending =
        Box::pin(async move { link.send(&Request { command: &command, asks: false, before: None }).await });
    match (&mut sending).now_or_never() {
        Some(reply) => Either::Left(ready(reply)),
        None => Either::Right(sending),
    }
}
