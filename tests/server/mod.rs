//! The harness: a test starts servers of its own, each in a directory and on a port of its own, with the module
//! loaded. Whatever way the test ends, its servers are killed; if it fails, their logs are shown.
//!
//! - `mod.rs`: starting, stopping and killing a server;
//! - `binary.rs`: which server and which module are under test;
//! - `client.rs`: a connection; `waiter.rs`: one that waits in a thread of its own;
//! - `until.rs`: bounded waiting for a condition;
//! - `topology.rs`: a primary with replicas, and whether they agree;
//! - `lease.rs`: the remaining lease;
//! - `stream.rs`: the replication stream, read as a replica reads it;
//! - `wall_clock.rs`, `wall_clock.c`: a server whose wall clock the test sets.

// Each test binary uses a part of it.
#![allow(dead_code, unused_imports)]

pub mod binary;
pub mod client;
pub mod lease;
pub mod stream;
pub mod topology;
pub mod until;
pub mod waiter;
pub mod wall_clock;

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{self, AddressFamily, SocketType};
use tempfile::TempDir;

use binary::{BINARY, MODULE, VALGRIND};
pub use client::{Answer, Client, Hold};
pub use lease::Lease;
pub use until::{await_some, await_that, let_pass, millis, patient};
pub use waiter::Waiter;
use wall_clock::WallClock;

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const VALGRIND_FOUND: i32 = 99;

/// The settings of every server here; a test's own settings come after and win.
const SETTINGS: &[(&str, &str)] = &[
    ("bind", "127.0.0.1"),
    ("save", "\"\""),
    ("daemonize", "no"),
    ("logfile", "server.log"),
    ("enable-debug-command", "yes"),
    ("enable-protected-configs", "yes"),
    // A replica that arrives is served at once.
    ("repl-diskless-sync-delay", "0"),
];

pub struct Server {
    child: Child,
    pub port: u16,
    ports: Ports,
    directory: TempDir,
    settings: Vec<(String, String)>,
    module_arguments: String,
    clock: Option<WallClock>,
}

/// The options for starting a server.
#[derive(Default)]
pub struct Builder {
    settings: Vec<(String, String)>,
    module_arguments: String,
    clock: Option<WallClock>,
}

impl Builder {
    pub fn set(mut self, name: &str, value: &str) -> Builder {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Arguments of `loadmodule`.
    pub fn module(mut self, arguments: &str) -> Builder {
        self.module_arguments = arguments.into();
        self
    }

    /// The server sees a wall clock that the test can set.
    pub fn clock(mut self, clock: &WallClock) -> Builder {
        self.clock = Some(clock.clone());
        self
    }

    pub fn start(self) -> Server {
        let directory = tempfile::Builder::new().prefix("redislock-").tempdir().unwrap();
        let (child, ports) = spawn(directory.path(), &self);
        let mut server = Server {
            child,
            port: ports.clients.number,
            ports,
            directory,
            settings: self.settings,
            module_arguments: self.module_arguments,
            clock: self.clock,
        };
        server.await_ready();
        server
    }
}

impl Server {
    /// A server with nothing special about it.
    pub fn start() -> Server {
        Server::build().start()
    }

    pub fn build() -> Builder {
        Builder::default()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.port).unwrap()
    }

    /// A client of its own that runs the command and waits for the answer.
    pub fn waiter(&self, line: &str) -> Waiter {
        Waiter::start(self.client(), line)
    }

