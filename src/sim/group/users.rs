//! One user deletes locks: one, or all of a server. That ends holds that their owners count on, so this user makes
//! the owners give up their holds first. (Otherwise a server that lost the deletion would later trust them.) Another
//! user gives a lock a time to live, which ends nothing here: it lasts beyond the end of any run.

use super::points::Point;
use super::{GROUP, Group, LOCKS, Verdict};
use crate::sim::server::inside::PartBuf;
use crate::sim::server::sim::Said;
use crate::sim::single::server::At;

/// A connection that asks for no locks.
const SOMEBODY: u64 = 0;

/// A wall clock time that no run reaches, in milliseconds.
const NEVER_MS: u64 = 4_000_000_000_000;

impl Group {
    /// PEXPIRE on a primary. Readers must agree on which keys have a time to live (G13).
    pub(super) fn give_time_to_live(&mut self) -> Verdict {
        // Chosen by the time, so that the random choices are the same as without it.
        let n = self.time as usize % self.plan.nodes();
        let at = LOCKS[self.time as usize / 7 % LOCKS.len()];
        let node = &self.nodes[n];
        if node.runs() && node.decides() && self.is_ours(n, at) && self.make_mortal(n, at, NEVER_MS)? {
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
                // Also a lock that has come with a slot before the move was announced.
                if self.is_ours(n, at) || self.nodes[n].has(at) {
                    self.give_up_all(at);
                }
            }
            self.do_outside(n, &[b"FLUSHALL"])?;
        } else if self.is_ours(n, at) && self.do_outside(n, &[b"DEL", at.name.as_bytes()])? {
            self.note(|| format!("{at} is deleted on n{n}"));
            self.see(Point::Deleted);
            self.give_up_all(at);
        }
        if self.nodes[n].table(|table| table.has_tasks()) {
            self.see(Point::BrokenBeforeWaiters);
        }
        Ok(())
    }

    /// PEXPIREAT.
    pub(super) fn make_mortal(&mut self, n: usize, at: At, until_ms: u64) -> Result<bool, String> {
        self.do_outside(n, &[b"PEXPIREAT", at.name.as_bytes(), until_ms.to_string().as_bytes()])
    }

    /// Has a user change keys of a primary. Returns true if there was anything to do.
    pub(super) fn do_outside(&mut self, n: usize, words: &[&[u8]]) -> Result<bool, String> {
        self.enter(n);
        let words = words.iter().map(|word| word.to_vec()).collect();
        let said = self.nodes[n].sim.asks(SOMEBODY, 0, words);
        self.collect(n)?;
        match said {
            Said::Now(parts) => match parts[..] {
                [PartBuf::Integer(number)] => Ok(number > 0),
                [PartBuf::Ok] => Ok(true),
                _ => Err(format!("n{n} refuses what is done to its keys: {parts:?}")),
            },
            Said::Later(_) => Err("a client waits that does not ask for locks".to_owned()),
        }
    }
}
