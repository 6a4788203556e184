//! The locks of an in-process server, and its commands: the core of `testing`.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{PushKind, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use crate::clock::Moment;
use crate::link::lock;
use crate::rules::MODULE_VERSION_MIN;
use crate::wanted::Kind;

/// The longest lease, in milliseconds: the default of redislock.max-lease.
const LONGEST_LEASE: u64 = 3_600_000;
/// The number of holders and waiters that LOCK.INFO lists.
const NAMED: usize = 10;

/// Tokens increase over all servers of a process.
static TOKEN: AtomicI64 = AtomicI64::new(0);

/// A message to a connection: a reply or a push, or the text of an error.
pub(crate) type Sent = Result<Value, String>;

/// The reply to a request; `None` if it comes later.
type Reply = Result<Option<Value>, String>;

struct Hold {
    name: Vec<u8>,
    owner: Vec<u8>,
    kind: Kind,
    token: i64,
    granted: Moment,
    until: Moment,
}

/// A position in the queues of some locks; `blocked` is the connection that waits for the reply.
struct Wait {
    names: Vec<Vec<u8>>,
    owner: Vec<u8>,
    kind: Kind,
    lease: Duration,
    since: Moment,
    until: Moment,
    blocked: Option<u64>,
}

/// A request for locks.
struct Asked {
    names: Vec<Vec<u8>>,
    owner: Vec<u8>,
    kind: Kind,
    lease: Duration,
    token: Option<i64>,
    queue: Option<Duration>,
    block: Option<Duration>,
}

#[derive(Default)]
struct State {
    holds: Vec<Hold>,
    /// In order of arrival, which is the order of each queue.
    waits: Vec<Wait>,
    connections: HashMap<u64, UnboundedSender<Sent>>,
    number: u64,
    tracking: HashSet<u64>,
    /// The connections to notify of the next change of each name.
    watched: HashMap<Vec<u8>, HashSet<u64>>,
}

/// The locks of one server.
#[derive(Default)]
pub(crate) struct Table {
    state: Mutex<State>,
    changed: Notify,
}

impl Table {
    /// Adds a connection, which gets its replies here.
    pub(crate) fn attach(&self, replies: UnboundedSender<Sent>) -> u64 {
        let mut state = lock(&self.state);
        state.number += 1;
        let number = state.number;
        state.connections.insert(number, replies);
        number
    }

    /// Removes a connection that has ended, and the waits over it.
    pub(crate) fn detach(&self, number: u64) {
        let mut state = lock(&self.state);
        state.connections.remove(&number);
        state.tracking.remove(&number);
        state.leave(|wait| wait.blocked == Some(number));
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        lock(&self.state).connections.clear();
    }

