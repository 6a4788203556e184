//! Measures acquire and release against the bare driver's two commands, side by side in one run, and what a loss and a
//! thousand waiters cost. Usage: cargo bench --bench cost -- [HOST:PORT]; the server has the module.

use std::env;
use std::time::{Duration, Instant};

use redislock_client::{Error, Locks, redis};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

type Failure = Box<dyn std::error::Error>;

const ROUNDS: usize = 31;
const PAIRS: u32 = 300;
const TASKS: usize = 1000;
const LOSSES: usize = 50;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Microseconds of one pair, when so many run one after the other.
async fn time_of(mut pair: impl AsyncFnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let began = Instant::now();
    for _ in 0..PAIRS {
        pair().await?;
    }
    Ok(1e6 * began.elapsed().as_secs_f64() / f64::from(PAIRS))
}

/// The contestants, in turn in each round, so that what else the machine does falls on all alike.
async fn pairs(url: &str, locks: &Locks) -> Result<(), Failure> {
    let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let bare = async || {
        let (owner, mut connection) = (Uuid::new_v4().to_string(), connection.clone());
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg("bare").arg(&owner).arg("PX").arg(30_000).exec_async(&mut connection).await?;
        let mut release = redis::cmd("LOCK.RELEASE");
        release.arg("bare").arg(&owner).exec_async(&mut connection).await?;
        Ok(())
    };
    let ours = async || Ok(locks.lock("ours").acquire().await?.release().await?);
    let run = async || Ok(locks.lock("ours").run(async |_| Ok::<_, Error>(())).await?);
    let mut times = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        let taken = [time_of(bare).await?, time_of(ours).await?, time_of(run).await?];
        for (times, taken) in times.iter_mut().zip(taken).filter(|_| round > 0) {
            times.push(taken);
        }
    }
    let ratio = |of: &[f64]| median(of.iter().zip(&times[0]).map(|(time, bare)| time / bare).collect());
    for (name, of) in ["the bare commands", "redislock", "redislock, run"].iter().zip(&times) {
        println!("| {name} | {:.0} us | {:.2} |", median(of.clone()), ratio(of));
    }
    Ok(())
}

/// From `DEL` to the moment at which the holder knows.
async fn losses(url: &str, locks: &Locks) -> Result<(), Failure> {
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
    println!("a loss is told {:.2} ms after DEL (median of {LOSSES})", median(times));
    Ok(())
}

/// So many tasks wait for one lock, and each gives it up at once.
async fn crowd(locks: &Locks) -> Result<(), Failure> {
    let first = locks.lock("crowd").acquire().await?;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let lock = locks.lock("crowd");
        tasks.spawn(async move { lock.acquire().await?.release().await });
    }
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    first.release().await?;
    for ended in tasks.join_all().await {
        ended?;
    }
    println!(
        "{TASKS} waiting tasks were served in {:.2} s, over one connection",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    // `cargo bench` adds --bench.
    let address = env::args().skip(1).find(|word| !word.starts_with('-'));
    let url = format!("redis://{}", address.as_deref().unwrap_or("127.0.0.1:6379"));
    for (name, runtime) in
        [("one thread", &mut Builder::new_current_thread()), ("threads", &mut Builder::new_multi_thread())]
    {
        println!("{name}:");
        runtime.enable_all().build()?.block_on(async {
            let locks = Locks::open(url.as_str())?;
            pairs(&url, &locks).await?;
            losses(&url, &locks).await?;
            crowd(&locks).await?;
            locks.close().await;
            Ok::<_, Failure>(())
        })?;
    }
    Ok(())
}
