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

/// Tokens stay below what a double can count.
const HIGHEST_TOKEN: i64 = (1 << 53) - 1;

/// The locks of a server, of the primary that sentinels know, of a cluster, or of several [independent](crate::redlock)
/// servers.
///
/// It is cheap to clone, and to be made once for a program. What goes on in the background does so in the tokio runtime in
/// which it was used first, as long as that lasts. Then it goes on in the next one in which a lock is taken, or in which
/// [`run`](crate::Hold::run), [`lost`](crate::Hold::lost) or [`check`](crate::Hold::check) is called. Outside of a
/// runtime each request ends in [`Error::Invalid`].
#[derive(Clone)]
pub struct Locks {
    engine: Arc<Engine>,
}

impl Locks {
    /// The locks of one server, as `redis://127.0.0.1:6379`. Connects when the first lock is taken.
    pub fn open(server: impl IntoServer) -> Result<Self, Error> {
        Self::builder().server(server).build()
    }

    /// Begins to build locks with other settings than the defaults.
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

    /// A lock that one owner holds alone.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        self.one(name, Kind::Exclusive)
    }

    /// A lock that is shared with other readers.
    pub fn read(&self, name: impl AsRef<[u8]>) -> Lock {
        self.one(name, Kind::Shared)
    }

    /// The lock that [readers](Self::read) share, for a writer: one owner holds it alone.
    pub fn write(&self, name: impl AsRef<[u8]>) -> Lock {
        self.one(name, Kind::Exclusive)
    }

    /// One of `limit` permits, from 1 to 1,000,000. All who use the name must say the same limit, or they are told
    /// [`Error::LockKindMismatch`].
    pub fn semaphore(&self, name: impl AsRef<[u8]>, limit: u32) -> Lock {
        self.one(name, Kind::Limit(limit))
    }

    /// All of these locks or none, with one token: 1 to 64 names, each once. In a cluster their names must be in one
    /// slot: use a hash tag, as `{account}:1`.
    pub fn many<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.make(names, Kind::Exclusive)
    }

    /// All of these locks or none, shared with other readers.
    pub fn read_many<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.make(names, Kind::Shared)
    }

    /// A candidate for an election: the holder of the lock leads.
    pub fn leader(&self, name: impl AsRef<[u8]>) -> Candidate {
        Candidate::new(self.lock(name))
    }

    /// Checks a token: [`Error::Fenced`] if it is not that of a live hold of this lock. With independent servers a
    /// majority decides; [`Error::ConnectionFailed`] if too few of them answer to be sure.
    pub async fn check_token(&self, name: impl AsRef<[u8]>, token: u64) -> Result<(), Error> {
        let name = name.as_ref();
        check_name(name)?;
        // No server has ever given another one, and it refuses to be asked about it.
        let is_live = match i64::try_from(token) {
            Ok(token @ 1..=HIGHEST_TOKEN) => self.engine.fence(&self.key(name), token).await?,
            _ => false,
        };
        let label = || String::from_utf8_lossy(name).into_owned();
        if is_live { Ok(()) } else { Err(Error::Fenced { name: label(), token }) }
    }

    /// Asks for the holders of this lock and its waiters; `None` if there are none. Not for independent servers.
    pub async fn info(&self, name: impl AsRef<[u8]>) -> Result<Option<Info>, Error> {
        check_name(name.as_ref())?;
        self.engine.info(&self.key(name.as_ref())).await
    }

    /// Asks whether a lock could be asked for now, of independent servers a majority. Fails as an acquire would. Returns
    /// the version of the module, as `0.3.0`; the oldest of several.
    pub async fn ping(&self) -> Result<String, Error> {
        self.engine.ping(&self.key(b"redislock:ping")).await
    }

    /// Gives up all that is held and waited for, also through clones of this, and closes all connections. What was still
    /// held is lost ([`Loss::Close`](crate::Loss::Close)), and nothing can be taken afterwards. Call it before the program
    /// ends: what is to be done in the background then ends with it.
    ///
    /// It takes 5 s at most: see [`close_timeout`](Self::close_timeout).
    pub async fn close(&self) {
        self.close_timeout(FAREWELL).await;
    }

    /// Does what [`close`](Self::close) does within this time. What no server has answered for by then ends with its
    /// lease.
    ///
    /// Work under [`run`](crate::Hold::run) is dropped, and its lock is given up after that. A thread may be in the middle
    /// of such work: the library waits for it, and renews its lock. If it takes too long, its lock keeps the lease, and a
    /// warning names it. With `Duration::ZERO`, and outside of a tokio runtime, no server is asked: each lock keeps its
    /// lease.
    ///
    /// Calling it again changes nothing. If the future is dropped, closing continues in the background.
    pub async fn close_timeout(&self, timeout: Duration) {
        let engine = self.engine.clone();
        match Handle::try_current() {
            // In a task of its own: the caller may be work under a lock, which closing drops.
            Ok(runtime) => drop(runtime.spawn(async move { engine.close(timeout).await }).await),
            Err(_) => engine.close(Duration::ZERO).await,
        }
    }
}