    /// Executes a command, and sends the reply unless the request waits.
    pub(crate) fn answer(&self, connection: u64, words: Vec<Vec<u8>>) {
        let mut state = lock(&self.state);
        state.tick();
        if let Some(reply) = state.command(connection, words).transpose() {
            state.send(connection, reply);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends all holds of a lock; returns their tokens.
    pub(crate) fn lose(&self, name: &[u8]) -> Vec<i64> {
        let mut state = lock(&self.state);
        let lost = state.holds.extract_if(.., |hold| hold.name == name).map(|hold| hold.token).collect();
        state.changes(name);
        lost
    }

    /// Ends leases and waits when their time is up, for ever.
    pub(crate) async fn keep_time(&self) {
        loop {
            let changed = self.changed.notified();
            let due = lock(&self.state).due();
            tokio::select! {
                () = sleep(due.left()) => lock(&self.state).tick(),
                () = changed => {}
            }
        }
    }
}

impl State {
    fn send(&self, connection: u64, reply: Sent) {
        // An ended connection receives nothing.
        drop(self.connections.get(&connection).map(|replies| replies.send(reply)));
    }

    /// Returns the next time at which a lease or a wait ends.
    fn due(&self) -> Moment {
        let untils = self.holds.iter().map(|hold| hold.until).chain(self.waits.iter().map(|wait| wait.until));
        untils.min().unwrap_or(Moment::NEVER)
    }

    /// Ends the leases and waits whose time is up.
    fn tick(&mut self) {
        let now = Moment::now();
        let over: Vec<_> = self.holds.extract_if(.., |hold| hold.until <= now).collect();
        self.leave(|wait| wait.until <= now);
        over.iter().for_each(|hold| self.changes(&hold.name));
    }

    fn command(&mut self, connection: u64, mut words: Vec<Vec<u8>>) -> Reply {
        let command = text(&words.remove(0)).to_ascii_uppercase();
        match command.as_str() {
            "HELLO" => return Ok(Some(hello())),
            "CLIENT" | "SELECT" => {
                if words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"TRACKING")) {
                    self.tracking.insert(connection);
                }
                return Ok(Some(Value::Okay));
            }
            "LOCK.FENCE" => return Ok(Some(self.fence(connection, &words))),
            "LOCK.INFO" => return Ok(Some(self.info(&words[0]))),
            _ => {}
        }
        let asked = Asked::of(&command, words)?;
        match command.as_str() {
            "LOCK.ACQUIRE" | "LOCK.MACQUIRE" => self.acquire(connection, asked),
            "LOCK.RENEW" => Ok(Some(self.renew(&asked))),
            "LOCK.RELEASE" => Ok(Some(self.release(&asked))),
            _ => Err(format!("ERR redislock_client::testing has no {command}")),
        }
    }

    fn acquire(&mut self, connection: u64, asked: Asked) -> Reply {
        let (now, waits) = (Moment::now(), asked.queue.or(asked.block));
        for name in &asked.names {
            let mut kinds = self.holds.iter().filter(|hold| hold.name == *name).map(|hold| hold.kind);
            let waiting = || self.waits.iter().filter(|wait| wait.names.contains(name)).map(|wait| wait.kind);
            if let Some(other) = kinds.next().or_else(|| waiting().next())
                && limit(other) != limit(asked.kind)
            {
                let is =
                    limit(other).map_or("exclusive or SHARED".to_owned(), |limit| format!("LIMIT {limit}"));
                return Err(format!(
                    "LOCKKIND this lock is {is} now; all its holders and waiters must use that kind"
                ));
            }
        }
        if self.holds.iter().any(|hold| hold.owner == asked.owner && asked.names.contains(&hold.name)) {
            return self.again(&asked, now).map(Some);
        }
        let is_its = |wait: &Wait| {
            wait.owner == asked.owner && wait.names.iter().any(|name| asked.names.contains(name))
        };
        let is_same = |wait: &Wait| (&wait.names, wait.kind) == (&asked.names, asked.kind);
        let is_another = self.waits.iter().any(|wait| is_its(wait) && !is_same(wait));
        if is_another && waits.is_some() {
            self.leave(is_its); // which loses the position
        }
        let overtake = |state: &Self| {
            let told = "UNBLOCKED a newer request of the same owner took over this place in the queue";
            let its = state.waits.iter().filter(|wait| is_its(wait)).filter_map(|wait| wait.blocked);
            its.for_each(|connection| state.send(connection, Err(told.to_owned())));
        };
        // A request that does not wait stays behind its owner's wait in another mode.
        let may = waits.is_some() || !is_another;
        if may && self.fits(&asked.names, &asked.owner, asked.kind) {
            overtake(self);
            self.waits.retain(|wait| !is_its(wait));
            return Ok(Some(Value::Int(self.grant(&asked.names, &asked.owner, asked.kind, asked.lease))));
        }
        let Some(most) = waits else { return Ok(Some(Value::Nil)) };
        self.refuse_deadlock(&asked)?;
        overtake(self);
        let blocked = asked.block.map(|_| connection);
        let place = self.waits.iter().position(is_its);
        let since = place.map_or(now, |at| self.waits[at].since);
        let Asked { names, owner, kind, lease, .. } = asked;
        let wait = Wait { names, owner, kind, lease, since, until: now + most, blocked };
        match place {
            Some(at) => self.waits[at] = wait,
            None => self.waits.push(wait),
        }
        Ok(if blocked.is_some() { None } else { Some(Value::Nil) })
    }

