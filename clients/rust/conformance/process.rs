//! The resources that this process uses.

use std::collections::HashSet;
use std::fs;

use serde_json::{Value, json};

/// Its threads, its connections, and its resident memory.
pub fn threads() -> Value {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |word: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(word)).unwrap_or_default();
        line.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or_default()
    };
    json!({"threads": number("Threads:"), "connections": connections(), "memory_kb": number("VmRSS:")})
}

/// The number of TCP connections that this process has established.
fn connections() -> usize {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let established: HashSet<String> = table.lines().skip(1).filter_map(inode).collect();
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return 0 };
    files
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .filter(|link| {
            let link = link.to_string_lossy();
            link.strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'))
                .is_some_and(|it| established.contains(it))
        })
        .count()
}

/// The inode of an established connection, of a row of /proc/net/tcp.
fn inode(row: &str) -> Option<String> {
    let columns: Vec<_> = row.split_ascii_whitespace().collect();
    (*columns.get(3)? == "01").then(|| columns.get(9).map(|it| (*it).to_owned())).flatten()
}
