//! The events that are not published yet, in order (G15).
//!
//! A hold that is broken from outside ends while the server runs another client's command, during which nothing may
//! be published. The event is queued, and the pump publishes it. Later events queue after it: otherwise clients would
//! see a lock's next hold begin before the previous one ended.
//!
//! Emptying a database may remove a million locks. They are set aside as a whole ([`Aside`]); the pump publishes
//! their ends and frees their memory, a few at a time. It does the same with the holders of one lock that very many
//! held ([`Detached`]). If all locks are set aside before it has reached the last holder, it finds the rest there.
//! others there.

use std::collections::VecDeque;

use super::task_queue::next_of;
use crate::lock::effect::Event;
use crate::lock::locks::{Going, Gone, Locks};
use crate::lock::stats::Stats;
use crate::lock::types::{LockKeyBuf, Moment, Token};

/// An event to publish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The lock that it happened to.
    pub lock_key: LockKeyBuf,
    /// What happened.
    pub event: Event,
    /// How many live holds were broken, to be counted when the event leaves the queue; and the token of one of them,
    /// if known.
    pub broken: (u64, Option<Token>),
}

/// An entry of the event queue.
enum Entry {
    Notice(Notice),
    /// A removed lock that very many held.
    Detached(Box<Detached>),
}

/// A removed lock whose holders are freed one by one.
pub(super) struct Detached {
    pub(super) lock_key: LockKeyBuf,
    /// When it was removed.
    pub(super) then: Moment,
    /// True if this server decides, and so publishes and counts.
    pub(super) is_ours: bool,
    /// How many of its leases had expired by then; each of them gets an event.
    pub(super) expired: usize,
    /// How many of its holds were live then. If any, the lock was broken, which is published last.
    pub(super) broken: u64,
    /// The token of one holder.
    pub(super) token: Option<Token>,
}

/// All locks of a removed set.
struct Aside {
    /// The events to publish before. The detached locks among them belong to this set.
    before: VecDeque<Entry>,
    going: Going,
    /// When the set was removed, if the ends of its holds are published.
    then: Option<Moment>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct EventQueue {
    /// Removed sets, whose events come before `entries`.
    asides: VecDeque<Aside>,
    /// Events to publish. The detached locks among them belong to the set in use.
    entries: VecDeque<Entry>,
    /// Removed sets of which nothing is published here.
    silent: VecDeque<Going>,
    /// True if the last events are those of the last flush.
    ends_with_flush: bool,
}

impl EventQueue {
    pub(super) fn push(&mut self, lock_key: LockKeyBuf, event: Event) {
        self.push_notice(Notice { lock_key, event, broken: (0, None) });
    }

    pub(super) fn push_notice(&mut self, notice: Notice) {
        self.entries.push_back(Entry::Notice(notice));
    }

    /// Adds a removed set of locks. `then` is set if the ends of its holds are published, and says when they ended.
    pub(super) fn push_gone(&mut self, gone: Locks, then: Option<Moment>) {
        let is_last = then.is_some() || gone.has_detached();
        let going = Going::new(gone);
        if is_last {
            let before = std::mem::take(&mut self.entries);
            self.asides.push_back(Aside { before, going, then });
        } else {
            self.silent.push_back(going);
        }
    }

    /// Adds a removed lock whose holders are freed one by one.
    pub(super) fn push_detached(&mut self, detached: Detached) {
        self.entries.push_back(Entry::Detached(Box::new(detached)));
    }

    /// Sets whether the last events are those of the last flush.
    pub(super) const fn note_flush(&mut self, is_last: bool) {
        self.ends_with_flush = is_last;
    }

