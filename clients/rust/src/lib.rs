//! Acquires locks on Redis and Valkey servers that run the redislock module. Waiters are served in order, locks are
//! renewed and have fencing tokens, and a loss is reported at once.
//!
//! ```no_run
//! use redislock_client::{Error, Locks};
//! use std::time::Duration;
//!
//! # async fn work() {}
//! # async fn example() -> Result<(), Error> {
//! let locks = Locks::open("redis://127.0.0.1:6379")?;
//! let guard = locks.lock("invoice:42").wait(Duration::from_secs(5)).acquire().await?;
//! guard.run(work()).await?; // Error::LockLost drops the work
//! guard.release().await?; // a guard that is dropped is released in the background
//! # Ok(())
//! # }
//! ```
//!
//! - [`Locks`]: a client for the locks of a server, of a cluster, or of a primary that Sentinel monitors. [`redlock`]:
//!   of independent servers.
//! - [`Lock`]: describes a lock. The future of [`Lock::acquire`] can be dropped at any moment; then nothing is held.
//! - [`Guard`]: a lock that is held, with its fencing [token](Hold::token). [`Hold::check`], [`Hold::lost`] and
//!   [`Hold::run`] report its loss.
//! - Background events are logged with the [`tracing`](https://docs.rs/tracing) crate: failed renewals, losses, long
//!   waits.
//! - [`Candidate`] and [`Leader`]: elections. [`hooks`]: functions that are called for events. [`Error`]: all errors.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod abandon;
mod address;
mod clock;
mod core;
mod engine;
mod error;
mod held;
mod hold;
pub mod hooks;
mod info;
mod keeper;
mod leader;
mod line;
mod link;
mod lock;
mod locks;
#[cfg(feature = "opentelemetry")]
mod otel;
pub mod redlock;
mod request;
mod rules;
mod servers;
#[cfg(feature = "testing")]
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod wanted;

pub use crate::address::IntoServer;
pub use crate::error::{Cause, Error, Loss, Wait};
pub use crate::hold::{Guard, Hold};
pub use crate::info::{Holder, Info, Waiter};
pub use crate::leader::{Candidate, Leader};
pub use crate::lock::Lock;
pub use crate::locks::{Builder, Locks};
pub use redis;
