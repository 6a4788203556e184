//! How a hold begins, where its owner holds nothing yet and where it does.

use super::context::StepContext;
use super::state::*;
use crate::lock::lowered::count_max;
use crate::lock::types::COUNT_MAX;

impl Table {
    /// A hold begins by this server's own decision. `None`: there are too many locks.
    ///
    /// All grants come by here but those of the short path. A rule that forbids a grant is asserted here, so that tests
    /// notice a step that did not ask it.
    ///
    /// A hold that the owner has here already goes on under the new token. It lasts no shorter than before (G2), and
    /// takes as many releases, one more if this grant `counts`. It keeps its binding unless another one is asked
    /// for.
    pub(super) fn begin_or_go_on(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        grant: &Grant<'_>,
    ) -> Option<Record> {
        debug_assert!(!self.is_closed(), "nothing is granted in a quarantine, nor when the module is to go");
        let Grant { mode, ref new, bind_to, counts, is_told } = *grant;
        let own = self.own(ctx, new.owner).filter(|(_, hold)| !hold.is_over(now));
        let Some((holder, hold)) = own else {
            let record = self.begin(now, ctx, mode, new)?;
            self.stats.grants += 1;
            self.note_pending_grant(
                ctx.key_ref.lock_key,
                new.token,
                (new.owner, new.lease_ms),
                (true, false),
            );
            return Some(record);
        };
        let held_as = self.held_as(ctx)?;
        let is_upgrade = (held_as, mode) == (Mode::Shared, Mode::Exclusive);
        let (count, was, is_longer) = (hold.count(), hold.binding(), hold.ends_before(now, new.lease_ms));
        let old_token = hold.token();
        let more = if counts { count.saturating_add(1).min(count_max(COUNT_MAX)) } else { count };
        let earlier =
            if is_told { None } else { self.locks.earlier(holder, held_as, new.token, more > count) };
        self.go_on(now, ctx, holder, mode, new.token)?;
        // It is given up for what it becomes.
        self.stats.grants += 1;
        self.stats.releases += 1;
        let (holder, _) = self.own(ctx, new.owner)?;
        self.locks.rebind(holder, now, if new.binding.is_none() { was } else { new.binding }, bind_to);
        if is_longer {
            self.locks.extend(holder, now, new.lease_ms);
        }
        self.locks.set_count(holder, more);
        if is_told {
            self.locks.note_acknowledged(holder, new.client);
        } else {
            self.locks.note_granted(holder, new.client, earlier);
        }
        self.note_pending_grant(
            ctx.key_ref.lock_key,
            new.token,
            (new.owner, new.lease_ms),
            (false, is_upgrade),
        );
        self.note_new_token(ctx.key_ref.lock_key, new.owner, old_token, new.token);
        Some(self.record_of(ctx, holder))
    }

    /// A hold goes on in this way, under this token. It is the only one, or the others hold in the same way.
    pub(super) fn go_on(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        holder: LockId,
        mode: Mode,
        token: Token,
    ) -> Option<()> {
        let (lock, was) = (ctx.lock?, self.held_as(ctx)?);
        if was == mode {
            self.locks.set_new_token(lock, holder, token)?;
        } else {
            let alone = if lock.is_list() { self.locks.convert_to_exclusive(lock)? } else { lock };
            self.locks.set_new_token(alone, alone, token)?;
            let is_alone = mode == Mode::Exclusive;
            ctx.lock = Some(if is_alone { alone } else { self.locks.convert_to_shared(alone, now, mode)? });
        }
        if self.locks.holders_of(ctx.lock?) > 1 {
            ctx.touch();
        } else {
            ctx.note_begun();
        }
        Some(())
    }

    /// The token of a hold is no lower than this one from here on, and the clock of tokens neither. Returns the token
    /// that the hold had, if that was another one.
    pub(super) fn raise_token(
        &mut self,
        ctx: &StepContext<'_>,
        holder: LockId,
        raise: Token,
    ) -> Option<Token> {
        self.clock.hear(raise);
        let was = self.locks.hold(holder).map(|hold| hold.token()).filter(|&token| token < raise);
        // Two holders of one lock never have the same.
        let lock = ctx.lock.filter(|&lock| self.locks.hold_with(lock, raise).is_none())?;
        was.filter(|_| self.locks.set_new_token(lock, holder, raise).is_some())
    }

    /// A hold begins. `None`: there are too many locks.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        ctx: &mut StepContext<'_>,
        mode: Mode,
        new: &NewHold<'_>,
    ) -> Option<Record> {
        let own = self.own(ctx, new.owner).map(|(holder, _)| holder);
        if let Some(own) = own {
            self.end_one(now, ctx, own);
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
            match ctx.lock.filter(|&lock| self.held_as(ctx) == Some(mode) && lock.is_list()) {
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
            // Beside others: what a user said of the key goes on, too.
            ctx.touch();
        }
        Some(Record::Holder(holders, holder))
    }
}
