//! Contenders for one lock: each takes it, holds it, frees it, and takes it again.
//!
//! One thread drives all of them over non-blocking connections. So what is compared is servers and ways to wait, not
//! clients: every peer that is spoken to from here goes through the same loop.
//!
//!     redislock-contend PEER HOST:PORT [sleep]
//!
//! Each line on standard input is answered by a line of JSON on standard output:
//!
//!     open CONTENDERS                      opens the connections that this many still lack: {}
//!     run CONTENDERS HOLD_US OPEN_NS END_NS [stay]
//!                                          all take turns until the end: when each one asked, got and freed the lock
//!
//! A contender that gets the lock before the opening keeps it until then. So a line can form that is not served
//! meanwhile. After the end the queue is served until it is empty. Or, with `stay`, the contender that gets the lock
//! then keeps it until the next run opens, and the line stays. Times are those of CLOCK_MONOTONIC. Their meaning is
//! worked out by benches/bench/peers/turns.py, for all peers alike.

mod bytes;
mod drive;
mod etcd;
mod mariadb;
mod postgres;
mod resp;
mod simple;

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use drive::{Driver, Idle, Peer, Plan};
use simple::Simple;

/// The name of the lock, in the form that the other scenarios use.
const LOCK: &str = "lock:order:000000";
/// A lease that does not end during a run.
const LEASE_MS: u64 = 60_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [peer, address] => start(peer, address, Idle::Polls),
        [peer, address, "sleep"] => start(peer, address, Idle::Sleeps),
        _ => Err(io::Error::other("usage: redislock-contend PEER HOST:PORT [sleep]")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("redislock-contend: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn start(peer: &str, address: &str, idle: Idle) -> io::Result<()> {
    let address = address.parse().map_err(io::Error::other)?;
    serve(Driver::new(peer_of(peer, address)?, idle)?)
}

fn peer_of(name: &str, address: SocketAddr) -> io::Result<Box<dyn Peer>> {
    Ok(match name {
        "redislock" => Box::new(Simple::new(address, resp::Lock::new())),
        "blpop" => Box::new(Simple::new(address, resp::BLPOP)),
        "floor" => Box::new(Simple::new(address, resp::FLOOR)),
        "floor-promises" => Box::new(Simple::new(address, resp::Lock::of_floor())),
        "postgres" => Box::new(Simple::new(address, postgres::Advisory)),
        "mariadb" => Box::new(Simple::new(address, mariadb::GetLock::default())),
        "etcd" => Box::new(Simple::new(address, etcd::Service::default())),
        _ => return Err(io::Error::other(format!("no peer is called {name}"))),
    })
}

/// One answer for each line that is read.
fn serve(mut driver: Driver) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let numbers: Vec<u64> = rest.split(' ').map_while(|word| word.parse().ok()).collect();
        let answer = match (verb, &numbers[..]) {
            ("open", &[contenders]) => driver.open(contenders as usize).map(|()| "{}".to_owned())?,
            ("run", &[contenders, hold_us, open_ns, end_ns]) => {
                let hold = Duration::from_micros(hold_us);
                let is_staying = rest.ends_with(" stay");
                let contenders = contenders as usize;
                driver.run(Plan { contenders, hold, open_ns, end_ns, is_staying })?.to_string()
            }
            _ => return Err(io::Error::other(format!("not understood: {line}"))),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
