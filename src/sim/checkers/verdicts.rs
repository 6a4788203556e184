//! The [judge](crate::sim::checkers::judge)'s rules for replies to clients that acquire, release or renew a lock, and for the state
//! after the pump and a promotion.

use crate::lock::codec::SavedHold;
use crate::lock::deadlock::Link;
use crate::lock::effect::Answer;
use crate::lock::table::Refusal;
use crate::lock::tests::tuning::count_max;
use crate::lock::types::{Binding, COUNT_MAX, Mode, TOKEN_MAX, Token};
use crate::sim::checkers::book::{Hold, Wish};
use crate::sim::checkers::judge::{Judge, Pending, Verdict, must};
use crate::sim::single::input::{How, Input, Keys, Outcome, Reply, Writes};
use crate::sim::single::server::{At, Name};
use crate::sim::single::world::World;

impl Judge {
    /// G10: a release ends a hold of its own owner; if it names a token, only that hold.
    pub(crate) fn released(
        &mut self,
        at: At,
        owner: Name,
        token: Option<Token>,
        reply: &Reply,
        world: &World,
    ) -> Verdict {
        // A reservation without a connection is withdrawn without an answer.
        let reservation =
            self.queue(at).iter().find(|pending| pending.is_reservation() && pending.owner == owner).copied();
        let held = self.own(at, owner, world).filter(|own| token.is_none_or(|token| token == own.token));
        match *reply {
            Reply::Bool(is_released) => {
                must(is_released == held.is_some(), || {
                    format!("G10: release by {owner:?} of {:?}: {reply:?}", self.promises.get(&at))
                })?;
            }
            Reply::Refused(Refusal::WrongType) => self.is_orphaned(at, world)?,
            Reply::None if world.refuses(at) => return Ok(()),
            _ => return Err(format!("a release was answered {reply:?}")),
        }
        if let Some(reservation) = reservation {
            self.strike(&reservation);
            self.see("place withdrawn");
        }
        match held {
            Some(own) if own.count > 1 => {
                self.promise(at, Hold { count: own.count - 1, ..own });
                self.see("one count released");
            }
            Some(own) => {
                self.promises.entry(at).or_default().retain(|promise| promise.token != own.token);
                self.see("released");
                if self.live(at, world).next().is_some() {
                    self.see("one of several released");
                }
            }
            None if self.live(at, world).next().is_some() => self.see("release refused"),
            None => {}
        }
        Ok(())
    }

    /// Checks a reply that says that the key holds another type.
    fn is_orphaned(&mut self, at: At, world: &World) -> Verdict {
        self.see("wrong type");
        must(world.is_other(at), || format!("{at} was called a wrong type"))
    }

    pub(crate) fn renewed(&mut self, input: &Input, reply: &Reply, world: &World) -> Verdict {
        let Input::Renew { at, owner, token, raise, lease_ms, client } = *input else {
            return Ok(());
        };
        let own = self.own(at, owner, world).filter(|own| token.is_none_or(|token| token == own.token));
        match (reply, own) {
            (Reply::Bool(true), Some(mut promise)) => {
                let is_shorter = promise.left_ms(world.time) > lease_ms;
                self.see(if is_shorter { "renewed, shorter" } else { "renewed" });
                promise.heard(world.time, promise.binding, Some(client), world.confirms);
                promise.last(world.time, lease_ms);
                if let Some(raise) = raise {
                    must(promise.mode == Mode::Exclusive, || format!("the token of {promise:?} was raised"))?;
                    promise.token = promise.token.max(raise);
                    self.newest = self.newest.max(raise.get());
                    self.see("raised");
                }
                self.promise(at, promise);
                Ok(())
            }
            (Reply::Bool(false), None) => Ok(()),
            (Reply::Refused(Refusal::Several(mode)), Some(own)) => {
                self.see("one of several not raised");
                let is_justified = raise.is_some() && own.mode == *mode && *mode != Mode::Exclusive;
                must(is_justified, || format!("{own:?} could not be raised: {reply:?}"))
            }
            (Reply::Bool(_), _) => {
                Err(format!("G10: renewal by {owner:?} of {:?}: {reply:?}", self.promises.get(&at)))
            }
            (Reply::Refused(Refusal::WrongType), _) => self.is_orphaned(at, world),
            _ => must(world.refuses(at), || format!("a renewal was answered {reply:?}")),
        }
    }

