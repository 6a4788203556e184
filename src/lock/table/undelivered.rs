//! Facts about holds that were not delivered yet: see [`super::revoke`].

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::lock::effect::LockId;
use crate::lock::types::Token;

/// See the [module](self). Most grants are of one hold.
#[derive(Default)]
pub(super) struct Undelivered(pub(super) HashMap<Token, SmallVec<[Fate; 1]>>);

/// Facts about one undelivered hold.
#[derive(Debug)]
pub(super) struct Fate {
    /// Its record.
    pub(super) hold: LockId,
    /// The number of outstanding replies that name it.
    pub(super) outstanding: u32,
}

impl Undelivered {
    /// Notes that a hold has begun, which one reply will name.
    pub(super) fn begin(&mut self, token: Token, hold: LockId) {
        self.0.entry(token).or_default().push(Fate { hold, outstanding: 1 });
    }

    /// The facts about this hold, if it is undelivered.
    pub(super) fn of(&mut self, token: Token, hold: LockId) -> Option<&mut Fate> {
        // The usual case.
        if self.0.is_empty() {
            return None;
        }
        self.0.get_mut(&token)?.iter_mut().find(|fate| fate.hold == hold)
    }

    /// Forgets those holds of a grant of which this is true.
    pub(super) fn forget(&mut self, token: Token, is_gone: impl Fn(&Fate) -> bool) {
        if let Some(fates) = self.0.get_mut(&token) {
            fates.retain(|fate| !is_gone(fate));
            if fates.is_empty() {
                self.0.remove(&token);
            }
        }
    }
}
