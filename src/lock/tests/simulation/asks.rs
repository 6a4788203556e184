//! What clients ask of a primary, how a step of the core is carried out, and who is told when: as `src/redis` does it.

use super::super::input::{How, Keys};
use super::super::reader::Fact;
use super::super::server::Name;
use super::node::{Pending, Waiting};
use super::points::Point;
use super::{Group, Verdict};
use crate::lock::confirm::Verdict as Confirmed;
use crate::lock::effect::{Answer, Effect, WaiterId};
use crate::lock::table::{Acquired, Admission, Applicant, Ask, Block, Refusal, Renewal, Wait};
use crate::lock::types::{ClientId, Mode, Tie, Token};

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// With BLOCK, or with QUEUE for a place in line, or without either.
    Acquire {
        wait_ms: Option<u64>,
        is_place: bool,
    },
    Renew {
        raise: Option<Token>,
    },
    /// Of the hold, or of one count of it.
    Release {
        is_last: bool,
    },
}

/// A request of a client's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) client: usize,
    pub(super) connection: u64,
    pub(super) keys: Keys,
    pub(super) owner: Name,
    /// That of the hold that it is about, where the client knows it.
    pub(super) token: Option<Token>,
    pub(super) mode: Mode,
    pub(super) lease_ms: u64,
    pub(super) tie: Tie,
    pub(super) is_reentrant: bool,
    /// Where it was asked.
    pub(super) node: usize,
    pub(super) term: u32,
    /// When the server did it.
    pub(super) done: u64,
    /// A new token was minted for it, when somebody had been told of this one.
    pub(super) floor: Option<u64>,
    /// The token that a renewal has left, which may be a higher one.
    pub(super) renewed: Option<Token>,
    /// Which decision it was.
    pub(super) decision: u32,
}

impl Request {
    /// Whether it waits by a place in line, and not on its connection.
    pub(super) const fn is_place(&self) -> bool {
        matches!(self.kind, Kind::Acquire { is_place: true, .. })
    }
}

/// What a client is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    Granted(Token),
    /// nil, or an error: it has nothing of it.
    No,
    /// The lock is at the other shard.
    Moved,
    Done(bool),
    /// Replicas did not say in time that they have it.
    Unconfirmed,
}

/// A reply on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) request: Request,
    pub(super) sent: Sent,
}

impl Group {
    /// A request reaches a primary.
    pub(super) fn ask(&mut self, request: Request) -> Verdict {
        self.nodes[request.node].tell_time(self.time);
        self.judge.asked(&request);
        match request.kind {
            Kind::Acquire { wait_ms, is_place } => self.acquire(request, wait_ms, is_place),
            Kind::Renew { raise } => self.renew(request, raise),
            Kind::Release { is_last } => self.release(request, is_last),
        }
    }

    /// Whether nothing could be confirmed now.
    pub(super) fn cannot_confirm(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        self.plan.rule_of(n).is_some_and(|rule| !node.confirmations.can_confirm(node.server.now.boot, rule))
    }

    /// Whether this server grants nothing new yet.
    pub(super) fn is_quarantined(&self, n: usize) -> bool {
        let server = &self.nodes[n].server;
        server.table.quarantine_left_ms(server.now.boot).is_some()
    }

    fn acquire(&mut self, request: Request, wait_ms: Option<u64>, is_place: bool) -> Verdict {
        let n = request.node;
        let is_closed = self.cannot_confirm(n);
        let now = self.nodes[n].server.now.boot;
        let Request { owner, mode, lease_ms, connection, tie, is_reentrant, .. } = request;
        let client = ClientId(connection);
        let wait = wait_ms.map(|ms| match is_place {
            true => Wait::Place { until: now.plus_ms(ms) },
            false => Wait::Block(Block { client, until: (ms > 0).then(|| now.plus_ms(ms)) }),
        });
        let ask = Ask {
            owner: owner.as_bytes(),
            owner_is_minted: false,
            lease_ms,
            mode,
            is_reentrant,
            tie,
            wait,
            client: Some(client),
            bind_to: Some(client),
            must_be_named: self.plan.has_moves,
            cannot_confirm: is_closed,
        };
        let before = self.nodes[n].server.table.last_token();
        let sure = self.judge.sure_token(&request, self.time);
        let is_upgrade = self.note_asked(&request);
        let reply = self.acquire_step(n, &request, &ask, is_closed)?;
        self.judge_reply(&request, reply, (is_upgrade, before))?;
        match reply {
            // Whatever it holds: nothing is done.
            Acquired::Refused(Refusal::Unconfirmable) => {
                if self.is_quarantined(n) {
                    self.see(Point::UnconfirmableInQuarantine);
                }
                self.tell(request, Sent::No)
            }
            // It goes on to hold as often as it does.
            Acquired::Refused(Refusal::TooManyTimes) if is_reentrant => {
                self.see(Point::HeldTooManyTimes);
                self.tell(request, Sent::No)
            }
            Acquired::Granted(token) => {
                self.judge.must_be(&request, sure, Some(token))?;
                self.granted_at_once(request, token, token.get() <= before)
            }
            Acquired::Waiting(waiter) => {
                self.judge.must_be(&request, sure, None)?;
                self.nodes[n].waits.push(Waiting { waiter, request });
                Ok(())
            }
            Acquired::Busy => {
                self.judge.must_be(&request, sure, None)?;
                if is_place {
                    self.see(Point::PlaceKept);
                }
                self.tell(request, Sent::No)
            }
            Acquired::Refused(why) => {
                self.judge.must_be(&request, sure, None)?;
                if matches!(why, Refusal::Quarantine(_)) {
                    self.see(Point::Quarantined);
                }
                self.tell(request, Sent::No)
            }
        }
    }

