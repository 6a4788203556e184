//! Reads replies of the server's own commands: its configuration and modules, its role and replicas, and clients that
//! are about to be closed.

use std::ffi::{CStr, c_longlong};

use redis_module::raw;

use super::api::{Ctx, api};
use super::call_reply::{Reply, ask, element, elements, is_of_kind, number, text};
use super::{server, server_quirks};
use crate::engine::lazy_subscribe;
use crate::engine::server::Server;
use crate::lock::confirm::{ReplicaName, Seen};
use crate::lock::types::{ClientId, Moment};

/// Returns true if a keyspace event could have a listener: a client, or another module, which needs no setting.
pub(super) fn has_listeners(ctx: &Ctx) -> bool {
    lazy_subscribe::has_listeners(config(ctx, c"notify-keyspace-events").as_deref(), || modules(ctx))
}

/// Returns the names of all modules. `None` if the server does not list them. A module that is being loaded is not in
/// the list itself.
fn modules(ctx: &Ctx) -> Option<Vec<String>> {
    // SAFETY: a live context; the format takes a C string.
    let modules = unsafe { ask!(ctx, c"MODULE", c"cE", c"LIST".as_ptr()) }?;
    if !is_of_kind(modules.get(), raw::REDISMODULE_REPLY_ARRAY) {
        return None;
    }
    elements(modules.get()).map(|module| element(module, 1).and_then(text)).collect()
}

/// Returns true if the server may evict keys without a time to live.
pub(super) fn may_evict(ctx: &Ctx) -> bool {
    let policy = server::info(ctx, c"memory", c"maxmemory_policy");
    let memory = server::info(ctx, c"memory", c"maxmemory");
    lazy_subscribe::may_evict(policy.as_deref(), memory.as_deref())
}

/// Returns a setting of the server; `None` if the server does not report it.
fn config(ctx: &Ctx, name: &CStr) -> Option<String> {
    // SAFETY: a live context; the format takes two C strings.
    let reply = unsafe { ask!(ctx, c"CONFIG", c"ccE", c"GET".as_ptr(), name.as_ptr()) }?;
    element(reply.get(), 1).and_then(text)
}

/// Returns the offset of the stream, and those of the replicas. `None` if this server is no primary, or does not
/// report them.
pub(super) fn replicas(ctx: &Ctx) -> Option<(u64, Vec<Seen>)> {
    // SAFETY: a live context; the format takes no arguments.
    read_replicas(unsafe { ask!(ctx, c"ROLE", c"E") }?.get())
}

fn read_replicas(reply: Reply) -> Option<(u64, Vec<Seen>)> {
    if text(element(reply, 0)?)? != "master" {
        return None;
    }
    let offset = u64::try_from(number(element(reply, 1)?)?).ok()?;
    let replicas = elements(element(reply, 2)?).map(|replica| {
        let [ip, port, offset] = [0, 1, 2].map(|at| element(replica, at).and_then(text));
        let name = ReplicaName(format!("{}:{}", ip?, port?).into());
        Some(Seen { name, acknowledged: offset?.parse().ok()? })
    });
    Some((offset, replicas.collect::<Option<_>>()?))
}

/// Returns true if this connection closes before its replies of this turn of the event loop were sent.
///
/// In a turn, the server usually answers blocked clients, then sends replies, and closes connections last. These
/// cases, in which a connection closes after its replies were sent, are recognized:
/// - a connection that its client closes after the reply, for example by QUIT, has the flag `c`;
/// - a client that uses too much memory is closed last, if `maxmemory-clients` is set;
/// - Valkey with I/O threads runs commands of others while replies are being sent;
/// - a slow script, or another module's slow command, may do the same: see [`may_have_yielded`].
pub(super) fn has_dropped_reply(ctx: &Ctx, client: ClientId, since: Moment) -> bool {
    let is = |name, value: &str| config(ctx, name).as_deref() == Some(value);
    flags(ctx, client).is_some_and(|flags| !flags.contains('c'))
        && is(c"maxmemory-clients", "0")
        && (!server_quirks::kind().is_valkey() || is(c"io-threads", "1"))
        && !may_have_yielded(ctx, since)
}

/// Returns true if a command may have let the server send replies since then. A script and a module's command
/// (`RedisModule_Yield`) may do that once they have run for `busy-reply-threshold` milliseconds. The server does not
/// report it. Half of that time is asked for here, because the server measures it by another clock.
fn may_have_yielded(ctx: &Ctx, since: Moment) -> bool {
    let threshold_ms = config(ctx, c"busy-reply-threshold").and_then(|ms| ms.parse::<u64>().ok());
    threshold_ms.is_none_or(|ms| ctx.boot().ms_since(since) >= ms / 2)
}

/// Returns the flags of a client, by CLIENT LIST. `None` without such a client, or if the server does not report it.
fn flags(ctx: &Ctx, ClientId(id): ClientId) -> Option<String> {
    let id = c_longlong::try_from(id).ok()?;
    // SAFETY: a live context; the format takes two C strings and a number.
    let reply = unsafe { ask!(ctx, c"CLIENT", c"cclE", c"LIST".as_ptr(), c"ID".as_ptr(), id) }?;
    let line = text(reply.get())?;
    line.split_whitespace().find_map(|field| field.strip_prefix("flags=").map(str::to_owned))
}
