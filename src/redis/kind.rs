//! The kind of server, and its abilities.

use std::ffi::c_int;
use std::sync::OnceLock;

/// The kind of server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(super) is_valkey: bool,
    /// As the module API tells it, 0xMMmmpp; Valkey says 7.2.4 for compatibility.
    pub(super) version: c_int,
    /// Valkey's own major version; 0 on Redis.
    pub(super) valkey_major: u32,
}

static KIND: OnceLock<Kind> = OnceLock::new();

/// Returns the kind of server, as found at load.
pub(crate) fn kind() -> Kind {
    let unknown = Kind { is_valkey: false, version: 0, valkey_major: 0 };
    KIND.get().copied().unwrap_or(unknown)
}

/// Notes which server it is. Called once, at load.
pub(super) fn note(kind: Kind) {
    let _ = KIND.set(kind);
}

impl Kind {
    pub(crate) const fn is_valkey(self) -> bool {
        self.is_valkey
    }

    /// Returns whether CLIENT UNBLOCK may end a wait. On Redis 7.2 it would abort the server when it meets a client
    /// that was answered in the same turn of the event loop.
    pub(crate) const fn can_unblock(self) -> bool {
        self.is_valkey || self.version < 0x07_0200 || self.version >= 0x07_0400
    }

    /// Returns whether CLIENT UNBLOCK loses the reply of a client that was answered in the same turn of the event
    /// loop.
    pub(crate) const fn loses_answers(self) -> bool {
        !self.is_valkey && self.version < 0x07_0200
    }

    /// Returns whether CLUSTER SLOTS can be asked outside of a command. Valkey 8 looks at the address of the client
    /// that asks, and crashes where there is none.
    pub(crate) const fn can_ask_for_slots(self) -> bool {
        !self.is_valkey || self.valkey_major >= 9
    }

    /// Returns whether it announces that a whole slot leaves, and must not be given a command without keys meanwhile.
    pub(crate) const fn announces_slots(self) -> bool {
        self.is_valkey && self.valkey_major >= 9
    }

    /// Returns whether a lookup by number also finds the client that runs a module's commands, as if it were a
    /// connection.
    pub(crate) const fn takes_callers_for_clients(self) -> bool {
        self.is_valkey && self.valkey_major >= 9
    }

    /// Returns whether a module can write "nothing" at the head of an RDB file.
    pub(crate) const fn has_optional_aux(self) -> bool {
        self.version >= 0x07_0200
    }
}
