//! The server's own commands on keys, simulated: their replies and notifications, in order.

use crate::engine::{legacy, server_events, type_callbacks};
use crate::lock::codec::{SavedLock, read, write};
use crate::lock::effect::LockId;
use crate::lock::types::LockKey;
use crate::sim::server::inside::{At, Entry, PartBuf, Published, Value, place};
use crate::sim::server::sim::Sim;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const SAME: &str = "ERR source and destination objects are the same";

pub(crate) fn number<N: std::str::FromStr>(word: &[u8]) -> N {
    let number = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{word:?} is no number"))
}

/// Returns the output of DUMP for a lock, as text: its blocks.
pub(crate) fn as_text(name: &[u8], saved: Option<&SavedLock>) -> String {
    let mut blocks: Vec<String> = Vec::new();
    write(name, saved, |block| {
        blocks.push(block.iter().fold("x".to_owned(), |text, byte| format!("{text}{byte:02x}")))
    });
    blocks.join(",")
}

/// Returns true if a command may change keys: a replica refuses it, and a paused server delays it.
pub(crate) fn may_write(name: &[u8]) -> bool {
    let readers: [&[u8]; 7] =
        [b"GET", b"EXISTS", b"DUMP", b"LOCK.FENCE", b"LOCK.INFO", b"LOCK.HELDBY", b"CLIENT"];
    !readers.contains(&name)
}

impl Sim {
    /// Publishes the server's change of a key: to subscribers, and to the module if it subscribes.
    pub(crate) fn tell_of_key(&self, at: &At, event: &'static str) {
        self.inside.borrow_mut().published.push(Published::Key(at.clone(), event));
        if self.hears_keys.get() {
            let db = self.db.replace(at.0);
            legacy::key_changed(self, &at.1);
            self.db.set(db);
        }
    }

    /// Notifies clients that all keys of a database, or of all of them, are removed.
    pub(crate) fn signal_all(&self, db: Option<u32>) {
        self.touch_all(db);
        self.inside.borrow_mut().changed.insert(None);
    }

    /// Notifies clients that watch an existing key that all keys of a database, or of all of them, are removed.
    pub(crate) fn touch_all(&self, db: Option<u32>) {
        let mut inside = self.inside.borrow_mut();
        let keys: Vec<At> = inside.keys.keys().filter(|at| db.is_none_or(|db| db == at.0)).cloned().collect();
        inside.touch(|watched| keys.contains(watched));
    }
}

impl Sim {
    /// Runs a command that is not the module's.
    pub(crate) fn does_to_keys(&mut self, db: u32, args: &[&[u8]]) {
        let key = |name: &[u8]| place(db, name);
        match *args {
            [b"GET", name] => self.get(&key(name)),
            [b"EXISTS", name] => self.says(PartBuf::Integer(u64::from(self.has(&key(name))))),
            [b"DUMP", name] => {
                let dump = self.dump(&key(name));
                self.says(dump.map_or(PartBuf::Null, |text| PartBuf::Bytes(text.into_bytes())));
            }
            [b"DEL" | b"UNLINK", ref names @ ..] => self.delete(db, names, args),
            [b"SET", name, value] => self.set(&key(name), value, None),
            [b"SET", name, value, b"PX", ms] => {
                self.set(&key(name), value, Some(self.wall_ms() + number::<u64>(ms)))
            }
            [b"SET", name, _, b"NX", ref how @ ..] if self.has(&key(name)) => {
                assert!(matches!(how, [b"PX", _]), "{args:?}");
                self.says(PartBuf::Null);
            }
            [b"SET", name, value, b"NX", b"PX", ms] => {
                self.set(&key(name), value, Some(self.wall_ms() + number::<u64>(ms)));
            }
            [b"SET", name, value, b"PXAT", ms] => self.set(&key(name), value, Some(number(ms))),
            [b"RENAME", from, to] => self.rename(&key(from), &key(to)),
            [b"MOVE", name, to] => self.moves(&key(name), number(to)),
            [b"COPY", from, to, ref how @ ..] => self.copy(&key(from), &key(to), !how.is_empty()),
            [b"PEXPIRE", name, ms] => self.live_until(&key(name), self.wall_ms() + number::<u64>(ms)),
            [b"PEXPIREAT", name, ms] => self.live_until(&key(name), number(ms)),
            [b"PERSIST", name] => self.persist(&key(name)),
            [b"RESTORE", name, payload] => self.restore(&key(name), payload, None, true, args),
            [b"RESTORE", name, ttl, payload, ref how @ ..] => {
                let has = |word: &[u8]| how.contains(&word);
                let begins_ms = if has(b"ABSTTL") { 0 } else { self.wall_ms() };
                let until_ms = Some(number(ttl)).filter(|&ms: &u64| ms > 0).map(|ms| begins_ms + ms);
                self.restore(&key(name), payload, until_ms, has(b"REPLACE"), args);
            }
            [b"FLUSHALL", ref how @ ..] => self.flush(None, how, args),
            [b"FLUSHDB", ref how @ ..] => self.flush(Some(db), how, args),
            [b"SWAPDB", a, b] => self.swap(number(a), number(b)),
            _ => panic!("the simulated server does not know {args:?}"),
        }
    }

