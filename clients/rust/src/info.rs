//! Queries, and parses the replies to `LOCK.INFO` and `HELLO`.

use std::time::Duration;

use futures_util::future::join;
use redis::{Cmd, Value};
use tokio::time::timeout;

use crate::clock::Moment;
use crate::core::Core;
use crate::error::Error;
use crate::request::Ask;
use crate::rules::{ATTEMPT, WAIT_MARGIN};
use crate::wanted::{Wanted, fence, release_nothing};

/// The holders of a lock, and its waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// `exclusive`, `shared` or `limit`.
    pub kind: String,
    /// The number of permits of a semaphore.
    pub limit: Option<u32>,
    /// The first ten holders, the oldest token first.
    pub holders: Vec<Holder>,
    /// The number of holders.
    pub holds: u64,
    /// The first ten waiters, the next one first.
    pub queue: Vec<Waiter>,
    /// The number of waiters.
    pub waiters: u64,
}

/// An owner that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner.
    pub owner: String,
    /// Its fencing token.
    pub token: u64,
    /// The rest of its lease.
    pub left: Duration,
    /// The time since the grant.
    pub held: Duration,
}

/// An owner that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner.
    pub owner: String,
    /// Its waiting time.
    pub waited: Duration,
}

impl Info {
    /// Parses a reply of `LOCK.INFO`; `None` if the lock has neither holders nor waiters.
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

impl Core {
    /// Returns whether the token is that of a live hold. Only a primary's no counts: a replica may lack its
    /// primary's holds.
    pub(crate) async fn fence(&self, name: &[u8], token: i64) -> Result<bool, Error> {
        let is_live = |reply: &Value| *reply == Value::Int(1);
        Ok(is_live(&self.surely(name, &fence(name, Some(token)), is_live).await?))
    }

    /// Returns the reply to this query if it can be trusted; otherwise that of a primary.
    async fn surely(
        &self,
        name: &[u8],
        command: &Cmd,
        is_believed: impl Fn(&Value) -> bool,
    ) -> Result<Value, Error> {
        let until = Moment::now() + WAIT_MARGIN;
        let ask = || self.servers.request(Ask::new(name, command, until));
        let reply = ask().await?.reply;
        if is_believed(&reply) {
            return Ok(reply);
        }
        // It releases nothing, and a replica refuses it, after which the address is resolved again.
        match self.servers.request(Ask::new(name, &release_nothing(name), until)).await {
            Err(error) if !error.is_refusal() => Err(error),
            _ => Ok(ask().await?.reply),
        }
    }

    /// Names the holder of any of these locks, for people; `None` if the server refuses to say.
    pub(crate) async fn holder(&self, wanted: &Wanted) -> Option<String> {
        for name in &wanted.names {
            let mut command = redis::cmd("LOCK.INFO");
            command.arg(name);
            let link = timeout(ATTEMPT, self.servers.link(name)).await.ok()?.ok()?;
            let (info, _) = link.call(&command, ATTEMPT).await.ok()?;
            if let Some(holder) = Info::of(&info).and_then(|info| info.holders.into_iter().next()) {
                return Some(format!("{} for {:?}", holder.owner, holder.held));
            }
        }
        None
    }

    /// Returns the holders of the lock and its waiters. Only a primary's no counts: see
    /// [`fence`](Self::fence).
    pub(crate) async fn info(&self, name: &[u8]) -> Result<Option<Info>, Error> {
        let mut command = redis::cmd("LOCK.INFO");
        command.arg(name);
        let reply = self.surely(name, &command, |reply| *reply != Value::Nil).await?;
        Ok(Info::of(&reply))
    }

    /// Checks that this lock could be acquired now. Returns the version of the module, as 300 for 0.3.0.
    pub(crate) async fn ping(&self, name: &[u8]) -> Result<u64, Error> {
        let until = Moment::now() + WAIT_MARGIN;
        let (mut told, mut read) = self.greet(name, until).await;
        if told.as_ref().is_ok_and(|hello| text(hello, "role").as_deref() != Some("master")) {
            // A replica refuses this, and its address is resolved again.
            self.servers.request(Ask::new(name, &release_nothing(name), until)).await?;
            (told, read) = self.greet(name, until).await;
        }
        match read {
            // Another node has this name, and this node is healthy.
            Err(Error::ServerRefused { message }) if message.starts_with("MOVED") => {}
            Err(Error::ServerRefused { message }) => {
                return Err(Error::ServerRefused { message: format!("{message} (LOCK.FENCE)") });
            }
            read => drop(read?),
        }
        module_version(&told?).ok_or_else(|| Error::from_reply("ERR unknown command LOCK.FENCE"))
    }

    /// The replies to `HELLO`, and to a read of this lock right after it.
    async fn greet(&self, name: &[u8], until: Moment) -> (Result<Value, Error>, Result<Value, Error>) {
        let (hello, read) = (redis::cmd("HELLO"), fence(name, None));
        let ask = async |command| Ok(self.servers.request(Ask::new(name, command, until)).await?.reply);
        join(ask(&hello), ask(&read)).await
    }
}

/// Returns the module's version in a reply of `HELLO`, as 300 for 0.3.0; `None` if the server has no such
/// module.
pub(crate) fn module_version(reply: &Value) -> Option<u64> {
    let modules = field(reply, "modules")?.as_sequence()?;
    let its = modules.iter().find(|module| text(module, "name").as_deref() == Some("redislock"))?;
    Some(number(its, "ver"))
}

/// Formats a version for people: 300 as 0.3.0.
pub(crate) fn shown_version(version: u64) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Returns a field of a reply that is a map.
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
