//! Whoever reads the primary's stream: a replica, or an append-only file that is replayed (G13).
//!
//! A reader is a server of its own, with its own clocks, that is fed with [`Fact`]s. A replica may write
//! an append-only file itself, from what *its* steps say; that file is one more reader behind it.

use std::collections::VecDeque;

use super::server::{At, Key, Name, Outside, Server};
use crate::lock::codec::SavedHold;
use crate::lock::effect::{Effects, Record, Step};
use crate::lock::types::{Moment, Token};

/// One command of the replication stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fact {
    /// The request of a client, word for word.
    Acquire {
        at: At,
        owner: Name,
        lease_ms: u64,
    },
    Release {
        at: At,
        owner: Name,
        token: Option<Token>,
    },
    Renew {
        at: At,
        owner: Name,
        token: Option<Token>,
        lease_ms: u64,
    },
    /// LOCK.APPLY ... HOLD
    Hold(At, SavedHold),
    /// LOCK.APPLY ... ENDED
    Ended(At, Token),
    /// LOCK.APPLY ... EMPTY, written by the rewrite of an append-only file only.
    Empty(At),
    Outside(Outside),
}

impl Fact {
    fn at(&self) -> Option<At> {
        match *self {
            Self::Acquire { at, .. } | Self::Release { at, .. } | Self::Renew { at, .. } => Some(at),
            Self::Hold(at, _) | Self::Ended(at, _) | Self::Empty(at) => Some(at),
            Self::Outside(_) => None,
        }
    }
}

/// How far a reader's boot-time clock is ahead: two machines have nothing to do with each other.
const AHEAD_US: u64 = 7_000_000;

/// See the [module](self).
pub(super) struct Reader {
    pub(super) server: Server,
    /// What was sent and has not arrived yet.
    under_way: VecDeque<Fact>,
    /// Whether it could count tokens by now. The reader of a new file cannot until one was named.
    can_count: bool,
    /// The newest token of its earlier life.
    past: u64,
    /// The append-only file of a replica.
    pub(super) file: Option<Box<Self>>,
}

impl Reader {
    fn empty(primary: &Server) -> Self {
        let boot = Moment(primary.now.boot.0 + AHEAD_US);
        Self {
            server: Server::at_clocks(boot, primary.now.wall_us),
            under_way: VecDeque::new(),
            can_count: false,
            past: 0,
            file: None,
        }
    }

    /// A full synchronisation, or the load of an RDB file: the clock's hands are at the head of it.
    ///
    /// Whoever loads may have been a primary itself, with tokens so far `ahead`: it counts with its new
    /// primary, and yet must never mint below its own past.
    pub(super) fn from_snapshot(primary: &mut Server, ahead: u64) -> Self {
        let mut reader = Self::empty(primary);
        let (last, told) = (primary.table.last_token(), primary.table.clock().told());
        let clock = reader.server.table.clock();
        if let Some(past) = Token::new(last + ahead).filter(|_| ahead > 0) {
            clock.hear(past);
            reader.past = past.get();
        }
        clock.begin_load();
        // A file that was written before the first grant says nothing of the clock.
        if last > 0 {
            clock.adopt(last, told);
        }
        for (&at, key) in &primary.keys {
            let loaded = match key {
                Key::Lock(_) => {
                    let saved = primary.saved(at);
                    Key::Lock(reader.server.loaded(at, saved.as_ref()))
                }
                Key::Other => Key::Other,
            };
            reader.server.keys.insert(at, loaded);
        }
        reader.can_count = true;
        reader
    }

    /// A new append-only file: the rewritten part names every hold, the writer's next grant is named.
    pub(super) fn from_new_file(writer: &mut Server) -> Result<Self, String> {
        let mut reader = Self::empty(writer);
        let last = writer.table.last_token();
        writer.table.clock().begin_file();
        // From where to count is told by a LOCK.TICK that may come behind the first grant.
        reader.server.table.clock().adopt(last, 0);
        for (&at, key) in &writer.keys {
            reader.apply(&match (key, writer.saved(at)) {
                (Key::Lock(_), Some(saved)) => Fact::Hold(at, saved),
                (Key::Lock(_), None) => Fact::Empty(at),
                (Key::Other, _) => Fact::Outside(Outside::Set(at)),
            })?;
        }
        // The holds of the rewritten part were named in the order of their keys.
        reader.can_count = false;
        Ok(reader)
    }

    /// The primary tells this.
    pub(super) fn send(&mut self, fact: Fact) {
        self.under_way.push_back(fact);
    }

    /// Everything that was sent arrives.
    pub(super) fn catch_up(&mut self) -> Result<(), String> {
        while let Some(fact) = self.under_way.pop_front() {
            self.apply(&fact)?;
        }
        Ok(())
    }

    /// Time passes here too.
    pub(super) fn pass(&mut self, us: u64) {
        self.server.now.boot.0 += us;
        if let Some(file) = &mut self.file {
            file.pass(us);
        }
    }

    fn apply(&mut self, fact: &Fact) -> Result<(), String> {
        let told_on = match (fact, fact.at()) {
            (Fact::Outside(what), _) => {
                if !self.server.outside(what) {
                    return Err(format!("G13: a reader could not do {what:?}"));
                }
                fact.clone()
            }
            (_, Some(at)) => {
                let step = self.step(at, fact);
                self.server.carry_out(at, step.change);
                self.retold(at, fact, step.record)?
            }
            (_, None) => return Err(format!("{fact:?} has no key")),
        };
        self.can_count |= matches!(fact, Fact::Hold(..));
        match &mut self.file {
            Some(file) => file.apply(&told_on),
            None => Ok(()),
        }
    }

