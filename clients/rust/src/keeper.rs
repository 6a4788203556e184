//! The holds of a client, and the time at which each must be renewed, checked or ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::clock::Moment;
use crate::error::Error;
use crate::held::{End, Held};
use crate::hooks::Hooks;
use crate::link::{Change, lock};
use crate::rules::{LONG_WAIT, NAP, PAUSE, WATCH_AFTER, renewal};
use crate::wanted::Wanted;

/// The action that is due for a hold.
pub(crate) struct Due {
    pub(crate) held: Arc<Held>,
    pub(crate) is_over: bool,
    pub(crate) renew: bool,
    pub(crate) look: bool,
}

/// It is in trees, since a hash costs more than a few comparisons.
#[derive(Default)]
struct Table {
    holds: BTreeMap<u64, Arc<Held>>,
    due: BTreeSet<(Moment, u64)>,
    names: BTreeMap<Vec<u8>, Vec<u64>>,
    /// The time at which the scheduler wakes up at the latest.
    wake_at: Option<Moment>,
}

impl Table {
    /// Files it under the time of its next action. Returns whether the scheduler must be woken.
    fn file(&mut self, held: &Held) -> bool {
        self.holds.contains_key(&held.id) && self.file_kept(held)
    }

    fn file_kept(&mut self, held: &Held) -> bool {
        let mut times = held.times();
        let due = times.deadline.min(times.renew_at).min(times.watch_at);
        if let Some(before) = times.filed.replace(due) {
            self.due.remove(&(before, held.id));
        }
        self.due.insert((due, held.id));
        let wakes = self.wake_at.is_none_or(|at| due < at);
        if wakes {
            self.wake_at = Some(due);
        }
        wakes
    }

    fn remove(&mut self, held: &Held) {
        if self.holds.remove(&held.id).is_none() {
            return;
        }
        if let Some(filed) = held.times().filed.take() {
            self.due.remove(&(filed, held.id));
        }
        for name in &held.wanted.names {
            if let Some(ids) = self.names.get_mut(name) {
                ids.retain(|id| *id != held.id);
                if ids.is_empty() {
                    self.names.remove(name);
                }
            }
        }
    }
}

/// Tracks the holds, and the requests in progress.
pub(crate) struct Keeper {
    hooks: Arc<dyn Hooks>,
    table: Mutex<Table>,
    /// Wakes the scheduler.
    pub(crate) wake: Notify,
    /// Notified when a hold begins whose owner the program has named.
    begun: Notify,
    /// The time at which a wait for a lock was last logged.
    logged: Mutex<HashMap<Vec<u8>, Moment>>,
    runtime: Mutex<Option<Handle>>,
    /// Cancelled when no lock can be acquired any longer.
    pub(crate) closing: CancellationToken,
    /// All requests that acquire or release,
    pub(crate) acquiring: TaskTracker,
    /// and all background work that closing waits for.
    pub(crate) working: TaskTracker,
}

impl Keeper {
    pub(crate) fn new(hooks: Arc<dyn Hooks>) -> Self {
        Self {
            hooks,
            table: Mutex::default(),
            wake: Notify::new(),
            begun: Notify::new(),
            logged: Mutex::default(),
            runtime: Mutex::default(),
            closing: CancellationToken::new(),
            acquiring: TaskTracker::new(),
            working: TaskTracker::new(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Calls the program's hooks. A panic in one must not end the caller.
    pub(crate) fn tell(&self, what: impl FnOnce(&dyn Hooks)) {
        // The hook itself has reported its panic.
        drop(catch_unwind(AssertUnwindSafe(|| what(&*self.hooks))));
    }

    /// Remembers the runtime for background work, and runs the scheduler there, unless it already runs.
    pub(crate) fn settle<S>(self: &Arc<Self>, schedule: impl FnOnce() -> S)
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let mut runtime = lock(&self.runtime);
        if runtime.is_some() {
            return;
        }
        let Ok(current) = Handle::try_current() else { return };
        *runtime = Some(current.clone());
        drop(runtime);
        let (scheduled, schedule) = (Scheduled(self.clone()), schedule());
        drop(current.spawn(async move {
            schedule.await;
            drop(scheduled);
        }));
    }

    /// Runs this as a background task.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &*lock(&self.runtime) {
            runtime.spawn(work);
        }
    }

