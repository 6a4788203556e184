//! Tests of the core as a whole; those of one file stand in it.

mod judge;
mod reader;
mod server;
mod world;
