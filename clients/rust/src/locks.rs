//! The locks of some servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, ConnectionInfo};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::address::{IntoServer, some_of};
use crate::engine::{Engine, Settings};
use crate::error::Error;
use crate::hooks::Hooks;
use crate::info::Info;
use crate::leader::Candidate;
use crate::lock::Lock;
use crate::rules::FAREWELL;
use crate::servers::Topology;
use crate::wanted::{Kind, check_label, check_lease, check_name};

/// Tokens stay within the integers that a double represents exactly.
const HIGHEST_TOKEN: i64 = (1 << 53) - 1;

/// A client for the locks of a server, of a primary that Sentinel monitors, of a cluster, or of several
/// [independent](crate::redlock) servers.
///
/// Create one for a program; it is cheap to clone. Background tasks run in the tokio runtime in which it was first
/// used. When that runtime ends, they continue in the next one in which a lock is acquired, or in which
/// [`run`](crate::Hold::run), [`lost`](crate::Hold::lost) or [`check`](crate::Hold::check) is called. Outside of a
/// runtime, each request returns [`Error::Invalid`].
#[derive(Clone)]
pub struct Locks {
    engine: Arc<Engine>,
}

impl Locks {
    /// Creates a client for the locks of one server, for example `redis://127.0.0.1:6379`. It connects when it is first
    /// used.
    pub fn open(server: impl IntoServer) -> Result<Self, Error> {
        Self::builder().server(server).build()
    }

    /// Returns a builder, for settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::of(Err(Error::invalid(
            "name the servers: by server, sentinel or cluster, or by redlock::builder",
        )))
    }

    fn make<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>, kind: Kind) -> Lock {
        let names = names.into_iter().map(|name| self.key(name.as_ref())).collect();
        Lock::new(self.engine.clone(), names, kind)
    }

    fn one(&self, name: impl AsRef<[u8]>, kind: Kind) -> Lock {
        self.make([name], kind)
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        [&self.engine.settings.prefix, name].concat()
    }

    /// Describes an exclusive lock. Nothing is sent until it is acquired.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        self.one(name, Kind::Exclusive)
    }

    /// Describes a lock that readers share. [`write`](Self::write) and [`lock`](Self::lock) exclude them.
    pub fn read(&self, name: impl AsRef<[u8]>) -> Lock {
        self.one(name, Kind::Shared)
    }

    /// Describes an exclusive lock, as the counterpart of [`read`](Self::read). It is the same as [`lock`](Self::lock).
    pub fn write(&self, name: impl AsRef<[u8]>) -> Lock {
        self.one(name, Kind::Exclusive)
    }

    /// Describes one of `limit` permits of a semaphore, from 1 to 1,000,000. All clients must use the same limit for a
    /// name, or they get [`Error::LockKindMismatch`].
    pub fn semaphore(&self, name: impl AsRef<[u8]>, limit: u32) -> Lock {
        self.one(name, Kind::Limit(limit))
    }

    /// Describes 1 to 64 exclusive locks that are acquired together, all or none, with one token. In a cluster, all
    /// names must be in one slot: use a hash tag, as in `{account}:1`.
    pub fn many<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.make(names, Kind::Exclusive)
    }

    /// Describes locks that readers share, and that are acquired together, all or none, with one token.
    pub fn read_many<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.make(names, Kind::Shared)
    }

    /// Describes a candidate for an election: the holder of the lock leads.
    pub fn leader(&self, name: impl AsRef<[u8]>) -> Candidate {
        Candidate::new(self.lock(name))
    }

    /// Returns [`Error::Fenced`] unless the token belongs to a live hold of this lock. With independent servers a
    /// majority decides, and the error is [`Error::ConnectionFailed`] if too few of them answer.
    pub async fn check_token(&self, name: impl AsRef<[u8]>, token: u64) -> Result<(), Error> {
        let name = name.as_ref();
        check_name(name)?;
        // No server has ever granted any other token, and the server refuses to check it.
        let is_live = match i64::try_from(token) {
            Ok(token @ 1..=HIGHEST_TOKEN) => self.engine.fence(&self.key(name), token).await?,
            _ => false,
        };
        let label = || String::from_utf8_lossy(name).into_owned();
        if is_live { Ok(()) } else { Err(Error::Fenced { name: label(), token }) }
    }

    /// Returns the holders and the waiters of this lock, or `None` if there are none. Not for independent servers.
    pub async fn info(&self, name: impl AsRef<[u8]>) -> Result<Option<Info>, Error> {
        check_name(name.as_ref())?;
        self.engine.info(&self.key(name.as_ref())).await
    }

    /// Checks that a primary with the module answers, and returns the module's version, for example `0.3.0`. With
    /// independent servers it asks a majority, and returns the oldest version.
    pub async fn ping(&self) -> Result<String, Error> {
        self.engine.ping(&self.key(b"redislock:ping")).await
    }

    /// Ends all holds, waits and connections, also those of clones. Holds are lost
    /// ([`Loss::Close`](crate::Loss::Close)), and nothing can be acquired afterwards. Call it before the program ends,
    /// because background tasks, such as releases, end with the program.
    ///
    /// It takes 5 s at most: see [`close_timeout`](Self::close_timeout).
    pub async fn close(&self) {
        self.close_timeout(FAREWELL).await;
    }

    /// Does the same as [`close`](Self::close) within this time. A lock whose release no server has answered
    /// by then ends with its lease.
    ///
    /// Work under [`run`](crate::Hold::run) is dropped, and its lock is released after that. A thread may be
    /// in the middle of such work: the library waits for it, and renews its lock. If it takes too long, its
    /// lock keeps the lease, and a warning names it. With `Duration::ZERO`, and outside of a tokio runtime,
    /// no server is asked: each lock keeps its lease.
    ///
    /// Further calls do nothing. If the future is dropped, closing continues in the background.
    pub async fn close_timeout(&self, timeout: Duration) {
        let engine = self.engine.clone();
        match Handle::try_current() {
            // In a task of its own: the caller may be work under a lock, which closing drops.
            Ok(runtime) => drop(runtime.spawn(async move { engine.close(timeout).await }).await),
            Err(_) => engine.close(Duration::ZERO).await,
        }
    }
}

