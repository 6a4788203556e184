//! Rejects files that depend on each other in a cycle, because they can only be read as a whole. Both imports and
//! called methods count: a type whose methods are in several files hides a cycle from the imports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tidy::{Source, functions, item_end, shipped};

/// A module by its path below the crate: `engine`, `pump`.
type Module = Vec<String>;
type Modules = BTreeMap<Module, BTreeSet<Module>>;

fn module_of(path: &Path) -> Module {
    let path = path.strip_prefix("src").unwrap_or(path).with_extension("");
    let mut parts: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    parts
}

/// `a::{b, c::{self, d}}` as `a::b`, `a::c::self`, `a::c::d`.
fn flattened(tree: &str, above: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        return vec![format!("{above}{path}")];
    };
    let inner = rest.strip_suffix('}').expect("a list ends");
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = &inner[start..at];
                if !part.trim().is_empty() {
                    found.extend(flattened(part, &format!("{above}{}", head.trim())));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// All paths that a source names: those that it imports, and those that it writes out.
fn paths_in(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for statement in code.split_inclusive(';') {
        let line_starts = statement.match_indices("use ").filter(|(at, _)| {
            let line = statement[..*at].rsplit('\n').next().unwrap_or("").trim();
            line.is_empty() || line.starts_with("pub")
        });
        if let Some((at, word)) = line_starts.last() {
            let tree = statement[at + word.len()..].trim_end_matches(';').replace('\n', " ");
            paths.extend(flattened(&tree, ""));
        }
    }
    let is_in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let written = code.split(|c: char| !is_in_path(c));
    let starts = ["crate::", "super::", "self::"];
    // A path that ends so is the head of an import.
    let written = written.filter(|path| starts.iter().any(|s| path.starts_with(s)) && !path.ends_with("::"));
    paths.extend(written.map(ToOwned::to_owned));
    paths
}

/// The module that a path leads to from this one: the deepest that there is.
fn target(from: &Module, path: &str, all: &BTreeSet<Module>) -> Option<Module> {
    let mut words = path.split("::").peekable();
    let mut found = match words.peek() {
        Some(&"crate") => {
            words.next();
            Module::new()
        }
        _ => from.clone(),
    };
    while let Some(word) = words.next_if(|word| ["super", "self"].contains(word)) {
        if word == "super" {
            found.pop();
        }
    }
    for word in words {
        let deeper: Module = found.iter().cloned().chain([word.to_owned()]).collect();
        if !all.contains(&deeper) {
            break;
        }
        found = deeper;
    }
    (found != *from && !found.is_empty()).then_some(found)
}

fn imports(sources: &[Source]) -> Modules {
    let all: BTreeSet<Module> = sources.iter().map(|source| module_of(&source.path)).collect();
    let of = |source: &Source| {
        let from = module_of(&source.path);
        let targets = paths_in(&source.code).iter().filter_map(|path| target(&from, path, &all)).collect();
        (from, targets)
    };
    sources.iter().map(of).collect()
}

/// The inherent `impl` blocks of a source: the type, and the text from its braces.
fn impls(code: &str) -> Vec<(&str, &str)> {
    let starts = code.match_indices("impl").filter(|(at, _)| *at == 0 || code[..*at].ends_with('\n'));
    let of = |(at, _): (usize, &str)| -> Option<(&str, &str)> {
        let open = at + code[at..].find('{')?;
        let header = &code[at + "impl".len()..open];
        let header = header.split(" where").next()?.trim();
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        // The part after the parameters of the block itself.
        let name = if header.starts_with('<') { header.split_once("> ")?.1 } else { header };
        let name = name.split(|c| !is_name(c)).next()?;
        (!header.contains(" for ")).then(|| (name, &code[open..item_end(code, at)]))
    };
    starts.filter_map(of).collect()
}

/// The methods that a text calls on one of these receivers.
fn called<'a>(code: &'a str, receivers: &[&str]) -> Vec<&'a str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let calls = code.match_indices('(').filter_map(|(at, _)| {
        let before = &code[..at];
        let name = &before[before.trim_end_matches(is_name).len()..];
        let receiver = before.strip_suffix(name)?;
        let receiver = receiver.strip_suffix("::").or_else(|| receiver.strip_suffix('.'))?.trim_end();
        let receiver = &receiver[receiver.trim_end_matches(is_name).len()..];
        (!name.is_empty() && receivers.contains(&receiver)).then_some(name)
    });
    calls.collect()
}

/// A room of the sources, as `lock`, and a type in it.
type Type = (String, String);