    /// Ends the next flushed lock, and reports it by `tell`. `None` if flushed locks are not next.
    pub(super) fn next_of_flushed<R>(
        &mut self,
        stats: &mut Stats,
        tell: impl FnOnce(&Gone<'_>, Event) -> Option<R>,
    ) -> Option<Option<R>> {
        self.ends_with_flush = false;
        let aside = self.asides.front_mut().filter(|aside| aside.before.is_empty())?;
        let Some(then) = aside.then else {
            self.silent.extend(next_of(&mut self.asides).map(|aside| aside.going));
            return Some(None);
        };
        let step = aside.going.take_one(|gone| {
            let (is_told, event) = end_of(gone, then, stats);
            (is_told, event.and_then(|event| tell(gone, event)))
        });
        if step.is_none() {
            drop(next_of(&mut self.asides));
        }
        Some(step.flatten().flatten())
    }

    /// Returns the next entry, except for flushed locks. Frees memory once there is none.
    pub(super) fn next_entry(&mut self, locks: &mut Locks, stats: &mut Stats) -> Option<Option<Notice>> {
        let (entries, locks) = match self.asides.front_mut() {
            Some(aside) => (&mut aside.before, aside.going.locks_mut()),
            None => (&mut self.entries, locks),
        };
        if let Some(Entry::Detached(detached)) = entries.front_mut()
            && let Some(step) = detached.next(locks, stats)
        {
            return Some(step);
        }
        let notice = match next_of(entries) {
            Some(Entry::Notice(notice)) => Some(notice),
            Some(Entry::Detached(detached)) => detached.end(),
            None => return self.next_silent(),
        };
        stats.broken += notice.as_ref().map_or(0, |notice| notice.broken.0);
        Some(notice)
    }

    fn next_silent(&mut self) -> Option<Option<Notice>> {
        let silent = self.silent.front_mut()?;
        if silent.take_one(|_| (false, ())).is_none() {
            self.silent.pop_front();
        }
        Some(None)
    }

    /// Prepares for a data set to load: frees the memory of locks of which nothing is published. If nothing was
    /// queued since the last flush, the locks that it removed do not count as broken; returns how many holds they
    /// had.
    pub(super) fn begin_load(&mut self) -> usize {
        let holds = self.take_back_flush();
        self.silent.clear();
        holds
    }

    fn take_back_flush(&mut self) -> usize {
        let is_last = std::mem::take(&mut self.ends_with_flush) && self.entries.is_empty();
        let Some(mut flushed) = is_last.then(|| self.asides.pop_back()).flatten() else {
            return 0;
        };
        let holds = flushed.going.holds();
        if flushed.going.has_detached() {
            // The locks that had been removed before were broken.
            flushed.then = None;
            self.asides.push_back(flushed);
        } else {
            self.entries = flushed.before;
        }
        holds
    }

    /// Returns true if no event is due.
    #[inline(always)]
    pub(super) fn is_published(&self) -> bool {
        self.entries.is_empty() && self.asides.is_empty()
    }

    /// Returns true if everything is published and freed.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.is_published() && self.silent.is_empty()
    }

    /// The number of entries for which there is room.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.entries.capacity()
    }
}

impl Detached {
    /// Frees the next holder, and returns its event. `None` if none is left.
    fn next(&mut self, locks: &mut Locks, stats: &mut Stats) -> Option<Option<Notice>> {
        if self.expired == 0 && !self.take_one(locks, stats) {
            return None;
        }
        let is_expired = self.expired > 0 && self.is_ours;
        self.expired = self.expired.saturating_sub(1);
        let notice = |lock_key| Notice { lock_key, event: Event::Expired, broken: (0, None) };
        Some(is_expired.then(|| notice(self.lock_key.clone())))
    }

    /// Returns the last event, once all holders are freed: `broken`, if any hold was live.
    fn end(self) -> Option<Notice> {
        let Self { lock_key, is_ours, broken, token, .. } = self;
        (broken > 0 && is_ours).then_some(Notice { lock_key, event: Event::Broken, broken: (broken, token) })
    }

