//! The processor time of another process.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// The time for which a server may still be busy after its last reply. The kernel counts a thread up to its last rest.
const SETTLE: Duration = Duration::from_micros(500);

/// Returns the processor time of all threads of a process, to the nanosecond; it should be idle.
pub fn used_by(pid: u32) -> Result<Duration, String> {
    sleep(SETTLE);
    let tasks = format!("/proc/{pid}/task");
    let threads = fs::read_dir(&tasks).map_err(|reason| format!("{tasks}: {reason}"))?;
    let mut nanos = 0;
    for thread in threads.flatten() {
        let path = thread.path().join("schedstat");
        // Threads may end at any time.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanos += first.ok_or_else(|| format!("{}: no number in {text:?}", path.display()))?;
    }
    match nanos {
        0 => Err(format!("{tasks}/*/schedstat: this kernel does not tell")),
        _ => Ok(Duration::from_nanos(nanos)),
    }
}
