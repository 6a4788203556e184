//! The edge: carries out what the core decides. The only `unsafe` of the module.
//!
//! No rule of locking is decided here. A command goes [`guard`] -> [`handlers`] -> the core ->
//! [`carry_out`]; everything else that can end a hold or a wait goes through [`pump`], which is the only
//! writer outside commands.

// The constants of the server's header are bound as other integers than its functions take.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod acquiring;
#[cfg(not(test))]
mod alloc;
mod api;
mod blocking;
mod carry_out;
mod clock;
mod cluster;
mod confirm;
mod docs;
mod events;
mod exec;
mod ffi;
mod gate;
mod guard;
mod handlers;
mod host;
mod info;
mod leaving;
mod legacy;
mod load;
mod outbox;
mod pump;
mod quarantine;
mod records;
mod reply;
mod report;
mod role;
mod rounds;
mod server;
mod settings;
mod several;
mod state;
mod timer;
mod turns;
mod value;

pub use load::RedisModule_OnLoad;

/// What the locks occupy counts as the server's memory. Not in unit tests: they run without a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: alloc::ServerAlloc = alloc::ServerAlloc;
