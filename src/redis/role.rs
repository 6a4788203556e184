//! What the server says of itself and its replicas: `ROLE`.

use redis_module::raw;

use super::api::{Ctx, api};
use super::reply::{Reply, ask, element, elements, number, text};
use crate::lock::confirm::{ReplicaName, Seen};

/// How far the stream has come, and how far each replica has. `None`: this server is no primary, or does not say.
pub(super) fn ask(ctx: &Ctx) -> Option<(u64, Vec<Seen>)> {
    // SAFETY: a live context; the format takes no arguments.
    read(unsafe { ask!(ctx, c"ROLE", c"E") }?.get())
}

fn read(reply: Reply) -> Option<(u64, Vec<Seen>)> {
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
