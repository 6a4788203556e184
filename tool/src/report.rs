//! The tool's messages on standard error: sentences, or events as lines of JSON.
//!
//! A separate thread writes them. Without a reader, messages that do not fit are dropped: a renewal never
//! waits for a reader.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

/// The number of lines that may wait for the reader.
const WAITING: usize = 64;
/// The longest wait of a flush.
const FAREWELL: Duration = Duration::from_millis(500);

/// The amount of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Notice,
    Detail,
}

/// The form of the output.
#[derive(Clone, Copy)]
pub struct Voice {
    pub level: Level,
    pub is_json: bool,
}

/// What happened.
#[derive(Default)]
pub struct Event<'a> {
    pub event: &'a str,
    pub lock: &'a str,
    pub token: Option<u64>,
    pub owner: Option<&'a str>,
    pub reason: Option<String>,
    pub exit: Option<i32>,
}

impl Event<'_> {
    fn to_json(&self) -> String {
        let mut fields = Map::new();
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        fields.insert("ts".to_owned(), json!(now.to_string()));
        fields.insert("event".to_owned(), json!(self.event));
        fields.insert("lock".to_owned(), json!(self.lock));
        let optional = [
            ("token", self.token.map(Value::from)),
            ("owner", self.owner.map(Value::from)),
            ("reason", self.reason.as_deref().map(Value::from)),
            ("exit", self.exit.map(Value::from)),
        ];
        fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Value::Object(fields).to_string()
    }
}

/// A message to the thread.
enum Message {
    Line(String),
    /// All before is written.
    Written(SyncSender<()>),
}

/// Where lines go.
pub struct Reporter {
    messages: SyncSender<Message>,
    voice: Voice,
}

impl Reporter {
    /// Starts the thread.
    pub fn start(voice: Voice) -> std::io::Result<Self> {
        let (messages, taken): (_, Receiver<Message>) = sync_channel(WAITING);
        thread::Builder::new().name("writer".to_owned()).spawn(move || {
            for message in taken {
                // The receiver may have ended.
                match message {
                    Message::Line(line) => drop(std::io::stderr().write_all(line.as_bytes())),
                    Message::Written(tell) => drop(tell.send(())),
                }
            }
        })?;
        Ok(Self { messages, voice })
    }

    /// Says that something happened, in these words or as JSON.
    pub fn say(&self, level: Level, event: &Event<'_>, words: &str) {
        if level > self.voice.level {
            return;
        }
        let line = if self.voice.is_json { event.to_json() } else { format!("redislock: {words}") };
        drop(self.messages.try_send(Message::Line(line + "\n")));
    }

    /// Waits until all lines are written, or for a while.
    pub fn flush(&self) {
        let (tell, written) = sync_channel(1);
        if self.messages.try_send(Message::Written(tell)).is_ok() {
            written.recv_timeout(FAREWELL).unwrap_or_default();
        }
    }
}
