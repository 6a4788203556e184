//! Requests of clients to a primary, in the words of its commands, and the replies.

use super::node::Blocked;
use super::points::Point;
use super::{Group, Verdict};
use crate::command::error::{CANNOT_CONFIRM, GRANT_UNCONFIRMED, RENEWAL_UNCONFIRMED};
use crate::lock::types::{Binding, Mode, Token};
use crate::sim::server::inside::{PartBuf, Words};
use crate::sim::server::look::Fate;
use crate::sim::server::sim::Said;
use crate::sim::single::input::Keys;
use crate::sim::single::server::Name;

/// The request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// With BLOCK, or with QUEUE for a reservation, or without either.
    Acquire {
        wait_ms: Option<u64>,
        is_reservation: bool,
    },
    Renew {
        raise: Option<Token>,
    },
    /// Of the whole hold, or of one count of it.
    Release {
        is_last: bool,
    },
}

/// A request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) client: usize,
    pub(super) connection: u64,
    pub(super) keys: Keys,
    pub(super) owner: Name,
    /// The token of the hold that it concerns, if the client knows it.
    pub(super) token: Option<Token>,
    pub(super) mode: Mode,
    pub(super) lease_ms: u64,
    pub(super) binding: Binding,
    pub(super) is_reentrant: bool,
    /// The server and moment of the request.
    pub(super) node: usize,
    pub(super) term: u32,
    /// When the server did it.
    pub(super) done: u64,
    /// A token that a client had received before a new one was minted for this request.
    pub(super) floor: Option<u64>,
    /// The token that a renewal left on the hold, which may be higher than before.
    pub(super) renewed: Option<Token>,
    /// The number of the decision.
    pub(super) decision: u32,
}

impl Request {
    /// Returns true if it waits by a reservation, and not on its connection.
    pub(super) const fn is_reservation(&self) -> bool {
        matches!(self.kind, Kind::Acquire { is_reservation: true, .. })
    }
}

/// The reply to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    Granted(Token),
    /// nil, or an error: it was granted nothing.
    No,
    /// The lock is at the other shard.
    Moved,
    Done(bool),
    /// Replicas did not acknowledge it in time.
    Unconfirmed,
}

impl Sent {
    /// Parses the reply to a client.
    pub(super) fn of(request: &Request, parts: &[PartBuf]) -> Result<Self, String> {
        match (parts, request.kind) {
            ([PartBuf::Integer(number)], Kind::Acquire { .. }) => Token::new(*number).map(Self::Granted),
            ([PartBuf::Integer(number)], _) => Some(Self::Done(*number == 1)),
            ([PartBuf::Null], _) => Some(Self::No),
            ([PartBuf::Error(text)], _) if text.starts_with("MOVED ") => Some(Self::Moved),
            ([PartBuf::Error(text)], _)
                if [GRANT_UNCONFIRMED, RENEWAL_UNCONFIRMED].contains(&text.as_str()) =>
            {
                Some(Self::Unconfirmed)
            }
            ([PartBuf::Error(_)], _) => Some(Self::No),
            _ => None,
        }
        .ok_or_else(|| format!("G7: {request:?} is replied {parts:?}"))
    }
}

/// The immediate outcome of a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Granted(Token),
    Waiting,
    Busy,
    Deadlock,
    /// A server that may have forgotten locks grants nothing new.
    Quarantined,
    /// Replicas could not confirm it.
    Unconfirmable,
    /// Its owner holds the lock as often as one owner can.
    TooManyTimes,
    /// Its owner holds one of the locks in another mode.
    HeldOtherwise,
}

/// A reply under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) request: Request,
    pub(super) sent: Sent,
}

impl Request {
    /// Returns the command.
    fn words(&self) -> Words {
        let Self { kind, keys, owner, token, mode, lease_ms, binding, is_reentrant, .. } = *self;
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(16);
        let command: &[u8] = match kind {
            Kind::Acquire { .. } if keys.len() > 1 => b"LOCK.MACQUIRE",
            Kind::Acquire { .. } => b"LOCK.ACQUIRE",
            Kind::Renew { .. } => b"LOCK.RENEW",
            Kind::Release { .. } => b"LOCK.RELEASE",
        };
        words.push(command.to_vec());
        if keys.len() > 1 {
            words.push(number(keys.len() as u64));
        }
        words.extend(keys.iter().map(|at| at.name.as_bytes().to_vec()));
        words.push(owner.as_bytes().to_vec());
        let mut option = |name: &str, value: Option<u64>| {
            words.push(name.as_bytes().to_vec());
            words.extend(value.map(number));
        };
        if !matches!(kind, Kind::Release { .. }) {
            option("PX", Some(lease_ms));
        }
        match kind {
            Kind::Acquire { wait_ms, is_reservation } => {
                if let Some(wait_ms) = wait_ms {
                    option(if is_reservation { "QUEUE" } else { "BLOCK" }, Some(wait_ms));
                }
                match mode {
                    Mode::Exclusive => {}
                    Mode::Shared => option("SHARED", None),
                    Mode::Limit(limit) => option("LIMIT", Some(limit.into())),
                }
                if is_reentrant {
                    option("REENTRANT", None);
                }
                if let Some(ms) = binding.ephemeral_ms {
                    option("EPHEMERAL", Some(ms));
                }
                if binding.is_keepalive {
                    option("KEEPALIVE", None);
                }
            }
            Kind::Renew { raise: Some(raise) } => option("RAISE", Some(raise.get())),
            Kind::Renew { raise: None } | Kind::Release { .. } => {
                if let Some(token) = token {
                    option("TOKEN", Some(token.get()));
                }
            }
        }
        words.into()
    }

