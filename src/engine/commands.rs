//! One short function for each command.
//!
//! A command has one of three sources. From a client of a primary, it is a request. From a primary's stream or a
//! file, it is a fact, and applied as it is. From a client of a writable replica, it is refused, because a replica
//! decides nothing.

use super::acquire::{self, bind_to};
use super::admission::Admission;
use super::blocked_clients::Reply;
use super::key_step::{self, Opened, apply, ask, internal_error, invalid, run_step, try_at_once};
use super::server::{Part, Server, To};
use super::{confirm, lazy_subscribe, legacy};
use crate::command::args::Bounds;
use crate::command::error::{self, Invalid};
use crate::command::{exec, fence, internal, release, renew};
use crate::lock::effect::{Change, Effects, Existing, Record, Step};
use crate::lock::table::{KeyRef, Release, Renewal, Table};
use crate::lock::types::{LockKey, Token};

/// The source of a command that writes.
pub enum CommandSource {
    /// From a client.
    Request,
    /// From a primary or a file.
    Fact,
    /// From a client of a server that does not decide.
    Refused,
}

/// Returns the source of the running command.
#[inline(always)]
pub fn command_source<S: Server>(server: &S) -> CommandSource {
    // The common case, known in advance.
    if server.shared().hears_clients_only() { CommandSource::Request } else { source_by_flags(server) }
}

#[inline(never)]
fn source_by_flags<S: Server>(server: &S) -> CommandSource {
    lazy_subscribe::begin(server);
    let flags = server.flags();
    if flags.is_fact {
        CommandSource::Fact
    } else if flags.decides() {
        CommandSource::Request
    } else {
        // On a replica, or on a server that is about to serve another data set.
        CommandSource::Refused
    }
}

/// LOCK.ACQUIRE
#[inline(always)]
pub fn acquire<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    match command_source(server) {
        CommandSource::Request => acquire::request_acquire(server, name, args),
        CommandSource::Fact => acquire::apply_acquire(server, name, args),
        CommandSource::Refused => server.reply(Part::Error(error::READ_ONLY)),
    }
}

/// LOCK.MACQUIRE
pub fn macquire<S: Server>(server: &S, args: &[S::Name<'_>]) {
    match command_source(server) {
        CommandSource::Request => acquire::request_several(server, args),
        CommandSource::Fact => acquire::apply_several(server, args),
        CommandSource::Refused => server.reply(Part::Error(error::READ_ONLY)),
    }
}

/// LOCK.RELEASE
#[inline(always)]
pub fn release<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    match command_source(server) {
        CommandSource::Request => request_release(server, name, args),
        CommandSource::Fact => apply_release(server, name, args),
        CommandSource::Refused => server.reply(Part::Error(error::READ_ONLY)),
    }
}

/// LOCK.RENEW
pub fn renew<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    match command_source(server) {
        CommandSource::Request => request_renew(server, name, args),
        CommandSource::Fact => apply_renew(server, name, args),
        CommandSource::Refused => server.reply(Part::Error(error::READ_ONLY)),
    }
}

/// LOCK.APPLY. With only a key, called by the module itself, it does nothing: the reply shows whether the server
/// would run it.
pub fn apply_record<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    if args.is_empty() && server.client().is_none_or(|client| !server.is_connected(client)) {
        return server.reply(Part::Ok);
    }
    lazy_subscribe::begin(server);
    let flags = server.flags();
    if !flags.is_fact {
        return server.reply(Part::Error(error::INTERNAL));
    }
    // A primary accepts a hold only if it arrives with its slot (Valkey): it began elsewhere.
    let arrives = flags.decides();
    let Some(record) = internal::parse_apply(args) else {
        return server.reply(Part::Error(error::BAD_RECORD));
    };
    apply(server, name, |table, now, key_ref, fx| match &record {
        internal::Apply::Hold(mode, hold) => {
            let step = table.apply_hold(now, key_ref, *mode, hold, fx);
            if arrives {
                let _not_published = fx.take();
            }
            step
        }
        internal::Apply::Ended(token) => table.apply_ended(now, key_ref, *token, fx),
        internal::Apply::Empty if key_ref.existing == Existing::Nothing => {
            table.apply_empty(now, key_ref.lock_key)
        }
        internal::Apply::Empty => Step { reply: (), change: Change::Nothing, record: Record::Nothing },
    });
}