    /// Frees a holder and counts its hold. Returns true if there was one.
    fn take_one(&mut self, locks: &mut Locks, stats: &mut Stats) -> bool {
        let Some((ended, is_over)) = locks.take_detached(self.then) else {
            return false;
        };
        self.expired += usize::from(is_over);
        self.broken += u64::from(!is_over);
        if self.is_ours {
            stats.holds.add(ended.held_ms);
            stats.expirations += u64::from(is_over);
        }
        true
    }
}

/// Counts a hold that ended with its lock, and returns its event: `expired` if its lease had ended, otherwise
/// `broken`, once for all holders of the lock.
fn end_of(gone: &Gone<'_>, then: Moment, stats: &mut Stats) -> (bool, Option<Event>) {
    stats.holds.add(gone.hold.held_ms(then));
    if gone.hold.is_over(then) {
        stats.broken -= 1;
        stats.expirations += 1;
        return (false, Some(Event::Expired));
    }
    (true, gone.is_first.then_some(Event::Broken))
}

#[cfg(test)]
mod tests {
    use super::super::state::Table;
    use super::super::task_queue::KEPT;

    use super::*;
    use crate::lock::effect::LockId;
    use crate::lock::locks::NewHold;
    use crate::lock::types::{Binding, LockKey, Mode};

    const NOW: Moment = Moment(5_000_000);
    /// The leases of every third holder are over by then.
    const LATER: Moment = NOW.plus_ms(1_000);

    /// A lock with `holders` holders.
    fn with_holders(table: &mut Table, name: &str, holders: usize) -> LockId {
        let (id, lock_key) = (table.locks.form(Mode::Limit(50)), LockKey { db: 0, name: name.as_bytes() });
        for number in 0..holders {
            let (owner, token) =
                (format!("owner-{number}"), table.clock.mint(0).expect("there are tokens").0);
            let lease_ms = if number % 3 == 2 { 10 } else { 9_000 };
            let new =
                NewHold { owner: owner.as_bytes(), token, lease_ms, client: None, binding: Binding::NONE };
            table.locks.join(id, NOW, lock_key, &new).expect("there is room");
        }
        id
    }

    /// The key of a lock goes that twenty hold, and somebody takes it at once. Then there is another lock.
    fn gone_and_taken(table: &mut Table, name: &str, other: &str) -> LockId {
        let id = with_holders(table, name, 20);
        table.unlinked(LATER, id, true);
        table.publish_later(LockKey { db: 0, name: name.as_bytes() }, Event::Acquired);
        with_holders(table, other, 1)
    }

    fn let_go(table: &Table) -> u64 {
        table.stats().holds.count()
    }

    /// The next event, which lets one holder go at most.
    fn next(table: &mut Table) -> Option<Option<(String, Event)>> {
        let before = let_go(table);
        let step = table.next_notice();
        assert!(let_go(table) - before <= 1, "more than one at once");
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        step.map(|notice| notice.map(|notice| (text(&notice.lock_key.name), notice.event)))
    }

    /// All of that.
    fn published(table: &mut Table) -> Vec<(String, Event)> {
        std::iter::from_fn(|| next(table)).flatten().collect()
    }

    /// What is published of [`gone_and_taken`].
    fn ends(name: &str) -> Vec<(String, Event)> {
        let events = [vec![Event::Expired; 6], vec![Event::Broken, Event::Acquired]].concat();
        events.into_iter().map(|event| (name.to_owned(), event)).collect()
    }

