//! Answers blocked clients in turns, and removes them.

use super::blocked_clients::{Client, Reply, Stage};
use super::schedule;
use super::server::{Part, Server, Topic};
use crate::lock::effect::Answer;
use crate::lock::effect::WaiterId;
use crate::lock::types::ClientId;

/// Returns true if the client of the running command can be blocked.
///
/// A module that calls commands does so as a client without a connection. It cannot wait, whatever the server says of
/// it, because no user would be found when its turn comes. In a transaction or a script, the server would answer it
/// at once.
pub fn can_block<S: Server>(server: &S) -> bool {
    !server.flags().denies_blocking && server.client().is_some_and(|client| server.is_connected(client))
}

/// Blocks the client of the running command for this waiter. Returns false if it cannot be blocked.
pub fn park<S: Server>(server: &S, waiter: WaiterId) -> bool {
    let Some(blocked) = server.block() else {
        return false;
    };
    let id = server.client().unwrap_or(ClientId(0));
    let _ = server.with(|state| state.clients.wait_in_queue(blocked, id, waiter));
    true
}

/// Answers a blocked client that has left its stage: now, or when its turn comes.
pub fn answer<S: Server>(server: &S, blocked: S::Blocked, id: ClientId, reply: Reply) {
    if server.with(|state| state.clients.room_behind_others()) == Some(0) {
        let _ = schedule::after(server, |state| state.clients.wait_for_turn(blocked, id, reply));
    } else {
        unblock(server, blocked, id, reply);
    }
}

/// Answers clients whose turn has come. Returns false if others still wait for theirs. The pump calls it once in a
/// turn of the event loop.
pub fn answer_some<S: Server>(server: &S) -> bool {
    let room = server.with(|state| state.clients.room()).unwrap_or(0);
    for _ in 0..room.max(1) {
        let Some((blocked, id, reply)) = server.with(|state| state.clients.take_paced()).flatten() else {
            return true;
        };
        unblock(server, blocked, id, reply);
    }
    server.with(|state| state.clients.has_paced()) != Some(true)
}

fn unblock<S: Server>(server: &S, blocked: S::Blocked, id: ClientId, reply: Reply) {
    let _ = server.with(|state| {
        state.clients.note_answered(blocked, id);
    });
    server.unblock(blocked, Some(reply));
}

/// Handles a blocked client whose connection closed.
pub fn disconnected<S: Server>(server: &S, blocked: S::Blocked) {
    match leave(server, blocked) {
        None => schedule::request(server),
        // Answered, but the server did not send it: the connection has closed, or Redis 7.0 has lost the answer. That
        // is handled when the server releases the client.
        Some(Client { id, stage: Stage::Answered, .. }) => {
            if server.shared().loses_answers.is_set() {
                let _ = server.with(|state| state.pump.unanswered.push(id));
            }
            schedule::request(server);
        }
        // The server waits for this before it releases the client.
        Some(client) => {
            server.unblock(blocked, None);
            if let Stage::Paced(reply) = client.stage {
                dropped(server, &reply);
            }
        }
    }
}

/// Handles CLIENT UNBLOCK id TIMEOUT as a timeout. The server calls this only for clients that were not answered.
/// Returns the reply to send.
pub fn unblocked<S: Server>(server: &S, blocked: S::Blocked) -> Option<Reply> {
    // The client is answered here. The server releases it when it finds that the client is no longer blocked.
    server.unblock(blocked, None);
    let client = leave(server, blocked)?;
    match client.stage {
        Stage::InQueue(_) | Stage::Answered => None,
        // Its timeout was about to be answered.
        Stage::Confirming(wait, _) if server.with(|state| state.confirm.all.is_gone(wait)) == Some(true) => {
            Some(Reply::Answer(Answer::Demoted))
        }
        Stage::Confirming(_, reply) => Some(reply.unconfirmed()),
        // A client with an answer gets it sooner.
        Stage::Paced(reply) => {
            handed_over(server, client.id, reply.clone());
            Some(reply)
        }
    }
}

/// The one way by which a client leaves before its answer was sent. That may unblock others (G6). Its request can no
/// longer be confirmed.
fn leave<S: Server>(server: &S, blocked: S::Blocked) -> Option<Client> {
    let client = server.with(|state| {
        let client = state.clients.remove(blocked)?;
        match client.stage {
            Stage::InQueue(waiter) => state.table.leave(waiter),
            Stage::Confirming(wait, ref reply) => {
                state.confirm.all.leave(wait);
                state.dropped(reply);
            }
            Stage::Paced(_) | Stage::Answered => {}
        }
        Some((client, state.has_work()))
    });
    let (client, has_work) = client.flatten()?;
    if has_work {
        schedule::request(server);
    }
    Some(client)
}