/// Creates a client for the locks of the server of this `redis::Client`. It logs in as that does, over its own
/// connections.
impl From<Client> for Locks {
    fn from(client: Client) -> Self {
        let servers = vec![Topology::Single(client.get_connection_info().clone())];
        Self { engine: Arc::new(Engine::new(servers, Settings::default())) }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("lease", &self.engine.settings.lease).finish_non_exhaustive()
    }
}

/// Builds [`Locks`].
#[must_use = "it makes nothing until it is built"]
pub struct Builder {
    servers: Result<Vec<Topology>, Error>,
    primary: Option<ConnectionInfo>,
    settings: Settings,
}

impl Builder {
    pub(crate) fn of(servers: Result<Vec<Topology>, Error>) -> Self {
        Self { servers, primary: None, settings: Settings::default() }
    }

    /// Sets the address of one server.
    pub fn server(mut self, server: impl IntoServer) -> Self {
        self.servers = server.into_server().map(|info| vec![Topology::Single(info)]);
        self
    }

    /// Sets the addresses of some sentinels, and the primary's name in Sentinel.
    pub fn sentinel<S: IntoServer>(
        mut self,
        sentinels: impl IntoIterator<Item = S>,
        service: impl Into<String>,
    ) -> Self {
        let service = service.into();
        self.servers = some_of(sentinels).and_then(|sentinels| {
            if service.is_empty() {
                return Err(Error::invalid("sentinel needs the name of the primary, for example mymaster"));
            }
            let primary = "redis://127.0.0.1".into_server()?;
            Ok(vec![Topology::Sentinel { sentinels, service, primary }])
        });
        self
    }

    /// Sets the login for the primary that Sentinel monitors: user, password, database and TLS. Host and port are
    /// ignored.
    pub fn primary(mut self, primary: impl IntoServer) -> Self {
        match primary.into_server() {
            Ok(info) => self.primary = Some(info),
            Err(error) => self.servers = Err(error),
        }
        self
    }

    /// Sets the addresses of some nodes of a cluster.
    pub fn cluster<S: IntoServer>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.servers = some_of(nodes).map(|nodes| vec![Topology::Cluster(nodes)]);
        self
    }

    /// Sets the lease of locks that set none: 100 ms or more. The longest is the server's `redislock.max-lease` (an
    /// hour), or its `redislock.quarantine` if that is set and shorter. Default: 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets how many requests of these locks the server queues for one lock: 1 or more, by default 16. The others wait
    /// in the process, in order. Requests with an explicit owner do not count: the server must see them to detect
    /// deadlocks. It also limits the connections that wait for several locks.
    pub fn max_queued_per_lock(mut self, most: usize) -> Self {
        self.settings.max_queued = most;
        self
    }

    /// Names this process for operators, as in `LOCK.INFO`: 1 to 200 bytes, `host:pid` by default. The owner of each
    /// hold is the label and a UUID.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.settings.label = label.into();
        self
    }

    /// Sets a prefix that is prepended to each lock name on the server; empty by default.
    /// [`Hold::name`](crate::Hold::name), errors and logs omit it.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.settings.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Sets after how long without an answer of any server a wait without a limit fails: 10 s by default.
    pub fn server_timeout(mut self, timeout: Duration) -> Self {
        self.settings.server_timeout = timeout;
        self
    }

    /// Sets the hooks that are called for requests, grants, losses, releases, failed renewals and new connections. To
    /// read them afterwards, as with [`Counters`](crate::hooks::Counters), keep a clone of the [`Arc`].
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.settings.hooks = hooks;
        self
    }

    /// Returns the client. It connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no server is set, an address is invalid, or a number is out of its range.
    pub fn build(self) -> Result<Locks, Error> {
        let mut servers = self.servers?;
        match (self.primary, &mut servers[..]) {
            (Some(login), [Topology::Sentinel { primary, .. }]) => *primary = login,
            (Some(_), _) => {
                return Err(Error::invalid("primary(..) must be used only together with sentinel(..)"));
            }
            (None, _) => {}
        }
        check_lease(self.settings.lease)?;
        if !(1..=Semaphore::MAX_PERMITS).contains(&self.settings.max_queued) {
            let (most, number) = (Semaphore::MAX_PERMITS, self.settings.max_queued);
            return Err(Error::invalid(format!(
                "max_queued_per_lock must be from 1 to {most}, not {number}"
            )));
        }
        check_label(&self.settings.label)?;
        if self.settings.server_timeout.is_zero() {
            return Err(Error::invalid("server_timeout must be more than 0s"));
        }
        Ok(Locks { engine: Arc::new(Engine::new(servers, self.settings)) })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("lease", &self.settings.lease)
            .field("max_queued_per_lock", &self.settings.max_queued)
            .finish_non_exhaustive()
    }
}
