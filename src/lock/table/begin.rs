//! Starts holds, and raises their tokens.

use super::context::StepContext;
use super::state::Table;
use crate::lock::effect::{Existing, LockId, Record};
use crate::lock::locks::NewHold;
use crate::lock::types::{Mode, Moment, Token};

impl Table {
    /// Begins a hold by this server's own decision. `None`: there are too many locks. `is_told_later`: its owner waited, and
    /// is not told of it in this step.
    ///
    /// All grants come by here but those of [`Self::acquire_at_once`]. A rule that forbids a grant is asserted here, so
    /// that tests notice a step that did not ask it.
    pub(super) fn begin_granted(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        (mode, new): (Mode, &NewHold<'_>),
        is_told_later: bool,
    ) -> Option<Record> {
        debug_assert!(
            !self.restrictions.is_closed(),
            "nothing is granted in a quarantine, nor when the module is to go"
        );
        debug_assert!(
            ctx.own(&self.locks, new.owner).is_none_or(|(_, hold)| hold.is_over(now)),
            "a grant only ever begins holds"
        );
        let record = self.begin(now, ctx, mode, new)?;
        self.stats.grants += 1;
        if let Record::Hold(holder) | Record::Holder(_, holder) = record
            && (is_told_later || self.restrictions.confirms())
        {
            self.undelivered.begin(new.token, holder);
        }
        Some(record)
    }

    /// Raises the token of an exclusive hold to this one, if it is lower, and the clock of tokens too.
    pub(super) fn raise_token(&mut self, ctx: &StepContext<'_>, holder: LockId, raise: Token) {
        self.clock.hear(raise);
        // Only a broken record can name one of several holders.
        let is_alone = ctx.lock.is_some_and(|lock| !lock.is_list());
        if is_alone && self.locks.hold(holder).is_some_and(|hold| hold.token() < raise) {
            self.locks.set_token(holder, raise);
        }
    }

    /// A hold begins. `None`: there are too many locks.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        mode: Mode,
        new: &NewHold<'_>,
    ) -> Option<Record> {
        let own = ctx.own(&self.locks, new.owner).map(|(holder, _)| holder);
        if let Some(own) = own {
            ctx.end_one(&mut self.locks, now, own);
        }
        if mode == Mode::Exclusive {
            let record = ctx.lock.filter(|&lock| self.locks.get(lock).is_some());
            let lock = match record {
                Some(lock) => {
                    self.locks.begin(lock, now, ctx.key_ref.lock_key, new);
                    lock
                }
                None => self.locks.insert(now, ctx.key_ref.lock_key, Some(new))?,
            };
            ctx.lock = Some(lock);
            ctx.note_begun();
            return Some(Record::Hold(lock));
        }
        let (holders, is_new) =
            match ctx.lock.filter(|&lock| ctx.held_as(&self.locks) == Some(mode) && lock.is_list()) {
                Some(holders) => (holders, false),
                None => (self.locks.form(mode), true),
            };
        if let Some(record) = ctx.lock.filter(|&lock| is_new && ctx.key_ref.existing != Existing::Lock(lock))
        {
            // Made in this very step, and no key's value yet: nobody else would forget it.
            self.locks.remove_free(record);
        }
        let Some(holder) = self.locks.join(holders, now, ctx.key_ref.lock_key, new) else {
            if is_new {
                self.locks.dissolve(holders);
            }
            return None;
        };
        ctx.lock = Some(holders);
        if is_new {
            ctx.note_begun();
        } else {
            // Alongside others: a time to live that a user gave the key stays.
            ctx.touch();
        }
        Some(Record::Holder(holders, holder))
    }
}
