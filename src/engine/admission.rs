//! Decides whether a waiting client may be granted a lock now.
//!
//! A grant from the queue bypasses the server's own checks of a command, so they are made here (CONTRACT 4). They
//! cover the user's rights, whether the server refuses writes, and whether the settings still allow the request.

use super::confirm;
use super::server::Server;
use crate::command::error::{LONGER_THAN_QUARANTINE, MAY_EVICT};
use crate::lock::table::{Candidate, Decision, NO_PERMISSION, NO_PERMISSION_FOR_SEVERAL};

/// The checks of one step or of one run of the pump.
pub struct Admission<'a, S: Server> {
    server: &'a S,
    /// True if the server refuses writes. Asked once, when first needed.
    refuses_writes: Option<bool>,
    /// True if no grant could be confirmed. Determined in advance, because a step cannot look at the replicas.
    cannot_confirm: bool,
    /// The number of grants checked.
    asked: usize,
}

impl<'a, S: Server> Admission<'a, S> {
    /// For a write command: the server accepted it, so it does not refuse writes.
    #[inline]
    pub fn of_command(server: &'a S) -> Self {
        Self { server, refuses_writes: Some(false), cannot_confirm: confirm::is_impossible(server), asked: 0 }
    }

    /// For a run of the pump.
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

    /// Returns the number of grants checked.
    pub const fn asked(&self) -> usize {
        self.asked
    }

    /// Checks one grant.
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

    /// Returns why a waiter queued under older settings is now refused.
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
