//! Locks over several independent servers: Redlock, with increasing fencing tokens.
//!
//! ```no_run
//! # async fn example() -> Result<(), redislock_client::Error> {
//! let servers = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"];
//! let locks = redislock_client::redlock::builder(servers).build()?;
//! let guard = locks.lock("invoice:42").acquire().await?;
//! # guard.release().await
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::time::sleep;

use crate::address::{IntoServer, address_of};
use crate::clock::{Moment, at_random};
use crate::core::{Core, Look, Patience};
use crate::engine::{Attempt, Engine};
use crate::error::Error;
use crate::held::{Grant, Held};
use crate::link::lock;
use crate::locks::Builder;
use crate::request::{Answer, Ask};
use crate::rules::{BACK_OFF, each, majority, sure};
use crate::servers::Topology;
use crate::wanted::{Kind, Line, Wanted};

/// With fewer servers, a majority would be all of them: one failed server would block every lock.
const FEWEST_SERVERS: usize = 3;

/// Returns a builder for locks that a majority of independent servers grants. These locks are exclusive, one at a time,
/// and there is no queue.
///
/// Name an odd number of servers, 3 or more, each only once: [`build`](Builder::build) rejects an address that is named
/// twice. A server with two addresses is rejected with [`Error::Invalid`] when it grants a lock under both.
pub fn builder<S: IntoServer>(servers: impl IntoIterator<Item = S>) -> Builder {
    Builder::of(topologies(servers))
}

fn topologies<S: IntoServer>(servers: impl IntoIterator<Item = S>) -> Result<Vec<Topology>, Error> {
    let infos = servers.into_iter().map(IntoServer::into_server).collect::<Result<Vec<_>, _>>()?;
    let number = infos.len();
    if number < FEWEST_SERVERS || number.is_multiple_of(2) {
        let range = format!("an odd number of servers, {FEWEST_SERVERS} or more");
        return Err(Error::invalid(format!("redlock takes {range}, not {number}")));
    }
    let mut addresses: Vec<_> = infos.iter().map(address_of).collect();
    addresses.sort();
    if let Some(pair) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
        let text = format!("independent servers must differ: {} is named twice", pair[0]);
        return Err(Error::invalid(text));
    }
    Ok(infos.into_iter().map(Topology::Single).collect())
}

type Reply = Result<Value, Error>;
type Heard = Result<Answer, Error>;

/// Returns each server's reply to its command, or its error, within a time limit.
async fn hear<'a>(
    asked: impl Iterator<Item = (&'a Arc<Core>, &'a Cmd)>,
    lease: Duration,
    name: &[u8],
    wanted: Option<&Wanted>,
) -> Vec<Heard> {
    let until = Moment::now() + each(lease);
    let asking =
        asked.map(|(core, command)| core.servers.request(Ask { wanted, ..Ask::new(name, command, until) }));
    join_all(asking).await
}

/// Returns the replies of these servers to the same command.
async fn ask(
    cores: &[&Arc<Core>],
    lease: Duration,
    name: &[u8],
    command: &Cmd,
    wanted: Option<&Wanted>,
) -> Vec<Reply> {
    replies(hear(cores.iter().map(|core| (*core, command)), lease, name, wanted).await)
}

fn replies(heard: Vec<Heard>) -> Vec<Reply> {
    heard.into_iter().map(|heard| heard.map(|answer| answer.reply)).collect()
}

fn all(engine: &Engine) -> Vec<&Arc<Core>> {
    engine.cores.iter().collect()
}

/// Returns all servers' replies about a hold: 0 if another value was written over the lock.
async fn ask_about(engine: &Engine, lease: Duration, name: &[u8], command: &Cmd) -> Vec<Reply> {
    let mut replies = ask(&all(engine), lease, name, command, None).await;
    for reply in replies.iter_mut().filter(|reply| reply.as_ref().is_err_and(Error::is_overwritten)) {
        *reply = Ok(Value::Int(0));
    }
    replies
}

fn count(replies: &[Reply], wanted: i64) -> usize {
    replies.iter().filter(|reply| matches!(reply, Ok(Value::Int(number)) if *number == wanted)).count()
}

/// Returns the first refusal, if too few other servers are left for a majority.
fn refused_by_most<'a>(errors: impl Iterator<Item = &'a Error>, servers: usize) -> Option<Error> {
    let refused: Vec<_> = errors.filter(|error| error.is_refusal()).collect();
    refused.first().filter(|_| refused.len() > servers - majority(servers)).map(|error| (*error).clone())
}

/// Returns true if a majority of these did not fail.
fn most_answered<T>(replies: &[Result<T, Error>]) -> bool {
    replies.iter().filter(|reply| reply.is_ok()).count() >= majority(replies.len())
}

fn errors<T>(replies: &[Result<T, Error>]) -> impl Iterator<Item = &Error> {
    replies.iter().filter_map(|reply| reply.as_ref().err())
}