/// The locks of the server that this client is for. They log in as it does, over connections of their own.
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

/// Makes [`Locks`].
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

    /// The locks of one server.
    pub fn server(mut self, server: impl IntoServer) -> Self {
        self.servers = server.into_server().map(|info| vec![Topology::Single(info)]);
        self
    }

    /// The locks of the primary that these sentinels know by this name.
    pub fn sentinel<S: IntoServer>(
        mut self,
        sentinels: impl IntoIterator<Item = S>,
        service: impl Into<String>,
    ) -> Self {
        let service = service.into();
        self.servers = some_of(sentinels).and_then(|sentinels| {
            if service.is_empty() {
                return Err(Error::invalid("the service that sentinels watch must not be empty"));
            }
            let primary = "redis://127.0.0.1".into_server()?;
            Ok(vec![Topology::Sentinel { sentinels, service, primary }])
        });
        self
    }

    /// How to log in at the primary that sentinels know: user, password, database and TLS; host and port do not count.
    pub fn primary(mut self, primary: impl IntoServer) -> Self {
        match primary.into_server() {
            Ok(info) => self.primary = Some(info),
            Err(error) => self.servers = Err(error),
        }
        self
    }

    /// The locks of a cluster. `nodes`: some of its nodes, which know the others.
    pub fn cluster<S: IntoServer>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.servers = some_of(nodes).map(|nodes| vec![Topology::Cluster(nodes)]);
        self
    }

    /// The lease of locks that name none: 100 ms or more. The longest is the server's `redislock.max-lease` (an hour), or
    /// its `redislock.quarantine` if that is set and shorter. Default: 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How many waiters of this process stand in the server's queue of a lock, while the others stand behind them in
    /// the process. Those with an owner of yours stand there at once, so that the server sees their deadlocks. It is
    /// also the most connections that wait for several locks at once. 1 or more; default: 16.
    pub fn max_queued_per_lock(mut self, most: usize) -> Self {
        self.settings.max_queued = most;
        self
    }

    /// The holder's name for operators: 1 to 200 bytes, `host:pid` by default. The owner of each hold is the label and a UUID.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.settings.label = label.into();
        self
    }

    /// What stands before each name on the server; nothing by default. [`Hold::name`](crate::Hold::name) is without it.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.settings.prefix = prefix.as_ref().to_vec();
        self
    }

    /// For how long no server may answer until a wait without an end fails: 10 s by default.
    pub fn server_timeout(mut self, timeout: Duration) -> Self {
        self.settings.server_timeout = timeout;
        self
    }

    /// What is told of requests, grants, losses, releases, failed renewals and new connections. Keep a clone of the
    /// [`Arc`] to read it afterwards, as [`Counters`](crate::hooks::Counters).
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.settings.hooks = hooks;
        self
    }

    /// The locks. Connects to no server yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] where no server or no address is named, an address is none, or a number is out of its range.
    pub fn build(self) -> Result<Locks, Error> {
        let mut servers = self.servers?;
        match (self.primary, &mut servers[..]) {
            (Some(login), [Topology::Sentinel { primary, .. }]) => *primary = login,
            (Some(_), _) => {
                return Err(Error::invalid("primary(..) goes with sentinel(..), and with nothing else"));
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
