//! LOCK.ACQUIRE and LOCK.MACQUIRE: as requests of clients on a primary, and as facts from a stream or a file.

use super::admission::Admission;
use super::blocked_clients::Reply;
use super::key_step::{self, Opened, apply, internal_error, invalid, run_step, try_at_once};
use super::lazy_subscribe::refuses_for_eviction;
use super::server::{MINTED_OWNER_BYTES, Part, Server};
use super::{confirm, replies, schedule};
use crate::command::acquire::{self, Acquire, WaitFor};
use crate::command::args::Bounds;
use crate::command::{error, macquire};
use crate::lock::effect::{Answer, Effects, Existing};
use crate::lock::table::{Acquired, Ask, Block, Granted, KeyRef, Refusal, Table, Wait};
use crate::lock::types::{Binding, ClientId, Mode, Moment, Now, Token};

/// Handles a request for one lock.
#[inline(always)]
pub fn request_acquire<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    let settings = &server.shared().settings;
    // The common case: granted at once, or decided by [`acquire`].
    if let Some((owner, lease_ms)) = acquire::plain(args, &settings.bounds())
        && !server.shared().holds_back.is_set()
        && !refuses_for_eviction(server)
    {
        return acquire_plain(server, name, owner, lease_ms);
    }
    request_any(server, name, args);
}

/// Answers at once an owner that asks only for an exclusive lock.
#[inline(always)]
fn acquire_plain<S: Server>(server: &S, name: S::Name<'_>, owner: &[u8], lease_ms: u64) {
    let client = server.client();
    let opened = key_step::open(server, name, Some(owner));
    let tried = try_at_once(server, name, opened, |table, now, existing| {
        if existing != Existing::Nothing {
            return None;
        }
        let ask = Ask {
            owner,
            owner_is_minted: false,
            lease_ms,
            mode: Mode::Exclusive,
            is_reentrant: false,
            binding: Binding::NONE,
            wait: None,
            client,
            bind_to: None,
            must_be_explicit: server.shared().is_cluster(),
            cannot_confirm: false,
        };
        table.acquire_at_once(now, server.lock_key(name), &ask)
    });
    match tried {
        Ok(token) => server.reply(Part::Integer(token.get())),
        Err(opened) => acquire_opened(server, name, owner, lease_ms, opened),
    }
}

/// Answers such a request if a glance at its open key was not enough.
#[inline(never)]
fn acquire_opened<'a, S: Server>(
    server: &'a S,
    name: S::Name<'_>,
    owner: &[u8],
    lease_ms: u64,
    opened: Opened<'a, S>,
) {
    let (mode, binding) = (Mode::Exclusive, Binding::NONE);
    let request = Acquire { owner: Some(owner), lease_ms, wait: None, mode, is_reentrant: false, binding };
    acquire(server, name, &request, Some(opened));
}

#[inline(never)]
fn request_any<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    let settings = &server.shared().settings;
    let request = match acquire::parse(args, &settings.bounds()) {
        Ok(request) => request,
        Err(error) => return invalid(server, &error),
    };
    if refuses_for_eviction(server) {
        return server.reply(Part::Error(error::MAY_EVICT));
    }
    if server.shared().holds_back.is_set()
        && let Some(reason) = confirm::refusal_of_grant(server, request.binding, request.is_reentrant)
    {
        return server.reply(Part::Error(reason));
    }
    acquire(server, name, &request, None);
}

