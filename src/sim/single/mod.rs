//! A primary, its clients and the readers of its stream, which move only when a test says so.
//!
//! | file | what it is |
//! |---|---|
//! | `driven.rs` | one server, and the steps that it can be driven by |
//! | `server.rs` | the same, in the words of locks and owners |
//! | `world.rs` | the server with clients and readers |
//! | `asks.rs` | what clients ask, and the outcome |
//! | `input.rs` | the inputs and outcomes of a world |
//! | `reader.rs` | replicas and files, fed by the stream |
//! | `facts.rs` | what a reader makes of what it is told |

pub(crate) mod asks;
pub(crate) mod driven;
pub(crate) mod facts;
pub(crate) mod input;
pub(crate) mod reader;
pub(crate) mod server;
pub(crate) mod world;
