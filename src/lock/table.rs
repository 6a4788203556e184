//! The locks of one server.
//!
//! The table is the unit of the core, and not the single lock, because owners, deadlines and tokens
//! span locks. Its steps are spread over files by their callers. Their calls of each other's methods make
//! no circle:
//!
//! * [`acquire`], [`release`]: a client asks, on a primary; [`multi`]: for several locks in one step.
//! * [`waits`]: who may join a queue, and the answers to those who leave it.
//! * [`admit`]: grants to waiters when a lock, or a place in it, is free.
//! * [`ended`]: ends by time or from outside: leases, keys that were removed; [`connections`]: connections
//!   that closed.
//! * [`apply`]: facts decided elsewhere: the replication stream, the append-only file, RDB.
//! * [`outbox`], [`notices`]: the events to publish, in order.
//! * [`noted`], [`tasks`]: the queues and holds that the pump must examine.
//! * [`revoke`]: holds whose grants were not delivered yet, and their revocation.
//! * [`leaving`]: no lock is granted any more, because the module is being unloaded or this server stops deciding; [`away`]:
//!   those who waited then.
//! * [`describe`]: the data for INFO, FENCE and the tests.

mod acquire;
mod admit;
mod apply;
mod away;
mod begin;
mod connections;
mod context;
mod describe;
mod ended;
mod leaving;
mod multi;
mod noted;
mod notices;
mod outbox;
mod quarantine;
mod release;
mod restrictions;
mod revoke;
mod sessions;
mod state;
mod tasks;
mod terms;
mod undelivered;
mod waits;

pub use describe::{Description, HoldView, Possession, WaiterView};
pub use outbox::Notice;
pub use state::Table;
pub use terms::{
    ARRIVED, Acquired, Admission, Ask, Block, Candidate, Decision, Granted, KeyRef, Limits, NO_PERMISSION,
    NO_PERMISSION_FOR_SEVERAL, NO_TOKENS, Refusal, Release, Renewal, Steps, TOO_MANY_LOCKS, WRONG_TYPE, Wait,
};
