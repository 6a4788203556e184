//! `doctor --active`: takes, renews, checks and releases a lock on each primary.

use redislock_client::redis::Value;
use uuid::Uuid;

use super::Finding;
use super::Level::Error;
use super::facts::{Facts, Known};
use crate::nodes::Refusal;

const CHECK: &str = "active";
/// The number of names to try, until one is in a slot of the node.
const NAMES: u32 = 2000;
/// The lease of the lock, in milliseconds: it stays no longer if the tool dies meanwhile.
const LEASE_MS: &str = "3000";

pub fn all(known: &mut Known, prefix: &str) -> Vec<Finding> {
    known.nodes.iter_mut().filter(|node| node.is_primary).map(|node| cycle(node, prefix)).collect()
}

fn cycle(node: &mut Facts, prefix: &str) -> Finding {
    match try_cycle(node, prefix) {
        Ok(()) => {
            Finding::ok(CHECK, format!("took, renewed, checked and released a lock on {}", node.address))
        }
        Err(why) => {
            let advice = ("Look at the checks above", "docs/reference/tool.md");
            Finding::new(Error, CHECK, format!("{}: {why}", node.address), advice)
        }
    }
}

fn try_cycle(node: &mut Facts, prefix: &str) -> Result<(), String> {
    let owner = format!("doctor:{}", Uuid::new_v4());
    let (key, token) = acquire(node, prefix, &owner)?;
    let token = token.to_string();
    let steps: [&[&str]; 3] = [
        &["LOCK.RENEW", &key, &owner, "PX", LEASE_MS, "TOKEN", &token],
        &["LOCK.FENCE", &key, &token],
        &["LOCK.RELEASE", &key, &owner, "TOKEN", &token],
    ];
    for words in steps {
        match node.node.words(words) {
            Ok(Value::Int(1)) => {}
            Ok(other) => return Err(format!("{} was answered {other:?}", words[0])),
            Err(refusal) => return Err(format!("{}: {}", words[0], refusal.text())),
        }
    }
    Ok(())
}

/// Takes a lock of a name that this node has. A cluster's node redirects other names.
fn acquire(node: &mut Facts, prefix: &str, owner: &str) -> Result<(String, i64), String> {
    for number in 0..NAMES {
        let key = format!("{prefix}doctor:{owner}:{number}");
        match node.node.words(&["LOCK.ACQUIRE", &key, owner, "PX", LEASE_MS]) {
            Ok(Value::Int(token)) => return Ok((key, token)),
            Ok(_) => return Err("another owner holds a lock that was never used".to_owned()),
            Err(Refusal::Reply(text)) if text.starts_with("MOVED") => {}
            Err(refusal) => return Err(format!("LOCK.ACQUIRE: {}", refusal.text())),
        }
    }
    Err("no name was found that this node has".to_owned())
}
