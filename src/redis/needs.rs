//! The server's own commands that this module calls by name. `rename-command` may have removed them.
//!
//! The module's own commands cannot be renamed, because they do not exist yet when the server reads that line. Rights
//! do not matter either, because the module calls commands for itself and not for a user.

use std::ffi::CStr;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::api::Ctx;
use super::{cluster, ffi};
use crate::engine::server::Server;
use crate::engine::settings::Settings;

/// The servers on which a command is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// Every server.
    Any,
    /// A node of a cluster.
    Cluster,
}

/// What is lost without each command.
const WITHOUT: [(&str, By, &str); 4] = [
    ("CLIENT", By::Any, "a grant whose client disconnects before it is told lasts until its lease ends"),
    ("CONFIG", By::Any, "a grant whose client disconnects before it is told lasts until its lease ends"),
    ("COMMAND", By::Any, "LOCK.EXEC is refused, because it cannot know which commands block"),
    ("CLUSTER", By::Cluster, "waiters whose slot has moved are answered TRYAGAIN instead of MOVED"),
];

/// Commands that read several keys and change none. One of them is enough.
const LOOKS: [&CStr; 3] = [c"EXISTS", c"TOUCH", c"MGET"];

static LOOK: OnceLock<&'static CStr> = OnceLock::new();
static CAN_CONFIRM: AtomicBool = AtomicBool::new(true);
static CAN_END_STRINGS: AtomicBool = AtomicBool::new(true);

/// Checks which commands exist, and logs the missing ones. Called once, at load.
pub(super) fn begin(ctx: &Ctx) {
    let is_cluster = ctx.flags().is_cluster;
    let has = |name: &str| has_command(ctx, name);
    for (name, by, without) in WITHOUT {
        if (by == By::Any || is_cluster) && !has(name) {
            ctx.log(ffi::SERVER_LOG_WARNING, &format!("{name} is renamed or disabled: {without}"));
        }
    }
    match LOOKS.into_iter().find(|name| name.to_str().is_ok_and(has)) {
        Some(look) => _ = LOOK.set(look),
        None if is_cluster => ctx.log(
            ffi::SERVER_LOG_WARNING,
            "EXISTS, TOUCH and MGET are renamed or disabled: commands with several keys are answered TRYAGAIN",
        ),
        None => {}
    }
    CAN_CONFIRM.store(has("ROLE") && has("REPLCONF"), Ordering::Relaxed);
    CAN_END_STRINGS.store(has("DEL") && has("PEXPIREAT"), Ordering::Relaxed);
}

/// Returns the name of a command that reads several keys; EXISTS if there is none.
pub(super) fn look() -> &'static CStr {
    LOOK.get().copied().unwrap_or(LOOKS[0])
}

/// Fails if the settings require more than this server's commands allow.
pub(super) fn check(settings: &Settings) -> Result<(), &'static str> {
    if settings.confirms() && !CAN_CONFIRM.load(Ordering::Relaxed) {
        return Err(
            "redislock.confirm all and majority need the commands ROLE and REPLCONF, which rename-command has \
             renamed or disabled on this server",
        );
    }
    if settings.has_legacy_strings() && !CAN_END_STRINGS.load(Ordering::Relaxed) {
        return Err(
            "redislock.legacy-strings yes needs the commands DEL and PEXPIREAT, which rename-command has \
             renamed or disabled on this server",
        );
    }
    Ok(())
}

/// Returns true if the server has a command of this name. Asks for the keys of a command without arguments, which
/// runs nothing.
fn has_command(ctx: &Ctx, name: &str) -> bool {
    let Some(word) = ctx.new_str(name.as_bytes()) else {
        return true;
    };
    let keys = cluster::keys_of(ctx, &[word.as_str()]);
    // Without keys, the server returns the reason.
    !keys.is_empty() || io::Error::last_os_error().kind() != io::ErrorKind::NotFound
}
