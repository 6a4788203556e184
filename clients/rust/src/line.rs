//! The waiters of this process for each lock, in the order in which the server knows them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::link::{Change, lock, next_number};
use crate::wanted::fence;

/// The place of a waiter: those that have asked the server stand first, by the number of their request, and behind them
/// the others, by their arrival.
type Key = (u64, u64);

#[derive(Default)]
struct Line {
    places: BTreeMap<Key, Arc<Notify>>,
    /// Whether the server tells of the next change of the lock.
    is_watched: bool,
}

impl Line {
    /// It may be the turn of the first of them.
    fn call_first(&self) {
        if let Some(turn) = self.places.values().next() {
            turn.notify_one();
        }
    }
}

/// All lines of this process.
pub(crate) struct Lines {
    lines: Mutex<HashMap<Vec<u8>, Line>>,
    most: usize,
}

impl Lines {
    /// So many of each line stand in the server's line.
    pub(crate) fn new(most: usize) -> Self {
        Self { lines: Mutex::default(), most }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Line>> {
        lock(&self.lines)
    }

    /// Stands at the end of the line for this lock.
    pub(crate) fn join<'a>(&'a self, name: &'a [u8]) -> Place<'a> {
        let (key, turn) = ((u64::MAX, next_number()), Arc::new(Notify::new()));
        self.lines().entry(name.to_vec()).or_default().places.insert(key, turn.clone());
        Place { lines: self, name, key, turn }
    }

    /// The server said that these have changed.
    pub(crate) fn changed(&self, change: &Change) {
        let mut lines = self.lines();
        let call = |line: &mut Line| {
            line.is_watched = false;
            line.call_first();
        };
        match change {
            Change::Any => lines.values_mut().for_each(call),
            Change::Names(names) => {
                for name in names {
                    if let Some(line) = lines.get_mut(name) {
                        call(line);
                    }
                }
            }
        }
    }
}

/// A place in a line, which is left when this is dropped.
pub(crate) struct Place<'a> {
    lines: &'a Lines,
    name: &'a [u8],
    key: Key,
    turn: Arc<Notify>,
}

impl Place<'_> {
    /// Whether this waiter may stand in the line of the server.
    pub(crate) fn may_ask(&self) -> bool {
        let lines = self.lines.lines();
        let most = self.lines.most;
        lines.get(self.name).is_none_or(|line| line.places.range(..self.key).take(most).count() < most)
    }

    /// Whether it is the first of this process.
    pub(crate) fn is_first(&self) -> bool {
        self.lines.lines().get(self.name).is_none_or(|line| line.places.range(..self.key).next().is_none())
    }

    /// Whether the server tells of the next change.
    pub(crate) fn is_watched(&self) -> bool {
        self.lines.lines().get(self.name).is_some_and(|line| line.is_watched)
    }

    /// What has to be asked before, so that the server tells of the next change.
    pub(crate) fn watch(&self) -> Option<Cmd> {
        let mut lines = self.lines.lines();
        let line = lines.get_mut(self.name)?;
        if std::mem::replace(&mut line.is_watched, true) { None } else { Some(fence(self.name, None)) }
    }

    /// The server has it in its line since the request of this number.
    pub(crate) fn asked(&mut self, number: u64) {
        if self.key.0 != u64::MAX {
            return;
        }
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(self.name) else { return };
        let was_first = line.places.keys().next() == Some(&self.key);
        line.places.remove(&self.key);
        self.key.0 = number;
        line.places.insert(self.key, self.turn.clone());
        // What was meant for the first may have called another one.
        if was_first != (line.places.keys().next() == Some(&self.key)) {
            line.call_first();
        }
    }

    /// Forgets that it was called.
    pub(crate) fn clear(&self) {
        let notified = std::pin::pin!(self.turn.notified());
        notified.enable();
    }

    /// Sleeps so long, or until it is called.
    pub(crate) async fn sleep(&self, most: Duration) {
        drop(timeout(most, self.turn.notified()).await);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(self.name) else { return };
        let before = line.places.range(..self.key).take(self.lines.most).count();
        line.places.remove(&self.key);
        if line.places.is_empty() {
            lines.remove(self.name);
            return;
        }
        if before == 0 {
            line.call_first();
        }
        // Who moves up may stand in the server's line now.
        if before < self.lines.most
            && let Some(turn) = line.places.values().nth(self.lines.most - 1)
        {
            turn.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_called(place: &Place<'_>) -> bool {
        std::pin::pin!(place.turn.notified()).enable()
    }

    #[test]
    fn who_asked_the_server_first_is_called_though_its_reply_is_seen_later() {
        let lines = Lines::new(4);
        let (mut one, mut two) = (lines.join(b"k"), lines.join(b"k"));
        two.asked(next_number() + 1);
        lines.changed(&Change::Names(vec![b"k".to_vec()]));
        assert!(is_called(&two) && !is_called(&one), "it is the only one that is known to be in line");
        one.asked(next_number() - 1);
        assert!(is_called(&one) && one.is_first() && !two.is_first());
    }

    #[test]
    fn who_asked_later_than_others_hands_on_that_it_was_called() {
        let lines = Lines::new(4);
        let (mut one, two) = (lines.join(b"k"), lines.join(b"k"));
        let mut behind = lines.join(b"k");
        behind.asked(next_number());
        one.asked(next_number());
        assert!(!is_called(&two));
        drop(behind);
        assert!(is_called(&one));
    }

    #[test]
    fn who_leaves_calls_the_next_and_lets_one_move_up() {
        let lines = Lines::new(2);
        let places: Vec<_> = (0..4).map(|_| lines.join(b"k")).collect();
        assert_eq!(places.iter().map(Place::may_ask).collect::<Vec<_>>(), [true, true, false, false]);
        let mut places = places.into_iter();
        drop(places.next());
        let places: Vec<_> = places.collect();
        assert_eq!(places.iter().map(is_called).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(places.iter().map(Place::may_ask).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn a_change_is_asked_for_once_and_calls_the_first() {
        let lines = Lines::new(2);
        let (one, two) = (lines.join(b"k"), lines.join(b"k"));
        assert!(one.watch().is_some() && two.watch().is_none() && two.is_watched());
        lines.changed(&Change::Any);
        assert!(is_called(&one) && !is_called(&two) && !two.is_watched());
        assert!(two.watch().is_some());
    }
}
