//! A connection that many tasks share.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, ProtocolVersion};
use redis::{PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::task::unconstrained;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::address::Address;
use crate::clock::Moment;
use crate::error::{Cause, Error};
use crate::rules::{ATTEMPT, Step, judge};

/// The reason why there is no reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The connection ended, was never made, or the server did not answer in time; with the driver's error, if it had one.
    Broken(String, Option<RedisError>),
    /// The server replied with this error.
    Refused(String),
}

impl Failure {
    /// Adds the address of a server that refused the connection.
    pub(crate) fn at(self, address: &Address) -> Self {
        match self {
            Self::Refused(text) => Self::Refused(format!("{text} ({address})")),
            broken => broken,
        }
    }

    /// Names the likely cause of a plain connection that ends in its greeting: TLS servers close it, or send
    /// an alert.
    pub(crate) fn suspect_tls(self) -> Self {
        let is_likely = |error: &RedisError| {
            let is_away = error.is_connection_refusal() || error.is_timeout();
            error.kind() == ErrorKind::Parse || (error.is_connection_dropped() && !is_away)
        };
        match self {
            Self::Broken(why, Some(error)) if is_likely(&error) => {
                let hint = "is this a port for TLS? Its address begins with rediss://";
                Self::Broken(format!("{why}: {hint}"), Some(error))
            }
            other => other,
        }
    }

    /// Returns true if the server refused the login.
    pub(crate) fn is_login(&self) -> bool {
        matches!(self, Self::Refused(text) if text.starts_with("NOAUTH") || text.starts_with("WRONGPASS"))
    }

    pub(crate) fn broken(why: impl Into<String>) -> Self {
        Self::Broken(why.into(), None)
    }

    fn of(error: RedisError) -> Self {
        match error.clone().into_server_errors() {
            Some(errors) if !errors.is_empty() => Self::Refused(text_of(&errors[0].1)),
            _ => Self::Broken(error.to_string(), Some(error)),
        }
    }

    /// Like `of`, for the greeting of a new connection: the driver words some refusals itself.
    fn of_greeting(error: RedisError) -> Self {
        let detail = error.detail().unwrap_or_default().to_owned();
        match (error.kind(), Self::of(error)) {
            (ErrorKind::RESP3NotSupported, _) => Self::Refused(NO_HELLO.to_owned()),
            (_, Self::Refused(text)) if is_no_hello(&text) => Self::Refused(NO_HELLO.to_owned()),
            (ErrorKind::Server(_), Self::Broken(..)) => Self::Refused(format!("ERR {detail}")),
            (ErrorKind::AuthenticationFailed, Self::Broken(why, _)) => {
                Self::Refused(format!("WRONGPASS {why}"))
            }
            (_, failure) => failure,
        }
    }

    /// Makes the error for the caller. A temporary refusal keeps its kind, with the server that it is from.
    pub(crate) fn told(self, address: Option<&Address>) -> Error {
        let at = address.map(|address| format!("{address}: ")).unwrap_or_default();
        match self {
            Self::Broken(why, source) if judge(&why) == Step::Fail => Error::ConnectionFailed {
                message: format!("no server answered in time: {at}{why}"),
                source: source.map(|source| Arc::new(source) as Cause),
            },
            Self::Refused(text) if judge(&text) == Step::Fail => Error::from_reply(&text),
            Self::Refused(text) | Self::Broken(text, _) => {
                let server = address.map_or("this server".to_owned(), Address::to_string);
                let hint = match judge(&text) {
                    Step::Elsewhere if text.starts_with("READONLY") => {
                        " is a replica: its address must lead to the primary"
                    }
                    _ => " said so",
                };
                Error::connection(format!("{text} ({server}{hint})"))
            }
        }
    }
}

/// Replaces the message of a peer without HELLO, whose own words would suggest a missing module.
const NO_HELLO: &str = "NOPROTO this peer does not know HELLO 3 and so speaks no RESP3, as some proxies: \
                        name the address of the server itself";

fn is_no_hello(text: &str) -> bool {
    text.starts_with("NOPROTO") || text.to_ascii_lowercase().starts_with("err unknown command")
}

/// A change that the server reports unasked.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The locks with these names have changed.
    Names(Vec<Vec<u8>>),
    /// Any lock may have changed: all were flushed, or the connection ended, and pushes may have been missed.
    Any,
}

/// The function that receives changes.
pub(crate) type OnChange = Arc<dyn Fn(Change) + Send + Sync>;

/// The most requests in flight to the socket.
const UNDERWAY: usize = 4096;