/// Handles a request. `opened` is its key, if that is open already.
fn acquire<'a, S: Server>(
    server: &'a S,
    name: S::Name<'_>,
    request: &Acquire<'_>,
    opened: Option<Opened<'a, S>>,
) {
    let Acquire { lease_ms, mode, is_reentrant, binding, wait, .. } = *request;
    let mut minted = [0; MINTED_OWNER_BYTES];
    let owner = request.owner.unwrap_or_else(|| {
        minted = server.new_owner();
        &minted
    });
    let client = server.client();
    if !binding.is_none() && own_connection(server, client).is_none() {
        return server.reply(Part::Error(error::NO_CONNECTION));
    }
    let cannot_confirm = confirm::is_impossible(server);
    let mut is_parked = false;
    // A waiter is recorded before anything is published, because a listener may release the lock.
    let park = |reply: &Acquired| {
        if let Acquired::Waiting(waiter) = *reply {
            is_parked = replies::park(server, waiter);
        }
    };
    let step = |table: &mut Table, now: Now, existing, admission: &mut Admission<'_, S>, fx: &mut Effects| {
        let ask = Ask {
            owner,
            owner_is_minted: request.owner.is_none(),
            lease_ms,
            mode,
            is_reentrant,
            binding,
            wait: wait.and_then(|wait| wait_until(server, now.boot, client, wait)),
            client,
            bind_to: bind_to(server, client, table.may_have_bindings() || !binding.is_none()),
            must_be_explicit: request.owner.is_none() || server.shared().is_cluster(),
            cannot_confirm,
        };
        let key_ref = KeyRef { lock_key: server.lock_key(name), existing };
        table.acquire(now, key_ref, &ask, &mut |who| admission.admit(who), fx)
    };
    let opened = opened.unwrap_or_else(|| key_step::open(server, name, Some(owner)));
    let reply = run_step(server, name, opened, step, park);
    let minted_owner = request.owner.is_none().then_some(owner);
    if server.shared().holds_back.is_set()
        && let Some(Acquired::Granted(token)) = reply
    {
        return hold_back(server, &[name], token, minted_owner, lease_ms);
    }
    reply_acquired(server, &[name], reply, minted_owner, is_parked);
}

