//! Locks that several hold, and holds that have more to say than a record: see [`super::crowd`] and
//! [`super::extra`].

use super::extra::Extra;
use super::id::LockId;
use super::record::Flag;
use super::state::{Locks, tick};
use super::terms::{Ended, NewHold};
use super::view::Hold;
use crate::lock::types::{ClientId, Mode, Moment, Place, Tie, Token};

impl Locks {
    /// How the lock with this number is held. `None`: nobody holds it, or there is no such lock.
    #[inline]
    #[must_use]
    pub fn mode(&self, id: LockId) -> Option<Mode> {
        if id.is_crowd() {
            return Some(self.crowds.get(id)?.mode);
        }
        self.hold(id).map(|_| Mode::Exclusive)
    }

    /// The holds of a lock, in the order of their tokens, with the numbers of their records.
    pub fn holders(&self, id: LockId) -> impl Iterator<Item = (LockId, Hold<'_>)> {
        let crowd = self.crowds.get(id);
        let alone = crowd.is_none().then_some(id);
        let members = crowd.into_iter().flat_map(|crowd| crowd.members()).chain(alone);
        members.filter_map(|member| Some((member, self.hold(member)?)))
    }

    /// How many hold a lock.
    #[inline]
    #[must_use]
    pub fn holders_of(&self, id: LockId) -> usize {
        match self.crowds.get(id) {
            Some(crowd) => crowd.len(),
            None => usize::from(self.hold(id).is_some()),
        }
    }

    /// The hold of this owner on a lock.
    #[inline]
    #[must_use]
    pub fn hold_of(&self, id: LockId, owner: &[u8]) -> Option<(LockId, Hold<'_>)> {
        if !id.is_crowd() {
            return self.hold(id).filter(|hold| hold.is_of(owner)).map(|hold| (id, hold));
        }
        let of_owner = |member| self.hold(member).filter(|hold| hold.is_of(owner)).map(|hold| (member, hold));
        if !self.crowds.is_large(id) {
            return self.crowds.get(id)?.few().iter().find_map(|entry| of_owner(entry.1));
        }
        of_owner(self.crowds.of_owner(id, owner, |member| of_owner(member).is_some())?)
    }

    /// Whether a lock has too many holders to look at each of them.
    #[inline]
    #[must_use]
    pub fn is_large(&self, id: LockId) -> bool {
        self.crowds.is_large(id)
    }

    /// A hold of a lock whose lease is over, if it is not too large to look at all.
    #[inline]
    #[must_use]
    pub fn over_of(&self, id: LockId, now: Moment) -> Option<LockId> {
        if !id.is_crowd() {
            return self.hold(id).filter(|hold| hold.is_over(now)).map(|_| id);
        }
        let few = self.crowds.get(id)?.few();
        few.iter()
            .map(|entry| entry.1)
            .find(|&member| self.hold(member).is_some_and(|hold| hold.is_over(now)))
    }

    /// The hold with this token on a lock.
    #[must_use]
    pub fn hold_with(&self, id: LockId, token: Token) -> Option<(LockId, Hold<'_>)> {
        let member = if id.is_crowd() { self.crowds.get(id)?.of_token(token)? } else { id };
        self.hold(member).filter(|hold| hold.token() == token).map(|hold| (member, hold))
    }

    /// The hold with the newest token on a lock.
    #[must_use]
    pub fn newest_hold(&self, id: LockId) -> Option<(LockId, Hold<'_>)> {
        let member = if id.is_crowd() { self.crowds.get(id)?.newest()? } else { id };
        Some((member, self.hold(member)?))
    }

    /// Whether the record with this number is a hold of this lock.
    #[must_use]
    pub fn is_held_by(&self, id: LockId, member: LockId) -> bool {
        self.hold(member)
            .is_some_and(|hold| self.hold_with(id, hold.token()).is_some_and(|with| with.0 == member))
    }

    /// A new lock that several can hold, and that nobody holds yet.
    #[inline]
    pub fn form(&mut self, mode: Mode) -> LockId {
        self.crowds.form(mode)
    }

    /// Takes a lock away that several could hold and nobody holds.
    #[inline]
    pub fn dissolve(&mut self, id: LockId) {
        self.crowds.dissolve(id);
    }

    /// A hold begins beside the others of this lock. `None`: there are too many locks.
    #[inline]
    pub fn join(&mut self, id: LockId, now: Moment, place: Place<'_>, hold: &NewHold<'_>) -> Option<LockId> {
        let member = self.insert(now, place, Some(hold))?;
        self.enlist(id, member, hold.token, hold.owner);
        Some(member)
    }

