//! The steps of a script, by their names.

use std::collections::BTreeSet;

use super::host::Host;
use super::told::{DBS, NAMES};
use crate::engine::server::{Key, Server, To};
use crate::engine::{legacy, replies, server_events};
use crate::lock::effect::Existing;
use crate::sim::server::inside::{At, PartBuf, Slot, Words};
use crate::sim::server::keys::number;
use crate::sim::server::sim::{Said, at, set_number};

/// The time that passes at once, and the time at the end of each step, for the server's cron to run.
const STEP_MS: u64 = 2;

/// The number of these until a replica has its snapshot.
const SYNC_STEPS: usize = 10;

/// Longer than any script.
const FAILOVER_MS: u64 = 86_400_000;

/// No script is as long.
const SOON_MS: u64 = 60_000;

const CONFIRM_TIMEOUT_MS: i64 = 51;

/// The server's own message to waiters when it starts to follow another.
const DEMOTED: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

impl Host {
    /// Runs one step. The server comes to rest after it, and its cron runs.
    pub(super) fn steps(&mut self, words: &[&str]) {
        match *words {
            ["send", client, db, ref commands @ ..] => self.packet(digit(client), digit(db) as u32, commands),
            ["close" | "kill", client] => self.leaves(digit(client)),
            // Redis 7.0 crashes if a client that CLIENT PAUSE delays is unblocked, even without a module.
            ["unblock" | "unblock-error", _] if self.is_paused() => {}
            ["unblock", client] => self.unblocks(digit(client)),
            ["unblock-error", client] => self.unblocks_with_error(digit(client)),
            ["pass", ms] => (0..digit(ms) / STEP_MS).for_each(|_| self.passes()),
            ["forbid", client] => {
                self.forbidden.insert(digit(client));
                self.notes_rights();
            }
            ["allow"] => {
                self.forbidden.clear();
                self.notes_rights();
            }
            ["attach"] => self.attaches(),
            ["ack"] => {
                let mut inside = self.sim.inside.borrow_mut();
                let offset = inside.offset;
                inside.replicas.values_mut().for_each(|(_, acknowledged)| *acknowledged = offset);
            }
            ["failover"] => self.begins_to_fail_over(),
            ["unpause" | "failover-abort"] => self.goes_on(),
            ["demote"] => self.demotes(),
            ["promote"] => self.promotes(),
            ["slot", name, what] => self.moves_slot(name, what),
            ["reload"] => self.reloads(),
            ["load-file"] => self.sim.load_file(&self.file).expect("what was written is loaded"),
            ["set", "legacy-strings", value] => {
                let sim = &self.sim;
                sim.shared().settings.switches()[1].set(value == "yes");
                // It continues to listen.
                sim.hears_keys.set(sim.hears_keys.get() || value == "yes");
                server_events::settings_changed(sim, true);
            }
            ["set", name, value] => {
                set_number(&self.sim.shared().settings, name, digit(value) as i64);
                server_events::settings_changed(&self.sim, true);
            }
            _ => panic!("no step is {words:?}"),
        }
        self.step_is_over();
        self.rests();
        self.passes();
    }

    /// Lets a little time pass, in which the server's cron runs.
    fn passes(&mut self) {
        self.sim.passes(STEP_MS);
        self.rests();
        self.sim.free_late();
        self.sim.cron();
        self.step_is_over();
        self.rests();
    }

    fn packet(&mut self, client: u64, db: u32, words: &[&str]) {
        // Valkey 9 finds out later than other servers that a key of a transaction is missing.
        let has_left = words.first() == Some(&"MULTI") && NAMES.iter().any(|name| self.is_asked_for(name));
        if self.is_busy(client) || has_left {
            return self.lines.push("busy".to_owned());
        }
        self.slots.clear();
        let commands = words.split(|word| *word == ";;").filter_map(|command| self.resolved(db, command));
        let commands: Vec<Words> = commands.collect();
        self.slots.extend(words.iter().filter_map(|word| word.strip_prefix("@slot:")).map(digit));
        self.sends(client, db, commands);
    }

    /// Returns true if clients must ask another node for a key of this name.
    fn is_asked_for(&self, name: &str) -> bool {
        self.redirects(&at(0, name)) == Some("ASK")
    }

    /// Returns the command with the values of its '@' words; `None` if there is no value.
    fn resolved(&self, db: u32, command: &[&str]) -> Option<Words> {
        let mut words = Vec::new();
        for word in command {
            let Some((what, of)) = word.strip_prefix('@').and_then(|word| word.split_once(':')) else {
                words.push(word.as_bytes().to_vec());
                continue;
            };
            if what == "slot" {
                continue;
            }
            if what == "dump" {
                words.push(self.dumps.get(&digit(of))?.clone());
                continue;
            }
            let at = at(db, of);
            let mut look = self.sim.look(std::slice::from_ref(&at));
            let seen = look.remove(&at).filter(|_| self.redirects(&at).is_none());
            let lock = seen.unwrap_or_default();
            let first = lock.holders.first();
            words.push(match what {
                "token" => first.and_then(|hold| hold.token).unwrap_or(1).to_string().into_bytes(),
                "holder" => first.map_or_else(|| self.legacy_owner(&at), |hold| hold.owner.clone()),
                _ => lock.queue.last().map_or(b"o1".to_vec(), |waiting| waiting.owner.clone()),
            });
        }
        Some(words.into())
    }

