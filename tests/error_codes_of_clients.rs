//! What each client makes of each error code, read from its sources and compared with `docs/reference/errors.md`.
//!
//! A dash in the table is the general refusal: the client has no row for that code. `ERR` is left out, because clients
//! look at its text.

use std::collections::{BTreeMap, BTreeSet};

use crate::errors::{read, table};

/// A part of a file: the path, the text that the part begins with, and the text that it ends before.
type Part = (&'static str, &'static str, &'static str);

struct Client {
    /// Its cell in a row of the table.
    column: usize,
    /// The part with a row for each code that has one, and the text before the class in a row.
    rows: Part,
    class: &'static str,
    /// The parts with the codes after which the client asks again.
    again: &'static [Part],
    /// The general refusal, which needs no row.
    general: &'static str,
}

const CLIENTS: [Client; 7] = [
    Client {
        column: 3,
        rows: ("clients/python/src/redislock/errors.py", "_KINDS: dict", "\n}"),
        class: "\": ",
        again: &[
            ("clients/python/src/redislock/_rules.py", "_AGAIN = ", "\n"),
            ("clients/python/src/redislock/_rules.py", "_REDIRECTION = ", "\n"),
        ],
        general: "ServerRefusedError",
    },
    Client {
        column: 4,
        rows: ("clients/node/src/errors.ts", "const KINDS", "\n}"),
        class: ": ",
        again: &[("clients/node/src/errors.ts", "const AGAIN", "]")],
        general: "ServerRefusedError",
    },
    Client {
        column: 5,
        rows: ("clients/rust/src/error.rs", "match code {", "\n            _ =>"),
        class: "Self::",
        again: &[("clients/rust/src/rules.rs", "match code {", "\n        _ =>")],
        general: "ServerRefused",
    },
    Client {
        column: 6,
        rows: ("clients/go/errors.go", "switch code {", "\n\t}\n"),
        class: "Kind: ",
        again: &[("clients/go/rules.go", "switch words[0] {", "\n\t}\n")],
        general: "ErrServerRefused",
    },
    Client {
        column: 7,
        rows: ("clients/java/core/src/main/java/redislock/Problem.java", "switch (code) {", "default ->"),
        class: "Kind.",
        again: &[("clients/java/core/src/main/java/redislock/Rules.java", "switch (words[0]) {", "default:")],
        general: "ServerRefusedException",
    },
    // The tool asks by the Rust client, which asks again.
    Client {
        column: 8,
        rows: ("tool/src/exit.rs", "pub fn code_of_reply", "_ =>"),
        class: "Code::",
        again: &[],
        general: "69",
    },
    // The kit's reference client has the classes of the Python client, without `Error`.
    Client {
        column: 3,
        rows: ("clients/conformance/reference/errors.py", "CODES = {", "\n}"),
        class: "\": ",
        again: &[("clients/conformance/reference/errors.py", "ELSEWHERE = ", "\n")],
        general: "Other",
    },
];

fn part(text: &str, (path, start, end): Part) -> &str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("{path} has no '{start}'"));
    rest.split(end).next().unwrap_or_default()
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The words in capitals, such as codes.
fn capitals(text: &str) -> BTreeSet<String> {
    let is_code = |word: &&str| word.len() >= 3 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    text.split(|c| !is_name(c)).filter(is_code).map(ToOwned::to_owned).collect()
}

/// The codes between quotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('"').skip(1).step_by(2).flat_map(capitals).collect()
}

