//! Returns the outcome of a step as text: one line for each part, with tabs between the words.

use super::host::Host;
use crate::engine::describe::{self, Value as Field};
use crate::lock::effect::Event;
use crate::sim::server::inside::{At, PartBuf, Published, Told, Value};
use crate::sim::server::sim::{Said, at, words};

/// The names that scripts use, and the databases.
pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "d", "x"];
pub(super) const DBS: [u32; 3] = [0, 1, 2];

/// The fields of INFO that are shown.
const FIELDS: [&str; 15] = [
    "role",
    "locks",
    "holds",
    "waiters",
    "grants",
    "contended_grants",
    "releases",
    "expirations",
    "broken",
    "timeouts",
    "deadlocks",
    "fenced",
    "wait_ms_histogram",
    "hold_ms_histogram",
    "last_token",
];

/// Concatenates the parts of a reply.
pub(super) fn flat(parts: &[PartBuf]) -> String {
    parts.iter().map(part).collect::<Vec<_>>().join("\t")
}

fn part(part: &PartBuf) -> String {
    match part {
        PartBuf::Error(text) => format!("-{text}"),
        PartBuf::Integer(number) => format!(":{number}"),
        PartBuf::Null => "_".to_owned(),
        PartBuf::Ok => "$OK".to_owned(),
        PartBuf::Bool(truth) => format!("#{truth}"),
        PartBuf::Bytes(bytes) => format!("${}", String::from_utf8_lossy(bytes)),
        PartBuf::Array(len) => format!("*{len}"),
        PartBuf::Map(len) => format!("%{len}"),
    }
}

fn joined(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join("\t")
}

const fn name_of(event: Event) -> &'static str {
    match event {
        Event::Acquired => "lock.acquired",
        Event::Released => "lock.released",
        Event::Expired => "lock.expired",
        Event::Broken => "lock.broken",
    }
}

fn heard((db, name): &At, event: &str) -> String {
    format!("event\t{db}\t{}\t{event}", String::from_utf8_lossy(name))
}

/// Returns the output of one step of the server to files and replicas: several commands come within MULTI and EXEC.
pub(super) fn filed(kind: &str, told: &[Told]) -> Vec<String> {
    let lines = told.iter().map(|told| format!("{kind}\t{}\t{}", told.db, joined(&told.words)));
    if told.len() < 2 {
        return lines.collect();
    }
    let (first, last) = (format!("{kind}\t-\tMULTI"), format!("{kind}\t-\tEXEC"));
    std::iter::once(first).chain(lines).chain(std::iter::once(last)).collect()
}

impl Host {
    /// Returns the outcome of the last step, and the state after it.
    pub(super) fn tells(&mut self) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.lines);
        let mut inside = self.sim.inside.borrow_mut();
        let published = std::mem::take(&mut inside.published);
        let changed = std::mem::take(&mut inside.changed);
        inside.log.clear();
        drop(inside);
        lines.extend(published.iter().filter_map(|published| match published {
            Published::Lock(at, event) => Some(heard(at, name_of(*event))),
            Published::Key(at, event) => Some(heard(at, event)),
            Published::All(_) => None,
        }));
        let name = |name: &Option<Vec<u8>>| {
            name.as_ref().map_or("*".into(), |name| String::from_utf8_lossy(name).into_owned())
        };
        lines.extend(changed.iter().map(|changed| format!("changed\t{}", name(changed))));
        let is_cluster = self.sim.flags.get().is_cluster;
        for db in &DBS[..if is_cluster { 1 } else { DBS.len() }] {
            lines.extend(NAMES.iter().map(|name| self.lock_key(&at(*db, name))));
        }
        lines.extend(self.counts());
        lines
    }

    fn lock_key(&mut self, at: &At) -> String {
        let name = String::from_utf8_lossy(&at.1).into_owned();
        if let Some(code) = self.redirects(at) {
            return format!("place\t{}\t{name}\t-{code}\t-1\t_", at.0);
        }
        let info = self.sim.asks(0, at.0, words(&format!("LOCK.INFO {name} FULL")));
        let Said::Now(info) = info else { panic!("{info:?}") };
        let inside = self.sim.inside.borrow();
        let now_ms = inside.wall_us / 1000;
        let entry = inside.keys.get(at).filter(|entry| !self.sim.hides(&inside, at, entry));
        let (kind, ttl) = match entry {
            None => ("none", "-2".to_owned()),
            Some(entry) => {
                let ttl = entry.until_ms.map_or("-1".to_owned(), |until| (until - now_ms).to_string());
                (if matches!(entry.value, Value::Lock(_)) { "redislock" } else { "string" }, ttl)
            }
        };
        format!("place\t{}\t{name}\t{kind}\t{ttl}\t{}", at.0, flat(&info))
    }

    fn counts(&self) -> Vec<String> {
        let told = |(name, value): (&str, Field)| match value {
            Field::Number(number) => format!("info\t{name}\t{number}"),
            Field::Text(text) => format!("info\t{name}\t{text}"),
        };
        let fields = describe::fields(&self.sim).into_iter();
        fields.filter(|(name, _)| FIELDS.contains(name)).map(told).collect()
    }
}
