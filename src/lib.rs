//! redislock: locks as a native type of Redis and Valkey.
//!
//! # Layout
//!
//! * [`lock`]: the core. Every rule of locking, without a server, a clock or `unsafe`.
//! * [`command`]: bytes to requests, outcomes to errors. As pure as the core.
//! * [`engine`]: what happens when. Safe, and knows no server but as a trait.
//! * [`redis`]: the edge. A real server by its module API; the only `unsafe`.
//! * `sim`: simulated servers, groups of them, and what judges them. Tests alone have it.
//! * `sabotage`: which rule tests of the tests leave out. Nothing, in a module that is shipped.
//!
//! `redis` uses `engine`, `engine` uses `command` and `lock`, `command` uses `lock`, and nothing points back. See
//! `docs/internals/architecture.md`.

#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::disallowed_methods, clippy::ptr_as_ptr)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

#[forbid(unsafe_code)]
pub mod command;
#[forbid(unsafe_code)]
pub mod engine;
#[forbid(unsafe_code)]
pub mod lock;
pub mod redis;
#[forbid(unsafe_code)]
#[cfg(any(test, feature = "sabotage"))]
mod sabotage;
#[forbid(unsafe_code)]
#[cfg(test)]
mod sim;

// What fuzzing has found is tried by the tests of this crate.
#[cfg(test)]
#[path = "../tests/fuzz/targets/mod.rs"]
mod fuzz;
