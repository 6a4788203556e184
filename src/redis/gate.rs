//! Whether a waiting client may be granted a lock now.
//!
//! A grant out of the queue passes none of the server's own checks for commands, so they are made here
//! (SPEC 4): the user's rights, and whether the server refuses writes.

use std::ffi::c_int;

use redis_module::raw;

use super::api::{Ctx, OwnedStr, api};
use super::{confirm, settings};
use crate::command::error::LONGER_THAN_QUARANTINE;
use crate::lock::table::{Admission, Applicant, NO_PERMISSION, NO_PERMISSION_FOR_SEVERAL};

/// The checks of one step or of one run of the pump.
pub(crate) struct Gate<'a> {
    ctx: &'a Ctx,
    /// Whether the server refuses writes; asked once, when it first matters.
    refuses_writes: Option<bool>,
    /// Whether no grant could be confirmed. Known beforehand: within a step nobody can look at the replicas.
    cannot_confirm: bool,
}

impl<'a> Gate<'a> {
    /// Within a write command: the server has let it pass, so it does not refuse writes.
    #[inline]
    pub(crate) fn of_command(ctx: &'a Ctx) -> Self {
        Self { ctx, refuses_writes: Some(false), cannot_confirm: confirm::is_impossible() }
    }

    /// Outside of commands.
    pub(crate) fn of_pump(ctx: &'a Ctx) -> Self {
        Self { ctx, refuses_writes: None, cannot_confirm: confirm::is_impossible() }
    }

    /// Whether nothing can be granted now.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.cannot_confirm || self.refuses_writes()
    }

    /// Whether nothing can be written now.
    pub(crate) fn refuses_writes(&mut self) -> bool {
        let ctx = self.ctx;
        *self.refuses_writes.get_or_insert_with(|| refuses_writes(ctx))
    }

    /// Asks about one grant.
    pub(crate) fn admit(&mut self, who: Applicant<'_>) -> Admission {
        let ctx = self.ctx;
        if self.is_closed() {
            return Admission::NotNow;
        }
        if let Some(reason) = unfit(who) {
            return Admission::Refused(reason);
        }
        match (may_acquire(ctx, who), who.wants_several) {
            (true, _) => Admission::Granted,
            (false, true) => Admission::Refused(NO_PERMISSION_FOR_SEVERAL),
            (false, false) => Admission::Refused(NO_PERMISSION),
        }
    }
}

/// Whether the server would refuse a write: too few replicas, a disk error.
///
/// It is asked to run a write command that does nothing, under the rules for scripts, which include
/// just these checks. A refusal is asked for as a reply: Valkey 9.1 aborts over one that is not.
fn refuses_writes(ctx: &Ctx) -> bool {
    // SAFETY: a live context; the format takes no arguments; the reply is freed once.
    unsafe {
        match api!(RedisModule_Call, ctx.as_ptr(), c"LOCK.TICK".as_ptr(), c"SE".as_ptr()) {
            Some(reply) if !reply.is_null() => {
                let kind = api!(RedisModule_CallReplyType, reply);
                api!(RedisModule_FreeCallReply, reply);
                kind.is_none_or(|kind| kind as isize == raw::REDISMODULE_REPLY_ERROR)
            }
            _ => true,
        }
    }
}

/// Why nothing of the kind is granted any more: it was asked for before the settings were what they are.
fn unfit(Applicant { lease_ms, is_kept_alive, .. }: Applicant<'_>) -> Option<&'static str> {
    if settings::quarantine_ms() > 0 && lease_ms > settings::quarantine_ms() {
        return Some(LONGER_THAN_QUARANTINE);
    }
    confirm::refusal_of_lease(is_kept_alive)
}

/// Whether the client's user may run the command that it waits in on this key, by the rules as they are now.
fn may_acquire(ctx: &Ctx, Applicant { client, place, wants_several, .. }: Applicant<'_>) -> bool {
    let command = if wants_several { "LOCK.MACQUIRE" } else { "LOCK.ACQUIRE" };
    // SAFETY: 1. a live context; 2. the name of the user is ours to free; a client that is gone or
    // has no user yields null.
    let user_name = unsafe {
        let name = api!(RedisModule_GetClientUserNameById, ctx.as_ptr(), client.0);
        name.and_then(|name| OwnedStr::from_raw(ctx, name))
    };
    let (Some(user_name), Some(command), Some(one), Some(key)) =
        (user_name, ctx.new_str(command.as_bytes()), ctx.new_str(b"1"), ctx.new_str(place.name))
    else {
        return false;
    };
    // As many arguments as the command needs at least: Redis 8.6 counts them. Only the key matters.
    let (word, key) = (command.as_str().as_ptr(), key.as_str().as_ptr());
    let one = one.as_str().as_ptr();
    let mut one_key = [word, key, word, word, word];
    let mut several = [word, one, key, word, word, word];
    let argv: &mut [_] = if wants_several { &mut several } else { &mut one_key };
    // SAFETY: 1. live strings; 2. the user is checked for null and freed once.
    unsafe {
        let user = api!(RedisModule_GetModuleUserFromUserName, user_name.as_str().as_ptr());
        let Some(user) = user.filter(|user| !user.is_null()) else {
            return false;
        };
        let argc = argv.len() as c_int;
        let verdict = api!(RedisModule_ACLCheckCommandPermissions, user, argv.as_mut_ptr(), argc);
        api!(RedisModule_FreeModuleUser, user);
        verdict == Some(raw::REDISMODULE_OK as c_int)
    }
}
