//! The waiters of this process for each lock, in the order of the server's queue.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock::Moment;
use crate::link::{Change, lock, next_number};
use crate::rules::{ASKS_IN_KEEP, KEEP};
use crate::wanted::fence;

/// The place of a waiter. Waiters that have asked the server come first, by the number of their request; the
/// others follow by their arrival.
type Key = (u64, u64);

struct Spot {
    turn: Arc<Notify>,
    is_named: bool,
    /// The connection over which it has asked, and the time.
    link: u64,
    asked_at: Moment,
}

#[derive(Default)]
struct Line {
    places: BTreeMap<Key, Spot>,
    /// The connection over which the server was asked to report the next change of the lock, if it has
    /// reported none since. If the lock has moved meanwhile, that is not its present server.
    watched: Option<u64>,
    /// The connection of the latest request of any waiter, and the number of that request. Its server may
    /// have lost the queue, or may be another one, even one that was connected earlier. So all that have
    /// asked over another connection ask again, one after the other, in their order.
    link: u64,
    latest: u64,
}

impl Line {
    /// Calls the first waiter, because its turn may have come.
    fn call_first(&self) {
        if let Some(spot) = self.places.values().next() {
            spot.turn.notify_one();
        }
    }

    fn is_stale(&self, key: &Key, spot: &Spot) -> bool {
        key.0 != u64::MAX && spot.link != self.link
    }

    /// Calls the next waiter that must ask again, after one that has just asked or left. Each then calls the
    /// next one. After the last of them, waiters that have not asked yet are admitted.
    fn call_next(&self, key: Key, was_stale: bool, most: usize) {
        let behind = self.places.range((Excluded(key), Unbounded));
        for (next, spot) in behind.take_while(|(next, _)| next.0 != u64::MAX) {
            if self.is_stale(next, spot) || spot.asked_at.age() > KEEP / ASKS_IN_KEEP / 2 {
                spot.turn.notify_one();
                return;
            }
        }
        if was_stale {
            for (_, spot) in self.standing(most).filter(|(key, _)| key.0 == u64::MAX) {
                spot.turn.notify_one();
            }
        }
    }

    /// Returns the waiters that may stand in the server's queue: all that have asked, all with a name, and
    /// others up to `most`.
    fn standing(&self, most: usize) -> impl Iterator<Item = (&Key, &Spot)> {
        let mut others = 0;
        self.places.iter().filter(move |(key, spot)| {
            others += usize::from(!spot.is_named);
            spot.is_named || others <= most || key.0 != u64::MAX
        })
    }
}

/// The answer to whether a waiter may ask the server.
#[derive(Debug, PartialEq)]
pub(crate) enum May {
    Ask,
    /// Not before the waiters ahead of it have asked again.
    AfterOthers,
    /// Not before fewer waiters stand ahead of it.
    NotYet,
}

/// All queues of this process.
pub(crate) struct Lines {
    lines: Mutex<BTreeMap<Vec<u8>, Line>>,
    most: usize,
}

impl Lines {
    /// Makes queues, of each of which at most `most` waiters stand in the server's queue.
    pub(crate) fn new(most: usize) -> Self {
        Self { lines: Mutex::default(), most }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Line>> {
        lock(&self.lines)
    }

    /// Joins the end of the queue for this lock. The server must see the deadlocks of an owner that the
    /// program names, so the request of such an owner may join the server's queue at once.
    pub(crate) fn join<'a>(&'a self, name: &'a [u8], is_named: bool) -> Place<'a> {
        let (key, turn) = ((u64::MAX, next_number()), Arc::new(Notify::new()));
        self.lines()
            .entry(name.to_vec())
            .or_default()
            .places
            .insert(key, Spot { turn: turn.clone(), is_named, link: 0, asked_at: Moment::now() });
        Place { lines: self, name, key, turn }
    }

    /// Handles the server's report that these locks have changed.
    pub(crate) fn changed(&self, change: &Change) {
        let mut lines = self.lines();
        match change {
            Change::Names(names) => {
                for name in names {
                    if let Some(line) = lines.get_mut(name) {
                        line.watched = None;
                        line.call_first();
                    }
                }
            }
            Change::Any => {
                for line in lines.values_mut() {
                    line.watched = None;
                    line.call_first();
                }
            }
        }
    }
}

/// A place in a queue, which is left when this is dropped.
pub(crate) struct Place<'a> {
    lines: &'a Lines,
    name: &'a [u8],
    key: Key,
    turn: Arc<Notify>,
}

