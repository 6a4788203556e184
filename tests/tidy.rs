//! The rules of the project, checked by reading the source: a rule without a check is not kept.

use std::fs;
use std::path::{Path, PathBuf};

const ARGUMENTS_MAX: usize = 6;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;

#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// The text without comments, strings and tests; as many lines.
    pub(crate) code: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a directory whose names end so.
pub(crate) fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else { return found };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub(crate) fn sources(directory: &str) -> Vec<Source> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let code = without_tests(&code_only(&text));
        let path = path.strip_prefix(root()).unwrap().to_path_buf();
        Source { path, text, code }
    };
    let found: Vec<Source> = files(&root().join(directory), ".rs").into_iter().map(read).collect();
    assert!(!found.is_empty(), "{directory} has no source");
    found
}

/// The module's, its tests', those of the client library, and of the tool.
fn all_sources() -> Vec<Source> {
    ["src", "tests", "clients/rust", "tool/src"].iter().flat_map(|directory| sources(directory)).collect()
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| ["tests", "tests.rs", "sim"].iter().any(|name| part.as_os_str() == *name))
}

/// The source that goes into the module.
pub(crate) fn shipped(directory: &str) -> Vec<Source> {
    sources(directory).into_iter().filter(|source| !is_test(&source.path)).collect()
}

/// Blanks out comments, strings and characters, and keeps the lines.
fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = token_end(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// Returns the end of the comment, string or character that begins here; here, if none does.
fn token_end(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => at + rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => find(chars, at + 2, &['*', '/']) + 2,
        ['r', '"', ..] => find(chars, at + 2, &['"']) + 1,
        ['r', '#', '"', ..] => find(chars, at + 3, &['"', '#']) + 2,
        ['"', ..] => quoted_end(chars, at + 1),
        ['\'', '\\', _, ..] => find(chars, at + 3, &['\'']) + 1,
        ['\'', _, '\'', ..] => at + 3,
        _ => at,
    }
}

fn find(chars: &[char], from: usize, wanted: &[char]) -> usize {
    let found = chars[from..].windows(wanted.len()).position(|window| window == wanted);
    from + found.expect("it is closed")
}

fn quoted_end(chars: &[char], from: usize) -> usize {
    let mut at = from;
    while chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Blanks out the code under `#[cfg(test)]`, and keeps the lines.
fn without_tests(code: &str) -> String {
    let mut code = code.to_string();
    while let Some(start) = code.find("#[cfg(test)]") {
        let end = item_end(&code, start);
        let blank: String = code[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        code.replace_range(start..end, &blank);
    }
    code
}

/// The end of the item that begins at this place: of its block, or its semicolon.
pub(crate) fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0;
    for (at, c) in code[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return start + at + 1,
            _ => continue,
        }
        if depth == 0 {
            return start + at + 1;
        }
    }
    code.len()
}

/// Every line in which one of the words occurs in code.
fn places<'a>(sources: &'a [Source], words: &'a [&str]) -> Vec<String> {
    let lines =
        sources.iter().flat_map(|source| source.code.lines().enumerate().map(move |line| (source, line)));
    lines
        .filter(|(_, (_, line))| words.iter().any(|word| has_word(line, word)))
        .map(|(source, (number, line))| format!("{}:{}: {}", source.path.display(), number + 1, line.trim()))
        .collect()
}

/// Returns whether a line has these words, not as a part of longer ones.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let before = word.starts_with(char::is_alphanumeric) && is_part(line[..at].chars().next_back());
        let after = word.ends_with(char::is_alphanumeric) && is_part(line[at + word.len()..].chars().next());
        !before && !after
    })
}

/// Every place of these words in the folders that must not have them.
fn places_in(forbidden: &[(&str, &[&str])]) -> Vec<String> {
    forbidden.iter().flat_map(|(folder, words)| places(&shipped(folder), words)).collect()
}

fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// All findings at once, so that one run names them all.
fn assert_none_in(forbidden: &[(&str, &[&str])]) {
    assert_none(&places_in(forbidden));
}

const NOT_IN_THE_CORE: &[&str] = &[
    "unsafe",
    "std::time",
    "core::time",
    "SystemTime",
    "Instant::now",
    "rand",
    "getrandom",
    "uuid",
    "redis_module",
    "std::fs",
    "std::io",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "std::sync",
    "static mut",
    "thread_local",
    "RandomState",
];