    #[inline]
    fn enlist(&mut self, id: LockId, member: LockId, token: Token, owner: &[u8]) {
        if !self.crowds.join(id, (token, member), owner) {
            let owners: Vec<Vec<u8>> = self.holders(id).map(|(_, hold)| hold.owner().into_owned()).collect();
            self.crowds.grow(id, &owners);
            self.crowds.join(id, (token, member), owner);
        }
    }

    /// Ends the hold of a member, and its record with it. Returns also how many are left.
    #[inline]
    pub fn part(&mut self, id: LockId, member: LockId, now: Moment) -> Option<(Ended, usize)> {
        let owner =
            if self.crowds.is_large(id) { self.hold(member)?.owner().into_owned() } else { Vec::new() };
        let ended = self.end(member, now)?;
        let left = self.crowds.part(id, (ended.token, member), &owner);
        self.remove_free(member);
        Some((ended, left?))
    }

    /// A crowd of one becomes a record of its own. The crowd is gone.
    pub fn set_apart(&mut self, id: LockId) -> Option<LockId> {
        let crowd = self.crowds.get(id).filter(|crowd| crowd.len() == 1)?;
        let member = crowd.newest()?;
        self.crowds.dissolve(id);
        Some(member)
    }

    /// A hold of a lock goes on under another token, and takes its place among the others by that.
    pub fn set_new_token(&mut self, id: LockId, member: LockId, token: Token) -> Option<()> {
        if id.is_crowd() {
            let hold = self.hold(member)?;
            let (old, owner) = (hold.token(), hold.owner().into_owned());
            self.crowds.part(id, (old, member), &owner)?;
            self.crowds.join(id, (token, member), &owner);
        }
        self.set_token(member, token);
        Some(())
    }

    /// The hold of a record becomes the first of a crowd, under another number: the old one is the value of a key
    /// that the server is about to forget.
    pub fn open_up(&mut self, id: LockId, now: Moment, mode: Mode) -> Option<LockId> {
        let (place, hold) = (self.get(id)?.place()?, self.hold(id)?);
        let (owner, token, client, left_ms) =
            (hold.owner().into_owned(), hold.token(), hold.client(), hold.left_ms(now));
        let (tie, count, held_ms, is_known) = (hold.tie(), hold.count(), hold.held_ms(now), hold.is_known());
        let until_us = self.head(id)?.0.until_us();
        let bound_to =
            self.extras.get(id.index()).filter(|_| !tie.is_none()).and_then(|extra| extra.bound_to);
        self.remove(id, now);
        let crowd = self.form(mode);
        let new = NewHold { owner: &owner, token, lease_ms: left_ms, client, tie };
        let since = Moment(now.0.saturating_sub(held_ms * 1_000));
        let Some(member) = self.join(crowd, now, place.as_place(), &new) else {
            self.crowds.dissolve(crowd);
            return None;
        };
        self.set_until(member, now, until_us);
        if let Some(head) = self.head_mut(member) {
            head.set_since(since);
            head.set(Flag::Known, is_known);
        }
        self.set_count(member, count);
        if !tie.is_none() {
            self.change_extra(member, |extra| extra.bound_to = bound_to);
        }
        Some(crowd)
    }

    /// Ends all holds of a lock. A crowd is gone with them; the number of a record finds an empty lock.
    pub fn break_up(&mut self, id: LockId, now: Moment) -> Vec<Ended> {
        if !id.is_crowd() {
            return self.end(id, now).into_iter().collect();
        }
        // Also those whose holds have ended already: their records are the crowd's.
        let members: Vec<LockId> =
            self.crowds.get(id).into_iter().flat_map(|crowd| crowd.members()).collect();
        self.crowds.dissolve(id);
        let ended = members.iter().filter_map(|&member| {
            let ended = self.end(member, now);
            self.remove_free(member);
            ended
        });
        ended.collect()
    }

    /// Where the key of a lock is that somebody holds.
    #[must_use]
    pub fn first_place(&self, id: LockId) -> Option<crate::lock::types::PlaceBuf> {
        let (member, _) = self.newest_hold(id)?;
        self.get(member)?.place()
    }