    #[test]
    fn holders_of_a_lock_that_is_gone_go_one_by_one_also_when_all_locks_go_before_the_last() {
        type Act = fn(&mut Table);
        let acts: [(&str, bool, Act); 5] = [
            ("flush", true, |table| table.flushed(LATER, None, true)),
            ("flush of its database", true, |table| table.flushed(LATER, Some(0), true)),
            ("swap", true, |table| table.swapped(LATER, 0, 1, true)),
            ("flush of a primary's", false, |table| table.flushed(LATER, None, false)),
            ("load anew", false, |table| {
                table.flushed(LATER, None, true);
                table.begin_load();
            }),
        ];
        for (name, is_broken, act) in acts {
            let mut table = Table::default();
            gone_and_taken(&mut table, "many", "other");
            let mut told: Vec<_> = (0..3).filter_map(|_| next(&mut table)).flatten().collect();
            assert_eq!((let_go(&table), table.stats().broken), (3, 0), "{name}");
            act(&mut table);
            assert_eq!(let_go(&table), 3, "{name}: no holder goes with it");
            assert_eq!((table.holds(), table.has_notices()), (0, true), "{name}");
            told.extend(published(&mut table));
            let of_other = is_broken.then(|| ("other".to_owned(), Event::Broken));
            assert_eq!(told, ends("many").into_iter().chain(of_other).collect::<Vec<_>>(), "{name}");
            let stats = table.stats();
            assert_eq!((stats.broken, stats.expirations), (14 + u64::from(is_broken), 6), "{name}");
            assert!(!table.has_tasks(), "{name}");
            table.check(std::iter::empty()).expect("nothing is wrong");
        }
    }

    #[test]
    fn what_goes_in_several_flushes_is_told_in_its_order_and_gives_its_memory_back() {
        let mut table = Table::default();
        let mut expected = Vec::new();
        for round in 0..3 * KEPT.get() {
            let (name, other) = (format!("many:{round}"), format!("other:{round}"));
            gone_and_taken(&mut table, &name, &other);
            // A server that is a replica for a while publishes what it decided before.
            let is_ours = round % 3 != 1;
            table.flushed(LATER, None, is_ours);
            expected.extend(ends(&name).into_iter().chain(is_ours.then_some((other, Event::Broken))));
        }
        let stays = gone_and_taken(&mut table, "last", "stays");
        expected.extend(ends("last"));
        assert_eq!(let_go(&table), 0);
        assert_eq!(published(&mut table), expected);
        assert!(!table.has_tasks() && table.events.asides.capacity() == 0);
        let keys = [(LockKey { db: 0, name: b"stays" }, stays)];
        table.check(keys.into_iter()).expect("nothing is wrong");
    }

    #[test]
    fn what_is_loaded_anew_leaves_what_was_noted_before_and_since() {
        // Since the flush, in the same transaction: then what was flushed is gone.
        for is_noted_since in [false, true] {
            let mut table = Table::default();
            table.publish_later(LockKey { db: 0, name: b"before" }, Event::Released);
            with_holders(&mut table, "other", 1);
            table.flushed(LATER, None, true);
            let since = LockKey { db: 0, name: b"since" };
            let notes: &[LockKey<'_>] = if is_noted_since { &[since] } else { &[] };
            notes.iter().for_each(|&lock_key| table.publish_later(lock_key, Event::Acquired));
            table.begin_load();
            let told: Vec<_> = published(&mut table).into_iter().map(|told| told.0).collect();
            let expected: &[&str] = if is_noted_since { &["before", "other", "since"] } else { &["before"] };
            assert_eq!(
                (told, table.stats().broken),
                (expected.iter().map(|&s| s.to_owned()).collect(), u64::from(is_noted_since))
            );
            assert!(!table.has_tasks());
        }
    }

    #[test]
    fn a_set_of_which_nothing_is_told_holds_up_nothing_that_is() {
        let mut table = Table::default();
        table.publish_later(LockKey { db: 0, name: b"before" }, Event::Released);
        with_holders(&mut table, "other", 20);
        table.flushed(LATER, None, false);
        table.publish_later(LockKey { db: 0, name: b"since" }, Event::Acquired);
        let first: Vec<_> = (0..2).filter_map(|_| next(&mut table)).flatten().map(|told| told.0).collect();
        assert_eq!(first, ["before", "since"]);
        assert!(!table.has_notices() && table.has_tasks(), "memory is to be given back");
        assert_eq!((published(&mut table), table.has_tasks()), (vec![], false));
    }
}
