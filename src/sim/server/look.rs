//! The visible state of a simulated server, and its invariants when nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::blocked_clients::{Reply, Stage};
use crate::engine::server::{Key, Server, To};
use crate::lock::effect::{Answer, Event};
use crate::lock::types::{LockKey, Mode, Moment, Token};
use crate::sim::server::inside::{At, Entry, Published, Value};
use crate::sim::server::sim::Sim;

/// A hold, as shown by LOCK.INFO.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) owner: Vec<u8>,
    pub(crate) token: Option<u64>,
    pub(crate) left_ms: u64,
    pub(crate) count: u32,
    is_paused: bool,
}

/// A request in a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) owner: Vec<u8>,
    client: Option<u64>,
    mode: Mode,
}

/// A lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lock {
    pub(crate) kind: Option<Mode>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) queue: Vec<Waiting>,
    until_ms: Option<u64>,
    is_text: bool,
}

/// All locks of a server.
pub(crate) type View = BTreeMap<At, Lock>;

/// The number of holders of each lock.
pub(crate) type Held = BTreeMap<At, usize>;

/// Returns the number of holders of each lock in this view.
pub(crate) fn held_in(view: &View) -> Held {
    view.iter().map(|(at, lock)| (at.clone(), lock.holders.len())).collect()
}

pub(crate) type Verdict = Result<(), String>;

pub(crate) fn must(holds: bool, broken: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(broken()) }
}

/// The progress of a blocked client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It waits in a queue.
    InQueue,
    /// It has its lock, under this token.
    Granted(Token),
    /// Its lease was extended.
    Renewed,
    /// It was granted nothing.
    Over,
    TimedOut,
    Replaced,
    Moved,
    /// The server no longer knows the client.
    Gone,
}

impl Fate {
    const fn of(reply: &Reply) -> Self {
        match reply {
            Reply::Renewed(_) => Self::Renewed,
            Reply::Answer(Answer::Granted { token, .. }) => Self::Granted(*token),
            Reply::Answer(Answer::TimedOut) => Self::TimedOut,
            Reply::Answer(Answer::Replaced) => Self::Replaced,
            Reply::Answer(Answer::Moved(_)) => Self::Moved,
            Reply::Answer(_) => Self::Over,
        }
    }
}

impl Sim {
    /// Returns the progress of a blocked client.
    pub(crate) fn fate(&self, handle: u64) -> Fate {
        let fate = self.with(|state| {
            Some(match state.clients.stage(handle)? {
                Stage::InQueue(_) => Fate::InQueue,
                Stage::Confirming(_, reply) | Stage::Paced(reply) => Fate::of(reply),
                Stage::Answered => {
                    let inside = self.inside.borrow();
                    let mut unblocked = inside.unblocked.iter();
                    let own = unblocked.find_map(|(other, reply)| (*other == handle).then_some(reply));
                    own.and_then(Option::as_ref).map_or(Fate::Over, Fate::of)
                }
            })
        });
        fate.flatten().unwrap_or(Fate::Gone)
    }

    pub(crate) fn look(&self, lock_keys: &[At]) -> View {
        lock_keys.iter().map(|at| (at.clone(), self.look_at(at, self.boot()))).collect()
    }

    /// Returns the number of holders of the lock, including expired ones that have not been ended yet.
    pub(crate) fn unended_at(&self, at: &At) -> usize {
        self.db.set(at.0);
        let existing = self.open(&at.1, To::Read).existing();
        let lock_key = LockKey { db: at.0, name: &at.1 };
        let holders = self.with(|state| {
            state.table.describe(Moment(0), lock_key, existing, &[], 1).map_or(0, |lock| lock.holders)
        });
        holders.unwrap_or(0)
    }

    /// Returns true if the same locks are held as then, with as many holders each.
    pub(crate) fn holds_as(&self, before: &Held) -> bool {
        let is_known = |at: &At| before.contains_key(at);
        self.inside.borrow().keys.keys().all(is_known)
            && before.iter().all(|(at, &holders)| self.unended_at(at) == holders)
    }