    /// Checks the grant of a waiting request: first come, first served, and all or nothing.
    pub(crate) fn granted(&mut self, pending: &Pending, answer: &Answer, world: &World) -> Verdict {
        let Pending { owner, keys, is_minted, .. } = *pending;
        let Answer::Granted { ref lock_key, ref others, token, ref minted_owner } = *answer else {
            return Ok(());
        };
        let named = minted_owner.as_deref();
        must(named == is_minted.then_some(owner.as_bytes()), || format!("{owner:?} is called {named:?}"))?;
        let told: Vec<_> =
            std::iter::once(lock_key).chain(others).map(|lock_key| lock_key.as_key()).collect();
        must(told.len() == keys.len() && keys.iter().all(|at| told.contains(&at.lock_key())), || {
            format!("G12: {owner:?} was granted {told:?} instead of {keys:?}")
        })?;
        for at in keys.iter() {
            let ahead = self.queue(at).iter().take_while(|other| other.number != pending.number);
            // A reservation that was not refreshed in time is lost.
            let is_lapsed =
                |other: &Pending| other.is_reservation() && other.until.is_some_and(|u| u <= world.time);
            let ahead: Vec<&Pending> = ahead.filter(|other| !is_lapsed(other)).collect();
            // a reservation keeps its place.
            let is_first = ahead.iter().all(|other| other.is_reserved() && pending.mode != Mode::Exclusive);
            must(is_first, || format!("G5: {owner:?} was granted {at} before {ahead:?}"))?;
        }
        let is_batch = pending.mode == Mode::Shared && self.live(key_of(keys), world).next().is_some();
        self.strike(pending);
        self.see("granted out of the line");
        if keys.len() > 1 {
            self.see("granted several out of the line");
        }
        if is_batch {
            self.see("granted beside others");
        }
        self.new_holds(pending, token, true, world)?;
        must(!world.forbidden.contains(&pending.client), || format!("{owner:?} must not have {keys:?}"))
    }

    pub(crate) fn acquired(&mut self, input: &Input, out: &Outcome, world: &World) -> Verdict {
        let reply = &out.reply;
        let (asked, how, wait) = match *input {
            Input::Acquire { at, owner, lease_ms, wait, client, minted, how } => {
                let asked = pending(Keys::one(at), owner, lease_ms, client, how.mode, how.binding);
                (Pending { is_minted: minted, is_reentrant: how.is_reentrant, ..asked }, how, wait)
            }
            Input::AcquireMany { keys, owner, lease_ms, wait, client, minted, is_shared } => {
                let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
                let asked = pending(keys, owner, lease_ms, client, mode, Binding::NONE);
                (Pending { is_minted: minted, ..asked }, How::of(mode), wait)
            }
            _ => return Ok(()),
        };
        let until = wait.filter(|&ms| ms != 0).map(|ms| world.time + ms * 1000);
        let asked = Pending { until, ..asked };
        let Pending { keys, owner, .. } = asked;
        self.revoked(&asked, world);
        let owns: Vec<Option<Hold>> = keys.iter().map(|at| self.own(at, owner, world)).collect();
        let own = owns[0]
            .filter(|own| owns.iter().all(|other| other.is_some_and(|other| other.token == own.token)));
        match *reply {
            Reply::Granted(token) if own.is_some_and(|own| own.token == token) => {
                self.again(&asked, how, world);
                Ok(())
            }
            Reply::Granted(token) => self.granted_at_once(&asked, token, world),
            Reply::Busy | Reply::Waiting(_) => {
                let holds_any = owns.iter().any(Option::is_some);
                must(!holds_any, || {
                    format!("G9: {owner:?} holds {owns:?} of {keys:?} and was told {reply:?}")
                })?;
                let is_free = keys.iter().all(|at| {
                    // Another request of the same owner may have come before, too.
                    let others = self
                        .queue(at)
                        .iter()
                        .any(|o| o.owner != owner || !o.keys.is_same_set(keys) || o.mode != how.mode);
                    // A hold that must be revoked occupies the lock until it is.
                    let is_held = self.live(at, world).any(|hold| hold.is_ownerless() && hold.owner != owner);
                    // In a large list, the pump ends the holds whose leases have expired.
                    let is_left = world.server.leaves_ends_to_the_pump(at);
                    !others && !is_held && !is_left && self.is_free_for(at, owner, how.mode, world)
                });
                // If only its own older request blocked it, the pump grants it.
                let is_free = is_free && self.taken_over.is_empty();
                must(!is_free, || {
                    format!("G6: {owner:?} was turned away from {keys:?}, which nobody holds")
                })?;
                self.turned_away(asked, how, wait, reply, world)
            }
            Reply::Refused(ref why) => {
                let first = keys.first().ok_or("a request for nothing")?;
                self.refused(first, &asked, why, &out.cycle, world)
            }
            Reply::None => {
                must(keys.iter().any(|at| world.refuses(at)), || "an acquire got no answer".to_owned())
            }
            _ => Err(format!("an acquire was answered {reply:?}")),
        }
    }