    pub(crate) fn has(&self, at: &At) -> bool {
        self.entry(at).is_some()
    }

    fn wall_ms(&self) -> u64 {
        self.inside.borrow().wall_us / 1000
    }

    fn entry(&self, at: &At) -> Option<Entry> {
        let inside = self.inside.borrow();
        inside.keys.get(at).filter(|entry| !self.hides(&inside, at, entry)).cloned()
    }

    fn says(&self, part: PartBuf) {
        self.inside.borrow_mut().reply.push(part);
    }

    /// Notes the keys that the running command changed, in this database.
    fn wrote(&self, args: &[&[u8]], changes: &[(&At, &'static str)], reply: PartBuf) {
        for (at, event) in changes {
            self.signal(at);
            self.tell_of_key(at, event);
        }
        self.propagate(self.db.get(), args.iter().map(|word| word.to_vec()).collect());
        self.says(reply);
    }

    fn get(&self, at: &At) {
        self.says(match self.entry(at).map(|entry| entry.value) {
            None => PartBuf::Null,
            Some(Value::Text(text)) => PartBuf::Bytes(text),
            Some(Value::Lock(_)) => PartBuf::Error(WRONG_TYPE.to_owned()),
        });
    }

    fn delete(&self, db: u32, names: &[&[u8]], args: &[&[u8]]) {
        let mut gone = Vec::new();
        for name in names {
            let at = place(db, name);
            if self.take(&at).is_some() {
                self.signal(&at);
                self.tell_of_key(&at, "del");
                gone.push(name);
            }
        }
        if gone.is_empty() {
            self.says(PartBuf::Integer(0));
        } else {
            self.wrote(args, &[], PartBuf::Integer(gone.len() as u64));
        }
    }

    fn set(&self, at: &At, value: &[u8], until_ms: Option<u64>) {
        self.put(at, Entry { value: Value::Text(value.to_vec()), until_ms });
        match until_ms {
            None => self.wrote(&[b"SET", &at.1, value], &[(at, "set")], PartBuf::Ok),
            Some(until) => {
                let until = until.to_string();
                self.wrote(
                    &[b"SET", &at.1, value, b"PXAT", until.as_bytes()],
                    &[(at, "set"), (at, "expire")],
                    PartBuf::Ok,
                );
            }
        }
    }

    fn rename(&self, from: &At, to: &At) {
        let Some(entry) = self.entry(from) else {
            return self.says(PartBuf::Error("ERR no such key".to_owned()));
        };
        if from == to {
            return self.says(PartBuf::Ok);
        }
        self.carry_over(from, to, entry);
        self.wrote(&[b"RENAME", &from.1, &to.1], &[(from, "rename_from"), (to, "rename_to")], PartBuf::Ok);
    }

    /// Moves a value to a new name without freeing it.
    fn carry_over(&self, from: &At, to: &At, entry: Entry) {
        self.put(to, entry.clone());
        if let Value::Lock(lock) = entry.value {
            type_callbacks::unlinked(self, lock);
        }
        self.inside.borrow_mut().keys.remove(from);
    }

    fn moves(&self, from: &At, db: u32) {
        let to = (db, from.1.clone());
        if *from == to {
            return self.says(PartBuf::Error(SAME.to_owned()));
        }
        match self.entry(from).filter(|_| !self.has(&to)) {
            None => self.says(PartBuf::Integer(0)),
            Some(entry) => {
                self.carry_over(from, &to, entry);
                let number = db.to_string();
                self.wrote(
                    &[b"MOVE", &from.1, number.as_bytes()],
                    &[(from, "move_from"), (&to, "move_to")],
                    PartBuf::Integer(1),
                );
            }
        }
    }

    fn copy(&self, from: &At, to: &At, replaces: bool) {
        if from == to {
            return self.says(PartBuf::Error(SAME.to_owned()));
        }
        match self.entry(from).filter(|_| replaces || !self.has(to)) {
            None => self.says(PartBuf::Integer(0)),
            // Two locks never share a token (CONTRACT 5).
            Some(Entry { value: Value::Lock(_), .. }) => {
                self.says(PartBuf::Error("ERR not supported for this module key".to_owned()));
            }
            Some(entry) => {
                self.put(to, entry);
                let args: [&[u8]; 4] = [b"COPY", &from.1, &to.1, b"REPLACE"];
                self.wrote(&args[..if replaces { 4 } else { 3 }], &[(to, "copy_to")], PartBuf::Integer(1));
            }
        }
    }

    fn live_until(&self, at: &At, until_ms: u64) {
        if !self.has(at) {
            return self.says(PartBuf::Integer(0));
        }
        if until_ms <= self.wall_ms() && self.flags.get().decides() {
            self.take(at);
            return self.wrote(&[b"DEL", &at.1], &[(at, "del")], PartBuf::Integer(1));
        }
        self.inside.borrow_mut().keys.get_mut(at).expect("it is there").until_ms = Some(until_ms);
        let until_ms = until_ms.to_string();
        self.wrote(&[b"PEXPIREAT", &at.1, until_ms.as_bytes()], &[(at, "expire")], PartBuf::Integer(1));
    }

    fn persist(&self, at: &At) {
        let until_ms = self.inside.borrow_mut().keys.get_mut(at).and_then(|entry| entry.until_ms.take());
        match until_ms {
            None => self.says(PartBuf::Integer(0)),
            Some(_) => self.wrote(&[b"PERSIST", &at.1], &[(at, "persist")], PartBuf::Integer(1)),
        }
    }

    /// Returns the output of DUMP, as text.
    pub(crate) fn dump(&self, at: &At) -> Option<String> {
        let lock = match self.entry(at)?.value {
            Value::Lock(lock) => lock,
            Value::Text(text) => return Some(format!("text={}", String::from_utf8_lossy(&text))),
        };
        Some(as_text(&at.1, type_callbacks::saved(self, lock).as_ref()))
    }

    fn restore(&self, at: &At, payload: &[u8], until_ms: Option<u64>, replaces: bool, args: &[&[u8]]) {
        if !replaces && self.has(at) {
            return self.says(PartBuf::Error("BUSYKEY Target key name already exists.".to_owned()));
        }
        match self.read(at, std::str::from_utf8(payload).expect("a payload is text")) {
            Err(reason) => self.says(PartBuf::Error(reason.to_owned())),
            Ok(value) => {
                self.put(at, Entry { value, until_ms });
                let Some(until_ms) = until_ms else {
                    return self.wrote(args, &[(at, "restore")], PartBuf::Ok);
                };
                let (until_ms, mut args) = (until_ms.to_string(), args.to_vec());
                args[2] = until_ms.as_bytes();
                if !args.contains(&&b"ABSTTL"[..]) {
                    args.push(b"ABSTTL");
                }
                self.wrote(&args, &[(at, "restore")], PartBuf::Ok);
            }
        }
    }

    fn read(&self, at: &At, payload: &str) -> Result<Value, &'static str> {
        if let Some(text) = payload.strip_prefix("text=") {
            return Ok(Value::Text(text.as_bytes().to_vec()));
        }
        let mut blocks = payload.split(',').map(|block| {
            let block = block.strip_prefix('x').expect("a block");
            let digits = |at| block.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            (0..block.len()).step_by(2).map(|at| digits(at).expect("a byte")).collect::<Vec<_>>()
        });
        let saved = read(&at.1, || blocks.next())?;
        let lock_key = LockKey { db: at.0, name: &at.1 };
        type_callbacks::load(self, lock_key, saved.as_ref()).map(Value::Lock)
    }

    /// Empties a database, or all of them. SYNC frees the values at once; otherwise a thread does.
    fn flush(&mut self, db: Option<u32>, how: &[&[u8]], args: &[&[u8]]) {
        server_events::flushed(self, db);
        self.signal_all(db);
        let mut inside = self.inside.borrow_mut();
        let keys = std::mem::take(&mut inside.keys);
        let (gone, kept): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|(at, _)| db.is_none_or(|db| db == at.0));
        inside.keys = kept.into_iter().collect();
        inside.published.push(Published::All("flush"));
        drop(inside);
        let gone = gone.into_iter().map(|(_, entry)| entry.value);
        if how == [b"SYNC"] {
            let locks: Vec<LockId> = gone.filter_map(|value| value.lock()).collect();
            locks.into_iter().for_each(|lock| type_callbacks::freed(self, lock));
        } else {
            self.leave_to_thread(gone);
        }
        self.wrote(args, &[], PartBuf::Ok);
    }

    fn swap(&self, a: u32, b: u32) {
        let swapped = |db: u32| match db {
            _ if db == a => b,
            _ if db == b => a,
            _ => db,
        };
        self.touch_all(Some(a));
        self.touch_all(Some(b));
        let mut inside = self.inside.borrow_mut();
        let keys = std::mem::take(&mut inside.keys);
        inside.keys = keys.into_iter().map(|((db, name), entry)| ((swapped(db), name), entry)).collect();
        inside.published.push(Published::All("swap"));
        drop(inside);
        self.touch_all(Some(a));
        self.touch_all(Some(b));
        let words = [b"SWAPDB".to_vec(), a.to_string().into_bytes(), b.to_string().into_bytes()];
        self.propagate(self.db.get(), words.into());
        self.says(PartBuf::Ok);
        server_events::swapped(self, a, b);
    }
}
