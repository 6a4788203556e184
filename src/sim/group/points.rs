//! Cases that must have happened in many runs, or they prove nothing.

/// The points, and their names.
macro_rules! points {
    ($($name:ident)*) => {
        /// Something that can happen.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Point {
            $($name),*
        }

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

points! {
    GrantedAtOnce GrantedOutOfQueue GrantedSeveral GrantedAgain Shared Permits Confirmed Unconfirmed Undone
    ConfirmedLater ConfirmSwitchedOn ConfirmSwitchedOff ConfirmSwitchedOffBefore
    Renewed RenewalUnconfirmed Released Expired TimedOut Replaced Quarantined KnownInQuarantine
    UnconfirmableInQuarantine
    ReplyLost AskedElsewhere TakenBack CameBackLate Killed RestartedEmpty RestartedFromSnapshot
    RestartedFromLog LogLacksItsEnd RestartedAsPrimary Promoted PromotedTheWrongOne PromotedWhileSynchronising
    TwoPrimaries Demoted DemotedWithWaiters SentAwayLater PromotedWithWaiters Frozen CutOff LinkBroken ContinuedStream ContinuedWithHeir
    Synchronised LateAcknowledgement ConnectedTwice WallClockSet MachineRestarted ComparedReplica
    MoveBegun Moved MovedHeld MovedWaitedFor SentOn GrantedWhileMoving StrangerDeleted Deleted Flushed
    BrokenBeforeWaiters MadeMortal Raised KeptAlive Ephemeral Retold CountedAgain CountedDown HeldTooManyTimes HeldOtherwise PlaceKept
    PlaceGranted KeptItsTurn PassedPlace WaitedForGood ChangedSides ListedTwice GivenUpSynchronisation StoryTold
}

/// The number of times that each case has happened.
#[derive(Clone)]
pub(super) struct Seen([u64; NAMES.len()]);

impl Default for Seen {
    fn default() -> Self {
        Self([0; NAMES.len()])
    }
}

impl Seen {
    pub(super) const fn see(&mut self, point: Point) {
        self.0[point as usize] += 1;
    }

    /// Adds the cases of another run.
    pub(super) fn add(&mut self, other: &Self) {
        for (count, other) in self.0.iter_mut().zip(other.0) {
            *count += other;
        }
    }

    /// Returns the cases that never happened.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        NAMES.iter().zip(self.0).filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect()
    }

    /// Returns a table with a line for each.
    pub(super) fn table(&self) -> String {
        NAMES.iter().zip(self.0).map(|(name, count)| format!("{count:>12}  {name}\n")).collect()
    }
}
