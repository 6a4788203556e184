//! Twenty jobs share a licence for three: a semaphore admits three at a time, in order of arrival.

use redislock_client::{Error, Locks, redis};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::sleep;

const ADDRESS: &str = "redis://127.0.0.1:6379";

async fn job(locks: Locks, now: Arc<AtomicU64>, most: Arc<AtomicU64>) -> Result<(), Error> {
    let place = locks.semaphore("licence", 3).wait(Duration::from_secs(60)).acquire().await?;
    most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
    sleep(Duration::from_millis(20)).await;
    now.fetch_sub(1, SeqCst);
    place.release().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = Locks::open(ADDRESS)?;
    let mut server = redis::Client::open(ADDRESS)?.get_multiplexed_async_connection().await?;
    // The example writes to this server, and removes its keys. It refuses a server without the module, or
    // with keys.
    redis::cmd("LOCK.INFO").arg("example").exec_async(&mut server).await?;
    let keys: u64 = redis::cmd("DBSIZE").query_async(&mut server).await?;
    if keys > 0 && std::env::var("REDISLOCK_EXAMPLES").is_err() {
        return Err(
            format!("{ADDRESS} has keys: use an empty server, or set REDISLOCK_EXAMPLES=anywhere").into()
        );
    }
    let (now, most) = (Arc::default(), Arc::new(AtomicU64::new(0)));

    let jobs: Vec<_> =
        (0..20).map(|_| tokio::spawn(job(locks.clone(), Arc::clone(&now), most.clone()))).collect();
    for job in jobs {
        job.await??;
    }
    println!("{} at once", most.load(SeqCst)); // prints: 3 at once

    locks.close().await;
    Ok(())
}