    /// G9: the same owner again.
    fn again(&mut self, asked: &Pending, how: How, world: &World) {
        for at in asked.keys.iter() {
            let Some(mut own) = self.own(at, asked.owner, world) else { continue };
            let is_longer = own.is_shorter(world.time, asked.lease_ms);
            self.see(if is_longer { "retried" } else { "retried, lease kept" });
            if own.is_ownerless() {
                self.see("retried after an undelivered grant");
            }
            let is_down = (own.mode, asked.mode) == (Mode::Exclusive, Mode::Shared);
            let binding = if asked.binding.is_none() { own.binding } else { asked.binding };
            let was_ownerless = own.is_ownerless();
            own.heard(world.time, binding, Some(asked.client), world.confirms);
            if is_longer {
                own.last(world.time, asked.lease_ms);
            }
            if is_down {
                own.mode = Mode::Shared;
                self.see("downgraded");
            }
            // The owner was not notified of its hold, so the count starts here.
            if how.is_reentrant && !was_ownerless {
                own.count += 1;
                self.see("held once more");
            }
            self.promise(at, own);
        }
    }

    fn granted_at_once(&mut self, asked: &Pending, token: Token, world: &World) -> Verdict {
        let Pending { owner, keys, .. } = *asked;
        for at in keys.iter() {
            let own = self.queue(at).iter().position(|other| other.owner == owner);
            // The requests ahead of its older request may have left by now, too.
            let came_before = |number: u64| move |other: &Pending| other.number < number;
            let taken_over = self.taken_over.iter().find(|taken| taken.0 == at);
            let taken_over =
                taken_over.map(|taken| self.queue(at).partition_point(came_before(taken.2.number)));
            let ahead = match own.or(taken_over) {
                Some(own) => &self.queue(at)[..own],
                None => self.queue(at),
            };
            // Alongside reservations of others, if there is room.
            let is_next = ahead.iter().all(Pending::is_reserved)
                && self.is_room_beside(at, owner, asked.mode, ahead.len(), world);
            must(is_next, || format!("G5: {owner:?} passed {ahead:?} at {at}"))?;
            if let Some(own) = own.map(|own| self.queue(at)[own]) {
                self.see("took its place");
                self.strike(&own);
            }
        }
        self.see(if keys.len() > 1 { "granted several at once" } else { "granted at once" });
        self.new_holds(asked, token, false, world)?;
        Ok(())
    }

    /// Checks that it had to wait, or to leave.
    fn turned_away(
        &mut self,
        asked: Pending,
        how: How,
        wait: Option<u64>,
        reply: &Reply,
        world: &World,
    ) -> Verdict {
        let Pending { keys, owner, .. } = asked;
        let number = match *reply {
            Reply::Waiting(number) => number,
            _ if wait.is_none() => return Ok(()),
            _ => 0,
        };
        must(number != 0 || how.is_reservation, || "it wanted to wait".to_owned())?;
        let mut asked = Pending { wait: number, ..asked };
        // A reservation passes to the same request without an answer.
        let own: Vec<(At, usize, Pending)> = keys
            .iter()
            .filter_map(|at| {
                let position = self.queue(at).iter().position(|other| other.owner == owner)?;
                Some((at, position, self.queue(at)[position]))
            })
            .chain(self.taken_over.iter().copied())
            .collect();
        let is_same = |old: &Pending| old.keys.is_same_set(keys) && old.mode == asked.mode;
        let same = own.iter().find(|(_, _, old)| is_same(old)).map(|own| own.2.number);
        for (_, _, old) in &own {
            must(
                old.is_reservation() || self.taken_over.iter().any(|taken| taken.2.number == old.number),
                || format!("G7, G9: {old:?} was not told of {asked:?}"),
            )?;
            self.strike(&{ *old });
        }
        self.arrivals += 1;
        asked.number = same.unwrap_or(self.arrivals);
        for at in keys.iter() {
            let number = asked.number;
            let queue = self.queues.entry(at).or_default();
            let position = queue.partition_point(|other| other.number < number);
            queue.insert(position, asked);
        }
        self.see(if keys.len() > 1 { "waited for several" } else { "waited" });
        if how.is_reservation {
            self.see("place in line");
        }
        if same.is_some() { Ok(()) } else { self.will_not_wait_for_itself(&asked, world) }
    }

