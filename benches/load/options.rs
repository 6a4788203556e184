//! The command line.

use std::time::Duration;

pub const HELP: &str = "\
load: pairs of commands against a server on this machine, from one thread

  --port PORT          of a server on 127.0.0.1
  --take COMMAND       the first command of a pair: words with single blanks, {key} and {owner} filled in
  --took PREFIX        how its reply begins, as sent: ':' a number, '+OK', '$36' a string of 36 bytes
  --free COMMAND       the second command of a pair
  --freed PREFIX       how its reply begins
  --connections N      (1)
  --depth N            commands in flight on a connection: 1, or an even number (1)
  --keys N             of all connections together; each has keys of its own (1000)
  --seconds S          how long to measure (1)
  --warm-up S          how long to run before that (0)
  --server-pid PID     also tell the processor time of this process, for each pair

Prints {\"pairs\", \"seconds\", \"pairs_per_second\", \"p50_us\", \"p99_us\", \"server_cpu_us_per_pair\"}. The
latencies are those of a pair at depth 1, and of a batch of commands at other depths.";

const CONNECTIONS_MAX: usize = 1_000;
const DEPTH_MAX: usize = 1_000;
const KEYS_MAX: usize = 1_000_000;

pub struct Options {
    pub port: u16,
    pub take: String,
    pub took: String,
    pub free: String,
    pub freed: String,
    pub connections: usize,
    pub depth: usize,
    pub keys: usize,
    pub seconds: Duration,
    pub warm_up: Duration,
    pub server_pid: Option<u32>,
}

impl Options {
    pub fn parse(words: &[String]) -> Result<Options, String> {
        let mut options = Options {
            port: 0,
            take: String::new(),
            took: String::new(),
            free: String::new(),
            freed: String::new(),
            connections: 1,
            depth: 1,
            keys: 1_000,
            seconds: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            server_pid: None,
        };
        for pair in words.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value; see --help", pair[0])) };
            options.set(name, value)?;
        }
        options.checked()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "--port" => self.port = number(name, value)?,
            "--take" => self.take = value.into(),
            "--took" => self.took = value.into(),
            "--free" => self.free = value.into(),
            "--freed" => self.freed = value.into(),
            "--connections" => self.connections = number(name, value)?,
            "--depth" => self.depth = number(name, value)?,
            "--keys" => self.keys = number(name, value)?,
            "--seconds" => self.seconds = seconds(name, value)?,
            "--warm-up" => self.warm_up = seconds(name, value)?,
            "--server-pid" => self.server_pid = Some(number(name, value)?),
            _ => return Err(format!("there is no {name}; see --help")),
        }
        Ok(())
    }

    fn checked(self) -> Result<Options, String> {
        let needed = [("--take", &self.take), ("--took", &self.took), ("--free", &self.free)];
        for (name, value) in needed.into_iter().chain([("--freed", &self.freed)]) {
            if value.is_empty() {
                return Err(format!("{name} is needed; see --help"));
            }
        }
        if self.port == 0 {
            return Err("--port is needed; see --help".into());
        }
        in_range("--connections", self.connections, CONNECTIONS_MAX)?;
        in_range("--depth", self.depth, DEPTH_MAX)?;
        in_range("--keys", self.keys, KEYS_MAX)?;
        if self.depth != 1 && !self.depth.is_multiple_of(2) {
            return Err(format!("--depth must be 1 or even, not {}", self.depth));
        }
        Ok(self)
    }
}

fn in_range(name: &str, value: usize, max: usize) -> Result<(), String> {
    if (1..=max).contains(&value) {
        Ok(())
    } else {
        Err(format!("{name} must be from 1 to {max}, not {value}"))
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} needs a number, not {value:?}"))
}

fn seconds(name: &str, value: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number(name, value)?).map_err(|reason| format!("{name} {value}: {reason}"))
}