    /// The same owner asks again: it gets the same token, and the longer lease.
    fn again(&mut self, asked: &Asked, now: Moment) -> Result<Value, String> {
        let is_its = |hold: &&mut Hold| hold.owner == asked.owner && asked.names.contains(&hold.name);
        let mut its: Vec<_> = self.holds.iter_mut().filter(is_its).collect();
        let token = its[0].token;
        // A writer may continue as a reader.
        let is_lowered =
            |kind| asked.names.len() == 1 && kind == Kind::Exclusive && asked.kind == Kind::Shared;
        let fits = |hold: &Hold| hold.token == token && (hold.kind == asked.kind || is_lowered(hold.kind));
        if its.len() < asked.names.len() || !its.iter().all(|hold| fits(hold)) {
            return Err(format!(
                "LOCKHELD '{}' is held by this owner already, but not in the requested way: release every key that \
                 this request names, then ask again",
                text(&asked.names[0])
            ));
        }
        for hold in &mut its {
            (hold.kind, hold.until) = (asked.kind, hold.until.max(now + asked.lease));
        }
        asked.names.iter().for_each(|name| self.changes(name));
        Ok(Value::Int(token))
    }

    fn grant(&mut self, names: &[Vec<u8>], owner: &[u8], kind: Kind, lease: Duration) -> i64 {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        TOKEN.fetch_max(i64::try_from(micros).unwrap_or_default(), Ordering::Relaxed);
        let (token, granted) = (TOKEN.fetch_add(1, Ordering::Relaxed) + 1, Moment::now());
        let holds = names.iter().map(|name| Hold {
            name: name.clone(),
            owner: owner.to_vec(),
            kind,
            token,
            granted,
            until: granted + lease,
        });
        self.holds.extend(holds);
        names.iter().for_each(|name| self.changes(name));
        token
    }

