//! Grants out of a queue by which a hold went on, as long as nobody knows whether its owner is told (G8). The judge and
//! the oracle both have to know of them.

use super::book::Hold;
use super::input::Outcome;
use super::server::{At, Name};
use super::world::World;
use crate::lock::types::{Mode, Token};

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grant {
    at: At,
    /// What its owner held before.
    before: Hold,
    /// Under which token the hold went on.
    token: Token,
    /// It takes one release more.
    counts: bool,
    /// The client that is to be told.
    client: u64,
    /// It was told that it has nothing: the grant could not be confirmed.
    is_refused: bool,
}

/// All of them, in their order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Untold(Vec<Grant>);

impl Untold {
    /// A hold went on, and this client is to be told.
    pub(super) fn push(&mut self, at: At, before: Hold, after: &Hold, client: u64) {
        let counts = after.count > before.count;
        self.0.push(Grant { at, before, token: after.token, counts, client, is_refused: false });
    }

    /// What the holds at a key were before, the first one first, with the client that is to be told that they are more.
    pub(super) fn at(&self, at: At) -> impl Iterator<Item = (Hold, u64, bool)> {
        let grants = self.0.iter().filter(move |grant| grant.at == at);
        grants.map(|grant| (grant.before, grant.client, grant.counts))
    }

    fn of(&mut self, at: At, owner: Name) -> impl DoubleEndedIterator<Item = &mut Grant> {
        self.0.iter_mut().filter(move |grant| (grant.at, grant.before.owner) == (at, owner))
    }

    /// A connection has closed: it was told of none of these, and what is bound to it runs from here. What was granted
    /// beside an earlier hold is about to be taken back, and not cut. It stands still where the earlier hold does.
    pub(super) fn close(&mut self, at: At, hold: &mut Hold, client: u64, time: u64, out: &Outcome) {
        let is_lost = |hold: &Hold| !hold.is_acknowledged && out.undelivered.contains(&(at, hold.token));
        hold.is_ownerless |= is_lost(hold);
        // What its owner held before, and goes on holding.
        let mut earlier: Option<Hold> = None;
        let untie = |hold: &mut Hold, earlier: Option<Hold>, is_cut: bool| {
            let still = earlier.filter(|earlier| earlier.is_paused() && earlier.client.is_some());
            match still {
                _ if hold.client != Some(client) => {}
                Some(still) => hold.stand_still_as(&still),
                None => hold.untied(time, is_cut),
            }
        };
        for grant in self.of(at, hold.owner) {
            grant.before.is_ownerless |= grant.before.token != hold.token && is_lost(&grant.before);
            untie(&mut grant.before, earlier, true);
            earlier = Some(grant.before);
        }
        untie(hold, earlier, earlier.is_none());
    }

    /// What is left of a hold when all is taken back of which its owner was not told, beside these others.
    pub(super) fn take_back(&mut self, at: At, hold: Hold, others: &[Hold], time: u64) -> Option<Hold> {
        let mut hold = hold;
        while hold.is_ownerless {
            let is_it =
                |grant: &Grant| (grant.at, grant.before.owner, grant.token) == (at, hold.owner, hold.token);
            let Grant { before, counts, .. } = self.0.remove(self.0.iter().rposition(is_it)?);
            let count = hold.count - u32::from(counts);
            if count == 0 || !before.is_live(time) {
                return None;
            }
            // Others came in where it asked for less.
            let mode = if others.is_empty() { before.mode } else { hold.mode };
            let is_taken = others.iter().any(|other| other.token == before.token);
            let token = if is_taken { hold.token } else { before.token };
            hold = Hold { count, mode, token, ..before };
        }
        Some(hold)
    }

    /// What is left of a hold, which is shared again, when an upgrade out of a queue is undone: it lasts and is bound as
    /// before. `None`: then it is over by now.
    pub(super) fn undo_upgrade(&mut self, at: At, hold: Hold, time: u64) -> Option<Hold> {
        let is_its = |grant: &Grant| (grant.at, grant.before.owner) == (at, hold.owner);
        let is_it = |grant: &Grant| grant.token == hold.token && grant.before.mode == Mode::Shared;
        let last = self.0.iter().rposition(is_its).filter(|&last| is_it(&self.0[last]));
        let Some(last) = last.filter(|_| !hold.is_acknowledged) else { return Some(hold) };
        let Grant { before, .. } = self.0.remove(last);
        let Hold { count, mode, token, .. } = hold;
        Some(Hold { count, mode, token, ..before }).filter(|hold| hold.is_live(time))
    }

    /// What will be left of a hold that is not taken back yet.
    pub(super) fn known(&self, at: At, hold: Hold, time: u64) -> Option<Hold> {
        self.clone().take_back(at, hold, &[], time)
    }

    /// Forgets grants that matter no more. Returns whose holds are known to their owners by now.
    pub(super) fn settle(
        &mut self,
        world: &World,
        own: impl Fn(At, Name) -> Option<Hold>,
    ) -> Vec<(At, Name)> {
        for Grant { client, before, is_refused, .. } in &mut self.0 {
            *is_refused |= world.refused.contains(&(*client, before.owner));
        }
        let mut told = Vec::new();
        let mut number = self.0.len();
        while number > 0 {
            number = (number - 1).min(self.0.len().saturating_sub(1));
            let Some(&Grant { at, before: Hold { owner, .. }, token, client, is_refused, .. }) =
                self.0.get(number)
            else {
                break;
            };
            let is_own = |grant: &Grant| (grant.at, grant.before.owner) == (at, owner);
            let above = self.0[number + 1..].iter_mut().find(|grant| is_own(grant));
            let held = above.as_ref().map(|above| above.before).or_else(|| own(at, owner));
            let held = held.filter(|held| held.token == token && !held.is_acknowledged);
            let mut all = world.blocked.values();
            let is_waiting = all.any(|blocked| (blocked.client, blocked.owner) == (client, owner));
            if held.is_some_and(|held| held.is_ownerless || is_waiting || is_refused) {
                continue;
            }
            match (held, above) {
                (Some(_), Some(above)) => above.before.is_acknowledged = true,
                (Some(_), None) => told.push((at, owner)),
                (None, _) => {}
            }
            // What the hold was before that is no matter, either.
            let mut index = 0;
            self.0.retain(|grant| {
                index += 1;
                index > number + 1 || !is_own(grant)
            });
        }
        told
    }
}
