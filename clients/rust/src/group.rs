//! One lock over independent servers: Redlock, with tokens that are raised to be the group's own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::time::sleep;
use uuid::Uuid;

use crate::clock::Moment;
use crate::core::{Core, Look, Patience};
use crate::engine::{Attempt, Engine};
use crate::error::Error;
use crate::keeper::{Grant, Held};
use crate::rules::{BACK_OFF, PATIENCE, each, majority, sure};
use crate::servers::Ask;
use crate::wanted::{Kind, Line, Wanted, fence as fence_command};

type Reply = Result<Value, Error>;

/// What each of these servers answers in time, or its error.
async fn ask(
    cores: &[&Arc<Core>],
    lease: Duration,
    name: &[u8],
    command: &Cmd,
    wanted: Option<&Wanted>,
) -> Vec<Reply> {
    let until = Moment::now() + each(lease);
    let asking = cores.iter().map(|core| async {
        core.servers
            .request(Ask { wanted, ..Ask::new(name, command, until) })
            .await
            .map(|answer| answer.reply)
    });
    join_all(asking).await
}

fn all(engine: &Engine) -> Vec<&Arc<Core>> {
    engine.cores.iter().collect()
}

/// The same of all servers about a hold: where another value was written over the lock, it is none.
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

/// The first error of those that refuse it, so many that there can be no majority of the others.
fn refused_by_most<'a>(errors: impl Iterator<Item = &'a Error>, servers: usize) -> Option<Error> {
    let refused: Vec<_> = errors.filter(|error| error.is_refusal()).collect();
    refused.first().filter(|_| refused.len() > servers - majority(servers)).map(|error| (*error).clone())
}

/// Whether a majority of these did not end in an error.
fn most_answered<T>(replies: &[Result<T, Error>]) -> bool {
    replies.iter().filter(|reply| reply.is_ok()).count() >= majority(replies.len())
}

fn errors<T>(replies: &[Result<T, Error>]) -> impl Iterator<Item = &Error> {
    replies.iter().filter_map(|reply| reply.as_ref().err())
}

/// Why too few of these have answered as they should.
fn too_few<T>(replies: &[Result<T, Error>]) -> Error {
    refused_by_most(errors(replies), replies.len()).unwrap_or_else(|| {
        let mut texts: Vec<_> = errors(replies).map(Error::cause).collect();
        texts.sort();
        texts.dedup();
        Error::connection(format!("too few of {} servers answered: {}", replies.len(), texts.join("; ")))
    })
}

/// The grant of a majority; tries again at random times, for nobody waits in line here.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    wanted: &Arc<Wanted>,
    patience: Patience,
) -> Result<Option<Grant>, Error> {
    if wanted.kind != Kind::Exclusive || wanted.names.len() > 1 {
        return Err(Error::invalid("independent servers give exclusive locks, one at a time"));
    }
    let (servers, mut reached) = (engine.cores.len(), Moment::now());
    for number in 0_u64.. {
        let (grant, replies) = attempt(engine, Arc::new(wanted.anew())).await;
        if grant.is_some() {
            return Ok(grant);
        }
        if let Some(error) = refused_by_most(errors(&replies).filter(|error| !error.may_pass()), servers) {
            return Err(error);
        }
        let is_away = |error: &&Error| !error.is_refusal() || !error.may_pass();
        if servers - errors(&replies).filter(is_away).count() >= majority(servers) {
            reached = Moment::now();
        }
        let is_unheard = patience.wait.is_none() && reached.age() > PATIENCE;
        if patience.is_over() || is_unheard {
            // A majority has answered, and somebody else has the lock.
            return if most_answered(&replies) { Ok(None) } else { Err(too_few(&replies)) };
        }
        if number == 0 {
            engine.keeper.tell(|hooks| hooks.waiting(&wanted.short()));
        }
        sleep(at_random(BACK_OFF).min(patience.left())).await;
    }
    Ok(None)
}

async fn attempt(engine: &Arc<Engine>, wanted: Arc<Wanted>) -> (Option<Grant>, Vec<Reply>) {
    let (open, sent, name) = (Attempt::new(engine, wanted.clone()), Moment::now(), wanted.name());
    let command = wanted.acquire(wanted.lease, Line::No);
    let replies = ask(&all(engine), wanted.lease, name, &command, Some(&wanted)).await;
    let token_of = |reply: &Reply| if let Ok(Value::Int(token)) = reply { Some(*token) } else { None };
    let mut granted: Vec<_> = engine
        .cores
        .iter()
        .zip(&replies)
        .filter_map(|(core, reply)| Some((core, token_of(reply)?)))
        .collect();
    while granted.len() >= majority(engine.cores.len()) {
        let highest = granted.iter().map(|(_, token)| *token).max().unwrap_or_default();
        let command = wanted.renew(name, wanted.lease, "RAISE", highest);
        let cores: Vec<_> = granted.iter().map(|(core, _)| *core).collect();
        let raised = ask(&cores, wanted.lease, name, &command, Some(&wanted)).await;
        if count(&raised, 1) >= majority(engine.cores.len()) {
            if sent.age() >= sure(wanted.lease) {
                break;
            }
            open.succeeds();
            return (Some(Grant { wanted, token: highest, sent }), replies);
        }
        // The clock of a server may be so far ahead that the others refuse its token: then without it.
        granted.retain(|(_, token)| *token < highest);
    }
    (None, replies)
}

/// From when the lease counts anew; None if too few servers have the hold.
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
        Err(too_few(&replies))
    }
}

pub(crate) async fn look(engine: &Engine, held: &Held) -> Look {
    let (name, command) = (held.wanted.name(), fence_command(held.wanted.name(), Some(held.token)));
    let replies = ask_about(engine, held.lease(), name, &command).await;
    let is_lost = count(&replies, 0) > replies.len() - majority(replies.len());
    if is_lost { Look::Lost } else { Look::Live }
}

/// Whether a majority had it still.
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

/// Whether a majority knows a live hold with this token.
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

/// The names of all locks that this owner holds, on any of the servers.
pub(crate) async fn held_by(engine: &Engine, owner: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let said = join_all(engine.cores.iter().map(|core| core.held_by(owner))).await;
    if !most_answered(&said) {
        return Err(too_few(&said));
    }
    let mut names: Vec<_> = said.into_iter().filter_map(Result::ok).flatten().collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// A pause that differs each time.
fn at_random(most: Duration) -> Duration {
    let (_, low) = Uuid::new_v4().as_u64_pair();
    most.mul_f64(f64::from(u32::try_from(low & 0xffff_ffff).unwrap_or_default()) / f64::from(u32::MAX))
}
