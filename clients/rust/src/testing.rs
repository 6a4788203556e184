//! An in-memory server for testing programs that use locks: feature `testing`.
//!
//! The rest is the library's own code, so waits, renewals, losses and errors are as with a real server. Its clock is
//! tokio's, so a test that starts with paused time never waits for real time:
//!
//! ```
//! use redislock_client::testing::Server;
//! use std::time::Duration;
//!
//! #[tokio::test(start_paused = true)]
//! async fn a_report_is_written_once_a_minute() {
//!     let server = Server::new();
//!     let (ours, theirs) = (server.locks().unwrap(), server.locks().unwrap()); // as two processes
//!     let report = theirs.lock("report");
//!     ours.lock("report").min_hold(Duration::from_secs(50)).acquire().await.unwrap().release().await.unwrap();
//!     server.advance(Duration::from_secs(30)).await;
//!     assert!(report.try_acquire().await.unwrap().is_none());
//!     server.advance(Duration::from_secs(25)).await;
//!     assert!(report.try_acquire().await.unwrap().is_some());
//! }
//! ```
//!
//! Once a program has created a [`Server`], all its locks use tokio's clock. The server has no quarantine, no replicas,
//! no queue limits and no `RAISE`, so it does not work with [`redlock`](crate::redlock).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use redis::{ConnectionAddr, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, split};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::sleep;

use crate::Error;
use crate::clock::{Moment, use_the_clock_of_tests};
use crate::keeper::Keeper;
use crate::link::lock;
use crate::locks::Locks;
use crate::table::Table;

/// The address of an in-process server, without its number.
const HOST: &str = "redislock.testing.";
/// The time for which `lose` waits for the holders.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes in flight.
const UNDERWAY: usize = 1 << 20;

static SERVERS: LazyLock<Mutex<HashMap<String, Weak<Table>>>> = LazyLock::new(Mutex::default);
static KEEPERS: Mutex<Vec<Weak<Keeper>>> = Mutex::new(Vec::new());
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// An in-memory server, which ends when this is dropped.
pub struct Server {
    host: String,
    table: Arc<Table>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Creates a server that has no locks yet.
    pub fn new() -> Self {
        use_the_clock_of_tests();
        let host = format!("{HOST}{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let table = Arc::new(Table::default());
        lock(&SERVERS).insert(host.clone(), Arc::downgrade(&table));
        Self { host, table }
    }

    /// Returns its address, for [`Locks::open`] and for [`Builder::server`](crate::Builder::server).
    pub fn url(&self) -> String {
        format!("redis://{}", self.host)
    }

    /// Returns a client for its locks, with default settings. Each call acts like another process.
    pub fn locks(&self) -> Result<Locks, Error> {
        Locks::open(self.url())
    }

    /// Moves the clock by this time: at once if the test's time is paused, otherwise it waits. Holds that are renewed
    /// stay held; other leases and waits expire. To simulate a paused process that cannot renew, use
    /// [`tokio::time::advance`].
    pub async fn advance(&self, time: Duration) {
        sleep(time).await;
    }

    /// Ends all holds of this lock, as an operator's `DEL` does. Returns when their holders have noticed it.
    pub async fn lose(&self, name: impl AsRef<[u8]>) {
        let (lost, until) = (self.table.lose(name.as_ref()), Moment::now() + PATIENCE);
        let is_held = || {
            let keepers: Vec<_> = lock(&KEEPERS).iter().filter_map(Weak::upgrade).collect();
            keepers.iter().flat_map(|keeper| keeper.all()).any(|held| lost.contains(&held.token))
        };
        while is_held() && !until.left().is_zero() {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        lock(&SERVERS).remove(&self.host);
        self.table.close();
    }
}

/// Records the keeper whose holds an in-process server can lose.
pub(crate) fn note(keeper: &Arc<Keeper>) {
    let mut keepers = lock(&KEEPERS);
    keepers.retain(|keeper| keeper.strong_count() > 0);
    keepers.push(Arc::downgrade(keeper));
}

/// Connects to the in-process server that has this address. `None`: it is the address of another server.
pub(crate) fn connect(address: &ConnectionAddr) -> Option<Result<DuplexStream, String>> {
    let ConnectionAddr::Tcp(host, _) = address else { return None };
    if !host.starts_with(HOST) {
        return None;
    }
    let table = lock(&SERVERS).get(host).and_then(Weak::upgrade);
    Some(table.ok_or_else(|| "this testing::Server was dropped".to_owned()).map(|table| {
        let (ours, theirs) = tokio::io::duplex(UNDERWAY);
        tokio::spawn(serve(table, theirs));
        ours
    }))
}

/// Answers the requests of one connection until one side ends it, and ends leases and waits in time.
async fn serve(table: Arc<Table>, stream: DuplexStream) {
    let (reader, mut writer) = split(stream);
    let (sender, mut replies) = unbounded_channel();
    let number = table.attach(sender);
    let reading = async {
        let mut reader = BufReader::new(reader);
        while let Some(words) = request(&mut reader).await {
            table.answer(number, words);
        }
    };
    let writing = async {
        while let Some(reply) = replies.recv().await {
            let bytes = reply.map_or_else(|text| format!("-{text}\r\n").into_bytes(), |reply| packed(&reply));
            if writer.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
        () = table.keep_time() => {}
    }
    table.detach(number);
}

/// Returns the words of the next request.
async fn request(reader: &mut BufReader<ReadHalf<DuplexStream>>) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    for _ in 0..length(reader).await? {
        let mut word = vec![0; length(reader).await? + 2];
        reader.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

/// Returns the number in a line, such as `*3` or `$4`.
async fn length(reader: &mut BufReader<ReadHalf<DuplexStream>>) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

/// Encodes a reply in RESP3.
fn packed(value: &Value) -> Vec<u8> {
    let all = |sign: char, count: usize, values: Vec<&Value>| {
        [format!("{sign}{count}\r\n").into_bytes(), values.into_iter().flat_map(packed).collect()].concat()
    };
    match value {
        Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        Value::BulkString(bytes) => {
            [format!("${}\r\n", bytes.len()).as_bytes(), bytes, &b"\r\n"[..]].concat()
        }
        Value::Array(values) => all('*', values.len(), values.iter().collect()),
        Value::Map(fields) => {
            all('%', fields.len(), fields.iter().flat_map(|(name, value)| [name, value]).collect())
        }
        Value::Push { data, .. } => {
            let invalidate = Value::BulkString(b"invalidate".into());
            all('>', data.len() + 1, [&invalidate].into_iter().chain(data).collect())
        }
        Value::Okay => b"+OK\r\n".to_vec(),
        _ => b"_\r\n".to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;
    use tokio::sync::mpsc::unbounded_channel;

    use crate::table::Table;

    #[test]
    fn a_request_whose_place_a_newer_one_of_its_owner_takes_is_answered() {
        let table = Table::default();
        let ask = |words: &str| {
            let (replies, mut got) = unbounded_channel();
            let connection = table.attach(replies);
            table.answer(connection, words.split(' ').map(|word| word.as_bytes().to_vec()).collect());
            move || got.try_recv().ok()
        };
        let _holder = ask("LOCK.ACQUIRE k ben PX 60000");
        let blocks = "LOCK.ACQUIRE k ann PX 60000 BLOCK 60000";
        let (mut older, mut newer) = (ask(blocks), ask(blocks));
        assert!(matches!(older(), Some(Err(told)) if told.starts_with("UNBLOCKED ")));
        assert!(newer().is_none());
        table.lose(b"k");
        assert!(matches!(newer(), Some(Ok(Value::Int(_)))));
    }
}
