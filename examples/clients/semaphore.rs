//! Twenty jobs, a licence for three: a semaphore lets in as many as may, in the order in which they came.

use redislock_client::{Error, Locks};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::sleep;

async fn job(locks: Locks, now: Arc<AtomicU64>, most: Arc<AtomicU64>) -> Result<(), Error> {
    let place = locks.semaphore("licence", 3).wait(Duration::from_secs(60)).acquire().await?;
    most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
    sleep(Duration::from_millis(20)).await;
    now.fetch_sub(1, SeqCst);
    place.release().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = Locks::open("redis://127.0.0.1:6379")?;
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
