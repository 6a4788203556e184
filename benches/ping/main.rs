//! Pings a server on one connection and tells how long the answers took.
//!
//!     ping PORT INTERVAL_US
//!
//! At each line on its standard input it prints one line of JSON about the pings since the line before, and it ends
//! with its input. One ping follows the other, at most one per interval. If the server is deaf for longer, those
//! count too that would have been sent meanwhile. Otherwise a second of deafness would be one slow ping among
//! thousands, and would not show what a client sees that asks at a random moment.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// A sleep is longer than asked for by about this much.
const OVERSLEPT: Duration = Duration::from_micros(55);

/// Lines read so far.
static LINES: AtomicU64 = AtomicU64::new(0);
/// The input has ended.
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn main() {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (Some(port), Some(interval_us)) = (words.next(), words.next()) else {
        eprintln!("usage: ping PORT INTERVAL_US");
        std::process::exit(2);
    };
    if let Err(error) = ping(port, interval_us) {
        eprintln!("ping: {error}");
        std::process::exit(1);
    }
}

fn ping(port: u64, interval_us: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut server = TcpStream::connect(format!("127.0.0.1:{port}"))?;
    server.set_nodelay(true)?;
    std::thread::spawn(|| {
        let lines = std::io::stdin().lock().lines();
        lines.map_while(Result::ok).for_each(|_| _ = LINES.fetch_add(1, Ordering::Relaxed));
        IS_OVER.store(true, Ordering::Relaxed);
    });
    let interval = Duration::from_micros(interval_us);
    let mut seen = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?;
    let mut told = 0;
    let mut answer = [0; 7];
    while !IS_OVER.load(Ordering::Relaxed) {
        let sent = Instant::now();
        server.write_all(b"PING\r\n")?;
        server.read_exact(&mut answer)?;
        let took = sent.elapsed();
        if &answer != b"+PONG\r\n" {
            return Err("the server does not answer PING with PONG".into());
        }
        seen.record_correct(u64::try_from(took.as_micros())?, interval_us)?;
        if LINES.load(Ordering::Relaxed) > told {
            told += 1;
            tell(&seen)?;
            seen.reset();
        }
        let rest = interval.saturating_sub(took);
        if rest > OVERSLEPT {
            std::thread::sleep(rest - OVERSLEPT);
        }
    }
    Ok(())
}

fn tell(seen: &Histogram<u64>) -> std::io::Result<()> {
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| seen.value_at_quantile(quantile));
    let (count, max) = (seen.len(), seen.max());
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        r#"{{"pings": {count}, "p50_us": {p50}, "p99_us": {p99}, "p99.9_us": {p999}, "max_us": {max}}}"#
    )?;
    out.flush()
}
