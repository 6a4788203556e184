//! Compares this library with the bare commands of its driver. Usage: `clients/rust/bench HOST:PORT
//! [ROUNDS]`.
//!
//! Prints a line of JSON for each figure: client, subject, metric, values. `make bench` reads them. The ways take short
//! turns in each round, so that what else the machine does falls on all of them.

use std::env;
use std::fs;
use std::time::{Duration, Instant};

use redislock_client::{Error, Locks, redis};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

type Failure = Box<dyn std::error::Error>;

/// The turns of each way in a round, and the pairs of one turn.
const TURNS: u32 = 10;
const PAIRS: u32 = 30;
const TASKS: usize = 1000;
const LOSSES: usize = 50;
const PAIR: &str = "microseconds for an acquire and its release";

/// One figure. No name in it needs an escape.
fn tell(client: &str, subject: &str, metric: &str, values: &[f64]) {
    println!(
        r#"{{"client": "Rust, {client}", "subject": "{subject}", "metric": "{metric}", "values": {values:?}}}"#
    );
}

/// The microseconds that one pair takes when `PAIRS` of them run one after the other.
async fn time_of(mut pair: impl AsyncFnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let began = Instant::now();
    for _ in 0..PAIRS {
        pair().await?;
    }
    Ok(1e6 * began.elapsed().as_secs_f64() / f64::from(PAIRS))
}

async fn pairs(client: &str, url: &str, locks: &Locks, rounds: usize) -> Result<(), Failure> {
    let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let bare = async || {
        let (owner, mut connection) = (Uuid::new_v4().to_string(), connection.clone());
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        let acquire = acquire.arg("bare").arg(&owner).arg("PX").arg(30_000);
        let token: u64 = acquire.query_async(&mut connection).await?;
        let mut release = redis::cmd("LOCK.RELEASE");
        release.arg("bare").arg(&owner).arg("TOKEN").arg(token).exec_async(&mut connection).await?;
        Ok(())
    };
    let ours = async || Ok(locks.lock("ours").run(async |_| Ok::<_, Error>(())).await?);
    let (mut of_ours, mut of_bare) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (mut one, mut other) = (0.0, 0.0);
        for turn in 0..TURNS {
            // In every other turn the other way round: neither is always measured before the other.
            if turn % 2 == 0 {
                one += time_of(ours).await?;
                other += time_of(bare).await?;
            } else {
                other += time_of(bare).await?;
                one += time_of(ours).await?;
            }
        }
        // The first round warms up.
        if round > 0 {
            of_ours.push(one / f64::from(TURNS));
            of_bare.push(other / f64::from(TURNS));
        }
    }
    tell(client, "redislock", PAIR, &of_ours);
    tell(client, "the bare commands", PAIR, &of_bare);
    Ok(())
}

/// From `DEL` to the moment at which the holder knows.
async fn losses(client: &str, url: &str, locks: &Locks) -> Result<(), Failure> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let mut times = Vec::new();
    for _ in 0..LOSSES {
        let guard = locks.lock("lost").acquire().await?;
        sleep(Duration::from_millis(50)).await;
        let began = Instant::now();
        redis::cmd("DEL").arg("lost").exec_async(&mut connection).await?;
        guard.lost().await;
        times.push(1e3 * began.elapsed().as_secs_f64());
    }
    tell(client, "redislock", "milliseconds from DEL until the holder is told", &times);
    Ok(())
}

/// Milliseconds of processor that this process has used: ticks of a hundredth of a second.
fn processor_ms() -> Result<f64, Failure> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The fields after the name, which is in brackets and may have any form.
    let behind = stat.rsplit(')').next().ok_or("no name")?;
    let ticks: f64 =
        behind.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    Ok(10.0 * ticks)
}

/// Many tasks wait for one lock, and each gives it up at once.
async fn crowd(client: &str, url: &str, locks: &Locks) -> Result<(), Failure> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let first = locks.lock("crowd").acquire().await?;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let lock = locks.lock("crowd");
        tasks.spawn(async move { lock.acquire().await?.release().await });
    }
    sleep(Duration::from_secs(2)).await;
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut connection).await?;
    let connections = list.trim().lines().count() as f64;
    tell(client, "redislock", &format!("connections while {TASKS} tasks wait"), &[connections]);
    let idle = processor_ms()?;
    sleep(Duration::from_secs(2)).await;
    let share = (processor_ms()? - idle) / 20.0;
    tell(client, "redislock", "per cent of a core while they wait", &[share]);
    let (began, busy) = (Instant::now(), processor_ms()?);
    first.release().await?;
    for ended in tasks.join_all().await {
        ended?;
    }
    let took = 1e3 * began.elapsed().as_secs_f64();
    tell(client, "redislock", "milliseconds to serve them all", &[took]);
    tell(client, "redislock", "milliseconds of processor for it", &[processor_ms()? - busy]);
    Ok(())
}

fn main() -> Result<(), Failure> {
    // `cargo bench` adds --bench.
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let url = format!("redis://{}", words.first().map_or("127.0.0.1:6379", String::as_str));
    let rounds = words.get(1).map_or(Ok(15), |rounds| rounds.parse())?;
    for (client, runtime) in
        [("one thread", &mut Builder::new_current_thread()), ("threads", &mut Builder::new_multi_thread())]
    {
        runtime.enable_all().build()?.block_on(async {
            let locks = Locks::open(url.as_str())?;
            pairs(client, &url, &locks, rounds).await?;
            losses(client, &url, &locks).await?;
            crowd(client, &url, &locks).await?;
            locks.close().await;
            Ok::<_, Failure>(())
        })?;
    }
    Ok(())
}
