//! The engine: decides when each step runs, and answers clients.
//!
//! The engine is safe, and knows a server only as a [`server::Server`]. It is the only way into the core: for
//! commands, for events of the server, and for time that has passed. Everything runs on one thread.
//!
//! * [`commands`], [`acquire`], [`describe`]: a function per command; [`key_step`]: its step at its key or keys.
//! * [`apply`]: applies what a step decided; [`outbox`]: publishes events, in order.
//! * [`server_events`], [`type_callbacks`], [`legacy`]: reports of the server.
//! * [`schedule`]: requests runs of the pump; [`pump`]: the only writer outside of commands; [`cron`]: what no event
//!   reports.
//! * [`blocked_clients`], [`replies`]: blocked clients; [`confirm`]: clients that wait for replicas; [`admission`]:
//!   whether a waiter may be granted a lock.
//! * [`settings`], [`quarantine`], [`drain`], [`lazy_subscribe`]: the settings, and what follows from them.
//! * [`state`], [`shared`]: the stored state; [`hot_locks`]: the most contended locks.

pub mod acquire;
pub mod admission;
pub mod apply;
pub mod blocked_clients;
pub mod commands;
pub mod confirm;
pub mod cron;
pub mod describe;
pub mod drain;
pub mod flags;
pub mod hot_locks;
pub mod key_step;
pub mod lazy_subscribe;
pub mod legacy;
pub mod outbox;
pub mod pump;
pub mod quarantine;
pub mod replies;
pub mod schedule;
pub mod server;
pub mod server_events;
pub mod settings;
pub mod shared;
pub mod state;
pub mod type_callbacks;
pub mod unflushed_replies;
pub mod uninstall_status;

#[cfg(test)]
pub(crate) mod tests;