/// The engine keeps what a thread of the server's may touch, and nothing else that the core may not know.
const ALLOWED_IN_THE_ENGINE: &[&str] = &["std::sync"];

#[test]
fn core_commands_and_engine_know_no_server_no_clock_no_chance_and_no_unsafe() {
    let is_forbidden = |word: &&&str| !ALLOWED_IN_THE_ENGINE.contains(*word);
    let words: Vec<&str> = NOT_IN_THE_CORE.iter().filter(is_forbidden).copied().collect();
    assert_none_in(&[
        ("src/lock", NOT_IN_THE_CORE),
        ("src/command", NOT_IN_THE_CORE),
        ("src/engine", &words),
    ]);
}

#[test]
fn core_commands_and_engine_forbid_unsafe() {
    for name in ["lock", "command", "engine"] {
        let module = fs::read_to_string(root().join(format!("src/{name}/mod.rs"))).unwrap();
        let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
        let above: Vec<&str> =
            library.lines().take_while(|line| !line.trim_end().ends_with(&format!("mod {name};"))).collect();
        let in_library =
            above.iter().rev().take_while(|line| !line.trim().is_empty() && !line.contains("mod "));
        let is_forbidden = |line: &str| line.contains("forbid(unsafe_code)");
        assert!(
            module.lines().any(is_forbidden) || in_library.into_iter().any(|line| is_forbidden(line)),
            "{name}"
        );
    }
}

#[test]
fn no_layer_uses_one_above_it() {
    assert_none_in(&[
        ("src/lock", &["crate::redis", "crate::engine", "crate::command"]),
        ("src/command", &["crate::redis", "crate::engine"]),
        ("src/engine", &["crate::redis", "super::super"]),
        // `super` must not be a way around.
        ("src/lock", &["super::super::redis", "super::redis", "super::command"]),
        ("src/command", &["super::super::redis", "super::redis"]),
    ]);
}

/// A test of the core that needs an engine or a simulated server belongs in `src/sim`.
#[test]
fn tests_of_the_core_need_no_engine() {
    let core = sources("src/lock");
    let above =
        |source: &&Source| ["crate::engine", "crate::sim"].iter().any(|name| source.text.contains(name));
    let found: Vec<String> =
        core.iter().filter(above).map(|source| source.path.display().to_string()).collect();
    assert_none(&found);
}

#[test]
fn nothing_is_unfinished() {
    let words = ["todo!", "unimplemented!", "dbg!", "println!", "eprintln!"];
    let mut found = places_in(&[("src", &words), ("clients/rust/src", &words), ("tool/src", &words)]);
    // In halves, so that this file is read, too.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("HA", "CK")];
    for source in all_sources() {
        let marked = marks.iter().filter(|mark| source.text.contains(**mark));
        found.extend(marked.map(|mark| format!("{}: {mark}", source.path.display())));
    }
    assert_none(&found);
}

#[test]
fn nothing_shipped_can_panic_by_intent() {
    let words = [".unwrap()", ".expect(", "panic!", "unreachable!"];
    assert_none_in(&[("src", &words), ("clients/rust/src", &words), ("tool/src", &words)]);
}

#[test]
fn every_unsafe_has_its_reasons_above_it() {
    let mut found = Vec::new();
    for source in ["src", "tool/src"].into_iter().flat_map(shipped) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (number, line) in source.code.lines().enumerate() {
            let is_block = ["unsafe {", "unsafe impl"].iter().any(|start| line.contains(start));
            if is_block && !has_reasons(&lines, number) {
                found.push(format!("{}:{}: no SAFETY comment", source.path.display(), number + 1));
            }
        }
    }
    assert_none(&found);
}

/// A SAFETY comment directly above the statement that this line is a part of.
fn has_reasons(lines: &[&str], number: usize) -> bool {
    let is_comment = |line: &&&str| line.trim_start().starts_with("//");
    let ends_another = |line: &&&str| line.trim().is_empty() || line.ends_with([';', '{', '}']);
    let above = lines[..number].iter().rev();
    let statement = above.clone().take_while(|line| !is_comment(line) && !ends_another(line)).count();
    let mut comment = above.skip(statement).take_while(is_comment);
    comment.any(|line| line.contains("SAFETY:"))
}

