//! The addresses of servers, and the forms in which a program may give them.

use std::fmt;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

use crate::error::Error;

/// The address of a server. Without a port, it is a socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            0 => f.write_str(&self.host),
            port if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            port => write!(f, "{}:{port}", self.host),
        }
    }
}

/// The address of this server.
pub(crate) fn address_of(info: &ConnectionInfo) -> Address {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Address { host: host.as_str().into(), port: *port }
        }
        ConnectionAddr::Unix(path) => Address { host: path.to_string_lossy().into(), port: 0 },
        // The driver's enum may grow, but a server of a group cannot have an address of a new kind.
        _ => Address { host: "".into(), port: 0 },
    }
}

/// Returns the login for this server, if it belongs to the same group.
pub(crate) fn at(login: &ConnectionInfo, address: &Address) -> ConnectionInfo {
    let (host, port) = (address.host.to_string(), address.port);
    let place = match login.addr() {
        ConnectionAddr::Tcp(..) => ConnectionAddr::Tcp(host, port),
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        other => other.clone(),
    };
    login.clone().set_addr(place)
}

/// Names a server: a URL, a host with its port, or a type that the redis crate makes of one.
///
/// A URL is `redis://user:password@host:port/database`, `rediss://...` for TLS, or `unix:///path?db=1&user=ann&pass=word`.
pub trait IntoServer {
    /// Returns the address and the login. Returns [`Error::Invalid`] if it is not valid, or has a part that
    /// would have no effect.
    fn into_server(self) -> Result<ConnectionInfo, Error>;
}

impl IntoServer for &str {
    fn into_server(self) -> Result<ConnectionInfo, Error> {
        let Some(url) = redis::parse_redis_url(self) else { return checked(self) };
        let is_socket = url.scheme().contains("unix");
        // A wrong parameter may be a part of a password, so it is not shown.
        let is_known = |name: &str, value: &str| match name {
            "protocol" => matches!(value, "3" | "resp3"),
            "db" | "user" | "pass" => is_socket,
            _ => false,
        };
        if !url.query_pairs().all(|(name, value)| is_known(&name, &value)) {
            return Err(Error::invalid(
                "an address has no parameters but db, user and pass of unix://: options are methods of \
                 Locks::builder(), and a ? in a password is written %3F",
            ));
        }
        if url.fragment().is_some() {
            return Err(Error::invalid(
                "an address has no #fragment: a # in a password is written %23, and certificates are given by \
                 Client::build_with_tls",
            ));
        }
        checked(url)
    }
}

impl IntoServer for String {
    fn into_server(self) -> Result<ConnectionInfo, Error> {
        self.as_str().into_server()
    }
}

impl IntoServer for ConnectionInfo {
    fn into_server(self) -> Result<ConnectionInfo, Error> {
        checked(self)
    }
}

impl IntoServer for ConnectionAddr {
    fn into_server(self) -> Result<ConnectionInfo, Error> {
        checked(self)
    }
}

impl<T: Into<String>> IntoServer for (T, u16) {
    fn into_server(self) -> Result<ConnectionInfo, Error> {
        checked(self)
    }
}

fn checked(server: impl IntoConnectionInfo) -> Result<ConnectionInfo, Error> {
    let info = server.into_connection_info().map_err(|error| invalid(&error))?;
    if info.redis_settings().db() < 0 {
        return Err(Error::invalid(format!(
            "database must be 0 or more, not {}",
            info.redis_settings().db()
        )));
    }
    if matches!(info.addr(), ConnectionAddr::Tcp(_, 0) | ConnectionAddr::TcpTls { port: 0, .. }) {
        return Err(Error::invalid("port must be from 1 to 65535, not 0"));
    }
    Ok(info)
}

/// Returns these servers, at least one.
pub(crate) fn some_of<S: IntoServer>(
    servers: impl IntoIterator<Item = S>,
) -> Result<Vec<ConnectionInfo>, Error> {
    let infos = servers.into_iter().map(IntoServer::into_server).collect::<Result<Vec<_>, _>>()?;
    if infos.is_empty() { Err(Error::invalid("name at least one server")) } else { Ok(infos) }
}

/// The driver's errors show no part of the address, and so no password.
fn invalid(error: &RedisError) -> Error {
    let text = error.to_string();
    let hint = if text.contains("TLS, the feature") {
        "switch on the feature `tls` of redislock-client"
    } else {
        "an address is redis://host:port or rediss://user:password@host:port/database, with %23, %2F, %3F and %40 for \
         # / ? and @ in a password"
    };
    Error::invalid(format!("{text}: {hint}"))
}
