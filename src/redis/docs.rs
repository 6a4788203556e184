//! Registers the commands with the server: names, flags, key specs, COMMAND DOCS. Their content is in
//! [`table`](crate::command::table).

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::io;
use std::ptr::{null, null_mut};

use redis_module::raw;

use super::api::{Ctx, READS, UPDATES, api};
use super::{cluster, exec, handlers};
use crate::command::table::{Arg, CATEGORY, COMMANDS, Command, Keys, Kind, SINCE, Use, Which};

type Handler = extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Returns the function that runs a command.
const fn handler(which: Which) -> Handler {
    match which {
        Which::Acquire => handlers::acquire,
        Which::Macquire => handlers::macquire,
        Which::Heldby => handlers::heldby,
        Which::Release => handlers::release,
        Which::Renew => handlers::renew,
        Which::Fence => handlers::fence,
        Which::Exec => exec::exec,
        Which::Info => handlers::info,
        Which::Apply => handlers::apply,
        Which::Tick => handlers::tick,
    }
}

/// Returns the access to its keys as flags of a key spec.
const fn flags_of(keys: Use) -> u32 {
    match keys {
        Use::Reads => READS,
        Use::Changes => UPDATES,
        Use::Deletes => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_DELETE
        }
        Use::Overwrites => raw::REDISMODULE_CMD_KEY_OW | raw::REDISMODULE_CMD_KEY_UPDATE,
    }
}

const fn type_of(kind: Kind) -> raw::RedisModuleCommandArgType {
    match kind {
        Kind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        Kind::Number => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        Kind::OneOf => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        Kind::Block => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
        Kind::Word => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
    }
}

/// Returns its categories. Not all servers support our own.
fn categories(command: &Command, has_own: bool) -> CString {
    let (servers, own) = (command.categories.to_bytes(), CATEGORY.to_bytes());
    let all = if has_own && command.is_for_clients { [servers, own].join(&b' ') } else { servers.to_vec() };
    // There is no NUL among words.
    CString::new(all).unwrap_or_default()
}

/// Registers the commands. Called once, at load.
pub(crate) fn register_commands(ctx: &Ctx) -> Result<(), String> {
    // SAFETY: within OnLoad. Servers without this function have no category.
    let added = unsafe { api!(RedisModule_AddACLCategory, ctx.as_ptr(), CATEGORY.as_ptr()) };
    // Redis 8 keeps the category of a load that was refused.
    let is_there = || io::Error::last_os_error().kind() == io::ErrorKind::ResourceBusy;
    let has_category = added.is_some_and(|added| added == raw::REDISMODULE_OK as c_int || is_there());
    for command in &COMMANDS {
        register(ctx, command, has_category)
            .ok_or_else(|| format!("{} could not be registered", command.name.to_string_lossy()))?;
    }
    Ok(())
}

/// Returns the flags of a command, in the server's words.
fn flags(ctx: &Ctx, command: &Command) -> Cow<'static, CStr> {
    if !matches!(command.keys, Keys::Counted(_)) || !cluster::sees_all_keys(ctx) {
        return command.flags.into();
    }
    // A cluster routes by the reply of the command itself, and not by the key specs.
    let all = [command.flags.to_bytes(), b" getkeys-api"].concat();
    CString::new(all).map_or(command.flags.into(), Cow::from)
}

