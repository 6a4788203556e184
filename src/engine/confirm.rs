//! Grants and renewals that are answered once replicas have acknowledged them: see `src/lock/confirm.rs`.
//!
//! A step is applied at once, and its record goes into the stream. Its client is blocked. Before the event loop
//! sleeps next, the engine notes the stream's offset and asks the replicas for theirs. While any client waits, each
//! turn of the loop reads what they have acknowledged. A module cannot use `WAIT` for this.

use super::blocked_clients::{REPLIES_PER_TURN, Reply};
use super::flags::Level;
use super::server::{Server, Topic};
use super::{lazy_subscribe, replies, schedule};
use crate::command::error::{
    CANNOT_CONFIRM, CANNOT_WAIT, COUNTED_UNCONFIRMED, KEPT_UNCONFIRMED, RAISED_UNCONFIRMED,
};
use crate::lock::confirm::{Rule, Seen, Verdict};
use crate::lock::effect::Answer;
use crate::lock::types::{Binding, ClientId, Moment};

/// Starts to keep confirmations. Called once, at load.
pub fn start<S: Server>(server: &S) {
    let now = server.boot();
    let _ = server.with(|state| state.confirm.all.begin(now));
    if server.shared().settings.confirms() {
        listen(server);
    }
}

/// Starts to confirm grants, as this server decides now. It may have replicas of its own already.
pub fn promoted<S: Server>(server: &S) {
    let now = server.boot();
    let _ = server.with(|state| state.confirm.all.begin(now));
    if server.shared().settings.confirms() {
        look(server);
    }
}

/// Reads the connected replicas, if that matters and nothing else does. Called once a second, in case an event was
/// missed.
pub fn look_again<S: Server>(server: &S) {
    const EVERY_MS: u64 = 1_000;
    let now = server.boot();
    let is_due = server.with(|state| {
        let confirm = &state.confirm;
        confirm.rule.is_some() && confirm.looked_at.plus_ms(EVERY_MS) <= now
    });
    if is_due != Some(true) {
        return;
    }
    let is_silent = look(server).is_none() && server.flags().decides();
    let is_news = server.with(|state| {
        let is_news = is_silent && !state.confirm.silence_is_logged;
        state.confirm.silence_is_logged = is_silent;
        is_news
    });
    if is_news == Some(true) {
        let text = "the server does not answer ROLE (is it renamed?): nothing can be confirmed";
        server.log(Level::Warning, text);
    }
}

/// Ends all waits for replicas, because another server decides now: the new primary keeps or ends what they were
/// granted. Answers some clients at once; the pump answers the others.
pub fn demoted<S: Server>(server: &S) {
    let _ = server.with(|state| state.confirm.all.drop_all());
    reject_waiters(server);
}

/// Answers some clients that waited for replicas when this server stopped deciding. Returns false if there are more.
pub fn reject_waiters<S: Server>(server: &S) -> bool {
    for _ in 0..REPLIES_PER_TURN.get() {
        let next = server.with(|state| {
            let gone = state.confirm.all.has_gone().then(|| state.confirm.all.take_gone());
            gone.map(|wait| wait.and_then(|wait| state.clients.take_confirming(wait)))
        });
        match next.flatten() {
            None => return true,
            Some(None) => {}
            Some(Some((blocked, id, _))) => {
                replies::answer(server, blocked, id, Reply::Answer(Answer::Demoted));
            }
        }
    }
    server.with(|state| state.confirm.all.has_gone()) != Some(true)
}

/// Applies the setting. `is_loaded` is false while the module is being loaded; [`start`] then does the rest.
pub fn set<S: Server>(server: &S, rule: Option<Rule>, is_loaded: bool) {
    let is_new = server.with(|state| {
        let was = std::mem::replace(&mut state.confirm.rule, rule);
        if rule.is_none() {
            state.confirm.all.waive_acks();
        }
        state.table.set_confirms(rule.is_some());
        state.note_when_confirmable();
        server.shared().holds_back.set(rule.is_some());
        was.is_none() && rule.is_some()
    });
    if !is_loaded {
        return;
    }
    if is_new == Some(true) {
        lazy_subscribe::begin(server);
        listen(server);
        look(server);
    }
    warn_of_too_many(server);
}

/// Subscribes to turns of the event loop, and to replicas that connect and disconnect. Every turn then costs a little
/// more, so this starts when it is first needed.
fn listen<S: Server>(server: &S) {
    let is_heard = &server.shared().hears_replicas;
    if !is_heard.set(true) && !server.listen(Topic::Replicas) {
        server.log(Level::Warning, "the server does not tell about its replicas: nothing is confirmed");
        is_heard.set(false);
    }
}