    fn granted_at_once(&mut self, mut request: Request, token: Token, is_again: bool) -> Verdict {
        let Request { node: n, is_reentrant, lease_ms, .. } = request;
        self.see(if is_again { Point::GrantedAgain } else { Point::GrantedAtOnce });
        if request.is_place() && !is_again {
            self.see(Point::PlaceGranted);
        }
        if is_reentrant && is_again {
            self.see(Point::CountedAgain);
        }
        if self.is_quarantined(n) {
            self.see(Point::KnownInQuarantine);
            if !is_again {
                return Err(format!("SPEC 6: {request:?} is new in a quarantine"));
            }
        }
        self.granted(&mut request, !is_again);
        self.tell_granted(n, request, token, lease_ms)
    }

    fn acquire_step(
        &mut self,
        n: usize,
        request: &Request,
        ask: &Ask<'_>,
        is_closed: bool,
    ) -> Result<Acquired, String> {
        let Request { keys, owner, mode, lease_ms, tie, is_reentrant, .. } = *request;
        let mut gate = gate(is_closed);
        if let (Some(at), 1) = (keys.first(), keys.len()) {
            let asked =
                Fact::Acquire { at, owner, lease_ms, how: How { is_reentrant, tie, ..How::of(mode) } };
            let mut fx = std::mem::take(&mut self.fx);
            let server = &mut self.nodes[n].server;
            let (now, found) = (server.now, server.found(at));
            let step = server.table.acquire(now, at.place(), found, ask, &mut gate, &mut fx);
            return self.carry_out_one(n, keys, Some(asked), step, fx);
        }
        let asked = Fact::AcquireMany { keys, owner, lease_ms, mode };
        self.decide_all(n, keys, Some(asked), |table, now, spots, fx| {
            table.acquire_many(now, spots, ask, &mut gate, fx)
        })
    }

    /// Something was granted: to be told at the end of the turn, or when replicas have it.
    fn granted(&mut self, request: &mut Request, is_new: bool) {
        request.done = self.time;
        request.decision = self.judge.decide();
        self.slots.note_minted(request.node, request.keys, self.time);
        if request.tie.is_kept_alive {
            self.see(Point::KeptAlive);
        }
        if request.tie.ephemeral_ms.is_some() {
            self.see(Point::Ephemeral);
        }
        if !self.slots.may_change_roles() {
            self.see(Point::GrantedWhileMoving);
        }
        request.floor = is_new.then(|| self.judge.newest_told(request.keys, request.term));
        match request.mode {
            Mode::Shared => self.see(Point::Shared),
            Mode::Limit(_) => self.see(Point::Permits),
            Mode::Exclusive if request.keys.len() > 1 => self.see(Point::GrantedSeveral),
            Mode::Exclusive => {}
        }
    }

    /// Who was granted something is told so now, or when replicas have it.
    fn tell_granted(&mut self, n: usize, request: Request, token: Token, lease_ms: u64) -> Verdict {
        if self.plan.rule().is_none() {
            return self.tell(request, Sent::Granted(token));
        }
        self.note_begun(n);
        self.pend(n, request, Some(token), Sent::Granted(token), lease_ms)
    }

