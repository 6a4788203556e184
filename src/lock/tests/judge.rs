//! The guarantees, as a client could hold the server to them.
//!
//! The judge sees what goes in and what comes out, keeps what each client has been promised, and says
//! which guarantee was broken. It knows no rule of how the core decides: only what must hold whatever
//! is decided. Each verdict begins with the number of the guarantee (SPEC 3). G13 is not its business:
//! [readers](super::reader) compare themselves with their primary.

use std::collections::{BTreeMap, BTreeSet};

use super::input::{Answered, Input, Outcome, Reply, Writes};
use super::reader::Fact;
use super::server::{At, Key, Name, Outside};
use super::world::World;
use crate::lock::effect::Answer;
use crate::lock::table::{NO_PERMISSION, NO_TOKENS, Refusal};
use crate::lock::types::{TOKEN_MAX, Token};

/// What an owner was promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Promise {
    pub(super) owner: Name,
    pub(super) token: Token,
    /// Until when the hold must live, in the world's time; then it must be gone.
    pub(super) until: u64,
    /// Whether the owner knows of it by more than the answer to a wait, which may get lost.
    pub(super) is_known: bool,
    /// The client of the grant was gone before it was told, and the owner knows nothing of it: the next run
    /// of the pump must take it back.
    pub(super) is_ownerless: bool,
}

/// A request in line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    pub(super) wait: u32,
    pub(super) owner: Name,
    pub(super) client: u64,
    pub(super) lease_ms: u64,
    pub(super) is_minted: bool,
    /// Until when, in the world's time; `None`: without limit.
    pub(super) until: Option<u64>,
}

/// See the [module](self).
#[derive(Clone, Default)]
pub(super) struct Judge {
    pub(super) promises: BTreeMap<At, Promise>,
    pub(super) lines: BTreeMap<At, Vec<Pending>>,
    /// Where an empty lock may stand: somebody renamed, moved, swapped or restored it.
    empties: BTreeSet<At>,
    newest: u64,
    /// The place in line that the running acquire took over.
    taken_over: Option<usize>,
    /// What happened at least once: a check that never saw its case proves nothing.
    pub(super) seen: BTreeSet<&'static str>,
}

/// A verdict.
type Verdict = Result<(), String>;

fn must(holds: bool, broken: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(broken()) }
}

impl Judge {
    /// Judges one step. `world` is as it is after it.
    pub(super) fn judge(&mut self, input: &Input, out: &Outcome, world: &World) -> Verdict {
        self.taken_over = None;
        for fact in &out.facts {
            if let Fact::Outside(what) = fact {
                self.outside(what, world);
            }
        }
        match *input {
            Input::Close(client) | Input::Unblock(client) => self.gone(client, out),
            Input::Release { at, owner, token } => self.released(at, owner, token, out.reply, world)?,
            // It may end a hold that is over and so have its own owner's waiting request granted: after its reply.
            Input::Renew { .. } => self.renewed(input, out.reply, world)?,
            _ => {}
        }
        for answered in &out.answers {
            self.answered(input, answered, world)?;
        }
        match *input {
            Input::Acquire { .. } => self.acquired(input, out.reply, world)?,
            Input::Pump => self.pumped(world)?,
            Input::Promote(_) if out.reply == Reply::Bool(true) => self.promoted(world)?,
            _ => {}
        }
        self.check(world)
    }

