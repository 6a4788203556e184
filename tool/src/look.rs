//! `ls`, `info` and `held-by`: who holds what.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::Duration;

use redislock_client::redis::{Value, cmd};
use serde_json::json;
use unicode_width::UnicodeWidthStr;

use crate::exit::{Code, Failure};
use crate::nodes::{Node, Refusal, ask_for, lock_command, primaries};
use crate::options::{HeldBy, Info, Ls};
use crate::print;
use crate::show::{Shown, printable};
use crate::target::Place;
use crate::values::{self, shown};

/// The number of keys that one step of a walk examines.
const STEP: u64 = 1000;
/// The longest column; longer texts are cut for people, and not in JSON.
const WIDEST: usize = 48;

/// The results of a walk.
struct Walk {
    locks: Vec<Shown>,
    /// The number of keys examined, and of all keys.
    scanned: u64,
    keys: u64,
    is_complete: bool,
}

/// Lists the locks once, or again and again.
pub fn ls(options: &Ls, is_from_environment: bool) -> Result<u8, Failure> {
    let place = Place::of(&options.server, is_from_environment)?;
    let pattern = options.pattern.to_string_lossy();
    if options.watch.is_some() && values::positive(&pattern).is_ok() {
        return Err(Failure::usage(format!("--watch: expected --watch={pattern}, in one word")));
    }
    loop {
        let walk = walk(&place, &options.pattern, options.budget)?;
        let text = if options.json { listed_as_json(&walk) } else { listed(&walk) };
        // A reader that has gone ends the watch.
        let is_read = print(text.as_bytes());
        match options.watch {
            Some(pause) if is_read => sleep(pause),
            _ => return Ok(0),
        }
    }
}

/// Walks through the keys of all primaries; the lock that is waited for longest comes first.
fn walk(place: &Place, pattern: &OsStr, budget: u64) -> Result<Walk, Failure> {
    let mut walk = Walk { locks: Vec::new(), scanned: 0, keys: 0, is_complete: true };
    for info in primaries(place)? {
        let mut node = Node::open(&info)?;
        let size = match node.words(&["DBSIZE"])? {
            Value::Int(size) => u64::try_from(size).unwrap_or_default(),
            _ => 0,
        };
        walk.keys += size;
        walk_node(&mut node, pattern, budget, size, &mut walk)?;
    }
    let key = |lock: &Shown| {
        let held = lock.holders.iter().map(|holder| holder.held_ms).max().unwrap_or_default();
        (std::cmp::Reverse(lock.longest_wait_ms()), std::cmp::Reverse(held), lock.name.clone())
    };
    walk.locks.sort_by_cached_key(key);
    // SCAN may show a key twice.
    walk.locks.dedup_by(|one, other| one.name == other.name);
    Ok(walk)
}

fn walk_node(
    node: &mut Node,
    pattern: &OsStr,
    budget: u64,
    size: u64,
    walk: &mut Walk,
) -> Result<(), Failure> {
    let (mut cursor, mut steps) = (b"0".to_vec(), 0);
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern.as_bytes()).arg("COUNT").arg(STEP.min(budget));
        scan.arg("TYPE").arg("redislock");
        let Value::Array(reply) = node.ask(&scan)? else { return Ok(()) };
        let [Value::BulkString(next), Value::Array(keys)] = &reply[..] else { return Ok(()) };
        for key in keys {
            let Value::BulkString(key) = key else { continue };
            walk.locks.extend(look(node, key)?);
        }
        steps += 1;
        cursor.clone_from(next);
        if cursor == b"0" {
            walk.scanned += size;
            return Ok(());
        }
        if steps * STEP >= budget {
            walk.scanned += size.min(steps * STEP);
            walk.is_complete = false;
            return Ok(());
        }
    }
}

/// Asks about one lock. A key that was given another value meanwhile is no lock, and one that moved is another node's.
fn look(node: &mut Node, key: &[u8]) -> Result<Option<Shown>, Failure> {
    match node.ask(&lock_command("LOCK.INFO", key)) {
        Ok(value) => Ok(Shown::of(key, value)),
        Err(Refusal::Reply(text)) if ["WRONGTYPE", "MOVED", "ASK"].iter().any(|w| text.starts_with(w)) => {
            Ok(None)
        }
        Err(refusal) => Err(refusal.into()),
    }
}

fn percent(walk: &Walk) -> u64 {
    if walk.is_complete { 100 } else { (walk.scanned * 100 / walk.keys.max(1)).min(99) }
}

fn listed_as_json(walk: &Walk) -> String {
    let locks: Vec<_> = walk.locks.iter().map(Shown::to_json).collect();
    json!({ "locks": locks, "scanned_percent": percent(walk) }).to_string() + "\n"
}

fn milliseconds(number: u64) -> String {
    shown(Duration::from_millis(number))
}

/// Words for a kind: a semaphore says how many it takes.
fn kind(lock: &Shown) -> String {
    match lock.limit {
        Some(limit) => format!("{}/{limit}", lock.holds),
        None => lock.kind.clone(),
    }
}

