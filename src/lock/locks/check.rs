//! Checks that all data about locks is consistent, for the tests.

use std::collections::BTreeSet;

use super::id::LockId;
use super::name_codec::NO_PREFIX;
use super::record::{Flag, SPILLED};
use super::store::Locks;

impl Locks {
    /// Returns the fault of the set, if there is one.
    pub fn check(&self) -> Result<(), String> {
        let mut on_wheel = BTreeSet::new();
        self.leases.for_each(&self.records, |index| _ = on_wheel.insert(index));
        let postponed: BTreeSet<LockId> = self.postponed.iter().map(|entry| entry.1).collect();
        let (mut holds, mut packed, mut spilled) = (0, 0_usize, 0);
        for (id, lock) in self.iter() {
            let is_on_wheel = on_wheel.contains(&id.index());
            if lock.hold().is_some() {
                holds += 1;
                if is_on_wheel == postponed.contains(&id) && !is_on_wheel && !self.is_paused(id) {
                    return Err(format!("{id:?} has no end"));
                }
            } else if is_on_wheel {
                return Err(format!("{id:?} is not held and has an end"));
            }
            packed += usize::from(lock.head.prefix != NO_PREFIX);
            spilled += usize::from(lock.head.shape == SPILLED);
            lock.lock_key().ok_or_else(|| format!("{id:?} has no name"))?;
        }
        let uses: usize = self.prefixes.uses().map(|uses| uses as usize).sum();
        if (holds, packed, spilled) != (self.holds, uses, self.spilled.len()) {
            return Err(format!(
                "{holds} holds, {packed} packed and {spilled} spilled names, but {}, {uses} and {} are counted",
                self.holds,
                self.spilled.len()
            ));
        }
        self.check_many()
    }

    /// Returns the fault of lists of holders and extensions, if there is one.
    pub(super) fn check_many(&self) -> Result<(), String> {
        let mut ids = 0;
        for (id, holders) in self.holder_lists.all.iter() {
            let mut last = None;
            for holder in holders.ids() {
                let hold = self.hold(holder).ok_or_else(|| format!("{holder:?} is a member and not held"))?;
                let owner = hold.owner();
                let found = self.holder_lists.of_owner(LockId::of_list(id), &owner, |other| other == holder);
                if Some(hold.token()) <= last || found != Some(holder) {
                    return Err(format!("{holder:?} is not in order, or not found by its owner"));
                }
                last = Some(hold.token());
                ids += 1;
            }
            if holders.len() == 0 || !holders.knows_its_holders_only() {
                return Err(format!("crowd {id:?} is empty, or knows one that is no member: {holders:?}"));
            }
        }
        let hold_exts = self.iter().filter(|(_, lock)| lock.head.has(Flag::HoldExt)).count();
        if ids + self.detached().count() != self.holder_lists.listed || hold_exts != self.hold_exts.len() {
            return Err(format!(
                "{ids} members, {hold_exts} extras; {}, {}",
                self.holder_lists.listed,
                self.hold_exts.len()
            ));
        }
        Ok(())
    }
}
