//! What happens when: who asks, who waits, what is due, who is answered, what replicas have.
//!
//! The engine is safe, and knows no server but as a [`server::Server`]. It is the only way into the core: for commands,
//! for what the server tells of itself, and for time that has passed. All that runs on one thread.
//!
//! * [`commands`], [`acquire`], [`describe`]: a command each; [`at_key`]: its step at its key or keys.
//! * [`step`]: carries out what a step decided; [`outbox`]: what is published, in its order.
//! * [`events`], [`values`], [`legacy`]: what the server tells.
//! * [`work`]: all that makes work for the pump does it here; [`pump`]: does it; [`sweep`]: what no event tells of.
//! * [`clients`], [`answers`]: those who are blocked; [`confirm`]: those who wait for replicas; [`admission`]: who may
//!   be granted a lock.
//! * [`settings`], [`quarantine`], [`leaving`], [`first_use`]: what the user has set, and what follows from it.
//! * [`state`], [`shared`]: what is kept; [`contended`]: which locks are asked for most.

pub mod acquire;
pub mod admission;
pub mod answers;
pub mod at_key;
pub mod clients;
pub mod commands;
pub mod confirm;
pub mod contended;
pub mod describe;
pub mod events;
pub mod first_use;
pub mod flags;
pub mod leaving;
pub mod legacy;
pub mod obstacle;
pub mod outbox;
pub mod pump;
pub mod quarantine;
pub mod sent;
pub mod server;
pub mod settings;
pub mod shared;
pub mod state;
pub mod step;
pub mod sweep;
pub mod values;
pub mod work;

#[cfg(test)]
pub(crate) mod tests;