    /// Returns the position of the first of these keys that their owner holds, unless that hold must be revoked.
    fn first_own(&self, keys: Keys, owner: Name, world: &World) -> Option<usize> {
        let mut owns = keys.iter().map(|at| self.own(at, owner, world));
        let first = owns.position(|own| own.is_some())?;
        let own = keys.iter().nth(first).and_then(|at| self.own(at, owner, world));
        own.filter(|own| !own.is_ownerless()).map(|_| first)
    }

    fn refused(&mut self, at: At, asked: &Pending, why: &Refusal, cycle: &[Link], world: &World) -> Verdict {
        let Pending { owner, keys, mode, .. } = *asked;
        must(self.taken_over.is_empty(), || {
            format!("G9: {owner:?} was refused {keys:?} ({why:?}), and took over {:?}", self.taken_over)
        })?;
        // The older requests that it would have replaced make room for it.
        let mut without = self.clone();
        for at in keys.iter() {
            let older = self.queue(at).iter().filter(|other| other.owner == owner);
            older.for_each(|older| without.strike(older));
        }
        if self.queues != without.queues {
            self.see("refused, older request kept");
        }
        let waiting: usize = without.queues.values().map(Vec::len).sum();
        let is_held = self.is_quarantined(world)
            || keys.iter().any(|at| self.live(at, world).next().is_some() || !self.queue(at).is_empty());
        let (is_justified, what) = match *why {
            Refusal::WrongType => {
                let other = keys.iter().find(|&at| world.is_other(at)).unwrap_or(at);
                must(self.queue(other).is_empty(), || {
                    format!("{:?} still wait at {other}", self.queue(other))
                })?;
                return self.is_orphaned(other, world);
            }
            Refusal::QueueIsFull(max) => {
                let is_full = keys.iter().any(|at| without.queue(at).len() >= max);
                (max == world.limits.waiters_per_lock_max && is_full && is_held, "line full")
            }
            Refusal::ServerIsFull(max) => {
                let is_full = max == world.limits.waiters_max && waiting + keys.len() > max;
                (is_full && is_held, "server full")
            }
            Refusal::OtherKind(other) => {
                let is_other = |at: At| {
                    let held = self.live(at, world).map(|hold| hold.mode);
                    let mut modes = held.chain(self.queue(at).iter().map(|pending| pending.mode));
                    modes.any(|known| known.agrees_with(other)) && !other.agrees_with(mode)
                };
                (keys.iter().any(is_other), "other kind")
            }
            Refusal::Held(key) => (self.first_own(keys, owner, world) == Some(key), "held otherwise"),
            Refusal::Quarantine(left_ms) => (self.is_quarantined(world) && left_ms > 0, "quarantined"),
            Refusal::Leaving => (false, "leaving"),
            Refusal::Unconfirmable => (false, "unconfirmable"),
            Refusal::Several(_) => (false, "raised"),
            Refusal::Deadlock => {
                let wish = Wish { owner, keys, mode };
                let (scene, position) = without.scene(wish, u64::MAX, world);
                must(!scene.comes_true(position), || {
                    format!("G11: {owner:?} was told of a deadlock: {scene:?}")
                })?;
                let mut links = cycle.iter().zip(cycle.iter().cycle().skip(1));
                let is_closed = links.all(|(link, next)| link.awaited == next.owner);
                (is_closed && !cycle.is_empty(), "deadlock")
            }
            Refusal::TooManyTimes => {
                let own = self.own(at, owner, world).filter(|_| asked.is_reentrant);
                (own.is_some_and(|own| own.count >= count_max(COUNT_MAX)), "held too many times")
            }
            Refusal::TooManyLocks => (false, "too many locks"),
            Refusal::NoTokens => (world.server.tokens().0 == TOKEN_MAX, "no tokens"),
        };
        self.see(what);
        must(is_justified, || format!("{owner:?} was refused {keys:?}: {why:?}"))
    }

