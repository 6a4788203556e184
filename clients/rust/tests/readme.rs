//! The examples of README.md and of examples/clients compile, run, and print what they say.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Server, cargo};

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

/// The examples as programs of a package that depends on this one.
fn write_package(folder: &Path, examples: &[String]) {
    let here = env!("CARGO_MANIFEST_DIR");
    fs::create_dir_all(folder.join("src/bin")).unwrap();
    fs::copy(format!("{here}/Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let manifest = format!(
        "[workspace]\n[package]\nname = \"readme\"\nedition = \"2024\"\n[dependencies]\n\
         redislock-client = {{ path = {here:?}, features = [\"metrics\", \"opentelemetry\", \"testing\", \"tls\"] }}\n\
         tokio = {{ version = \"1\", features = [\"io-std\", \"io-util\", \"macros\", \"rt-multi-thread\", \"time\"] }}\n\
         [lints.rust]\nwarnings = \"deny\"\n[profile.dev]\ndebug = \"line-tables-only\"\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    for (number, text) in examples.iter().enumerate() {
        fs::write(folder.join(format!("src/bin/example{number}.rs")), text).unwrap();
    }
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
    assert!(texts.len() >= 9, "{} examples were found", texts.len());
    let folder = tempfile::tempdir().unwrap();
    write_package(folder.path(), &texts);
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
