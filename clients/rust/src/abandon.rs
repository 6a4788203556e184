//! Gives up, in the background, what a request got or may still get.

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
    /// Gives up whatever this request got or may still get, or, with a token, the hold that has it. It does so at
    /// once, behind whatever was sent for it, and again in the background until a server has answered.
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
            // It would end the next hold of the same owner, too: one that asks again while a server still has the hold
            // gets the same token.
            let filed = self.file(key, errand.clone());
            self.keeper.spawn(self.keeper.working.track_future(async move {
                errand.run(sent).await;
                drop(filed);
            }));
        }
    }

    /// What was sent and not answered may still arrive: so it is given up a little later, and again.
    async fn give_up(self: Arc<Self>, wanted: Arc<Wanted>, name: Vec<u8>, token: Option<i64>) {
        let (began, mut pause) = (Moment::now(), 2 * LONGEST_PAUSE);
        while began.age() < wanted.lease.min(3 * PATIENCE) {
            let command = wanted.release(&name, token); // for what is left now of the time for which it stays taken
            let asked = self.servers.request(Ask::new(&name, &command, Moment::now() + PATIENCE)).await;
            if self.keeper.closing.is_cancelled() || (asked.is_ok() && !wanted.is_doubtful()) {
                return;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Lets it be called off by one that asks for the same, which the later of two that give it up does, too.
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

    /// Gives up no more what this owner has asked for before.
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

/// What is given up, by the release without a token that would do it.
pub(crate) type Errands = Mutex<HashMap<Vec<u8>, Vec<Arc<Errand>>>>;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gives up what was wanted.
pub(crate) struct Errand {
    wanted: Arc<Wanted>,
    /// Whether it ends that one hold alone.
    has_token: bool,
    /// Whether the release was sent once, behind what it gives up.
    is_sent: bool,
    /// What is done if that was not enough, until it is called off.
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

    /// Stops threads from sending anything more for it; the server does what was sent before ahead of what comes now.
    /// What was not given up may still arrive, even after the request that calls this off. So it must be given up, too.
    fn call_off(&self, by: &Wanted) {
        drop(lock(&self.again).take());
        self.is_off.notify_one();
        if !self.is_sent || self.wanted.is_doubtful() {
            by.doubt();
        }
    }
}

/// An errand that can be called off until this is dropped, be it by a runtime that ends.
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

/// Sends it behind all that was sent before, without waiting for the reply.
fn send_now(link: Arc<Link>, command: Cmd) -> impl Future<Output = Reply> + Send {
    let mut sending =
        Box::pin(async move { link.send(&Request { command: &command, asks: false, before: None }).await });
    match (&mut sending).now_or_never() {
        Some(reply) => Either::Left(ready(reply)),
        None => Either::Right(sending),
    }
}