#[test]
fn functions_and_files_are_short() {
    let mut found = Vec::new();
    for source in all_sources() {
        let path = source.path.display();
        let length = source.text.lines().count();
        if length >= FILE_LINES_MAX {
            found.push(format!("{path} has {length} lines: fewer than {FILE_LINES_MAX} are allowed"));
        }
        let long =
            function_lengths(&source.code).into_iter().filter(|(_, length)| *length >= FUNCTION_LINES_MAX);
        found.extend(long.map(|(name, length)| {
            format!("{path}: {name} has {length} lines: fewer than {FUNCTION_LINES_MAX} are allowed")
        }));
    }
    assert_none(&found);
}

/// The name and the number of lines of every function with a body.
fn function_lengths(code: &str) -> Vec<(String, usize)> {
    functions(code)
        .map(|(at, name)| (name.to_string(), code[at..item_end(code, at)].lines().count()))
        .collect()
}

/// The start of each function, and its name. Types of functions have none.
pub(crate) fn functions(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let starts = code.match_indices("fn ").filter(move |(at, _)| !code[..*at].ends_with(is_part));
    starts.map(move |(at, _)| {
        let behind = &code[at + 3..];
        (at, &behind[..behind.find(|c| !is_part(c)).unwrap_or(behind.len())])
    })
}

/// Arguments that belong together are a struct with a name, which says what a function reads.
#[test]
fn functions_take_few_arguments() {
    let mut found = Vec::new();
    for source in all_sources() {
        for (name, count) in argument_counts(&source.code) {
            if count > ARGUMENTS_MAX {
                found.push(format!("{}: {name} takes {count} arguments", source.path.display()));
            }
        }
    }
    assert_none(&found);
}

/// The name and the number of arguments of every function, `self` counted. The server says what those take that it
/// calls (`extern "C"`).
fn argument_counts(code: &str) -> Vec<(String, usize)> {
    functions(code)
        // The name of the language is blanked out as every string is.
        .filter(|(at, _)| !code[..*at].trim_end().ends_with("extern"))
        .map(|(at, name)| (name.to_string(), argument_count(&code[at + 3..])))
        .collect()
}

/// The number of arguments in the first parentheses that are not within the angle brackets before them.
fn argument_count(signature: &str) -> usize {
    let (mut depth, mut before, mut arguments) = (0, ' ', vec![String::new()]);
    for c in signature.chars() {
        match c {
            '(' if depth == 0 => arguments = vec![String::new()],
            ')' if depth == 1 => break,
            ',' if depth == 1 => arguments.push(String::new()),
            _ => arguments.iter_mut().next_back().into_iter().for_each(|argument| argument.push(c)),
        }
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            // An arrow closes nothing.
            '>' if before == '-' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        before = c;
    }
    arguments.iter().filter(|argument| !argument.trim().is_empty()).count()
}

// Check the checker.
#[test]
fn the_checks_see_what_they_should() {
    let text = "fn a() {\n  // unsafe {\n  let s = \"unsafe \\\" {\"; let c = '\"'; let l: &'static str = s;\n}\n\
                #[cfg(test)]\nmod tests {\n fn b() { x.unwrap() }\n}\nfn c() {\n\n\n}\n";
    let code = without_tests(&code_only(text));
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(!code.contains("unsafe") && !code.contains("unwrap") && code.contains("'static"), "{code}");
    assert_eq!(function_lengths(&code), [("a".to_string(), 4), ("c".to_string(), 4)]);
    let code = "fn a<F: Fn(u8, u8) -> Vec<(u8, u8)>, G>(&mut self, (x, y): (u8, u8), f: F, g: [G; 2],) -> Map<u8, u8>\n\
                where F: Fn(u8, u8) {}\npub unsafe extern     fn b(a: u8, b: u8) {}\nfn c() { d(1, 2) }\n\
                fn d(\n    f: &mut dyn FnMut(u8, u8) -> u8,\n    g: fn(u8, u8),\n);\n";
    let counts = [("a", 4), ("c", 0), ("d", 2)].map(|(name, count)| (name.to_string(), count));
    assert_eq!(argument_counts(code), counts);
    assert!(has_word("let x = unsafe { y };", "unsafe") && !has_word("unsafe_code", "unsafe"));
    assert!(has_word("a.unwrap();", ".unwrap()") && !has_word("operand", "rand"));
    let lines = ["// SAFETY: 1. It is so.", "let x =", "    unsafe { y };", "", "unsafe { z };"];
    assert!(has_reasons(&lines, 2) && !has_reasons(&lines, 4));
}