    fn look_at(&self, at: &At, now: Moment) -> Lock {
        self.db.set(at.0);
        let existing = self.open(&at.1, To::Read).existing();
        let lock_key = LockKey { db: at.0, name: &at.1 };
        let entry = self.inside.borrow().keys.get(at).cloned();
        let seen = self.with(|state| {
            let lock = state.table.describe(now, lock_key, existing, &[], usize::MAX)?;
            let holder = |hold: &crate::lock::table::HoldView<'_>| Holder {
                owner: hold.owner.to_vec(),
                token: hold.token.map(crate::lock::types::Token::get),
                left_ms: hold.left_ms,
                count: hold.count,
                is_paused: hold.binding.is_paused(),
            };
            let waiting = |waiter: &crate::lock::table::WaiterView<'_>| Waiting {
                owner: waiter.owner.to_vec(),
                client: waiter.client.map(|client| client.0),
                mode: waiter.mode,
            };
            Some(Lock {
                kind: Some(lock.mode),
                holders: lock.holds.iter().map(holder).collect(),
                queue: lock.queue.iter().map(waiting).collect(),
                ..Lock::default()
            })
        });
        let mut lock = seen.flatten().unwrap_or_default();
        lock.is_text = entry.as_ref().is_some_and(|entry| matches!(entry.value, Value::Text(_)));
        lock.until_ms = entry.and_then(|entry| entry.until_ms);
        lock
    }

    /// Checks that no request waits for a free lock (G6), from holders and waiters alone.
    pub(crate) fn no_request_waits_for_a_free_lock(&self, view: &View, holders_max: usize) -> Verdict {
        let mut requests: BTreeMap<(u32, u64), Vec<(&At, usize)>> = BTreeMap::new();
        for (at, lock) in view {
            for (position, waiting) in lock.queue.iter().enumerate() {
                if let Some(client) = waiting.client {
                    requests.entry((at.0, client)).or_default().push((at, position));
                }
            }
        }
        for ((_, client), positions) in requests {
            let is_multi = positions.len() > 1;
            let fits =
                positions.iter().all(|&(at, position)| fits(&view[at], position, holders_max, is_multi));
            must(!fits, || format!("G6: client {client} could have {positions:?} and waits: {view:#?}"))?;
        }
        Ok(())
    }

    /// Checks that a blocked client that was not answered waits in a queue (G7).
    pub(crate) fn nobody_is_forgotten(&self, view: &View) -> Verdict {
        let queued: BTreeSet<u64> =
            view.values().flat_map(|lock| lock.queue.iter().filter_map(|waiting| waiting.client)).collect();
        let inside = self.inside.borrow();
        let lost = inside.blocked.values().find(|client| !queued.contains(client));
        must(lost.is_none(), || format!("G7: client {lost:?} is blocked and waits nowhere"))
    }

    /// Checks that the core finds no fault in its records.
    pub(crate) fn records_are_right(&self) -> Verdict {
        let keys: Vec<_> = {
            let inside = self.inside.borrow();
            let lock = |(at, entry): (&At, &Entry)| match entry.value {
                Value::Lock(lock) => Some((at.clone(), lock)),
                Value::Text(_) => None,
            };
            inside.keys.iter().filter_map(lock).collect()
        };
        let checked = self.with(|state| {
            let keys = keys.iter().map(|(at, lock)| (LockKey { db: at.0, name: &at.1 }, *lock));
            state.table.check(keys)
        });
        checked.unwrap_or(Ok(()))
    }

    /// Checks that the records are right, and that the counts in INFO are (G15).
    pub(crate) fn counts_are_right(&self, view: &View) -> Verdict {
        self.records_are_right()?;
        let held: usize = view.values().map(|lock| lock.holders.len()).sum();
        let counted = self.with(|state| state.table.holds());
        must(counted == Some(held), || format!("G15: {counted:?} holds are counted, there are {held}"))
    }

    /// Checks that the events of each lock can have led from the earlier state to this one (G15).
    pub(crate) fn events_tell_the_story(&self, before: &Held, after: &Held, events: &[Published]) -> Verdict {
        for (at, &end) in after {
            let start = before.get(at).copied().unwrap_or(0);
            let told: Vec<&Published> = events.iter().filter(|event| is_at(event, at)).collect();
            must(can_lead(start, end, &told), || {
                format!("G15: {at:?}: {start} held, then {told:?}, and now {end} hold")
            })?;
        }
        Ok(())
    }
}

