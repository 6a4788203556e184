//! The settings of `src/engine/settings.rs`, compared with the table of `docs/reference/settings.md` and with
//! `redis.conf.example`, without a server.

use std::fmt;

use crate::errors::read;

/// The name of a setting, its default and its range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    name: String,
    default: String,
    range: String,
}

impl Setting {
    fn new(name: &str, default: impl Into<String>, range: impl Into<String>) -> Self {
        Self { name: name.to_owned(), default: default.into(), range: range.into() }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {}", self.name, self.default, self.range)
    }
}

/// The settings that `new` defines.
fn of_source(source: &str) -> Vec<Setting> {
    let number = |word: &str| {
        let word = word.trim();
        let constant = source.split_once(&format!("const {word}: i64 = "));
        constant.map_or(word, |(_, rest)| rest.split(';').next().unwrap_or_default()).replace('_', "")
    };
    let calls = |call: &'static str| {
        source.split(call).skip(1).filter_map(|rest| rest.split_once(')')).map(|(inside, _)| inside)
    };
    let mut found: Vec<Setting> = calls("Number::new(c\"")
        .map(|inside| {
            let words: Vec<String> = inside.replace('"', "").split(',').map(number).collect();
            assert_eq!(words.len(), 4, "{inside}");
            Setting::new(&words[0], &*words[1], format!("{} to {}", words[2], words[3]))
        })
        .collect();
    found.extend(
        calls("Switch::new(c\"").map(|inside| Setting::new(inside.trim_matches('"'), "no", "yes, no")),
    );
    let words = source.split_once("CONFIRM_WORDS: ").and_then(|(_, rest)| rest.split(';').nth(1));
    let words: Vec<&str> = words.unwrap_or_default().split('"').skip(1).step_by(2).collect();
    found.push(Setting::new("confirm", words[0], words.join(", ")));
    found
}

/// The rows of the page's table.
fn of_page(page: &str) -> Vec<Setting> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    cells.map(|cells| Setting::new(cells[0].trim_end_matches('`'), cells[1], cells[2])).collect()
}

/// The lines of the example, each with the range that its comment ends with.
fn of_example(example: &str) -> Vec<Setting> {
    let mut range = String::new();
    let mut found = Vec::new();
    for line in example.lines() {
        if let Some(rest) = line.strip_prefix("# Range: ") {
            range = rest.split(" (").next().unwrap_or_default().replace(" or ", ", ");
        } else if let Some((name, default)) =
            line.strip_prefix("redislock.").and_then(|rest| rest.split_once(' '))
        {
            found.push(Setting::new(name, default, std::mem::take(&mut range)));
        }
    }
    found
}

fn faults(source: &str, page: &str, example: &str) -> Vec<String> {
    const PAGE: &str = "docs/reference/settings.md";
    const EXAMPLE: &str = "redis.conf.example";
    let (source_has, page_has, example_has) = (of_source(source), of_page(page), of_example(example));
    let mut found = Vec::new();
    for (path, has) in [(PAGE, &page_has), (EXAMPLE, &example_has)] {
        let missing = source_has.iter().filter(|setting| !has.contains(setting));
        found.extend(missing.map(|setting| format!("{path} has no row '{setting}'")));
        let surplus = has.iter().filter(|setting| !source_has.contains(setting));
        found.extend(
            surplus.map(|setting| format!("{path} has '{setting}', and src/engine/settings.rs has not")),
        );
    }
    let order =
        |settings: &[Setting]| settings.iter().map(|setting| setting.name.clone()).collect::<Vec<_>>();
    if found.is_empty() && order(&page_has) != order(&example_has) {
        found.push(format!("{EXAMPLE} has another order than {PAGE}"));
    }
    // The server registers what is in `numbers` and `switches`.
    for setting in source_has.iter().filter(|setting| setting.name != "confirm") {
        let field = format!("&self.{},", setting.name.replace('-', "_"));
        let lists = source.replace("].", ",").replace(']', ",");
        if !lists.contains(&field) {
            found.push(format!(
                "src/engine/settings.rs: neither `numbers` nor `switches` has {}",
                setting.name
            ));
        }
    }
    found
}

#[test]
fn each_setting_has_a_row_on_its_page_and_in_the_example() {
    let (source, page) = (read("src/engine/settings.rs"), read("docs/reference/settings.md"));
    assert!(of_source(&source).len() >= 10, "{:?}", of_source(&source));
    let found = faults(&source, &page, &read("redis.conf.example"));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

// Check the checker.
#[test]
fn each_difference_between_settings_and_pages_is_seen() {
    let source = "const DAY_MS: i64 = 86_400_000;\npub const CONFIRM_WORDS: [&CStr; 2] = [c\"local\", c\"all\"];\n\
                  a: Number::new(c\"max-lease\", 3_600, 100, DAY_MS),\nb: Switch::new(c\"leaving\"),\n\
                  [&self.max_lease, &self.leaving]";
    let page = "| `max-lease` | 3600 | 100 to 86400000 | a |\n| `confirm` | local | local, all | b |\n\
                | `leaving` | no | yes, no | c |\n";
    let example = "# Range: 100 to 86400000 (milliseconds)\nredislock.max-lease 3600\n# Range: local or all\n\
                   redislock.confirm local\n# Range: yes or no\nredislock.leaving no\n";
    assert_eq!(faults(source, page, example), Vec::<String>::new());
    let other = example.replace("lease 3600", "lease 1");
    let moved = page.lines().rev().collect::<Vec<_>>().join("\n");
    for (source, page, example, fault) in [
        (
            source,
            &page[50..],
            example,
            "docs/reference/settings.md has no row 'max-lease: 3600 of 100 to 86400000'",
        ),
        (source, page, "", "redis.conf.example has no row 'leaving: no of yes, no'"),
        (source, page, &*other, "redis.conf.example has 'max-lease: 1 of 100 to 86400000', and src"),
        (source, &*moved, example, "redis.conf.example has another order"),
        (
            &source.replace("[&self.max_lease, ", "["),
            page,
            example,
            "neither `numbers` nor `switches` has max-lease",
        ),
        (&source.replace("leaving", "going"), page, example, "docs/reference/settings.md has 'leaving: no"),
    ] {
        let found = faults(source, page, example);
        assert!(found.iter().any(|found| found.contains(fault)), "{fault}: {found:?}");
    }
}
