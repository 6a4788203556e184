//! What is to be published and was not yet, in its order (G15).
//!
//! A hold that is broken from outside ends while the server is busy with somebody's command, and nothing may be
//! published there. So it is noted, and the pump publishes it. Until then whatever else happens to locks is published
//! behind it: else the next hold of a lock would be heard of before the end of the one before.

use super::*;

/// Room for so many is kept when all are published.
const KEPT: usize = 64;

/// Something to be published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The lock that it happened to.
    pub place: PlaceBuf,
    /// What happened.
    pub event: Event,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Outbox {
    notices: VecDeque<Notice>,
}

impl Outbox {
    pub(super) fn push(&mut self, place: PlaceBuf, event: Event) {
        self.notices.push_back(Notice { place, event });
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.notices.is_empty()
    }

    fn pop(&mut self) -> Option<Notice> {
        let notice = self.notices.pop_front();
        if self.notices.is_empty() && self.notices.capacity() > KEPT {
            self.notices = VecDeque::new();
        }
        notice
    }
}

impl Table {
    /// Whether anything is to be published that was not yet. Then what happens now has to wait for it.
    #[inline(always)]
    #[must_use]
    pub fn has_notices(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Has this published behind all that was not published yet.
    pub fn publish_later(&mut self, place: Place<'_>, event: Event) {
        self.outbox.push(place.to_owned(), event);
    }

    /// What is to be published next.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.outbox.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_later_keeps_its_order_and_gives_its_memory_back() {
        let mut table = Table::default();
        for count in [1, 20, 5_000] {
            for number in 0..count {
                let name = format!("lock-{number}");
                let event = [Event::Broken, Event::Acquired][number % 2];
                table.publish_later(Place { db: 3, name: name.as_bytes() }, event);
            }
            for number in 0..count {
                assert!(table.has_notices() && table.has_tasks() && table.tasks() == 0);
                let Notice { place, event } = table.next_notice().expect("not all are published");
                assert_eq!((place.db, &*place.name), (3, format!("lock-{number}").as_bytes()));
                assert_eq!(event, [Event::Broken, Event::Acquired][number % 2]);
            }
            assert!(!table.has_notices() && table.next_notice().is_none() && !table.has_tasks());
            // Room for a few is kept for the next ones.
            assert_eq!(table.outbox.notices.capacity() == 0, count > KEPT);
        }
    }
}
