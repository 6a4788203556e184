//! The commands as the server knows them: names, flags, key specs, COMMAND DOCS (CONTRACT 8).

use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};

use redis_module::raw;

use super::api::{Ctx, READS, api};
use super::{exec, handlers};

type Handler = extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// A command and all that is told about it.
struct Command {
    name: &'static CStr,
    handler: Handler,
    flags: &'static CStr,
    /// Where its keys are.
    keys: Keys,
    /// What it does to the key.
    key_flags: u32,
    /// ACL categories, ours last: the server derives none from the flags of a module's command.
    categories: [&'static CStr; 2],
    /// As COMMAND INFO counts; negative: at least that many.
    arity: c_int,
    /// What drivers need to know to send it to a cluster, in the words of the server's own commands.
    tips: &'static CStr,
    summary: &'static CStr,
    complexity: &'static CStr,
    args: &'static [Arg],
}

/// Where the keys of a command are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    None,
    /// One, the first argument.
    First,
    /// Behind the first argument, which says how many.
    Counted,
}

/// An argument of a command.
#[derive(Clone, Copy)]
struct Arg {
    name: &'static CStr,
    kind: raw::RedisModuleCommandArgType,
    token: Option<&'static CStr>,
    is_optional: bool,
    is_repeated: bool,
    subargs: &'static [Arg],
}

const KEY: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
const TEXT: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
const NUMBER: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER;
const ONE_OF: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
const BLOCK: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;
const WORD: raw::RedisModuleCommandArgType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;

const fn arg(name: &'static CStr, kind: raw::RedisModuleCommandArgType) -> Arg {
    Arg { name, kind, token: None, is_optional: false, is_repeated: false, subargs: &[] }
}

const fn option(name: &'static CStr, token: &'static CStr) -> Arg {
    Arg { token: Some(token), is_optional: true, ..arg(name, NUMBER) }
}

const LEASE: Arg = Arg {
    subargs: &[
        Arg { token: Some(c"PX"), ..arg(c"milliseconds", NUMBER) },
        Arg { token: Some(c"EX"), ..arg(c"seconds", NUMBER) },
    ],
    ..arg(c"lease", ONE_OF)
};

const fn word(name: &'static CStr, token: &'static CStr) -> Arg {
    Arg { token: Some(token), ..arg(name, WORD) }
}

const fn optional(arg: Arg) -> Arg {
    Arg { is_optional: true, ..arg }
}

const WAIT: Arg = Arg {
    subargs: &[
        Arg { token: Some(c"BLOCK"), ..arg(c"block-milliseconds", NUMBER) },
        Arg { token: Some(c"QUEUE"), ..arg(c"queue-milliseconds", NUMBER) },
    ],
    ..arg(c"wait", ONE_OF)
};

const MODE: Arg = Arg {
    subargs: &[word(c"shared", c"SHARED"), Arg { token: Some(c"LIMIT"), ..arg(c"holders", NUMBER) }],
    ..arg(c"mode", ONE_OF)
};

const WHICH_TOKEN: Arg = Arg {
    subargs: &[
        Arg { token: Some(c"TOKEN"), ..arg(c"token", NUMBER) },
        Arg { token: Some(c"RAISE"), ..arg(c"least-token", NUMBER) },
    ],
    ..arg(c"which-token", ONE_OF)
};

const MORE: Arg = Arg {
    is_optional: true,
    subargs: &[word(c"full", c"FULL"), option(c"count", c"COUNT")],
    ..arg(c"more", BLOCK)
};

const SINCE: &CStr = c"0.1.0";
/// The module's own category, where the server allows one.
const CATEGORY: &CStr = c"redislock";

/// The categories of a command without and with our own.
macro_rules! categories {
    ($server:literal) => {
        match (
            CStr::from_bytes_with_nul(concat!($server, "\0").as_bytes()),
            CStr::from_bytes_with_nul(concat!($server, " redislock\0").as_bytes()),
        ) {
            (Ok(without), Ok(with)) => [without, with],
            _ => [c"", c""],
        }
    };
}

