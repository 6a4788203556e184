//! Plain connections to the servers, for what the client does not ask.

use std::time::Duration;

use redislock_client::redis::{
    Client, Cmd, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value, cmd,
};

use crate::exit::{Code, Failure, code_of_reply};
use crate::target::Place;

/// The time limit of a connection and of a reply.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// The number of redirections that a request follows.
const REDIRECTIONS: u32 = 5;

/// A server, and a connection to it.
pub struct Node {
    pub address: String,
    connection: Connection,
}

/// The reason why there is no reply.
#[derive(Debug)]
pub enum Refusal {
    /// No connection, or no reply in time.
    Broken(String),
    /// An error reply.
    Reply(String),
}

impl Refusal {
    pub fn text(&self) -> &str {
        match self {
            Self::Broken(text) | Self::Reply(text) => text,
        }
    }

    fn of(error: RedisError) -> Self {
        if error.kind() == ErrorKind::AuthenticationFailed {
            // The driver keeps no word of the server's.
            return Self::Reply("WRONGPASS the server refused the login".to_owned());
        }
        let text = match error.is_timeout() {
            true => format!("no reply within {} s", PATIENCE.as_secs()),
            false => error.to_string(),
        };
        match error.into_server_errors() {
            Some(errors) if !errors.is_empty() => {
                let (_, error) = &errors[0];
                let details = error.details().map(|details| format!(" {details}")).unwrap_or_default();
                Self::Reply(format!("{}{details}", error.code()))
            }
            _ => Self::Broken(text),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Broken(text) => Self::new(Code::Unavailable, text),
            Refusal::Reply(text) => Self::new(code_of_reply(&text), text),
        }
    }
}

impl Node {
    /// Connects and logs in.
    pub fn open(info: &ConnectionInfo) -> Result<Self, Refusal> {
        let address = info.addr().to_string();
        let at = |error: RedisError| match Refusal::of(error) {
            Refusal::Broken(text) => Refusal::Broken(format!("{address}: {text}")),
            reply => reply,
        };
        let opened = Client::open(info.clone()).and_then(|client| {
            let connection = client.get_connection_with_timeout(PATIENCE)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            connection.set_write_timeout(Some(PATIENCE))?;
            Ok(connection)
        });
        let connection = opened.map_err(at)?;
        Ok(Self { address, connection })
    }

    pub fn ask(&mut self, command: &Cmd) -> Result<Value, Refusal> {
        command.query(&mut self.connection).map_err(Refusal::of)
    }

    /// Asks with plain words.
    pub fn words(&mut self, words: &[&str]) -> Result<Value, Refusal> {
        self.ask(&command(words))
    }

    /// Asks with plain words, for a text.
    pub fn text(&mut self, words: &[&str]) -> Result<String, Refusal> {
        Ok(match self.words(words)? {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Value::Okay => "OK".to_owned(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text,
            other => format!("{other:?}"),
        })
    }
}

/// A command of plain words.
pub fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

/// The same login at another address.
fn moved(login: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match login.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    login.clone().set_addr(address)
}

/// The host of an address, for a node that names none for itself.
fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => "127.0.0.1".to_owned(),
    }
}

/// Returns the addresses of all primaries.
pub fn primaries(place: &Place) -> Result<Vec<ConnectionInfo>, Failure> {
    match place {
        Place::Single(info) => Ok(vec![info.clone()]),
        Place::Sentinel { sentinels, service, primary } => {
            first_of(sentinels, |sentinel| primary_of(sentinel, service, primary)).map(|info| vec![info])
        }
        Place::Cluster(nodes) => first_of(nodes, primaries_of),
    }
}