/// Blocks the client until enough replicas have acknowledged the grant.
#[cold]
fn hold_back<S: Server>(
    server: &S,
    names: &[S::Name<'_>],
    token: Token,
    minted_owner: Option<&[u8]>,
    lease_ms: u64,
) {
    let mut lock_keys = names.iter().map(|&name| server.lock_key(name).to_owned());
    let Some(lock_key) = lock_keys.next() else {
        return internal_error(server);
    };
    let reply = Reply::Answer(Answer::Granted {
        lock_key,
        others: lock_keys.collect(),
        token,
        minted_owner: minted_owner.map(Into::into),
    });
    confirm::hold_back(server, reply, lease_ms);
}

#[inline(always)]
fn reply_acquired<S: Server>(
    server: &S,
    names: &[S::Name<'_>],
    reply: Option<Acquired>,
    minted_owner: Option<&[u8]>,
    is_parked: bool,
) {
    match (reply, minted_owner) {
        (Some(Acquired::Granted(token)), None) => server.reply(Part::Integer(token.get())),
        _ => reply_otherwise(server, names, reply, minted_owner, is_parked),
    }
}

/// Answers or blocks a client whose request was not granted at once.
#[cold]
fn note_contended<S: Server>(server: &S, names: &[S::Name<'_>]) {
    let _ = server.with(|state| {
        if state.contended.is_on() {
            names.iter().for_each(|&name| state.contended.note(server.lock_key(name)));
        }
    });
}

#[inline(never)]
fn reply_otherwise<S: Server>(
    server: &S,
    names: &[S::Name<'_>],
    reply: Option<Acquired>,
    minted_owner: Option<&[u8]>,
    is_parked: bool,
) {
    if matches!(reply, Some(Acquired::Busy | Acquired::Waiting(_))) {
        note_contended(server, names);
    }
    match reply {
        None => internal_error(server),
        Some(Acquired::Busy) => server.reply(Part::Null),
        Some(Acquired::Refused(refusal)) => {
            let cycle = server.with(|state| state.table.take_cycle()).unwrap_or_default();
            let key = if let Refusal::Held(key) = refusal { key } else { 0 };
            let key = names.get(key).map_or(&[][..], AsRef::as_ref);
            server.reply(Part::Error(&error::refusal(refusal, key, &cycle)));
        }
        Some(Acquired::Granted(token)) => {
            if let Some(owner) = minted_owner {
                server.reply(Part::Array(2));
                server.reply(Part::Bytes(owner));
            }
            server.reply(Part::Integer(token.get()));
        }
        // The client is answered later.
        Some(Acquired::Waiting(_)) if is_parked => {}
        Some(Acquired::Waiting(waiter)) => {
            let _ = schedule::after(server, |state| state.table.leave(waiter));
            server.reply(Part::Null);
        }
    }
}

/// Returns the connection if holds can be bound to it and a setting or option needs that.
#[inline]
pub fn bind_to<S: Server>(server: &S, client: Option<ClientId>, is_asked: bool) -> Option<ClientId> {
    if is_asked { own_connection(server, client) } else { None }
}

/// Returns the connection if it is a client's own.
#[cold]
fn own_connection<S: Server>(server: &S, client: Option<ClientId>) -> Option<ClientId> {
    client.filter(|&client| !server.flags().is_script && server.is_connected(client))
}

/// Returns how a request waits; `None` if its client cannot be blocked.
fn wait_until<S: Server>(server: &S, now: Moment, client: Option<ClientId>, wait: WaitFor) -> Option<Wait> {
    match wait {
        WaitFor::Queue(ms) => Some(Wait::Reservation { until: now.plus_ms(ms) }),
        WaitFor::Block(ms) => client.filter(|_| replies::can_block(server)).map(|client| {
            Wait::Block(Block { client, until: Some(ms).filter(|&ms| ms > 0).map(|ms| now.plus_ms(ms)) })
        }),
    }
}

/// Applies a grant of one lock from a stream or a file.
#[inline(never)]
pub fn apply_acquire<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    match acquire::parse(args, &Bounds::WIDEST) {
        Ok(Acquire { owner: Some(owner), lease_ms, mode, is_reentrant, binding, .. }) => {
            let granted = Granted { owner, lease_ms, mode, is_reentrant, binding };
            apply(server, name, |table, now, key_ref, fx| table.apply_acquire(now, key_ref, &granted, fx));
        }
        _ => server.reply(Part::Error(error::BAD_RECORD)),
    }
}

/// Handles a request for several locks.
pub fn request_several<S: Server>(server: &S, args: &[S::Name<'_>]) {
    let settings = &server.shared().settings;
    let (names, request) = match macquire::parse(args, &settings.bounds()) {
        Ok(parsed) => parsed,
        Err(error) => return invalid(server, &error),
    };
    if !server.sees_all_keys()
        && let Some(reason) = key_step::refusal_of_keys(server, names)
    {
        return server.reply(Part::Error(reason));
    }
    if refuses_for_eviction(server) {
        return server.reply(Part::Error(error::MAY_EVICT));
    }
    if server.shared().holds_back.is_set()
        && let Some(reason) = confirm::refusal_of_grant(server, request.binding, request.is_reentrant)
    {
        return server.reply(Part::Error(reason));
    }
    let mut minted = [0; MINTED_OWNER_BYTES];
    let owner = request.owner.unwrap_or_else(|| {
        minted = server.new_owner();
        &minted
    });
    let client = server.client();
    let now = server.now();
    let mut ask = Ask {
        owner,
        owner_is_minted: request.owner.is_none(),
        lease_ms: request.lease_ms,
        mode: request.mode,
        is_reentrant: false,
        binding: request.binding,
        wait: request.wait.and_then(|wait| wait_until(server, now.boot, client, wait)),
        client,
        bind_to: None,
        must_be_explicit: request.owner.is_none() || server.shared().is_cluster(),
        cannot_confirm: confirm::is_impossible(server),
    };
    let mut admission = Admission::of_command(server);
    let mut is_parked = false;
    let reply = key_step::at_all(
        server,
        names,
        true,
        |table, refs, fx| {
            ask.bind_to = bind_to(server, client, table.may_have_bindings());
            table.acquire_many(now, refs, &ask, &mut |who| admission.admit(who), fx)
        },
        |reply| {
            if let Acquired::Waiting(waiter) = *reply {
                is_parked = replies::park(server, waiter);
            }
        },
    );
    let minted_owner = request.owner.is_none().then_some(owner);
    if server.shared().holds_back.is_set()
        && let Some(Acquired::Granted(token)) = reply
    {
        return hold_back(server, names, token, minted_owner, request.lease_ms);
    }
    reply_acquired(server, names, reply, minted_owner, is_parked);
}

/// Applies a grant of several locks from a stream or a file.
pub fn apply_several<S: Server>(server: &S, args: &[S::Name<'_>]) {
    let Ok((names, Acquire { owner: Some(owner), lease_ms, mode, is_reentrant, binding, .. })) =
        macquire::parse(args, &Bounds::WIDEST)
    else {
        return server.reply(Part::Error(error::BAD_RECORD));
    };
    let now = server.now();
    let granted = Granted { owner, lease_ms, mode, is_reentrant, binding };
    let step = |table: &mut Table, refs: &[KeyRef<'_>], fx: &mut [Effects]| {
        ((), table.apply_acquire_many(now.boot, refs, &granted, fx))
    };
    match key_step::at_all(server, names, false, step, |()| ()) {
        Some(()) => server.reply(Part::Ok),
        None => internal_error(server),
    }
}
