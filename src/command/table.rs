//! The commands as the server knows them (CONTRACT 8): names, flags, keys, categories, and the data of COMMAND DOCS.
//!
//! Only data. The edge registers it in the server's terms, and knows which function runs which command.

use std::ffi::CStr;

/// The commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// LOCK.ACQUIRE
    Acquire,
    /// LOCK.MACQUIRE
    Macquire,
    /// LOCK.HELDBY
    Heldby,
    /// LOCK.RELEASE
    Release,
    /// LOCK.RENEW
    Renew,
    /// LOCK.FENCE
    Fence,
    /// LOCK.EXEC
    Exec,
    /// LOCK.INFO
    Info,
    /// LOCK.APPLY
    Apply,
    /// LOCK.TICK
    Tick,
}

/// A command and its description.
#[derive(Debug)]
pub struct Command {
    /// The command.
    pub which: Which,
    /// Its name.
    pub name: &'static CStr,
    /// Its flags, in the server's words.
    pub flags: &'static CStr,
    /// The positions of its keys.
    pub keys: Keys,
    /// Its ACL categories. The server derives none from the flags of a module's command.
    pub categories: &'static CStr,
    /// True if clients may use it. It is then also in [`CATEGORY`], on servers that support one.
    pub is_for_clients: bool,
    /// As COMMAND INFO counts; a negative number is a minimum.
    pub arity: i32,
    /// What drivers need to know to use it in a cluster, in the words of the server's own commands.
    pub tips: &'static CStr,
    /// Its purpose.
    pub summary: &'static CStr,
    /// Its time complexity.
    pub complexity: &'static CStr,
    /// Its arguments.
    pub args: &'static [Arg],
}

/// The positions of a command's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    /// It has none.
    None,
    /// One, the first argument.
    First(Use),
    /// As many as the first argument says, after it.
    Counted(Use),
}

/// The effect of a command on its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Reads only.
    Reads,
    /// Reads and changes.
    Changes,
    /// Reads and deletes.
    Deletes,
    /// Overwrites without reading.
    Overwrites,
}

/// An argument of a command.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name.
    pub name: &'static CStr,
    /// Its kind.
    pub kind: Kind,
    /// The word before it, or the word itself.
    pub token: Option<&'static CStr>,
    /// It may be omitted.
    pub is_optional: bool,
    /// It may be repeated.
    pub is_repeated: bool,
    /// Its parts or alternatives.
    pub subargs: &'static [Arg],
}

/// The kind of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The name of a key.
    Key,
    /// Any bytes.
    Text,
    /// An integer.
    Number,
    /// One of its subarguments.
    OneOf,
    /// Its subarguments in sequence.
    Block,
    /// Its token alone.
    Word,
}

/// The first version of the module that had them.
pub const SINCE: &CStr = c"0.1.0";
/// The module's own ACL category.
pub const CATEGORY: &CStr = c"redislock";

/// The command and its key. The parser reports what is missing after them, with the grammar; the server would report
/// only a wrong number of arguments.
const BY_PARSER: i32 = -2;

const fn arg(name: &'static CStr, kind: Kind) -> Arg {
    Arg { name, kind, token: None, is_optional: false, is_repeated: false, subargs: &[] }
}

const fn number(name: &'static CStr, token: &'static CStr) -> Arg {
    Arg { token: Some(token), ..arg(name, Kind::Number) }
}

const fn option(name: &'static CStr, token: &'static CStr) -> Arg {
    optional(number(name, token))
}

const fn one_of(name: &'static CStr, subargs: &'static [Arg]) -> Arg {
    Arg { subargs, ..arg(name, Kind::OneOf) }
}

const fn word(name: &'static CStr, token: &'static CStr) -> Arg {
    Arg { token: Some(token), ..arg(name, Kind::Word) }
}

const fn optional(arg: Arg) -> Arg {
    Arg { is_optional: true, ..arg }
}

