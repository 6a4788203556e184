//! Checks the recipes of docs/internals/recipes.md: each file that a row names exists, and contains the names that
//! the row puts between backticks. The page also counts the files of a limit. In the life of a request in
//! docs/internals/architecture.md, one of the files of each row has its function.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::tidy::{files, root, shipped};

/// The rows of the section: a file or a folder, and the names that it must have.
fn rows(page: &str) -> Vec<(&str, Vec<&str>)> {
    let section = page.split("\n## ").find(|section| section.starts_with("Add a rule")).unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let is_name = |span: &&str| span.chars().all(|c| c.is_alphanumeric() || c == '_');
    rows.map(|(file, what)| (file, what.split('`').skip(1).step_by(2).filter(is_name).collect())).collect()
}

/// The text of a file, or of all files in a folder. `None`: it is not there.
fn text(root: &Path, name: &str) -> Option<String> {
    let Some(folder) = name.strip_suffix('/') else { return fs::read_to_string(root.join(name)).ok() };
    let found: Vec<String> =
        files(&root.join(folder), "").iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    (!found.is_empty()).then(|| found.join("\n"))
}

fn faults(rows: &[(&str, Vec<&str>)], text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let of = |(file, names): &(&str, Vec<&str>)| {
        let Some(text) = text(file) else { return vec![format!("there is no {file}")] };
        let words: Vec<&str> = text.split(|c| !is_part(c)).collect();
        let missing = names.iter().filter(|name| !words.contains(name));
        missing.map(|name| format!("{file} has no {name}")).collect()
    };
    rows.iter().flat_map(of).collect()
}

#[test]
fn the_recipes_name_what_is_there() {
    let page = fs::read_to_string(root().join("docs/internals/recipes.md")).unwrap();
    let rows = rows(&page);
    let names: usize = rows.iter().map(|(_, names)| names.len()).sum();
    assert!(rows.len() >= 30 && names >= 30, "{} rows, {names} names", rows.len());
    let found = faults(&rows, |name| text(root(), name));
    assert!(found.is_empty(), "docs/internals/recipes.md:\n{}", found.join("\n"));
}

/// The number of files in the recipes with these headings.
fn files_of(page: &str, headings: &[&str]) -> usize {
    let recipes =
        page.split("\n### ").filter(|part| headings.iter().any(|heading| part.starts_with(heading)));
    let rows = recipes.flat_map(str::lines).filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(file, _)| file).collect::<BTreeSet<_>>().len()
}

#[test]
fn the_page_counts_the_files_that_a_limit_changes() {
    let page = fs::read_to_string(root().join("docs/internals/recipes.md")).unwrap();
    let limit = ["A rule of who gets a lock\n", "An error\n", "A setting\n"];
    let with_code = [&limit[..], &["A new code of an error\n"]].concat();
    let acted_on = [&with_code[..], &["A code that clients act on\n"]].concat();
    let counts = [&limit[..], &with_code, &acted_on].map(|headings| files_of(&page, headings));
    let [few, coded, all] = counts;
    let said = format!(
        "It changes {few} files, {coded} if its error has a new code, and {all} if clients act on that code"
    );
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&page).contains(&said), "docs/internals/recipes.md does not say: {said}");
    assert!(coded <= 20, "a limit with an error code of its own is to change at most 20 files");
    // Check the checker.
    let two = "# A\n\n### An error\n\n| `a` | 1 |\n\n### A setting\n\n| `a` | 2 |\n| `b` | 3 |\n\n### A rule\n\n| `c` | |\n";
    assert_eq!((files_of(two, &limit), files_of(two, &["A rule"])), (2, 1));
}

/// The rows of the life of a request: a function, and the files that it passes in this step.
fn steps(page: &str) -> Vec<(&str, Vec<String>)> {
    let section =
        page.split("\n## ").find(|section| section.starts_with("The life of a request")).unwrap_or_default();
    let cells = section.lines().map(|line| line.split(" | ").collect::<Vec<_>>());
    let is_step =
        |cells: &Vec<&str>| cells.len() == 4 && cells[0].starts_with("| ") && cells[2].starts_with('`');
    let files = |cell: &str| cell.split('`').skip(1).step_by(2).map(|file| format!("src/{file}")).collect();
    cells.filter(is_step).map(|cells| (cells[2].trim_matches('`'), files(cells[3]))).collect()
}

/// The steps whose files are not there, or have no such function or type.
fn lost(steps: &[(&str, Vec<String>)], text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (name, files) in steps {
        found.extend(
            files.iter().filter(|file| text(file).is_none()).map(|file| format!("there is no {file}")),
        );
        let has = |file: &String| {
            text(file).is_some_and(|text| text.split(|c| !is_part(c)).any(|word| word == *name))
        };
        if !files.iter().any(has) {
            found.push(format!("{files:?} have no {name}"));
        }
    }
    found
}

#[test]
fn the_life_of_a_request_passes_files_that_are_there() {
    let page = fs::read_to_string(root().join("docs/internals/architecture.md")).unwrap();
    let steps = steps(&page);
    assert!(steps.len() >= 12, "{steps:?}");
    let found = lost(&steps, |name| text(root(), name));
    assert!(found.is_empty(), "docs/internals/architecture.md:\n{}", found.join("\n"));
    // The page counts them.
    let mut files: Vec<&String> = steps.iter().flat_map(|(_, files)| files).collect();
    files.sort();
    files.dedup();
    let said =
        format!("Of the {} files of the module, these {} decide or", shipped("src").len(), files.len());
    assert!(page.contains(&said), "docs/internals/architecture.md does not say: {said}");
}

// Check the checker.
#[test]
fn a_step_whose_function_or_file_is_not_there_is_seen() {
    let page = "# A\n\n## The life of a request\n\n| | step | function | file |\n|---|---|---|---|\n\
                | 1 | It asks. | `ask` | `a.rs`, `b.rs` |\n| 2 | It goes on. | `go` | `a.rs` |\n\n## Other\n";
    let steps = steps(page);
    assert_eq!(steps.len(), 2);
    let found = lost(&steps, |name| (name == "src/a.rs").then(|| "fn ask() { going() }".to_owned()));
    assert_eq!(found, ["there is no src/b.rs", "[\"src/a.rs\"] have no go"]);
}

// Check the checker.
#[test]
fn what_a_recipe_names_and_is_not_there_is_seen() {
    let page = "# A\n\n## Add a rule\n\n| file | what |\n|---|---|\n| `a.rs` | `one`, `two` (`other.rs`) |\n\
                | `b/` | nothing |\n\n## Other\n\n| `c.rs` | |\n";
    let rows = rows(page);
    assert_eq!(rows, [("a.rs", vec!["one", "two"]), ("b/", vec![])]);
    let found = faults(&rows, |name| (name == "a.rs").then(|| "fn one() { two_three() }".to_owned()));
    assert_eq!(found, ["a.rs has no two", "there is no b/"]);
}