    /// Returns this request for one of its keys.
    fn at(&self, at: crate::sim::single::server::At) -> Self {
        Self { keys: Keys::one(at), ..*self }
    }
}

fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

impl Group {
    /// Handles a request that reaches a primary.
    pub(super) fn ask(&mut self, request: Request) -> Verdict {
        self.enter(request.node);
        self.nodes[request.node].sim.connect(request.connection);
        self.judge.asked(&request, self.time);
        match request.kind {
            Kind::Acquire { is_reservation, .. } => self.acquire(request, is_reservation),
            Kind::Renew { raise } => self.renew(request, raise),
            Kind::Release { is_last } => self.release(request, is_last),
        }
    }

    /// Returns true if this server makes no new grants yet.
    pub(super) fn is_quarantined(&self, n: usize) -> bool {
        self.nodes[n].quarantine_left_ms().is_some()
    }

    /// Runs the command, and collects whatever else it decides.
    fn run(&mut self, request: &Request) -> Result<Said, String> {
        let n = request.node;
        let said = self.nodes[n].sim.asks(request.connection, 0, request.words());
        self.note(|| format!("n{n} says {said:?}"));
        self.collect(n)?;
        Ok(said)
    }

    fn acquire(&mut self, mut request: Request, is_reservation: bool) -> Verdict {
        let n = request.node;
        let before = self.nodes[n].table(|table| table.last_token());
        let sure = self.judge.sure_token(&request, self.time);
        self.note_asked(&request);
        let said = self.run(&request)?;
        let outcome = self.outcome(n, &request, &said)?;
        self.judge_reply(&request, outcome, before)?;
        if !matches!(outcome, Outcome::Unconfirmable | Outcome::TooManyTimes) {
            let token = if let Outcome::Granted(token) = outcome { Some(token) } else { None };
            self.judge.must_be(&request, sure, token)?;
        }
        match outcome {
            Outcome::Granted(token) => self.granted_at_once(&mut request, token.get() <= before)?,
            Outcome::Unconfirmable if self.is_quarantined(n) => self.see(Point::UnconfirmableInQuarantine),
            Outcome::Busy if is_reservation => self.see(Point::PlaceKept),
            Outcome::Quarantined => self.see(Point::Quarantined),
            Outcome::TooManyTimes => self.see(Point::HeldTooManyTimes),
            Outcome::HeldOtherwise => self.see(Point::HeldOtherwise),
            _ => {}
        }
        match (said, outcome) {
            (Said::Now(parts), _) => self.tell(request, Sent::of(&request, &parts)?),
            (Said::Later(handle), Outcome::Granted(_)) => {
                self.nodes[n].pending.push(Blocked { handle, request });
                Ok(())
            }
            (Said::Later(handle), _) => {
                self.nodes[n].waits.push(Blocked { handle, request });
                Ok(())
            }
        }
    }

    fn outcome(&self, n: usize, request: &Request, said: &Said) -> Result<Outcome, String> {
        let parts = match said {
            Said::Now(parts) => parts,
            Said::Later(handle) => {
                return match self.nodes[n].sim.fate(*handle) {
                    Fate::InQueue => Ok(Outcome::Waiting),
                    Fate::Granted(token) if self.nodes[n].holds_back() => Ok(Outcome::Granted(token)),
                    fate => Err(format!("G7: {request:?} is blocked, and {fate:?}")),
                };
            }
        };
        Ok(match &parts[..] {
            [PartBuf::Error(text)] if text.starts_with("DEADLOCK ") => Outcome::Deadlock,
            [PartBuf::Error(text)] if text.starts_with("QUARANTINE ") => Outcome::Quarantined,
            [PartBuf::Error(text)] if text == CANNOT_CONFIRM => Outcome::Unconfirmable,
            // It continues to hold with the same count.
            [PartBuf::Error(text)] if text.ends_with("times already (REENTRANT)") && request.is_reentrant => {
                Outcome::TooManyTimes
            }
            [PartBuf::Error(text)] if text.starts_with("LOCKHELD ") => Outcome::HeldOtherwise,
            [PartBuf::Error(text)] => return Err(format!("{request:?} is refused: {text}")),
            _ => match Sent::of(request, parts)? {
                Sent::Granted(token) if !self.nodes[n].confirms() => Outcome::Granted(token),
                Sent::Granted(_) => {
                    return Err(format!("CONTRACT 6: {request:?} is told before it is confirmed"));
                }
                _ => Outcome::Busy,
            },
        })
    }

