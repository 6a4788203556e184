//! The core: the locks and every rule about them, without Redis.
//!
//! The core has no server type, no clock, no randomness, no I/O, and no `unsafe`. Time comes in as an argument,
//! effects go out as values. The same inputs give the same results, so every rule is tested without a server, and a
//! simulation of a whole group of servers is a loop.
//!
//! # The rules in prose
//!
//! * The value of a key of our type is the number of a [`locks::Lock`]. The key exists if and only if the lock is
//!   held. (An *empty* lock, left by RENAME, MOVE, SWAPDB or RESTORE under another name, counts as free.)
//! * The *server's keyspace is the index*: the value of a key is the number of its lock. A step receives the content
//!   of the key ([`effect::Existing`]) and returns its change ([`effect::Change`]). Nothing is looked up twice, and
//!   nothing can disagree with the keyspace.
//! * A hold ends by its owner's release, its lease, or a deliberate deletion of the key (G10).
//! * A request for a lock that is held or awaited joins the end of the queue, or is refused (G5).
//! * Whatever frees a lock with waiters either grants it in the same step or leaves a [`effect::Task`] for the pump
//!   (G6).
//! * Every waiter leaves its queue exactly once, and with exactly one answer (G7).
//! * On replicas and while files load, [`table::Table`]'s `apply_*` steps carry out decisions made elsewhere; they
//!   decide nothing (G13).

pub mod arena;
pub mod by_hash;
pub mod codec;
pub mod confirm;
pub mod deadline;
pub mod deadlock;
pub mod effect;
pub mod locks;
pub mod queue;
pub mod stats;
pub mod table;
pub mod token;
pub(crate) mod tuning;
pub mod types;

#[cfg(test)]
pub(crate) mod tests;
