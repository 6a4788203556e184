//! The locks of one server.
//!
//! The core's unit is the table rather than the single lock, because owners, deadlines and tokens span locks. Its
//! steps are spread over files by their callers, and the calls between the files form no cycle:
//!
//! * [`acquire`], [`release`]: requests of clients, on a primary; [`macquire`]: requests for several locks.
//! * [`waits`]: joins queues, and answers the waiters that leave them.
//! * [`grant`]: starts holds, and grants a lock to its waiters once it, or a permit of it, is free.
//! * [`expire`]: ends expired holds; [`key_events`]: locks whose keys were removed; [`disconnect`]: connections
//!   that closed.
//! * [`apply`]: facts decided elsewhere: the replication stream, the append-only file, RDB.
//! * [`event_queue`], [`notices`]: the events to publish, in order.
//! * [`task_queue`], [`tasks`]: the queues and holds that the pump must examine.
//! * [`revoke`]: holds that were not delivered to their owners yet, and their revocation.
//! * [`leaving`]: stops granting when the module is removed or the server is demoted; [`rejected_waiters`]: the
//!   waiters to reject then.
//! * [`describe`]: the data for INFO, FENCE and the tests.

mod acquire;
mod apply;
mod describe;
mod disconnect;
mod event_queue;
mod expire;
mod grant;
mod key_events;
mod key_step;
mod leaving;
mod macquire;
mod notices;
mod quarantine;
mod rejected_waiters;
mod release;
mod requests;
mod restrictions;
mod revoke;
mod sessions;
mod state;
mod task_queue;
mod tasks;
mod undelivered;
mod waits;

pub use describe::{Description, HoldView, Possession, WaiterView};
pub use event_queue::Notice;
pub use requests::{
    ARRIVED, Acquired, Admission, Ask, Block, Candidate, Decision, Granted, KeyRef, Limits, NO_PERMISSION,
    NO_PERMISSION_FOR_SEVERAL, NO_TOKENS, Refusal, Release, Renewal, Steps, TOO_MANY_LOCKS, WRONG_TYPE, Wait,
};
pub use state::Table;
