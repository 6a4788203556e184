//! Whoever reads the primary's stream: a replica, or an append-only file that is replayed (G13).
//!
//! A reader is a server of its own, with its own clocks, that is fed with [`Fact`]s. A replica may write
//! an append-only file itself, from what *its* steps say; that file is one more reader behind it.

use std::collections::VecDeque;

use super::input::{How, Keys};
use super::server::{At, Key, Name, Outside, Server, Snapshot};
use crate::lock::codec::{SavedHold, SavedLock};
use crate::lock::effect::{Effects, Record, Step};
use crate::lock::table::{Granted, KeyRef};
use crate::lock::types::{Binding, Mode, Moment, Token};

/// One command of the replication stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fact {
    /// The request of a client, word for word.
    Acquire {
        at: At,
        owner: Name,
        lease_ms: u64,
        how: How,
    },
    AcquireMany {
        keys: Keys,
        owner: Name,
        lease_ms: u64,
        mode: Mode,
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
        raise: Option<Token>,
        lease_ms: u64,
    },
    /// LOCK.APPLY ... HOLD
    Hold(At, Mode, SavedHold),
    /// LOCK.APPLY ... ENDED
    Ended(At, Token),
    /// LOCK.APPLY ... EMPTY, written by the rewrite of an append-only file only.
    Empty(At),
    Outside(Outside),
}

impl Fact {
    /// The keys that it is about; none if it is what somebody did to keys without asking the core.
    fn keys(&self) -> Option<Keys> {
        match *self {
            Self::Acquire { at, .. } | Self::Release { at, .. } | Self::Renew { at, .. } => {
                Some(Keys::one(at))
            }
            Self::Hold(at, ..) | Self::Ended(at, _) | Self::Empty(at) => Some(Keys::one(at)),
            Self::AcquireMany { keys, .. } => Some(keys),
            Self::Outside(_) => None,
        }
    }
}

impl Server {
    /// Does what the stream says. What this server's own append-only file is told of it goes into `told_on`.
    pub(super) fn apply(&mut self, fact: &Fact, told_on: Option<&mut Vec<Fact>>) -> Result<(), String> {
        let Some(keys) = fact.keys() else {
            let Fact::Outside(what) = fact else {
                return Err(format!("{fact:?} has no key"));
            };
            if !self.outside(what) {
                return Err(format!("G13: a reader could not do {what:?}"));
            }
            told_on.into_iter().for_each(|told_on| told_on.push(fact.clone()));
            return Ok(());
        };
        let steps = self.steps(keys, fact);
        for (at, step) in keys.iter().zip(&steps) {
            self.carry_out(at, step.change);
        }
        if steps.iter().all(|step| step.record == Record::Nothing) {
            // The primary tells only what changed something.
            return Err(format!("G13: {fact:?} changed nothing for a reader"));
        }
        if let Some(told_on) = told_on {
            for (at, step) in keys.iter().zip(&steps) {
                told_on.extend(self.retold(at, fact, step.record)?);
            }
        }
        Ok(())
    }

    fn steps(&mut self, keys: Keys, fact: &Fact) -> Vec<Step<()>> {
        let now = self.now.boot;
        let refs: Vec<KeyRef<'_>> =
            keys.iter().map(|at| KeyRef { lock_key: at.lock_key(), existing: self.existing(at) }).collect();
        // What a reader publishes is not looked at.
        let mut fx = vec![Effects::default(); refs.len()];
        if let Fact::AcquireMany { owner, lease_ms, mode, .. } = *fact {
            let granted = granted(owner, lease_ms, How::of(mode));
            return self.table.apply_acquire_many(now, &refs, &granted, &mut fx);
        }
        let steps = refs.iter().zip(&mut fx).map(|(key_ref, fx)| self.step(now, key_ref, fact, fx));
        steps.collect()
    }

