//! The flags of a server, in plain values.

/// The flags of the server and of the running command.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    /// It follows a primary.
    pub is_replica: bool,
    /// A data set is being loaded.
    pub is_loading: bool,
    /// The running command is a fact from a primary or from a file.
    pub is_fact: bool,
    /// It is a node of a cluster.
    pub is_cluster: bool,
    /// It keeps an append-only file.
    pub has_aof: bool,
    /// The client of the running command must not be blocked.
    pub denies_blocking: bool,
    /// The running command is a script's.
    pub is_script: bool,
}

impl Flags {
    /// Returns true if grants and expiries are this server's to decide at all.
    #[inline(always)]
    #[must_use]
    pub const fn decides(self) -> bool {
        !self.is_replica && !self.is_loading
    }
}

/// The level of a line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// A fact that an operator may want to know.
    Notice,
    /// A fact that an operator has to know.
    Warning,
}
