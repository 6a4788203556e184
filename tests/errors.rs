//! The table of error codes in `docs/reference/errors.md`, compared with the sources and with the pages that name codes.
//! `error_codes_of_clients.rs` compares it with the clients, and so do the tests of each client.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::tidy::{Source, files, root, shipped};

const COLUMNS: usize = 10;
/// Words of the grammar that texts of errors quote.
const NO_CODES: &[&str] = &["FULL", "LIMIT"];

/// The text of a file of the repository.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of the table, by their codes: the beginning of the text, its cause, the pages, and a cell for each client.
pub(crate) fn table(page: &str) -> BTreeMap<String, Vec<String>> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| {
        // Spaces count at the end of a text's beginning.
        let row = row.trim_start_matches("| ").trim_end_matches(" |");
        row.split(" | ").map(|cell| cell.trim_matches('`').to_owned()).collect::<Vec<_>>()
    });
    cells.map(|cells| (cells[0].clone(), cells[1..].to_vec())).collect()
}

/// The text of each error of the sources before its first placeholder, with its code.
fn errors(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let shipped = source.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for line in shipped.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let literals = line.split('"').skip(1).step_by(2);
            let fixed = literals.filter_map(|literal| literal.split('{').next());
            found.extend(fixed.filter(|text| code_of(text).is_some_and(|code| !NO_CODES.contains(&code))));
        }
    }
    found.into_iter().map(ToOwned::to_owned).collect()
}

/// The code that a text begins with: a word of at least three capitals, and a space.
fn code_of(text: &str) -> Option<&str> {
    let (word, _) = text.split_once(' ')?;
    (word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_uppercase())).then_some(word)
}

/// The codes that the first column of a page's errors names.
fn codes_of(page: &str) -> BTreeSet<&str> {
    let section = page.split_once("\n## Errors\n").map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells =
        section.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split(" | ").next());
    let spans = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    spans.filter_map(|span| span.split(' ').next()).collect()
}

fn faults(page: &str, errors: &[String], pages: &[(String, String)]) -> Vec<String> {
    let rows = table(page);
    let mut found = Vec::new();
    let codes: BTreeSet<&str> = errors.iter().filter_map(|text| code_of(text)).collect();
    found.extend(
        codes.iter().filter(|code| !rows.contains_key(**code)).map(|code| format!("{code} has no row")),
    );
    for (code, cells) in &rows {
        if cells.len() + 1 != COLUMNS || cells.iter().any(|cell| cell.trim().is_empty()) {
            found.push(format!("{code}: a cell is missing"));
            continue;
        }
        let example = format!("{code} {}", cells[0]);
        if !errors.iter().any(|text| text.starts_with(&example) || example.starts_with(text.as_str())) {
            found.push(format!("no text of the sources begins with '{example}'"));
        }
        let named = |text: &str| codes_of(text).contains(code.as_str());
        let there: Vec<&str> =
            pages.iter().filter(|(_, text)| named(text)).map(|(name, _)| &**name).collect();
        if there.join(" ") != cells[2] {
            found.push(format!(
                "{code}: the row names the pages '{}', and it is on '{}'",
                cells[2],
                there.join(" ")
            ));
        }
    }
    found
}

#[test]
fn each_error_code_has_a_row_that_says_what_the_sources_and_the_pages_say() {
    let pages: Vec<(String, String)> = files(&root().join("docs/reference/commands"), ".md")
        .iter()
        .map(|path| {
            (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
        })
        .collect();
    let found = faults(&read("docs/reference/errors.md"), &errors(&shipped("src")), &pages);
    assert!(found.is_empty(), "docs/reference/errors.md:\n{}", found.join("\n"));
}

/// The codes of a page's sentence about the order of refusals, after these words.
fn order_of<'a>(page: &'a str, before: &str) -> Vec<&'a str> {
    let (_, rest) = page.split_once(before).unwrap_or_default();
    let sentence = rest.split("`.").next().unwrap_or_default();
    let spans = sentence.split('`').skip(1).step_by(2);
    spans.filter(|span| span.bytes().all(|byte| byte.is_ascii_uppercase())).collect()
}

