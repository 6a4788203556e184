//! Peers of the Redis family that need one connection each: ours, and a bare token in a list.

use std::io;
use std::net::SocketAddr;

use crate::bytes::{Connection, unexpected};
use crate::simple::Protocol;
use crate::{LEASE_MS, LOCK};

/// A command, as clients send it.
pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    out
}

/// The length of the first reply in RESP2, if it is all there.
pub fn length(unread: &[u8]) -> Option<usize> {
    let line = unread.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&unread[1..line - 2]).ok()?.parse::<i64>().ok();
    match unread[0] {
        b'$' => {
            let end = usize::try_from(number()?).map_or(line, |count| line + count + 2);
            (unread.len() >= end).then_some(end)
        }
        b'*' => (0..number()?).try_fold(line, |end, _| Some(end + length(unread.get(end..)?)?)),
        _ => Some(line),
    }
}

/// A name for a contender: a UUID, as one would use.
pub fn owner(who: usize) -> String {
    let number = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C834_u128.wrapping_mul(who as u128 + 1);
    let hex = format!("{number:032x}");
    format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

/// `LOCK.ACQUIRE ... BLOCK` and `LOCK.RELEASE`, or commands of the same words.
pub struct Lock {
    acquire: &'static str,
    release: &'static str,
    requests: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Lock {
    /// Ours.
    pub const fn new() -> Self {
        Self { acquire: "LOCK.ACQUIRE", release: "LOCK.RELEASE", requests: Vec::new() }
    }

    /// A token's, by a module that asks the server for what a lock needs it for, and does nothing (tests/server/floor.c).
    pub const fn of_floor() -> Self {
        Self { acquire: "FLOOR.ACQUIRE", release: "FLOOR.RELEASE", requests: Vec::new() }
    }
}

impl Protocol for Lock {
    fn open(&mut self, who: usize, address: SocketAddr) -> io::Result<Connection> {
        let owner = owner(who);
        let lease = LEASE_MS.to_string();
        let take = encode(&[self.acquire, LOCK, &owner, "PX", &lease, "BLOCK", "0"]);
        self.requests.push((take, encode(&[self.release, LOCK, &owner])));
        Connection::open(address)
    }

    fn take(&self, who: usize) -> &[u8] {
        &self.requests[who].0
    }

    fn free(&self, who: usize) -> &[u8] {
        &self.requests[who].1
    }

    fn length(unread: &[u8]) -> Option<usize> {
        length(unread)
    }

    fn is_grant(&mut self, _: usize, reply: &[u8]) -> bool {
        reply[0] == b':'
    }

    fn is_freed(&self, reply: &[u8]) -> bool {
        reply == b":1\r\n"
    }
}

/// A token that goes from hand to hand. Nothing ends a hold, no owner is checked: it is the least that can be done for
/// a waiter.
pub struct Token {
    take: &'static [u8],
    free: &'static [u8],
    /// The beginning of the reply to the one that has it.
    granted: &'static [u8],
}

/// By the server: a list with one element. `BLPOP` takes it, `RPUSH` gives it back.
pub const BLPOP: Token = Token {
    take: b"*3\r\n$5\r\nBLPOP\r\n$17\r\ntoken:order:00000\r\n$1\r\n0\r\n",
    free: b"*3\r\n$5\r\nRPUSH\r\n$17\r\ntoken:order:00000\r\n$1\r\n1\r\n",
    granted: b"*2\r\n",
};

/// By a module that does nothing else (tests/server/floor.c).
pub const FLOOR: Token =
    Token { take: b"*1\r\n$10\r\nFLOOR.TAKE\r\n", free: b"*1\r\n$10\r\nFLOOR.GIVE\r\n", granted: b":1\r\n" };

impl Protocol for Token {
    fn open(&mut self, _: usize, address: SocketAddr) -> io::Result<Connection> {
        Connection::open(address)
    }

    fn reset(&mut self, address: SocketAddr) -> io::Result<()> {
        let mut connection = Connection::open(address)?;
        connection.call(&encode(&["DEL", "token:order:00000"]), length)?;
        let reply = connection.call(self.free(0), length)?;
        if self.is_freed(&reply) { Ok(()) } else { Err(unexpected("the token back", &reply)) }
    }

    fn take(&self, _: usize) -> &[u8] {
        self.take
    }

    fn free(&self, _: usize) -> &[u8] {
        self.free
    }

    fn length(unread: &[u8]) -> Option<usize> {
        length(unread)
    }

    fn is_grant(&mut self, _: usize, reply: &[u8]) -> bool {
        reply.starts_with(self.granted)
    }

    fn is_freed(&self, reply: &[u8]) -> bool {
        reply == b":1\r\n"
    }
}