const LEASE: Arg = one_of(c"lease", &[number(c"milliseconds", c"PX"), number(c"seconds", c"EX")]);

const WAIT: Arg =
    one_of(c"wait", &[number(c"block-milliseconds", c"BLOCK"), number(c"queue-milliseconds", c"QUEUE")]);

const MODE: Arg = one_of(
    c"mode",
    &[word(c"shared", c"SHARED"), number(c"holders", c"LIMIT"), word(c"reentrant", c"REENTRANT")],
);

const WHICH_TOKEN: Arg =
    one_of(c"which-token", &[number(c"token", c"TOKEN"), number(c"least-token", c"RAISE")]);

const MORE: Arg = optional(Arg {
    subargs: &[word(c"full", c"FULL"), option(c"count", c"COUNT")],
    ..arg(c"more", Kind::Block)
});

/// All commands.
pub static COMMANDS: [Command; 10] = [
    Command {
        which: Which::Acquire,
        name: c"lock.acquire",
        flags: c"write deny-oom fast blocking",
        keys: Keys::First(Use::Changes),
        categories: c"write fast blocking",
        is_for_clients: true,
        arity: BY_PARSER,
        tips: c"",
        summary:
            c"Takes a lock for an owner and returns its fencing token, or nil; BLOCK waits in the queue.",
        complexity: c"O(1); O(log N) for a lock that N owners hold",
        args: &[
            arg(c"key", Kind::Key),
            arg(c"owner", Kind::Text),
            LEASE,
            optional(WAIT),
            optional(MODE),
            option(c"ephemeral-milliseconds", c"EPHEMERAL"),
            optional(word(c"keepalive", c"KEEPALIVE")),
        ],
    },
    Command {
        which: Which::Macquire,
        name: c"lock.macquire",
        flags: c"write deny-oom blocking",
        keys: Keys::Counted(Use::Changes),
        categories: c"write slow blocking",
        is_for_clients: true,
        arity: BY_PARSER,
        tips: c"",
        summary: c"Takes several locks for an owner, all or none, and returns one fencing token, or nil.",
        complexity: c"O(N) where N is the number of keys",
        args: &[
            arg(c"numkeys", Kind::Number),
            Arg { is_repeated: true, ..arg(c"key", Kind::Key) },
            arg(c"owner", Kind::Text),
            LEASE,
            option(c"block-milliseconds", c"BLOCK"),
            optional(word(c"shared", c"SHARED")),
        ],
    },
    Command {
        which: Which::Heldby,
        name: c"lock.heldby",
        flags: c"readonly",
        keys: Keys::None,
        categories: c"read slow keyspace dangerous",
        is_for_clients: true,
        arity: 2,
        // As KEYS: each shard returns some of the rows, which belong together.
        tips: c"request_policy:all_shards nondeterministic_output_order",
        summary: c"Lists the locks that an owner holds and waits for, in all databases.",
        complexity: c"O(N) where N is the number of holds on the server",
        args: &[arg(c"owner", Kind::Text)],
    },
    Command {
        which: Which::Release,
        name: c"lock.release",
        flags: c"write fast",
        keys: Keys::First(Use::Deletes),
        categories: c"write fast",
        is_for_clients: true,
        arity: BY_PARSER,
        tips: c"",
        summary:
            c"Ends an owner's hold and hands the lock to the next waiter. Returns 1, or 0 if it held nothing.",
        complexity: c"O(1)",
        args: &[arg(c"key", Kind::Key), arg(c"owner", Kind::Text), option(c"token", c"TOKEN")],
    },
    Command {
        which: Which::Renew,
        name: c"lock.renew",
        flags: c"write fast",
        keys: Keys::First(Use::Changes),
        categories: c"write fast",
        is_for_clients: true,
        arity: BY_PARSER,
        tips: c"",
        summary: c"Makes an owner's lease last the given time from now. Returns 1, or 0 if it held nothing.",
        complexity: c"O(1)",
        args: &[arg(c"key", Kind::Key), arg(c"owner", Kind::Text), LEASE, optional(WHICH_TOKEN)],
    },
    Command {
        which: Which::Fence,
        name: c"lock.fence",
        flags: c"readonly fast",
        keys: Keys::First(Use::Reads),
        categories: c"read fast",
        is_for_clients: true,
        arity: -2,
        tips: c"",
        summary:
            c"Returns the fencing token of the live hold, or whether a given token belongs to a live hold.",
        complexity: c"O(1)",
        args: &[arg(c"key", Kind::Key), Arg { is_optional: true, ..arg(c"token", Kind::Number) }],
    },
    Command {
        which: Which::Exec,
        name: c"lock.exec",
        // It does not declare the keys of the command that it runs (`getkeys-api`), and checks them when it runs.
        // Newer servers would ask for them on I/O threads, and crash over any module that they ask there.
        flags: c"write",
        keys: Keys::First(Use::Reads),
        categories: c"write slow",
        is_for_clients: true,
        arity: BY_PARSER,
        tips: c"",
        summary:
            c"Runs a command if a token belongs to a live hold, in the same step. Otherwise returns an error.",
        complexity: c"O(1), plus the complexity of the command that it runs",
        args: &[
            arg(c"key", Kind::Key),
            arg(c"token", Kind::Number),
            arg(c"command", Kind::Text),
            Arg { is_repeated: true, ..optional(arg(c"arg", Kind::Text)) },
        ],
    },
    Command {
        which: Which::Info,
        name: c"lock.info",
        flags: c"readonly",
        keys: Keys::First(Use::Reads),
        categories: c"read slow",
        is_for_clients: true,
        arity: -2,
        tips: c"",
        summary: c"Shows who holds a lock and who waits for it.",
        complexity: c"O(N) where N is the number of holders and waiters shown",
        args: &[arg(c"key", Kind::Key), MORE],
    },
    Command {
        which: Which::Apply,
        name: c"lock.apply",
        flags: c"write deny-script",
        keys: Keys::First(Use::Overwrites),
        categories: c"write slow",
        is_for_clients: false,
        arity: -2,
        tips: c"",
        summary: c"Internal: a record of the replication stream. Clients cannot use it.",
        complexity: c"O(1)",
        args: &[arg(c"key", Kind::Key), arg(c"record", Kind::Text)],
    },
    Command {
        which: Which::Tick,
        name: c"lock.tick",
        flags: c"write fast",
        keys: Keys::None,
        categories: c"write fast",
        is_for_clients: false,
        arity: -1,
        tips: c"",
        summary: c"Internal: a record of the append-only file. Clients cannot use it.",
        complexity: c"O(1)",
        args: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::args::Bounds;
    use crate::command::error::Invalid;
    use crate::command::{acquire, exec, fence, heldby, info, macquire, release, renew};

    fn has_word(words: &CStr, word: &str) -> bool {
        words.to_str().unwrap().split(' ').any(|other| other == word)
    }

    #[test]
    fn every_command_is_described_once_and_its_categories_agree_with_its_flags() {
        for (at, command) in COMMANDS.iter().enumerate() {
            let name = command.name.to_str().unwrap();
            let is_new = |other: &Command| other.name != command.name && other.which != command.which;
            assert!(COMMANDS[..at].iter().all(is_new), "{name}");
            assert!(name.starts_with("lock.") && name.to_lowercase() == name, "{name}");
            assert!(!command.summary.is_empty() && !command.complexity.is_empty(), "{name}");
            let (flag, category) =
                (|word| has_word(command.flags, word), |word| has_word(command.categories, word));
            assert_eq!(flag("write"), category("write"), "{name}");
            assert_eq!(flag("readonly"), category("read"), "{name}");
            assert_eq!(flag("fast"), category("fast"), "{name}");
            assert_eq!(flag("fast"), !category("slow"), "{name}");
            assert_eq!(flag("blocking"), category("blocking"), "{name}");
            let writes_key = match command.keys {
                Keys::None => None,
                Keys::First(use_of_key) | Keys::Counted(use_of_key) => Some(use_of_key),
            };
            if writes_key.is_some_and(|key| !matches!(key, Use::Reads)) {
                assert!(flag("write"), "{name}");
            }
        }
    }

    /// All ways to write these arguments: with each alternative, and with and without what is optional.
    fn ways(args: &[Arg]) -> Vec<Vec<String>> {
        let Some((arg, rest)) = args.split_first() else {
            return vec![Vec::new()];
        };
        let mut heads: Vec<Vec<String>> = match arg.kind {
            Kind::OneOf => arg.subargs.iter().flat_map(|one| ways(&[*one])).collect(),
            Kind::Block => ways(arg.subargs),
            Kind::Word => vec![Vec::new()],
            Kind::Key | Kind::Text => vec![vec![arg.name.to_str().unwrap().to_owned()]],
            Kind::Number => vec![vec!["1".to_owned()]],
        };
        for head in &mut heads {
            if let Some(token) = arg.token {
                head.insert(0, token.to_str().unwrap().to_owned());
            }
        }
        if arg.is_optional {
            heads.push(Vec::new());
        }
        let tails = ways(rest);
        heads.iter().flat_map(|head| tails.iter().map(|tail| [head.clone(), tail.clone()].concat())).collect()
    }

    /// The verdict of a command's parser on its arguments.
    fn parse(which: Which, args: &[String]) -> Result<(), Invalid> {
        let (bounds, behind_key) = (Bounds::WIDEST, args.get(1..).unwrap_or(&[]));
        match which {
            Which::Acquire => acquire::parse(behind_key, &bounds).map(|_| ()),
            Which::Macquire => macquire::parse(args, &bounds).map(|_| ()),
            Which::Heldby => heldby::parse(&args[0]).map(|_| ()),
            Which::Release => release::parse(behind_key).map(|_| ()),
            Which::Renew => renew::parse(behind_key, &bounds).map(|_| ()),
            Which::Fence => fence::parse(behind_key).map(|_| ()),
            Which::Exec => exec::parse(behind_key).map(|_| ()),
            Which::Info => info::parse(behind_key).map(|_| ()),
            Which::Apply | Which::Tick => Ok(()),
        }
    }

    #[test]
    fn the_parsers_take_whatever_the_table_offers() {
        for command in &COMMANDS {
            for args in ways(command.args) {
                assert_eq!(parse(command.which, &args), Ok(()), "{:?} {args:?}", command.name);
            }
        }
    }

    fn tokens(args: &'static [Arg]) -> Vec<&'static str> {
        let of = |arg: &'static Arg| arg.token.map(|token| token.to_str().unwrap());
        args.iter().flat_map(|arg| of(arg).into_iter().chain(tokens(arg.subargs))).collect()
    }

    #[test]
    fn the_table_offers_whatever_the_parsers_take() {
        for command in COMMANDS.iter().filter(|command| !tokens(command.args).is_empty()) {
            let mut args = ways(command.args).swap_remove(0);
            args.push("FOO".to_owned());
            let said = match parse(command.which, &args) {
                Err(Invalid::BehindKeys { invalid, .. }) => Err(*invalid),
                said => said,
            };
            let Err(Invalid::Unknown { expected, .. }) = said else {
                panic!("{:?}: {said:?}", command.name);
            };
            let mut taken: Vec<&str> =
                expected.split([' ', ',']).filter(|word| !["", "or"].contains(word)).collect();
            let mut offered = tokens(command.args);
            taken.sort_unstable();
            offered.sort_unstable();
            assert_eq!(taken, offered, "{:?}", command.name);
        }
    }
}
