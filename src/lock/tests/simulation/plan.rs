//! What is promised in a life, and what can happen in it: each by the row of docs/GUARANTEES.md that it stands for.

use super::super::random::Random;
use crate::lock::confirm::Rule;

/// Which setting is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Promise {
    /// A quarantine, and the old primary dead or cut off when another is promoted.
    Local,
    /// Every replica has it.
    All,
    /// Half of the group has it, by connections that are old enough.
    Majority,
}

/// A plan in which two owners must come to hold one lock: that the simulation can see it is what it is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Control {
    NoQuarantine,
    TwoPrimaries,
    ShortQuarantine,
    AllWithoutQuarantine,
    OneOfTwo,
    NoAcknowledgement,
}

/// All controls.
pub(super) const CONTROLS: [Control; 6] = [
    Control::NoQuarantine,
    Control::TwoPrimaries,
    Control::ShortQuarantine,
    Control::AllWithoutQuarantine,
    Control::OneOfTwo,
    Control::NoAcknowledgement,
];

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) promise: Promise,
    pub(super) quarantine_ms: u64,
    pub(super) lease_ms_max: u64,
    /// What a replica's connection has to last before it counts.
    pub(super) seasoned_ms: u64,
    /// How many replicas a majority needs.
    pub(super) acknowledgements: usize,
    pub(super) confirm_timeout_ms: u64,
    /// One primary at a time: see [`Promise::Local`].
    pub(super) has_one_primary: bool,
    /// Owners come back only for what they believe to hold.
    pub(super) is_careful: bool,
    /// Servers come back without what they had.
    pub(super) forgets: bool,
    /// Servers come back with what they had once.
    pub(super) has_files: bool,
    /// They keep a log, too.
    pub(super) has_logs: bool,
    /// Somebody sets the wall clocks. Then tokens need not rise over lost grants.
    pub(super) sets_wall_clocks: bool,
    pub(super) faults_per_mille: u64,
    pub(super) eager_percent: u64,
}

impl Plan {
    /// What this seed is about.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed.wrapping_add(0xface));
        let promise = random.of(&[Promise::Local, Promise::All, Promise::Majority]);
        let quarantine_ms = random.of(&[16, 20, 28]);
        let has_files = random.percent(60);
        // docs/GUARANTEES.md: with `majority` it never matters what owners come back for, with `all` only if a server
        // may be the primary with an old file.
        let may_be_careless = match promise {
            Promise::Local => false,
            Promise::All => !has_files,
            Promise::Majority => true,
        };
        Self {
            promise,
            quarantine_ms,
            lease_ms_max: quarantine_ms,
            seasoned_ms: quarantine_ms,
            acknowledgements: 1,
            confirm_timeout_ms: random.of(&[3, 8, 20]),
            has_one_primary: promise == Promise::Local,
            is_careful: !may_be_careless || random.percent(30),
            forgets: random.percent(60),
            has_files,
            has_logs: has_files && random.percent(50),
            sets_wall_clocks: random.percent(30),
            faults_per_mille: random.of(&[2, 10, 20, 40, 60]),
            eager_percent: random.of(&[5, 30, 60, 90]),
        }
    }

    /// The same, broken on purpose.
    pub(super) fn of_control(control: Control, seed: u64) -> Self {
        let plan = Self {
            faults_per_mille: 50,
            sets_wall_clocks: false,
            has_files: false,
            has_logs: false,
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
            Control::OneOfTwo => Self { seasoned_ms: 0, ..majority },
            Control::NoAcknowledgement => Self { acknowledgements: 0, seasoned_ms: 0, ..majority },
        }
    }

    /// What has to be confirmed, if anything has.
    pub(super) const fn rule(&self) -> Option<Rule> {
        match self.promise {
            Promise::Local => None,
            Promise::All => Some(Rule::All { replicas: super::NODES - 1 }),
            Promise::Majority => {
                Some(Rule::Majority { replicas: self.acknowledgements, seasoned_ms: self.seasoned_ms })
            }
        }
    }
}
