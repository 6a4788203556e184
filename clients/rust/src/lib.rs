//! Locks in Redis and Valkey with the redislock module.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod clock;
mod core;
mod engine;
mod error;
mod group;
mod hold;
pub mod hooks;
mod keeper;
mod leader;
mod line;
mod link;
mod lock;
mod locks;
mod rules;
mod servers;
mod wanted;

pub use crate::error::{Error, Loss, Wait};
pub use crate::hold::{Guard, Hold};
pub use crate::leader::{Candidate, Leader};
pub use crate::lock::Lock;
pub use crate::locks::{Builder, Locks};
pub use redis;
