//! The locks of one server.
//!
//! The table is the unit of the core, and not the single lock, because owners, deadlines and tokens
//! span locks. Its steps are spread over files by who calls them:
//!
//! * [`decide`]: a client asks, on a primary. What the plain exclusive lock needs is done here, on a short path.
//! * [`kinds`]: the same for requests and locks of all kinds; [`multi`]: for several locks in one step.
//! * [`line`]: who is let in when a lock, or a place in it, is free.
//! * [`wake`]: something ended by itself or from outside: leases, timeouts, closed connections, keys
//!   that went away.
//! * [`apply`]: facts decided elsewhere: the replication stream, the append-only file, RDB.
//! * [`outbox`], [`notices`]: what is to be published, in its order.
//! * [`beside`]: a data set that is loaded while another one is served.
//! * [`leaving`]: no lock is granted any more, because the module is to go.
//! * [`view`]: what INFO, FENCE and the tests want to know.

mod apply;
mod beside;
mod decide;
mod hold;
mod kinds;
mod leaving;
mod line;
mod multi;
mod notices;
mod outbox;
mod quarantine;
mod state;
mod terms;
mod undo;
mod view;
mod wake;

pub use outbox::Notice;
pub use state::{Gone, Table};
pub use terms::{
    Acquired, Admission, Applicant, Ask, Block, Gate, Granted, Limits, NO_PERMISSION,
    NO_PERMISSION_FOR_SEVERAL, NO_TOKENS, Refusal, Renewal, Spot, Steps, TOO_MANY_LOCKS, WRONG_TYPE, Wait,
};
pub use view::{Description, HoldView, Possession, WaiterView};
pub use wake::Due;
