//! All locks, by the number that the keyspace stores.
//!
//! A record is written as narrowly as it can be (see [`record`]), in a slot of a [`slab`], with its lease on
//! a [`wheel`]. Nothing of that shows outside: here are [`Locks`], and the views [`Lock`] and [`Hold`].

mod bindings;
mod check;
mod detached;
mod going;
mod hold;
mod holders;
mod id;
mod overflow;
mod pack;
mod record;
mod several;
mod slab;
mod sought;
mod state;
mod terms;
#[cfg(test)]
mod tests;
mod wheel;

pub use going::{Going, Gone};
pub use hold::{Hold, Lock, OwnerText};
pub use id::LockId;
pub use overflow::BoundHolds;
pub use state::{Due, Locks};
pub use terms::{Ended, NewHold};