/// Returns the reason why too few of these answered as expected.
fn too_few<T>(replies: &[Result<T, Error>]) -> Error {
    refused_by_most(errors(replies), replies.len()).unwrap_or_else(|| {
        let text = |error: &Error| error.to_string().replace("no server answered in time: ", "");
        let mut texts: Vec<_> = errors(replies).map(text).collect();
        texts.sort();
        texts.dedup();
        Error::connection(format!("too few of {} servers answered: {}", replies.len(), texts.join("; ")))
    })
}

/// Returns the grant of a majority. Retries at random intervals, since there is no queue here.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    wanted: &Arc<Wanted>,
    patience: Patience,
) -> Result<Option<Grant>, Error> {
    if wanted.kind != Kind::Exclusive || wanted.names.len() > 1 {
        return Err(Error::invalid("independent servers allow only exclusive locks, one at a time"));
    }
    let (servers, mut reached) = (engine.cores.len(), Moment::now());
    for number in 0_u64.. {
        let asked = Moment::now();
        let (grant, replies) = attempt(engine, Arc::new(wanted.anew(&engine.settings.label))).await?;
        if grant.is_some() {
            return Ok(grant);
        }
        if let Some(error) = refused_by_most(errors(&replies).filter(|error| !error.may_pass()), servers) {
            return Err(error);
        }
        let may_grant = |(core, reply): &(&Arc<Core>, &Reply)| match reply {
            Err(error) => error.may_pass() && core.servers.heard() >= asked,
            Ok(_) => true,
        };
        if engine.cores.iter().zip(&replies).filter(may_grant).count() >= majority(servers) {
            reached = Moment::now();
        }
        let is_unheard = patience.wait.is_none() && reached.age() > engine.settings.server_timeout;
        if patience.is_over() || is_unheard {
            // A majority has answered, and another owner has the lock.
            return if most_answered(&replies) { Ok(None) } else { Err(too_few(&replies)) };
        }
        if number == 0 {
            engine.keeper.tell(|hooks| hooks.waiting(&wanted.short()));
        }
        sleep(at_random(BACK_OFF).min(patience.left())).await;
    }
    Ok(None)
}

async fn attempt(engine: &Arc<Engine>, wanted: Arc<Wanted>) -> Result<(Option<Grant>, Vec<Reply>), Error> {
    let (open, sent, name) = (Attempt::new(engine, wanted.clone()), Moment::now(), wanted.name());
    let (command, cores) = (wanted.acquire(wanted.lease, Line::No), all(engine));
    let asked = cores.iter().map(|core| (*core, &command));
    let heard = hear(asked, wanted.lease, name, Some(&wanted)).await;
    let granted: Vec<_> =
        cores.iter().zip(&heard).filter_map(|(core, heard)| Vote::of(core, heard)).collect();
    let replies = replies(heard);
    if granted.len() < majority(cores.len()) {
        return Ok((None, replies));
    }
    let mut granted = tell_apart(engine, &wanted, granted).await?;
    let mut refusal = None;
    while granted.len() >= majority(cores.len()) {
        let highest = granted.iter().map(|vote| vote.token).max().unwrap_or_default();
        let command = wanted.renew(name, wanted.lease, "RAISE", highest);
        let cores: Vec<_> = granted.iter().map(|vote| vote.core).collect();
        let raised = ask(&cores, wanted.lease, name, &command, Some(&wanted)).await;
        if count(&raised, 1) >= majority(engine.cores.len()) {
            if sent.age() >= sure(wanted.lease) {
                break;
            }
            open.succeeds();
            return Ok((Some(Grant { wanted, token: highest, sent }), replies));
        }
        refusal = refusal.or_else(|| raise_refused(engine, errors(&raised)));
        // The clock of a server may be so far ahead that the others refuse its token. Then that server is
        // left out.
        granted.retain(|vote| vote.token < highest);
    }
    // Without a refusal, too few servers have answered.
    refusal.map_or(Ok((None, replies)), Err)
}

/// Returns the refusal if too few servers can raise their tokens to a common one: asking again changes
/// nothing.
fn raise_refused<'a>(engine: &Engine, errors: impl Iterator<Item = &'a Error>) -> Option<Error> {
    refused_by_most(errors.filter(|error| !error.may_pass()), engine.cores.len())
}

/// The vote of a server that has granted the lock: its first token, its present one, and the connection.
struct Vote<'a> {
    core: &'a Arc<Core>,
    first: i64,
    token: i64,
    link: u64,
}

impl<'a> Vote<'a> {
    fn of(core: &'a Arc<Core>, heard: &Heard) -> Option<Self> {
        let Ok(Answer { reply: Value::Int(token), link, .. }) = heard else { return None };
        Some(Self { core, first: *token, token: *token, link: *link })
    }

    fn address(&self) -> String {
        self.core.servers.address(&[]).map(|address| address.to_string()).unwrap_or_default()
    }
}

/// Returns two votes whose tokens have always been equal.
fn alike<'a, 'b>(granted: &'b [Vote<'a>]) -> Option<(&'b Vote<'a>, &'b Vote<'a>)> {
    let is_alike = |one: &Vote<'_>, other: &Vote<'_>| (one.first, one.token) == (other.first, other.token);
    let mut pairs =
        (1..granted.len()).flat_map(|at| granted[..at].iter().map(move |one| (one, &granted[at])));
    pairs.find(|(one, other)| is_alike(one, other))
}

