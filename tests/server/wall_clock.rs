//! A wall clock that a test sets, for one server or several. The server's other clocks are unchanged.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

/// The preloaded library, compiled once a run. If Rust can link, there is a C compiler.
static LIBRARY: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("wall_clock.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .arg(&library)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/wall_clock.c"))
        .status()
        .expect("there is a C compiler");
    assert!(status.success(), "wall_clock.c does not compile");
    (directory, library)
});

#[derive(Clone)]
pub struct WallClock {
    directory: Arc<TempDir>,
}

impl WallClock {
    /// A clock that is `seconds` seconds ahead of the true one; negative if it lags.
    pub fn ahead(seconds: i64) -> WallClock {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let clock = WallClock { directory };
        fs::write(clock.file(), [0; 8]).unwrap();
        clock.set_ahead(seconds);
        clock
    }

    /// Steps the clock, of servers that run too.
    pub fn set_ahead(&self, seconds: i64) {
        let file = OpenOptions::new().write(true).open(self.file()).unwrap();
        file.write_all_at(&(seconds * 1_000_000).to_ne_bytes(), 0).unwrap();
    }

    pub fn give_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &LIBRARY.1).env("WALL_CLOCK_FILE", self.file());
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("shift_us")
    }
}

/// The true wall clock, in microseconds: the unit of tokens.
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

pub const HOUR_US: i64 = 3_600_000_000;