/// The command and its key. What is missing behind them the parser tells, with the grammar; the server would say no more
/// than that the number of arguments is wrong.
const BY_PARSER: c_int = -2;

static COMMANDS: [Command; 10] = [
    Command {
        name: c"lock.acquire",
        handler: handlers::acquire,
        flags: c"write deny-oom fast blocking",
        keys: Keys::First,
        key_flags: raw::REDISMODULE_CMD_KEY_RW
            | raw::REDISMODULE_CMD_KEY_ACCESS
            | raw::REDISMODULE_CMD_KEY_UPDATE,
        categories: categories!("write fast blocking"),
        arity: BY_PARSER,
        tips: c"",
        summary:
            c"Takes a lock for an owner and returns its fencing token, or nil; BLOCK waits in the queue.",
        complexity: c"O(1); O(log N) beside N holders of the same lock",
        args: &[
            arg(c"key", KEY),
            arg(c"owner", TEXT),
            LEASE,
            optional(WAIT),
            optional(MODE),
            optional(word(c"reentrant", c"REENTRANT")),
            option(c"ephemeral-milliseconds", c"EPHEMERAL"),
            optional(word(c"keepalive", c"KEEPALIVE")),
        ],
    },
    Command {
        name: c"lock.macquire",
        handler: handlers::macquire,
        // Redis 7.0 routes by what the command itself says, and not by the key specs.
        flags: c"write deny-oom blocking getkeys-api",
        keys: Keys::Counted,
        key_flags: raw::REDISMODULE_CMD_KEY_RW
            | raw::REDISMODULE_CMD_KEY_ACCESS
            | raw::REDISMODULE_CMD_KEY_UPDATE,
        categories: categories!("write slow blocking"),
        arity: BY_PARSER,
        tips: c"",
        summary: c"Takes several locks for an owner, all or none, and returns one fencing token, or nil.",
        complexity: c"O(N) with N being the number of keys",
        args: &[
            arg(c"numkeys", NUMBER),
            Arg { is_repeated: true, ..arg(c"key", KEY) },
            arg(c"owner", TEXT),
            LEASE,
            option(c"block-milliseconds", c"BLOCK"),
            optional(word(c"shared", c"SHARED")),
        ],
    },
    Command {
        name: c"lock.heldby",
        handler: handlers::heldby,
        flags: c"readonly",
        keys: Keys::None,
        key_flags: 0,
        categories: categories!("read slow keyspace dangerous"),
        arity: 2,
        // As KEYS: each shard gives a part of the rows, which belong one behind the other.
        tips: c"request_policy:all_shards nondeterministic_output_order",
        summary: c"Lists the locks that an owner holds and waits for, in all databases.",
        complexity: c"O(N) with N being the number of holds on the server",
        args: &[arg(c"owner", TEXT)],
    },
    Command {
        name: c"lock.release",
        handler: handlers::release,
        flags: c"write fast",
        keys: Keys::First,
        key_flags: raw::REDISMODULE_CMD_KEY_RW
            | raw::REDISMODULE_CMD_KEY_ACCESS
            | raw::REDISMODULE_CMD_KEY_DELETE,
        categories: categories!("write fast"),
        arity: BY_PARSER,
        tips: c"",
        summary:
            c"Ends the hold of an owner and hands the lock to the next waiter; 1, or 0 if it held nothing.",
        complexity: c"O(1)",
        args: &[arg(c"key", KEY), arg(c"owner", TEXT), option(c"token", c"TOKEN")],
    },
    Command {
        name: c"lock.renew",
        handler: handlers::renew,
        flags: c"write fast",
        keys: Keys::First,
        key_flags: raw::REDISMODULE_CMD_KEY_RW
            | raw::REDISMODULE_CMD_KEY_ACCESS
            | raw::REDISMODULE_CMD_KEY_UPDATE,
        categories: categories!("write fast"),
        arity: BY_PARSER,
        tips: c"",
        summary:
            c"Makes an owner's lease last exactly the given time from now; 1, or 0 if the owner held nothing.",
        complexity: c"O(1)",
        args: &[arg(c"key", KEY), arg(c"owner", TEXT), LEASE, optional(WHICH_TOKEN)],
    },
    Command {
        name: c"lock.fence",
        handler: handlers::fence,
        flags: c"readonly fast",
        keys: Keys::First,
        key_flags: READS,
        categories: categories!("read fast"),
        arity: -2,
        tips: c"",
        summary:
            c"Returns the fencing token of the live hold, or tells whether a token belongs to a live hold.",
        complexity: c"O(1)",
        args: &[arg(c"key", KEY), Arg { is_optional: true, ..arg(c"token", NUMBER) }],
    },
    Command {
        name: c"lock.exec",
        handler: exec::exec,
        flags: c"write getkeys-api",
        keys: Keys::First,
        // And those of the command that it runs, which it tells itself.
        key_flags: READS | raw::REDISMODULE_CMD_KEY_INCOMPLETE,
        categories: categories!("write slow"),
        arity: BY_PARSER,
        tips: c"",
        summary:
            c"Runs a command if a token belongs to a live hold, in one step; otherwise returns an error.",
        complexity: c"O(1), and that of the command",
        args: &[
            arg(c"key", KEY),
            arg(c"token", NUMBER),
            arg(c"command", TEXT),
            Arg { is_repeated: true, ..optional(arg(c"arg", TEXT)) },
        ],
    },
    Command {
        name: c"lock.info",
        handler: handlers::info,
        flags: c"readonly",
        keys: Keys::First,
        key_flags: READS,
        categories: categories!("read slow"),
        arity: -2,
        tips: c"",
        summary: c"Shows who holds a lock and who waits for it.",
        complexity: c"O(N), N being how many holders and waiters are shown",
        args: &[arg(c"key", KEY), MORE],
    },
    Command {
        name: c"lock.apply",
        handler: handlers::apply,
        flags: c"write deny-script",
        keys: Keys::First,
        key_flags: raw::REDISMODULE_CMD_KEY_OW | raw::REDISMODULE_CMD_KEY_UPDATE,
        categories: [c"write slow", c"write slow"],
        arity: -3,
        tips: c"",
        summary: c"Internal: a record of the replication stream. Clients cannot use it.",
        complexity: c"O(1)",
        args: &[arg(c"key", KEY), arg(c"record", TEXT)],
    },
    Command {
        name: c"lock.tick",
        handler: handlers::tick,
        flags: c"write fast",
        keys: Keys::None,
        key_flags: 0,
        categories: [c"write fast", c"write fast"],
        arity: -1,
        tips: c"",
        summary: c"Internal: a record of the append-only file. Clients cannot use it.",
        complexity: c"O(1)",
        args: &[],
    },
];

