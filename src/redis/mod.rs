//! The edge: a real server, by its module API, as the engine wants to see one ([`ctx`]). The only `unsafe` of the module.
//!
//! It decides nothing: it hands the server's calls to the engine, and the engine's requests to the server.

// The constants of the server's header are bound as other integers than its functions take.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[cfg(not(test))]
mod alloc;
mod api;
mod blocking;
mod clock;
mod cluster;
mod ctx;
mod docs;
mod events;
mod exec;
mod ffi;
mod guard;
mod handlers;
mod hot;
mod info;
mod keeper;
mod kind;
mod load;
mod needs;
mod replicate;
mod reply;
mod rights;
mod server;
mod server_info;
mod settings;
mod soon;
mod value;
mod wakeup;

pub use load::{RedisModule_OnLoad, RedisModule_OnUnload};

/// The memory of the locks counts as the server's memory. Not in unit tests: they run without a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: alloc::ServerAlloc = alloc::ServerAlloc;
