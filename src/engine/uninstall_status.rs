//! The reasons why a file that is written now needs the module (`redislock.leaving`).

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Obstacle {
    /// The module is not being removed.
    #[default]
    NotLeaving,
    /// There are locks, or values of broken ones.
    Locks,
    /// The server writes the clock of tokens into each file until it is restarted.
    Restart,
    /// Readers of the stream still count, because the primary still grants locks.
    Primary,
    /// Nothing prevents the removal.
    Nothing,
}

impl Obstacle {
    /// Returns its word in INFO.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotLeaving => "no",
            Self::Locks => "locks-left",
            Self::Restart => "restart-needed",
            Self::Primary => "primary-stays",
            Self::Nothing => "done",
        }
    }

    /// Returns its sentence in the log.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::NotLeaving => "it is called off, locks are granted again",
            Self::Locks => "no lock is granted any more; files need the module for the locks that are left",
            Self::Restart => {
                "no lock is left, but this server writes the clock of tokens into each file until it is restarted \
                 with redislock.leaving yes"
            }
            Self::Primary => {
                "no lock is left here, but the primary of this replica still grants locks: set redislock.leaving to \
                 yes there"
            }
            Self::Nothing => "no lock is left: files that are written from now on load without the module",
        }
    }
}