    /// Records that a renewal failed, and reports it.
    pub(crate) fn failed(&self, held: &Held, error: &Error) {
        let is_first = {
            let mut times = held.times();
            if times.end.is_some() {
                return;
            }
            times.failures += 1;
            times.cause = Some(error.clone());
            times.failures == 1
        };
        if is_first {
            warn!("could not renew lock '{}', will retry: {error}", held.wanted.label());
        }
        self.tell(|hooks| hooks.renewal_failed(&held.wanted.short(), error));
    }

    /// Returns true if a wait for this lock should be logged: one of many waiters is enough.
    pub(crate) fn may_log(&self, name: &[u8]) -> bool {
        let mut logged = lock(&self.logged);
        logged.retain(|_, at| at.age() < LONG_WAIT / 2);
        let is_new = !logged.contains_key(name);
        if is_new {
            logged.insert(name.to_vec(), Moment::now());
        }
        is_new
    }

    /// Returns the time since when this very client has held any of these locks.
    pub(crate) fn held_since(&self, names: &[Vec<u8>]) -> Option<Moment> {
        let table = self.table();
        let ids = names.iter().filter_map(|name| table.names.get(name)).flatten();
        ids.filter_map(|id| table.holds.get(id)).map(|held| held.granted_at).min()
    }

    // Holds.

    /// Tracks the hold from now on.
    pub(crate) fn keep(&self, held: &Arc<Held>) {
        let mut table = self.table();
        table.holds.insert(held.id, held.clone());
        for name in &held.wanted.names {
            table.names.entry(name.clone()).or_default().push(held.id);
        }
        if table.file_kept(held) {
            self.wake.notify_one();
        }
        drop(table);
        if held.wanted.is_named {
            self.begun.notify_waiters();
        }
    }

    /// Waits until the owner of this request holds a lock; never returns unless the program names the owner.
    pub(crate) async fn until_owner_holds(&self, wanted: &Wanted) {
        if !wanted.is_named {
            return pending().await;
        }
        loop {
            let mut begun = pin!(self.begun.notified());
            begun.as_mut().enable();
            if self.all().iter().any(|held| held.wanted.owner == wanted.owner) {
                return;
            }
            begun.await;
        }
    }

    /// Files it again, because its next action has changed.
    pub(crate) fn refile(&self, held: &Held) {
        if self.table().file(held) {
            self.wake.notify_one();
        }
    }

    /// Ends the hold. Returns true if this call ended it, and no earlier one.
    pub(crate) fn finish(&self, held: &Held, end: End) -> bool {
        let mut table = self.table();
        {
            let mut times = held.times();
            if times.end.is_some() {
                return false;
            }
            times.end = Some(end);
        }
        table.remove(held);
        drop(table);
        held.ended.notify_waiters();
        true
    }

    /// Returns all holds.
    pub(crate) fn all(&self) -> Vec<Arc<Held>> {
        self.table().holds.values().cloned().collect()
    }

    /// Makes the holders of these locks check them, because the server said that they have changed.
    pub(crate) fn changed(&self, change: &Change) {
        let (mut table, now) = (self.table(), Moment::now());
        let ids: Vec<u64> = match change {
            Change::Any => table.holds.keys().copied().collect(),
            Change::Names(names) => {
                names.iter().filter_map(|name| table.names.get(name)).flatten().copied().collect()
            }
        };
        let mut wakes = false;
        for held in ids.iter().filter_map(|id| table.holds.get(id).cloned()).collect::<Vec<_>>() {
            held.watch_at(now);
            wakes |= table.file(&held);
        }
        if wakes {
            self.wake.notify_one();
        }
    }

