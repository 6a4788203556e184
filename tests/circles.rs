//! No files import each other in a circle: what a circle needs can only be read as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tidy::{Source, shipped};

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
    // One that ends so is the head of an import.
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