    fn renew(&mut self, mut request: Request, raise: Option<Token>) -> Verdict {
        let n = request.node;
        let is_closed = self.cannot_confirm(n);
        if is_closed {
            return self.tell(request, Sent::Unconfirmed);
        }
        let Request { keys, owner, token, lease_ms, connection, .. } = request;
        let Some(at) = keys.first() else {
            return Err("a renewal of nothing".to_owned());
        };
        let client = Some(ClientId(connection));
        let renewal = Renewal { owner: owner.as_bytes(), token, raise, lease_ms, client, bind_to: client };
        let sure = self.judge.sure_token(&request, self.time);
        let mut fx = std::mem::take(&mut self.fx);
        let server = &mut self.nodes[n].server;
        let (now, found) = (server.now, server.found(at));
        let step = server.table.renew(now, at.place(), found, &renewal, &mut gate(false), &mut fx);
        let of_hold = server.table.token_of(found, owner.as_bytes());
        let asked = Fact::Renew { at, owner, token, raise, lease_ms };
        let is_renewed = self.carry_out_one(n, keys, Some(asked), step, fx)? == Some(true);
        // Raised, unless another one holds the lock with just that token.
        let is_raised = raise.is_some() && of_hold == sure.max(raise);
        let renewed = if is_raised { sure } else { of_hold };
        self.judge.must_be(&request, sure, renewed.filter(|_| is_renewed))?;
        if is_renewed {
            request.done = self.time;
            request.renewed = of_hold;
            request.decision = self.judge.decide();
            self.slots.note_minted(n, keys, self.time);
            self.see(if raise.is_some() { Point::Raised } else { Point::Renewed });
            if self.is_quarantined(n) {
                self.see(Point::KnownInQuarantine);
            }
            if let (Some(token), Some(_)) = (of_hold, raise) {
                self.judge.raised(&request, token);
            }
            if self.plan.rule().is_some() {
                return self.pend(n, request, of_hold, Sent::Done(true), lease_ms);
            }
        }
        self.tell(request, Sent::Done(is_renewed))
    }

    fn release(&mut self, request: Request, is_last: bool) -> Verdict {
        let n = request.node;
        let mut gate = gate(self.cannot_confirm(n));
        let Request { keys, owner, token, .. } = request;
        let sure = self.judge.sure_token(&request, self.time);
        self.judge.lines.withdraws(&request);
        if is_last {
            self.judge.give_up(keys, owner);
        }
        let mut is_released = false;
        for at in keys.iter() {
            let mut fx = std::mem::take(&mut self.fx);
            let server = &mut self.nodes[n].server;
            let (now, found) = (server.now, server.found(at));
            let step =
                server.table.release(now, at.place(), found, owner.as_bytes(), token, &mut gate, &mut fx);
            let asked = Fact::Release { at, owner, token };
            let is_done = self.carry_out_one(n, Keys::one(at), Some(asked), step, fx)? == Some(true);
            let node = &mut self.nodes[n];
            let left = node.server.table.token_of(node.server.found(at), owner.as_bytes());
            is_released |= is_done;
            if !is_last {
                self.see(Point::CountedDown);
                self.judge.must_be(&request, sure, left)?;
            }
        }
        self.judge.must_be(&request, sure, sure.filter(|_| is_released))?;
        if is_released {
            self.see(Point::Released);
        }
        self.tell(request, Sent::Done(is_released))
    }

    pub(super) fn effect(&mut self, n: usize, effect: Effect) -> Verdict {
        match effect {
            Effect::Tell(_) | Effect::Publish(_) => Ok(()),
            Effect::Answer { waiter, client, answer } => self.answer(n, waiter, client, answer),
        }
    }

    /// The end of a wait in line.
    fn answer(&mut self, n: usize, waiter: WaiterId, client: ClientId, answer: Answer) -> Verdict {
        let waits = &mut self.nodes[n].waits;
        let Some(position) = waits.iter().position(|wait| wait.waiter == waiter) else {
            return Err(format!("G7: {waiter:?} is told {answer:?} and does not wait (any more)"));
        };
        let mut request = waits.swap_remove(position).request;
        if request.connection != client.0 {
            return Err(format!("G7: the answer to {} went to {}", request.connection, client.0));
        }
        self.judge_answer(&request, &answer)?;
        match answer {
            Answer::Granted { token, .. } => {
                self.see(Point::GrantedOutOfLine);
                self.granted(&mut request, true);
                self.tell_granted(n, request, token, u64::MAX)
            }
            Answer::Moved(_) => {
                self.see(Point::SentOn);
                self.tell(request, Sent::Moved)
            }
            Answer::TimedOut => {
                self.see(Point::TimedOut);
                self.tell(request, Sent::No)
            }
            Answer::Replaced => {
                self.see(Point::Replaced);
                self.tell(request, Sent::No)
            }
            _ => self.tell(request, Sent::No),
        }
    }

