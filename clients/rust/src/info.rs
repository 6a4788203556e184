//! What `LOCK.INFO` says of a lock.

use std::time::Duration;

use redis::Value;

/// The holders of a lock, and its waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// `exclusive`, `shared` or `limit`.
    pub kind: String,
    /// How many owners may hold the semaphore.
    pub limit: Option<u32>,
    /// The first ten holders, the oldest token first.
    pub holders: Vec<Holder>,
    /// How many hold it.
    pub holds: u64,
    /// The first ten that wait, the next one first.
    pub queue: Vec<Waiter>,
    /// How many wait for it.
    pub waiters: u64,
}

/// One that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner.
    pub owner: String,
    /// Its fencing token.
    pub token: u64,
    /// What is left of its lease.
    pub left: Duration,
    /// The time since the grant.
    pub held: Duration,
}

/// One that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner.
    pub owner: String,
    /// For how long it has waited.
    pub waited: Duration,
}

impl Info {
    /// What a reply of `LOCK.INFO` says; `None` if nobody holds the lock and nobody waits.
    pub(crate) fn of(reply: &Value) -> Option<Self> {
        let rows = |name| field(reply, name).and_then(Value::as_sequence).unwrap_or_default();
        let millis = |row, name| Duration::from_millis(number(row, name));
        Some(Self {
            kind: text(reply, "kind")?,
            limit: u32::try_from(number(reply, "limit")).ok().filter(|limit| *limit > 0),
            holders: rows("holders")
                .iter()
                .map(|row| Holder {
                    owner: text(row, "owner").unwrap_or_default(),
                    token: number(row, "token"),
                    left: millis(row, "lease-left-ms"),
                    held: millis(row, "held-ms"),
                })
                .collect(),
            holds: number(reply, "holds"),
            queue: rows("queue")
                .iter()
                .map(|row| Waiter {
                    owner: text(row, "owner").unwrap_or_default(),
                    waited: millis(row, "waited-ms"),
                })
                .collect(),
            waiters: number(reply, "waiters"),
        })
    }
}

/// The version of the module in a reply of `HELLO`, as 300 for 0.3.0; `None` if the server has no such module.
pub(crate) fn module_version(reply: &Value) -> Option<u64> {
    let modules = field(reply, "modules")?.as_sequence()?;
    let its = modules.iter().find(|module| text(module, "name").as_deref() == Some("redislock"))?;
    Some(number(its, "ver"))
}

/// A version as people write it: 0.3.0 of 300.
pub(crate) fn shown_version(version: u64) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// A field of a reply that is a map.
fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a Value> {
    reply.as_map_iter()?.find(|(key, _)| bytes(key) == Some(name.as_bytes())).map(|(_, value)| value)
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn text(reply: &Value, name: &str) -> Option<String> {
    bytes(field(reply, name)?).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

fn number(reply: &Value, name: &str) -> u64 {
    match field(reply, name) {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}
