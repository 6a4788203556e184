//! The engine's state in this process, for the server's main thread only.

use std::cell::{Cell, RefCell};

use redis_module::raw;

use super::clock::Timer;
use crate::engine::shared::Shared;
use crate::engine::state::State;

/// The handle of a blocked client.
pub(crate) type Blocked = *mut raw::RedisModuleBlockedClient;

struct MainThread(RefCell<Option<State<Blocked, Timer>>>);

// SAFETY: only `with`, `begin` and `end` access the content, and only on the thread that loaded the module.
unsafe impl Sync for MainThread {}

static STATE: MainThread = MainThread(RefCell::new(None));

/// The part that every thread may read at any time.
pub(super) static SHARED: Shared = Shared::new();

thread_local! {
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// Records the calling thread as the server's main thread. Called once, at load.
pub(super) fn begin() {
    IS_MAIN.with(|is_main| is_main.set(true));
    *STATE.0.borrow_mut() = Some(State::default());
}

/// Drops the state, because the module was not loaded after all.
pub(super) fn end() {
    *STATE.0.borrow_mut() = None;
}

/// Runs `use_it` on the state. `None` on another thread, or if a caller is within this function already.
#[inline]
pub(super) fn with<R>(use_it: impl FnOnce(&mut State<Blocked, Timer>) -> R) -> Option<R> {
    if !IS_MAIN.with(Cell::get) {
        return None;
    }
    let mut state = STATE.0.try_borrow_mut().ok()?;
    state.as_mut().map(use_it)
}
