//! Holders and waiters of a lock, as `LOCK.INFO` replies.

use std::collections::HashMap;

use redislock_client::redis::Value;
use serde_json::json;

/// A lock that somebody holds or waits for.
#[derive(Debug)]
pub struct Shown {
    pub name: Vec<u8>,
    pub kind: String,
    pub limit: Option<u64>,
    pub holds: u64,
    pub holders: Vec<Holder>,
    pub waiters: u64,
    pub queue: Vec<Waiter>,
}

#[derive(Debug)]
pub struct Holder {
    pub owner: String,
    pub raw_owner: Vec<u8>,
    pub token: u64,
    pub lease_left_ms: u64,
    pub held_ms: u64,
}

#[derive(Debug)]
pub struct Waiter {
    pub owner: String,
    pub mode: String,
    pub waited_ms: u64,
    pub state: String,
}

/// A text for people: bytes that are no text, or that would move a terminal's cursor, are escaped.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

type Fields = HashMap<String, Value>;

/// The fields of a map, which RESP2 sends as a flat array.
fn fields(value: Value) -> Option<Fields> {
    let pairs: Vec<(Value, Value)> = match value {
        Value::Map(pairs) => pairs,
        Value::Array(words) => {
            let mut words = words.into_iter();
            let mut pairs = Vec::new();
            while let (Some(name), Some(value)) = (words.next(), words.next()) {
                pairs.push((name, value));
            }
            pairs
        }
        _ => return None,
    };
    Some(pairs.into_iter().map(|(name, value)| (printable(&bytes(name)), value)).collect())
}

fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        _ => Vec::new(),
    }
}

fn number(fields: &Fields, name: &str) -> u64 {
    match fields.get(name) {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}

fn raw(fields: &mut Fields, name: &str) -> Vec<u8> {
    fields.remove(name).map(bytes).unwrap_or_default()
}

fn rows(fields: &mut Fields, name: &str) -> Vec<Fields> {
    match fields.remove(name) {
        Some(Value::Array(rows)) => rows.into_iter().filter_map(self::fields).collect(),
        _ => Vec::new(),
    }
}

impl Shown {
    /// Returns `None` if the lock has neither holders nor waiters.
    pub fn of(name: &[u8], value: Value) -> Option<Self> {
        let mut fields = fields(value)?;
        let holders = rows(&mut fields, "holders").into_iter().map(|mut row| {
            let raw_owner = raw(&mut row, "owner");
            Holder {
                owner: printable(&raw_owner),
                raw_owner,
                token: number(&row, "token"),
                lease_left_ms: number(&row, "lease-left-ms"),
                held_ms: number(&row, "held-ms"),
            }
        });
        let holders = holders.collect();
        let queue = rows(&mut fields, "queue").into_iter().map(|mut row| Waiter {
            owner: printable(&raw(&mut row, "owner")),
            mode: printable(&raw(&mut row, "mode")),
            waited_ms: number(&row, "waited-ms"),
            state: printable(&raw(&mut row, "state")),
        });
        let queue = queue.collect();
        Some(Self {
            name: name.to_vec(),
            kind: printable(&raw(&mut fields, "kind")),
            limit: matches!(fields.get("limit"), Some(Value::Int(_))).then(|| number(&fields, "limit")),
            holds: number(&fields, "holds"),
            holders,
            waiters: number(&fields, "waiters"),
            queue,
        })
    }

    /// Returns the longest wait among the waiters that are shown.
    pub fn longest_wait_ms(&self) -> u64 {
        self.queue.iter().map(|waiter| waiter.waited_ms).max().unwrap_or_default()
    }

    pub fn to_json(&self) -> serde_json::Value {
        let holders = self.holders.iter().map(|holder| {
            json!({
                "owner": holder.owner, "token": holder.token, "held_ms": holder.held_ms,
                "lease_left_ms": holder.lease_left_ms,
            })
        });
        let queue = self.queue.iter().map(|waiter| {
            json!({
                "owner": waiter.owner, "mode": waiter.mode, "waited_ms": waiter.waited_ms,
                "state": waiter.state,
            })
        });
        json!({
            "name": printable(&self.name), "kind": self.kind, "limit": self.limit, "holds": self.holds,
            "holders": holders.collect::<Vec<_>>(), "waiters": self.waiters,
            "longest_wait_ms": self.longest_wait_ms(), "queue": queue.collect::<Vec<_>>(),
        })
    }
}