    /// Returns the owners that keep this one from this lock, and their modes.
    fn others<'a>(&'a self, name: &'a [u8], owner: &'a [u8]) -> impl Iterator<Item = (&'a [u8], Kind)> {
        let holds = self.holds.iter().filter(move |hold| hold.name == name && hold.owner != owner);
        let queue = self.waits.iter().filter(move |wait| wait.names.iter().any(|its| its == name));
        let before = queue.take_while(move |wait| wait.owner != owner);
        let holders = holds.map(|hold| (&*hold.owner, hold.kind));
        holders.chain(before.map(|wait| (&*wait.owner, wait.kind)))
    }

    /// Returns true if holders and earlier waiters leave room for this owner.
    fn fits(&self, names: &[Vec<u8>], owner: &[u8], kind: Kind) -> bool {
        names.iter().all(|name| {
            let mut others = self.others(name, owner).map(|(_, kind)| kind);
            match kind {
                Kind::Exclusive => others.next().is_none(),
                Kind::Shared => others.all(|other| other == Kind::Shared),
                Kind::Limit(limit) => others.count() < limit as usize,
            }
        })
    }

    /// Refuses a wait that would never end, because the owners that it waits for wait for its owner.
    fn refuse_deadlock(&self, asked: &Asked) -> Result<(), String> {
        let cycle = self.chain(&asked.names, &asked.owner, asked.kind, &mut vec![&asked.owner]);
        cycle.map_or(Ok(()), |cycle| Err(format!("DEADLOCK this wait would never end: {}", cycle.join(", "))))
    }

    /// Returns the steps by which this wait depends on the first of these owners, if it does.
    fn chain<'a>(
        &'a self,
        names: &'a [Vec<u8>],
        owner: &'a [u8],
        kind: Kind,
        seen: &mut Vec<&'a [u8]>,
    ) -> Option<Vec<String>> {
        // A permit may come from any of the holders.
        for name in names.iter().filter(|_| limit(kind).is_none()) {
            if self.fits(std::slice::from_ref(name), owner, kind) {
                continue;
            }
            for (other, _) in self.others(name, owner) {
                let step =
                    format!("'{}' waits for '{}' and there for '{}'", text(owner), text(name), text(other));
                if other == seen[0] {
                    return Some(vec![step]);
                }
                if seen.contains(&other) {
                    continue;
                }
                seen.push(other);
                // An owner continues once any of its waits ends.
                let its = self.waits.iter().filter(|wait| wait.owner == other);
                let rests: Option<Vec<_>> =
                    its.map(|wait| self.chain(&wait.names, other, wait.kind, seen)).collect();
                if let Some(rest) = rests.and_then(|rests| rests.into_iter().next()) {
                    return Some([vec![step], rest].concat());
                }
            }
        }
        None
    }

    fn hold_of(&self, asked: &Asked) -> Option<usize> {
        let has_token = |hold: &Hold| asked.token.is_none_or(|token| token == hold.token);
        self.holds
            .iter()
            .position(|hold| hold.name == asked.names[0] && hold.owner == asked.owner && has_token(hold))
    }

    fn renew(&mut self, asked: &Asked) -> Value {
        let Some(at) = self.hold_of(asked) else { return Value::Int(0) };
        self.holds[at].until = Moment::now() + asked.lease;
        Value::Int(1)
    }

    fn release(&mut self, asked: &Asked) -> Value {
        self.leave(|wait| wait.owner == asked.owner && wait.names.contains(&asked.names[0]));
        let Some(at) = self.hold_of(asked) else { return Value::Int(0) };
        self.holds.remove(at);
        self.changes(&asked.names[0]);
        Value::Int(1)
    }

    fn fence(&mut self, connection: u64, words: &[Vec<u8>]) -> Value {
        if self.tracking.contains(&connection) {
            self.watched.entry(words[0].clone()).or_default().insert(connection);
        }
        let tokens = self.holds.iter().filter(|hold| hold.name == words[0]).map(|hold| hold.token);
        match words.get(1) {
            Some(asked) => {
                Value::Int(tokens.map(|token| token.to_string()).any(|its| its == text(asked)).into())
            }
            None => tokens.max().map_or(Value::Nil, Value::Int),
        }
    }

    fn info(&self, name: &[u8]) -> Value {
        let holds: Vec<_> = self.holds.iter().filter(|hold| hold.name == name).collect();
        let waits: Vec<_> =
            self.waits.iter().filter(|wait| wait.names.iter().any(|its| its == name)).collect();
        let kinds = holds.iter().map(|hold| hold.kind).chain(waits.iter().map(|wait| wait.kind));
        let Some(kind) = kinds.into_iter().next() else { return Value::Nil };
        let holder = |hold: &&Hold| {
            map([
                ("owner", Value::BulkString(hold.owner.clone())),
                ("token", Value::Int(hold.token)),
                ("lease-left-ms", millis(hold.until.left())),
                ("held-ms", millis(hold.granted.age())),
            ])
        };
        let waiter = |wait: &&Wait| {
            map([("owner", Value::BulkString(wait.owner.clone())), ("waited-ms", millis(wait.since.age()))])
        };
        let word = match kind {
            Kind::Exclusive => "exclusive",
            Kind::Shared => "shared",
            Kind::Limit(_) => "limit",
        };
        map([
            ("kind", Value::BulkString(word.into())),
            ("limit", limit(kind).map_or(Value::Nil, |limit| Value::Int(limit.into()))),
            ("holders", Value::Array(holds.iter().take(NAMED).map(holder).collect())),
            ("holds", number(holds.len())),
            ("queue", Value::Array(waits.iter().take(NAMED).map(waiter).collect())),
            ("waiters", number(waits.len())),
        ])
    }

    // The consequences of a change.

    /// Ends these waits without a grant, which may admit others.
    fn leave(&mut self, mut is_left: impl FnMut(&Wait) -> bool) {
        let left: Vec<_> = self.waits.extract_if(.., |wait| is_left(wait)).collect();
        for wait in &left {
            if let Some(connection) = wait.blocked {
                self.send(connection, Ok(Value::Nil));
            }
        }
        left.iter().flat_map(|wait| &wait.names).for_each(|name| self.changes(name));
    }

    /// Notifies the connections that watch this lock, and grants to the blocked requests whose turn it is.
    fn changes(&mut self, name: &[u8]) {
        for connection in self.watched.remove(name).unwrap_or_default() {
            let data = vec![Value::Array(vec![Value::BulkString(name.to_vec())])];
            self.send(connection, Ok(Value::Push { kind: PushKind::Invalidate, data }));
        }
        let is_next = |wait: &Wait| {
            wait.blocked.is_some()
                && wait.names.iter().any(|its| its == name)
                && self.fits(&wait.names, &wait.owner, wait.kind)
        };
        if let Some(at) = self.waits.iter().position(is_next) {
            let wait = self.waits.remove(at);
            let token = self.grant(&wait.names, &wait.owner, wait.kind, wait.lease); // comes here again
            self.send(wait.blocked.unwrap_or_default(), Ok(Value::Int(token)));
        }
    }
}

