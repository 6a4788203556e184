//! The servers' own data.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redislock_client::redis::{ConnectionInfo, Value};

use crate::exit::Failure;
use crate::nodes::{Member, Node, Refusal, members};
use crate::target::Place;

/// The number of round trips to measure.
const PINGS: usize = 100;
/// The number of connections to compare.
const CONNECTIONS: usize = 4;

/// The data of one server. A part that it refused to show is the text of the refusal.
pub struct Facts {
    pub address: String,
    pub is_primary: bool,
    pub node: Node,
    pub info: Result<HashMap<String, String>, String>,
    pub config: Result<HashMap<String, String>, String>,
    /// The different `run_id`s that several connections to this address have shown.
    pub run_ids: Vec<String>,
    /// Why one of these connections has shown none.
    pub unknown_run_id: Option<String>,
    /// The slowest of a hundred round trips, but one.
    pub round_trip: Duration,
    /// By how much its wall clock is ahead of this machine's, in milliseconds.
    pub clock_ahead_ms: Result<i128, String>,
}

impl Facts {
    /// A field of INFO.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.info.as_ref().ok()?.get(name).map(String::as_str)
    }

    /// A number in INFO; 0 where it is missing.
    pub fn count(&self, name: &str) -> u64 {
        self.field(name).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// A setting; `None` also if the user may not read it.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.config.as_ref().ok()?.get(name).map(String::as_str)
    }

    /// The names of the module's settings: none if the module is missing, or the user may not read them.
    pub fn module_settings(&self) -> impl Iterator<Item = &str> {
        let names = self.config.iter().flat_map(HashMap::keys).map(String::as_str);
        names.filter(|name| name.starts_with("redislock."))
    }

    /// A setting that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }
}

/// All that is known.
pub struct Known {
    pub nodes: Vec<Facts>,
    /// Nodes that gave no answer, and why.
    pub silent: Vec<(String, String)>,
    /// Sentinel's down-after, in milliseconds; within, `None` if no sentinel shows it. `None` without Sentinel.
    pub down_after_ms: Option<Option<u64>>,
}

/// Asks every node. An error if none is known.
pub fn gather(place: &Place) -> Result<Known, Failure> {
    let (mut nodes, mut silent) = (Vec::new(), Vec::new());
    for Member { info, is_primary } in members(place)? {
        match facts_of(&info, is_primary) {
            Ok(facts) => nodes.push(facts),
            Err(refusal) => silent.push((info.addr().to_string(), Failure::from(refusal).message)),
        }
    }
    Ok(Known { nodes, silent, down_after_ms: down_after(place) })
}

fn facts_of(at: &ConnectionInfo, is_primary: bool) -> Result<Facts, Refusal> {
    let mut node = Node::open(at)?;
    let info = reply(node.text(&["INFO", "everything"]))?.map(|text| fields(&text));
    let config = reply(node.words(&["CONFIG", "GET", "*"]))?.map(settings);
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let began = Instant::now();
        node.words(&["PING"])?;
        took.push(began.elapsed());
    }
    took.sort();
    let clock_ahead_ms = clock_ahead(&mut node);
    let (run_ids, unknown_run_id) = run_ids(at, info.as_ref().ok());
    let round_trip = took[PINGS - 2];
    let address = node.address.clone();
    Ok(Facts { address, is_primary, node, info, config, run_ids, unknown_run_id, round_trip, clock_ahead_ms })
}

/// Tells what the server refused from what broke the connection.
fn reply<T>(result: Result<T, Refusal>) -> Result<Result<T, String>, Refusal> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Refusal::Reply(text)) => Ok(Err(text)),
        Err(broken) => Err(broken),
    }
}

fn fields(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}

fn settings(value: Value) -> HashMap<String, String> {
    let words = match value {
        Value::Array(words) => words,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => Vec::new(),
    };
    let words: Vec<String> = words
        .into_iter()
        .map(|word| match word {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Value::SimpleString(text) => text,
            _ => String::new(),
        })
        .collect();
    words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn clock_ahead(node: &mut Node) -> Result<i128, String> {
    let time = node.words(&["TIME"]).map_err(|why| why.text().to_owned())?;
    ahead_of_us(&time).ok_or_else(|| format!("it answered {time:?}"))
}

fn ahead_of_us(time: &Value) -> Option<i128> {
    let Value::Array(time) = time else { return None };
    let number = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).parse::<i128>().ok(),
        _ => None,
    };
    let [seconds, microseconds] = &time[..] else { return None };
    let theirs = number(seconds)? * 1000 + number(microseconds)? / 1000;
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis();
    Some(theirs - i128::try_from(ours).ok()?)
}

fn run_ids(at: &ConnectionInfo, info: Option<&HashMap<String, String>>) -> (Vec<String>, Option<String>) {
    let mut found: Vec<String> = info.and_then(|info| info.get("run_id")).cloned().into_iter().collect();
    let mut unknown = None;
    for _ in 1..CONNECTIONS {
        match Node::open(at).and_then(|mut node| node.text(&["INFO", "server"])) {
            Ok(text) => found.extend(fields(&text).remove("run_id")),
            Err(why) => unknown = Some(why.text().to_owned()),
        }
    }
    found.sort();
    found.dedup();
    (found, unknown)
}

/// Returns the value of the first sentinel that answers.
fn down_after(place: &Place) -> Option<Option<u64>> {
    let Place::Sentinel { sentinels, service, .. } = place else { return None };
    Some(sentinels.iter().find_map(|sentinel| {
        let reply = Node::open(sentinel).ok()?.words(&["SENTINEL", "MASTER", service]).ok()?;
        settings(reply).get("down-after-milliseconds")?.parse().ok()
    }))
}
