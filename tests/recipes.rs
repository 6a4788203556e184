//! The recipes of CONTRIBUTING.md: each file that a row names is there, and has the names that the row puts between
//! backticks.

use std::fs;
use std::path::Path;

use crate::tidy::{files, root};

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
fn the_recipes_of_contributing_name_what_is_there() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let rows = rows(&page);
    let names: usize = rows.iter().map(|(_, names)| names.len()).sum();
    assert!(rows.len() >= 30 && names >= 30, "{} rows, {names} names", rows.len());
    let found = faults(&rows, |name| text(root(), name));
    assert!(found.is_empty(), "CONTRIBUTING.md:\n{}", found.join("\n"));
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
