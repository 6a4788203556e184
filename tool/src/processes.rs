//! The processes below this one.

use std::collections::HashMap;
use std::io;

use nix::unistd::{Pid, getpid};
use procfs::process::all_processes;

/// All descendants of this process that have not ended, but for the one left out.
///
/// An error if /proc is missing or shows another namespace: then its numbers name other processes.
pub fn descendants(left_out: Option<Pid>) -> io::Result<Vec<Pid>> {
    let me = getpid().as_raw();
    let shown = std::fs::read_link("/proc/self")?;
    if shown.as_os_str() != me.to_string().as_str() {
        return Err(io::Error::other("/proc shows another namespace of processes"));
    }
    let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
    for process in all_processes().map_err(io::Error::other)? {
        // A process may end while it is read.
        let Ok(stat) = process.and_then(|process| process.stat()) else { continue };
        children.entry(stat.ppid).or_default().push((stat.pid, matches!(stat.state, 'Z' | 'X')));
    }
    let (mut found, mut open) = (Vec::new(), vec![me]);
    while let Some(parent) = open.pop() {
        for (pid, is_dead) in children.remove(&parent).unwrap_or_default() {
            open.push(pid);
            let is_left_out = left_out.is_some_and(|left_out| left_out.as_raw() == pid);
            if !is_dead && !is_left_out {
                found.push(Pid::from_raw(pid));
            }
        }
    }
    Ok(found)
}
