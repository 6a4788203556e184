//! What the [judge](super::judge) says of holds that begin or go on, of what has to be confirmed of them, and of
//! grants that were not confirmed and are undone.

use super::book::{Asked, Hold};
use super::input::{Begun, Outcome, Writes};
use super::judge::{Judge, Pending, Verdict, must};
use super::server::At;
use super::world::World;
use crate::lock::codec::SavedHold;
use crate::lock::effect::Answer;
use crate::lock::types::{Mode, Token};

impl Judge {
    /// A hold began in all these locks.
    pub(super) fn new_holds(
        &mut self,
        asked: &Pending,
        token: Token,
        is_acknowledged: bool,
        world: &World,
    ) -> Verdict {
        must(token.get() > self.newest, || format!("G4: {token} was minted after {}", self.newest))?;
        self.newest = token.get();
        for at in asked.keys.iter() {
            self.new_hold(at, asked, token, is_acknowledged, world)?;
        }
        Ok(())
    }

    fn new_hold(
        &mut self,
        at: At,
        asked: &Pending,
        token: Token,
        is_acknowledged: bool,
        world: &World,
    ) -> Verdict {
        let Pending { owner, mode, lease_ms, binding, client, is_reentrant, .. } = *asked;
        must(self.is_free_for(at, owner, mode, world), || {
            format!("G1: {owner:?} was granted {at} ({mode:?}) beside {:?}", self.promises.get(&at))
        })?;
        let before = self.own(at, owner, world);
        // Its own hold, in the same way and nowhere else, would have been the same hold (G9).
        let is_upgrade = |before: Hold| (before.mode, mode) == (Mode::Shared, Mode::Exclusive);
        let is_new = before.is_none_or(|before| is_upgrade(before) || before.is_ownerless);
        must(is_new, || format!("G9: {owner:?} held {before:?} and got {token}"))?;
        let others = self.promises.entry(at).or_default();
        let was_over = others.iter().any(|promise| !promise.is_live(world.time));
        // What nobody was told of may go for a new hold, or stand beside it until the pump takes it back.
        let is_taken_back = |promise: &Hold| promise.is_ownerless && !world.server.is_live(at, promise.token);
        let was_ownerless =
            others.iter().any(|promise| is_taken_back(promise) && promise.is_live(world.time));
        others.retain(|promise| promise.is_live(world.time) && !is_taken_back(promise));
        if was_over {
            self.see("expired and passed on");
        }
        if was_ownerless {
            self.see("taken back and passed on");
        }
        let is_upgrade = before.is_some_and(|before| (before.mode, mode) == (Mode::Shared, Mode::Exclusive));
        if is_upgrade {
            self.see("upgraded");
        }
        let new = Hold {
            owner,
            token,
            mode,
            until: world.time + lease_ms * 1000,
            lease_ms,
            count: 1,
            binding,
            client: Some(client).filter(|_| !binding.is_none()),
            is_acknowledged,
            is_ownerless: false,
        };
        // What its owner holds goes on, and lasts no shorter (G2).
        let asked = Asked { lease_ms, binding, client: Some(client), is_reentrant };
        let goes_on = before.map(|before| before.goes_on(token, mode, world.time, asked));
        // Unless that was to be taken back: then it may have been before this grant.
        let is_sure = is_acknowledged || before.is_none_or(|before| !before.is_ownerless);
        let goes_on = goes_on.filter(|hold| is_sure || is_there(at, hold, world));
        let goes_on = goes_on.map(|hold| Hold { is_acknowledged, ..hold });
        if let (false, Some(before), Some(after)) = (is_acknowledged, before, goes_on) {
            self.untold.push(at, before, &after, client);
            self.see("went on out of the line");
        }
        if let Some(before) = before.filter(|_| goes_on.is_some()) {
            self.begun_goes_on(at, before, token);
        }
        let (counts, is_upgrade) = (goes_on.is_none(), goes_on.is_some() && is_upgrade);
        let parts = [(counts, false), (false, is_upgrade)];
        let begun = parts.map(|(counts, is_upgrade)| Begun { at, token, owner, counts, is_upgrade });
        self.begun.extend(begun);
        self.promise(at, goes_on.unwrap_or(new));
        Ok(())
    }

    /// What this step began of a hold that goes on is undone under the token that the hold has now.
    fn begun_goes_on(&mut self, at: At, before: Hold, token: Token) {
        let of_hold = (at, before.owner, before.token);
        let earlier = self.begun.iter_mut().filter(|begun| (begun.at, begun.owner, begun.token) == of_hold);
        earlier.for_each(|begun| begun.token = token);
    }

    /// G9: an owner that asks again in the step that granted its older request holds what both asked for.
    pub(super) fn hold_as_asked(&mut self, pending: &Pending, world: &World) {
        let Some((at, before)) =
            pending.keys.first().and_then(|at| Some((at, self.own(at, pending.owner, world)?)))
        else {
            return;
        };
        let Pending { lease_ms, binding, client, is_reentrant, .. } = *pending;
        let mode = if before.mode == Mode::Exclusive { pending.mode } else { before.mode };
        let after = before.as_asked(
            mode,
            world.time,
            Asked { lease_ms, binding, client: Some(client), is_reentrant },
        );
        let Some(after) = after else { return };
        self.untold.push(at, before, &after, client);
        self.promise(at, after);
    }

