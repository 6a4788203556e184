//! Stories that a reader can check: `testdata/*.txt`, one story a file.
//!
//! A line that begins with `#` is narration, and one that begins with `>` is an input. The lines under it are its
//! outcome: the reply, the changes of keys, the records for replicas and files, events, answers to waiters.
//! `UPDATE_SCENARIOS=1 cargo test scenario` rewrites the outputs; read the difference before you commit it. The
//! [judge](crate::sim::checkers::judge) and the [readers](crate::sim::single::reader) check every story.
//!
//! ```text
//! > acquire KEY OWNER LEASE-MS [shared|limit N] [reentrant] [ephemeral MS] [keepalive] [wait|wait MS|queue MS]
//! >         [on CONNECTION] [minted]
//! > acquire-all KEY,KEY OWNER LEASE-MS [shared] [wait|wait MS] [on CONNECTION] [minted]
//! > release KEY OWNER [token T]   > renew KEY OWNER LEASE-MS [token T|raise T] [on CONNECTION]   > fence KEY
//! > del KEY   > set KEY   > rename KEY KEY   > move KEY DB   > swap DB DB   > flush [DB]   > flush-lazily
//! > expire KEY
//! > dump KEY   > restore KEY   > restore-too-late KEY
//! > payload NAME OWNER TOKEN LEFT-MS [shared|limit N] [reentrant] [ephemeral MS] [keepalive] [beside OWNER]
//! > close CONNECTION   > unblock CONNECTION   > forbid CONNECTION   > allow CONNECTION
//! > pass MS   > wall +MS   > wall -MS   > pump   > free
//! > limits PER-LOCK TOTAL [HOLDERS]   > writes allowed|refused|paused   > elsewhere KEY   > back KEY
//! > replica   > replica-ahead NUMBER   > file   > file-of-replica   > promote NUMBER
//! > quarantine MS [start]   > confirm on|off   > confirmed   > fail KEY TOKEN   > show   > count
//! ```
//!
//! A key of another database than 0 is written `1:KEY`. A connection is named after its owner unless the input says
//! otherwise. A second one is `OWNER-2`: a server does not read from one that is blocked. `fail` unblocks the
//! connections that wait for this hold to be confirmed, and the pump runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::lock::codec::SavedLock;
use crate::lock::table::Limits;
use crate::lock::types::Token;
use crate::sim::checkers::judge::Judge;
use crate::sim::single::input::{How, InFlight, Input, Outcome, Reply};
use crate::sim::single::server::{Key, Lazy, Name};
use crate::sim::single::world::World;
use crate::sim::stories::wording::{Words, answered, awaited, held, published, stands, told, waits};

/// The wall clock at the start of a story, in microseconds: it makes tokens readable.
const BEGIN_US: u64 = 1_000_000;

struct Story {
    world: World,
    judge: Judge,
    /// Connections by number.
    connections: Vec<String>,
}

impl Story {
    fn new() -> Self {
        Self { world: World::new(10_000_000, BEGIN_US), judge: Judge::default(), connections: Vec::new() }
    }

    fn connection(&mut self, name: &str) -> u64 {
        let known = self.connections.iter().position(|other| other == name);
        let number = known.unwrap_or_else(|| {
            self.connections.push(name.to_owned());
            self.connections.len() - 1
        });
        number as u64
    }

    /// Runs a line, and returns its outcome, a line each.
    fn tell(&mut self, line: &str) -> Result<String, String> {
        let mut words = Words::new(line);
        let mut text = String::new();
        match words.next()? {
            "show" => self.show(&mut text),
            "count" => self.count(&mut text),
            "pass" => {
                let us = words.number()? * 1000;
                self.step(&Input::Pass(us), &mut text)?;
                let wall_us = self.world.server.now.wall_us + us;
                self.step(&Input::Wall(wall_us), &mut text)?;
            }
            "fail" => {
                let (at, token) = (words.at()?, words.number()?);
                let is_it = |hold: &InFlight| (hold.at, hold.token.get()) == (at, token);
                let waiting =
                    self.world.confirming().into_iter().filter(|(_, holds)| holds.iter().any(is_it));
                let clients: Vec<u64> = waiting.map(|(client, _)| client).collect();
                if clients.is_empty() {
                    text.push_str("nobody waits for that\n");
                }
                for client in clients {
                    self.step(&Input::Unblock(client), &mut text)?;
                }
                self.step(&Input::Pump, &mut text)?;
            }
            verb => {
                let input = self.input(verb, &mut words)?;
                self.step(&input, &mut text)?;
            }
        }
        words.end()?;
        Ok(text)
    }

    fn step(&mut self, input: &Input, text: &mut String) -> Result<(), String> {
        let out = self.world.step(input)?;
        self.world.catch_up()?;
        self.judge.judge(input, &out, &self.world)?;
        self.world.check()?;
        self.print(&out, text);
        Ok(())
    }

