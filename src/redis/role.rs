//! What the server says of itself and its replicas: `ROLE`.

use redis_module::raw;

use super::api::{Ctx, api};
use super::reply::{Reply, element, length, number, text};
use crate::lock::confirm::{ReplicaName, Seen};

/// How far the stream has come, and who has got how far. `None`: this server is no primary, or does not say.
pub(super) fn ask(ctx: &Ctx) -> Option<(u64, Vec<Seen>)> {
    // SAFETY: 1. a live context; 2. the format takes no arguments; 3. the reply is freed once, after `read`, which
    // returns nothing that points into it.
    unsafe {
        let reply = api!(RedisModule_Call, ctx.as_ptr(), c"ROLE".as_ptr(), c"E".as_ptr());
        let reply = reply.filter(|reply| !reply.is_null())?;
        let role = read(reply);
        api!(RedisModule_FreeCallReply, reply);
        role
    }
}

fn read(reply: Reply) -> Option<(u64, Vec<Seen>)> {
    if text(element(reply, 0)?)? != "master" {
        return None;
    }
    let offset = u64::try_from(number(element(reply, 1)?)?).ok()?;
    let list = element(reply, 2)?;
    let replicas = (0..length(list)).map(|at| {
        let replica = element(list, at)?;
        let [ip, port, offset] = [0, 1, 2].map(|at| element(replica, at).and_then(text));
        let name = ReplicaName(format!("{}:{}", ip?, port?).into());
        Some(Seen { name, acknowledged: offset?.parse().ok()? })
    });
    Some((offset, replicas.collect::<Option<_>>()?))
}