/// Registers the commands. Once, at load.
pub(crate) fn register_commands(ctx: &Ctx) -> Result<(), String> {
    // SAFETY: within OnLoad. Not on all servers, and then there is no category.
    let has_category = unsafe { api!(RedisModule_AddACLCategory, ctx.as_ptr(), CATEGORY.as_ptr()) }
        == Some(raw::REDISMODULE_OK as c_int);
    for command in &COMMANDS {
        register(ctx, command, has_category)
            .ok_or_else(|| format!("{} could not be registered", command.name.to_string_lossy()))?;
    }
    Ok(())
}

fn register(ctx: &Ctx, command: &Command, has_category: bool) -> Option<()> {
    let ok = raw::REDISMODULE_OK as c_int;
    let (name, flags) = (command.name.as_ptr(), command.flags.as_ptr());
    let handler: raw::RedisModuleCmdFunc = Some(command.handler);
    // Those that are counted are told by the key specs alone.
    let key = c_int::from(command.keys == Keys::First);
    // SAFETY: 1. within OnLoad; 2. C strings; 3. the handler has the type asked for.
    unsafe {
        let made = api!(RedisModule_CreateCommand, ctx.as_ptr(), name, handler, flags, key, key, key);
        made.filter(|&made| made == ok)?;
        let handle = api!(RedisModule_GetCommand, ctx.as_ptr(), name)?;
        if handle.is_null() {
            return None;
        }
        // Not on Redis 7.0, which has no way to say so: there a category neither gives nor takes them.
        let categories = command.categories[usize::from(has_category)].as_ptr();
        let set = api!(RedisModule_SetCommandACLCategories, handle, categories);
        set.filter(|&set| set != ok).map_or(Some(()), |_| None)?;
        describe(handle, command)
    }
}