    fn input(&mut self, verb: &str, words: &mut Words<'_>) -> Result<Input, String> {
        Ok(match verb {
            "acquire" => return self.acquire(words),
            "acquire-all" => return self.acquire_all(words),
            "release" => Input::Release { at: words.at()?, owner: words.name()?, token: words.token()? },
            "renew" => {
                let (at, owner, lease_ms) = (words.at()?, words.name()?, words.number()?);
                let (token, raise) = (words.token()?, words.raise()?);
                let client = self.on(words, owner)?;
                Input::Renew { at, owner, lease_ms, token, raise, client }
            }
            "confirm" => Input::Confirm(words.is_on()?),
            "confirmed" => Input::Confirmed,
            "quarantine" => Input::Quarantine(words.number()?, words.is("start")),
            "fence" => Input::Fence(words.at()?),
            "del" => Input::Del(words.at()?),
            "set" => Input::Set(words.at()?),
            "rename" => Input::Rename(words.at()?, words.at()?),
            "move" => Input::Move(words.at()?, words.db()?),
            "swap" => Input::Swap(words.db()?, words.db()?),
            "flush" if words.is_at_end() => Input::Flush(None, Lazy::No),
            "flush" => Input::Flush(Some(words.db()?), Lazy::No),
            "flush-lazily" => Input::Flush(None, Lazy::Yes),
            "free" => Input::Free,
            "expire" => Input::Expire(words.at()?),
            "dump" => Input::Dump(words.at()?),
            "payload" => Input::Payload {
                name: words.name()?,
                owner: words.name()?,
                token: Token::new(words.number()?).ok_or("that is no token")?,
                left_ms: words.number()?,
                how: words.how()?,
                beside: if words.is("beside") { Some(words.name()?) } else { None },
            },
            "restore" => Input::Restore(words.at()?),
            "restore-too-late" => Input::RestoreTooLate(words.at()?),
            "close" => Input::Close(self.connection(words.next()?)),
            "unblock" => Input::Unblock(self.connection(words.next()?)),
            "forbid" => Input::Forbid(self.connection(words.next()?), true),
            "allow" => Input::Forbid(self.connection(words.next()?), false),
            "wall" => Input::Wall(words.wall_us(self.world.server.now.wall_us)?),
            "pump" => Input::Pump,
            "limits" => {
                let (per_lock, total) = (words.size()?, words.size()?);
                let holders = if words.is_at_end() { 10_000 } else { words.size()? };
                Input::Limits(Limits::of(per_lock, total, holders))
            }
            "writes" => Input::Writes(words.writes()?),
            "elsewhere" => Input::Elsewhere(words.at()?, true),
            "back" => Input::Elsewhere(words.at()?, false),
            "replica" => Input::NewReplica(0),
            "replica-ahead" => Input::NewReplica(words.number()?),
            "file" => Input::NewFile,
            "file-of-replica" => Input::NewFileOfReplica,
            "promote" => Input::Promote(words.size()?),
            _ => return Err(format!("nobody knows how to {verb}")),
        })
    }

    fn acquire(&mut self, words: &mut Words<'_>) -> Result<Input, String> {
        let (at, owner, lease_ms) = (words.at()?, words.name()?, words.number()?);
        let how = words.how()?;
        let wait = words.wait();
        let is_reservation = wait.is_none() && words.is("queue");
        let wait = if is_reservation { Some(words.number()?) } else { wait };
        let client = self.on(words, owner)?;
        let how = How { is_reservation, ..how };
        let minted = words.is("minted");
        let owner = if minted { self.world.next_owner() } else { owner };
        Ok(Input::Acquire { at, owner, lease_ms, wait, client, minted, how })
    }

    fn acquire_all(&mut self, words: &mut Words<'_>) -> Result<Input, String> {
        let (keys, owner, lease_ms) = (words.keys()?, words.name()?, words.number()?);
        let (is_shared, wait) = (words.is("shared"), words.wait());
        let client = self.on(words, owner)?;
        let minted = words.is("minted");
        let owner = if minted { self.world.next_owner() } else { owner };
        Ok(Input::AcquireMany { keys, owner, lease_ms, wait, client, minted, is_shared })
    }

    /// Returns the named connection, or the owner's first one that is not blocked.
    fn on(&mut self, words: &mut Words<'_>, owner: Name) -> Result<u64, String> {
        if words.is("on") {
            return Ok(self.connection(words.next()?));
        }
        let mut client = self.connection(owner);
        for number in 2.. {
            if !self.world.is_blocked(client) {
                break;
            }
            client = self.connection(&format!("{owner}-{number}"));
        }
        Ok(client)
    }

