//! Rules that can be left out, one at a time, to see that the tests notice. Never in a module that is shipped.
//!
//! `make sabotage` builds the module with the feature `sabotage` and loads it once for each of `RULES`, named in
//! `VARIABLE`. Then that one rule is not kept, and the checker of histories must say so. Without a name all are.
//!
//! The sources ask for no rule here: `scripts/sabotage` makes a copy of them, in which the patches of `tests/sabotage` do.
//! It is built with the feature, for which `build.rs` has to be told that it is meant. A test looks into the module that
//! is shipped for the names.
//!
//! The tests of the core and of the engine leave out rules too, each on its own thread. Random lives and the simulation
//! of groups of servers have to notice, and `make sabotage` begins with that.

/// A rule that can be left out.
#[cfg_attr(not(feature = "sabotage"), allow(dead_code, reason = "only a patched core leaves one out"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// Only its owner releases and renews a hold (G10).
    OwnerCheck,
    /// The request that comes last stands last (G5).
    Fifo,
    /// A lease does not end early (G2).
    Expiry,
    /// A lease does end (G3).
    ExpiryLate,
    /// A deleted key lets in the waiters (G6).
    WakeUp,
    /// A connection that closes ends what is bound to it.
    Disconnect,
    /// A token is higher than all before, whatever the wall clock says (G4).
    TokenOrder,
    /// Leases and waits run on the boot-time clock (G2).
    Clock,
    /// A semaphore has no more holders than its limit (G1).
    Limit,
    /// Nobody reads while somebody writes (G1).
    ReaderBesideWriter,
    /// A holder that asks again holds as before (G9).
    Retry,
    /// A wait that would never end is refused (G11).
    Deadlock,
    /// A token that is not live is fenced off.
    Fence,
    /// A wait lasts as long as it was to (G7).
    Patience,
    /// All who use a lock agree on its kind.
    Kind,
    /// A hold that was acquired twice takes two releases.
    Count,
    /// Replicas are told of a lease that has ended (G13).
    Replicas,
    /// A server that may have forgotten locks waits until they are over (CONTRACT 6).
    Quarantine,
    /// What has to be confirmed is told when it is (CONTRACT 6).
    Acknowledgement,
    /// A request that leaves a queue lets in those that it stood in the way of (G6).
    LeaverWakes,
    /// A request that fits beside all reservations comes in, however many they are (G6).
    BesideReservations,
    /// A key has the same time to live wherever it is (G13).
    TimeToLive,
    /// The end of a hold is published before the beginning of the next (G15).
    EventOrder,
    /// A hold that came by RESTORE and is broken is published, counted and logged (G15).
    RestoredBroken,
    /// A grant does not overwrite what a user wrote over a lock (CONTRACT 5).
    WrittenOver,
    /// A request that is refused leaves its owner's older one in the queue (G9).
    RefusedKeepsPlace,
    /// A replica that is listed twice, by its old connection too, is as good as new. Left out by tests of the core.
    ListedTwice,
    /// A replica that has left and come back is as good as new (G4). Left out by tests of the core.
    LeftReplica,
    /// A step that makes work for the pump asks for it (G6). Left out by tests of the engine, as are those that follow.
    PumpAsked,
    /// Nobody is answered twice (G7).
    AnsweredOnce,
    /// A client that was answered is forgotten (G7).
    Forgotten,
    /// A hold that nobody is told of is revoked (G8). Left out by tests of the core, as is the next one.
    Revoke,
    /// A hold is not revoked while a reply is outstanding that tells of it (G1).
    Outstanding,
    /// The server is asked for nothing while somebody is within what the engine keeps.
    AskedOutside,
    /// A client that waits at a server that is demoted, and is not told so at once, is told so later (G7).
    SentAwayLater,
}

#[cfg(feature = "sabotage")]
pub(crate) use chosen::begin;
#[cfg(all(feature = "sabotage", not(test)))]
pub(crate) use chosen::removes;
#[cfg(all(feature = "sabotage", test))]
pub(crate) use tried::removes;
#[cfg(test)]
pub(crate) use tried::without;

#[cfg(feature = "sabotage")]
mod chosen {
    use std::env;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Rule;

    /// Says which rule.
    const VARIABLE: &str = "REDISLOCK_SABOTAGE";

    /// All that [`VARIABLE`] knows, by its names: not those that only tests of the core leave out.
    const RULES: [(&str, Rule); 26] = [
        ("owner-check", Rule::OwnerCheck),
        ("fifo", Rule::Fifo),
        ("expiry", Rule::Expiry),
        ("expiry-late", Rule::ExpiryLate),
        ("wake-up", Rule::WakeUp),
        ("disconnect", Rule::Disconnect),
        ("token-order", Rule::TokenOrder),
        ("clock", Rule::Clock),
        ("limit", Rule::Limit),
        ("reader-beside-writer", Rule::ReaderBesideWriter),
        ("retry", Rule::Retry),
        ("deadlock", Rule::Deadlock),
        ("fence", Rule::Fence),
        ("patience", Rule::Patience),
        ("kind", Rule::Kind),
        ("count", Rule::Count),
        ("replicas", Rule::Replicas),
        ("quarantine", Rule::Quarantine),
        ("acknowledgement", Rule::Acknowledgement),
        ("leaver-wakes", Rule::LeaverWakes),
        ("beside-reservations", Rule::BesideReservations),
        ("time-to-live", Rule::TimeToLive),
        ("event-order", Rule::EventOrder),
        ("restored-broken", Rule::RestoredBroken),
        ("written-over", Rule::WrittenOver),
        ("refused-keeps-place", Rule::RefusedKeepsPlace),
    ];

    const NONE: usize = usize::MAX;
    static REMOVED: AtomicUsize = AtomicUsize::new(NONE);

    /// Whether this rule is left out.
    #[cfg(not(test))]
    pub(crate) fn removes(rule: Rule) -> bool {
        let removed = REMOVED.load(Ordering::Relaxed);
        RULES.get(removed).is_some_and(|&(_, removed)| removed == rule)
    }

    /// Leaves out what [`VARIABLE`] names. Once, at load.
    pub(crate) fn begin() -> Result<Option<Rule>, String> {
        let Ok(wanted) = env::var(VARIABLE) else {
            return Ok(None);
        };
        let Some(number) = RULES.iter().position(|&(name, _)| name == wanted) else {
            let names: Vec<&str> = RULES.iter().map(|&(name, _)| name).collect();
            return Err(format!("{VARIABLE} is '{wanted}', and not one of {}", names.join(", ")));
        };
        REMOVED.store(number, Ordering::Relaxed);
        Ok(Some(RULES[number].1))
    }
}

#[cfg(test)]
mod tried {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        static REMOVED: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Whether this rule is left out on this thread.
    #[cfg(feature = "sabotage")]
    pub(crate) fn removes(rule: Rule) -> bool {
        REMOVED.get() == Some(rule)
    }

    /// Does this, on this thread, while that rule is left out.
    pub(crate) fn without<R>(rule: Option<Rule>, what: impl FnOnce() -> R) -> R {
        let before = REMOVED.replace(rule);
        let done = what();
        REMOVED.set(before);
        done
    }
}

#[cfg(all(feature = "sabotage", test))]
mod tests {
    use super::{Rule, removes, without};

    #[test]
    fn nothing_is_left_out_unless_that_is_asked_for() {
        assert!(!removes(Rule::OwnerCheck));
        assert!(without(Some(Rule::OwnerCheck), || removes(Rule::OwnerCheck) && !removes(Rule::Fifo)));
        assert!(!removes(Rule::OwnerCheck));
    }
}
