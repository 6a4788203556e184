//! One connection, which sends its batches in a circle.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::commands::{Batch, batches};
use crate::options::Options;
use crate::replies::{Replies, shown};

/// A server that says nothing for this long has stopped.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);

pub struct Client {
    stream: TcpStream,
    batches: Vec<Batch>,
    /// The beginnings of the replies to the first and to the second command of a pair.
    wanted: [Vec<u8>; 2],
    now: usize,
    replied: usize,
    replies: Replies,
    begun: Instant,
}

/// The progress of a connection.
pub enum Progress {
    /// Replies are missing.
    Waits,
    /// A batch is answered, the pair is not.
    Goes,
    /// This many pairs are done, and took this long.
    Done(usize, Duration),
}

impl Client {
    pub fn connect(options: &Options, number: usize) -> Result<Client, String> {
        let address = ("127.0.0.1", options.port);
        let stream =
            TcpStream::connect(address).map_err(|reason| format!("port {}: {reason}", options.port))?;
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(SILENCE_MAX)));
        set.map_err(|reason| format!("connection {number}: {reason}"))?;
        Ok(Client {
            stream,
            batches: batches(options, number),
            wanted: [options.took.clone().into_bytes(), options.freed.clone().into_bytes()],
            now: 0,
            replied: 0,
            replies: Replies::new(),
            begun: Instant::now(),
        })
    }

    /// Sends the next batch.
    pub fn send(&mut self) -> Result<(), String> {
        let batch = &self.batches[self.now];
        if batch.first.is_multiple_of(2) {
            self.begun = Instant::now();
        }
        self.stream.write_all(&batch.bytes).map_err(|reason| format!("sending: {reason}"))
    }

    /// Reads what is there; waits for it, if nothing is.
    pub fn receive(&mut self) -> Result<Progress, String> {
        self.replies.read(&mut self.stream)?;
        let Client { replies, wanted, batches, now, replied, .. } = self;
        let batch = &batches[*now];
        replies.take(|reply| {
            let wanted = &wanted[(batch.first + *replied) % 2];
            if !reply.starts_with(wanted) {
                return Err(refused(batch, *replied, wanted, reply));
            }
            *replied += 1;
            Ok(())
        })?;
        if *replied < batch.count {
            return Ok(Progress::Waits);
        }
        let commands = batch.first + batch.count;
        let pairs = batch.count.div_ceil(2);
        *replied = 0;
        *now = (*now + 1) % batches.len();
        let is_paired = commands.is_multiple_of(2);
        Ok(if is_paired { Progress::Done(pairs, self.begun.elapsed()) } else { Progress::Goes })
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Returns the reason why a reply ends the run, with the command that it answers.
fn refused(batch: &Batch, number: usize, wanted: &[u8], reply: &[u8]) -> String {
    let commands = String::from_utf8_lossy(&batch.bytes);
    let command = commands.split('*').nth(number + 1).unwrap_or_default().replace("\r\n", " ");
    format!("a reply should begin with {:?}, and is {:?}, to *{command}", shown(wanted), shown(reply))
}