impl Place<'_> {
    /// Returns whether this waiter may stand in the server's queue.
    pub(crate) fn may_ask(&self) -> May {
        let (lines, most) = (self.lines.lines(), self.lines.most);
        let Some(line) = lines.get(self.name) else { return May::Ask };
        let mut is_behind = false;
        for (key, spot) in line.standing(most) {
            if *key == self.key {
                return if is_behind { May::AfterOthers } else { May::Ask };
            }
            is_behind |= line.is_stale(key, spot);
        }
        May::NotYet
    }

    /// Returns true if it is the first waiter of this process.
    pub(crate) fn is_first(&self) -> bool {
        self.lines.lines().get(self.name).is_none_or(|line| line.places.range(..self.key).next().is_none())
    }

    /// Returns true if the server reports the next change.
    pub(crate) fn is_watched(&self) -> bool {
        self.lines.lines().get(self.name).is_some_and(|line| line.watched == Some(line.link))
    }

    /// Returns the command that must first be sent over this connection, so that its server reports the next
    /// change.
    pub(crate) fn watch(&self, link: u64) -> Option<Cmd> {
        let mut lines = self.lines.lines();
        let line = lines.get_mut(self.name)?;
        if line.watched.replace(link) == Some(link) { None } else { Some(fence(self.name, None)) }
    }

    /// Records that the server has it in its queue since the request of this number, over this connection.
    pub(crate) fn asked(&mut self, number: u64, link: u64) {
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(self.name) else { return };
        let was_first = line.places.keys().next() == Some(&self.key);
        let Some(mut spot) = line.places.remove(&self.key) else { return };
        let was_stale = line.is_stale(&self.key, &spot);
        (spot.link, spot.asked_at) = (link, Moment::now());
        if self.key.0 == u64::MAX {
            self.key.0 = number;
        }
        line.places.insert(self.key, spot);
        if number > line.latest {
            (line.link, line.latest) = (link, number);
        }
        if line.places.len() == 1 {
            return; // there is nobody to call
        }
        // A call for the first waiter may have reached another one.
        if was_first != (line.places.keys().next() == Some(&self.key)) {
            line.call_first();
        }
        line.call_next(self.key, was_stale, self.lines.most);
    }

    /// Clears the record that it was called.
    pub(crate) fn clear(&self) {
        let notified = std::pin::pin!(self.turn.notified());
        notified.enable();
    }

    /// Sleeps for `most`, or until it is called.
    pub(crate) async fn sleep(&self, most: Duration) {
        drop(timeout(most, self.turn.notified()).await);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(self.name) else { return };
        let most = self.lines.most;
        let was_first = line.places.keys().next() == Some(&self.key);
        let spot = line.places.remove(&self.key);
        if line.places.is_empty() {
            lines.remove(self.name);
            return;
        }
        if was_first {
            line.call_first();
        }
        if spot.is_some_and(|spot| line.is_stale(&self.key, &spot)) {
            line.call_next(self.key, true, most);
        }
        // The waiter that moves up may join the server's queue now.
        let mut others = line.places.iter().filter(|(_, spot)| !spot.is_named);
        if let Some((key, spot)) = others.nth(most - 1)
            && key.0 == u64::MAX
        {
            spot.turn.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_called(place: &Place<'_>) -> bool {
        std::pin::pin!(place.turn.notified()).enable()
    }

    fn may_ask(place: &Place<'_>) -> bool {
        place.may_ask() == May::Ask
    }

    #[test]
    fn all_ask_again_in_their_order_over_another_connection() {
        // A new connection, and one to a server that was known before the slot moved there.
        for (before, after) in [(1, 2), (2, 1)] {
            let lines = Lines::new(8);
            let mut places: Vec<_> = (0..4).map(|_| lines.join(b"k", false)).collect();
            for place in &mut places {
                place.asked(next_number(), before);
            }
            assert!(places[0].watch(before).is_some() && places[0].is_watched());
            places[0].asked(next_number(), after);
            assert!(!places[0].is_watched(), "the other server tells of nothing yet");
            // The next one asks the old server, and is redirected: the new one must still be asked to report
            // changes.
            assert!(places[1].watch(before).is_none() && places[1].watch(after).is_some());
            assert!(places[0].is_watched() && places[0].watch(after).is_none());
            let new = lines.join(b"k", false);
            for number in 1..4 {
                assert!(is_called(&places[number]) && may_ask(&places[number]));
                for behind in places[number + 1..].iter().chain([&new]) {
                    assert!(behind.may_ask() == May::AfterOthers && !is_called(behind));
                }
                places[number].asked(next_number(), after);
            }
            assert!(is_called(&new) && may_ask(&new));
        }
    }

    #[test]
    fn a_late_answer_of_an_old_connection_repeats_only_its_own_request() {
        let lines = Lines::new(8);
        let (mut one, mut two) = (lines.join(b"k", false), lines.join(b"k", false));
        let (early, late) = (next_number(), next_number());
        one.asked(late, 2);
        two.asked(early, 1);
        assert!(is_called(&two) && may_ask(&two), "it asked the server before");
        assert!(!is_called(&one));
    }

    #[test]
    fn a_waiter_that_leaves_before_it_asks_again_delays_nobody() {
        let lines = Lines::new(8);
        let mut places: Vec<_> = (0..3).map(|_| lines.join(b"k", false)).collect();
        for place in &mut places {
            place.asked(next_number(), 1);
        }
        places[0].asked(next_number(), 2);
        drop(places.remove(1));
        assert!(is_called(&places[1]) && may_ask(&places[1]));
    }

    #[test]
    fn the_first_to_ask_is_called_though_its_reply_is_seen_later() {
        let lines = Lines::new(4);
        let (mut one, mut two) = (lines.join(b"k", false), lines.join(b"k", false));
        let early = next_number();
        two.asked(next_number(), 1);
        lines.changed(&Change::Names(vec![b"k".to_vec()]));
        assert!(is_called(&two) && !is_called(&one), "it is the only one that is known to be in line");
        one.asked(early, 1);
        assert!(is_called(&one) && one.is_first() && !two.is_first());
    }

    #[test]
    fn a_waiter_called_before_its_turn_passes_the_call_on() {
        let lines = Lines::new(4);
        let (mut one, two) = (lines.join(b"k", false), lines.join(b"k", false));
        let mut behind = lines.join(b"k", false);
        behind.asked(next_number(), 1);
        one.asked(next_number(), 1);
        assert!(!is_called(&two));
        drop(behind);
        assert!(is_called(&one));
    }

    #[test]
    fn a_waiter_that_leaves_calls_the_next_and_lets_one_move_up() {
        let lines = Lines::new(2);
        let places: Vec<_> = (0..4).map(|_| lines.join(b"k", false)).collect();
        assert_eq!(places.iter().map(may_ask).collect::<Vec<_>>(), [true, true, false, false]);
        let mut places = places.into_iter();
        drop(places.next());
        let places: Vec<_> = places.collect();
        assert_eq!(places.iter().map(is_called).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(places.iter().map(may_ask).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn a_change_is_asked_for_once_and_calls_the_first() {
        let lines = Lines::new(2);
        let (mut one, two) = (lines.join(b"k", false), lines.join(b"k", false));
        one.asked(next_number(), 1);
        assert!(one.watch(1).is_some() && two.watch(1).is_none() && two.is_watched());
        lines.changed(&Change::Any);
        assert!(is_called(&one) && !is_called(&two) && !two.is_watched());
        assert!(two.watch(1).is_some());
    }

    #[test]
    fn named_owners_keep_nobody_from_the_servers_line() {
        let lines = Lines::new(1);
        let mut named: Vec<_> = (0..3).map(|_| lines.join(b"k", true)).collect();
        for place in &mut named {
            place.asked(next_number(), 1);
        }
        let (first, second) = (lines.join(b"k", false), lines.join(b"k", false));
        assert_eq!((first.may_ask(), second.may_ask()), (May::Ask, May::NotYet));
        drop(first);
        assert!(is_called(&second) && may_ask(&second));
    }

    #[test]
    fn a_named_owner_is_called_when_those_ahead_have_asked_again() {
        let lines = Lines::new(2);
        let (mut one, mut two) = (lines.join(b"k", false), lines.join(b"k", false));
        for place in [&mut one, &mut two] {
            place.asked(next_number(), 1);
        }
        one.asked(next_number(), 2);
        let named = lines.join(b"k", true);
        assert_eq!(named.may_ask(), May::AfterOthers);
        two.asked(next_number(), 2);
        assert!(is_called(&named) && may_ask(&named));
    }

    #[test]
    fn a_waiter_that_has_to_ask_again_is_called_behind_one_that_has_not() {
        let lines = Lines::new(8);
        let mut places: Vec<_> = (0..3).map(|_| lines.join(b"k", false)).collect();
        for place in &mut places {
            place.asked(next_number(), 1);
        }
        places[1].asked(next_number(), 2); // by itself, as its place would lapse
        is_called(&places[2]);
        assert_eq!(places[2].may_ask(), May::AfterOthers);
        places[0].asked(next_number(), 2);
        assert!(is_called(&places[2]) && may_ask(&places[2]));
    }

    #[test]
    fn a_new_waiter_is_called_behind_one_that_asked_over_the_new_connection_first() {
        let lines = Lines::new(8);
        let (mut old, mut first) = (lines.join(b"k", false), lines.join(b"k", false));
        old.asked(next_number(), 1);
        first.asked(next_number(), 2);
        let second = lines.join(b"k", false);
        assert_eq!(second.may_ask(), May::AfterOthers);
        old.asked(next_number(), 2);
        assert!(is_called(&second) && may_ask(&second));
    }
}
