//! The [judge](crate::sim::checkers::judge)'s rules for holds that begin.

use crate::lock::types::Token;
use crate::sim::checkers::book::Hold;
use crate::sim::checkers::judge::{Judge, Pending, Verdict, must};
use crate::sim::single::server::At;
use crate::sim::single::world::World;

impl Judge {
    /// Checks new holds of all these locks.
    pub(crate) fn new_holds(
        &mut self,
        asked: &Pending,
        token: Token,
        is_told_later: bool,
        world: &World,
    ) -> Verdict {
        must(token.get() > self.newest, || format!("G4: {token} was minted after {}", self.newest))?;
        self.newest = token.get();
        for at in asked.keys.iter() {
            self.new_hold(at, asked, token, is_told_later, world)?;
        }
        Ok(())
    }

    fn new_hold(
        &mut self,
        at: At,
        asked: &Pending,
        token: Token,
        is_told_later: bool,
        world: &World,
    ) -> Verdict {
        let Pending { owner, mode, lease_ms, binding, client, .. } = *asked;
        must(self.is_free_for(at, owner, mode, world), || {
            format!("G1: {owner:?} was granted {at} ({mode:?}) beside {:?}", self.promises.get(&at))
        })?;
        // A retry of its own hold, in the same mode and at no other key, would have kept that hold (G9).
        let before = self.own(at, owner, world);
        must(before.is_none_or(|before| before.is_ownerless()), || {
            format!("G9: {owner:?} held {before:?} and got {token}")
        })?;
        let others = self.promises.entry(at).or_default();
        let was_over = others.iter().any(|promise| !promise.is_live(world.time));
        // An undelivered hold may be replaced by a new hold, or stay alongside it until the pump revokes it.
        let is_taken_back =
            |promise: &Hold| promise.is_ownerless() && !world.server.is_live(at, promise.token);
        let was_ownerless =
            others.iter().any(|promise| is_taken_back(promise) && promise.is_live(world.time));
        others.retain(|promise| promise.is_live(world.time) && !is_taken_back(promise));
        if was_over {
            self.see("expired and passed on");
        }
        if was_ownerless {
            self.see("taken back and passed on");
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
            outstanding: (is_told_later || world.confirms).then_some(1),
        };
        self.promise(at, new);
        Ok(())
    }

    /// Drops an undelivered hold when its owner asks for something else.
    pub(crate) fn revoked(&mut self, asked: &Pending, world: &World) {
        let owns: Vec<Option<Hold>> = asked.keys.iter().map(|at| self.own(at, asked.owner, world)).collect();
        let is_own = |own: &Option<Hold>| {
            own.is_some_and(|own| {
                owns[0].is_some_and(|first| own.token == first.token) && own.mode == asked.mode
            })
        };
        if owns.iter().all(is_own) {
            return;
        }
        for (at, own) in asked.keys.iter().zip(&owns) {
            if let Some(own) = own.filter(Hold::is_ownerless)
                && !world.server.is_live(at, own.token)
            {
                self.promises.entry(at).or_default().retain(|promise| promise.owner != asked.owner);
                self.see("revoked before another request");
            }
        }
    }
}