/// The first answer of any of these; the last failure if none answers.
fn first_of<T>(
    infos: &[ConnectionInfo],
    ask: impl Fn(&ConnectionInfo) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut last = Failure::usage("--url: expected at least one server");
    for info in infos {
        match ask(info) {
            Ok(found) => return Ok(found),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn primary_of(
    sentinel: &ConnectionInfo,
    service: &str,
    login: &ConnectionInfo,
) -> Result<ConnectionInfo, Failure> {
    let mut node = Node::open(sentinel)?;
    let found = node.words(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service])?;
    let unknown = || {
        let text = format!("{}: this sentinel watches no primary named {service}", node.address);
        Failure::new(Code::Config, text)
    };
    let Value::Array(found) = found else { return Err(unknown()) };
    let [Value::BulkString(host), Value::BulkString(port)] = &found[..] else { return Err(unknown()) };
    let port = String::from_utf8_lossy(port).parse().map_err(|_| unknown())?;
    Ok(moved(login, &String::from_utf8_lossy(host), port))
}

fn primaries_of(info: &ConnectionInfo) -> Result<Vec<ConnectionInfo>, Failure> {
    Ok(members_of(info)?.into_iter().filter(|member| member.is_primary).map(|member| member.info).collect())
}

/// A server of a group.
pub struct Member {
    pub info: ConnectionInfo,
    pub is_primary: bool,
}

/// All servers that hold the locks, replicas too.
pub fn members(place: &Place) -> Result<Vec<Member>, Failure> {
    match place {
        Place::Single(info) => Ok(alone(info)),
        Place::Sentinel { sentinels, service, primary } => {
            first_of(sentinels, |sentinel| watched(sentinel, service, primary))
        }
        Place::Cluster(nodes) => first_of(nodes, members_of),
    }
}

/// A server that is named alone, and the replicas that it knows, if the user may see them.
fn alone(info: &ConnectionInfo) -> Vec<Member> {
    let text = Node::open(info).and_then(|mut node| node.text(&["INFO", "replication"])).unwrap_or_default();
    // slave0:ip=10.0.0.2,port=6379,state=online,offset=42,lag=1
    let replicas = text.lines().filter_map(|line| {
        let (name, rest) = line.trim_end().split_once(':')?;
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let field = |wanted| rest.split(',').find_map(|pair| pair.strip_prefix(wanted)?.strip_prefix('='));
        Some(Member { info: moved(info, field("ip")?, field("port")?.parse().ok()?), is_primary: false })
    });
    [Member { info: info.clone(), is_primary: true }].into_iter().chain(replicas).collect()
}

/// The primary, and the replicas that a sentinel knows.
fn watched(sentinel: &ConnectionInfo, service: &str, login: &ConnectionInfo) -> Result<Vec<Member>, Failure> {
    let mut found = vec![Member { info: primary_of(sentinel, service, login)?, is_primary: true }];
    let Value::Array(replicas) = Node::open(sentinel)?.words(&["SENTINEL", "REPLICAS", service])? else {
        return Ok(found);
    };
    for replica in replicas {
        let Some(words) = texts(replica) else { continue };
        let field = |name: &str| words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| &pair[1]);
        let (Some(host), Some(port)) = (field("ip"), field("port")) else { continue };
        let Ok(port) = port.parse() else { continue };
        found.push(Member { info: moved(login, host, port), is_primary: false });
    }
    Ok(found)
}

/// The texts of an array or a map.
fn texts(value: Value) -> Option<Vec<String>> {
    let words = match value {
        Value::Array(words) => words,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => return None,
    };
    let text = |word| match word {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::SimpleString(text) => text,
        _ => String::new(),
    };
    Some(words.into_iter().map(text).collect())
}

fn members_of(info: &ConnectionInfo) -> Result<Vec<Member>, Failure> {
    let Value::Array(rows) = Node::open(info)?.words(&["CLUSTER", "SLOTS"])? else { return Ok(Vec::new()) };
    let mut found: Vec<Member> = Vec::new();
    for row in rows {
        let Value::Array(row) = row else { continue };
        for (number, server) in row.iter().skip(2).enumerate() {
            let Value::Array(server) = server else { continue };
            let [host, Value::Int(port), ..] = &server[..] else { continue };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
                _ => host_of(info),
            };
            let Ok(port) = u16::try_from(*port) else { continue };
            let node = moved(info, &host, port);
            if found.iter().all(|other| other.info.addr() != node.addr()) {
                found.push(Member { info: node, is_primary: number == 0 });
            }
        }
    }
    Ok(found)
}

/// Asks the server that has the lock, and follows redirections.
pub fn ask_for(place: &Place, request: &Cmd) -> Result<Value, Failure> {
    let known = primaries(place)?;
    let first = known.first().ok_or_else(|| Failure::new(Code::Unavailable, "no node has any slot"))?;
    let mut node = Node::open(first)?;
    let mut asks = false;
    for _ in 0..REDIRECTIONS {
        if asks {
            node.words(&["ASKING"])?;
        }
        match node.ask(request) {
            Err(Refusal::Reply(text))
                if matches!(place, Place::Cluster(_)) && redirected(&text).is_some() =>
            {
                let Some((is_ask, host, port)) = redirected(&text) else { break };
                let host = if host.is_empty() { host_of(first) } else { host };
                node = Node::open(&moved(first, &host, port))?;
                asks = is_ask;
            }
            reply => return Ok(reply?),
        }
    }
    Err(Failure::new(Code::Unavailable, "the nodes of the cluster keep redirecting the request"))
}

/// Parses `MOVED slot host:port` and `ASK slot host:port`: whether to ask once, and where.
fn redirected(text: &str) -> Option<(bool, String, u16)> {
    let mut words = text.split(' ');
    let is_ask = match words.next()? {
        "MOVED" => false,
        "ASK" => true,
        _ => return None,
    };
    let (host, port) = words.nth(1)?.rsplit_once(':')?;
    Some((is_ask, host.to_owned(), port.parse().ok()?))
}

/// A command about a lock.
pub fn lock_command(name: &str, key: &[u8]) -> Cmd {
    let mut request = cmd(name);
    request.arg(key);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_read() {
        assert_eq!(redirected("MOVED 3999 ::1:7001"), Some((false, "::1".to_owned(), 7001)));
        assert_eq!(redirected("ASK 3999 :7001"), Some((true, String::new(), 7001)));
        assert_eq!(redirected("MOVED nonsense"), None);
        assert_eq!(redirected("LOCKKIND this lock is"), None);
    }
}