    fn granted_at_once(&mut self, request: &mut Request, is_again: bool) -> Verdict {
        self.see(if is_again { Point::GrantedAgain } else { Point::GrantedAtOnce });
        if request.is_reservation() && !is_again {
            self.see(Point::PlaceGranted);
        }
        if request.is_reentrant && is_again {
            self.see(Point::CountedAgain);
        }
        if self.is_quarantined(request.node) {
            self.see(Point::KnownInQuarantine);
            if !is_again {
                return Err(format!("CONTRACT 6: {request:?} is new in a quarantine"));
            }
        }
        self.granted(request, !is_again);
        Ok(())
    }

    /// Registers a grant, to be delivered at the end of the turn, or when replicas have it.
    pub(super) fn granted(&mut self, request: &mut Request, is_new: bool) {
        request.done = self.time;
        request.decision = self.judge.decide();
        self.slots.note_minted(request.node, request.keys, self.time);
        if request.binding.is_keepalive {
            self.see(Point::KeptAlive);
        }
        if request.binding.ephemeral_ms.is_some() {
            self.see(Point::Ephemeral);
        }
        if !self.slots.may_change_roles() {
            self.see(Point::GrantedWhileMoving);
        }
        request.floor = is_new.then(|| self.judge.newest_told(request.keys, request.term));
        if is_new {
            self.judge.outdate(request);
        }
        match request.mode {
            Mode::Shared => self.see(Point::Shared),
            Mode::Limit(_) => self.see(Point::Permits),
            Mode::Exclusive if request.keys.len() > 1 => self.see(Point::GrantedSeveral),
            Mode::Exclusive => {}
        }
    }

    fn renew(&mut self, mut request: Request, raise: Option<Token>) -> Verdict {
        let n = request.node;
        let Request { keys, owner, .. } = request;
        let Some(at) = keys.first() else {
            return Err("a renewal of nothing".to_owned());
        };
        let sure = self.judge.sure_token(&request, self.time);
        let said = self.run(&request)?;
        if let Said::Now(parts) = &said
            && let [PartBuf::Error(_)] = parts[..]
        {
            // It could not be confirmed, or its token is too far ahead: nothing was done.
            return self.tell(request, Sent::Unconfirmed);
        }
        let of_hold = self.nodes[n].token_of(at, owner);
        let is_renewed = match &said {
            Said::Now(parts) => Sent::of(&request, parts)? == Sent::Done(true),
            Said::Later(_) => true,
        };
        // Raised, unless another owner holds the lock with exactly that token.
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
        }
        match said {
            Said::Now(_) if is_renewed && self.nodes[n].confirms() => {
                Err(format!("CONTRACT 6: {request:?} is told before it is confirmed"))
            }
            Said::Now(_) => self.tell(request, Sent::Done(is_renewed)),
            Said::Later(handle) => {
                self.nodes[n].pending.push(Blocked { handle, request });
                Ok(())
            }
        }
    }

    fn release(&mut self, request: Request, is_last: bool) -> Verdict {
        let n = request.node;
        let Request { keys, owner, .. } = request;
        let sure = self.judge.sure_token(&request, self.time);
        self.judge.queues.withdraws(&request);
        if is_last {
            self.judge.give_up(keys, owner);
        }
        let mut is_released = false;
        for at in keys.iter() {
            let own = request.at(at);
            let Said::Now(parts) = self.run(&own)? else {
                return Err(format!("G7: {own:?} waits"));
            };
            is_released |= Sent::of(&own, &parts)? == Sent::Done(true);
            if !is_last {
                self.see(Point::CountedDown);
                self.judge.must_be(&request, sure, self.nodes[n].token_of(at, owner))?;
            }
        }
        self.judge.must_be(&request, sure, sure.filter(|_| is_released))?;
        if is_released {
            self.see(Point::Released);
        }
        self.tell(request, Sent::Done(is_released))
    }

    /// Sends a reply from the server.
    pub(super) fn tell(&mut self, request: Request, sent: Sent) -> Verdict {
        self.note(|| format!("n{} tells {}: {sent:?} to {:?}", request.node, request.owner, request.kind));
        self.judge.answered(&request)?;
        if self.clients[request.client].connection == request.connection {
            self.in_flight.push(InFlight { request, sent });
        }
        Ok(())
    }
}
