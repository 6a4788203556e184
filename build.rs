//! Binds what redis-module's header lacks, and bakes version and commit into the module.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed=REDISLOCK_SABOTAGE_IS_MEANT");
    if env::var_os("CARGO_FEATURE_SABOTAGE").is_some() && env::var_os("REDISLOCK_SABOTAGE_IS_MEANT").is_none()
    {
        return Err(
            "the feature `sabotage` makes a module that breaks its promises: see `make sabotage`".into()
        );
    }
    let header = "src/redis/ffi/extras.h";
    println!("cargo:rerun-if-changed={header}");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    bindgen::Builder::default()
        .header(header)
        .allowlist_var("VALKEY_.*|SERVER_.*|TYPE_.*")
        .generate_cstr(true)
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .generate()?
        .write_to_file(out.join("extras.rs"))?;
    println!("cargo:rustc-env=REDISLOCK_COMMIT={}", commit());
    Ok(())
}

/// The commit of the sources; "unknown" where they are not a git checkout.
fn commit() -> String {
    // Git notes each commit and checkout in its log of HEAD. Its index would not do: `git status` writes it, too.
    for file in [".git/HEAD", ".git/logs/HEAD"] {
        if Path::new(file).exists() {
            println!("cargo:rerun-if-changed={file}");
        }
    }
    Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}