/// The possible state of a lock after some events, in four numbers.
/// - The number of holders.
/// - True if a broken hold is not published yet.
/// - The number of payloads that are not restored yet. A RESTORE is published at once, and may be published before
///   earlier events of locks, which wait for their turn. So it may come anywhere.
/// - The number of holds that had expired when the others were broken, which may be published after those.
type Story = (usize, bool, usize, usize);

fn can_lead(start: usize, end: usize, told: &[&Published]) -> bool {
    let restored = told.iter().filter(|event| matches!(event, Published::Key(_, "restore"))).count();
    let mut stories = with_restored(BTreeSet::from([(start, false, restored, 0)]), end);
    for event in told {
        if let Published::Lock(_, event) = event {
            stories = stories.into_iter().flat_map(|story| after_event(story, *event)).collect();
            stories = with_restored(stories, end);
        }
    }
    stories.contains(&(end, false, 0, 0))
}

/// These stories, and all that a RESTORE may make of them now.
fn with_restored(mut stories: BTreeSet<Story>, end: usize) -> BTreeSet<Story> {
    const RESTORED_MAX: usize = 8;
    for _ in 0..stories.iter().map(|story| story.2).max().unwrap_or(0) {
        for (live, owed, left, late) in stories.clone().into_iter().filter(|story| story.2 > 0) {
            for brought in 0..RESTORED_MAX + end {
                stories.insert((brought, false, left - 1, late));
                if live > 0 || owed {
                    stories.insert((brought, true, left - 1, late));
                }
            }
        }
    }
    stories
}

fn after_event((live, owed, left, late): Story, event: Event) -> Vec<Story> {
    let mut after = Vec::new();
    match event {
        Event::Broken if owed => after.push((live, false, left, late)),
        Event::Broken => after.extend((0..live).map(|over| (0, false, left, late + over))),
        Event::Acquired if !owed && live > 0 => {
            after.push((live + 1, false, left, late));
        }
        Event::Acquired if !owed => after.push((1, false, left, late)),
        Event::Acquired => {}
        Event::Released | Event::Expired if live > 0 => after.push((live - 1, owed, left, late)),
        Event::Released | Event::Expired => {}
    }
    if event == Event::Expired && late > 0 {
        after.push((live, owed, left, late - 1));
    }
    after
}

/// Returns true if no holder of the lock, and no request ahead of it in the queue, blocks this one.
fn fits(lock: &Lock, position: usize, holders_max: usize, is_multi: bool) -> bool {
    let waiting = &lock.queue[position];
    let ahead = &lock.queue[..position];
    let others = lock.holders.iter().filter(|holder| holder.owner != waiting.owner).count();
    if ahead.iter().any(|other| other.client.is_some()) || (is_multi && !ahead.is_empty()) {
        return false;
    }
    let most = match waiting.mode {
        Mode::Exclusive => return ahead.is_empty() && others == 0,
        Mode::Shared => holders_max,
        Mode::Limit(limit) => limit as usize,
    };
    let is_alike = (others == 0 || lock.kind == Some(waiting.mode))
        && ahead.iter().all(|other| other.mode == waiting.mode);
    is_alike && others + ahead.len() < most
}

fn is_at(event: &Published, at: &At) -> bool {
    match event {
        Published::Lock(lock_key, _) | Published::Key(lock_key, _) => lock_key == at,
        Published::All(_) => true,
    }
}

/// Checks that a replica, or a file, has the same holds, with the same leases and times to live (G13).
pub(crate) fn are_alike(primary: &View, replica: &View) -> Verdict {
    for (at, lock) in primary {
        let copy = &replica[at];
        // Only the primary has the queue, and the leases that a connection pauses.
        let holds = |lock: &Lock| {
            let hold =
                |h: &Holder| (h.owner.clone(), h.token, h.count, if h.is_paused { 0 } else { h.left_ms });
            lock.holders.iter().map(hold).collect::<Vec<_>>()
        };
        must(holds(lock) == holds(copy), || format!("G13: {at:?} is {lock:?}, there {copy:?}"))?;
        must((lock.until_ms, lock.is_text) == (copy.until_ms, copy.is_text), || {
            format!("G13: {at:?} lives until {:?}, there until {:?}", lock.until_ms, copy.until_ms)
        })?;
    }
    Ok(())
}