impl Asked {
    fn of(command: &str, mut words: Vec<Vec<u8>>) -> Result<Self, String> {
        let wrong = || format!("ERR redislock_client::testing does not know these words of {command}");
        let number = |word: Option<Vec<u8>>| word.and_then(|word| text(&word).parse::<u64>().ok());
        let count = if command == "LOCK.MACQUIRE" { number(Some(words.remove(0))) } else { Some(1) };
        let count = count.and_then(|count| usize::try_from(count).ok()).ok_or_else(wrong)?;
        if words.len() <= count {
            return Err(wrong());
        }
        let mut rest = words.split_off(count).into_iter();
        let owner = rest.next().ok_or_else(wrong)?;
        let (kind, lease) = (Kind::Exclusive, Duration::ZERO);
        let mut asked = Self { names: words, owner, kind, lease, token: None, queue: None, block: None };
        while let Some(option) = rest.next() {
            if option == b"SHARED" {
                asked.kind = Kind::Shared;
                continue;
            }
            let value = number(rest.next()).ok_or_else(wrong)?;
            match &option[..] {
                b"PX" if value > LONGEST_LEASE => {
                    return Err(format!(
                        "ERR PX must be an integer from 1 to {LONGEST_LEASE} (milliseconds)"
                    ));
                }
                b"PX" => asked.lease = Duration::from_millis(value),
                b"QUEUE" => asked.queue = Some(Duration::from_millis(value)),
                b"BLOCK" => asked.block = Some(Duration::from_millis(value)),
                b"TOKEN" => asked.token = i64::try_from(value).ok(),
                b"LIMIT" => asked.kind = Kind::Limit(u32::try_from(value).map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        Ok(asked)
    }
}

fn limit(kind: Kind) -> Option<u32> {
    if let Kind::Limit(limit) = kind { Some(limit) } else { None }
}

fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn number(count: usize) -> Value {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

fn millis(time: Duration) -> Value {
    Value::Int(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (Value::BulkString(name.into()), value)).collect())
}

fn hello() -> Value {
    let version = Value::Int(i64::try_from(MODULE_VERSION_MIN).unwrap_or_default());
    let module = map([("name", Value::BulkString(b"redislock".into())), ("ver", version)]);
    map([
        ("proto", Value::Int(3)),
        ("role", Value::BulkString(b"master".into())),
        ("modules", Value::Array(vec![module])),
    ])
}