/// LOCK.TICK. Without arguments, it does nothing: the reply shows whether the server would run it.
pub fn tick<S: Server>(server: &S, numbers: &[S::Name<'_>]) {
    if numbers.is_empty() {
        return server.reply(Part::Ok);
    }
    if !server.flags().is_fact {
        return server.reply(Part::Error(error::INTERNAL));
    }
    let Some((last, replicated)) = internal::parse_tick(numbers) else {
        return server.reply(Part::Error(error::BAD_RECORD));
    };
    lazy_subscribe::begin(server);
    let _ = server.with(|state| state.table.clock().adopt(last, replicated));
    server.reply(Part::Ok);
}

/// LOCK.FENCE
pub fn fence<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    let asked = match fence::parse(args) {
        Ok(asked) => asked,
        Err(error) => return invalid(server, &error),
    };
    let key = server.open(name, To::Read);
    let existing = legacy::find(server, &key, None);
    if existing == Existing::Other {
        return server.reply(Part::Error(error::WRONG_TYPE));
    }
    let now = server.boot();
    if let Some(asked) = asked {
        let is_live = server.with(|state| state.table.is_live(now, existing, asked));
        return server.reply(Part::Integer(u64::from(is_live == Some(true))));
    }
    match server.with(|state| state.table.live_token(now, existing)).flatten() {
        Some(live) => server.reply(Part::Integer(live.get())),
        None => server.reply(Part::Null),
    }
}

/// LOCK.EXEC. Returns the command to run; `None` if the client was told why it may not run.
pub fn exec<'a, S: Server>(
    server: &S,
    name: S::Name<'a>,
    args: &'a [S::Name<'a>],
) -> Option<&'a [S::Name<'a>]> {
    match command_source(server) {
        CommandSource::Request => {}
        // The command's own effects are replicated, not this call.
        CommandSource::Fact => {
            server.reply(Part::Error(error::BAD_RECORD));
            return None;
        }
        CommandSource::Refused => {
            server.reply(Part::Error(error::READ_ONLY));
            return None;
        }
    }
    let exec::Exec { token, words } = match exec::parse(args) {
        Ok(request) => request,
        Err(error) => {
            invalid(server, &error);
            return None;
        }
    };
    if let Some(reason) = refusal_of_keys(server, name, words) {
        server.reply(Part::Error(reason));
        return None;
    }
    let now = server.boot();
    // Opened for writing, though nothing is written, so that it counts neither as a hit nor as a miss.
    let key = server.open(name, To::Write);
    let existing = legacy::find(server, &key, None);
    drop(key);
    if existing == Existing::Other {
        server.reply(Part::Error(error::WRONG_TYPE));
        return None;
    }
    match server.with(|state| state.table.fence(now, existing, token)) {
        None => internal_error(server),
        Some(Err(live)) => server.reply(Part::Error(&error::fenced(token, live))),
        Some(Ok(())) => return Some(words),
    }
    None
}

/// Returns why a command cannot run together with this lock: in a cluster, its keys must be in the lock's slot.
fn refusal_of_keys<'a, S: Server>(
    server: &S,
    lock: S::Name<'a>,
    words: &'a [S::Name<'a>],
) -> Option<&'static str> {
    if !server.shared().is_cluster() {
        return None;
    }
    let keys = server.keys_of(words).into_iter().filter_map(|at| words.get(at).copied());
    let names: Vec<_> = std::iter::once(lock).chain(keys).collect();
    key_step::refusal_of_keys(server, &names)
}

#[inline(always)]
fn request_release<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    let Some(owner) = release::plain(args) else {
        return request_any_release(server, name, args);
    };
    let opened = key_step::open(server, name, Some(owner));
    let tried = try_at_once(server, name, opened, |table, now, existing| {
        table.release_at_once(now.boot, existing, owner)
    });
    match tried {
        Ok(()) => server.reply(Part::Integer(1)),
        Err(opened) => release_opened(server, name, &Release { owner, token: None }, opened),
    }
}

