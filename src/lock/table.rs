//! The locks of one server.
//!
//! The table is the unit of the core, and not the single lock, because owners, deadlines and tokens
//! span locks. Its steps are spread over files by their callers:
//!
//! * [`decide`]: a client asks, on a primary. The plain exclusive lock takes a short path, in this file.
//! * [`kinds`]: the same for requests and locks of all kinds; [`multi`]: for several locks in one step.
//! * [`admit`]: grants to waiters when a lock, or a place in it, is free.
//! * [`ended`]: ends by time or from outside: leases, timeouts, keys that were removed; [`connections`]: connections
//!   that closed.
//! * [`apply`]: facts decided elsewhere: the replication stream, the append-only file, RDB.
//! * [`outbox`], [`notices`]: the events to publish, in order.
//! * [`noted`], [`tasks`]: the queues and holds that the pump must examine.
//! * [`away`]: those who waited when this server stopped deciding, or was to grant nothing any more.
//! * [`revoke`]: holds whose grants were not delivered yet, and their revocation.
//! * [`leaving`]: no lock is granted any more, because the module is being unloaded.
//! * [`describe`]: the data for INFO, FENCE and the tests.

mod admit;
mod apply;
mod away;
mod begin;
mod closed;
mod connections;
mod context;
mod decide;
mod describe;
mod ended;
mod kinds;
mod leaving;
mod multi;
mod noted;
mod notices;
mod outbox;
mod quarantine;
mod revoke;
mod state;
mod tasks;
mod terms;
mod undelivered;

pub use describe::{Description, HoldView, Possession, WaiterView};
pub use outbox::Notice;
pub use state::Table;
pub use terms::{
    ARRIVED, Acquired, Admission, Ask, Block, Candidate, Decision, Granted, KeyRef, Limits, NO_PERMISSION,
    NO_PERMISSION_FOR_SEVERAL, NO_TOKENS, Refusal, Release, Renewal, Steps, TOO_MANY_LOCKS, WRONG_TYPE, Wait,
};