/// Each request has a number, higher than those of all earlier ones.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Returns the next number.
pub(crate) fn next_number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Makes a command to send first over the connection with this number. It is called when no earlier request
/// can change whether that is needed.
pub(crate) type Before<'a> = &'a (dyn Fn(u64) -> Option<Cmd> + Send + Sync);

/// A command, and the commands that are sent with it.
pub(crate) struct Request<'a> {
    pub(crate) command: &'a Cmd,
    /// True if the slot is about to move to this node.
    pub(crate) asks: bool,
    pub(crate) before: Option<Before<'a>>,
}

impl Request<'_> {
    fn is_plain(&self) -> bool {
        self.before.is_none() && !self.asks
    }

    fn words_before(&self, link: u64) -> Vec<Cmd> {
        let before = self.before.and_then(|before| before(link));
        // ASKING applies only to the very next command.
        before.into_iter().chain(self.asks.then(|| redis::cmd("ASKING"))).collect()
    }
}

/// A connection that pipelines the requests of many tasks.
pub(crate) struct Link {
    /// Higher than the numbers of all earlier connections.
    pub(crate) number: u64,
    connection: Mutex<Option<MultiplexedConnection>>,
    /// Keeps requests in the order of their numbers.
    order: Mutex<()>,
    closed: CancellationToken,
    /// True if a reply did not arrive in time. The request may still reach the server.
    given_up: AtomicBool,
    /// True if the server has done what only a primary does.
    served: AtomicBool,
    /// The server's refusal of one request on this shared connection, which was closed for it.
    refusal: Mutex<Option<String>>,
    born: Moment,
    on_change: Option<OnChange>,
    /// True if the server reports changes of the keys that were read here.
    is_told: AtomicBool,
}

impl Link {
    /// Opens a connection over which the server reports changes, if it may.
    pub(crate) async fn told(info: ConnectionInfo, on_change: OnChange) -> Result<Arc<Self>, Failure> {
        let link = Self::new(Some(on_change.clone()));
        let this = Arc::downgrade(&link);
        let hear = move |push: PushInfo| -> Result<(), ()> {
            match push.kind {
                PushKind::Invalidate => on_change(change(push.data)),
                PushKind::Disconnection => drop(this.upgrade().inspect(|link| link.close())),
                _ => {}
            }
            Ok(())
        };
        link.open(info, |config| config.set_push_sender(hear)).await?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON");
        match link.call(&tracking, ATTEMPT).await {
            Ok(_) => link.is_told.store(true, Ordering::Relaxed),
            Err(Failure::Refused(_)) => {}
            Err(broken) => return Err(broken),
        }
        Ok(link)
    }

    /// Opens a connection for few requests.
    pub(crate) async fn plain(info: ConnectionInfo) -> Result<Arc<Self>, Failure> {
        let link = Self::new(None);
        link.open(info, |config| config).await?;
        Ok(link)
    }

    fn new(on_change: Option<OnChange>) -> Arc<Self> {
        Arc::new(Self {
            number: next_number(),
            connection: Mutex::new(None),
            order: Mutex::new(()),
            closed: CancellationToken::new(),
            given_up: AtomicBool::default(),
            served: AtomicBool::default(),
            refusal: Mutex::default(),
            born: Moment::now(),
            on_change,
            is_told: AtomicBool::default(),
        })
    }

