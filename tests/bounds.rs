//! Checks that the table of `docs/internals/bounds.md` and the sources agree.
//!
//! A number in the sources is either a decision, with a row in the table, or it follows from something else, and is
//! listed in [`NO_DECISIONS`].

use std::fs;

use crate::tidy::{Source, files, root, shipped, sources};

/// Numbers that are no decisions about what the module does, with the reason.
const NO_DECISIONS: &[(&str, &[&str])] = &[
    (
        "the layout of a record in memory: where a bit stands, and what follows from the size of a field",
        &[
            "lock/arena.rs PAGE_BITS",
            "lock/arena.rs PAGE_SLOTS",
            "lock/locks/id.rs COUNT",
            "lock/locks/id.rs MARK_SHIFT",
            "lock/locks/id.rs RECORD",
            "lock/locks/id.rs SHIFT",
            "lock/locks/record.rs FLAGS_SHIFT",
            "lock/locks/owner_index.rs SHAPE_AT",
            "lock/locks/record.rs HEAD",
            "lock/locks/record.rs IN_SECONDS",
            "lock/locks/record.rs LINK_EXTRA",
            "lock/locks/record.rs SPILLED",
            "lock/locks/record.rs TOKEN_SHIFT",
            "lock/locks/record.rs UUID_OWNER",
            "lock/locks/slab.rs CLASSES",
            "lock/locks/slab.rs COARSE",
            "lock/locks/slab.rs FINE",
            "lock/locks/slab.rs INDEX_BITS",
            "lock/locks/slab.rs INDEX_END",
            "lock/locks/slab.rs NO_SLOT",
            "lock/locks/slab.rs OCCUPIED",
            "lock/locks/slab.rs SLOT_BITS",
        ],
    ),
    (
        "the shape of a data structure, which decides what it costs and not what it answers",
        &[
            "lock/deadline.rs CHILDREN",
            "lock/locks/name_codec.rs FACTOR",
            "lock/locks/name_codec.rs NO_PREFIX",
            "lock/locks/name_codec.rs TO_LETTER",
            "lock/locks/name_codec.rs UUID_TEXT",
            "lock/locks/slab.rs FINE_MAX",
            "lock/locks/slab.rs PAGE_BYTES",
            "lock/locks/slab.rs SIZE_MAX",
            "lock/locks/slab.rs SIZE_MIN",
            "lock/locks/slab.rs SMALL_PAGE_BYTES",
            "lock/locks/timer_wheel.rs ALL",
            "lock/locks/timer_wheel.rs LEVELS",
            "lock/locks/timer_wheel.rs LEVEL_BITS",
            "lock/locks/timer_wheel.rs LIST",
            "lock/locks/timer_wheel.rs LISTS",
            "lock/locks/timer_wheel.rs NONE",
        ],
    ),
    (
        "the format of files and payloads, which every version has to read",
        &[
            "lock/codec/blocks.rs COUNTED",
            "lock/codec/blocks.rs EPHEMERAL",
            "lock/codec/blocks.rs IS_LAST",
            "lock/codec/blocks.rs KEPT_ALIVE",
            "lock/codec/blocks.rs KIND_EMPTY",
            "lock/codec/blocks.rs KIND_EXCLUSIVE",
            "lock/codec/blocks.rs KIND_LIMITED",
            "lock/codec/blocks.rs KIND_SHARED",
            "lock/codec/blocks.rs NEWEST_VERSION",
            "lock/codec/blocks.rs ROW_BYTES_MIN",
            "lock/codec/blocks.rs RUNNING",
            "lock/codec/blocks.rs TOKEN_BYTES",
            "redis/module_type.rs ENCODING",
            "redis/module_type.rs HEAD_VERSION",
        ],
    ),
    (
        "numbers that the server gave: its events, its slots, its flags, places of arguments, words of a setting",
        &[
            "redis/alloc.rs SERVER_ALIGN",
            "redis/api.rs READS",
            "redis/api.rs NO_EXPIRE",
            "command/slot.rs SLOTS",
            "redis/api.rs UPDATES",
            "command/table.rs BY_PARSER",
            "redis/events.rs SLOTS_BEGIN_TO_LEAVE",
            "redis/events.rs SLOTS_HAVE_LEFT",
            "redis/events.rs SLOTS_STAY",
            "redis/onload.rs VERSION_NUMBER",
            "engine/settings.rs ALL",
            "engine/settings.rs LOCAL",
        ],
    ),
    ("not in a module that is shipped", &["sabotage.rs NONE"]),
];

