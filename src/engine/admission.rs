//! Whether a client that waits may be granted a lock now.
//!
//! A grant out of the queue passes none of the server's own checks for commands, so they are made here (CONTRACT 4).
//! They ask for the user's rights, whether the server refuses writes, and whether the settings still allow the
//! request.

use super::confirm;
use super::server::Server;
use crate::command::error::{LONGER_THAN_QUARANTINE, MAY_EVICT};
use crate::lock::table::{Candidate, Decision, NO_PERMISSION, NO_PERMISSION_FOR_SEVERAL};

/// The checks of one step or of one run of the pump.
pub struct Admission<'a, S: Server> {
    server: &'a S,
    /// True if the server refuses writes; asked once, when it first matters.
    refuses_writes: Option<bool>,
    /// True if no grant could be confirmed. Known beforehand: within a step nobody can look at the replicas.
    cannot_confirm: bool,
    /// The number of grants that were asked about.
    asked: usize,
}

impl<'a, S: Server> Admission<'a, S> {
    /// Within a write command: the server has let it pass, so it does not refuse writes.
    #[inline]
    pub fn of_command(server: &'a S) -> Self {
        Self { server, refuses_writes: Some(false), cannot_confirm: confirm::is_impossible(server), asked: 0 }
    }

    /// Outside of commands.
    pub fn of_pump(server: &'a S) -> Self {
        Self { server, refuses_writes: None, cannot_confirm: confirm::is_impossible(server), asked: 0 }
    }

    /// Returns true if nothing can be granted now.
    pub fn is_closed(&mut self) -> bool {
        self.cannot_confirm || self.refuses_writes()
    }

    /// Returns true if nothing can be written now.
    pub fn refuses_writes(&mut self) -> bool {
        let server = self.server;
        *self.refuses_writes.get_or_insert_with(|| server.refuses_writes())
    }

    /// The number of grants that were asked about so far.
    pub const fn asked(&self) -> usize {
        self.asked
    }

    /// Asks about one grant.
    pub fn admit(&mut self, who: Candidate<'_>) -> Decision {
        self.asked += 1;
        if self.is_closed() {
            return Decision::NotNow;
        }
        if let Some(reason) = self.policy_violation(who) {
            return Decision::Refused(reason);
        }
        match (self.server.may_acquire(who), who.several.is_some()) {
            (true, _) => Decision::Granted,
            (false, true) => Decision::Refused(NO_PERMISSION_FOR_SEVERAL),
            (false, false) => Decision::Refused(NO_PERMISSION),
        }
    }

    /// Why nothing of the kind is granted any more: it was asked for before the settings were what they are.
    fn policy_violation(
        &self,
        Candidate { lease_ms, is_keepalive, is_reentrant, .. }: Candidate<'_>,
    ) -> Option<&'static str> {
        if self.server.shared().grants_none_for_eviction() {
            return Some(MAY_EVICT);
        }
        let quarantine_ms = self.server.shared().settings.quarantine_ms();
        if quarantine_ms > 0 && lease_ms > quarantine_ms {
            return Some(LONGER_THAN_QUARANTINE);
        }
        confirm::refusal_of_options(self.server, is_keepalive, is_reentrant)
    }
}
