//! The examples of README.md and of examples/clients compile, run, and print what they say.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Server, cargo, write_package};

/// The text of each example.
fn examples(readme: &str) -> Vec<&str> {
    readme.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The programs of examples/clients.
fn programs() -> Vec<String> {
    let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/clients")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// The output that an example announces.
fn printed(example: &str) -> Vec<&str> {
    example.lines().filter_map(|line| line.split_once("// prints: ")).map(|(_, text)| text).collect()
}

#[test]
fn the_examples_run_and_print_what_they_say() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let servers = [Server::start(), Server::start(), Server::start()];
    let placed = |text: &str| {
        let ports =
            [("6379", &servers[0]), ("7001", &servers[0]), ("7002", &servers[1]), ("7003", &servers[2])];
        ports.iter().fold(text.to_owned(), |text, (port, server)| {
            text.replace(&format!("127.0.0.1:{port}\""), &format!("127.0.0.1:{}\"", server.port))
        })
    };
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", servers[0].port)).unwrap();
    redis::cmd("SET").arg("in").arg("use").exec(&mut client.get_connection().unwrap()).unwrap();
    let programs = programs();
    assert!(programs.len() >= 3, "{} programs were found", programs.len());
    let all = examples(&readme).into_iter().chain(programs.iter().map(String::as_str));
    let texts: Vec<String> = all.map(placed).collect();
    let bins =
        texts.iter().enumerate().map(|(number, text)| (format!("example{number}"), text.clone())).collect();
    assert!(texts.len() >= 9, "{} examples were found", texts.len());
    let folder = tempfile::tempdir().unwrap();
    write_package(folder.path(), "readme", Path::new(env!("CARGO_MANIFEST_DIR")), &bins);
    // The crates that were compiled for the tests are used again.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    cargo(folder.path(), target, &["build", "--quiet", "--offline", "--bins"]);
    for (number, text) in texts.iter().enumerate() {
        let program = || Command::new(target.join(format!("debug/example{number}")));
        if number >= texts.len() - programs.len() {
            let refused = program().output().unwrap();
            assert!(
                !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("has keys"),
                "{text}"
            );
        }
        let run = program().env("REDISLOCK_EXAMPLES", "anywhere").output().unwrap();
        let (out, log) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{text}\n{out}\n{log}");
        assert_eq!(out.lines().collect::<Vec<_>>(), printed(text), "{text}\n{log}");
    }
}
