//! LOCK.EXEC: runs a command of the server's if the token is live.
//!
//! The command runs as in a script, with the rights of the caller. The server itself replicates its writes; LOCK.EXEC
//! is never replicated. The command may do anything to the lock's own key, and so call this module again. While it
//! runs, no key of ours is open, and the engine's state is not borrowed.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{CString, c_int};
use std::thread::LocalKey;

use redis_module::raw;

use super::api::{Ctx, Str, api};
use super::call_reply::{Reply, ask, element, elements, is_of_kind, text};
use super::panic_guard;
use crate::command::error;
use crate::command::exec::{waits_for_a_thread, would_block};
use crate::engine::server::{Part, Server};
use crate::engine::{commands, key_step};

/// LOCK.EXEC
pub(crate) extern "C" fn exec(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the arguments that the server passed to the running command.
    let (ctx, args) = unsafe { (Ctx::from_raw(ctx), Str::args(argv, argc)) };
    panic_guard::command(&ctx, || match args {
        [_, name, rest @ ..] => match Turn::begin(&IS_RUNNING) {
            Some(_running) => {
                if let Some(words) = commands::exec(&ctx, *name, rest) {
                    run(&ctx, words);
                }
            }
            // Through another module, or a filter of one.
            None => ctx.reply(Part::Error(error::EXEC_WITHIN)),
        },
        _ => ctx.reply(Part::WrongArity),
    })
}

/// Runs the command, and forwards its reply.
fn run(ctx: &Ctx, words: &[Str<'_>]) {
    let [command, args @ ..] = words else {
        return ctx.reply(Part::WrongArity);
    };
    let Ok(name) = CString::new(command.bytes()) else {
        return ctx.reply(Part::Error(&error::unknown_command(command.bytes())));
    };
    let Some(can_block) = can_block(ctx, *command) else {
        return ctx.reply(Part::Error(error::EXEC_IN_THE_DARK));
    };
    if waits_for_a_thread(words) || can_block && would_block(words) {
        return ctx.reply(Part::Error(&error::would_block(command.bytes())));
    }
    // !: replicated. C: by the rights of the caller. S: as in a script. E: errors are replies. M: maxmemory holds.
    // 0: in the protocol of the caller. v: the arguments.
    //
    // SAFETY: 1. a live context; 2. the format takes an array of strings and its length, and `Str` is transparent
    // over the pointer to one; 3. they live until the end of the command, whatever the command does to keys.
    let reply = unsafe { ask!(ctx, name, c"!CSEM0v", args.as_ptr(), args.len()) };
    let Some(reply) = reply else {
        return key_step::internal_error(ctx);
    };
    match refusal_of_rights(reply.get()) {
        Some(refusal) => ctx.reply(Part::Error(&refusal)),
        // SAFETY: a live context and reply.
        None => _ = unsafe { api!(RedisModule_ReplyWithCallReply, ctx.as_ptr(), reply.get()) },
    }
}

/// Returns the reply to send instead, if the server refused the command because of the caller's rights.
fn refusal_of_rights(reply: Reply) -> Option<String> {
    let is_error = is_of_kind(reply, raw::REDISMODULE_REPLY_ERROR);
    if is_error { error::refusal_of_rights(&text(reply)?) } else { None }
}

/// Forgets what is known of commands, because some may have been added or removed.
pub(super) fn forget_commands() {
    NEVER_BLOCK.with_borrow_mut(|names| *names = HashSet::new());
}

/// A command's name in lower case, padded with zeros, which no name contains.
type CommandName = [u8; 32];

fn lower_case(name: &[u8]) -> Option<CommandName> {
    let mut lower = CommandName::default();
    lower.get_mut(..name.len())?.copy_from_slice(name);
    lower.make_ascii_lowercase();
    Some(lower)
}

/// Returns true if the server reports that a command can block; false for an unknown command. Asked once for each,
/// because asking takes longer than running most commands. `None` if the server cannot be asked.
fn can_block(ctx: &Ctx, command: Str<'_>) -> Option<bool> {
    let name = lower_case(command.bytes());
    let is_acknowledged = |name: &CommandName| NEVER_BLOCK.with_borrow(|names| names.contains(name));
    if name.as_ref().is_some_and(is_acknowledged) {
        return Some(false);
    }
    // SAFETY: a live context; the format takes a C string and a string. An error is asked for as a reply.
    let reply = unsafe { ask!(ctx, c"COMMAND", c"csE", c"INFO".as_ptr(), command.as_ptr()) }?;
    let known = element(reply.get(), 0)?;
    let flags = element(known, 2);
    let can_block =
        flags.is_some_and(|flags| elements(flags).any(|flag| text(flag).as_deref() == Some("blocking")));
    if let Some(name) = name.filter(|_| flags.is_some() && !can_block) {
        NEVER_BLOCK.with_borrow_mut(|names| _ = names.insert(name));
    }
    Some(can_block)
}

thread_local! {
    /// Commands that, by the server, never block. Valid until the next module is loaded.
    static NEVER_BLOCK: RefCell<HashSet<CommandName>> = RefCell::default();
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// An operation that must not be nested. Dropping this ends it.
struct Turn(&'static LocalKey<Cell<bool>>);

impl Turn {
    fn begin(flag: &'static LocalKey<Cell<bool>>) -> Option<Self> {
        (!flag.replace(true)).then(|| Self(flag))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