    /// Whether the same was promised to the same, and the same wait.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        self.promises == other.promises && self.lines == other.lines && self.newest == other.newest
    }

    /// The promise at a place that still binds.
    fn live(&self, at: At, world: &World) -> Option<Promise> {
        self.promises.get(&at).copied().filter(|promise| world.time < promise.until)
    }

    fn line(&self, at: At) -> &[Pending] {
        self.lines.get(&at).map_or(&[], Vec::as_slice)
    }

    /// Remembers that this happened.
    fn see(&mut self, what: &'static str) {
        self.seen.insert(what);
    }

    /// Somebody did something to keys: the holds there are broken, and no others (SPEC 5).
    fn outside(&mut self, what: &Outside, world: &World) {
        let is_broken = |at: &At| match *what {
            Outside::Del(gone) | Outside::Set(gone) | Outside::Move(gone, _) => *at == gone,
            Outside::Rename(from, to) => *at == from || *at == to,
            Outside::Flush(db, _) => db.is_none_or(|db| db == at.db),
            Outside::Swap(a, b) => a != b && (at.db == a || at.db == b),
            Outside::Restore(over, _) => *at == over,
        };
        let time = world.time;
        let mut was_live = false;
        self.promises.retain(|at, promise| {
            let stays = !is_broken(at);
            was_live |= !stays && time < promise.until;
            stays
        });
        if was_live {
            self.see("broken");
        }
        match *what {
            Outside::Rename(_, to) => drop(self.empties.insert(to)),
            Outside::Move(from, db) => drop(self.empties.insert(At { db, ..from })),
            Outside::Swap(a, b) => {
                let swapped = world.server.keys.keys().filter(|at| at.db == a || at.db == b);
                self.empties.extend(swapped);
            }
            Outside::Restore(at, None) => drop(self.empties.insert(at)),
            Outside::Restore(at, Some(ref saved)) => {
                self.newest = self.newest.max(saved.token.get());
                if let Some(owner) = world.owner(&saved.owner) {
                    let until = time + saved.left_ms * 1000;
                    // Whoever made the payload knows of the hold.
                    let promise =
                        Promise { owner, token: saved.token, until, is_known: true, is_ownerless: false };
                    self.promises.insert(at, promise);
                    self.see("restored");
                }
            }
            _ => {}
        }
    }

    /// G8: the requests of this connection are no more; its undelivered grants wait to be taken back.
    fn gone(&mut self, client: u64, out: &Outcome) {
        for line in self.lines.values_mut() {
            let before = line.len();
            line.retain(|pending| pending.client != client);
            if line.len() < before {
                self.seen.insert("left the line");
            }
        }
        for &(at, token) in &out.undelivered {
            if let Some(promise) = self.promises.get_mut(&at).filter(|promise| promise.token == token) {
                promise.is_ownerless = !promise.is_known;
            }
        }
    }

    /// G10: a release ends a hold of its own owner, and if it names a token, that one only.
    fn released(
        &mut self,
        at: At,
        owner: Name,
        token: Option<Token>,
        reply: Reply,
        world: &World,
    ) -> Verdict {
        let held = self.live(at, world);
        let is_own = held.is_some_and(|p| p.owner == owner && token.is_none_or(|token| token == p.token));
        match reply {
            Reply::Bool(is_released) => {
                must(is_released == is_own, || format!("G10: release by {owner:?} of {held:?}: {reply:?}"))?;
            }
            Reply::Refused(Refusal::WrongType) => self.is_foreign(at, world)?,
            Reply::None if world.refuses(at) => return Ok(()),
            _ => return Err(format!("a release was answered {reply:?}")),
        }
        if is_own {
            self.promises.remove(&at);
            self.see("released");
        } else if held.is_some() {
            self.see("release refused");
        }
        Ok(())
    }

    /// The key holds something else, and nobody waits there whom that could concern.
    fn is_foreign(&mut self, at: At, world: &World) -> Verdict {
        self.see("wrong type");
        let is_other = world.server.keys.get(&at) == Some(&Key::Other);
        must(is_other && self.line(at).is_empty(), || format!("{at} was called a wrong type"))
    }

    fn answered(&mut self, input: &Input, answered: &Answered, world: &World) -> Verdict {
        let &Answered { wait, at, client, ref answer } = answered;
        let line = self.lines.entry(at).or_default();
        let Some(index) = line.iter().position(|pending| pending.wait == wait) else {
            return Err(format!(
                "G7, G8: wait {wait} of connection {client} is over and was told {answer:?}"
            ));
        };
        let pending = line.remove(index);
        let is_over = pending.until.is_some_and(|until| until <= world.time);
        let Pending { owner, lease_ms, is_minted, .. } = pending;
        if let (Answer::Granted { token, .. }, Some(promise)) = (answer, self.live(at, world))
            && (promise.owner, promise.token) == (owner, *token)
        {
            // G9: a RESTORE made it hold what it waits for.
            self.see("told of its own hold");
            return Ok(());
        }
        let (is_justified, what) = match *answer {
            Answer::Granted { ref place, token, ref minted_owner } => {
                let named = minted_owner.as_deref();
                must(named == is_minted.then_some(owner.as_bytes()), || {
                    format!("{owner:?} is called {named:?}")
                })?;
                must(index == 0, || format!("G5: {owner:?} was granted {at} before {:?}", self.line(at)))?;
                must(!is_over, || format!("G7: {owner:?} was granted {at} after its time"))?;
                self.new_hold(at, owner, token, lease_ms, world)?;
                (
                    place.as_place() == at.place() && !world.forbidden.contains(&client),
                    "granted out of the line",
                )
            }
            Answer::TimedOut => (is_over, "timed out"),
            Answer::Withdrawn => (
                matches!(*input, Input::Release { at: its, owner: who, .. } if its == at && who == owner),
                "withdrawn",
            ),
            Answer::Replaced => {
                self.taken_over = Some(index);
                let is_same = |its, who| its == at && who == owner;
                let is_retry =
                    matches!(*input, Input::Acquire { at, owner, wait: Some(_), .. } if is_same(at, owner));
                (is_retry, "replaced")
            }
            Answer::Refused(NO_PERMISSION) => (world.forbidden.contains(&client), "forbidden"),
            Answer::Refused(NO_TOKENS) => (self.newest == TOKEN_MAX, "no tokens"),
            Answer::Refused(_) => (false, "refused"),
            Answer::Demoted => (matches!(input, Input::Promote(_)), "demoted"),
            Answer::Moved(_) => (world.elsewhere.contains(&at), "sent on"),
        };
        self.see(what);
        must(is_justified, || format!("G7: {owner:?} at {at} was told {answer:?} at {input:?}"))
    }

    /// A hold began.
    fn new_hold(&mut self, at: At, owner: Name, token: Token, lease_ms: u64, world: &World) -> Verdict {
        let before = self.promises.get(&at).copied();
        if let Some(promise) = before {
            let is_live = world.time < promise.until;
            must(!is_live || promise.is_ownerless, || {
                format!("G1: {owner:?} was granted {at}, which {:?} holds", promise.owner)
            })?;
            self.see(if is_live { "taken back and passed on" } else { "expired and passed on" });
        }
        must(token.get() > self.newest, || format!("G4: {token} was minted after {}", self.newest))?;
        self.newest = token.get();
        let until = world.time + lease_ms * 1000;
        self.promises.insert(at, Promise { owner, token, until, is_known: false, is_ownerless: false });
        Ok(())
    }

    fn acquired(&mut self, input: &Input, reply: Reply, world: &World) -> Verdict {
        let Input::Acquire { at, owner, lease_ms, wait, client, minted: is_minted } = *input else {
            return Ok(());
        };
        let held = self.live(at, world);
        let until = world.time + lease_ms * 1000;
        match (reply, held) {
            (Reply::Granted(token), Some(promise)) if promise.owner == owner => {
                must(token == promise.token, || format!("G9: {owner:?} held {promise:?} and got {token}"))?;
                self.see(if until > promise.until { "retried" } else { "retried, lease kept" });
                if promise.is_ownerless {
                    self.see("retried after an undelivered grant");
                }
                let until = until.max(promise.until);
                let promise = Promise { until, is_known: true, is_ownerless: false, ..promise };
                self.promises.insert(at, promise);
                Ok(())
            }
            (Reply::Granted(token), _) => {
                must(self.line(at).is_empty(), || format!("G5: {owner:?} passed {:?}", self.line(at)))?;
                self.see("granted at once");
                self.new_hold(at, owner, token, lease_ms, world)?;
                self.promises.entry(at).and_modify(|promise| promise.is_known = true);
                Ok(())
            }
            (Reply::Busy | Reply::Waiting(_), None) => {
                Err(format!("G6: {owner:?} was turned away from {at}, which nobody holds"))
            }
            (Reply::Busy | Reply::Waiting(_), Some(promise)) if promise.owner == owner => {
                Err(format!("G9: {owner:?} holds {at} and was told {reply:?}"))
            }
            (Reply::Busy, Some(_)) => must(wait.is_none(), || "it wanted to wait".to_owned()),
            (Reply::Waiting(number), Some(_)) => {
                let until = wait.filter(|&ms| ms != 0).map(|ms| world.time + ms * 1000);
                self.joined(at, Pending { wait: number, owner, client, lease_ms, is_minted, until })
            }
            (Reply::Refused(why), _) => self.refused(at, owner, why, world),
            (Reply::None, _) => must(world.refuses(at), || "an acquire got no answer".to_owned()),
            _ => Err(format!("an acquire was answered {reply:?}")),
        }
    }

    /// G9: a place in line for each owner, however often it asks.
    fn joined(&mut self, at: At, pending: Pending) -> Verdict {
        let taken_over = self.taken_over;
        let line = self.lines.entry(at).or_default();
        let is_twice = line.iter().any(|other| other.owner == pending.owner);
        line.insert(taken_over.unwrap_or(line.len()).min(line.len()), pending);
        self.see("waited");
        must(!is_twice, || format!("G9: {:?} stands in the line of {at} twice", pending.owner))
    }

    fn refused(&mut self, at: At, owner: Name, why: Refusal, world: &World) -> Verdict {
        let is_new = self.line(at).iter().all(|pending| pending.owner != owner);
        let waiting: usize = self.lines.values().map(Vec::len).sum();
        let (is_justified, what) = match why {
            Refusal::WrongType => return self.is_foreign(at, world),
            Refusal::LineIsFull(max) => {
                let is_full = max == world.limits.waiters_per_lock_max && self.line(at).len() >= max;
                (is_new && is_full && self.live(at, world).is_some(), "line full")
            }
            Refusal::ServerIsFull(max) => {
                let is_full = max == world.limits.waiters_max && waiting >= max;
                (is_new && is_full && self.live(at, world).is_some(), "server full")
            }
            Refusal::TooManyLocks => (false, "too many locks"),
            Refusal::NoTokens => (self.newest == TOKEN_MAX && self.live(at, world).is_none(), "no tokens"),
        };
        self.see(what);
        must(is_justified, || format!("{owner:?} was refused {at}: {why:?}"))
    }

    fn renewed(&mut self, input: &Input, reply: Reply, world: &World) -> Verdict {
        let Input::Renew { at, owner, token, lease_ms, .. } = *input else {
            return Ok(());
        };
        let held = self.live(at, world);
        let own = held.filter(|p| p.owner == owner && token.is_none_or(|token| token == p.token));
        match (reply, own) {
            (Reply::Bool(true), Some(promise)) => {
                let until = world.time + lease_ms * 1000;
                self.see(if until < promise.until { "renewed, shorter" } else { "renewed" });
                let promise = Promise { until, is_known: true, is_ownerless: false, ..promise };
                self.promises.insert(at, promise);
                Ok(())
            }
            (Reply::Bool(false), None) => Ok(()),
            (Reply::Bool(_), _) => Err(format!("G10: renewal by {owner:?} of {held:?}: {reply:?}")),
            (Reply::Refused(Refusal::WrongType), _) => self.is_foreign(at, world),
            _ => must(world.refuses(at), || format!("a renewal was answered {reply:?}")),
        }
    }

    /// What must be done when the pump has run.
    fn pumped(&mut self, world: &World) -> Verdict {
        let over = |pending: &&Pending| pending.until.is_some_and(|until| until <= world.time);
        let late = self.lines.values().flatten().find(over);
        must(late.is_none(), || format!("G7: {late:?} waits beyond its time"))?;
        if world.writes == Writes::Paused {
            return Ok(());
        }
        for &at in world.server.keys.keys() {
            let is_over = world.server.saved(at).is_some() && world.server.live_token(at).is_none();
            must(!is_over || world.is_left_alone(at), || format!("G3: the hold at {at} is over and there"))?;
        }
        let ownerless: Vec<At> =
            self.promises.iter().filter(|(_, p)| p.is_ownerless).map(|(&at, _)| at).collect();
        for at in ownerless {
            let token = self.promises.remove(&at).map(|promise| promise.token);
            must(world.server.live_token(at) != token, || format!("G8: {at} is held by nobody"))?;
            self.see("taken back");
        }
        let is_free = |at: &At| self.live(*at, world).is_none() && !self.line(*at).is_empty();
        let forgotten = self.lines.keys().find(|at| is_free(at) && !world.is_left_alone(**at));
        must(forgotten.is_none() || world.writes == Writes::Refused, || {
            format!("G6: nobody holds {forgotten:?}, and {:?} wait", self.lines)
        })
    }

    /// A reader became the primary: it knows every hold, and no lease is shorter (SPEC 5).
    fn promoted(&mut self, world: &World) -> Verdict {
        for (at, promise) in &mut self.promises {
            let is_live = world.time < promise.until;
            let saved = world.server.saved(*at).filter(|saved| saved.token == promise.token);
            let until = saved.map_or(0, |saved| world.time + saved.left_ms * 1000);
            must(!is_live || until >= promise.until, || format!("G2: {at} of {promise:?} ends at {until}"))?;
            *promise = Promise { until, is_ownerless: false, ..*promise };
        }
        self.see("promoted");
        must(self.lines.values().all(Vec::is_empty), || "G7: somebody waits at a demoted server".to_owned())
    }

    /// What must hold after every step.
    fn check(&mut self, world: &World) -> Verdict {
        let server = &world.server;
        for &at in self.promises.keys().chain(server.keys.keys()) {
            self.check_hold(at, world)?;
        }
        let is_empty =
            |at: &At| matches!(server.keys.get(at), Some(Key::Lock(_))) && server.saved(*at).is_none();
        self.empties.retain(is_empty);
        let left = server.keys.keys().find(|at| is_empty(at) && !self.empties.contains(at));
        must(left.is_none(), || format!("a lock that nobody holds was left at {left:?}"))?;
        self.lines.retain(|_, line| !line.is_empty());
        let waiting = self.lines.values().map(Vec::len).sum();
        must(server.table.waiters() == waiting, || {
            format!("G7, G8: {} wait, and {waiting} should: {:?}", server.table.waiters(), self.lines)
        })
    }

    /// A promised hold is there, with the lease that was promised; and there is no other.
    fn check_hold(&self, at: At, world: &World) -> Verdict {
        let token = world.server.live_token(at);
        let Some(promise) = self.live(at, world) else {
            return must(token.is_none(), || format!("G3: {at} is held ({token:?}) by nobody's right"));
        };
        if promise.is_ownerless {
            return Ok(());
        }
        must(token == Some(promise.token), || {
            format!("G2, G10: {at} is {token:?} now, and {promise:?} was not ended by anybody who may")
        })?;
        let left_ms = world.server.saved(at).map(|saved| saved.left_ms);
        let promised_ms = (promise.until - world.time).div_ceil(1000);
        must(left_ms == Some(promised_ms), || {
            format!("G2, G3: {left_ms:?} ms are left at {at}, and {promised_ms} were promised")
        })
    }
}
