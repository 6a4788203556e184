//! A way to a server that can misbehave: it delays replies, loses them, and refuses connections.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redislock_client::Locks;

use super::Server;

#[derive(Default)]
struct State {
    delay_ms: AtomicU64,
    is_mute: AtomicBool,
    is_shut: AtomicBool,
    links: Mutex<Vec<TcpStream>>,
    /// The number of connections so far, and of the first of them that pass on no requests.
    joined: AtomicU64,
    stalled: AtomicU64,
    /// The number of the first of them that lose all data, in both directions.
    lost: AtomicU64,
    /// The port of the server that new connections reach.
    target: AtomicU16,
    /// Bytes to replace in replies, and their replacement of the same length.
    changed: Mutex<Option<(&'static [u8], &'static [u8])>>,
}

impl State {
    fn change(&self, bytes: &mut [u8]) {
        let Some((from, to)) = *self.changed.lock().unwrap() else { return };
        if let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}

/// Stands before a server; its threads end with the test's process.
pub struct Door {
    port: u16,
    state: Arc<State>,
}

impl Door {
    pub fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, state) = (listener.local_addr().unwrap().port(), Arc::new(State::default()));
        state.target.store(server.port, Ordering::SeqCst);
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                // A client that is not let in, or finds no server, sees the connection close.
                if !shared.is_shut.load(Ordering::SeqCst) {
                    drop(client.and_then(|client| join(&shared, client)));
                }
            }
        });
        Self { port, state }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Leads new connections to another server; those that there are stay.
    pub fn lead(&self, server: &Server) {
        self.state.target.store(server.port, Ordering::SeqCst);
    }

    /// The number of connections so far.
    pub fn joined(&self) -> u64 {
        self.state.joined.load(Ordering::SeqCst)
    }

    /// Loses whatever is sent over the connections that there are, which stay open.
    pub fn lose(&self) {
        self.state.lost.store(self.joined(), Ordering::SeqCst);
    }

    /// Locks whose requests go this way.
    pub fn locks(&self) -> Locks {
        Locks::open(self.url()).unwrap()
    }

    /// Replaces this in each reply from now on by something that is as long.
    pub fn change(&self, from: &'static str, to: &'static str) {
        *self.state.changed.lock().unwrap() = Some((from.as_bytes(), to.as_bytes()));
    }

    /// Makes each reply take `delay` longer from now on.
    pub fn delay(&self, delay: Duration) {
        self.state.delay_ms.store(delay.as_millis().try_into().unwrap(), Ordering::SeqCst);
    }

    /// Loses all replies from now on, or with `false` none any more.
    pub fn mute(&self, is_mute: bool) {
        self.state.is_mute.store(is_mute, Ordering::SeqCst);
    }

    /// Refuses new connections, and ends all open ones; or accepts them again.
    pub fn shut(&self, is_shut: bool) {
        self.state.is_shut.store(is_shut, Ordering::SeqCst);
        if is_shut {
            self.cut();
        }
    }

    /// From now on the connections that there are keep what is sent; or they pass it on, though the client may have gone.
    pub fn stall(&self, is_stalled: bool) {
        let stalled = if is_stalled { self.joined() } else { 0 };
        self.state.stalled.store(stalled, Ordering::SeqCst);
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for link in self.state.links.lock().unwrap().drain(..) {
            // The other side may have ended it before.
            drop(link.shutdown(Shutdown::Both));
        }
    }
}

fn join(state: &Arc<State>, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", state.target.load(Ordering::SeqCst)))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    state.links.lock().unwrap().extend([client.try_clone()?, server.try_clone()?]);
    let (requests, replies) = ((client.try_clone()?, server.try_clone()?), (server, client));
    let (state, stalls) = (state.clone(), state.clone());
    let number = state.joined.fetch_add(1, Ordering::SeqCst);
    thread::spawn(move || {
        pass(requests, |_| {
            while number < stalls.stalled.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
            number >= stalls.lost.load(Ordering::SeqCst)
        });
    });
    thread::spawn(move || {
        pass(replies, |bytes| {
            state.change(bytes);
            thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::SeqCst)));
            !state.is_mute.load(Ordering::SeqCst) && number >= state.lost.load(Ordering::SeqCst)
        });
    });
    Ok(())
}

/// Passes on all data, unless it must be lost, until one side ends.
fn pass((mut from, mut to): (TcpStream, TcpStream), passes: impl Fn(&mut [u8]) -> bool) {
    let mut bytes = [0; 1 << 16];
    while let Ok(size @ 1..) = from.read(&mut bytes) {
        if passes(&mut bytes[..size]) && to.write_all(&bytes[..size]).is_err() {
            break;
        }
    }
    // The other side may have ended it before.
    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
}