    /// G8: what nobody was told of is taken back, and what its owner held before goes on.
    pub(super) fn take_back(&mut self, world: &World) {
        if world.writes != Writes::Allowed {
            return;
        }
        for (&at, promises) in &mut self.promises {
            for number in 0..promises.len() {
                let mut others = promises.clone();
                let promise = others.remove(number);
                others.retain(|other| !other.is_ownerless && other.is_live(world.time));
                if let Some(left) = self.untold.take_back(at, promise, &others, world.time)
                    && left != promise
                {
                    self.seen.insert("taken back, an earlier hold goes on");
                    promises[number] = left;
                }
            }
        }
    }

    /// By now all are told whose answers have arrived.
    pub(super) fn settle_untold(&mut self, world: &World) {
        let mut untold = std::mem::take(&mut self.untold);
        let own = |at: At, owner| self.promises.get(&at)?.iter().find(|own| own.owner == owner).copied();
        for (at, owner) in untold.settle(world, own) {
            let mut promises = self.promises.entry(at).or_default().iter_mut();
            promises.find(|own| own.owner == owner).into_iter().for_each(|own| own.is_acknowledged = true);
        }
        self.untold = untold;
    }

    /// Whatever somebody has now that it had not before can be undone: each grant names it in each of its locks, once.
    /// A retry that counts nothing names nothing.
    pub(super) fn check_begun(&mut self, out: &Outcome, world: &World) -> Verdict {
        let mut begun = out.begun.clone();
        begun.sort_unstable();
        // Nobody needs it then, unless something of before is still to be undone.
        if !world.confirms && begun.is_empty() {
            self.begun.clear();
        }
        self.begun.sort_unstable();
        // What took nothing needs nobody to give it back, and the server does not say.
        self.begun.retain(|begun| begun.counts || begun.is_upgrade);
        must(begun == self.begun, || format!("to be undone are {:?}, not {begun:?}", self.begun))
    }

    /// A grant is undone: of the hold that it was about goes what it did, and nothing else. Another owner's hold, and
    /// a later one of the same owner, are none of its business (G10).
    pub(super) fn undone(&mut self, begun: &Begun, world: &World) {
        let Begun { at, token, owner, counts, is_upgrade } = *begun;
        if world.writes == Writes::Paused || world.elsewhere.contains(&at) {
            return;
        }
        let Some(own) = self.own(at, owner, world).filter(|own| own.token == token) else {
            self.see("undone, nothing left");
            return;
        };
        if counts && own.count == 1 {
            self.promises.entry(at).or_default().retain(|promise| promise.token != token);
            self.see("undone, ended");
            return;
        }
        let is_opened = is_upgrade && own.mode == Mode::Exclusive;
        let mode = if is_opened { Mode::Shared } else { own.mode };
        let mut left = Some(Hold { count: own.count - u32::from(counts), mode, ..own });
        if is_opened {
            left = left.and_then(|hold| self.untold.undo_upgrade(at, hold, world.time));
        }
        match left {
            Some(hold) => self.promise(at, hold),
            None => self.promises.entry(at).or_default().retain(|promise| promise.token != token),
        }
        if counts {
            self.see("undone, one count");
        }
        if is_opened {
            self.see("undone, an upgrade");
        }
    }

    /// G6: the request that is next for what was undone has it in the same step.
    pub(super) fn passed_on(&mut self, at: At, out: &Outcome, world: &World) -> Verdict {
        if out.answers.iter().any(|told| matches!(told.answer, Answer::Granted { .. })) {
            self.see("undone and passed on");
        }
        // What is to be taken back is not free before it is.
        let is_held = self.live(at, world).any(|hold| hold.is_ownerless);
        if is_held || world.writes != Writes::Allowed {
            return Ok(());
        }
        let is_one = |pending: &&Pending| !pending.is_reservation() && pending.keys.len() == 1;
        let forgotten = self.queue(at).iter().filter(is_one).find(|pending| self.is_next(at, pending, world));
        must(forgotten.is_none(), || {
            format!(
                "G6: {forgotten:?} could have {at} at {}: {:?} hold, and {:?} wait",
                world.time,
                self.promises.get(&at),
                self.queue(at)
            )
        })
    }
}

/// Whether the server has this hold, as it is said to be.
pub(super) fn is_there(at: At, hold: &Hold, world: &World) -> bool {
    let left_ms = hold.left_ms(world.time);
    let is_it = |saved: &SavedHold| {
        (saved.token, saved.count, saved.binding) == (hold.token, hold.count, hold.binding)
            && saved.left_ms == left_ms
    };
    world.server.saved(at).is_some_and(|saved| saved.holds.iter().any(is_it))
}
