//! A connection that sends short requests and reads replies that may come in pieces.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Connection {
    pub stream: TcpStream,
    unread: Vec<u8>,
}

const CHUNK: usize = 16 << 10;

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Requests are far shorter than a socket's buffer, so this does not wait.
    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request)
    }

    /// Reads what has come and returns the first reply if it is complete; `length` measures it. Waits only
    /// while the connection blocks, before it is watched.
    pub fn reply(&mut self, length: impl Fn(&[u8]) -> Option<usize>) -> io::Result<Option<Vec<u8>>> {
        if let Some(reply) = self.complete(&length) {
            return Ok(Some(reply));
        }
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(io::Error::other("the server closed a connection")),
            Ok(count) => {
                self.unread.extend_from_slice(&chunk[..count]);
                Ok(self.complete(&length))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn complete(&mut self, length: impl Fn(&[u8]) -> Option<usize>) -> Option<Vec<u8>> {
        let rest = self.unread.split_off(length(&self.unread)?);
        Some(std::mem::replace(&mut self.unread, rest))
    }

    /// A request and its reply, on a connection that is not watched yet.
    pub fn call(&mut self, request: &[u8], length: impl Fn(&[u8]) -> Option<usize>) -> io::Result<Vec<u8>> {
        self.send(request)?;
        loop {
            if let Some(reply) = self.reply(&length)? {
                return Ok(reply);
            }
        }
    }
}

/// The error for a reply that was not expected.
pub fn unexpected(what: &str, reply: &[u8]) -> io::Error {
    io::Error::other(format!("{what}: {}", String::from_utf8_lossy(reply)))
}
