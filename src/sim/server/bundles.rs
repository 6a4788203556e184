//! Transactions, scripts and WATCH on a simulated server: several commands in one step.

use crate::engine::flags::Flags;
use crate::sim::server::inside::{At, PartBuf, Words};
use crate::sim::server::keys::{may_write, number};
use crate::sim::server::sim::{Said, Sim};

/// The client of a script's commands, as the server passes it: no connection has this number.
const SCRIPT: u64 = 99;

impl Sim {
    /// EXEC: runs these commands in one step. No command waits within it.
    pub(crate) fn executes(&mut self, client: u64, db: u32, commands: &[Words]) -> Vec<PartBuf> {
        let flags = Flags { denies_blocking: true, ..self.flags.get() };
        let mut parts = vec![PartBuf::Array(commands.len())];
        for words in commands {
            if *words[0] == *b"EVAL" {
                parts.extend(self.evaluates(client, db, words));
            } else {
                parts.extend(self.at_once(client, db, words.clone(), flags));
            }
        }
        parts
    }

    /// EVAL: runs a script that calls the commands after its key in sequence, separated by ';', and returns each
    /// reply.
    pub(crate) fn evaluates(&mut self, client: u64, db: u32, words: &Words) -> Vec<PartBuf> {
        let flags = Flags { denies_blocking: true, is_script: true, ..self.flags.get() };
        let keys: usize = number(&words[2]);
        let commands: Vec<Words> =
            words[3 + keys..].split(|word| *word == b";").map(|command| command.to_vec().into()).collect();
        let mut parts = vec![PartBuf::Array(commands.len())];
        for command in commands {
            // A script has the rights of its caller.
            if self.is_forbidden(client, &command) {
                parts.push(PartBuf::Error("NOPERM".to_owned()));
            } else if flags.is_replica && may_write(&command[0]) {
                parts.push(PartBuf::Error("READONLY".to_owned()));
            } else {
                parts.extend(self.at_once(SCRIPT, db, command, flags));
            }
        }
        parts
    }

    fn at_once(&mut self, client: u64, db: u32, words: Words, flags: Flags) -> Vec<PartBuf> {
        match self.run(Some(client), db, words, flags) {
            Said::Now(parts) => parts,
            Said::Later(handle) => panic!("{handle} is blocked within a step of several commands"),
        }
    }

    /// Returns true if this client's user may not run the command.
    pub(crate) fn is_forbidden(&self, client: u64, words: &[Vec<u8>]) -> bool {
        let acquires = matches!(&*words[0], b"LOCK.ACQUIRE" | b"LOCK.MACQUIRE");
        acquires && self.inside.borrow().forbidden.contains(&client)
    }

    /// WATCH
    pub(crate) fn watch(&self, client: u64, at: At) {
        self.inside.borrow_mut().watched.insert((at, client));
    }

    /// UNWATCH, which EXEC and DISCARD do, too. Returns true if a watched key has changed.
    pub(crate) fn unwatch(&self, client: u64) -> bool {
        let mut inside = self.inside.borrow_mut();
        inside.watched.retain(|(_, its)| *its != client);
        inside.dirty.remove(&client)
    }
}