    /// All holds of this owner, with their records and how they hold. Goes through all records.
    pub fn all_of_owner<'a>(
        &'a self,
        owner: &'a [u8],
    ) -> impl Iterator<Item = (Mode, super::Lock<'a>, Hold<'a>)> {
        let modes: hashbrown::HashMap<LockId, Mode> = self
            .crowds
            .all
            .iter()
            .flat_map(|(_, crowd)| crowd.members().map(|member| (member, crowd.mode)))
            .collect();
        self.iter().filter_map(move |(id, lock)| {
            let hold = lock.hold().filter(|hold| hold.is_of(owner))?;
            Some((modes.get(&id).copied().unwrap_or_default(), lock, hold))
        })
    }

    /// All locks in these databases that somebody holds.
    pub fn all_held(&self, is_concerned: impl Fn(u32) -> bool) -> Vec<LockId> {
        let is_concerned = |id: LockId| {
            let db = self.newest_hold(id).and_then(|(member, _)| self.get(member)?.db());
            db.is_some_and(&is_concerned)
        };
        let crowds: Vec<LockId> = self.crowds.all.iter().map(|(id, _)| LockId::of_crowd(id)).collect();
        let members: std::collections::HashSet<LockId> =
            crowds.iter().flat_map(|&crowd| self.holders(crowd).map(|(member, _)| member)).collect();
        let alone = self.iter().map(|(id, _)| id).filter(|id| !members.contains(id));
        alone.chain(crowds.iter().copied()).filter(|&id| is_concerned(id)).collect()
    }

    /// Another token for a hold.
    fn set_token(&mut self, id: LockId, token: Token) {
        if let Some(head) = self.head_mut(id) {
            head.set_token(token);
        }
    }

    /// The lease ends at this moment, to the microsecond.
    fn set_until(&mut self, id: LockId, now: Moment, until_us: u64) {
        if self.is_kept(id) {
            return;
        }
        self.leases.remove(&mut self.records, id.index());
        if let Some(head) = self.head_mut(id) {
            head.set_until_us(until_us);
        }
        self.leases.insert(&mut self.records, id.index(), tick(until_us), now.0 / 1_000);
    }

    /// How many releases a hold takes from now on.
    pub fn set_count(&mut self, id: LockId, count: u32) {
        if self.hold(id).is_some_and(|hold| hold.count() != count) {
            self.change_extra(id, |extra| extra.count = count);
        }
    }

    fn change_extra(&mut self, id: LockId, change: impl FnOnce(&mut Extra)) {
        if self.head(id).is_none() {
            return;
        }
        let has_extra = self.extras.change(id, change);
        if let Some(head) = self.head_mut(id) {
            head.set(Flag::Extra, has_extra);
        }
    }

    #[cold]
    pub(super) fn forget_extra(&mut self, id: LockId) {
        self.extras.remove(id);
        if let Some(head) = self.head_mut(id) {
            head.set(Flag::Extra, false);
        }
    }

    /// Whether there is more to a hold than its record says.
    #[inline(always)]
    #[must_use]
    pub fn has_extra(&self, id: LockId) -> bool {
        self.extras.len() > 0 && self.head(id).is_some_and(|(head, _)| head.has(Flag::Extra))
    }

    /// Whether the lease of this hold does not run.
    #[must_use]
    pub fn is_kept(&self, id: LockId) -> bool {
        self.hold(id).is_some_and(|hold| hold.tie().is_paused())
    }

    /// What a hold that begins has beside its record.
    #[inline]
    pub(super) fn tie_up(&mut self, id: LockId, hold: &NewHold<'_>) {
        if !hold.tie.is_none() {
            self.tie(id, hold.client, hold);
        }
    }

    #[cold]
    fn tie(&mut self, id: LockId, client: Option<ClientId>, hold: &NewHold<'_>) {
        self.change_extra(id, |extra| {
            (extra.tie, extra.lease_ms, extra.bound_to) = (hold.tie, hold.lease_ms, client);
        });
        if hold.tie.is_paused() {
            self.leases.remove(&mut self.records, id.index());
        }
    }

    /// Renews a hold that may be kept alive. `false`: its lease runs.
    #[cold]
    pub(super) fn extend_kept(&mut self, id: LockId, lease_ms: u64) -> bool {
        if !self.is_kept(id) {
            return false;
        }
        self.change_extra(id, |extra| extra.lease_ms = lease_ms);
        true
    }

    /// From now on a hold is tied like this, to this connection; to the same as before if none is named. Returns
    /// whether its lease stands still from here on, at what is left of it: readers have to be told how much that is.
    pub fn retie(&mut self, id: LockId, now: Moment, tie: Tie, client: Option<ClientId>) -> bool {
        let Some((was, left_ms)) = self.hold(id).map(|hold| (hold.tie(), hold.left_ms(now))) else {
            return false;
        };
        if was.is_none() && tie.is_none() {
            return false;
        }
        // Without a connection it goes on as it was.
        let is_running = tie.is_kept_alive && was.is_running && client.is_none();
        let tie = Tie { is_running, ..tie };
        self.change_extra(id, |extra| {
            (extra.tie, extra.bound_to) = (tie, client.or(extra.bound_to).filter(|_| !tie.is_none()));
            extra.lease_ms = if tie.is_paused() { left_ms } else { 0 };
        });
        if was.is_paused() != tie.is_paused() {
            self.leases.remove(&mut self.records, id.index());
            if !tie.is_paused() {
                self.set_until(id, now, now.plus_ms(left_ms).0);
            }
        }
        !was.is_paused() && tie.is_paused()
    }

    /// A hold of another server's goes on as that one tells: with this lease, tied like this to a connection there.
    pub fn go_on_as_told(&mut self, id: LockId, now: Moment, lease_ms: u64, tie: Tie) {
        self.leases.remove(&mut self.records, id.index());
        self.change_extra(id, |extra| (extra.tie, extra.lease_ms, extra.bound_to) = (tie, 0, None));
        self.extend(id, now, lease_ms);
    }

    /// A connection has closed: the leases of the holds that are tied to it run from here, and are cut where that was
    /// asked for. Returns those holds.
    pub fn unbind(&mut self, client: ClientId, now: Moment) -> Vec<LockId> {
        let bound: Vec<LockId> = self.extras.bound_to(client).collect();
        for &id in &bound {
            self.run_from(id, now, true);
        }
        bound
    }

    /// Whether a hold is kept alive by a connection of another life.
    #[must_use]
    pub const fn has_foreign(&self) -> bool {
        self.extras.has_foreign()
    }

    /// The holds that are kept alive by a connection of another life, in no order.
    pub fn foreign(&self) -> impl Iterator<Item = LockId> {
        let foreign = self.extras.foreign();
        foreign.filter_map(|index| Some(self.id(index, self.records.head(index)?.0.mark())))
    }

    /// No connection of another life keeps anything alive here: such leases run from here, at their full length.
    /// Returns those holds.
    pub fn unbind_foreign(&mut self, now: Moment) -> Vec<LockId> {
        let mut kept: Vec<LockId> = self.foreign().collect();
        // The order of a hash map is nobody's business.
        kept.sort_unstable();
        for &id in &kept {
            self.let_run(id, now);
        }
        kept
    }

    /// All connections are of another life from here on.
    pub fn forget_connections(&mut self) {
        for id in self.extras.all_bound() {
            self.change_extra(id, |extra| extra.bound_to = None);
        }
    }

    /// No connection keeps this hold alive: its lease runs from here, at its full length.
    pub fn let_run(&mut self, id: LockId, now: Moment) {
        self.run_from(id, now, false);
    }

    fn run_from(&mut self, id: LockId, now: Moment, is_cut: bool) {
        let Some((tie, left_ms)) = self.hold(id).map(|hold| (hold.tie(), hold.left_ms(now))) else {
            return;
        };
        self.change_extra(id, |extra| {
            (extra.bound_to, extra.lease_ms) = (None, 0);
            extra.tie.is_running = tie.is_kept_alive;
        });
        let cut_ms = tie.ephemeral_ms.filter(|&ms| is_cut && ms < left_ms);
        if tie.is_paused() || cut_ms.is_some() {
            self.leases.remove(&mut self.records, id.index());
            self.set_until(id, now, now.plus_ms(cut_ms.unwrap_or(left_ms)).0);
        }
    }

    /// Whether as many locks can be added as one step may want.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.records.0.has_room()
    }

    /// Whether any hold has a tie, whether its connection is open or not.
    #[must_use]
    pub const fn has_ties(&self) -> bool {
        self.extras.has_ties()
    }

    /// Tells what is wrong with crowds and extras, if anything is.
    pub(super) fn check_many(&self) -> Result<(), String> {
        let mut members = 0;
        for (id, crowd) in self.crowds.all.iter() {
            let mut last = None;
            for member in crowd.members() {
                let hold = self.hold(member).ok_or_else(|| format!("{member:?} is a member and not held"))?;
                let owner = hold.owner();
                let found = self.crowds.of_owner(LockId::of_crowd(id), &owner, |other| other == member);
                if Some(hold.token()) <= last || found != Some(member) {
                    return Err(format!("{member:?} is not in order, or not found by its owner"));
                }
                last = Some(hold.token());
                members += 1;
            }
            if crowd.len() == 0 || !crowd.knows_its_members_only() {
                return Err(format!("crowd {id:?} is empty, or knows who is no member: {crowd:?}"));
            }
        }
        let extras = self.iter().filter(|(_, lock)| lock.head.has(Flag::Extra)).count();
        if members != self.crowds.members || extras != self.extras.len() {
            return Err(format!(
                "{members} members, {extras} extras; {}, {}",
                self.crowds.members,
                self.extras.len()
            ));
        }
        Ok(())
    }
}
