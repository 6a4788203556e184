//! PostgreSQL: `pg_advisory_lock` and `pg_advisory_unlock` as prepared statements, each a round trip.

use std::io;
use std::net::SocketAddr;

use crate::bytes::{Connection, unexpected};
use crate::simple::Protocol;

pub struct Advisory;

/// Bind, execute, sync of the statement named `take`.
const TAKE: &[u8] = b"B\0\0\0\x10\0take\0\0\0\0\0\0\0E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04";
/// Bind, execute, sync of the statement named `free`.
const FREE: &[u8] = b"B\0\0\0\x10\0free\0\0\0\0\0\0\0E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04";

/// A message: its kind, its length, its body.
fn message(kind: &[u8], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    [kind, &length.to_be_bytes(), body].concat()
}

/// The messages that are complete, kind and body.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?) as usize;
        let (kind, body) = (bytes[0], bytes.get(5..1 + length)?);
        bytes = &bytes[1 + length..];
        Some((kind, body))
    })
}

/// Returns the text of the only row, if that has one column.
fn only_row(reply: &[u8]) -> Option<&[u8]> {
    let mut rows = messages(reply).filter(|(kind, _)| *kind == b'D');
    rows.next().and_then(|(_, body)| body.strip_prefix(b"\0\x01")).filter(|_| rows.next().is_none())
}

impl Protocol for Advisory {
    fn open(&mut self, _: usize, address: SocketAddr) -> io::Result<Connection> {
        let mut connection = Connection::open(address)?;
        let version_3 = 196_608_u32.to_be_bytes();
        let hello = [&version_3[..], b"user\0postgres\0database\0postgres\0\0"].concat();
        let prepare = [
            message(b"P", b"take\0select pg_advisory_lock(42)\0\0\0"),
            message(b"P", b"free\0select pg_advisory_unlock(42)\0\0\0"),
            message(b"S", b""),
        ];
        for request in [message(b"", &hello), prepare.concat()] {
            let reply = connection.call(&request, Self::length)?;
            if messages(&reply).any(|(kind, _)| kind == b'E') {
                return Err(unexpected("PostgreSQL", &reply));
            }
        }
        Ok(connection)
    }

    fn take(&self, _: usize) -> &[u8] {
        TAKE
    }

    fn free(&self, _: usize) -> &[u8] {
        FREE
    }

    /// A reply ends with the message that the server is ready for the next request.
    fn length(unread: &[u8]) -> Option<usize> {
        let mut end = 0;
        messages(unread).find_map(|(kind, body)| {
            end += body.len() + 5;
            (kind == b'Z').then_some(end)
        })
    }

    /// The function returns nothing, which is an empty text.
    fn is_grant(&mut self, _: usize, reply: &[u8]) -> bool {
        only_row(reply) == Some(b"\0\0\0\0")
    }

    fn is_freed(&self, reply: &[u8]) -> bool {
        only_row(reply) == Some(b"\0\0\0\x01t")
    }
}