    /// A client that waits in line for a lock, and is in line when this returns (or has left it, granted).
    #[track_caller]
    pub fn in_queue(&self, key: &str, owner: &str, lease_ms: u64) -> Waiter {
        let mut client = self.client();
        let before = client.waiters(key);
        let waiter = self.waiter(&format!("LOCK.ACQUIRE {key} {owner} PX {lease_ms} BLOCK 0"));
        await_that(&format!("{owner} waits for {key}"), || {
            client.waiters(key) > before || waiter.is_answered()
        });
        waiter
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory().join("server.log")).unwrap_or_default()
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.into(), value.into()));
    }

    /// Asks the server to end, without saving anything that it has not saved yet.
    #[track_caller]
    pub fn stop(&mut self) {
        self.shut_down("SHUTDOWN NOSAVE");
    }

    #[track_caller]
    pub fn save_and_stop(&mut self) {
        self.shut_down("SHUTDOWN SAVE");
    }

    #[track_caller]
    fn shut_down(&mut self, command: &str) {
        // The connection closes instead of an answer.
        let answer = self.client().ask(command);
        assert!(answer.is_err(), "{command}: {answer:?}");
        let status = self.await_end();
        assert!(status.success(), "the server ended with {status}");
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    #[track_caller]
    pub fn await_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < patient(STOP_LIMIT), "the server does not end");
            std::thread::sleep(millis(5));
        }
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none() && self.client().text("PING") == "PONG"
    }

    /// Starts a server that has ended again, in the same directory.
    pub fn start_again(&mut self) {
        self.spawn();
        self.await_ready();
    }

    fn spawn(&mut self) {
        let builder = Builder {
            settings: self.settings.clone(),
            module_arguments: self.module_arguments.clone(),
            clock: self.clock.clone(),
        };
        (self.child, self.ports) = spawn(self.directory.path(), &builder);
        self.port = self.ports.clients.number;
    }

    /// Starts a server that may well refuse to start: with words then, and not in distress. Ends it if it does.
    pub fn start_or_be_refused(&mut self) {
        self.spawn();
        await_that("the server answers or ends", || {
            self.answers() || self.child.try_wait().unwrap().is_some()
        });
        if let Some(status) = self.child.try_wait().unwrap() {
            assert!(status.code().is_some(), "the server ended with {status}\n{}", self.logs());
        }
        self.kill();
    }

    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Stops the process as Ctrl-Z does: it keeps its connections and does nothing.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(status.success(), "{kill}");
    }

    pub fn bus_port(&self) -> u16 {
        self.ports.bus.number
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The most bytes that its process has had in memory.
    pub fn resident_peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Waits until the server answers and has loaded its files.
    fn await_ready(&mut self) {
        let start = Instant::now();
        loop {
            if self.answers() {
                return;
            }
            let ended = self.child.try_wait().unwrap();
            if let Some(status) = ended
                && self.log().contains("Address already in use")
            {
                eprintln!("port {} was taken meanwhile ({status}), taking another", self.port);
                fs::remove_file(self.directory().join("server.log")).unwrap();
                self.start_again();
                return;
            }
            assert!(ended.is_none(), "the server ended at its start\n{}", self.logs());
            assert!(start.elapsed() < patient(START_LIMIT), "the server does not start\n{}", self.logs());
            std::thread::sleep(millis(5));
        }
    }

    fn answers(&self) -> bool {
        let Ok(mut client) = Client::connect(self.port) else { return false };
        // Not another test's server that was faster to take the port.
        client.ask("PING").is_ok() && client.info("server", "process_id") == self.child.id().to_string()
    }

    fn logs(&self) -> String {
        let stderr = fs::read_to_string(self.directory().join("stderr.log")).unwrap_or_default();
        format!("--- {}, port {}\n{}{stderr}---", BINARY.name, self.port, telling_part(&self.log()))
    }

    /// Signs in its log that a server should never show.
    fn distress(&self) -> Option<String> {
        let logs = self.logs();
        let signs = ["BUG REPORT START", "panicked at", "ASSERTION FAILED", "Guru Meditation"];
        signs.iter().any(|sign| logs.contains(sign)).then_some(logs)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended_already = self.child.try_wait().ok().flatten().is_some();
        if *VALGRIND && !ended_already && !std::thread::panicking() {
            self.thaw();
            let _ = self.client().ask("SHUTDOWN NOSAVE");
            let status = self.await_end();
            assert_ne!(status.code(), Some(VALGRIND_FOUND), "valgrind found errors\n{}", self.logs());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        } else if let Some(logs) = self.distress() {
            panic!("the server was in distress\n{logs}");
        }
    }
}

fn spawn(directory: &Path, builder: &Builder) -> (Child, Ports) {
    let ports = Ports { clients: Port::reserve(), bus: Port::reserve() };
    write_config(directory, builder, ports.bus.number);
    let mut command = if *VALGRIND {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", &format!("--error-exitcode={VALGRIND_FOUND}"), "--trace-children=no"]);
        valgrind.arg(&BINARY.server);
        valgrind
    } else {
        Command::new(&BINARY.server)
    };
    let stderr = OpenOptions::new().create(true).append(true).open(directory.join("stderr.log")).unwrap();
    command.arg("redis.conf").args(["--port", &ports.clients.number.to_string()]).current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    if let Some(clock) = &builder.clock {
        clock.give_to(&mut command);
    }
    let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", BINARY.server.display()));
    (child, ports)
}

fn write_config(directory: &Path, builder: &Builder, bus_port: u16) {
    let own = SETTINGS.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let mut lines: Vec<String> =
        own.chain(builder.settings.clone()).map(|(name, value)| format!("{name} {value}\n")).collect();
    if lines.iter().any(|line| line == "cluster-enabled yes\n") {
        lines.push(format!("cluster-port {bus_port}\n"));
    }
    if *VALGRIND {
        // The server's compression reads bytes that it has not written, by design.
        lines.push("rdbcompression no\n".to_string());
    }
    lines.push(format!("loadmodule {} {}\n", MODULE.display(), builder.module_arguments));
    fs::write(directory.join("redis.conf"), lines.concat()).unwrap();
}

/// The ports for clients, and for other nodes of a cluster.
struct Ports {
    clients: Port,
    bus: Port,
}

/// A port that no other test is given as long as this lives.
///
/// A socket stays bound to it without listening. Servers ask for SO_REUSEADDR, which lets them listen there all the
/// same; a search for a free port passes it over.
struct Port {
    number: u16,
    _socket: OwnedFd,
}

impl Port {
    fn reserve() -> Port {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddrV4::try_from(net::getsockname(&socket).unwrap()).unwrap();
        Port { number: address.port(), _socket: socket }
    }
}

/// The end of a log, or the beginning of the report in which a server says why it crashed.
fn telling_part(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let crash = lines.iter().position(|line| line.contains("BUG REPORT START"));
    let start = crash.map_or(lines.len().saturating_sub(60), |crash| crash.saturating_sub(20));
    let shown = &lines[start..lines.len().min(start + 100)];
    shown.join("\n") + "\n"
}
