//! Of all instances of a program, one leads. When it resigns, dies or is cut off, the next candidate leads.

use redislock_client::{Error, Leader, Locks, redis};
use std::time::Duration;
use tokio::time::sleep;

const ADDRESS: &str = "redis://127.0.0.1:6379";

/// One instance stands for election.
fn stand(locks: &Locks, instance: &'static str) -> Result<Leader, Error> {
    // The work is dropped when it loses the leadership.
    locks.leader("scheduler").on_elected(move |_| async move { println!("{instance} leads") }).stand()
}

/// Returns the fencing token of this leader, as soon as it leads.
async fn token(leader: &Leader) -> Result<u64, Error> {
    let hold = leader.elected().await?;
    sleep(Duration::from_millis(10)).await; // let it do something
    Ok(hold.token())
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

    let first = stand(&locks, "the first")?;
    let before = token(&first).await?; // prints: the first leads
    let second = stand(&locks, "the second")?;
    first.resign().await;
    let after = token(&second).await?; // prints: the second leads
    second.resign().await;
    println!("{}", after > before); // prints: true

    locks.close().await;
    Ok(())
}