/// Types of numbers.
const NUMBERS: &[&str] = &[
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "usize",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "isize",
    "f32",
    "f64",
    "c_int",
    "c_long",
    "c_longlong",
    "c_uint",
    "c_ulonglong",
    "Duration",
    "Moment",
    "Bound",
];

/// A number of the sources, or a row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bound {
    /// The file below `src`, and the name.
    name: String,
    /// As the sources write it.
    value: String,
    /// The value while the tests of the core run, if that differs.
    tried: Option<String>,
}

/// All numbers with names in the sources that go into the module.
fn numbers() -> Vec<Bound> {
    let numbers = |source: Source| {
        let file = source.path.strip_prefix("src").expect("a source").to_string_lossy().into_owned();
        numbers_of(&file, &source.code)
    };
    shipped("src").into_iter().flat_map(numbers).collect()
}

/// The numbers with names in this code, which has no comments.
fn numbers_of(file: &str, code: &str) -> Vec<Bound> {
    let starts = code.match_indices("const ").map(|(at, word)| &code[at + word.len()..]);
    starts
        .filter_map(|rest| {
            let (name, rest) = rest.split_once(": ")?;
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let (kind, rest) = rest.split_once(" =").filter(|_| name.chars().all(is_name))?;
            let kind = kind.rsplit("::").next().unwrap_or(kind);
            let (value, _) = rest.split_once(';').filter(|_| NUMBERS.contains(&kind))?;
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            let (value, tried) = match value.strip_prefix("Bound::of(").and_then(|both| both.split_once(')'))
            {
                Some((both, _)) => {
                    let (shipped, smallest) = both.split_once(", ").expect("two values");
                    (shipped.to_owned(), Some(smallest.to_owned()))
                }
                None => (value, None),
            };
            Some(Bound { name: format!("{file} {name}"), value, tried })
        })
        .collect()
}

/// The rows of the table, as lists of cells.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines = page.lines().filter(|line| line.starts_with("| `"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns the parts between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A row: its bound, and the tests that it names.
fn read_row<'a>(cells: &[&'a str]) -> (Bound, Vec<&'a str>) {
    let [name, value, purpose, page, tests] = cells else { panic!("not five cells: {cells:?}") };
    let [name] = quoted(name)[..] else { panic!("not one name: {cells:?}") };
    let values = quoted(value);
    let [shown, ref tried @ ..] = values[..] else { panic!("no value: {cells:?}") };
    assert!(tried.len() <= 1 && !purpose.is_empty() && !page.is_empty(), "{cells:?}");
    let tests = quoted(tests);
    assert!(!tests.is_empty(), "{name} names no test");
    let tried = tried.first().map(|&value| value.to_owned());
    (Bound { name: name.to_owned(), value: shown.to_owned(), tried }, tests)
}

/// The differences between the sources and the table.
fn faults(
    numbers: &[Bound],
    table: &[(Bound, Vec<&str>)],
    excepted: &[&str],
    tests: &[String],
) -> Vec<String> {
    let mut found = Vec::new();
    for number in numbers {
        let rows = table.iter().filter(|(row, _)| row.name == number.name).count();
        let times = rows + excepted.iter().filter(|name| **name == number.name).count();
        if times != 1 {
            found.push(format!(
                "{} stands {times} times in the table of docs/internals/bounds.md and in NO_DECISIONS of \
                 tests/bounds.rs, not once",
                number.name
            ));
        }
    }
    for (row, named) in table {
        match numbers.iter().find(|number| number.name == row.name) {
            None => found.push(format!("the sources have no {}", row.name)),
            Some(number) if number != row => {
                found.push(format!("the table has {row:?}, the sources {number:?}"))
            }
            Some(_) => {}
        }
        for test in named {
            if !tests.iter().any(|text| has_test(text, test)) {
                found.push(format!("{}: there is no test {test}", row.name));
            }
        }
    }
    for name in excepted {
        if !numbers.iter().any(|number| number.name == *name) {
            found.push(format!("the sources have no {name}"));
        }
    }
    found
}

