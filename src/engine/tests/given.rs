//! Shared by stories of one server: clients that send commands, and the immediate replies.

use crate::engine::describe::{self, Value};
use crate::engine::flags::Flags;
use crate::engine::server::Server;
use crate::engine::server_events;
use crate::sim::server::inside::{PartBuf, Words};
use crate::sim::server::sim::{Said, Sim};

/// A server with `clients` clients.
pub(super) fn with_clients(clients: u64) -> Sim {
    let sim = Sim::started();
    (1..=clients).for_each(|client| sim.connect(client));
    sim
}

/// The bytes of a reply.
pub(super) fn bytes(text: &str) -> PartBuf {
    PartBuf::Bytes(text.as_bytes().to_vec())
}

impl Sim {
    /// The immediate reply to the first client.
    pub(super) fn told(&mut self, text: &str) -> Vec<PartBuf> {
        match self.send(1, 0, text) {
            Said::Now(parts) => parts,
            Said::Later(_) => panic!("{text}: it waits"),
        }
    }

    /// The error that the first client receives.
    pub(super) fn error(&mut self, text: &str) -> String {
        match &self.told(text)[..] {
            [PartBuf::Error(error)] => error.clone(),
            parts => panic!("{text}: no error, but {parts:?}"),
        }
    }

    /// The number that the first client receives.
    pub(super) fn number(&mut self, text: &str) -> u64 {
        match self.told(text)[..] {
            [PartBuf::Integer(number)] => number,
            ref parts => panic!("{text}: no number, but {parts:?}"),
        }
    }

    /// The handle of a client that waits.
    pub(super) fn waits(&mut self, client: u64, text: &str) -> u64 {
        match self.send(client, 0, text) {
            Said::Later(handle) => handle,
            Said::Now(parts) => panic!("{text}: it was replied {parts:?}"),
        }
    }

    /// The reply to the same words when they come with other flags.
    pub(super) fn told_as(&mut self, flags: Flags, words: Words) -> Vec<PartBuf> {
        match self.run(Some(1), 0, words, flags) {
            Said::Now(parts) => parts,
            Said::Later(_) => panic!("it waits"),
        }
    }

    /// A field of INFO.
    pub(super) fn field(&self, name: &str) -> Value {
        let fields = describe::fields(self);
        let found = fields.into_iter().find(|(field, _)| *field == name);
        found.unwrap_or_else(|| panic!("INFO has no {name}")).1
    }

    /// The lines added to the log since the last call.
    pub(super) fn logged(&self) -> Vec<String> {
        std::mem::take(&mut self.inside.borrow_mut().log)
    }

    /// Changes a setting that is a number while it runs.
    pub(super) fn sets(&self, name: &str, value: i64) {
        crate::sim::server::sim::set_number(&self.shared().settings, name, value);
        server_events::settings_changed(self, true);
    }

    /// Changes a setting that is yes or no while it runs.
    pub(super) fn switches(&self, name: &str, value: bool) {
        let switches = self.shared().settings.switches();
        let switch = switches.iter().find(|switch| switch.name.to_str() == Ok(name));
        switch.expect("there is one").set(value);
        server_events::settings_changed(self, true);
    }
}
