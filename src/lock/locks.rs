//! All locks, by the number that the keyspace stores.
//!
//! A record is as narrow as it can be (see [`record`]), in a slot of a [`slab`], with its lease on a [`timer_wheel`].
//! The interface hides that: it has [`Locks`], and the views [`Lock`] and [`Hold`].

mod bindings;
mod check;
mod hold;
mod hold_ext;
mod holder_list;
mod id;
mod lazy_free;
mod lazy_free_holders;
mod multi_holder;
mod name_codec;
mod new_hold;
mod owner_index;
mod record;
mod slab;
mod store;
#[cfg(test)]
mod tests;
mod timer_wheel;

pub use hold::{Hold, Lock, OwnerText};
pub use hold_ext::BoundHolds;
pub use id::LockId;
pub use lazy_free::{Going, Gone};
pub use new_hold::{Ended, NewHold};
pub use store::{Due, Locks};