fn listed(walk: &Walk) -> String {
    let head = ["NAME", "KIND", "HOLDER", "TOKEN", "HELD FOR", "LEASE LEFT", "WAITERS", "LONGEST WAIT"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for lock in &walk.locks {
        let waits = match lock.waiters {
            0 => "-".to_owned(),
            _ => milliseconds(lock.longest_wait_ms()),
        };
        let holder = lock.holders.first();
        let (name, kind) = (printable(&lock.name), kind(lock));
        let row = match holder {
            Some(holder) => {
                let others = lock.holds.saturating_sub(1);
                let more = if others > 0 { format!(" +{others}") } else { String::new() };
                let (held, left) = (milliseconds(holder.held_ms), milliseconds(holder.lease_left_ms));
                [cut(&name), kind, cut(&holder.owner) + &more, holder.token.to_string(), held, left]
            }
            None => [cut(&name), kind, "-".into(), "-".into(), "-".into(), "-".into()],
        };
        rows.push(row.into_iter().chain([lock.waiters.to_string(), waits]).collect());
    }
    let scanned = percent(walk);
    let note = if scanned < 100 {
        format!("scanned {scanned} %: --budget says how many keys\n")
    } else {
        String::new()
    };
    table(&rows) + &note
}

/// Cuts a long text in its middle, for both ends tell texts apart.
fn cut(text: &str) -> String {
    if text.width() <= WIDEST {
        return text.to_owned();
    }
    let half = WIDEST / 2 - 1;
    let characters: Vec<char> = text.chars().collect();
    let (begin, end) = (&characters[..half], &characters[characters.len() - half..]);
    format!("{}..{}", begin.iter().collect::<String>(), end.iter().collect::<String>())
}

/// Columns, each as wide as its widest text.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| text.width()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (word, wide) in row.iter().zip(&widths) {
            line += word;
            line += &" ".repeat(wide.saturating_sub(word.width()) + 2);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Shows one lock. A free lock is not a failure.
pub fn info(options: &Info, is_from_environment: bool) -> Result<u8, Failure> {
    let place = Place::of(&options.server, is_from_environment)?;
    let key = options.name.as_bytes();
    let found = find(&place, key)?;
    let text = match (&found, options.json) {
        (Some(lock), true) => lock.to_json().to_string() + "\n",
        (None, true) => "null\n".to_owned(),
        (Some(lock), false) => described(lock),
        (None, false) => format!("nobody holds '{}', and nobody waits for it\n", printable(key)),
    };
    print(text.as_bytes());
    Ok(0)
}

/// The lock of this name, unless it is free.
pub fn find(place: &Place, key: &[u8]) -> Result<Option<Shown>, Failure> {
    if key.is_empty() {
        return Err(Failure::usage("NAME: expected the name of a lock, not an empty word"));
    }
    let mut request = lock_command("LOCK.INFO", key);
    request.arg("FULL");
    Ok(Shown::of(key, ask_for(place, &request)?))
}

/// Describes a lock for people.
pub fn described(lock: &Shown) -> String {
    let mut text =
        format!("{}: {}, {} held, {} waiting\n", printable(&lock.name), kind(lock), lock.holds, lock.waiters);
    let mut rows = vec![["HOLDER", "TOKEN", "HELD FOR", "LEASE LEFT"].map(str::to_owned).to_vec()];
    for holder in &lock.holders {
        let (held, left) = (milliseconds(holder.held_ms), milliseconds(holder.lease_left_ms));
        rows.push(vec![holder.owner.clone(), holder.token.to_string(), held, left]);
    }
    if rows.len() > 1 {
        text += &table(&rows);
    }
    let mut rows = vec![["WAITER", "MODE", "WAITS FOR", "STATE"].map(str::to_owned).to_vec()];
    for waiter in &lock.queue {
        let waits = milliseconds(waiter.waited_ms);
        rows.push(vec![waiter.owner.clone(), waiter.mode.clone(), waits, waiter.state.clone()]);
    }
    if rows.len() > 1 {
        text += &table(&rows);
    }
    text
}

/// Lists what an owner holds and waits for, on all primaries.
pub fn held_by(options: &HeldBy, is_from_environment: bool) -> Result<u8, Failure> {
    let place = Place::of(&options.server, is_from_environment)?;
    let owner = options.owner.as_bytes();
    if !(1..=256).contains(&owner.len()) {
        return Err(Failure::new(Code::Usage, "OWNER: expected 1 to 256 bytes"));
    }
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    for info in primaries(&place)? {
        let mut node = Node::open(&info)?;
        let Value::Array(locks) = node.ask(&lock_command("LOCK.HELDBY", owner))? else { continue };
        for lock in locks {
            let Value::Array(lock) = lock else { continue };
            let [name, state, mode, token, left] = &lock[..] else { continue };
            let (name, state, mode) = (text_of(name), text_of(state), text_of(mode));
            let (token, left) = (number_of(token), number_of(left));
            found.push(json!({
                "name": name, "state": state, "mode": mode, "token": token, "lease_left_ms": left,
            }));
            let or_dash = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
            let (token, left) = (token.map(|token| token.to_string()), left.map(milliseconds));
            rows.push(vec![name, state, mode, or_dash(token), or_dash(left)]);
        }
    }
    rows.sort();
    let text = if options.json {
        json!(found).to_string() + "\n"
    } else {
        let head = ["NAME", "STATE", "MODE", "TOKEN", "LEASE LEFT"].map(str::to_owned).to_vec();
        table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
    };
    print(text.as_bytes());
    Ok(0)
}

fn text_of(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => printable(bytes),
        Value::SimpleString(text) => printable(text.as_bytes()),
        _ => String::new(),
    }
}

fn number_of(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_their_width() {
        let row = |one: &str, two: &str| vec![one.to_owned(), two.to_owned()];
        assert_eq!(table(&[row("A", "B"), row("\u{4e2d}\u{6587}", "x")]), "A     B\n\u{4e2d}\u{6587}  x\n");
    }

    #[test]
    fn long_texts_are_cut_in_their_middle() {
        let text = format!("{}end", "x".repeat(60));
        let cut = cut(&text);
        assert!(cut.width() <= WIDEST && cut.ends_with("xend") && cut.contains(".."));
    }
}
