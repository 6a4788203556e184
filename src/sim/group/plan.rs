//! The promises and the possible events of a run: each by the row of docs/reference/failover-guarantees.md that it
//! represents.

use crate::lock::confirm::Rule;
use crate::lock::tests::random::Random;
use crate::sabotage::Rule as LeftOut;

/// The setting under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Promise {
    /// A quarantine, and an old primary that is dead or cut off when another is promoted.
    Local,
    /// Every replica has acknowledged the grant.
    All,
    /// Half of the group has acknowledged it, through connections that are old enough.
    Majority,
}

/// A plan in which a promise must be broken: two owners hold one lock, a token comes late, one is passed. The
/// simulation is worth only the faults that it can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(feature = "sabotage"),
    expect(dead_code, reason = "four need rules that only a patched core leaves out")
)]
pub(super) enum Control {
    NoQuarantine,
    TwoPrimaries,
    ShortQuarantine,
    AllWithoutQuarantine,
    OneOfTwo,
    NoAcknowledgement,
    OwnersComeBack,
    MovesInQuarantine,
    TokensLag,
    /// A core that grants the last request first.
    LastComesFirst,
    /// A core that grants no request past more than a few reservations.
    FewReservations,
    /// A core that does not see that a replica has disconnected, as long as its old connection is listed.
    ListedTwice,
    /// A core that keeps counting a replica that has disconnected.
    LeftReplica,
}

/// The controls that the settings alone make.
pub(super) const CONTROLS: [Control; 9] = [
    Control::NoQuarantine,
    Control::TwoPrimaries,
    Control::ShortQuarantine,
    Control::AllWithoutQuarantine,
    Control::OneOfTwo,
    Control::NoAcknowledgement,
    Control::OwnersComeBack,
    Control::MovesInQuarantine,
    Control::TokensLag,
];

/// The controls of a core that leaves out a rule.
#[cfg(feature = "sabotage")]
pub(super) const CONTROLS_LEFT_OUT: [Control; 4] =
    [Control::LastComesFirst, Control::FewReservations, Control::ListedTwice, Control::LeftReplica];

impl Control {
    /// The promise that must be seen to break.
    pub(super) const fn breaks(self) -> &'static str {
        match self {
            Self::TokensLag | Self::ListedTwice => ": G4: ",
            Self::LastComesFirst => ": G5: ",
            Self::FewReservations => ": G6: ",
            _ => ": G1: ",
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) promise: Promise,
    pub(super) quarantine_ms: u64,
    pub(super) lease_ms_max: u64,
    /// The time for which a replica's connection must last before it counts.
    pub(super) stable_ms: u64,
    /// The number of replicas that a majority needs.
    pub(super) acknowledgements: usize,
    pub(super) confirm_timeout_ms: u64,
    /// True if there is one primary at a time: see [`Promise::Local`].
    pub(super) has_one_primary: bool,
    /// True if owners repeat requests only for locks that they believe they hold.
    pub(super) is_careful: bool,
    /// True if servers restart without their data.
    pub(super) forgets: bool,
    /// True if servers restart with old data.
    pub(super) has_files: bool,
    /// True if they keep a log, too.
    pub(super) has_logs: bool,
    /// True if a user sets the wall clocks. Then tokens need not rise over lost grants.
    pub(super) sets_wall_clocks: bool,
    /// True if there is another shard, and slots move between the two.
    pub(super) has_moves: bool,
    /// True if a slot may leave a shard that may have lost some of its locks.
    pub(super) moves_in_quarantine: bool,
    /// True if tokens follow the wall clock as closely as servers of a cluster make them.
    pub(super) follows_closely: bool,
    /// The options that clients use in addition to locks and leases.
    pub(super) asks: Asks,
    pub(super) faults_per_mille: u64,
    pub(super) eager_percent: u64,
    /// True if replicas move from one primary to another and back while their old connections are not found to be
    /// dead, and neither of two primaries is demoted.
    pub(super) changes_sides: bool,
    /// True if a user switches `confirm` on and off again, where nothing depends on it.
    pub(super) switches_confirm: bool,
    /// A rule that the core leaves out.
    pub(super) without: Option<LeftOut>,
}

/// Kinds of requests that there are in some lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks {
    /// RENEW ... RAISE.
    pub(super) raises: bool,
    /// EPHEMERAL, and KEEPALIVE where it is possible.
    pub(super) bindings: bool,
    /// REENTRANT.
    pub(super) counts: bool,
    /// QUEUE.
    pub(super) reserves: bool,
    /// DEL, FLUSHALL: by a user that makes owners give up broken holds.
    pub(super) breaks: bool,
}