    async fn open(
        &self,
        info: ConnectionInfo,
        adapt: impl FnOnce(AsyncConnectionConfig) -> AsyncConnectionConfig,
    ) -> Result<(), Failure> {
        #[cfg(feature = "tls")]
        choose_provider(&info);
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(ATTEMPT)).set_response_timeout(None);
        // So that no request waits for its turn to be sent, since others might overtake it.
        let config = config.set_pipeline_buffer_size(UNDERWAY);
        let config = adapt(config);
        #[cfg(feature = "testing")]
        if let Some(stream) = crate::testing::connect(info.addr()) {
            let stream = stream.map_err(Failure::broken)?;
            let opened = MultiplexedConnection::new_with_config(&redis, stream, config).await;
            let (connection, driver) = opened.map_err(Failure::of_greeting)?;
            tokio::spawn(driver);
            *lock(&self.connection) = Some(connection);
            return Ok(());
        }
        let client = Client::open(info.set_redis_settings(redis)).map_err(Failure::of)?;
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let connection = match timeout(2 * ATTEMPT, opening).await {
            Ok(opened) => opened.map_err(Failure::of_greeting)?,
            Err(_) => return Err(Failure::broken(format!("no reply for {:?}", 2 * ATTEMPT))),
        };
        *lock(&self.connection) = Some(connection);
        Ok(())
    }

    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Records that the server has done what only a primary does. Returns true the first time.
    pub(crate) fn serves(&self) -> bool {
        !self.served.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn has_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    pub(crate) fn age(&self) -> Duration {
        self.born.age()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Ends the connection for all who wait for a reply.
    pub(crate) fn close(&self) {
        if self.is_closed() {
            return;
        }
        self.closed.cancel();
        drop(lock(&self.connection).take());
        if let Some(on_change) = &self.on_change {
            on_change(Change::Any);
        }
    }

    /// Ends the connection. All who wait for a reply get the refusal that one of them received.
    pub(crate) fn leave(&self, refusal: &str) {
        lock(&self.refusal).get_or_insert_with(|| refusal.to_owned());
        self.close();
    }

    fn ended(&self) -> Failure {
        let refusal = lock(&self.refusal).clone();
        Failure::Broken(refusal.unwrap_or_else(|| "the connection was closed".to_owned()), None)
    }

    /// Sends this after all earlier requests. Returns the reply, and the number of the request.
    ///
    /// Once polled, the request is in flight behind all that were polled earlier. If the future is dropped
    /// then, the request is sent now or never, but not later.
    pub(crate) async fn send(&self, request: &Request<'_>) -> Result<(Value, u64), Failure> {
        let Some(connection) = lock(&self.connection).clone() else { return Err(self.ended()) };
        // Otherwise tokio might suspend a busy task here, and others would overtake it.
        let mut sending: Pin<Box<Exchange<'_>>> =
            Box::pin(unconstrained(exchange(connection, request, self.number)));
        let mut number = None;
        let reply = poll_fn(|context| {
            let _in_order = number.is_none().then(|| lock(&self.order));
            number.get_or_insert_with(next_number);
            sending.as_mut().poll(context)
        });
        match reply.await {
            Ok(Value::ServerError(error)) => Err(Failure::Refused(text_of(&error))),
            Ok(value) => Ok((value, number.unwrap_or_default())),
            Err(error) => Err(Failure::of(error)),
        }
    }

    /// Returns the reply. If none arrives in time, the connection is closed, because other replies may be
    /// missing, too.
    pub(crate) async fn call(&self, command: &Cmd, most: Duration) -> Result<(Value, u64), Failure> {
        self.call_for(&Request { command, asks: false, before: None }, most).await
    }

    /// Sends a request and its preceding commands, as [`Self::call`] sends a command.
    pub(crate) async fn call_for(
        &self,
        request: &Request<'_>,
        most: Duration,
    ) -> Result<(Value, u64), Failure> {
        let reply = async {
            tokio::select! {
                biased;
                reply = self.send(request) => reply,
                () = self.closed.cancelled() => Err(self.ended()),
            }
        };
        match timeout(most, reply).await {
            Ok(Err(broken @ Failure::Broken(..))) => {
                self.close();
                Err(broken)
            }
            Ok(reply) => reply,
            Err(_) => {
                self.given_up.store(true, Ordering::Relaxed);
                self.close();
                Err(Failure::broken(format!("no reply for {most:?}")))
            }
        }
    }
}

type Exchange<'a> = dyn Future<Output = RedisResult<Value>> + Send + 'a;

async fn exchange(
    mut connection: MultiplexedConnection,
    request: &Request<'_>,
    link: u64,
) -> RedisResult<Value> {
    let command = request.command;
    let before = if request.is_plain() { Vec::new() } else { request.words_before(link) };
    if before.is_empty() {
        return connection.send_packed_command(command).await;
    }
    let (mut pipeline, count) = (redis::pipe(), before.len() + 1);
    for each in before {
        pipeline.add_command(each);
    }
    pipeline.add_command(command.clone());
    let replies = connection.send_packed_commands(&pipeline, 0, count).await?;
    Ok(replies.into_iter().next_back().unwrap_or(Value::Nil))
}

/// rustls panics if the program has compiled in several providers, or none, and has chosen none.
#[cfg(feature = "tls")]
fn choose_provider(info: &ConnectionInfo) {
    use redis::ConnectionAddr;
    use rustls::crypto::{CryptoProvider, ring::default_provider};

    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) && CryptoProvider::get_default().is_none() {
        // It fails if another thread came first.
        drop(default_provider().install_default());
    }
}

fn text_of(error: &redis::ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

/// Parses a push, which has no names if all was flushed.
fn change(data: Vec<Value>) -> Change {
    let Some(Value::Array(names)) = data.into_iter().next() else { return Change::Any };
    let names = names
        .into_iter()
        .filter_map(|name| if let Value::BulkString(name) = name { Some(name) } else { None });
    Change::Names(names.collect())
}

/// Locks it. A panic while it was locked has left nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