/// The codes of each row of a dictionary, a `match` or a `switch`, and the class that the row names: the word after
/// `class`, or nothing.
fn rows(part: &str, class: &str) -> BTreeMap<String, String> {
    let mut rows: Vec<(BTreeSet<String>, String)> = Vec::new();
    for line in part.lines() {
        let line = line.trim();
        let head = line.strip_prefix("case ").unwrap_or(line);
        let end = [" if ", "=>", "->", ":"].iter().find_map(|mark| head.find(mark));
        let starts = head.starts_with('"') || head.starts_with(|c: char| c.is_ascii_uppercase());
        match end.filter(|_| starts).map(|end| capitals(&head[..end])).filter(|codes| !codes.is_empty()) {
            Some(codes) => rows.push((codes, line.to_owned())),
            None => rows.iter_mut().next_back().into_iter().for_each(|(_, body)| *body += line),
        }
    }
    let class_of = |body: &str| {
        let rest = body.split_once(class).map_or("", |(_, rest)| rest);
        rest.split(|c| !is_name(c)).next().unwrap_or_default().to_owned()
    };
    let classes = rows.into_iter().flat_map(|(codes, body)| {
        let class = class_of(&body);
        codes.into_iter().map(move |code| (code, class.clone()))
    });
    // A row without a class adds a hint to the text, and a later one may have the class.
    let named = classes.filter(|(code, class)| !class.is_empty() && code != "ERR");
    named.fold(BTreeMap::new(), |mut found, (code, class)| {
        found.entry(code).or_insert(class);
        found
    })
}

/// The rows of a client, with classes as its column of the table has them.
fn rows_of(client: &Client, read: &dyn Fn(&str) -> String) -> BTreeMap<String, String> {
    let path = client.rows.0;
    let text = read(path);
    let mut found = rows(part(&text, client.rows), client.class);
    let renamed = if path.ends_with("Problem.java") {
        rows(part(&text, (path, "LockException exception() {", "\n    }")), "new ")
    } else if path.ends_with("exit.rs") {
        let codes = part(&text, (path, "pub enum Code {", "\n}"));
        let pairs = codes.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
        pairs.map(|(name, number)| (name.to_owned(), number.to_owned())).collect()
    } else {
        BTreeMap::new()
    };
    found.values_mut().for_each(|class| *class = renamed.get(class).unwrap_or(class).clone());
    // One that only adds a hint, or fails as others do.
    found.retain(|_, class| class != client.general);
    found
}

/// What a cell of the table says for a client: its class, "again", or nothing for the general refusal.
fn wanted(client: &Client, cells: &[String]) -> Option<String> {
    let cell = Some(cells[client.column].trim_matches('*')).filter(|cell| *cell != "-")?;
    let is_reference = client.general == "Other";
    Some(if is_reference { cell.trim_end_matches("Error") } else { cell }.to_owned())
}

/// The codes of the server's own that the page lists.
fn codes_of_server(page: &str) -> BTreeSet<String> {
    let text = page.split_once("The server has errors of its own").map_or("", |(_, rest)| rest);
    capitals(text.split("\n\n").next().unwrap_or_default())
}

fn faults(page: &str, clients: &[Client], read: &dyn Fn(&str) -> String) -> Vec<String> {
    let (rows, server) = (table(page), codes_of_server(page));
    let mut found = Vec::new();
    for client in clients {
        let path = client.rows.0;
        let has = rows_of(client, read);
        let again: BTreeSet<String> =
            client.again.iter().flat_map(|&place| quoted(part(&read(place.0), place))).collect();
        let place = client.again.first().map_or("", |(path, ..)| path);
        for (code, cells) in rows.iter().filter(|(code, _)| *code != "ERR") {
            let (wants, has) = (wanted(client, cells), has.get(code));
            let asks = wants.as_deref() == Some("again");
            match &wants {
                Some(class) if !asks && has.is_none() => {
                    found.push(format!("{path} has no row for {code}, which is {class} by the table"));
                }
                _ if !asks && wants.as_ref() != has => {
                    let cell = wants.as_deref().unwrap_or("-");
                    found.push(format!("{path} has {has:?} for {code}, and the table {cell}"));
                }
                _ => {}
            }
            if !client.again.is_empty() && asks != again.contains(code) {
                let word = if asks { "does not name" } else { "names" };
                let cell = wants.as_deref().unwrap_or("-");
                found.push(format!("{place} {word} {code} where it asks again, and the table has {cell}"));
            }
        }
        let is_known = |code: &&String| rows.contains_key(*code) || server.contains(*code);
        found.extend(has.keys().filter(|code| !is_known(code)).map(|code| unknown(path, code)));
        found.extend(again.iter().filter(|code| !is_known(code)).map(|code| unknown(place, code)));
    }
    found
}