/// Handles a client that the server has released after this answer. `is_gone` is true if the answer reached no one.
pub fn released<S: Server>(server: &S, blocked: S::Blocked, reply: Reply, is_gone: bool) {
    let client = server.with(|state| state.clients.remove(blocked));
    match client.flatten() {
        _ if is_gone => dropped(server, &reply),
        Some(client) => handed_over(server, client.id, reply),
        None => {}
    }
}

/// Records a reply that the server has accepted for this client. The next turn shows whether it was sent.
fn handed_over<S: Server>(server: &S, client: ClientId, reply: Reply) {
    if !reply.tells_of_hold() {
        return;
    }
    let is_known_later = hears_turns(server);
    let now = server.boot();
    let _ = server.with(|state| {
        if is_known_later {
            state.sent.note(client, reply, now);
        } else {
            state.delivered(&reply);
        }
    });
}

/// Handles the begin of a turn of the event loop: the replies of the last one were sent.
pub fn turn_begins<S: Server>(server: &S) {
    let _ = server.with(|state| {
        state.sent.turn_begins();
        while let Some(reply) = state.sent.next_sent() {
            state.delivered(&reply);
        }
    });
    if needs_no_turns(server) {
        schedule::request(server);
    }
}

/// Returns true if the server reports its turns, and nothing needs that now.
fn needs_no_turns<S: Server>(server: &S) -> bool {
    let shared = server.shared();
    shared.hears_turns.is_set()
        && !shared.hears_replicas.is_set()
        && server.with(|state| state.sent.is_quiet()) == Some(true)
}

/// Subscribes to the turns of the event loop. Every turn then costs a little more, so this starts when a waiter is
/// granted a lock, and ends when none was for some turns.
fn hears_turns<S: Server>(server: &S) -> bool {
    let is_heard = &server.shared().hears_turns;
    is_heard.is_set() || {
        is_heard.set(server.listen(Topic::Turns));
        is_heard.is_set()
    }
}

/// Ends the subscription to turns, if nothing needs it now. Not to be called while the server reports an event,
/// because it then walks the list of subscribers.
pub fn unsubscribe_if_idle<S: Server>(server: &S) {
    if needs_no_turns(server) {
        server.shared().hears_turns.set(false);
        server.ignore_turns();
    }
}

/// Handles a closed connection. Its replies of this turn may not have been sent (G8).
pub fn closed<S: Server>(server: &S, client: ClientId) {
    while let Some((reply, since)) = server.with(|state| state.sent.take(client)).flatten() {
        if server.has_dropped_reply(client, since) {
            dropped(server, &reply);
        } else {
            let _ = server.with(|state| state.delivered(&reply));
        }
    }
}

/// Notes that this reply reaches no one.
fn dropped<S: Server>(server: &S, reply: &Reply) {
    let _ = schedule::after(server, |state| state.dropped(reply));
}

/// Writes the reply to a blocked client.
pub fn reply<S: Server>(server: &S, reply: Option<&Reply>) {
    use crate::command::error::{DEMOTED, REPLACED};
    let answer = match reply {
        Some(Reply::Renewed(_)) => return server.reply(Part::Integer(1)),
        Some(Reply::Answer(answer)) => Some(answer),
        None => None,
    };
    match answer {
        Some(Answer::Granted { token, minted_owner: None, .. }) => server.reply(Part::Integer(token.get())),
        Some(Answer::Granted { token, minted_owner: Some(owner), .. }) => {
            server.reply(Part::Array(2));
            server.reply(Part::Bytes(owner));
            server.reply(Part::Integer(token.get()));
        }
        Some(Answer::TimedOut | Answer::Withdrawn) | None => server.reply(Part::Null),
        Some(Answer::Replaced) => server.reply(Part::Error(REPLACED)),
        Some(Answer::Demoted) => server.reply(Part::Error(DEMOTED)),
        Some(Answer::Refused(text)) => server.reply(Part::Error(text)),
        Some(Answer::Moved(text)) => server.reply(Part::Error(text)),
    }
}
