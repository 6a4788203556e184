//! A primary, its clients and the readers of its stream, which act only when a test asks them to.
//!
//! | file | what it is |
//! |---|---|
//! | `driven.rs` | one server, and the steps by which tests drive it |
//! | `server.rs` | the same, in the words of locks and owners |
//! | `world.rs` | the server with clients and readers |
//! | `asks.rs` | the commands of clients, and their replies |
//! | `input.rs` | the inputs and outcomes of a world |
//! | `reader.rs` | replicas and files, fed by the stream |
//! | `facts.rs` | the effect of records on a reader |

pub(crate) mod asks;
pub(crate) mod driven;
pub(crate) mod facts;
pub(crate) mod input;
pub(crate) mod reader;
pub(crate) mod server;
pub(crate) mod world;
