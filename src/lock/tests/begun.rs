//! What the [judge](super::judge) says of holds that begin, of what has to be confirmed of them, and of
//! grants that were not confirmed and are undone.

use super::book::Hold;
use super::input::{Begun, Outcome, Writes};
use super::judge::{Judge, Pending, Verdict, must};
use super::server::At;
use super::world::World;
use crate::lock::effect::Answer;
use crate::lock::types::Token;

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
        let Pending { owner, mode, lease_ms, binding, client, .. } = *asked;
        must(self.is_free_for(at, owner, mode, world), || {
            format!("G1: {owner:?} was granted {at} ({mode:?}) beside {:?}", self.promises.get(&at))
        })?;
        // Its own hold, in the same way and nowhere else, would have been the same hold (G9).
        let before = self.own(at, owner, world);
        must(before.is_none_or(|before| before.is_ownerless), || {
            format!("G9: {owner:?} held {before:?} and got {token}")
        })?;
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
        self.begun.push(Begun { at, token, owner });
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
        self.promise(at, new);
        Ok(())
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
        must(begun == self.begun, || format!("to be undone are {:?}, not {begun:?}", self.begun))
    }

    /// A grant is undone: of the hold that it was about goes what it did, and nothing else. Another owner's hold, and
    /// a later one of the same owner, are none of its business (G10).
    pub(super) fn undone(&mut self, begun: &Begun, world: &World) {
        let Begun { at, token, owner } = *begun;
        if world.writes == Writes::Paused || world.elsewhere.contains(&at) {
            return;
        }
        let Some(own) = self.own(at, owner, world).filter(|own| own.token == token) else {
            self.see("undone, nothing left");
            return;
        };
        if own.count == 1 {
            self.promises.entry(at).or_default().retain(|promise| promise.token != token);
            self.see("undone, ended");
        } else {
            self.promise(at, Hold { count: own.count - 1, ..own });
            self.see("undone, one count");
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
