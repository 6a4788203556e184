//! The readers of a primary's stream: a replica, or an append-only file that is replayed (G13).
//!
//! A reader is a simulated server of its own, with its own clocks, which receives [`Told`]s. A replica may write an
//! append-only file itself, from the output of *its* engine; that file is one more reader after it.

use std::collections::VecDeque;

use crate::lock::codec::{SavedHold, SavedLock};
use crate::lock::types::{Binding, Moment, Now, Token};
use crate::sim::server::inside::Told;
use crate::sim::server::sim::words;
use crate::sim::single::server::{At, Key, Server};

/// The offset of a reader's boot-time clock: two machines have independent clocks.
const AHEAD_US: u64 = 7_000_000;

/// See the [module](self).
pub(crate) struct Reader {
    pub(crate) server: Server,
    /// The records that were sent and have not arrived yet.
    under_way: VecDeque<Told>,
    /// True if it can count tokens by now. The reader of a new file cannot until a record has named one.
    can_count: bool,
    /// The newest token of its earlier life.
    past: u64,
    /// True if it reads a file instead of the stream.
    pub(crate) is_of_file: bool,
    /// The append-only file of a replica.
    pub(crate) file: Option<Box<Self>>,
}

impl Reader {
    fn empty(primary: &Server) -> Self {
        let boot = Moment(primary.now.boot.0 + AHEAD_US);
        Self {
            server: Server::started(boot, primary.now.wall_us, true),
            under_way: VecDeque::new(),
            can_count: false,
            past: 0,
            is_of_file: false,
            file: None,
        }
    }

    /// A full synchronisation, or the load of an RDB file: the clock's hands are at the head of it.
    ///
    /// A server that loads may have been a primary itself, with tokens so far `ahead`. It counts with its new
    /// primary, and yet must never mint below its own past.
    pub(crate) fn from_snapshot(primary: &Server, ahead: u64) -> Result<Self, String> {
        let mut reader = Self::empty(primary);
        let last = primary.table().last_token();
        if let Some(past) = Token::new(last + ahead).filter(|_| ahead > 0) {
            reader.server.table_mut().clock().hear(past);
            reader.past = past.get();
        }
        reader.server.synchronise(primary)?;
        drop((reader.server.take_events(), reader.server.take_changed()));
        reader.server.look();
        reader.can_count = true;
        Ok(reader)
    }

    /// A new append-only file: the rewritten part names every hold, the writer's next grant is named.
    pub(crate) fn from_new_file(writer: &Server) -> Result<Self, String> {
        let mut reader = Self::empty(writer);
        reader.is_of_file = true;
        let last = writer.table().last_token();
        let rewritten = writer.begin_file();
        // A LOCK.TICK that may arrive after the first grant names the start of the count.
        reader.server.table_mut().clock().adopt(last, 0);
        rewritten.iter().try_for_each(|record| reader.apply(record))?;
        drop((reader.server.take_events(), reader.server.take_changed()));
        // The holds of the rewritten part were named in the order of their keys.
        reader.can_count = false;
        reader.server.look();
        Ok(reader)
    }

    /// Sends this record from the primary.
    pub(crate) fn send(&mut self, record: Told) {
        self.under_way.push_back(record);
    }

    /// Delivers everything that was sent.
    pub(crate) fn catch_up(&mut self) -> Result<(), String> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        while let Some(record) = self.under_way.pop_front() {
            self.apply(&record)?;
        }
        self.server.look();
        // Its events have no subscribers, until it is promoted.
        drop((self.server.take_events(), self.server.take_changed()));
        let written = self.server.take_file();
        if let Some(file) = &mut self.file {
            written.into_iter().for_each(|record| file.send(record));
            file.catch_up().map_err(|wrong| format!("a replica's file: {wrong}"))?;
        }
        Ok(())
    }

    /// Lets time pass here, too.
    pub(crate) fn pass(&mut self, us: u64) {
        let Now { boot, wall_us } = self.server.now;
        self.server.set_now(Now { boot: Moment(boot.0 + us), wall_us });
        if let Some(file) = &mut self.file {
            file.pass(us);
        }
    }

    fn apply(&mut self, record: &Told) -> Result<(), String> {
        let told = self.told();
        self.server.obeys(record)?;
        // The stream of a reader has no readers.
        drop(self.server.take_stream());
        let token = match &*record.words {
            [command, _, hold, token, ..] if **command == *b"LOCK.APPLY" && **hold == *b"HOLD" => token,
            _ => return Ok(()),
        };
        let token = std::str::from_utf8(token).ok().and_then(|text| text.parse::<u64>().ok());
        self.can_count |= token.is_some_and(|token| token > told);
        Ok(())
    }

    /// Frees the values of emptied databases, as the background thread.
    pub(crate) fn free(&mut self) {
        self.server.free();
        if let Some(file) = &mut self.file {
            file.free();
        }
    }

    /// G13: compares a reader with the server that it reads, if everything has arrived.
    ///
    /// The pump reports leases that run because a connection has closed: not before it `has_settled`.
    pub(crate) fn check(&self, primary: &Server, told: u64, has_settled: bool) -> Result<(), String> {
        self.server.check().map_err(|wrong| format!("a reader: {wrong}"))?;
        if !self.under_way.is_empty() {
            return Ok(());
        }
        check_keys(primary, &self.server, (has_settled, true))?;
        if self.server.table().last_token() < primary.table().last_token().max(self.past) {
            return Err("G4: a reader's clock of tokens is behind".to_owned());
        }
        let own_told = self.told();
        // If the newest token came from elsewhere, the next one is named: readers do not count until then.
        let is_counting = told == primary.table().last_token();
        if self.can_count && is_counting && own_told != told {
            return Err(format!("G13: readers count from {told}, one from {own_told}"));
        }
        match &self.file {
            Some(file) => {
                file.check(&self.server, own_told, true).map_err(|wrong| format!("file of {wrong}"))
            }
            None => Ok(()),
        }
    }

    /// Returns the state that distinguishes its future behavior.
    pub(crate) fn fingerprint(&self, primary: &Server) -> [u8; 3] {
        let file = self.file.as_ref().map_or(2, |file| u8::from(file.can_count));
        let is_ahead = self.server.table().last_token() > primary.table().last_token();
        let of_file = 2 * u8::from(self.is_of_file);
        [u8::from(self.can_count) + of_file, file, u8::from(is_ahead)]
    }

    /// Returns the token from which it counts.
    pub(crate) fn told(&self) -> u64 {
        self.server.table_mut().clock().replicated_token()
    }
}

