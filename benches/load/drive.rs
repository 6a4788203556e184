//! Keeps connections busy, and counts.

use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::client::{Client, Progress, SILENCE_MAX};

/// The number of pairs, and the time of each batch or pair.
pub struct Outcome {
    pub elapsed: Duration,
    pairs: usize,
    /// Sorted, in nanoseconds.
    latencies: Vec<u32>,
}

impl Outcome {
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// The latency that this share of them stayed within.
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        Duration::from_nanos(self.latencies.get(at).copied().unwrap_or_default().into())
    }
}

/// Lets every connection send batch after batch for `duration`, and finish the pair that it has begun.
pub fn drive(clients: &mut [Client], duration: Duration) -> Result<Outcome, String> {
    let mut ready = Ready::of(clients)?;
    let (mut pairs, mut latencies) = (0, Vec::with_capacity(1 << 20));
    let start = Instant::now();
    for client in &mut *clients {
        client.send()?;
    }
    let mut busy = clients.len();
    while busy > 0 {
        for number in ready.wait()? {
            let client = &mut clients[number];
            match client.receive()? {
                Progress::Waits => continue,
                Progress::Goes => client.send()?,
                Progress::Done(count, latency) => {
                    pairs += count;
                    latencies.push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
                    if start.elapsed() < duration {
                        client.send()?;
                    } else {
                        busy -= 1;
                    }
                }
            }
        }
    }
    let elapsed = start.elapsed();
    latencies.sort_unstable();
    Ok(Outcome { elapsed, pairs, latencies })
}

/// The connections that have something to read.
enum Ready {
    /// A single one, whose read blocks.
    One,
    Several(rustix::fd::OwnedFd, Vec<epoll::Event>),
}

impl Ready {
    fn of(clients: &[Client]) -> Result<Ready, String> {
        if clients.len() == 1 {
            return Ok(Ready::One);
        }
        let watch = |reason| format!("watching connections: {reason}");
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        for (number, client) in clients.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&poll, client, data, epoll::EventFlags::IN).map_err(watch)?;
        }
        Ok(Ready::Several(poll, Vec::with_capacity(clients.len())))
    }

    fn wait(&mut self) -> Result<Vec<usize>, String> {
        let Ready::Several(poll, events) = self else { return Ok(vec![0]) };
        let limit = Timespec { tv_sec: SILENCE_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        events.clear();
        match epoll::wait(poll, spare_capacity(events), Some(&limit)) {
            Ok(0) => return Err(format!("the server has said nothing for {SILENCE_MAX:?}")),
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(reason) => return Err(format!("waiting: {reason}")),
        }
        Ok(events.iter().map(|event| event.data.u64() as usize).collect())
    }
}