/// Returns why a grant to this client can never be confirmed, before anything is done. Whether replicas could confirm
/// it now is up to the core.
#[cold]
pub fn refusal_of_grant<S: Server>(server: &S, binding: Binding, is_reentrant: bool) -> Option<&'static str> {
    if let Some(reason) = refusal_of_options(server, binding.is_keepalive, is_reentrant) {
        return Some(reason);
    }
    cannot_wait(server).then_some(CANNOT_WAIT)
}

/// Returns true if a grant to this client must be confirmed, but the client cannot be blocked.
fn cannot_wait<S: Server>(server: &S) -> bool {
    server.shared().settings.confirms() && !replies::can_block(server)
}

/// Returns why a request with these options cannot be confirmed: a paused lease, or a count.
pub fn refusal_of_options<S: Server>(
    server: &S,
    is_keepalive: bool,
    is_reentrant: bool,
) -> Option<&'static str> {
    match (is_keepalive, is_reentrant) {
        _ if !server.shared().settings.confirms() => None,
        (true, _) => Some(KEPT_UNCONFIRMED),
        (false, true) => Some(COUNTED_UNCONFIRMED),
        (false, false) => None,
    }
}

/// Returns why a renewal by this client cannot be confirmed, or not now.
#[cold]
pub fn refusal_of_renewal<S: Server>(server: &S, raises: bool) -> Option<&'static str> {
    if raises && server.shared().settings.confirms() {
        return Some(RAISED_UNCONFIRMED);
    }
    if cannot_wait(server) { Some(CANNOT_WAIT) } else { is_impossible(server).then_some(CANNOT_CONFIRM) }
}

/// Returns true if no grant can be confirmed now.
#[inline]
pub fn is_impossible<S: Server>(server: &S) -> bool {
    server.shared().holds_back.is_set() && lacks_replicas(server)
}

#[cold]
fn lacks_replicas<S: Server>(server: &S) -> bool {
    let now = server.boot();
    let can =
        server.with(|state| state.confirm.rule.is_none_or(|rule| state.confirm.all.can_confirm(now, rule)));
    can != Some(true)
}

/// Answers the client of the running command once enough replicas have acknowledged its step. It waits for its lease
/// of `lease_ms` at most, because a hold that is reported must still be held.
#[cold]
pub fn hold_back<S: Server>(server: &S, reply: Reply, lease_ms: u64) {
    let id = server.client().unwrap_or(ClientId(0));
    if let Some(blocked) = server.block() {
        return pend(server, blocked, id, reply, lease_ms);
    }
    let _ = schedule::after(server, |state| state.dropped(&reply));
    replies::reply(server, Some(&reply.unconfirmed()));
}

/// Answers a client that waited in a queue; if it was granted the lock, once enough replicas have acknowledged that.
#[cold]
pub fn hold_back_waiter<S: Server>(server: &S, blocked: S::Blocked, id: ClientId, answer: Answer) {
    if let Answer::Granted { token, .. } = answer {
        let now = server.boot();
        let left_ms = server.with(|state| state.table.left_of_undelivered(now, token)).flatten();
        pend(server, blocked, id, Reply::Answer(answer), left_ms.unwrap_or(0));
    } else {
        replies::answer(server, blocked, id, Reply::Answer(answer));
    }
}

fn pend<S: Server>(server: &S, blocked: S::Blocked, id: ClientId, reply: Reply, lease_ms: u64) {
    let (now, settings) = (server.boot(), &server.shared().settings);
    let until = now.plus_ms(settings.confirm_timeout_ms().min(lease_ms));
    let unconfirmed = server.with(|state| {
        let confirm = &mut state.confirm;
        let Some(wait) = confirm.rule.and_then(|rule| confirm.all.wait(now, until, rule)) else {
            confirm.failed += 1;
            state.dropped(&reply);
            return Some(reply.unconfirmed());
        };
        state.clients.wait_for_replicas(blocked, id, wait, reply);
        let until = state.confirm.all.next_deadline();
        state.wake.at(until);
        None
    });
    if let Some(reply) = unconfirmed.flatten() {
        replies::answer(server, blocked, id, reply);
        schedule::request(server);
    }
}

/// Handles a replica that connected or disconnected.
pub fn replica_changed<S: Server>(server: &S) {
    let has_missed = &server.shared().has_missed_replica;
    has_missed.set(true);
    let seen = server.replicas();
    if see(server, seen.as_ref()) {
        has_missed.set(false);
    }
    warn_of_too_many(server);
    // Requests that could not be granted may be grantable now.
    let _ = schedule::after(server, |_| ());
}

