//! The one table of this process and what the edge must remember beside it.
//!
//! Everything runs on the server's main thread, with one exception: after FLUSHALL ASYNC the server
//! frees values on a thread of its own. Such values are numbers; they are put into [`GRAVEYARD`] and
//! buried by the main thread.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use hashbrown::HashMap;
use redis_module::raw;

use super::turns::{TOLD_AT_ONCE, Turns};
use crate::lock::effect::{Change, Effects, Found, LockId, WaiterId};
use crate::lock::table::Table;
use crate::lock::types::{ClientId, Moment};

/// The handle of a blocked client.
pub(crate) type Handle = *mut raw::RedisModuleBlockedClient;

/// What the main thread keeps.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) table: Table,
    /// A buffer for effects, so that a step allocates nothing in the usual case.
    pub(crate) fx: Effects,
    /// The blocked client of each waiter.
    pub(crate) handles: HashMap<WaiterId, Handle>,
    /// And back.
    pub(crate) waiters: HashMap<Handle, WaiterId>,
    /// Clients that were answered and not told yet.
    pub(crate) answered: HashMap<Handle, ClientId>,
    /// Locks whose values were freed elsewhere, to be forgotten.
    pub(crate) dead: Vec<LockId>,
    /// Commands of which the server has said that they never block, until the next module is loaded.
    pub(crate) never_block: HashSet<super::exec::CommandName>,
    pub(crate) timer: super::timer::Timer,
    pub(crate) pump: super::pump::Pump,
    pub(crate) rounds: super::rounds::Rounds,
    pub(crate) turns: Turns,
    pub(crate) confirm: super::confirm::Confirm,
}

impl State {
    /// What the edge keeps for the core after a step at what was found: a lock without a key is forgotten, and
    /// the pump runs when the next thing ends. Returns the effects.
    #[inline]
    pub(crate) fn settle(&mut self, change: Change, found: Found) -> Effects {
        match (change, found) {
            (Change::Deleted, Found::Lock(lock)) => _ = self.table.forget_free(lock),
            _ => self.rearm(),
        }
        if self.table.has_tasks() {
            // At once: somebody's turn may have come elsewhere.
            self.timer.wake_at(Some(Moment::default()));
        }
        std::mem::take(&mut self.fx)
    }

    /// Whether there is anything that only the pump does, and that needs no time to pass.
    pub(crate) fn has_work(&self) -> bool {
        self.table.has_tasks() || self.confirm.has_undo() || !self.turns.is_empty()
    }

    /// Sees to it that the pump runs when the next thing ends.
    pub(crate) fn rearm(&mut self) {
        let next = self.table.next_deadline(self.pump.decides);
        self.timer.wake_at(next);
    }

    /// How many more clients may be told in this turn of the event loop.
    pub(crate) fn room_to_tell(&self) -> usize {
        TOLD_AT_ONCE.saturating_sub(self.answered.len())
    }

    /// The same for those who have not waited for their turn yet: nobody passes those who have.
    pub(crate) fn room_behind_others(&self) -> usize {
        if self.turns.is_empty() { self.room_to_tell() } else { 0 }
    }

    /// After a storm of waiters nothing of it is kept but room for a few.
    pub(crate) fn give_back_memory(&mut self) {
        const KEPT: usize = 64;
        if self.handles.is_empty() && self.handles.capacity() > KEPT {
            self.handles = HashMap::new();
            self.waiters = HashMap::new();
        }
        if self.answered.is_empty() && self.answered.capacity() > KEPT {
            self.answered = HashMap::new();
        }
        self.turns.give_back_memory(KEPT);
        self.confirm.give_back_memory(KEPT);
        if self.fx.is_drained() && self.fx.capacity() > KEPT {
            self.fx = Effects::default();
        }
    }
}

struct MainThread(RefCell<Option<State>>);

// SAFETY: only `with` looks inside, and it does so on the thread that loaded the module only.
unsafe impl Sync for MainThread {}

static STATE: MainThread = MainThread(RefCell::new(None));

thread_local! {
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is the server's main thread. Once, at load.
pub(crate) fn begin() {
    IS_MAIN.with(|is_main| is_main.set(true));
    *STATE.0.borrow_mut() = Some(State::default());
}

/// Whether this is the server's main thread.
pub(crate) fn is_main() -> bool {
    IS_MAIN.with(Cell::get)
}

/// Runs `use_it` on the state. `None`: not the main thread, or the state is in use by a caller further
/// up, which the rule "no call of the server within `with` that can call us back" excludes.
pub(crate) fn with<R>(use_it: impl FnOnce(&mut State) -> R) -> Option<R> {
    if !is_main() {
        return None;
    }
    let mut state = STATE.0.try_borrow_mut().ok()?;
    state.as_mut().map(use_it)
}

/// Locks whose values were freed elsewhere.
static GRAVEYARD: Mutex<Vec<LockId>> = Mutex::new(Vec::new());
static GRAVEYARD_IS_USED: AtomicBool = AtomicBool::new(false);

/// A value was freed on a thread that must not touch the table, or while the table was in use.
pub(crate) fn bury_later(lock: LockId) {
    if let Ok(mut graveyard) = GRAVEYARD.lock() {
        graveyard.push(lock);
        GRAVEYARD_IS_USED.store(true, Ordering::Release);
    }
}

/// Whether values were freed elsewhere that the table still knows.
pub(crate) fn has_dead() -> bool {
    GRAVEYARD_IS_USED.load(Ordering::Acquire) || with(|state| !state.dead.is_empty()) == Some(true)
}

/// Forgets some of the locks whose values were freed elsewhere. `false`: there are more.
pub(crate) fn bury_some(is_ours: bool) -> bool {
    const AT_ONCE: usize = 64;
    if GRAVEYARD_IS_USED.swap(false, Ordering::Acquire) {
        let dead = GRAVEYARD.lock().map(|mut graveyard| std::mem::take(&mut *graveyard));
        let mut dead = dead.unwrap_or_default();
        let _ = with(|state| {
            // A whole data set may have gone: most often all of them.
            state.table.keep_known(&mut dead);
            state.dead.append(&mut dead);
        });
    }
    if with(|state| state.dead.is_empty()) == Some(true) {
        return true;
    }
    let now = super::clock::boot();
    let is_done = with(|state| {
        let rest = state.dead.len().saturating_sub(AT_ONCE);
        for lock in state.dead.drain(rest..) {
            state.table.forget(now, lock, is_ours);
        }
        if rest == 0 {
            state.dead = Vec::new();
        }
        rest == 0
    });
    is_done != Some(false)
}

/// The number of the lock whose key is being deleted by ourselves; 0: none.
static LETTING_GO: AtomicU64 = AtomicU64::new(0);

/// Deletes the key of a lock that nobody holds. The server's callbacks about it have nothing to do: the
/// caller forgets the lock.
pub(crate) fn let_go(found: Found, delete: impl FnOnce()) {
    let Found::Lock(lock) = found else {
        return delete();
    };
    LETTING_GO.store(lock.number(), Ordering::Relaxed);
    delete();
    LETTING_GO.store(0, Ordering::Relaxed);
}

/// Whether this lock's key is being deleted by ourselves.
pub(crate) fn is_letting_go(lock: LockId) -> bool {
    LETTING_GO.load(Ordering::Relaxed) == lock.number()
}

/// Our type, as the server knows it.
pub(crate) static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());

/// Our type, as the server knows it.
pub(crate) fn lock_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}