/// Maps each file to those whose methods it calls for the same type: on `self`, or on a variable or a field of the
/// type's name.
fn calls(sources: &[Source]) -> Modules {
    let room = |source: &Source| module_of(&source.path).first().cloned().unwrap_or_default();
    let mut homes: BTreeMap<Type, BTreeMap<&str, Module>> = BTreeMap::new();
    for source in sources {
        for (name, body) in impls(&source.code) {
            let methods = functions(body).map(|(_, method)| (method, module_of(&source.path)));
            homes.entry((room(source), name.to_owned())).or_default().extend(methods);
        }
    }
    let mut found = Modules::new();
    for source in sources {
        let from = module_of(&source.path);
        let mut targets = BTreeSet::new();
        for ((_, name), methods) in homes.iter().filter(|((its_room, _), _)| *its_room == room(source)) {
            let own = impls(&source.code).into_iter().filter(|(its, _)| its == name);
            let mut names: Vec<&str> = own.flat_map(|(_, body)| called(body, &["self", "Self"])).collect();
            names.extend(called(&source.code, &[&name.to_lowercase()]));
            targets.extend(names.iter().filter_map(|method| methods.get(method)).cloned());
        }
        targets.remove(&from);
        found.insert(from, targets);
    }
    found
}

/// Modules that each other can be reached from.
fn circles(modules: &Modules) -> Vec<Vec<String>> {
    let reachable = |from: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = open.pop() {
            for target in modules.get(&next).into_iter().flatten() {
                if seen.insert(target.clone()) {
                    open.push(target.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        modules.keys().map(|module| (module, reachable(module))).collect();
    let circle_of = |module: &Module| -> Vec<String> {
        let others = reached[module].iter();
        let others = others.filter(|other| reached.get(other).is_some_and(|back| back.contains(module)));
        others.map(|other| other.join("/")).collect()
    };
    let found: BTreeSet<Vec<String>> = modules.keys().map(circle_of).collect();
    found.into_iter().filter(|circle| !circle.is_empty()).collect()
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let found = circles(&imports(&shipped("src")));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_files_call_each_others_methods_in_a_circle() {
    let found = circles(&calls(&shipped("src")));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_file_imports_by_a_glob() {
    let globs = shipped("src").into_iter().flat_map(|source| {
        let paths = paths_in(&source.code).into_iter().filter(|path| path.ends_with("::*"));
        paths.map(|path| format!("{}: {path}", source.path.display())).collect::<Vec<_>>()
    });
    assert_eq!(globs.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn circles_are_seen() {
    let source = |path: &str, code: &str| Source {
        path: Path::new(path).to_path_buf(),
        text: String::new(),
        code: code.to_owned(),
    };
    let line = [
        source("src/lib.rs", "pub mod a;"),
        source("src/a/mod.rs", "mod b; mod c; pub use b::B;"),
        source("src/a/b.rs", "use super::c::{self, D};\nuse std::fmt;\npub struct B;"),
        source("src/a/c.rs", "fn f() -> crate::e::E { }"),
        source("src/e.rs", "pub struct E;"),
    ];
    assert_eq!(circles(&imports(&line)), Vec::<Vec<String>>::new());
    for back in
        ["use crate::a::b::B;", "pub use super::a::{b::{B as Other}, c};", "fn g(b: crate::a::b::B) {}"]
    {
        let mut circle = line.to_vec();
        circle[4].code = back.to_owned();
        let expected = vec![vec!["a/b".to_owned(), "a/c".to_owned(), "e".to_owned()]];
        assert_eq!(circles(&imports(&circle)), expected, "{back}");
    }
    assert_eq!(flattened("a::{b, c::{self, d}}", ""), ["a::b", "a::c::self", "a::c::d"]);
}

#[test]
fn circles_by_calls_are_seen() {
    let source = |path: &str, code: &str| Source {
        path: Path::new(path).to_path_buf(),
        text: String::new(),
        code: code.to_owned(),
    };
    let line = [
        source("src/a/b.rs", "impl<'a> Big<'a> {\n fn one(&self) { self.two(); unknown.three(); } }"),
        source("src/a/c.rs", "impl Big where A: B {\n fn two(&self) {} }\nimpl Drop for Big { fn one() {} }"),
        source(
            "src/a/d.rs",
            "fn free(big: &Big) { big.one(); }\nimpl Other { fn three(&self) { self.one(); } }",
        ),
        source("src/e/f.rs", "impl Big { fn two(&self) { self.one(); } }"),
    ];
    assert_eq!(circles(&calls(&line)), Vec::<Vec<String>>::new());
    for back in ["impl Big { fn two(&self) { self\n.one(); } }", "impl Big { fn two() { Self::one() } }"] {
        let mut circle = line.to_vec();
        circle[1].code = back.to_owned();
        assert_eq!(circles(&calls(&circle)), [["a/b", "a/c"].map(ToOwned::to_owned).to_vec()], "{back}");
    }
    let mut circle = line.to_vec();
    circle[1].code = "impl Big { fn two(&self, other: Other) { other.three() } }".to_owned();
    circle[2].code = "impl Other { fn three(&self) { self.big.one() } }".to_owned();
    let expected = vec![vec!["a/b".to_owned(), "a/c".to_owned(), "a/d".to_owned()]];
    assert_eq!(circles(&calls(&circle)), expected);
}
