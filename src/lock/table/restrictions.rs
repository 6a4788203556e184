//! Restrictions on grants: a quarantine, replicas that must confirm, an unload of the module.

use super::requests::Ask;
use crate::lock::types::Moment;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Restrictions {
    quarantine: Option<Quarantine>,
    confirms: bool,
    /// The time from which the connected replicas can confirm grants. A quarantine lasts at least until then.
    confirmable_from: Moment,
    is_leaving: bool,
    /// True if any restriction is on. Acquire and release then take no shortcut.
    are_on: bool,
}

/// The period in which a server that may have lost locks grants none.
#[derive(Clone, Copy, Debug)]
struct Quarantine {
    since: Moment,
    length_ms: u64,
}

impl Quarantine {
    const fn until(self) -> Moment {
        self.since.plus_ms(self.length_ms)
    }
}

impl Restrictions {
    /// Returns true if any restriction is on.
    #[inline(always)]
    pub(super) const fn are_on(&self) -> bool {
        self.are_on
    }

    /// Returns true if replicas must confirm grants and renewals, so that the replies to them come later.
    pub(super) const fn confirms(&self) -> bool {
        self.confirms
    }

    /// Returns true if no hold begins because the module is being unloaded.
    pub(super) const fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Returns true if requests stay in the queue, whatever is free.
    pub(super) const fn is_closed(&self) -> bool {
        self.quarantine.is_some() || self.is_leaving
    }

    /// Returns true if the request must fail because no grant can be confirmed now.
    ///
    /// During a quarantine, a client that holds nothing waits, or gets a reply that names the time left. A client
    /// that asks again for its hold is refused. The server may know of a hold that its primary revoked without ever
    /// delivering it. Extending such a hold could let it outlast the quarantine, and deliver an old token after a
    /// newer one (G4).
    pub(super) const fn refuses_unconfirmed(&self, ask: &Ask<'_>, is_held_by_it: bool) -> bool {
        ask.cannot_confirm && (is_held_by_it || self.quarantine.is_none())
    }

    /// Starts a quarantine.
    pub(super) const fn begin_quarantine(&mut self, now: Moment, length_ms: u64) {
        self.quarantine = Some(Quarantine { since: now, length_ms });
        self.note_change();
    }

    /// Changes the length of the quarantine, if there is one.
    pub(super) const fn set_quarantine(&mut self, length_ms: u64) {
        if let Some(quarantine) = &mut self.quarantine {
            quarantine.length_ms = length_ms;
        }
    }

    /// The end of the quarantine.
    pub(super) fn quarantine_until(&self) -> Option<Moment> {
        self.quarantine.map(|quarantine| quarantine.until().max(self.confirmable_from))
    }

    /// Ends the quarantine once its time is up. Returns true if it has just ended.
    pub(super) fn end_quarantine(&mut self, now: Moment) -> bool {
        let is_over = self.quarantine_until().is_some_and(|until| until <= now);
        if is_over {
            self.quarantine = None;
            self.note_change();
        }
        is_over
    }

    /// Sets whether the module is being unloaded, and returns the previous value.
    pub(super) const fn set_leaving(&mut self, is_leaving: bool) -> bool {
        let was_leaving = std::mem::replace(&mut self.is_leaving, is_leaving);
        self.note_change();
        was_leaving
    }

    /// Sets whether replicas must confirm.
    pub(super) const fn set_confirms(&mut self, confirms: bool) {
        self.confirms = confirms;
        self.note_change();
    }

    /// Sets the time from which the connected replicas can confirm grants.
    pub(super) const fn set_confirmable_from(&mut self, at: Moment) {
        self.confirmable_from = at;
    }

    const fn note_change(&mut self) {
        self.are_on = self.is_closed() || self.confirms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::legacy::ask;
    use crate::lock::types::Mode;

    #[test]
    fn a_quarantine_is_on_until_its_time_is_up() {
        let mut restrictions = Restrictions::default();
        assert!(!restrictions.end_quarantine(Moment(u64::MAX)) && !restrictions.are_on());
        restrictions.set_quarantine(5);
        assert!(restrictions.quarantine_until().is_none(), "a length alone starts none");
        restrictions.begin_quarantine(Moment(1_000), 3);
        assert!(restrictions.are_on() && restrictions.is_closed() && !restrictions.is_leaving());
        restrictions.set_quarantine(2);
        assert_eq!(restrictions.quarantine_until(), Some(Moment(3_000)));
        assert!(!restrictions.end_quarantine(Moment(2_999)) && restrictions.is_closed());
        assert!(restrictions.end_quarantine(Moment(3_000)) && !restrictions.end_quarantine(Moment(3_000)));
        assert!(!restrictions.are_on() && !restrictions.is_closed());
    }

    #[test]
    fn the_shortcuts_are_closed_while_any_restriction_is_on() {
        let mut restrictions = Restrictions::default();
        restrictions.set_confirms(true);
        assert!(restrictions.are_on() && restrictions.confirms() && !restrictions.is_closed());
        assert!(!restrictions.set_leaving(true) && restrictions.is_closed());
        restrictions.set_confirms(false);
        assert!(restrictions.are_on() && restrictions.is_leaving());
        assert!(restrictions.set_leaving(false) && !restrictions.are_on());
    }

    #[test]
    fn a_request_that_cannot_be_confirmed_waits_for_the_end_of_a_quarantine() {
        let mut restrictions = Restrictions::default();
        let asked = |cannot_confirm| Ask { cannot_confirm, ..ask(b"ann", Mode::Exclusive, None) };
        let refused = |restrictions: &Restrictions| {
            [(false, true), (true, false), (true, true)]
                .map(|(cannot, is_held)| restrictions.refuses_unconfirmed(&asked(cannot), is_held))
        };
        assert_eq!(refused(&restrictions), [false, true, true]);
        restrictions.begin_quarantine(Moment(0), 9);
        assert_eq!(refused(&restrictions), [false, false, true]);
    }
}