/// Tells the server what COMMAND DOCS is to show.
///
/// # Safety
/// `handle` is a command that was just made, within OnLoad.
unsafe fn describe(handle: *mut raw::RedisModuleCommand, command: &Command) -> Option<()> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // Keeps the arrays of subarguments alive until the server has copied them.
    let mut kept = Vec::new();
    let mut args = raw_args(command.args, &mut kept);
    let mut specs = key_specs(command);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: command.summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: null_mut(),
        tips: if command.tips.is_empty() { null() } else { command.tips.as_ptr() },
        arity: command.arity,
        key_specs: if command.keys != Keys::None { specs.as_mut_ptr() } else { null_mut() },
        args: args.as_mut_ptr(),
    };
    // SAFETY: 1. the caller's command; 2. everything that `info` points to lives until the end of this
    // function, and the server copies it; 3. the arrays end with an entry of zeros.
    let done = unsafe { api!(RedisModule_SetCommandInfo, handle, &raw const info) };
    done.filter(|&done| done == raw::REDISMODULE_OK as c_int).map(|_| ())
}

/// The arguments as the server wants them: an array that ends with an entry of zeros.
fn raw_args(
    args: &[Arg],
    kept: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> Vec<raw::RedisModuleCommandArg> {
    let mut raws = Vec::with_capacity(args.len() + 1);
    for arg in args {
        let mut raw_arg = no_arg();
        raw_arg.name = arg.name.as_ptr();
        raw_arg.type_ = arg.kind;
        raw_arg.key_spec_index = if arg.kind == KEY { 0 } else { -1 };
        raw_arg.token = arg.token.map_or(null(), CStr::as_ptr);
        if arg.is_optional {
            raw_arg.flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
        }
        if arg.is_repeated {
            raw_arg.flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE as c_int;
        }
        if !arg.subargs.is_empty() {
            let mut subargs = raw_args(arg.subargs, kept);
            raw_arg.subargs = subargs.as_mut_ptr();
            kept.push(subargs);
        }
        raws.push(raw_arg);
    }
    raws.push(no_arg());
    raws
}

const fn no_arg() -> raw::RedisModuleCommandArg {
    raw::RedisModuleCommandArg {
        name: null(),
        type_: 0,
        key_spec_index: 0,
        token: null(),
        summary: null(),
        since: null(),
        flags: 0,
        deprecated_since: null(),
        subargs: null_mut(),
        display_text: null(),
    }
}

/// The keys of the command, and an entry of zeros.
fn key_specs(command: &Command) -> [raw::RedisModuleCommandKeySpec; 2] {
    use raw::{
        RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 as Index,
        RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 as Range,
        RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 as Count,
    };
    // SAFETY: a struct of integers, pointers and unions of such: zeros are a value.
    let zeros = unsafe { std::mem::zeroed::<raw::RedisModuleCommandKeySpec>() };
    let mut spec = zeros;
    spec.flags = u64::from(command.key_flags);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index = Index { pos: 1 };
    if command.keys == Keys::Counted {
        spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
        spec.fk.keynum = Count { keynumidx: 0, firstkey: 1, keystep: 1 };
    } else {
        spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        spec.fk.range = Range { lastkey: 0, keystep: 1, limit: 0 };
    }
    [spec, zeros]
}
