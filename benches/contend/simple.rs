//! A peer of which each contender has one connection, one request to take and one to free.

use std::io;
use std::net::SocketAddr;

use crate::bytes::Connection;
use crate::drive::{Event, Peer, Watch};

pub trait Protocol {
    /// A connection that is ready for requests.
    fn open(&mut self, who: usize, address: SocketAddr) -> io::Result<Connection>;
    /// Brings the lock into the free state.
    fn reset(&mut self, _address: SocketAddr) -> io::Result<()> {
        Ok(())
    }
    fn take(&self, who: usize) -> &[u8];
    fn free(&self, who: usize) -> &[u8];
    /// Returns the length of the first reply, if it is complete.
    fn length(unread: &[u8]) -> Option<usize>;
    /// Returns whether the reply grants the lock.
    fn is_grant(&mut self, who: usize, reply: &[u8]) -> bool;
    /// Returns whether the reply confirms the release.
    fn is_freed(&self, reply: &[u8]) -> bool;
}

pub struct Simple<P> {
    address: SocketAddr,
    protocol: P,
    contenders: Vec<Contender>,
}

struct Contender {
    connection: Connection,
    is_freeing: bool,
}

impl<P: Protocol> Simple<P> {
    pub fn new(address: SocketAddr, protocol: P) -> Self {
        Self { address, protocol, contenders: Vec::new() }
    }
}

impl<P: Protocol> Peer for Simple<P> {
    fn open(&mut self, contenders: usize, watch: &Watch) -> io::Result<()> {
        for who in self.contenders.len()..contenders {
            let connection = self.protocol.open(who, self.address)?;
            watch.add(&connection.stream, who)?;
            self.contenders.push(Contender { connection, is_freeing: false });
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.protocol.reset(self.address)
    }

    fn take(&mut self, who: usize) -> io::Result<()> {
        self.contenders[who].is_freeing = false;
        self.contenders[who].connection.send(self.protocol.take(who))
    }

    fn free(&mut self, who: usize) -> io::Result<()> {
        self.contenders[who].is_freeing = true;
        self.contenders[who].connection.send(self.protocol.free(who))
    }

    fn read(&mut self, token: usize, events: &mut Vec<Event>) -> io::Result<()> {
        let contender = &mut self.contenders[token];
        let Some(reply) = contender.connection.reply(P::length)? else {
            return Ok(());
        };
        let (is_wanted, event) = if contender.is_freeing {
            (self.protocol.is_freed(&reply), Event::Freed(token))
        } else {
            (self.protocol.is_grant(token, &reply), Event::Granted(token))
        };
        if !is_wanted {
            return Err(crate::bytes::unexpected("not what was asked for", &reply));
        }
        events.push(event);
        Ok(())
    }
}
