//! Tests of the core as a whole; those of one file stand in it.

mod input;
mod judge;
mod known;
mod model;
mod oracle;
mod property;
mod random;
mod reader;
mod scenario;
mod server;
mod world;
