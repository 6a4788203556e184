//! Plays scripts that real servers play, too, and writes down the outcome of each step: see tests/python/likeness.
//!
//! | file | what it is |
//! |---|---|
//! | `host.rs` | connections: their commands, and those that are blocked, delayed or closed |
//! | `steps.rs` | the steps of a script |
//! | `told.rs` | the outcome of a step, as text |
//!
//! A script is a text. Each line is a step: a word, and further words after tabs. `round` begins with a new server,
//! and `round cluster` with a node of a cluster.

mod host;
mod steps;
mod told;

use std::fmt::Write as _;

use self::host::Host;

/// Names the script. The outcome is written next to it.
const SCRIPT: &str = "REDISLOCK_PLAYS";

#[test]
fn simulated_server_plays() {
    let Ok(path) = std::env::var(SCRIPT) else { return };
    let script = std::fs::read_to_string(&path).expect("a script");
    std::fs::write(format!("{path}.played"), played(&script)).expect("room for what came of it");
}

fn played(script: &str) -> String {
    let (mut host, mut text) = (Host::started(false), String::new());
    for (number, line) in script.lines().enumerate() {
        let words: Vec<&str> = line.split('\t').collect();
        if words[0] == "round" {
            host = Host::started(words.get(1) == Some(&"cluster"));
        } else {
            host.steps(&words);
        }
        writeln!(text, "step\t{}\t{line}", number + 1).expect("a text takes all");
        for line in host.tells() {
            writeln!(text, "{line}").expect("a text takes all");
        }
    }
    text
}

#[test]
fn a_script_of_one_grant_is_printed_as_it_happens() {
    let text = played("round\nsend\t1\t0\tLOCK.ACQUIRE\ta\to1\tPX\t999\n");
    let told: Vec<&str> = text.lines().filter(|line| !line.starts_with("info")).collect();
    let step = told.iter().position(|line| line.starts_with("step\t2")).expect("the second step");
    let find = |start: &str| told[step..].iter().find(|line| line.starts_with(start));
    assert!(find("reply\tc1\t:").is_some(), "{text}");
    assert_eq!(find("event\t"), Some(&"event\t0\ta\tlock.acquired"));
    assert!(find("file\t0\tLOCK.A").is_some() && find("changed\ta").is_some(), "{text}");
}
