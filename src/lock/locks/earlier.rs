//! What a hold was before its owner was granted more out of a queue.
//!
//! A grant is taken back if its owner is not told of it (G8). Then the owner holds again what it held, under the
//! token that it knows. What that was is kept with the hold, until the hold ends or its owner shows that it knows of it.

use crate::lock::types::{Binding, ClientId, Mode, Moment, Token};

/// How many grants of one hold can be taken back, each of which the owner was granted before it was told of the one
/// before. Of more, the first ones are taken for told.
const GRANTS_MAX: usize = 4;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Its token.
    pub token: Token,
    /// The token that the grant brought.
    pub(super) granted: Token,
    /// How the lock was held.
    pub mode: Mode,
    /// The grant takes one release more.
    pub counts: bool,
    /// Its owner knew of it by another answer than the one to its wait.
    pub(super) is_acknowledged: bool,
    /// The end of its lease, if that ran.
    pub(super) until_us: u64,
    pub(super) client: Option<ClientId>,
    pub(super) binding: Binding,
    /// The full lease, if it did not run.
    pub(super) lease_ms: u64,
    /// The connection that it was bound to, while that is open.
    pub(super) bound_to: Option<ClientId>,
    /// What the hold was before that.
    pub(super) earlier: Option<Box<Self>>,
}

impl Earlier {
    /// Whether its lease is over by now.
    #[must_use]
    pub const fn is_over(&self, now: Moment) -> bool {
        !self.binding.is_paused() && self.until_us <= now.0
    }

    /// Returns how it is bound, to which connection, and its full lease, if the lease stands still because of that.
    pub(super) fn standing_still(&self) -> Option<(Binding, ClientId, u64)> {
        self.bound_to.filter(|_| self.binding.is_paused()).map(|client| (self.binding, client, self.lease_ms))
    }

    /// Unbinds what was bound to this connection, which closed at this moment: see `Locks::unbind`. What was before that
    /// goes first.
    pub(super) fn unbind_from(&mut self, client: ClientId, closed_at: Moment) {
        if let Some(earlier) = &mut self.earlier {
            earlier.unbind_from(client, closed_at);
        }
        if self.bound_to != Some(client) {
            return;
        }
        match self.earlier.as_ref().and_then(|earlier| earlier.standing_still()) {
            Some((binding, client, lease_ms)) => {
                (self.binding, self.bound_to, self.lease_ms) = (binding, Some(client), lease_ms);
            }
            None => self.unbind(closed_at),
        }
    }

    /// Lets it run from this moment, at which its connection closed.
    fn unbind(&mut self, closed_at: Moment) {
        let (is_paused, until) = (self.binding.is_paused(), Moment(self.until_us));
        let left_ms = if is_paused { self.lease_ms } else { closed_at.ms_until(until) };
        let cut_ms = self.binding.ephemeral_ms.filter(|&ms| ms < left_ms);
        if is_paused || cut_ms.is_some() {
            self.until_us = closed_at.plus_ms(cut_ms.unwrap_or(left_ms)).0;
        }
        (self.bound_to, self.lease_ms) = (None, 0);
        self.binding.is_running = self.binding.is_keepalive;
    }

    /// Forgets the grants that are too many.
    pub(super) fn cap(&mut self) {
        let mut last = self;
        for _ in 1..GRANTS_MAX {
            match &mut last.earlier {
                Some(earlier) => last = earlier,
                None => return,
            }
        }
        if last.earlier.is_some() {
            last.note_told();
        }
    }

    /// The owner was told of the grant that had brought this.
    pub(super) fn note_told(&mut self) {
        (self.is_acknowledged, self.earlier) = (true, None);
    }
}

/// Takes out what the grant of this token brought. Returns whether a hold that has gone on since counts once less.
pub(super) fn forget_grant(link: &mut Option<Box<Earlier>>, token: Token) -> bool {
    let Some(earlier) = link else {
        return false;
    };
    if earlier.token != token || earlier.is_acknowledged {
        return forget_grant(&mut earlier.earlier, token);
    }
    let Some(gone) = link.take() else {
        return false;
    };
    let Earlier { granted, counts: later_counts, earlier, .. } = *gone;
    let counts = earlier.as_ref().is_none_or(|earlier| earlier.counts);
    // The later grant relies on the count, unless it has one of its own.
    *link = earlier.map(|mut earlier| {
        earlier.granted = granted;
        earlier.counts |= later_counts;
        earlier
    });
    counts && later_counts
}