/// The numbers of the guarantees that a text names: `G1`, `G2`...
fn guarantees(text: &str) -> Vec<u32> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let mut found: Vec<u32> = words.filter_map(|word| word.strip_prefix('G')?.parse().ok()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn every_guarantee_has_a_test_that_names_it() {
    let promised = guarantees(&fs::read_to_string(root().join("docs/reference/guarantees.md")).unwrap());
    assert!(promised.len() >= 10, "{promised:?}");
    let mut tests = sources("tests");
    tests.extend(
        sources("src").into_iter().filter(|source| is_test(&source.path) || source.text.contains("#[test]")),
    );
    let in_rust = tests.iter().flat_map(|source| source.text.lines());
    let python: Vec<String> = files(&root().join("tests/python"), ".py")
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let in_python = python.iter().flat_map(|text| text.lines());
    let comments = in_rust
        .chain(in_python)
        .filter(|line| line.contains("//") || line.contains('#') || line.contains("\"\"\""));
    let defended: Vec<u32> = guarantees(&comments.collect::<Vec<_>>().join("\n"));
    let bare: Vec<_> = promised.iter().filter(|number| !defended.contains(number)).collect();
    assert!(bare.is_empty(), "no test names {bare:?}");
}

/// The names of the functions that call one of these.
fn callers(sources: &[Source], called: &[&str]) -> Vec<String> {
    let mut callers = Vec::new();
    for source in sources {
        let mut name = "";
        for line in source.code.lines() {
            let is_item = |before: &str| before.trim().is_empty() || before.trim().starts_with("pub");
            if let Some((_, rest)) = line.split_once("fn ").filter(|(before, _)| is_item(before)) {
                name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            } else if called.iter().any(|called| has_word(line, called)) && line.contains('(') {
                callers.push(name.to_string());
            }
        }
    }
    callers
}

// A rule of who gets a lock is asked in all of them, so an author who adds one has to know them.
#[test]
fn the_recipe_of_a_rule_names_all_functions_that_grant() {
    let granting = callers(&shipped("src/lock/table"), &["begin_granted", "insert(now.boot"]);
    assert_eq!(granting, ["acquire_at_once", "take", "grant_waiter", "begin_all"]);
    let page = fs::read_to_string(root().join("docs/internals/recipes.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Add a rule")).unwrap();
    let missing: Vec<_> = granting.iter().filter(|name| !section.contains(&format!("`{name}`"))).collect();
    assert!(
        missing.is_empty(),
        "docs/internals/recipes.md says where a rule is asked, and does not name {missing:?}"
    );
}

/// The sections of the contract that a text cites: `CONTRACT 5`.
fn cited(text: &str) -> Vec<u32> {
    let behind = text.split("CONTRACT ").skip(1);
    behind.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect()
}

#[test]
fn what_is_cited_of_the_contract_is_there() {
    assert_eq!(cited("// CONTRACT 5, CONTRACT 2: so"), [5, 2]);
    let contract = fs::read_to_string(root().join("docs/internals/contract.md")).unwrap();
    let sections: Vec<u32> = contract
        .lines()
        .filter_map(|line| line.strip_prefix("## ")?.split_once('.')?.0.parse().ok())
        .collect();
    assert!(sections.len() >= 9, "{sections:?}");
    let (mut citations, mut missing) = (0, Vec::new());
    for (folder, ending) in
        [("src", ".rs"), ("src", ".txt"), ("tests", ".rs"), ("tests/python", ".py"), ("docs", ".md")]
    {
        for path in files(&root().join(folder), ending) {
            for number in cited(&fs::read_to_string(&path).unwrap()) {
                citations += 1;
                if !sections.contains(&number) {
                    missing.push(format!("{}: {number}", path.display()));
                }
            }
        }
    }
    assert!(citations > 100 && missing.is_empty(), "{citations} citations, not there: {missing:?}");
}

#[test]
fn every_command_has_a_page() {
    let table = fs::read_to_string(root().join("src/command/table.rs")).unwrap();
    let names = table.split("name: c\"lock.").skip(1).filter_map(|rest| rest.split('"').next());
    // Records of the stream and the files, refused to users.
    let names: Vec<&str> = names.filter(|name| !["apply", "tick"].contains(name)).collect();
    assert!(names.len() >= 8, "{names:?}");
    let pages = files(&root().join("docs/reference/commands"), ".md");
    let stems: Vec<_> = pages.iter().filter_map(|page| page.file_stem()?.to_str()).collect();
    let missing: Vec<_> = names.iter().filter(|name| !stems.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/reference/commands has no page of {missing:?}");
}
