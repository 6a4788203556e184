//! The edge: implements the engine's server ([`ctx`]) by the module API of a real one. The only `unsafe` code of the
//! module.
//!
//! It decides nothing: it hands the server's calls to the engine, and the engine's requests to the server.

// The constants of the server's header are bound as other integers than its functions take.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod acl;
#[cfg(not(test))]
mod alloc;
mod api;
mod api_table;
mod blocking;
mod call_reply;
mod clock;
mod cluster;
mod ctx;
mod docs;
mod events;
mod exec;
mod ffi;
mod handlers;
mod info;
mod main_thread;
mod module_type;
mod needs;
mod onload;
mod panic_guard;
mod pump_timer;
mod replicate;
mod server;
mod server_info;
mod server_quirks;
mod settings;
mod wakeup;

pub use onload::{RedisModule_OnLoad, RedisModule_OnUnload};

/// The memory of the locks counts as the server's memory. Not in unit tests: they run without a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: alloc::ServerAlloc = alloc::ServerAlloc;