    // The scheduler.

    /// Sleeps until something is due, or something that is due earlier is filed.
    pub(crate) async fn until_due(&self) {
        let first = {
            let (mut table, now) = (self.table(), Moment::now());
            let first = table.due.first().map_or(Moment::NEVER, |(at, _)| *at);
            // The hold that woke this may have ended, and others follow: by then they need no wake-up of their own.
            let awaited = table.wake_at.filter(|at| *at > now && *at <= now + WATCH_AFTER);
            let first = awaited.map_or(first, |at| at.min(first));
            table.wake_at = Some(first);
            first
        };
        tokio::select! {
            () = sleep(first.left().min(if first == Moment::NEVER { Duration::MAX } else { NAP })) => {}
            () = self.wake.notified() => {}
        }
    }

    /// Returns the actions that are due now.
    pub(crate) fn due(&self) -> Vec<Due> {
        let (mut table, now, mut found) = (self.table(), Moment::now(), Vec::new());
        let ids: Vec<u64> =
            table.due.iter().take_while(|(at, _)| *at <= now + PAUSE).map(|(_, id)| *id).collect();
        for held in ids.iter().filter_map(|id| table.holds.get(id).cloned()).collect::<Vec<_>>() {
            let mut times = held.times();
            let is_over = now >= times.deadline;
            // Holds that are due a little later are renewed in the same turn.
            let renew = times.renew_at <= now + PAUSE.min(renewal(times.lease) / 20);
            let look = times.watch_at <= now + PAUSE;
            if renew {
                times.renew_at = Moment::NEVER;
            }
            if look {
                times.watch_at = Moment::NEVER;
            }
            drop(times);
            table.file(&held);
            found.push(Due { held, is_over, renew, look });
        }
        found
    }
}

/// The scheduler, which ends with its runtime: the next caller that acquires starts another one in its own.
struct Scheduled(Arc<Keeper>);

impl Drop for Scheduled {
    fn drop(&mut self) {
        drop(lock(&self.0.runtime).take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::task::yield_now;

    use super::*;
    use crate::held::Grant;
    use crate::wanted::Kind;

    fn held(lease: Duration) -> Arc<Held> {
        let wanted = Wanted::new(vec![b"k".into()], 0, Kind::Exclusive, lease, b"me".to_vec());
        let grant = Grant { wanted: Arc::new(wanted.unwrap()), token: 2, sent: Moment::now() };
        Arc::new(Held::new(grant, lease, true, None))
    }

    #[tokio::test]
    async fn short_holds_do_not_wake_the_scheduler_one_by_one() {
        const PAIRS: u64 = 2_000;
        let (keeper, turns) = (Arc::new(Keeper::new(Arc::new(()))), Arc::new(AtomicU64::new(0)));
        let (scheduler, counted) = (keeper.clone(), turns.clone());
        let scheduling = tokio::spawn(async move {
            loop {
                scheduler.until_due().await;
                counted.fetch_add(1, Ordering::Relaxed);
                scheduler.due();
            }
        });
        let began = Moment::now();
        for _ in 0..PAIRS {
            let held = held(Duration::from_secs(30));
            keeper.keep(&held);
            // As under a short hold: it ends before the scheduler has its turn.
            assert!(keeper.finish(&held, End::Released));
            yield_now().await;
        }
        let most = began.age().as_nanos() / WATCH_AFTER.as_nanos() * 2 + 4; // the first hold and the timer, each time
        let turns = turns.load(Ordering::Relaxed);
        assert!(u128::from(turns) <= most, "{turns} turns for {PAIRS} holds, not {most} or fewer");
        scheduling.abort();
        assert!(keeper.all().is_empty());
    }
}