    /// The state that must hold when the pump has run.
    pub(crate) fn pumped(&mut self, world: &World) -> Verdict {
        let over = |pending: &&Pending| pending.until.is_some_and(|until| until <= world.time);
        let late = self.queues.values().flatten().find(over);
        must(late.is_none(), || format!("G7: {late:?} waits beyond its time"))?;
        if world.writes == Writes::Paused {
            return Ok(());
        }
        for (&at, promises) in &self.promises {
            let is_over = |promise: &&Hold| !promise.is_live(world.time);
            let saved = world.server.saved(at).map(|saved| saved.holds).unwrap_or_default();
            let left = promises.iter().filter(is_over).find(|p| saved.iter().any(|hold| is_its(p, hold)));
            must(left.is_none() || world.is_left_alone(at), || {
                format!("G3: {left:?} at {at} is over and there")
            })?;
        }
        // While writes are refused no hold is revoked, and no request is granted.
        if world.writes == Writes::Refused {
            return Ok(());
        }
        let ownerless: Vec<(At, Token)> = self
            .promises
            .iter()
            .flat_map(|(&at, promises)| {
                let is_left = world.is_left_alone(at);
                promises.iter().filter(move |p| p.is_ownerless() && !is_left).map(move |p| (at, p.token))
            })
            .collect();
        for (at, token) in ownerless {
            self.promises.entry(at).or_default().retain(|promise| promise.token != token);
            must(!world.server.is_live(at, token), || format!("G8: {at} is held by nobody"))?;
            self.see("taken back");
        }
        let forgotten = self.queues.values().flatten().find(|pending| {
            !pending.is_reservation() && pending.keys.iter().all(|at| self.is_next(at, pending, world))
        });
        must(forgotten.is_none(), || {
            format!("G6: {forgotten:?} could have it: {:?} hold, and {:?} wait", self.promises, self.queues)
        })
    }

    /// Returns true if only reservations are ahead of this request, and there is room alongside them.
    pub(crate) fn is_next(&self, at: At, pending: &Pending, world: &World) -> bool {
        let ahead: Vec<&Pending> =
            self.queue(at).iter().take_while(|other| other.number != pending.number).collect();
        ahead.iter().all(|other| other.is_reserved())
            && self.is_room_beside(at, pending.owner, pending.mode, ahead.len(), world)
            && !world.is_left_alone(at)
    }

    /// Checks a reader that became the primary: it knows every hold, and no lease is shorter (CONTRACT 5).
    pub(crate) fn promoted(&mut self, world: &World) -> Verdict {
        for (at, promises) in &mut self.promises {
            let saved = world.server.saved(*at);
            for promise in promises {
                let is_live = promise.is_live(world.time);
                let mut holds =
                    saved.iter().flat_map(|saved| saved.holds.iter().map(|hold| (saved.mode, hold)));
                let own = holds.find(|(_, hold)| is_its(promise, hold));
                let read = own.map(|(mode, hold)| Hold::read(promise.owner, mode, hold, world.time));
                let until = read.map_or(0, |read| read.until);
                let least =
                    if promise.is_paused() { world.time + promise.lease_ms * 1000 } else { promise.until };
                must(!is_live || until >= least, || format!("G2: {at} of {promise:?} ends at {until}"))?;
                if let Some(read) = read {
                    *promise = read;
                }
            }
        }
        self.see("promoted");
        self.queues.values_mut().for_each(|queue| queue.retain(|pending| !pending.is_reservation()));
        must(self.queues.values().all(Vec::is_empty), || "G7: somebody waits at a demoted server".to_owned())
    }
}

/// Returns true if this is the promised hold. Another owner may have raised its token to exactly this one.
fn is_its(promise: &Hold, hold: &SavedHold) -> bool {
    hold.token == promise.token && *hold.owner == *promise.owner.as_bytes()
}

fn key_of(keys: Keys) -> At {
    keys.first().unwrap_or(At::new(0, ""))
}

fn pending(keys: Keys, owner: Name, lease_ms: u64, client: u64, mode: Mode, binding: Binding) -> Pending {
    Pending {
        wait: 0,
        owner,
        client,
        lease_ms,
        is_minted: false,
        until: None,
        keys,
        mode,
        binding,
        is_reentrant: false,
        number: 0,
    }
}