/// G13: compares a reader that has read everything with its primary.
///
/// Leases that run because a connection has closed are reported once the primary `has_settled`. Leases are not
/// compared where a reader may rightly count them from an earlier time than its primary.
pub(crate) fn check_keys(
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

/// G13: compares a reader's value at a key with its primary's.
fn check_key(
    primary: &Server,
    reader: &Server,
    at: At,
    (has_settled, counts_alike): (bool, bool),
) -> Result<(), String> {
    let (theirs, own) = (primary.saved(at), reader.saved(at));
    let is_lock = |server: &Server| matches!(server.keys.get(&at), Some(Key::Lock(_)));
    // A paused lease that was replaced by an undelivered grant has its earlier binding.
    let is_told_later = |token: Token| {
        let mut all = theirs.iter().flat_map(|saved| &saved.holds);
        !has_settled && all.any(|hold| hold.token == token && hold.binding.is_paused())
    };
    let identity = |saved: &Option<SavedLock>| {
        let saved = saved.as_ref()?;
        let binding = |hold: &SavedHold| match hold.binding {
            _ if is_told_later(hold.token) => Binding::NONE,
            binding => Binding { is_running: binding.is_running && has_settled, ..binding },
        };
        let of = |hold: &SavedHold| (hold.owner.clone(), hold.token, hold.count, binding(hold));
        Some((saved.mode, saved.holds.iter().map(of).collect::<Vec<_>>()))
    };
    if is_lock(primary) != is_lock(reader) || identity(&theirs) != identity(&own) {
        return Err(format!("G13: {at} is {theirs:?}, for a reader {own:?}"));
    }
    let holds = |saved: Option<SavedLock>| saved.map(|saved| saved.holds).unwrap_or_default();
    for (theirs, own) in holds(theirs).iter().zip(&holds(own)) {
        // G2: no reader may have a shorter remaining lease than the primary promised.
        if own.left_ms < theirs.left_ms && counts_alike {
            return Err(format!("G2: at {at} {theirs:?} is left, for a reader {own:?}"));
        }
    }
    Ok(())
}

/// A record always concerns one hold: another hold in its place is unchanged.
#[test]
fn a_fact_about_another_hold_changes_nothing() -> Result<(), String> {
    let at = At::new(0, "k");
    let mut reader = Reader::from_snapshot(&Server::started(Moment(1_000_000), 0, false), 0)?;
    let record = |text: &str| -> Told { Told { db: 0, words: words(text) } };
    reader.apply(&record("LOCK.APPLY k HOLD 7 50 ann"))?;
    for text in [
        "LOCK.APPLY k ENDED 6",
        "LOCK.RELEASE k ann TOKEN 6",
        "LOCK.RELEASE k bob",
        "LOCK.RENEW k ann PX 90 TOKEN 6",
        "LOCK.RENEW k bob PX 90",
    ] {
        if reader.apply(&record(text)).is_ok() {
            return Err(format!("{text} changed something"));
        }
    }
    reader.server.look();
    let saved = reader.server.saved(at).map(|saved| saved.holds);
    let is_left = |hold: &SavedHold| (hold.token.get(), hold.left_ms) == (7, 50);
    if saved.as_deref().is_some_and(|holds| matches!(holds, [hold] if is_left(hold))) {
        Ok(())
    } else {
        Err(format!("it is {saved:?} now"))
    }
}