fn unknown(path: &str, code: &str) -> String {
    format!("{path} has a row for {code}, which the page does not name")
}

#[test]
fn each_client_makes_of_each_error_code_what_the_table_says() {
    let found = faults(&read("docs/reference/errors.md"), &CLIENTS, &read);
    assert!(found.is_empty(), "docs/reference/errors.md:\n{}", found.join("\n"));
}

// Check the checker: removes a row of each file, changes a cell of each column, and adds a code to each file.
#[test]
fn each_difference_between_the_table_and_a_client_is_seen() {
    let page = read("docs/reference/errors.md");
    for client in &CLIENTS {
        let path = client.rows.0;
        let one = |page: &str, edit: &dyn Fn(&str, String) -> String| {
            faults(page, std::slice::from_ref(client), &|path| edit(path, read(path)))
        };
        let rows = rows_of(client, &read);
        assert!(rows.len() >= 3, "{path}: {rows:?}");
        let same = |_: &str, text: String| text;
        for (code, class) in rows.iter().filter(|(code, _)| table(&page).contains_key(*code)) {
            let found = one(&page, &|_, text| text.replace(code, "GONECODE"));
            let said = format!("{path} has no row for {code}, which is {class} by the table");
            assert!(found.contains(&said), "{said}: {found:?}");
            assert!(found.contains(&unknown(path, "GONECODE")), "{path} {code}: {found:?}");
            let with_dash = |line: &str| {
                let mut cells: Vec<&str> = line.split(" | ").collect();
                if line.starts_with(&format!("| `{code}`")) {
                    cells[client.column + 1] = "-";
                }
                cells.join(" | ") + "\n"
            };
            let found = one(&page.lines().map(with_dash).collect::<String>(), &same);
            assert!(
                found.iter().any(|fault| fault.contains(path) && fault.contains(code)),
                "{path}: {found:?}"
            );
        }
        for (place, ..) in client.again {
            let edit = |path: &str, text: String| {
                if path == *place { text.replace("READONLY", "GONECODE") } else { text }
            };
            let found = one(&page, &edit);
            let said = format!("{place} does not name READONLY where it asks again, and the table has again");
            assert!(
                found.contains(&said) && found.contains(&unknown(place, "GONECODE")),
                "{said}: {found:?}"
            );
        }
    }
}

// Check the checker.
#[test]
fn the_rows_of_each_language_are_read() {
    let class = |text: &str, class: &str| rows(text, class).into_iter().collect::<Vec<_>>();
    let pair = |code: &str, class: &str| (code.to_owned(), class.to_owned());
    assert_eq!(class("    \"AAA\": A,\n    \"BBB\": B,", "\": "), [pair("AAA", "A"), pair("BBB", "B")]);
    assert_eq!(class("  AAA: A,\n  BBB: B,", ": "), [pair("AAA", "A"), pair("BBB", "B")]);
    let rust = "\"AAA\" | \"CCC\" => {\n    x(\"DDD\");\n    Self::A\n}\n\"BBB\" => Self::B,\n\"ERR\" if x => Self::C,";
    assert_eq!(class(rust, "Self::"), [pair("AAA", "A"), pair("BBB", "B"), pair("CCC", "A")]);
    let go = "case \"AAA\":\n\treturn &Error{Kind: ErrA}\ncase \"BBB\":\n\ttext += \": hint\"\ncase \"CCC\":";
    assert_eq!(class(go, "Kind: "), [pair("AAA", "ErrA")]);
    assert_eq!(class("case \"AAA\", \"BBB\" -> Kind.A;", "Kind."), [pair("AAA", "A"), pair("BBB", "A")]);
}