impl Plan {
    /// Returns the plan of this seed.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed.wrapping_add(0xface));
        let promise = random.of(&[Promise::Local, Promise::All, Promise::Majority]);
        let quarantine_ms = random.of(&[16, 20, 28]);
        let has_files = random.percent(60);
        // Another stream of numbers: additions here leave the rest of a run unchanged.
        let mut more = Random::new(seed.wrapping_add(0x5107));
        let has_moves = more.percent(40);
        // docs/reference/failover-guarantees.md: with `majority` it never matters which requests owners repeat. With
        // `all` it matters only if a server may be the primary with an old file.
        let may_be_careless = match promise {
            Promise::Local => false,
            // A lock that arrives with its slot has no replicas to confirm it.
            Promise::All => !has_files && !has_moves,
            Promise::Majority => true,
        };
        Self {
            promise,
            quarantine_ms,
            lease_ms_max: quarantine_ms,
            stable_ms: quarantine_ms,
            acknowledgements: 1,
            confirm_timeout_ms: random.of(&[3, 8, 20]),
            has_one_primary: promise == Promise::Local,
            is_careful: !may_be_careless || random.percent(30),
            forgets: random.percent(60),
            has_files,
            has_logs: has_files && random.percent(50),
            // In a cluster, tokens rely on the clocks.
            sets_wall_clocks: random.percent(30) && !has_moves,
            has_moves,
            moves_in_quarantine: false,
            follows_closely: has_moves,
            asks: Asks {
                raises: more.percent(50),
                bindings: more.percent(50),
                counts: more.percent(50),
                reserves: more.percent(50),
                breaks: more.percent(50),
            },
            faults_per_mille: random.of(&[2, 10, 20, 40, 60]),
            eager_percent: random.of(&[5, 30, 60, 90]),
            changes_sides: promise != Promise::Local && more.percent(30),
            switches_confirm: promise == Promise::Local && Random::new(seed.wrapping_add(0xc0f1)).percent(50),
            without: None,
        }
    }

    /// Returns the plan of a life that is broken on purpose.
    pub(super) fn of_control(control: Control, seed: u64) -> Self {
        let plan = Self {
            faults_per_mille: 50,
            sets_wall_clocks: false,
            has_files: false,
            has_logs: false,
            switches_confirm: false,
            ..Self::of(seed)
        };
        let local = Self { promise: Promise::Local, has_one_primary: true, is_careful: true, ..plan.clone() };
        let majority = Self { promise: Promise::Majority, has_one_primary: false, ..plan.clone() };
        match control {
            Control::NoQuarantine => Self { quarantine_ms: 0, ..local },
            Control::TwoPrimaries => Self { has_one_primary: false, ..local },
            Control::ShortQuarantine => Self { quarantine_ms: 2, ..local },
            Control::AllWithoutQuarantine => Self {
                promise: Promise::All,
                has_one_primary: false,
                quarantine_ms: 0,
                lease_ms_max: 200,
                forgets: true,
                ..plan
            },
            Control::OneOfTwo => Self { stable_ms: 0, ..majority },
            Control::NoAcknowledgement => Self { acknowledgements: 0, stable_ms: 0, ..majority },
            Control::OwnersComeBack => {
                // Leases outlive the failover, and replicas lag.
                let (quarantine_ms, lease_ms_max, eager_percent) = (100, 100, 0);
                Self { is_careful: false, forgets: true, quarantine_ms, lease_ms_max, eager_percent, ..local }
            }
            Control::MovesInQuarantine => {
                let (quarantine_ms, lease_ms_max) = (100, 100);
                let local =
                    Self { quarantine_ms, lease_ms_max, stable_ms: quarantine_ms, forgets: true, ..local };
                Self { has_moves: true, moves_in_quarantine: true, follows_closely: true, ..local }
            }
            Control::TokensLag => Self { has_moves: true, follows_closely: false, ..local },
            Control::LastComesFirst => Self { without: Some(LeftOut::Fifo), ..local },
            Control::FewReservations => Self { without: Some(LeftOut::BesideReservations), ..local },
            Control::ListedTwice | Control::LeftReplica => {
                let is_left = control == Control::LeftReplica;
                let without = Some(if is_left { LeftOut::LeftReplica } else { LeftOut::ListedTwice });
                Self { without, changes_sides: true, forgets: true, ..majority }
            }
        }
    }

    /// Returns the setting `confirm`, by the position of its word.
    pub(super) const fn confirm_setting(&self) -> u8 {
        match self.promise {
            Promise::Local => 0,
            Promise::All => 1,
            Promise::Majority => 2,
        }
    }

    /// Returns the setting `quarantine`, which allows no longer lease.
    pub(super) fn quarantine_setting_ms(&self) -> u64 {
        if self.quarantine_ms == 0 { 0 } else { self.quarantine_ms.max(self.lease_ms_max) }
    }

    /// Returns true if the confirmation rule is one that settings cannot express.
    pub(super) const fn is_bent(&self) -> bool {
        self.acknowledgements != 1 || self.stable_ms != self.quarantine_ms
    }

    /// Returns the confirmation rule of a server of the group, if there is one.
    pub(super) const fn rule(&self) -> Option<Rule> {
        match self.promise {
            Promise::Local => None,
            Promise::All => Some(Rule::All { replicas: super::GROUP - 1 }),
            Promise::Majority => {
                Some(Rule::Majority { replicas: self.acknowledgements, stable_ms: self.stable_ms })
            }
        }
    }

    /// Returns the confirmation rule of this server, if there is one: the other shard has no replicas.
    pub(super) const fn rule_of(&self, n: usize) -> Option<Rule> {
        match self.rule() {
            Some(Rule::All { .. }) if n == super::OTHER => Some(Rule::All { replicas: 0 }),
            Some(Rule::Majority { stable_ms, .. }) if n == super::OTHER => {
                Some(Rule::Majority { replicas: 0, stable_ms })
            }
            rule => rule,
        }
    }

    /// Returns true if grants may have to be confirmed at some time of the run.
    pub(super) const fn may_confirm(&self) -> bool {
        self.rule().is_some() || self.switches_confirm
    }

    /// Returns the chance that a primary finds dead connections when it could.
    pub(super) const fn finds_dead_percent(&self) -> u64 {
        if self.changes_sides { 5 } else { 50 }
    }

    /// Returns the chance that the older of two primaries is demoted when it could be.
    pub(super) const fn gives_in_percent(&self) -> u64 {
        if self.changes_sides { 4 } else { 25 }
    }

    /// Returns the number of servers.
    pub(super) const fn nodes(&self) -> usize {
        if self.has_moves { super::NODES } else { super::GROUP }
    }
}