    fn step(&mut self, now: Moment, key_ref: &KeyRef<'_>, fact: &Fact, fx: &mut Effects) -> Step<()> {
        let (table, &KeyRef { lock_key, existing }) = (&mut self.table, key_ref);
        match *fact {
            Fact::Acquire { owner, lease_ms, how, .. } => {
                table.apply_acquire(now, lock_key, existing, &granted(owner, lease_ms, how), fx)
            }
            Fact::Release { owner, token, .. } => {
                table.apply_release(now, lock_key, existing, owner.as_bytes(), token, fx)
            }
            Fact::Renew { owner, token, raise, lease_ms, .. } => {
                table.apply_renew(now, lock_key, existing, owner.as_bytes(), token, raise, lease_ms)
            }
            Fact::Hold(_, mode, ref saved) => table.apply_hold(now, lock_key, existing, mode, saved, fx),
            Fact::Ended(_, token) => table.apply_ended(now, lock_key, existing, token, fx),
            Fact::Empty(_) => table.apply_empty(now, lock_key),
            Fact::AcquireMany { .. } | Fact::Outside(_) => Step::unchanged(()),
        }
    }

    /// What this server's own append-only file is told of the fact.
    fn retold(&self, at: At, fact: &Fact, record: Record) -> Result<Option<Fact>, String> {
        match record {
            Record::AsAsked => Ok(Some(fact.clone())),
            Record::Nothing => Ok(None),
            _ => self.fact(at, record).map(Some),
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
        let snapshot = Snapshot::of(primary);
        if let Some(past) = Token::new(snapshot.last + ahead).filter(|_| ahead > 0) {
            reader.server.table.clock().hear(past);
            reader.past = past.get();
        }
        snapshot.load(&mut reader.server);
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
            match (key, writer.saved(at)) {
                (Key::Lock(_), Some(SavedLock { mode, holds })) => {
                    holds.into_iter().try_for_each(|hold| reader.apply(&Fact::Hold(at, mode, hold)))?;
                }
                (Key::Lock(_), None) => reader.apply(&Fact::Empty(at))?,
                (Key::Other, _) => reader.apply(&Fact::Outside(Outside::Set(at)))?,
            }
            if writer.mortal.contains(&at) {
                reader.apply(&Fact::Outside(Outside::Expire(at)))?;
            }
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
        let is_news = matches!(fact, Fact::Hold(_, _, hold) if hold.token.get() > self.told());
        let mut told_on = Vec::new();
        self.server.apply(fact, self.file.is_some().then_some(&mut told_on))?;
        self.can_count |= is_news;
        match &mut self.file {
            Some(file) => told_on.iter().try_for_each(|fact| file.apply(fact)),
            None => Ok(()),
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
    ///
    /// What runs on because a connection has closed is told by the pump: not before it `has_settled`.
    pub(super) fn check(&mut self, primary: &Server, told: u64, has_settled: bool) -> Result<(), String> {
        self.server.check().map_err(|wrong| format!("a reader: {wrong}"))?;
        if !self.under_way.is_empty() {
            return Ok(());
        }
        check_keys(primary, &self.server, (has_settled, true))?;
        if self.server.table.last_token() < primary.table.last_token().max(self.past) {
            return Err("G4: a reader's clock of tokens is behind".to_owned());
        }
        let own_told = self.told();
        // Where the newest token came from elsewhere, the next one is named: nobody counts until then.
        let is_counting = told == primary.table.last_token();
        if self.can_count && is_counting && own_told != told {
            return Err(format!("G13: readers count from {told}, one from {own_told}"));
        }
        match &mut self.file {
            Some(file) => {
                file.check(&self.server, own_told, true).map_err(|wrong| format!("file of {wrong}"))
            }
            None => Ok(()),
        }
    }

    /// What could be told apart of it by what it does next.
    pub(super) fn fingerprint(&self, primary: &Server) -> [u8; 3] {
        let file = self.file.as_ref().map_or(2, |file| u8::from(file.can_count));
        let is_ahead = self.server.table.last_token() > primary.table.last_token();
        [u8::from(self.can_count), file, u8::from(is_ahead)]
    }

    /// What it counts from.
    pub(super) const fn told(&mut self) -> u64 {
        self.server.table.clock().replicated_token()
    }
}

/// G13: compares a reader that has read everything with its primary.
///
/// What runs on because a connection has closed is told when the primary `has_settled`; leases are not compared where a
/// reader may rightly count them from before its primary does.
pub(super) fn check_keys(
    primary: &Server,
    reader: &Server,
    (has_settled, counts_alike): (bool, bool),
) -> Result<(), String> {
    if !primary.keys.keys().eq(reader.keys.keys()) {
        return Err(format!("G13: keys are {:?}, a reader's {:?}", primary.keys, reader.keys));
    }
    if primary.mortal != reader.mortal {
        let (theirs, own) = (&primary.mortal, &reader.mortal);
        return Err(format!("G13: a time to live have {theirs:?}, for a reader {own:?}"));
    }
    primary.keys.keys().try_for_each(|&at| check_key(primary, reader, at, (has_settled, counts_alike)))
}

/// G13: compares what a reader has at a key with what its primary has.
fn check_key(
    primary: &Server,
    reader: &Server,
    at: At,
    (has_settled, counts_alike): (bool, bool),
) -> Result<(), String> {
    let (theirs, own) = (primary.saved(at), reader.saved(at));
    let is_lock = |server: &Server| matches!(server.keys.get(&at), Some(Key::Lock(_)));
    let identity = |saved: &Option<SavedLock>| {
        let saved = saved.as_ref()?;
        let binding =
            |hold: &SavedHold| Binding { is_running: hold.binding.is_running && has_settled, ..hold.binding };
        let of = |hold: &SavedHold| (hold.owner.clone(), hold.token, hold.count, binding(hold));
        Some((saved.mode, saved.holds.iter().map(of).collect::<Vec<_>>()))
    };
    if is_lock(primary) != is_lock(reader) || identity(&theirs) != identity(&own) {
        return Err(format!("G13: {at} is {theirs:?}, for a reader {own:?}"));
    }
    let holds = |saved: Option<SavedLock>| saved.map(|saved| saved.holds).unwrap_or_default();
    for (theirs, own) in holds(theirs).iter().zip(&holds(own)) {
        // G2: no reader may think that less is left than the primary promised.
        if own.left_ms < theirs.left_ms && counts_alike {
            return Err(format!("G2: at {at} {theirs:?} is left, for a reader {own:?}"));
        }
    }
    Ok(())
}

const fn granted(owner: Name, lease_ms: u64, how: How) -> Granted<'static> {
    let How { mode, is_reentrant, binding, .. } = how;
    Granted { owner: owner.as_bytes(), lease_ms, mode, is_reentrant, binding }
}

/// Whatever a fact says, it says it of one hold: another one that stands there is left alone.
#[test]
fn a_fact_about_another_hold_changes_nothing() -> Result<(), String> {
    let at = At::new(0, "k");
    let mut reader = Reader::from_snapshot(&mut Server::default(), 0);
    let token = |number| Token::new(number).ok_or("no token");
    let (held, other) = (token(7)?, Some(token(6)?));
    let hold =
        SavedHold { owner: (*b"ann").into(), token: held, left_ms: 50, count: 1, binding: Binding::NONE };
    reader.apply(&Fact::Hold(at, Mode::Exclusive, hold))?;
    for fact in [
        Fact::Ended(at, token(6)?),
        Fact::Release { at, owner: "ann", token: other },
        Fact::Release { at, owner: "bob", token: None },
        Fact::Renew { at, owner: "ann", token: other, raise: None, lease_ms: 90 },
        Fact::Renew { at, owner: "bob", token: None, raise: None, lease_ms: 90 },
    ] {
        if reader.apply(&fact).is_ok() {
            return Err(format!("{fact:?} changed something"));
        }
    }
    let saved = reader.server.saved(at).map(|saved| saved.holds);
    if saved
        .as_deref()
        .is_some_and(|holds| matches!(holds, [hold] if (hold.token, hold.left_ms) == (held, 50)))
    {
        Ok(())
    } else {
        Err(format!("it is {saved:?} now"))
    }
}
