//! MariaDB: `GET_LOCK` and `RELEASE_LOCK` as prepared statements, each a round trip.

use std::io;
use std::net::SocketAddr;

use crate::bytes::{Connection, unexpected};
use crate::simple::Protocol;

#[derive(Default)]
pub struct GetLock {
    /// To take and to free; the server numbers prepared statements over all connections.
    requests: Vec<(Vec<u8>, Vec<u8>)>,
}

const TAKE: &str = "SELECT GET_LOCK('lock:order:000000', 3600)";
const FREE: &str = "SELECT RELEASE_LOCK('lock:order:000000')";

/// A packet: its length, its number, its body.
fn packet(number: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&length[..3], &[number], body].concat()
}

/// The bodies of the packets that are complete.
fn packets(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let head = bytes.get(..4)?;
        let end = 4 + u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
        let body = bytes.get(4..end)?;
        bytes = &bytes[end..];
        Some(body)
    })
}

fn is_end(body: &[u8]) -> bool {
    body.first() == Some(&0xfe) && body.len() < 9
}

fn is_error(body: &[u8]) -> bool {
    body.first() == Some(&0xff)
}

/// The bytes up to the packet that `is_last` tells; an error is always the last.
fn until(unread: &[u8], mut is_last: impl FnMut(&[u8]) -> bool) -> Option<usize> {
    let mut end = 0;
    packets(unread).find_map(|body| {
        end += body.len() + 4;
        (is_error(body) || is_last(body)).then_some(end)
    })
}

/// The only row: one column, not null, and 1.
fn is_one(reply: &[u8]) -> bool {
    packets(reply).nth(3).is_some_and(|row| row.starts_with(&[0, 0, 1]))
}

/// Executes a prepared statement: its number, no cursor, once.
fn execute(prepared: &[u8]) -> Option<Vec<u8>> {
    let number = packets(prepared).next()?.strip_prefix(&[0])?.get(..4)?;
    Some(packet(0, &[&[0x17], number, &[0, 1, 0, 0, 0]].concat()))
}

/// Old password method with an empty password, for a server that authenticates no client.
fn hello() -> Vec<u8> {
    let capabilities = 0x0008_8201_u32.to_le_bytes(); // long password, protocol 4.1, secure connection, plugins
    let bytes_max = (1_u32 << 24).to_le_bytes();
    let utf8 = [45];
    packet(1, &[&capabilities[..], &bytes_max, &utf8, &[0; 23], b"root\0\0mysql_native_password\0"].concat())
}

impl Protocol for GetLock {
    fn open(&mut self, _: usize, address: SocketAddr) -> io::Result<Connection> {
        let mut connection = Connection::open(address)?;
        let one = |unread: &[u8]| until(unread, |_| true);
        // A statement with a column and no parameters: its head, the column, the end of columns.
        let prepared = |unread: &[u8]| until(unread, is_end);
        connection.call(&[], one)?;
        connection.call(&hello(), one)?;
        let mut prepare = |text: &str| {
            let reply = connection.call(&packet(0, format!("\x16{text}").as_bytes()), prepared)?;
            execute(&reply).ok_or_else(|| unexpected("MariaDB", &reply))
        };
        self.requests.push((prepare(TAKE)?, prepare(FREE)?));
        Ok(connection)
    }

    fn take(&self, who: usize) -> &[u8] {
        &self.requests[who].0
    }

    fn free(&self, who: usize) -> &[u8] {
        &self.requests[who].1
    }

    /// A result: the number of columns, the column, an end, the row, an end.
    fn length(unread: &[u8]) -> Option<usize> {
        let mut ends = 0;
        until(unread, |body| {
            ends += usize::from(is_end(body));
            ends == 2
        })
    }

    fn is_grant(&mut self, _: usize, reply: &[u8]) -> bool {
        is_one(reply)
    }

    fn is_freed(&self, reply: &[u8]) -> bool {
        is_one(reply)
    }
}