    fn print(&self, out: &Outcome, text: &mut String) {
        let mut line = |words: String| {
            text.push_str(&words);
            text.push('\n');
        };
        match &out.reply {
            Reply::None => {}
            Reply::Granted(token) => line(format!("granted {token}")),
            Reply::Busy => line("busy".to_owned()),
            Reply::Waiting(_) => line("waits".to_owned()),
            Reply::Refused(why) => line(format!("refused: {why:?}{}", waits(&out.cycle))),
            Reply::Bool(is_done) => line(if *is_done { "yes" } else { "no" }.to_owned()),
            Reply::Token(token) => line(token.map_or("nobody".to_owned(), |token| token.to_string())),
        }
        for (at, what) in &out.changes {
            line(format!("  key {at} is {what}"));
        }
        for fact in &out.facts {
            line(format!("  stream: {}", told(fact)));
        }
        for &(at, event) in &out.events {
            line(format!("  event: {} {at}", published(event)));
        }
        for (at, token) in &out.undelivered {
            line(format!("  nobody got {token} for {at}"));
        }
        for told in &out.answers {
            let client = self.connections.get(told.client as usize).map_or("?", String::as_str);
            line(format!("  {client}, waiting for {}: {}", awaited(told), answered(&told.answer)));
        }
    }

    /// Prints every key, every queue, every clock of tokens.
    fn show(&mut self, text: &mut String) {
        let server = &self.world.server;
        for (&at, key) in &server.keys {
            let _ = match (key, server.saved(at)) {
                (Key::Other, _) => writeln!(text, "{at}: something else"),
                (Key::Lock(_), None) => writeln!(text, "{at}: an empty lock"),
                (Key::Lock(_), Some(SavedLock { mode, holds })) => {
                    holds.iter().try_for_each(|hold| writeln!(text, "{at}: {}", held(mode, hold)))
                }
            };
            if server.mortal.contains(&at) {
                let _ = writeln!(text, "{at}: with a time to live");
            }
        }
        for (at, line) in &self.judge.queues {
            let line: Vec<_> = line.iter().map(stands).collect();
            let _ = writeln!(text, "{at}: in line {}", line.join(", "));
        }
        let (last, replicated) = server.tokens();
        let _ = writeln!(text, "tokens: last {last}, replicated {replicated}");
        for (number, reader) in self.world.readers.iter().enumerate() {
            let (last, replicated) = reader.server.tokens();
            let _ = writeln!(text, "reader {number}: last {last}, replicated {replicated}");
            if let Some(file) = &reader.file {
                let (last, replicated) = file.server.tokens();
                let _ = writeln!(text, "file of reader {number}: last {last}, replicated {replicated}");
            }
        }
        if self.world.server.keys.is_empty() && self.judge.queues.is_empty() {
            text.push_str("no keys, nobody waits\n");
        }
    }

    /// Prints the counters of INFO.
    fn count(&self, text: &mut String) {
        let table = self.world.server.table();
        let stats = table.stats();
        let _ =
            writeln!(text, "locks {}, holds {}, waiters {}", table.locks(), table.holds(), table.waiters());
        let _ = writeln!(text, "grants {}, of them waited for {}", stats.grants, stats.contended_grants);
        let _ = writeln!(
            text,
            "releases {}, expirations {}, broken {}, timeouts {}",
            stats.releases, stats.expirations, stats.broken, stats.timeouts
        );
        let (waits, holds) = (stats.waits.max_ms(), stats.holds.max_ms());
        let _ = writeln!(text, "longest wait {waits} ms, longest hold {holds} ms");
    }
}

/// Returns the story with its present outputs.
fn retold(text: &str) -> Result<String, String> {
    let mut story = Story::new();
    let mut retold = String::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(input) = line.strip_prefix("> ") {
            let outputs =
                story.tell(input).map_err(|wrong| format!("line {}: {line}: {wrong}", number + 1))?;
            let _ = write!(retold, "{line}\n{outputs}");
        } else if line.is_empty() || line.starts_with('#') {
            let _ = writeln!(retold, "{line}");
        }
    }
    Ok(retold)
}

fn check(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let now = retold(&text)?;
    if now == text {
        return Ok(());
    }
    if std::env::var_os("UPDATE_SCENARIOS").is_some() {
        return std::fs::write(path, now).map_err(|error| error.to_string());
    }
    let differs = text.lines().zip(now.lines()).enumerate().find(|(_, (before, now))| before != now);
    Err(match differs {
        Some((number, (before, now))) => format!("line {}: {before:?} is now {now:?}", number + 1),
        None => "it is longer or shorter now".to_owned(),
    })
}

#[test]
fn every_story_has_its_outcome() -> Result<(), String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/sim/stories/testdata");
    let entries = std::fs::read_dir(&folder).map_err(|error| error.to_string())?;
    let mut stories: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    stories.sort();
    let told = stories.iter().map(|path| check(path).map_err(|wrong| format!("{}: {wrong}", path.display())));
    let wrong: Vec<String> = told.filter_map(Result::err).collect();
    if stories.len() < STORIES_MIN {
        return Err(format!("there are only {} stories in {}", stories.len(), folder.display()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The fewest stories, so that a folder that was not found does not look like a folder without faults.
const STORIES_MIN: usize = 30;
