//! The subject of the tests: one server binary and one build of the module.
//!
//! `REDISLOCK_SERVER` names the server as `scripts/servers` prints it: `NAME VERSION SERVER_PATH CLI_PATH`.
//! `REDISLOCK_MODULE` is the path of the shared library; without it the library is built here, once.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

const DEFAULT_SERVER: &str = "redis-7.0 7.0 /usr/bin/redis-server /usr/bin/redis-cli";

pub struct Binary {
    pub name: String,
    pub version: String,
    pub server: PathBuf,
    pub cli: PathBuf,
}

pub static BINARY: LazyLock<Binary> = LazyLock::new(|| {
    let line = std::env::var("REDISLOCK_SERVER").unwrap_or_else(|_| DEFAULT_SERVER.to_string());
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, version, server, cli] = words[..] else {
        panic!("REDISLOCK_SERVER must be `NAME VERSION SERVER_PATH CLI_PATH`, not {line:?}");
    };
    Binary { name: name.into(), version: version.into(), server: server.into(), cli: cli.into() }
});

pub static MODULE: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os("REDISLOCK_MODULE") {
    Some(path) => std::path::absolute(PathBuf::from(path)).unwrap(),
    None => build(),
});

/// Cargo does not build a `cdylib` for `cargo test`, and only cargo knows where it puts one.
fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--lib", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "the module does not build");
    let messages = String::from_utf8(output.stdout).unwrap();
    messages
        .split('"')
        .rfind(|word| word.ends_with("/libredislock.so"))
        .expect("cargo says where it put the module")
        .into()
}

/// True if servers are started under valgrind, which makes them about twenty times slower.
pub static VALGRIND: LazyLock<bool> =
    LazyLock::new(|| std::env::var("REDISLOCK_VALGRIND").is_ok_and(|v| v == "1"));