#[inline(never)]
fn request_any_release<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    match release::parse(args) {
        Ok(request) => {
            let opened = key_step::open(server, name, Some(request.owner));
            release_opened(server, name, &request, opened);
        }
        Err(error) => invalid(server, &error),
    }
}

#[inline(never)]
fn release_opened<'a, S: Server>(
    server: &'a S,
    name: S::Name<'_>,
    request: &Release<'_>,
    opened: Opened<'a, S>,
) {
    let decide = |table: &mut Table, now, existing, admission: &mut Admission<'_, S>, fx: &mut Effects| {
        let admission: crate::lock::table::Admission<'_> = &mut |who| admission.admit(who);
        // The position matters only to waiters.
        let lock_key =
            if table.waiters() == 0 { LockKey { db: 0, name: &[] } } else { server.lock_key(name) };
        table.release(now, KeyRef { lock_key, existing }, request, admission, fx)
    };
    reply_truth(server, run_step(server, name, opened, decide, |_| ()));
}

#[inline(never)]
fn apply_release<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    let Ok(request) = release::parse(args) else {
        return server.reply(Part::Error(error::BAD_RECORD));
    };
    apply(server, name, |table, now, key_ref, fx| table.apply_release(now, key_ref, &request, fx));
}

fn request_renew<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    let shared = server.shared();
    let request = match renew::parse(args, &shared.settings.bounds()) {
        Ok(request) => request,
        Err(error) => return invalid(server, &error),
    };
    if let Some(error) = request.raise.and_then(|raise| is_too_far_ahead(server, raise)) {
        return invalid(server, &error);
    }
    if shared.holds_back.is_set()
        && let Some(reason) = confirm::refusal_of_renewal(server, request.raise.is_some())
    {
        return server.reply(Part::Error(reason));
    }
    let client = server.client();
    let mut token = None;
    let reply = ask(server, name, request.owner, |table, now, existing, admission, fx| {
        let key_ref = KeyRef { lock_key: server.lock_key(name), existing };
        let renewal = Renewal {
            owner: request.owner,
            token: request.token,
            raise: request.raise,
            lease_ms: request.lease_ms,
            client,
            bind_to: bind_to(server, client, table.may_have_bindings()),
        };
        let step = table.renew(now, key_ref, &renewal, &mut |who| admission.admit(who), fx);
        if shared.holds_back.is_set() {
            token = table.token_of(existing, request.owner);
        }
        step
    });
    if shared.holds_back.is_set() && reply == Some(Ok(true)) {
        let renewed = token.map(|token| (server.lock_key(name).to_owned(), token));
        return confirm::hold_back(server, Reply::Renewed(renewed), request.lease_ms);
    }
    match reply {
        Some(Err(refusal)) => server.reply(Part::Error(&error::refusal(refusal, name.as_ref(), &[]))),
        reply => reply_truth(server, reply.map(Result::ok)),
    }
}

/// Refuses a token from outside that would push the clock of tokens too far ahead (G14).
#[cold]
fn is_too_far_ahead<S: Server>(server: &S, raise: Token) -> Option<Invalid> {
    let now = server.now();
    let lead_us_max = server.shared().settings.token_lead_us_max();
    let highest = server.with(|state| state.table.clock().highest_from_outside(now.wall_us, lead_us_max))?;
    (raise.get() > highest).then_some(Invalid::TooFarAhead { highest })
}

fn apply_renew<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    let Ok(request) = renew::parse(args, &Bounds::WIDEST) else {
        return server.reply(Part::Error(error::BAD_RECORD));
    };
    let renewal = Renewal {
        owner: request.owner,
        token: request.token,
        raise: request.raise,
        lease_ms: request.lease_ms,
        client: None,
        bind_to: None,
    };
    apply(server, name, |table, now, key_ref, _| table.apply_renew(now, key_ref, &renewal));
}

/// Replies 1, 0, or the error for a value of another type.
#[inline(always)]
fn reply_truth<S: Server>(server: &S, truth: Option<Option<bool>>) {
    match truth {
        Some(Some(truth)) => server.reply(Part::Integer(u64::from(truth))),
        Some(None) => server.reply(Part::Error(error::WRONG_TYPE)),
        None => internal_error(server),
    }
}
