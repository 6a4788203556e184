//! Servers for the tests: REDISLOCK_SERVER is "NAME VERSION SERVER CLI", REDISLOCK_MODULE the module's file.

// Each test file uses a part of it.
#![allow(dead_code)]

pub mod door;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Connection, FromRedisValue, ToRedisArgs};
use redislock_client::{Error, Lock, Locks, redis, redlock};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{self, AddressFamily, SocketType};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The time that a busy machine may need.
pub const PATIENCE: Duration = Duration::from_secs(30);

fn told(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} says what is tested"))
}

/// Runs cargo in a folder, on what was compiled in `target` before.
pub fn cargo(folder: &Path, target: &Path, words: &[&str]) {
    let mut command = Command::new(told("CARGO"));
    command.args(words).current_dir(folder).env("CARGO_TARGET_DIR", target);
    // Variables that cargo sets for a test of its package make ring, and all that uses it, compile again here, and
    // there once more.
    for (name, _) in
        env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    {
        command.env_remove(name);
    }
    assert!(command.status().unwrap().success(), "cargo {words:?}");
}

/// Writes a package of these programs, which depends on the client in `client`.
///
/// It has the features, the versions and the profile of the tests, so that what it uses is compiled but once.
pub fn write_package(folder: &Path, name: &str, client: &Path, programs: &BTreeMap<String, String>) {
    let dependencies = format!(
        "redislock-client = {{ path = {client:?}, features = [\"opentelemetry\", \"testing\", \"tls\"] }}"
    );
    let own = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    let own = own.split("[dev-dependencies]\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let manifest = format!(
        "[workspace]\n[package]\nname = {name:?}\nedition = \"2024\"\n[dependencies]\n{dependencies}\n{own}\n\
         [lints.rust]\nwarnings = \"deny\"\n[profile.dev]\ndebug = \"line-tables-only\"\n"
    );
    fs::create_dir_all(folder.join("src/bin")).unwrap();
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::copy(client.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    for (name, text) in programs {
        fs::write(folder.join(format!("src/bin/{name}.rs")), text).unwrap();
    }
}

/// Sends a process a signal: `STOP`, `CONT` or `TERM`.
pub fn signal(process: u32, name: &str) {
    let told = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(told.unwrap().success(), "kill -{name}");
}

/// A server with the module, on a port of its own. It is killed at the end of the test.
pub struct Server {
    child: Child,
    pub port: u16,
    // The port of a killed server, reserved so that no other server answers at its address.
    _port: Port,
    // Its working directory, which goes with it.
    _directory: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With these settings in addition.
    pub fn with(settings: &[&str]) -> Self {
        Self::try_with(settings).expect("a server starts")
    }

    /// A server with these settings. `None` if it does not start, such as one without TLS that has settings for
    /// certificates.
    pub fn try_with(settings: &[&str]) -> Option<Self> {
        Self::spawned(|port, _| {
            let mut command = Command::new(binary());
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
            command.arg("--loadmodule").arg(told("REDISLOCK_MODULE")).args(settings);
            command
        })
    }

    /// A server that lacks the module, but may load it.
    pub fn bare() -> Self {
        let bare = Self::spawned(|port, _| {
            let mut command = Command::new(binary());
            command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
            command.args(["--enable-module-command", "yes"]);
            command
        });
        bare.expect("a server starts")
    }

    /// A sentinel with this configuration.
    pub fn sentinel(settings: &str) -> Self {
        let sentinel = Self::spawned(|port, directory| {
            let file = directory.join("sentinel.conf");
            fs::write(&file, format!("port {port}\nbind 127.0.0.1\n{settings}\n")).unwrap();
            let mut command = Command::new(binary());
            command.arg(file).arg("--sentinel");
            command
        });
        sentinel.expect("a sentinel starts")
    }

    fn spawned(command: impl Fn(u16, &Path) -> Command) -> Option<Self> {
        for _ in 0..5 {
            let port = Port::reserve();
            let directory = tempfile::tempdir().unwrap();
            let mut command = command(port.number, directory.path());
            let child = command.current_dir(directory.path()).stdout(Stdio::null()).spawn().unwrap();
            let mut server = Self { child, port: port.number, _port: port, _directory: directory };
            if server.is_ready() {
                return Some(server);
            } // else somebody else has taken the port meanwhile
        }
        None
    }

    fn is_ready(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && self.child.try_wait().unwrap().is_none() {
            let info = Client::open(self.url())
                .and_then(|client| client.get_connection())
                .and_then(|mut connection| redis::cmd("INFO").arg("server").query::<String>(&mut connection));
            // Not another server that was faster to take the port.
            let process = format!("process_id:{}\r\n", self.child.id());
            if info.is_ok_and(|info| info.contains(&process)) {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn locks(&self) -> Locks {
        Locks::open(self.url()).unwrap()
    }

    /// A connection of the test's own.
    pub fn connection(&self) -> Connection {
        Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Sends a command of the test's own.
    pub fn ask<T: FromRedisValue>(&self, words: impl ToRedisArgs) -> T {
        let mut command = Cmd::new();
        command.arg(words);
        command.query(&mut self.connection()).unwrap()
    }

    /// Returns whether the lock is held.
    pub fn is_held(&self, name: &str) -> bool {
        self.ask::<Option<u64>>(&["LOCK.FENCE", name]).is_some()
    }

    pub fn load_module(&self) {
        self.ask::<String>(&["MODULE", "LOAD", &told("REDISLOCK_MODULE")]);
    }

    /// Ends the server at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends the server a signal: `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Becomes a replica of this server, and waits until it has its data.
    pub fn follow(&self, primary: &Self) {
        self.ask::<String>(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        let end = Instant::now() + PATIENCE;
        while !self.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up") {
            assert!(Instant::now() < end, "it does not become a replica");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Becomes a primary again.
    pub fn lead(&self) {
        self.ask::<String>(&["REPLICAOF", "NO", "ONE"]);
    }

    /// The number of requests that wait for the lock.
    pub fn waiters(&self, name: &str) -> i64 {
        let info: Option<std::collections::HashMap<String, redis::Value>> = self.ask(&["LOCK.INFO", name]);
        let waiters = info.and_then(|mut info| info.remove("waiters"));
        waiters.map_or(0, |waiters| redis::from_redis_value(waiters).unwrap())
    }
}

/// A port that no other test is given as long as this lives.
///
/// A socket stays bound to it without listening. Servers ask for `SO_REUSEADDR`, which lets them listen there all the
/// same; a search for a free port passes it over.
pub struct Port {
    pub number: u16,
    _socket: OwnedFd,
}

impl Port {
    pub fn reserve() -> Self {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddrV4::try_from(net::getsockname(&socket).unwrap()).unwrap();
        Self { number: address.port(), _socket: socket }
    }
}

fn binary() -> String {
    told("REDISLOCK_SERVER").split(' ').nth(2).expect("NAME VERSION SERVER CLI").to_owned()
}

/// Addresses at which no server listens.
pub const NOWHERE: [&str; 3] = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"];

/// The locks that a majority of these grants.
pub fn independent(servers: [&Server; 3]) -> Locks {
    redlock::builder(servers.map(Server::url)).build().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        self.child.wait().unwrap();
    }
}

/// Works under the lock by blocking a thread for this time. Returns once the work has begun.
pub async fn work_on_a_thread(lock: Lock, time: Duration) -> JoinHandle<Result<(), Error>> {
    let (begins, begun) = oneshot::channel();
    let work = async move |_| {
        begins.send(()).unwrap();
        thread::sleep(time);
        Ok(())
    };
    let runtime = Handle::current();
    let working = tokio::task::spawn_blocking(move || runtime.block_on(lock.run(work)));
    begun.await.unwrap();
    working
}

/// Polls until it is so.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