/// What the pages lack of the order in which a request for a lock is refused.
fn order_faults(source: &str, contract: &str, acquire: &str) -> Vec<String> {
    let order = order_of(contract, "is refused for the first of these reasons:");
    let there = order_of(acquire, "it reports the first of these:");
    let mut found = Vec::new();
    if order != there {
        found.push(format!("docs/reference/commands/acquire.md says {there:?}, and contract.md {order:?}"));
    }
    let text = source.split_once("\npub fn refusal(").map_or("", |(_, rest)| rest);
    let text = text.split("\n}").next().unwrap_or_default();
    let codes = text.split('"').skip(1).step_by(2).filter_map(code_of);
    let is_missing = |code: &&str| *code != "ERR" && !NO_CODES.contains(code) && !order.contains(code);
    let missing: BTreeSet<&str> = codes.filter(is_missing).collect();
    found.extend(missing.iter().map(|code| format!("docs/internals/contract.md: no place for {code}")));
    found
}

#[test]
fn each_code_of_a_refusal_has_its_place_in_the_order_of_refusals() {
    let (source, contract) = (read("src/command/error.rs"), read("docs/internals/contract.md"));
    let acquire = read("docs/reference/commands/acquire.md");
    assert!(order_of(&contract, "is refused for the first of these reasons:").len() >= 5);
    let found = order_faults(&source, &contract, &acquire);
    assert!(found.is_empty(), "the order of refusals:\n{}", found.join("\n"));
    // Check the checker.
    let found = order_faults(&source, &contract.replace("`LOCKHELD`", "it"), &acquire);
    assert!(found[0].starts_with("docs/reference/commands/acquire.md says"), "{found:?}");
    assert_eq!(found[1], "docs/internals/contract.md: no place for LOCKHELD");
}

/// The clients' tests take their column by its place.
#[test]
fn each_client_reads_the_table_of_error_codes() {
    for path in [
        "clients/python/tests/test_rules.py",
        "clients/node/test/pure.test.mjs",
        "clients/rust/src/error.rs",
        "clients/go/errors_test.go",
        "clients/java/core/src/test/java/redislock/RulesTest.java",
        "tool/src/exit.rs",
    ] {
        let text = read(path);
        assert!(text.contains("docs/reference/errors.md"), "{path} does not read docs/reference/errors.md");
    }
}

// Check the checker.
#[test]
fn each_difference_between_table_sources_and_pages_is_seen() {
    let source = |code: &str| Source { path: "a.rs".into(), text: code.into(), code: code.into() };
    let sources = [source("f(\"LOCKKIND this lock is {} now\");\ng(\"FULL or COUNT\", \"ERR \");")];
    let errors = errors(&sources);
    assert_eq!(errors, ["LOCKKIND this lock is ", "ERR "]);
    let row = |code: &str, tool: &str| {
        format!(
            "| `{code}` | `this lock is LIMIT 2` | always | acquire | `A` | `B` | `C` | `D` | `E` | {tool} |\n"
        )
    };
    let page = row("LOCKKIND", "78") + &row("ERR", "69");
    let pages =
        [("acquire".to_owned(), "\n## Errors\n\n| `LOCKKIND this` | |\n| `A`, `ERR` | |\n".to_owned())];
    assert_eq!(faults(&page, &errors, &pages), Vec::<String>::new());
    let other = ["LOCKKIND that ".to_owned(), "ERR ".to_owned()];
    for (page, errors, pages, fault) in [
        (row("ERR", "69"), &errors[..], &pages[..], "LOCKKIND has no row"),
        (row("LOCKKIND", "") + &row("ERR", "69"), &errors, &pages, "LOCKKIND: a cell is missing"),
        (page.clone(), &other, &pages, "no text of the sources begins with 'LOCKKIND this"),
        (page, &errors, &[], "the row names the pages 'acquire'"),
    ] {
        let found = faults(&page, errors, pages);
        assert!(found.iter().any(|found| found.contains(fault)), "{fault}: {found:?}");
    }
}
