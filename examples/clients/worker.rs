//! Workers take payments from a queue, and never work for the same customer at the same time. Each payment is
//! a read, some work and a write: without the lock, some would be lost.

use redislock_client::Locks;
use redislock_client::redis::{self, AsyncCommands, aio::MultiplexedConnection};
use std::time::Duration;
use tokio::time::sleep;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ADDRESS: &str = "redis://127.0.0.1:6379";

/// Works until the queue is empty.
async fn work(locks: Locks, mut server: MultiplexedConnection) -> Result<(), Failure> {
    while let Some(customer) = server.rpop::<_, Option<String>>("payments", None).await? {
        let lock = locks.lock(format!("customer:{customer}"));
        let guard = lock.lease(Duration::from_secs(10)).wait(Duration::from_secs(60)).acquire().await?;
        // Dropped if the lock is lost.
        guard.run(pay(&mut server, &customer)).await??;
        guard.release().await?;
    }
    Ok(())
}

async fn pay(server: &mut MultiplexedConnection, customer: &str) -> Result<(), Failure> {
    let balance = format!("balance:{customer}");
    let before: Option<u64> = server.get(&balance).await?;
    sleep(Duration::from_millis(5)).await;
    server.set::<_, _, ()>(&balance, before.unwrap_or(0) + 1).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
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
    server.lpush::<_, _, ()>("payments", ["ann", "ben"].repeat(20)).await?;

    let workers: Vec<_> = (0..4).map(|_| tokio::spawn(work(locks.clone(), server.clone()))).collect();
    for worker in workers {
        worker.await??;
    }
    let paid: (u64, u64) = server.mget(&["balance:ann", "balance:ben"]).await?;
    println!("{paid:?}"); // prints: (20, 20)

    server.del::<_, ()>(&["balance:ann", "balance:ben"]).await?;
    locks.close().await;
    Ok(())
}
