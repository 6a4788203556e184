//! The conformance kit's adapter: JSON lines over standard input and output. `clients/conformance/PROTOCOL.md`.

mod process;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redislock_client::hooks::Counters;
use redislock_client::{Error, Guard, Hold, Holder, Leader, Lock, Locks, redlock};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Metadata, Subscriber};

/// Passes on what the library logs.
struct Logged;

impl Subscriber for Logged {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("redislock_client") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        let mut message = Message(String::new());
        event.record(&mut message);
        say(&json!({"event": "log", "level": level, "message": message.0}));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The reason why a request has no `ok`.
enum Refused {
    Lock(Error),
    /// The error of a body, which is none of the library's.
    Body,
    /// With the members of the answer.
    As(Value),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

type Answer = Result<Value, Refused>;

/// The objects that the adapter has open.
#[derive(Default)]
struct Adapter {
    locks: OnceLock<Locks>,
    counted: Arc<Counters>,
    guards: Mutex<HashMap<String, Guard>>,
    leaders: Mutex<HashMap<String, Leader>>,
    objects: Mutex<HashMap<String, Arc<Lock>>>,
    cancels: Mutex<HashMap<u64, Arc<Notify>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(message: &Value) {
    println!("{message}");
}

fn text(request: &Value, member: &str) -> String {
    request[member].as_str().unwrap_or_default().to_owned()
}

fn duration(request: &Value, member: &str) -> Option<Duration> {
    request[member].as_u64().map(Duration::from_millis)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Adapter {
    fn locks(&self) -> Result<&Locks, Refused> {
        self.locks.get().ok_or_else(|| Refused::As(json!({"kind": "Other", "message": "open comes first"})))
    }

    async fn answer(&self, request: &Value) -> Answer {
        match request["op"].as_str().unwrap_or_default() {
            "open" => self.open(request),
            "acquire" => self.acquire(request).await,
            "try" => self.try_acquire(request).await,
            "info" => self.info(request).await,
            "ping" => Ok(json!({"version": self.locks()?.ping().await?})),
            "check" => self.check(request),
            "release" => self.release(request).await,
            "run" => self.run(request).await,
            "cycle" => self.cycle(request).await,
            "cancel" => Ok(self.cancel(request)),
            "fence" => {
                let token = request["token"].as_u64().unwrap_or_default();
                self.locks()?.check_token(text(request, "name"), token).await?;
                Ok(json!({}))
            }
            "lead" => self.lead(request),
            "resign" => {
                let leader = lock(&self.leaders).remove(&text(request, "leader"));
                if let Some(leader) = leader {
                    leader.resign().await;
                }
                Ok(json!({}))
            }
            "stats" => Ok(self.stats()),
            "threads" => Ok(process::threads()),
            "close" => {
                self.close().await;
                Ok(json!({}))
            }
            _ => Err(Refused::As(json!({"kind": "Unsupported", "message": "there is no such operation"}))),
        }
    }

    fn open(&self, request: &Value) -> Answer {
        let addresses = request["addresses"].as_array().cloned().unwrap_or_default();
        let urls: Vec<_> =
            addresses.iter().map(|each| format!("redis://{}", each.as_str().unwrap_or_default())).collect();
        let mut features = vec![
            "push",
            "cancel",
            "body",
            "tasks",
            "leader",
            "log",
            "stats",
            "sentinel",
            "cluster",
            "independent",
            "min_hold",
            "stubborn",
        ];
        let mode = text(request, "mode");
        let mut builder = match mode.as_str() {
            "sentinel" => Locks::builder().sentinel(urls, text(request, "service")),
            "cluster" => Locks::builder().cluster(urls),
            "independent" => redlock::builder(urls),
            _ => Locks::builder().server(urls.into_iter().next().unwrap_or_default()),
        };
        builder = builder.hooks(self.counted.clone());
        if mode != "independent" {
            features.push("fence");
        }
        if let Some(lease) = duration(request, "lease_ms") {
            builder = builder.lease(lease);
        }
        if let Some(label) = request["label"].as_str() {
            builder = builder.label(label);
        }
        builder = builder.prefix(text(request, "prefix"));
        if let Some(waiting) = request["waiting_connections"].as_u64() {
            builder = builder.max_queued_per_lock(usize::try_from(waiting).unwrap_or(usize::MAX));
        }
        drop(self.locks.set(builder.build()?));
        Ok(json!({"drivers": ["redis-rs"], "features": features}))
    }

    /// The lock that is asked for: the same object for requests that name one.
    fn lock_of(&self, request: &Value) -> Result<Arc<Lock>, Refused> {
        let made = Arc::new(self.new_lock(request)?);
        let Some(id) = request["lock"].as_str() else {
            return Ok(made);
        };
        Ok(lock(&self.objects).entry(id.to_owned()).or_insert(made).clone())
    }

    fn new_lock(&self, request: &Value) -> Result<Lock, Refused> {
        let (locks, name) = (self.locks()?, text(request, "name"));
        let names: Option<Vec<_>> =
            request["names"].as_array().map(|names| names.iter().filter_map(Value::as_str).collect());
        let mut lock = match (names, request["kind"].as_str().unwrap_or_default()) {
            (Some(names), "read") => locks.read_many(names),
            (Some(names), _) => locks.many(names),
            (None, "read") => locks.read(name),
            (None, "write") => locks.write(name),
            (None, "semaphore") => locks.semaphore(
                name,
                u32::try_from(request["limit"].as_u64().unwrap_or_default()).unwrap_or_default(),
            ),
            _ => locks.lock(name),
        };
        lock = lock.renew(request["renew"].as_bool().unwrap_or(true));
        if let Some(lease) = duration(request, "lease_ms") {
            lock = lock.lease(lease);
        }
        if let Some(wait) = duration(request, "wait_ms") {
            lock = lock.wait(wait);
        }
        if let Some(longest) = duration(request, "longest_ms") {
            lock = lock.max_hold(longest);
        }
        if let Some(least) = duration(request, "min_hold_ms") {
            lock = lock.min_hold(least);
        }
        if let Some(owner) = request["owner"].as_str() {
            lock = lock.owner(owner);
        }
        Ok(lock)
    }

    async fn acquire(&self, request: &Value) -> Answer {
        let guard = self.lock_of(request)?.acquire().await?;
        Ok(self.keep(request, guard))
    }

    async fn try_acquire(&self, request: &Value) -> Answer {
        let guard = self.lock_of(request)?.try_acquire().await?;
        Ok(guard.map_or_else(|| json!({}), |guard| self.keep(request, guard)))
    }

    async fn info(&self, request: &Value) -> Answer {
        let Some(info) = self.locks()?.info(text(request, "name")).await? else {
            return Ok(json!({"holders": [], "waiters": 0}));
        };
        let told = |each: &Holder| json!({"owner": each.owner, "token": each.token, "left_ms": milliseconds(each.left)});
        let holders: Vec<_> = info.holders.iter().map(told).collect();
        Ok(json!({"holders": holders, "waiters": info.waiters}))
    }

    fn keep(&self, request: &Value, guard: Guard) -> Value {
        let hold = text(request, "hold");
        let remaining = milliseconds(guard.remaining());
        let ok = json!({"token": guard.token(), "remaining_ms": remaining, "owner": guard.owner()});
        watch(hold.clone(), &guard);
        lock(&self.guards).insert(hold, guard);
        ok
    }

    fn check(&self, request: &Value) -> Answer {
        match lock(&self.guards).get(&text(request, "hold")) {
            Some(guard) => Ok(json!({"remaining_ms": milliseconds(guard.check()?)})),
            None => Err(Refused::As(json!({"kind": "Other", "message": "there is no such hold"}))),
        }
    }

    async fn release(&self, request: &Value) -> Answer {
        let guard = lock(&self.guards).remove(&text(request, "hold"));
        if let Some(guard) = guard {
            guard.release().await?;
        }
        Ok(json!({}))
    }

    async fn run(&self, request: &Value) -> Answer {
        let (token, is_finished) = (AtomicU64::new(0), AtomicBool::new(false));
        let (body, raises) = (duration(request, "body_ms").unwrap_or_default(), request["raise"] == true);
        let lock = self.lock_of(request)?;
        if request["stubborn"] == true {
            return run_on_a_thread(lock, text(request, "hold"), body).await;
        }
        let done = lock.run(|hold| {
            token.store(hold.token(), Ordering::Relaxed);
            watch(text(request, "hold"), &hold);
            let is_finished = &is_finished;
            async move {
                sleep(body).await;
                is_finished.store(true, Ordering::Relaxed);
                if raises { Err(Refused::Body) } else { Ok(()) }
            }
        });
        let (done, is_finished) = (done.await, is_finished.load(Ordering::Relaxed));
        let ended = if is_finished { "finished" } else { "cancelled" };
        match done {
            Ok(()) => Ok(json!({"token": token.load(Ordering::Relaxed), "body": ended})),
            Err(Refused::Body) => Ok(json!({"token": token.load(Ordering::Relaxed), "body": "raised"})),
            Err(Refused::Lock(error)) => {
                let mut told = told(&error);
                told["body"] = json!(ended);
                Err(Refused::As(told))
            }
            Err(other) => Err(other),
        }
    }

    async fn cycle(&self, request: &Value) -> Answer {
        let (lock, times) = (self.lock_of(request)?, request["times"].as_u64().unwrap_or_default());
        for _ in 0..times {
            lock.acquire().await?.release().await?;
        }
        Ok(json!({ "times": times }))
    }

    fn cancel(&self, request: &Value) -> Value {
        if let Some(cancel) = request["of"].as_u64().and_then(|of| lock(&self.cancels).get(&of).cloned()) {
            cancel.notify_one();
        }
        json!({})
    }

    fn lead(&self, request: &Value) -> Answer {
        let id = text(request, "leader");
        let (elected, deposed, failed) = (id.clone(), id.clone(), id.clone());
        let (fails, until) = (request["fail"] == true, text(request, "until_lost"));
        let mut candidate = self.locks()?.leader(text(request, "name"));
        if let Some(lease) = duration(request, "lease_ms") {
            candidate = candidate.lease(lease);
        }
        let leader = candidate
            .on_elected(move |hold| {
                say(&json!({"event": "elected", "leader": elected, "token": hold.token()}));
                let (leader, until) = (elected.clone(), until.clone());
                async move {
                    assert!(!fails, "the leader's own panic");
                    if !until.is_empty() {
                        let _ended = Ended(leader);
                        lead_until_lost(&hold, &until).await;
                    }
                }
            })
            .on_deposed(move |reason| {
                say(&json!({"event": "deposed", "leader": deposed, "reason": reason.as_str()}))
            })
            .on_error(move |error| {
                say(&json!({"event": "failed", "leader": failed, "message": error.to_string()}))
            })
            .stand()?;
        lock(&self.leaders).insert(id, leader);
        Ok(json!({}))
    }

    fn stats(&self) -> Value {
        let counted = &self.counted;
        json!({
            "grants": counted.grants.get(), "timeouts": counted.timeouts.get(), "losses": counted.losses.get(),
            "releases": counted.releases.get(), "waits": counted.waits.get(),
        })
    }

    async fn close(&self) {
        if let Some(locks) = self.locks.get() {
            locks.close().await;
        }
    }
}

/// Reports that the work of a leader has ended, by itself or because the library has dropped it.
struct Ended(String);

impl Drop for Ended {
    fn drop(&mut self) {
        say(&json!({"event": "ended", "leader": self.0}));
    }
}

/// Works until the loss.
async fn lead_until_lost(hold: &Hold, until: &str) {
    if until == "signal" {
        hold.lost().await;
    }
    while hold.check().is_ok() {
        if until == "check" {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Runs a body that nothing can drop in the middle, because it blocks its thread.
async fn run_on_a_thread(lock: Arc<Lock>, hold: String, body: Duration) -> Answer {
    let runtime = tokio::runtime::Handle::current();
    let work = async move |held: Hold| {
        say(&json!({"event": "begun", "hold": hold}));
        std::thread::sleep(body);
        Ok::<_, Error>(held.token())
    };
    let done = tokio::task::spawn_blocking(move || runtime.block_on(lock.run(work))).await;
    let token =
        done.map_err(|panic| Refused::As(json!({"kind": "Other", "message": panic.to_string()})))??;
    Ok(json!({"token": token, "body": "finished"}))
}

/// Reports the loss of a hold.
fn watch(id: String, hold: &Hold) {
    let hold = hold.clone();
    tokio::spawn(async move {
        if let Some(reason) = hold.lost().await {
            let mut event = json!({"event": "lost", "hold": id, "reason": reason.as_str()});
            if let Some(cause) = hold.cause() {
                event["cause"] = json!(cause.to_string());
            }
            say(&event);
        }
    });
}

/// An error as the kit knows it.
fn told(error: &Error) -> Value {
    let kind = match error {
        Error::LockTimeout { .. } => "LockTimeout",
        Error::LockLost { .. } => "LockLost",
        Error::Deadlock { .. } => "Deadlock",
        Error::AlreadyHeld { .. } => "AlreadyHeld",
        Error::Fenced { .. } => "Fenced",
        Error::LockKindMismatch { .. } => "LockKindMismatch",
        Error::QueueFull { .. } => "QueueFull",
        Error::Quarantine { .. } => "Quarantine",
        Error::NotConfirmed { .. } => "NotConfirmed",
        Error::ModuleMissing { .. } => "ModuleMissing",
        Error::ConnectionFailed { .. } => "ConnectionFailed",
        Error::Closed => "Cancelled",
        _ => "Other",
    };
    let mut told = json!({"kind": kind, "message": error.to_string()});
    match error {
        Error::Deadlock { cycle, .. } => {
            told["cycle"] = cycle.iter().map(|step| json!([step.owner, step.name, step.holder])).collect();
        }
        Error::Quarantine { left, .. } => told["left_ms"] = json!(milliseconds(*left)),
        _ => {}
    }
    told
}

/// Answers this request, unless it is cancelled before.
async fn serve(adapter: Arc<Adapter>, request: Value, cancel: Arc<Notify>) {
    let id = &request["id"];
    let answer: Answer = tokio::select! {
        biased;
        answer = adapter.answer(&request) => answer,
        () = cancel.notified() => Err(Refused::As(json!({"kind": "Cancelled", "message": "it was cancelled"}))),
    };
    lock(&adapter.cancels).remove(&id.as_u64().unwrap_or_default());
    say(&match answer {
        Ok(ok) => json!({"id": id, "ok": ok}),
        Err(Refused::Lock(error)) => json!({"id": id, "error": told(&error)}),
        Err(Refused::As(error)) => json!({"id": id, "error": error}),
        Err(Refused::Body) => json!({"id": id, "error": {"kind": "Other", "message": "the body raised"}}),
    });
}

/// Takes requests until standard input ends.
async fn take_all() -> std::io::Result<()> {
    let adapter = Arc::new(Adapter::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let request: Value = serde_json::from_str(&line)?;
        let cancel = Arc::new(Notify::new());
        lock(&adapter.cancels).insert(request["id"].as_u64().unwrap_or_default(), cancel.clone());
        // One thread runs them all, so they call the library in the order in which they came.
        spawn(serve(adapter.clone(), request, cancel));
    }
    adapter.close().await;
    Ok(())
}

fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(work));
}

fn main() -> std::io::Result<()> {
    set_global_default(Logged).map_err(std::io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(take_all());
    // The thread that reads standard input ends on its own.
    runtime.shutdown_background();
    result
}
