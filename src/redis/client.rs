//! What the server says of a client that is about to be closed.

use std::ffi::c_longlong;

use redis_module::raw;

use super::api::{Ctx, api};
use super::reply::{ask, text};
use super::{config, kind};
use crate::engine::server::Server;
use crate::lock::types::ClientId;

/// Whether this connection closes before what it was answered in this turn of the event loop was sent.
///
/// In the usual order the server answers blocked clients, sends replies, and closes connections at the end of a turn. What
/// closes after replies were sent is told apart:
/// - a connection that its own client has closed behind the reply, by QUIT for one, has the flag `c`;
/// - a client that takes too much memory is closed last, where `maxmemory-clients` is set;
/// - Valkey runs commands of others while replies are being sent, if it has threads for that;
/// - a script that is slow lets others in before the turn is over.
pub(super) fn has_dropped_reply(ctx: &Ctx, client: ClientId) -> bool {
    let is = |name, value: &str| config::config(ctx, name).as_deref() == Some(value);
    !ctx.flags().is_script
        && flags(ctx, client).is_some_and(|flags| !flags.contains('c'))
        && is(c"maxmemory-clients", "0")
        && (!kind::kind().is_valkey() || is(c"io-threads", "1"))
}

/// The flags of a client, by CLIENT LIST. `None`: there is none, or the server does not say.
fn flags(ctx: &Ctx, ClientId(id): ClientId) -> Option<String> {
    let id = c_longlong::try_from(id).ok()?;
    // SAFETY: a live context; the format takes two C strings and a number.
    let reply = unsafe { ask!(ctx, c"CLIENT", c"cclE", c"LIST".as_ptr(), c"ID".as_ptr(), id) }?;
    let line = text(reply.get())?;
    line.split_whitespace().find_map(|field| field.strip_prefix("flags=").map(str::to_owned))
}
