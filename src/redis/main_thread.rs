//! The engine's data in this process: one state, for the server's main thread alone.

use std::cell::{Cell, RefCell};

use redis_module::raw;

use super::clock::Timer;
use crate::engine::shared::Shared;
use crate::engine::state::State;

/// The handle of a blocked client.
pub(crate) type Blocked = *mut raw::RedisModuleBlockedClient;

struct MainThread(RefCell<Option<State<Blocked, Timer>>>);

// SAFETY: only `with`, `begin` and `end` look inside, and they do so on the thread that loaded the module only.
unsafe impl Sync for MainThread {}

static STATE: MainThread = MainThread(RefCell::new(None));

/// The part that every thread can read, at any time.
pub(super) static SHARED: Shared = Shared::new();

thread_local! {
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is the server's main thread. Once, at load.
pub(super) fn begin() {
    IS_MAIN.with(|is_main| is_main.set(true));
    *STATE.0.borrow_mut() = Some(State::default());
}

/// Forgets the state. Once, when the module is not loaded after all.
pub(super) fn end() {
    *STATE.0.borrow_mut() = None;
}

/// Runs `use_it` on the state. `None`: not the main thread, or a caller further up is within this function.
#[inline]
pub(super) fn with<R>(use_it: impl FnOnce(&mut State<Blocked, Timer>) -> R) -> Option<R> {
    if !IS_MAIN.with(Cell::get) {
        return None;
    }
    let mut state = STATE.0.try_borrow_mut().ok()?;
    state.as_mut().map(use_it)
}
