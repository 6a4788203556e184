//! The kind of server, and its quirks.

use std::ffi::c_int;
use std::sync::OnceLock;

/// The kind of server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(super) is_valkey: bool,
    /// As the module API reports it, 0xMMmmpp; Valkey reports 7.2.4 for compatibility.
    pub(super) version: c_int,
    /// Valkey's own major version; 0 on Redis.
    pub(super) valkey_major: u32,
}

static KIND: OnceLock<Kind> = OnceLock::new();

/// Returns the kind of server, as determined at load.
pub(crate) fn kind() -> Kind {
    let unknown = Kind { is_valkey: false, version: 0, valkey_major: 0 };
    KIND.get().copied().unwrap_or(unknown)
}

/// Sets the kind of server. Called once, at load.
pub(super) fn note(kind: Kind) {
    let _ = KIND.set(kind);
}

impl Kind {
    pub(crate) const fn is_valkey(self) -> bool {
        self.is_valkey
    }

    /// Returns true if the module refuses to load on it, because the tests have no package of this version. Redis
    /// 7.2, and Valkey 7.2, which derives from it, abort when CLIENT UNBLOCK meets a client that was answered in the
    /// same turn of the event loop.
    pub(super) const fn is_excluded(self) -> bool {
        if self.is_valkey {
            self.valkey_major == 7
        } else {
            self.version >= 0x07_0200 && self.version < 0x08_0000
        }
    }

    /// Returns true if CLIENT UNBLOCK loses the reply of a client that was answered in the same turn of the event
    /// loop.
    pub(crate) const fn loses_answers(self) -> bool {
        !self.is_valkey && self.version < 0x07_0200
    }

    /// Returns true if CLUSTER SLOTS can be called outside of a command. Valkey 8 reads the address of the calling
    /// client, and crashes without one.
    pub(crate) const fn can_ask_for_slots(self) -> bool {
        !self.is_valkey || self.valkey_major >= 9
    }

    /// Returns true if it reports that a whole slot leaves, and must not be given a command without keys meanwhile.
    pub(crate) const fn announces_slots(self) -> bool {
        self.is_valkey && self.valkey_major >= 9
    }

    /// Returns true if a lookup by number also finds the client that runs a module's commands, as if it were a
    /// connection.
    pub(crate) const fn takes_callers_for_clients(self) -> bool {
        self.is_valkey && self.valkey_major >= 9
    }

    /// Returns true if a module can write nothing at the head of an RDB file.
    pub(crate) const fn has_optional_aux(self) -> bool {
        self.version >= 0x07_0200
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_between_those_that_are_tested_are_excluded() {
        let redis = |version| Kind { is_valkey: false, version, valkey_major: 0 };
        for (version, is_excluded) in [
            (0x07_000f, false),
            (0x07_0200, true),
            (0x07_020b, true),
            (0x07_0407, true),
            (0x08_0000, false),
            (0x08_0603, false),
            (0xff_ffff, false),
        ] {
            assert_eq!(redis(version).is_excluded(), is_excluded, "{version:#x}");
        }
        for (valkey_major, is_excluded) in [(7, true), (8, false), (9, false)] {
            // What every Valkey says.
            let valkey = Kind { is_valkey: true, version: 0x07_0204, valkey_major };
            assert_eq!(valkey.is_excluded(), is_excluded, "{valkey_major}");
        }
    }
}
