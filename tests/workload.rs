//! A random load: several connections acquire, renew, release, delete, rename and move the same few locks. Some of
//! them wait in the queue, and many let their leases expire.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;

use crate::server::client::{CLOSED, as_int, as_list, as_text};
use crate::server::{Client, Server, let_pass, millis};

const CONNECTIONS: u64 = 6;
const KEYS: u64 = 16;

/// Longer than any wait and any of the short leases that the load asks for.
const AFTERMATH_MS: u64 = 500;

/// Runs the load during `action`: at least `commands` commands on each connection, and until the action is done.
/// Returns the result of the action. Then no request waits and no lease is about to expire: the server rests.
pub fn during<T>(server: &Server, seed: u64, commands: u64, action: impl FnOnce() -> T) -> T {
    eprintln!("seed of the load: {seed}");
    let is_done = AtomicBool::new(false);
    let (result, tokens) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let is_done = &is_done;
                let client = server.client();
                scope.spawn(move || Worker::new(client, number, seed).run(commands, is_done))
            })
            .collect();
        let finish = Finish(&is_done);
        let result = action();
        drop(finish);
        let tokens: Vec<Vec<i64>> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        (result, tokens)
    });
    assert_tokens(&tokens);
    // The last thing that the load did may have been to flush everything.
    server.client().acquire(&format!("witness-{seed}"), "witness", 600_000);
    let_pass(millis(AFTERMATH_MS));
    result
}

/// Lets the workers end even if the action panics: else the scope would wait for them for ever.
struct Finish<'a>(&'a AtomicBool);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub fn run(server: &Server, seed: u64, commands: u64) {
    during(server, seed, commands, || ());
}

/// G4: on each connection they rise, and no two grants have the same one.
fn assert_tokens(of_connections: &[Vec<i64>]) {
    let mut seen = BTreeSet::new();
    for tokens in of_connections {
        assert!(tokens.is_sorted(), "the tokens of one connection fell: {tokens:?}");
        for token in tokens {
            assert!(seen.insert(*token), "two grants have the token {token}");
        }
    }
    assert!(seen.len() > 30, "the load was granted next to nothing: {seen:?}");
}

/// The xorshift generator: enough to mix a load, and the same load for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

struct Worker {
    client: Client,
    number: u64,
    dice: Dice,
    owners: u64,
    tokens: Vec<i64>,
}

impl Worker {
    fn new(client: Client, number: u64, seed: u64) -> Worker {
        Worker { client, number, dice: Dice::new(seed * 1000 + number), owners: 0, tokens: Vec::new() }
    }

    fn run(mut self, commands: u64, is_done: &AtomicBool) -> Vec<i64> {
        let mut count = 0;
        while count < commands || !is_done.load(Ordering::Relaxed) {
            self.step();
            count += 1;
        }
        self.tokens
    }

    fn step(&mut self) {
        let key = self.key();
        match self.dice.below(100) {
            0..30 => self.take(&key, ""),
            30..45 => self.take(&key, "BLOCK 30"),
            45..65 => self.on_owner("LOCK.RELEASE", &key, ""),
            65..72 => self.on_owner("LOCK.RENEW", &key, "PX 150"),
            72..75 => self.tell(&format!("DEL {key}")),
            75..77 => self.tell(&format!("UNLINK {key}")),
            77..79 => self.overwrite(&key),
            79..81 => self.rename(&key),
            81..83 => self.tell(&format!("MOVE {key} 1")),
            83..85 => self.tell(&format!("PEXPIRE {key} 20")),
            85..88 => self.script(&key),
            88..92 => self.transaction(&key),
            92..95 => self.restore(&key),
            95..98 => self.tell(&format!("COPY {key} {key}-copy")),
            98 if self.dice.below(4) == 0 => self.tell("SWAPDB 0 1"),
            _ if self.dice.below(4) == 0 => self.tell("FLUSHDB"),
            _ => self.take(&key, ""),
        }
    }