fn register(ctx: &Ctx, command: &Command, has_category: bool) -> Option<()> {
    let ok = raw::REDISMODULE_OK as c_int;
    let flags = flags(ctx, command);
    let (name, flags) = (command.name.as_ptr(), flags.as_ptr());
    let handler: raw::RedisModuleCmdFunc = Some(handler(command.which));
    // Only the key specs name counted keys.
    let key = c_int::from(matches!(command.keys, Keys::First(_)));
    // SAFETY: 1. within OnLoad; 2. C strings; 3. the handler has the type asked for.
    unsafe {
        let made = api!(RedisModule_CreateCommand, ctx.as_ptr(), name, handler, flags, key, key, key);
        made.filter(|&made| made == ok)?;
        let handle = api!(RedisModule_GetCommand, ctx.as_ptr(), name)?;
        if handle.is_null() {
            return None;
        }
        // Redis 7.0 has no way to register them, so no category grants or revokes them there.
        let categories = categories(command, has_category);
        let set = api!(RedisModule_SetCommandACLCategories, handle, categories.as_ptr());
        set.filter(|&set| set != ok).map_or(Some(()), |_| None)?;
        describe(handle, command, cluster::sees_all_keys(ctx))
    }
}

/// Registers the data of COMMAND DOCS and the positions of keys. If `sees_all_keys`, the command itself reports its
/// keys, too.
///
/// # Safety
/// `handle` is a command that was just made, within OnLoad.
unsafe fn describe(
    handle: *mut raw::RedisModuleCommand,
    command: &Command,
    sees_all_keys: bool,
) -> Option<()> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // Keeps the arrays of subarguments alive until the server has copied them.
    let mut kept = Vec::new();
    let mut args = raw_args(command.args, &mut kept);
    let mut specs = key_specs(command.keys, sees_all_keys);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: command.summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: null_mut(),
        tips: if command.tips.is_empty() { null() } else { command.tips.as_ptr() },
        arity: command.arity,
        key_specs: specs.as_mut().map_or(null_mut(), |specs| specs.as_mut_ptr()),
        args: args.as_mut_ptr(),
    };
    // SAFETY: 1. the caller's command; 2. everything that `info` points to lives until the end of this
    // function, and the server copies it; 3. the arrays end with an entry of zeros.
    let done = unsafe { api!(RedisModule_SetCommandInfo, handle, &raw const info) };
    done.filter(|&done| done == raw::REDISMODULE_OK as c_int).map(|_| ())
}

/// Returns the arguments as the server expects them: an array that ends with an entry of zeros.
fn raw_args(
    args: &[Arg],
    kept: &mut Vec<Vec<raw::RedisModuleCommandArg>>,
) -> Vec<raw::RedisModuleCommandArg> {
    let mut raws = Vec::with_capacity(args.len() + 1);
    for arg in args {
        let mut raw_arg = no_arg();
        raw_arg.name = arg.name.as_ptr();
        raw_arg.type_ = type_of(arg.kind);
        raw_arg.key_spec_index = if arg.kind == Kind::Key { 0 } else { -1 };
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

/// Returns the key specs of a command: its keys, the key by which a cluster routes it if that differs, and an entry
/// of zeros.
fn key_specs(keys: Keys, sees_all_keys: bool) -> Option<[raw::RedisModuleCommandKeySpec; 3]> {
    use raw::{
        RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 as Index,
        RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 as Range,
        RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 as Count,
    };
    // SAFETY: a struct of integers, pointers and unions of integers and pointers: zeros are a value.
    let zeros = unsafe { std::mem::zeroed::<raw::RedisModuleCommandKeySpec>() };
    let (mut spec, mut route) = (zeros, zeros);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index = Index { pos: 1 };
    let use_of_keys = match keys {
        Keys::None => return None,
        Keys::First(use_of_keys) => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range = Range { lastkey: 0, keystep: 1, limit: 0 };
            use_of_keys
        }
        Keys::Counted(use_of_keys) => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum = Count { keynumidx: 0, firstkey: 1, keystep: 1 };
            if !sees_all_keys {
                route = spec;
                route.bs.index = Index { pos: 2 };
                route.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
                route.fk.range = Range { lastkey: 0, keystep: 1, limit: 0 };
                route.flags = u64::from(raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_NOT_KEY);
            }
            use_of_keys
        }
    };
    spec.flags = u64::from(flags_of(use_of_keys));
    Some([spec, route, zeros])
}