    /// Returns the owner that holds the lock at a key if that is a string.
    fn legacy_owner(&self, at: &At) -> Vec<u8> {
        let sim = &self.sim;
        sim.db.set(at.0);
        let key = sim.open(&at.1, To::Read);
        let is_one = matches!(legacy::find(sim, &key, None), Existing::Legacy(_));
        if is_one { key.string() } else { b"o0".to_vec() }
    }

    fn unblocks(&mut self, client: u64) {
        if let Some(its) = self.connections.get(&client).filter(|its| its.blocked.is_some()) {
            self.sim.client_unblock(its.id);
            self.step_is_over();
        }
    }

    fn unblocks_with_error(&mut self, client: u64) {
        // Redis 7.0 reads this client's other commands later than other servers do.
        let confirms = !self.sim.inside.borrow().replicas.is_empty();
        if confirms && self.connections.get(&client).is_some_and(|its| !its.unread.is_empty()) {
            return;
        }
        if self.is_unblocked(client, UNBLOCKED) {
            self.step_is_over();
            self.reads(client);
        }
    }

    /// Has the server itself answer and release a blocked client.
    fn is_unblocked(&mut self, client: u64, text: &str) -> bool {
        let Some(handle) = self.connections.get_mut(&client).and_then(|its| its.blocked.take()) else {
            return false;
        };
        replies::disconnected(&self.sim, handle);
        let mut inside = self.sim.inside.borrow_mut();
        inside.unblocked.retain(|(other, _)| *other != handle);
        inside.let_go(handle);
        drop(inside);
        self.reply(client, &[PartBuf::Error(text.to_owned())]);
        true
    }

    /// Connects a replica, which confirms from here on.
    fn attaches(&mut self) {
        (0..SYNC_STEPS).for_each(|_| self.passes());
        set_number(&self.sim.shared().settings, "confirm-timeout", CONFIRM_TIMEOUT_MS);
        self.sim.confirms();
    }

    /// DEBUG RELOAD
    fn reloads(&mut self) {
        let ats: Vec<At> = DBS.iter().flat_map(|db| NAMES.map(|name| at(*db, name))).collect();
        let mut ends = BTreeSet::new();
        for lock in self.sim.look(&ats).into_values() {
            let own: BTreeSet<u64> = lock.holders.iter().map(|hold| hold.left_ms).collect();
            // The order in which two locks are loaded is random, and so is the order in which two leases end.
            if own.iter().any(|left_ms| *left_ms < SOON_MS && !ends.insert(*left_ms)) {
                self.lines.push("chance".to_owned());
            }
        }
        self.sim.reload().expect("what was saved is loaded");
    }

    /// CLUSTER SETSLOT: the slot of this key, which is its only one, begins to move away, belongs to another node, or
    /// to this one.
    fn moves_slot(&mut self, name: &str, what: &str) {
        let name = *NAMES.iter().find(|known| **known == name).expect("a name of a script");
        let mut inside = self.sim.inside.borrow_mut();
        let before = inside.slots.iter().find(|(other, _)| *other == name).map(|(_, slot)| *slot);
        let after = match what {
            "ours" => None,
            // It is not this node's.
            "leaves" if before == Some(Slot::Elsewhere) => before,
            "leaves" => Some(Slot::Leaving),
            // A node keeps a slot that it has keys of.
            _ if inside.keys.contains_key(&at(0, name)) => before,
            _ => Some(Slot::Elsewhere),
        };
        inside.slots.retain(|(other, _)| *other != name);
        inside.slots.extend(after.map(|slot| (name, slot)));
    }

    /// FAILOVER: the only replica has not acknowledged the last writes, so writers wait until one side gives up.
    fn begins_to_fail_over(&mut self) {
        assert!(matches!(self.sim.send(0, 0, "SET x last"), Said::Now(_)));
        self.step_is_over();
        self.pauses(FAILOVER_MS);
    }

    fn demotes(&mut self) {
        let clients: Vec<u64> = self.connections.keys().copied().collect();
        let waiting: Vec<u64> =
            clients.into_iter().filter(|client| self.is_unblocked(*client, DEMOTED)).collect();
        let mut flags = self.sim.flags.get();
        flags.is_replica = true;
        self.sim.flags.set(flags);
        server_events::demoted(&self.sim);
        // The server closes the connections of the clients that it has answered.
        waiting.into_iter().for_each(|client| self.leaves(client));
    }

    fn promotes(&mut self) {
        let mut flags = self.sim.flags.get();
        flags.is_replica = false;
        self.sim.flags.set(flags);
        server_events::promoted(&self.sim);
    }
}

fn digit(word: &str) -> u64 {
    number(word.as_bytes())
}