/// Returns whether a text has a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let is_test = |at: usize| text[..at].trim_end().ends_with(']');
    let in_rust = text.match_indices(&format!("fn {name}(")).any(|(at, _)| is_test(at));
    in_rust || name.starts_with("test_") && text.contains(&format!("\ndef {name}("))
}

/// The texts of all files with tests.
fn texts() -> Vec<String> {
    let rust = sources("src").into_iter().chain(sources("tests")).map(|source| source.text);
    let with_tests = rust.filter(|text| text.contains("#[test]"));
    let python = files(&root().join("tests/python"), ".py").into_iter();
    let python = python
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("test_")));
    with_tests.chain(python.map(|path| fs::read_to_string(path).expect("it can be read"))).collect()
}

#[test]
fn the_table_of_bounds_says_what_the_sources_say() {
    let page = fs::read_to_string(root().join("docs/internals/bounds.md")).expect("it can be read");
    let table: Vec<_> = rows(&page).iter().map(|cells| read_row(cells)).collect();
    let excepted: Vec<&str> = NO_DECISIONS.iter().flat_map(|(_, names)| *names).copied().collect();
    let numbers = numbers();
    assert!(table.len() >= 40 && numbers.len() >= 90, "{} rows, {} numbers", table.len(), numbers.len());
    let found = faults(&numbers, &table, &excepted, &texts());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

// Check the checker.
#[test]
fn each_difference_between_table_and_sources_is_seen() {
    let code = "pub const AT_MOST: u32 = 5;\nconst FEW: Bound = Bound::of(8, 2);\n\
                const LONG: Duration =\n    Duration::from_millis(2);\nconst WORD: &str = ;\nconst fn f() {}\n\
                impl A { pub(super) const SHIFT: std::ffi::c_int = 3; }";
    let numbers = numbers_of("a.rs", code);
    let names: Vec<&str> = numbers.iter().map(|number| &*number.name).collect();
    assert_eq!(names, ["a.rs AT_MOST", "a.rs FEW", "a.rs LONG", "a.rs SHIFT"]);
    let few = Bound { name: "a.rs FEW".into(), value: "8".into(), tried: Some("2".into()) };
    assert_eq!((&numbers[1], &*numbers[2].value), (&few, "Duration::from_millis(2)"));

    let page = "# Bounds\n\n| bound | value |\n|---|---|\n\
                | `a.rs AT_MOST` | `5` readers | why | a page | `it_is` |\n\
                | `a.rs FEW` | `8`; `2` in tests | why | a page | `it_is`, `test_it` |\n\
                | `a.rs LONG` | `Duration::from_millis(2)` | why | a page | `it_is` |\n";
    let tests = ["#[test]\nfn it_is() {}".to_owned(), "\ndef test_it(cli):".to_owned()];
    let judge = |page: &str, excepted: &[&str], tests: &[String]| {
        let table: Vec<_> = rows(page).iter().map(|cells| read_row(cells)).collect();
        faults(&numbers, &table, excepted, tests)
    };
    assert_eq!(judge(page, &["a.rs SHIFT"], &tests), Vec::<String>::new());
    let wrong: [(&str, &[&str], &[String], &str); 7] = [
        (page, &[], &tests, "a.rs SHIFT stands 0 times"),
        (page, &["a.rs SHIFT", "a.rs LONG"], &tests, "a.rs LONG stands 2 times"),
        (page, &["a.rs SHIFT", "a.rs GONE"], &tests, "no a.rs GONE"),
        (&page.replace("`5`", "`6`"), &["a.rs SHIFT"], &tests, "the table has"),
        (&page.replace("; `2` in tests", ""), &["a.rs SHIFT"], &tests, "the table has"),
        (&page.replace("AT_MOST", "AT_LEAST"), &["a.rs SHIFT"], &tests, "no a.rs AT_LEAST"),
        (page, &["a.rs SHIFT"], &tests[..1], "no test test_it"),
    ];
    for (page, excepted, tests, fault) in wrong {
        let found = judge(page, excepted, tests);
        assert!(found.iter().any(|found| found.contains(fault)), "{fault}: {found:?}");
    }
}