    /// What the core says has begun is what somebody is told next.
    fn note_begun(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.confirmations.note_begun(node.server.table.take_begun());
    }

    /// The answer waits for replicas.
    fn pend(
        &mut self,
        n: usize,
        request: Request,
        token: Option<Token>,
        sent: Sent,
        lease_ms: u64,
    ) -> Verdict {
        let (Some(rule), Some(token)) = (self.plan.rule_of(n), token) else {
            return Err(format!("{request:?} waits for replicas that nobody asked for"));
        };
        let node = &mut self.nodes[n];
        let (now, lasts_ms) = (node.server.now.boot, self.plan.confirm_timeout_ms.min(lease_ms));
        let places = request.keys.iter().map(|at| at.place().to_owned());
        let id = node.confirmations.wait_to_tell(now, rule, lasts_ms, Some(token), places);
        node.pending.push(Pending { id, request, sent, has_failed: id.is_none() });
        Ok(())
    }

    /// Tells those whose requests were not confirmed, behind the undoing of what they began.
    pub(super) fn tell_failed(&mut self, n: usize) -> Verdict {
        let failed: Vec<Pending> =
            self.nodes[n].pending.extract_if(.., |pending| pending.has_failed).collect();
        failed.into_iter().try_for_each(|pending| self.tell_unconfirmed(n, pending))
    }

    fn tell_unconfirmed(&mut self, n: usize, Pending { request, sent, .. }: Pending) -> Verdict {
        let node = &self.nodes[n];
        let shown = request.keys.iter().find(|&at| match sent {
            Sent::Granted(token) => {
                node.server.is_live(at, token) && node.confirmations.is_to_undo(at.place(), token)
            }
            _ => false,
        });
        if let Some(at) = shown {
            return Err(format!("SPEC 6: {request:?} is told that it is undone, and {at} shows {sent:?}"));
        }
        let is_renewal = matches!(request.kind, Kind::Renew { .. });
        self.see(if is_renewal { Point::RenewalUnconfirmed } else { Point::Unconfirmed });
        self.tell(request, Sent::Unconfirmed)
    }

    /// The end of a turn of the event loop: replicas are looked at and asked, and those are told who can be.
    pub(super) fn turn(&mut self, n: usize) -> Verdict {
        self.nodes[n].confirmations.forget_begun();
        if self.nodes[n].confirmations.is_empty() {
            return Ok(());
        }
        self.nodes[n].tell_time(self.time);
        self.look(n);
        let node = &mut self.nodes[n];
        if node.confirmations.has_new() {
            let offset = node.place.map_or(0, |place| place.read);
            node.confirmations.sent(offset as u64);
        }
        // Of many, some are told in a later turn.
        let told_max = if self.random.percent(30) { 1 } else { usize::MAX };
        let over = node.confirmations.take_some_over(node.server.now.boot, told_max);
        if node.confirmations.is_behind() {
            self.see(Point::ConfirmedLater);
        }
        for (id, verdict) in over {
            let pending = &mut self.nodes[n].pending;
            let Some(at) = pending.iter().position(|pending| pending.id == Some(id)) else {
                continue;
            };
            if verdict == Confirmed::Confirmed {
                let Pending { request, sent, .. } = pending.swap_remove(at);
                self.see(Point::Confirmed);
                self.tell(request, sent)?;
            } else {
                pending[at].has_failed = true;
            }
        }
        Ok(())
    }

    /// A reply leaves the server. If its client is gone already, the server may find that out now: then a grant out of
    /// the line is taken back.
    pub(super) fn tell(&mut self, request: Request, sent: Sent) -> Verdict {
        self.note(|| format!("n{} tells {}: {sent:?} to {:?}", request.node, request.owner, request.kind));
        self.judge.answered(&request)?;
        if self.clients[request.client].connection == request.connection {
            self.in_flight.push(InFlight { request, sent });
        } else if let (Sent::Granted(token), Kind::Acquire { wait_ms: Some(_), .. }) = (sent, request.kind)
            && self.nodes[request.node].term == request.term
            && self.random.percent(50)
        {
            self.see(Point::TakenBack);
            for at in request.keys.iter() {
                self.nodes[request.node].server.table.note_undelivered(at.place().to_owned(), token);
            }
        }
        Ok(())
    }
}

/// Whether a waiter may be granted anything now.
pub(super) const fn gate(is_closed: bool) -> impl FnMut(Applicant<'_>) -> Admission {
    move |_| if is_closed { Admission::NotNow } else { Admission::Granted }
}
