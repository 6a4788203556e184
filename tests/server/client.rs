//! A connection, and the lock commands as a test wants to say them.

use std::time::Duration;

use redis::{Cmd, Connection, RedisError, Value};

use super::until::{await_that, patient};

/// No command may leave the caller hanging, not even a blocking one of a server that has lost its mind.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// The answer to a command: a value, or the text of the error, code first.
pub type Answer = Result<Value, String>;

/// The code given to an answer that never came because the connection ended.
pub const CLOSED: &str = "CLOSED";

pub struct Client {
    connection: Connection,
}

/// The holder of a lock, as `LOCK.INFO` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub owner: String,
    pub token: i64,
    pub lease_left_ms: i64,
}

impl Client {
    pub fn connect(port: u16) -> Result<Client, RedisError> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?;
        let connection = client.get_connection()?;
        connection.set_read_timeout(Some(patient(READ_LIMIT)))?;
        Ok(Client { connection })
    }

    /// Runs a command whose words have no blanks in them.
    pub fn ask(&mut self, line: &str) -> Answer {
        self.ask_command(&command(line))
    }

    pub fn ask_command(&mut self, command: &Cmd) -> Answer {
        command.query::<Value>(&mut self.connection).map_err(|error| told(&error))
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn call(&mut self, line: &str) -> Value {
        match self.ask(line) {
            Ok(value) => value,
            Err(error) => panic!("{line}: {error}"),
        }
    }

    #[track_caller]
    pub fn call_command(&mut self, command: &Cmd) -> Value {
        self.ask_command(command).unwrap()
    }

    #[track_caller]
    pub fn run_pipe(&mut self, pipe: &redis::Pipeline) -> Vec<Value> {
        pipe.query(&mut self.connection).unwrap()
    }

    /// Runs a command that must be refused, and gives the reason.
    #[track_caller]
    pub fn refused(&mut self, line: &str) -> String {
        match self.ask(line) {
            Ok(value) => panic!("{line}: was answered {value:?}"),
            Err(error) => error,
        }
    }

    #[track_caller]
    pub fn int(&mut self, line: &str) -> i64 {
        let value = self.call(line);
        as_int(&value).unwrap_or_else(|| panic!("{line}: {value:?}"))
    }

    #[track_caller]
    pub fn text(&mut self, line: &str) -> String {
        let value = self.call(line);
        as_text(&value).unwrap_or_else(|| panic!("{line}: {value:?}"))
    }

    /// Sends a command without waiting for the reply.
    pub fn send(&mut self, line: &str) {
        self.connection.send_packed_command(&command(line).get_packed_command()).unwrap();
    }

    pub fn select(&mut self, db: u32) {
        self.call(&format!("SELECT {db}"));
    }

    pub fn id(&mut self) -> i64 {
        self.int("CLIENT ID")
    }

    #[track_caller]
    pub fn try_acquire(&mut self, key: &str, owner: &str, lease_ms: u64) -> Option<i64> {
        as_int(&self.call(&format!("LOCK.ACQUIRE {key} {owner} PX {lease_ms}")))
    }

    /// Takes a lock that must be free. Gives the token.
    #[track_caller]
    pub fn acquire(&mut self, key: &str, owner: &str, lease_ms: u64) -> i64 {
        let token = self.try_acquire(key, owner, lease_ms);
        token.unwrap_or_else(|| panic!("{key} is not free for {owner}"))
    }

    #[track_caller]
    pub fn release(&mut self, key: &str, owner: &str) -> i64 {
        self.int(&format!("LOCK.RELEASE {key} {owner}"))
    }

    #[track_caller]
    pub fn renew(&mut self, key: &str, owner: &str, lease_ms: u64) -> i64 {
        self.int(&format!("LOCK.RENEW {key} {owner} PX {lease_ms}"))
    }

    #[track_caller]
    pub fn fence(&mut self, key: &str) -> Option<i64> {
        as_int(&self.call(&format!("LOCK.FENCE {key}")))
    }

    /// The holder of the lock, if it is held.
    #[track_caller]
    pub fn hold(&mut self, key: &str) -> Option<Hold> {
        let info = self.call(&format!("LOCK.INFO {key}"));
        hold_of(&info)
    }

    #[track_caller]
    pub fn owner(&mut self, key: &str) -> Option<String> {
        self.hold(key).map(|hold| hold.owner)
    }

    #[track_caller]
    pub fn waiters(&mut self, key: &str) -> i64 {
        let info = self.call(&format!("LOCK.INFO {key}"));
        field(&info, "waiters").and_then(|count| as_int(&count)).unwrap_or(0)
    }

    #[track_caller]
    pub fn await_waiters(&mut self, key: &str, count: i64) {
        await_that(&format!("{count} wait for {key}"), || self.waiters(key) == count);
    }

    /// A field of the server's `INFO`.
    #[track_caller]
    pub fn info(&mut self, section: &str, name: &str) -> String {
        let text = self.text(&format!("INFO {section}"));
        let start = format!("{name}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("INFO {section} has no {name}:\n{text}")).trim().to_string()
    }
}

fn command(line: &str) -> Cmd {
    let mut words = line.split_ascii_whitespace();
    let mut command = redis::cmd(words.next().expect("a command"));
    for word in words {
        // For arguments that are empty, which no word is.
        command.arg(if word == "\"\"" { "" } else { word });
    }
    command
}

fn told(error: &RedisError) -> String {
    if error.is_io_error() {
        return format!("{CLOSED} {error}");
    }
    match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
        None => error.to_string(),
    }
}

pub fn as_int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(_) | Value::SimpleString(_) => as_text(value)?.parse().ok(),
        _ => None,
    }
}

pub fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Okay => Some("OK".into()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

pub fn as_list(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) => values,
        _ => &[],
    }
}

/// A field of a map that came as a flat array.
pub fn field(map: &Value, name: &str) -> Option<Value> {
    let pairs = as_list(map).chunks_exact(2);
    pairs.clone().find(|pair| as_text(&pair[0]).as_deref() == Some(name)).map(|pair| pair[1].clone())
}

fn hold_of(info: &Value) -> Option<Hold> {
    let holders = field(info, "holders")?;
    let holder = as_list(&holders).first()?;
    let number = |name| as_int(&field(holder, name)?);
    Some(Hold {
        owner: as_text(&field(holder, "owner")?)?,
        token: number("token")?,
        lease_left_ms: number("lease-left-ms")?,
    })
}
