//! What happens when: who asks, who waits, what is due, who is answered, what replicas have.
//!
//! The engine is safe, and knows no server but as a [`server::Server`]. It is the only way into the core: for commands,
//! for what the server tells of itself, and for time that has passed. All that runs on one thread.
//!
//! * [`commands`], [`acquire`], [`describe`]: a command each; [`key_step`]: its step at its key or keys.
//! * [`apply`]: carries out what a step decided; [`outbox`]: what is published, in its order.
//! * [`server_events`], [`type_callbacks`], [`legacy`]: what the server tells.
//! * [`schedule`]: all that makes work for the pump does it here; [`pump`]: does it; [`cron`]: what no event tells of.
//! * [`blocked_clients`], [`replies`]: those who are blocked; [`confirm`]: those who wait for replicas; [`admission`]: who may
//!   be granted a lock.
//! * [`settings`], [`quarantine`], [`drain`], [`lazy_subscribe`]: what the user has set, and what follows from it.
//! * [`state`], [`shared`]: what is kept; [`hot_locks`]: which locks are asked for most.

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
