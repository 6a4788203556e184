//! Who deletes locks: one, or all of a server. It ends holds that their owners count on, so whoever does it makes the
//! owners give up what they hold first. (Else a server that lost the deletion would believe them later.)
//! And who gives a lock a time to live, which ends nothing here: nobody lives to see it.

use super::super::server::{Lazy, Outside};
use super::points::Point;
use super::{GROUP, Group, LOCKS, Verdict};
use crate::lock::effect::Found;

impl Group {
    /// PEXPIRE on a primary. Readers have to agree on which keys have a time to live (G13).
    pub(super) fn give_time_to_live(&mut self) -> Verdict {
        // By the time: so the dice fall as they would without.
        let n = self.time as usize % self.plan.nodes();
        let at = LOCKS[self.time as usize / 7 % LOCKS.len()];
        let node = &self.nodes[n];
        if node.runs() && node.decides() && self.is_ours(n, at) && self.do_outside(n, Outside::Expire(at)) {
            self.note(|| format!("{at} is given a time to live on n{n}"));
            self.see(Point::MadeMortal);
        }
        Ok(())
    }

    /// DEL or FLUSHALL on a primary that clients reach.
    pub(super) fn break_some(&mut self) -> Verdict {
        let n = self.random.below(self.plan.nodes() as u64) as usize;
        let node = &self.nodes[n];
        let is_stale = self.plan.has_one_primary && n < GROUP && n != self.rightful;
        if !self.plan.asks.breaks || !node.runs() || !node.decides() || node.is_cut_off || is_stale {
            return Ok(());
        }
        let at = LOCKS[self.random.below(LOCKS.len() as u64) as usize];
        if self.random.percent(10) {
            self.see(Point::Flushed);
            self.note(|| format!("n{n} is emptied"));
            for at in LOCKS {
                // Also what has come with a slot of which nobody was told yet.
                if self.is_ours(n, at) || self.nodes[n].server.found(at) != Found::Nothing {
                    self.give_up_all(at);
                }
            }
            self.do_outside(n, Outside::Flush(None, Lazy::No));
        } else if self.is_ours(n, at) && self.do_outside(n, Outside::Del(at)) {
            self.note(|| format!("{at} is deleted on n{n}"));
            self.see(Point::Deleted);
            self.give_up_all(at);
        }
        if self.nodes[n].server.table.has_tasks() {
            self.see(Point::BrokenBeforeWaiters);
        }
        Ok(())
    }
}
