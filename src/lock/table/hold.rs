//! How a hold begins, where its owner holds nothing yet and where it does.

use super::line::At;
use super::state::*;
use crate::lock::types::count_max;

impl Table {
    /// A hold begins by this server's own decision. `None`: there are too many locks.
    ///
    /// What its owner holds here already goes on under the new token: it lasts no shorter than before (G2), takes as
    /// many releases, one more if this one `counts`, and keeps its tie unless another one is asked for.
    pub(super) fn begin_or_go_on(
        &mut self,
        now: Moment,
        at: &mut At<'_>,
        mode: Mode,
        new: &NewHold<'_>,
        bind_to: Option<ClientId>,
        counts: bool,
    ) -> Option<Record> {
        let own = self.own(at, new.owner).filter(|(_, hold)| !hold.is_over(now));
        let Some((member, hold)) = own else {
            let record = self.begin(now, at, mode, new)?;
            self.stats.grants += 1;
            self.note_stake(at.place, new.token, (new.owner, new.lease_ms), (true, false));
            return Some(record);
        };
        let is_upgrade = mode == Mode::Exclusive && self.held_as(at) == Some(Mode::Shared);
        let (count, was, is_longer) = (hold.count(), hold.tie(), hold.ends_before(now, new.lease_ms));
        self.go_on(now, at, member, mode, new.token)?;
        // It is given up for what it becomes.
        self.stats.grants += 1;
        self.stats.releases += 1;
        let (member, _) = self.own(at, new.owner)?;
        self.locks.retie(member, now, if new.tie.is_none() { was } else { new.tie }, bind_to);
        if is_longer {
            self.locks.extend(member, now, new.lease_ms);
        }
        if counts {
            self.locks.set_count(member, count.saturating_add(1).min(count_max()));
        }
        self.locks.note_known(member, new.client);
        self.note_stake(at.place, new.token, (new.owner, new.lease_ms), (counts, is_upgrade));
        Some(self.record_of(at, member))
    }

    /// A hold goes on in this way, under this token. It is the only one, or the others hold in the same way.
    fn go_on(
        &mut self,
        now: Moment,
        at: &mut At<'_>,
        member: LockId,
        mode: Mode,
        token: Token,
    ) -> Option<()> {
        let (lock, was) = (at.lock?, self.held_as(at)?);
        if was == mode {
            self.locks.set_new_token(lock, member, token)?;
        } else {
            let alone = if lock.is_crowd() { self.locks.set_apart(lock)? } else { lock };
            self.locks.set_new_token(alone, alone, token)?;
            let is_alone = mode == Mode::Exclusive;
            at.lock = Some(if is_alone { alone } else { self.locks.open_up(alone, now, mode)? });
        }
        if self.locks.holders_of(at.lock?) > 1 {
            at.touch();
        } else {
            at.note_begun();
        }
        Some(())
    }

    /// A hold begins. `None`: there are too many locks.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        at: &mut At<'_>,
        mode: Mode,
        new: &NewHold<'_>,
    ) -> Option<Record> {
        let own = self.own(at, new.owner).map(|(member, _)| member);
        if let Some(own) = own {
            self.end_one(now, at, own);
        }
        if mode == Mode::Exclusive {
            let record = at.lock.filter(|&lock| self.locks.get(lock).is_some());
            let lock = match record {
                Some(lock) => {
                    self.locks.begin(lock, now, at.place, new);
                    lock
                }
                None => self.locks.insert(now, at.place, Some(new))?,
            };
            at.lock = Some(lock);
            at.note_begun();
            return Some(Record::Hold(lock));
        }
        let (crowd, is_new) = match at.lock.filter(|&lock| self.held_as(at) == Some(mode) && lock.is_crowd())
        {
            Some(crowd) => (crowd, false),
            None => (self.locks.form(mode), true),
        };
        if let Some(record) = at.lock.filter(|&lock| is_new && at.found != Found::Lock(lock)) {
            // Made in this very step, and no key's value yet: nobody else would forget it.
            self.locks.remove_free(record);
        }
        let Some(member) = self.locks.join(crowd, now, at.place, new) else {
            if is_new {
                self.locks.dissolve(crowd);
            }
            return None;
        };
        at.lock = Some(crowd);
        if is_new {
            at.note_begun();
        } else {
            // Beside others: what a user said of the key goes on, too.
            at.touch();
        }
        Some(Record::Member(crowd, member))
    }
}
