//! The effects of lowered bounds on the [oracle](crate::sim::oracle).

use crate::lock::table::Refusal;
use crate::lock::tests::lowered;
use crate::sim::checkers::book::{Hold, Scene, Wish};
use crate::sim::oracle::{Oracle, Value, Waiter};
use crate::sim::single::input::Reply;
use crate::sim::single::server::At;

impl Oracle {
    /// G11: whether this waiter can ever be granted, or counts so where the server's search ended early.
    pub(crate) fn can_come_true(&self, waiter: usize, reply: &Reply) -> bool {
        if lowered::has_search_ended_early() && *reply != Reply::Refused(Refusal::Deadlock) {
            return true;
        }
        let live =
            |at: At| self.holds(at).iter().filter(|hold| hold.is_live(self.time)).map(move |h| (at, h));
        let holds =
            self.keys.iter().flat_map(|key| live(key.0)).map(|(at, h)| (at, h.owner, h.mode)).collect();
        let wish = |w: &Waiter| {
            let Waiter { owner, keys, mode, .. } = *w;
            Wish { owner, keys, mode }
        };
        // A request that has timed out waits for nothing: the pump is about to say so.
        let is_late = |w: &Waiter| w.until.is_some_and(|until| until <= self.time);
        let ahead = self.waiters[..waiter].iter().filter(|w| !is_late(w)).count();
        let all = self.waiters.iter().enumerate().filter(|&(number, w)| number == waiter || !is_late(w));
        let wishes = all.map(|(_, w)| wish(w)).collect();
        let arrived = self.arrived.clone();
        Scene { holds, wishes, arrived, holders_max: self.limits.holders_max }.comes_true(ahead)
    }

    /// Returns whether a lease has expired of an owner that holds a lock together with others. If more than two are
    /// many, the pump is next: it alone examines all of them.
    pub(crate) fn has_one_of_many_over(&self) -> bool {
        let is_over = |holds: &[Hold]| holds.len() > 1 && holds.iter().any(|hold| !hold.is_live(self.time));
        self.keys.iter().any(|key| matches!(&key.1, Value::Lock(holds) if is_over(holds)))
    }
}