    fn key(&mut self) -> String {
        format!("lock-{}", self.dice.below(KEYS))
    }

    /// Half of the leases run out during the load, half of them never.
    fn lease(&mut self) -> u64 {
        if self.dice.below(2) == 0 { 10 + self.dice.below(300) } else { 600_000 }
    }

    fn take(&mut self, key: &str, option: &str) {
        // A fresh owner each time, so that a repeated token is never a repeated answer.
        self.owners += 1;
        let owner = if self.dice.below(5) == 0 { "*".to_string() } else { self.owner() };
        let lease = self.lease();
        let answer = self.ask(&format!("LOCK.ACQUIRE {key} {owner} PX {lease} {option}"));
        self.note(answer.as_ref());
    }

    fn owner(&self) -> String {
        format!("owner-{}-{}", self.number, self.owners)
    }

    /// Releases or renews for the owner that holds the lock now: mostly that still holds when it arrives.
    fn on_owner(&mut self, command: &str, key: &str, rest: &str) {
        if let Some(owner) = self.holder(key) {
            self.tell(&format!("{command} {key} {owner} {rest}"));
        }
    }

    fn holder(&mut self, key: &str) -> Option<String> {
        let info = self.ask(&format!("LOCK.INFO {key}"))?;
        let holders = crate::server::client::field(&info, "holders")?;
        let owner = crate::server::client::field(as_list(&holders).first()?, "owner")?;
        as_text(&owner)
    }

    fn overwrite(&mut self, key: &str) {
        self.tell(&format!("SET {key} x"));
        self.tell(&format!("DEL {key}"));
    }

    fn rename(&mut self, key: &str) {
        let other = self.key();
        self.tell(&format!("RENAME {key} {other}"));
    }

    fn script(&mut self, key: &str) {
        self.owners += 1;
        let owner = self.owner();
        let mut script = redis::cmd("EVAL");
        script.arg(
            "local t = redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', 90, 'BLOCK', 0) \
             redis.call('LOCK.RENEW', KEYS[1], ARGV[1], 'PX', 70) \
             redis.call('LOCK.RELEASE', KEYS[1], 'nobody') return t",
        );
        script.arg(1).arg(key).arg(owner);
        // The name may hold a string just now.
        if let Ok(answer) = self.client.ask_command(&script) {
            self.note(Some(&answer));
        }
    }

    fn transaction(&mut self, key: &str) {
        self.owners += 1;
        let (other, owner) = (self.key(), self.owner());
        self.tell("MULTI");
        self.tell(&format!("LOCK.ACQUIRE {key} {owner} PX 100"));
        self.tell(&format!("LOCK.RELEASE {key} {owner}"));
        self.tell(&format!("LOCK.ACQUIRE {other} {owner}-b PX 100 BLOCK 0"));
        if let Some(answers) = self.ask("EXEC") {
            let answers = as_list(&answers);
            self.note(answers.first());
            self.note(answers.get(2));
        }
    }

    fn restore(&mut self, key: &str) {
        let Some(Value::BulkString(payload)) = self.ask(&format!("DUMP {key}")) else { return };
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(0).arg(payload).arg("REPLACE");
        let _ = self.client.ask_command(&restore);
    }

    /// Remembers a token that was granted.
    fn note(&mut self, answer: Option<&Value>) {
        let token = match answer {
            Some(Value::Array(pair)) => pair.get(1).and_then(as_int),
            Some(value) => as_int(value),
            None => None,
        };
        self.tokens.extend(token);
    }

    fn tell(&mut self, line: &str) {
        self.ask(line);
    }

    /// Being refused is part of the game, losing the connection is not.
    fn ask(&mut self, line: &str) -> Option<Value> {
        match self.client.ask(line) {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(!error.starts_with(CLOSED), "{line}: {error}");
                None
            }
        }
    }
}
