//! etcd: its own lock service, by way of the JSON gateway over a kept HTTP connection for each contender.

use std::io;
use std::net::SocketAddr;

use crate::bytes::{Connection, unexpected};
use crate::simple::Protocol;

#[derive(Default)]
pub struct Service {
    /// To take and to free; the latter names a key that the first grant tells.
    requests: Vec<(Vec<u8>, Vec<u8>)>,
}

/// `lock` in base64.
const NAME: &str = "bG9jaw==";

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST /v3/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// The value of a text field of a JSON object.
fn field<'a>(reply: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(reply).ok()?;
    text.split_once(&format!("\"{name}\":\""))?.1.split_once('"').map(|(value, _)| value)
}

impl Protocol for Service {
    /// Every contender has a lease, with which its place in line would end.
    fn open(&mut self, _: usize, address: SocketAddr) -> io::Result<Connection> {
        let mut connection = Connection::open(address)?;
        let reply = connection.call(&post("lease/grant", r#"{"TTL": 3600}"#), Self::length)?;
        let lease = field(&reply, "ID").ok_or_else(|| unexpected("a lease", &reply))?;
        let take = post("lock/lock", &format!(r#"{{"name": "{NAME}", "lease": "{lease}"}}"#));
        self.requests.push((take, Vec::new()));
        Ok(connection)
    }

    fn take(&self, who: usize) -> &[u8] {
        &self.requests[who].0
    }

    fn free(&self, who: usize) -> &[u8] {
        &self.requests[who].1
    }

    fn length(unread: &[u8]) -> Option<usize> {
        let body = unread.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = std::str::from_utf8(&unread[..body]).ok()?.to_ascii_lowercase();
        let (_, rest) = head.split_once("content-length: ")?;
        let end = body + rest.split_once("\r\n")?.0.parse::<usize>().ok()?;
        (unread.len() >= end).then_some(end)
    }

    fn is_grant(&mut self, who: usize, reply: &[u8]) -> bool {
        let Some(key) = field(reply, "key") else {
            return false;
        };
        if self.requests[who].1.is_empty() {
            self.requests[who].1 = post("lock/unlock", &format!(r#"{{"key": "{key}"}}"#));
        }
        true
    }

    fn is_freed(&self, reply: &[u8]) -> bool {
        reply.starts_with(b"HTTP/1.1 200")
    }
}