/// Reads the replicas and their offsets. Returns the offset of the stream.
fn look<S: Server>(server: &S) -> Option<u64> {
    if server.shared().has_missed_replica.set(false) {
        let _ = server.with(|state| state.confirm.all.forget_replicas());
    }
    let seen = server.replicas();
    see(server, seen.as_ref());
    seen.map(|(offset, _)| offset)
}

/// Records the connected replicas. A server that is no primary has none.
fn see<S: Server>(server: &S, seen: Option<&(u64, Vec<Seen>)>) -> bool {
    let now = server.boot();
    let replicas = seen.map_or(&[][..], |(_, replicas)| replicas);
    let seen = server.with(|state| {
        state.confirm.looked_at = now;
        state.confirm.all.see(now, replicas);
        state.note_when_confirmable();
    });
    seen.is_some()
}

/// Runs before the event loop sleeps.
pub fn turn<S: Server>(server: &S) {
    if !server.shared().hears_replicas.is_set() {
        return;
    }
    let is_idle = server.with(|state| state.confirm.all.is_empty());
    if is_idle != Some(false) {
        return;
    }
    let offset = look(server);
    let must_ask = server.with(|state| {
        let confirm = &mut state.confirm;
        if let Some(offset) = offset.filter(|_| confirm.all.has_new()) {
            confirm.all.sent(offset);
            confirm.must_ask = true;
        }
        // The question to replicas belongs to no key: it must not go out while whole slots are leaving.
        confirm.must_ask && state.pump.moves == 0
    });
    // Replicas report once a second without being asked. Nothing is asked while the server has promised not to write.
    if must_ask == Some(true) && !server.is_paused() {
        server.ask_replicas();
        let _ = server.with(|state| state.confirm.must_ask = false);
    }
    answer_over(server);
}

/// Answers the clients whose outcome is known. The pump revokes holds that are not reported to their owners.
fn answer_over<S: Server>(server: &S) {
    let now = server.boot();
    let over = server.with(|state| {
        // A client that is answered in a later turn waits for it here.
        let room = state.clients.room_behind_others();
        let mut over = Vec::new();
        for (wait, verdict) in state.confirm.all.take_some_over(now, room, REPLIES_PER_TURN.get()) {
            let Some((blocked, id, reply)) = state.clients.take_confirming(wait) else {
                continue;
            };
            let reply = match verdict {
                Verdict::Confirmed => {
                    state.confirm.confirmed += 1;
                    reply
                }
                Verdict::Failed => {
                    state.confirm.failed += 1;
                    state.dropped(&reply);
                    reply.unconfirmed()
                }
            };
            over.push((blocked, id, reply, verdict));
        }
        let next = state.confirm.all.next_deadline();
        state.wake.at(next);
        over
    });
    let over = over.unwrap_or_default();
    // Requests a run of the pump only if it has something new to do. Otherwise it would run in every turn while
    // nothing may be written.
    let has_failed = over.iter().any(|(.., verdict)| *verdict == Verdict::Failed);
    for (blocked, id, reply, _) in over {
        replies::answer(server, blocked, id, reply);
    }
    if has_failed || server.with(|state| state.confirm.all.has_backlog()) == Some(true) {
        schedule::request(server);
    }
}

/// Returns the number of connected replicas beyond the group.
pub fn replicas_too_many<S: Server>(server: &S, now: Moment) -> u64 {
    let settings = &server.shared().settings;
    let nodes = server.with(|state| {
        let (replicas, _) = state.confirm.all.replicas(now, 0);
        replicas as u64 + 1
    });
    // A wait that began under another rule needs no replica.
    let too_many =
        nodes.filter(|_| settings.confirms()).map(|nodes| nodes.saturating_sub(settings.group_size()));
    too_many.unwrap_or(0)
}

/// Warns if more replicas are connected than `redislock.group-size` allows for. A majority of that number need not be
/// a majority of the nodes.
fn warn_of_too_many<S: Server>(server: &S) {
    let too_many = replicas_too_many(server, server.boot());
    let is_news = server.with(|state| {
        let logged = std::mem::replace(&mut state.confirm.too_many_are_logged, too_many);
        too_many > logged
    });
    if is_news == Some(true) {
        let group_size = server.shared().settings.group_size();
        let nodes = group_size + too_many;
        let text = format!(
            "redislock.group-size is {group_size}, and this shard has {nodes} nodes: grants are not safe until it is \
             as many"
        );
        server.log(Level::Warning, &text);
    }
}