/// Refuses one server under two names, which would count twice: it has only one token for an owner. Equal
/// tokens do not prove that, because all servers continue from the last raised token. So each then raises its
/// own by another number, and is asked again. A server that does not answer is not counted.
async fn tell_apart<'a>(
    engine: &Engine,
    wanted: &Wanted,
    mut granted: Vec<Vote<'a>>,
) -> Result<Vec<Vote<'a>>, Error> {
    // A connection leads to the same server as long as it lasts.
    if granted.iter().all(|vote| lock(&engine.apart).contains(&vote.link)) {
        return Ok(granted);
    }
    if alike(&granted).is_some() {
        let raise = |(by, vote): (i64, &Vote<'_>)| {
            wanted.renew(wanted.name(), wanted.lease, "RAISE", vote.first + by)
        };
        let raises: Vec<_> = (1..).zip(&granted).map(raise).collect();
        let asked = granted.iter().map(|vote| vote.core).zip(&raises);
        let raised = hear(asked, wanted.lease, wanted.name(), Some(wanted)).await;
        if let Some(error) = raise_refused(engine, raised.iter().filter_map(|heard| heard.as_ref().err())) {
            return Err(error);
        }
        let mut raised = raised.into_iter();
        granted.retain(|_| matches!(raised.next(), Some(Ok(Answer { reply: Value::Int(1), .. }))));
        let again = wanted.acquire(wanted.lease, Line::No);
        let asked = granted.iter().map(|vote| (vote.core, &again));
        let mut told = hear(asked, wanted.lease, wanted.name(), Some(wanted)).await.into_iter();
        granted.retain_mut(|vote| match told.next() {
            Some(Ok(Answer { reply: Value::Int(token), link, .. })) => {
                (vote.token, vote.link) = (token, link);
                true
            }
            _ => false,
        });
    }
    if let Some((one, other)) = alike(&granted) {
        let text = format!("{} and {} are one server", one.address(), other.address());
        return Err(Error::invalid(format!("independent servers must differ: {text}")));
    }
    *lock(&engine.apart) = granted.iter().map(|vote| vote.link).collect();
    Ok(granted)
}

/// Renews a lease. Returns the time it starts at; `None` if too few servers have the hold.
pub(crate) async fn renew(engine: &Engine, held: &Held, lease: Duration) -> Result<Option<Moment>, Error> {
    let (name, sent) = (held.wanted.name(), Moment::now());
    let command = held.wanted.renew(name, lease, "TOKEN", held.token);
    let replies = ask_about(engine, lease, name, &command).await;
    let majority = majority(engine.cores.len());
    if count(&replies, 1) >= majority {
        Ok(Some(sent))
    } else if count(&replies, 0) > replies.len() - majority {
        Ok(None)
    } else {
        let error = too_few(&replies);
        engine.keeper.failed(held, &error);
        Err(error)
    }
}

pub(crate) async fn look(engine: &Engine, held: &Held) -> Look {
    let seen = join_all(engine.cores.iter().map(|core| core.look(held))).await;
    let lost = seen.iter().filter(|look| matches!(look, Look::Lost)).count();
    if lost > seen.len() - majority(seen.len()) { Look::Lost } else { Look::Live }
}

/// Returns true if a majority still held it.
pub(crate) async fn release(engine: &Arc<Engine>, wanted: &Arc<Wanted>, token: i64) -> Result<bool, Error> {
    let command = wanted.release(wanted.name(), Some(token));
    let replies = ask_about(engine, wanted.lease, wanted.name(), &command).await;
    if !most_answered(&replies) {
        return Err(too_few(&replies)); // the caller gives it up in the background
    }
    if count(&replies, 1) < replies.len() {
        engine.abandon(wanted, None);
    }
    Ok(count(&replies, 0) <= replies.len() - majority(replies.len()))
}

/// Returns true if a majority knows a live hold with this token.
pub(crate) async fn fence(engine: &Engine, name: &[u8], token: i64) -> Result<bool, Error> {
    let said = join_all(engine.cores.iter().map(|core| core.fence(name, token))).await;
    let count = |wanted| said.iter().filter(|said| matches!(said, Ok(is_live) if *is_live == wanted)).count();
    if count(true) >= majority(said.len()) {
        Ok(true)
    } else if count(false) > said.len() - majority(said.len()) {
        Ok(false)
    } else {
        Err(too_few(&said))
    }
}

/// Returns the oldest version of the module, if a majority answers.
pub(crate) async fn ping(engine: &Engine, name: &[u8]) -> Result<u64, Error> {
    let said = join_all(engine.cores.iter().map(|core| core.ping(name))).await;
    let found = said.iter().flatten();
    if found.clone().count() < majority(said.len()) {
        Err(too_few(&said))
    } else {
        Ok(found.copied().min().unwrap_or(0))
    }
}
