//! Of all instances of a program one leads; when it resigns, dies or is cut off, the next in line does.

use redislock_client::{Error, Leader, Locks};
use std::time::Duration;
use tokio::time::sleep;

/// One instance stands for election.
fn stand(locks: &Locks, instance: &'static str) -> Result<Leader, Error> {
    // The work is dropped when it leads no more.
    locks.leader("scheduler").on_elected(move |_| async move { println!("{instance} leads") }).stand()
}

/// The fencing token of this leader, as soon as it leads.
async fn token(leader: &Leader) -> Result<u64, Error> {
    let hold = leader.elected().await?;
    sleep(Duration::from_millis(10)).await; // let it do something
    Ok(hold.token())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = Locks::open("redis://127.0.0.1:6379")?;

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
