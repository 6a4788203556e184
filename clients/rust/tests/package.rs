//! The packaged crate, in a fresh project outside of the workspace, takes a lock.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Server, cargo, write_package};

/// The program of a user; the crate is in the folder where it was unpacked.
const PROGRAM: &str = r#"
use redislock_client::{Error, Locks};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = Locks::open(std::env::args().nth(1).unwrap())?;
    let lock = locks.lock("k").wait(Duration::ZERO);
    let guard = lock.acquire().await?;
    println!("{} {}", guard.token() > 0, matches!(lock.acquire().await, Err(Error::LockTimeout { .. })));
    guard.release().await?;
    locks.close().await;
    Ok(())
}
"#;

#[test]
fn the_packaged_crate_takes_a_lock_in_a_fresh_project() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The crates that were compiled for the tests are used again.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    // The project below compiles it, which is what cargo would do to verify it.
    cargo(here, target, &["package", "--quiet", "--locked", "--offline", "--allow-dirty", "--no-verify"]);
    let name = format!("redislock-client-{}", env!("CARGO_PKG_VERSION"));
    let folder = tempfile::tempdir().unwrap();
    let package = target.join(format!("package/{name}.crate"));
    let unpacked = Command::new("tar").arg("-xzf").arg(package).current_dir(folder.path()).status().unwrap();
    assert!(unpacked.success());
    let program = [("fresh".to_owned(), PROGRAM.to_owned())].into();
    write_package(folder.path(), "fresh", &folder.path().join(name), &program);
    cargo(folder.path(), target, &["build", "--quiet", "--offline"]);
    let server = Server::start();
    let run = Command::new(target.join("debug/fresh")).arg(server.url()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(String::from_utf8(run.stdout).unwrap(), "true true\n");
    assert!(!server.is_held("k"));
}