    fn step(&mut self, at: At, fact: &Fact) -> Step<()> {
        let (now, place, found) = (self.server.now.boot, at.place(), self.server.found(at));
        let table = &mut self.server.table;
        // What a reader publishes is not looked at.
        let fx = &mut Effects::default();
        match *fact {
            Fact::Acquire { owner, lease_ms, .. } => {
                table.apply_acquire(now, place, found, owner.as_bytes(), lease_ms, fx)
            }
            Fact::Release { owner, token, .. } => {
                table.apply_release(now, found, owner.as_bytes(), token, fx)
            }
            Fact::Renew { owner, token, lease_ms, .. } => {
                table.apply_renew(now, found, owner.as_bytes(), token, lease_ms)
            }
            Fact::Hold(_, ref saved) => table.apply_hold(now, place, found, saved, fx),
            Fact::Ended(_, token) => table.apply_ended(now, found, token, fx),
            Fact::Empty(_) => table.apply_empty(now, place),
            Fact::Outside(_) => Step::unchanged(()),
        }
    }

    /// What this server's own append-only file is told of the fact.
    fn retold(&self, at: At, fact: &Fact, record: Record) -> Result<Fact, String> {
        match record {
            Record::AsAsked => Ok(fact.clone()),
            Record::Hold(_) => match self.server.saved(at) {
                Some(saved) => Ok(Fact::Hold(at, saved)),
                None => Err(format!("G13: a reader tells of a hold at {at} that is not there")),
            },
            Record::Ended(token) => Ok(Fact::Ended(at, token)),
            // The primary tells only what changed something.
            Record::Nothing => Err(format!("G13: {fact:?} changed nothing for a reader")),
        }
    }

    /// The background thread has freed the values of emptied databases.
    pub(super) fn free(&mut self) {
        self.server.free();
        if let Some(file) = &mut self.file {
            file.free();
        }
    }

    /// G13: compares a reader with the server that it reads, if everything has arrived.
    pub(super) fn check(&mut self, primary: &Server, told: u64) -> Result<(), String> {
        self.server.check().map_err(|wrong| format!("a reader: {wrong}"))?;
        if !self.under_way.is_empty() {
            return Ok(());
        }
        if !primary.keys.keys().eq(self.server.keys.keys()) {
            return Err(format!("G13: keys are {:?}, a reader's {:?}", primary.keys, self.server.keys));
        }
        for &at in primary.keys.keys() {
            self.check_key(primary, at)?;
        }
        if self.server.table.last_token() < primary.table.last_token().max(self.past) {
            return Err("G4: a reader's clock of tokens is behind".to_owned());
        }
        let own_told = self.told();
        if self.can_count && own_told != told {
            return Err(format!("G13: readers count from {told}, one from {own_told}"));
        }
        match &mut self.file {
            Some(file) => file.check(&self.server, own_told).map_err(|wrong| format!("file of {wrong}")),
            None => Ok(()),
        }
    }

    fn check_key(&self, primary: &Server, at: At) -> Result<(), String> {
        let (theirs, own) = (primary.saved(at), self.server.saved(at));
        let is_lock = |server: &Server| matches!(server.keys.get(&at), Some(Key::Lock(_)));
        let identity = |saved: &Option<SavedHold>| saved.as_ref().map(|s| (s.owner.clone(), s.token));
        if is_lock(primary) != is_lock(&self.server) || identity(&theirs) != identity(&own) {
            return Err(format!("G13: {at} is {theirs:?}, for a reader {own:?}"));
        }
        // G2: no reader may think that less is left than the primary promised.
        if let (Some(theirs), Some(own)) = (theirs, own)
            && own.left_ms < theirs.left_ms
        {
            return Err(format!("G2: {} ms are left, for a reader {}", theirs.left_ms, own.left_ms));
        }
        Ok(())
    }

    /// What could be told apart of it by what it does next.
    pub(super) fn fingerprint(&self, primary: &Server) -> [u8; 3] {
        let file = self.file.as_ref().map_or(2, |file| u8::from(file.can_count));
        let is_ahead = self.server.table.last_token() > primary.table.last_token();
        [u8::from(self.can_count), file, u8::from(is_ahead)]
    }

    /// What it counts from.
    pub(super) const fn told(&mut self) -> u64 {
        self.server.table.clock().told()
    }
}

/// Whatever a fact says, it says it of one hold: another one that stands there is left alone.
#[test]
fn a_fact_about_another_hold_changes_nothing() -> Result<(), String> {
    let at = At::new(0, "k");
    let mut reader = Reader::from_snapshot(&mut Server::default(), 0);
    let token = |number| Token::new(number).ok_or("no token");
    let (held, other) = (token(7)?, Some(token(6)?));
    reader.apply(&Fact::Hold(at, SavedHold { owner: (*b"ann").into(), token: held, left_ms: 50 }))?;
    for fact in [
        Fact::Ended(at, token(6)?),
        Fact::Release { at, owner: "ann", token: other },
        Fact::Release { at, owner: "bob", token: None },
        Fact::Renew { at, owner: "ann", token: other, lease_ms: 90 },
        Fact::Renew { at, owner: "bob", token: None, lease_ms: 90 },
    ] {
        if reader.apply(&fact).is_ok() {
            return Err(format!("{fact:?} changed something"));
        }
    }
    let saved = reader.server.saved(at).map(|saved| (saved.token, saved.left_ms));
    if saved == Some((held, 50)) { Ok(()) } else { Err(format!("it is {saved:?} now")) }
}
