//! Clients: each does one task at a time under one owner, loses replies, repeats requests, and gives up.

use std::sync::LazyLock;

use super::asks::{InFlight, Kind, Request, Sent};
use super::points::Point;
use super::slots::Shard;
use super::{CLIENTS, Group, LOCKS, Verdict, mode_of};
use crate::engine::server::Server;
use crate::lock::types::{Binding, Mode, Token};
use crate::sim::single::input::Keys;
use crate::sim::single::server::{At, Name};

/// More owners than a life needs.
static OWNERS: LazyLock<Vec<Name>> = LazyLock::new(|| {
    let owner = |number| -> Name { Box::leak(format!("owner-{number}").into_boxed_str()) };
    (0..4096).map(owner).collect()
});

/// The task of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    keys: Keys,
    owner: Name,
    mode: Mode,
    lease_ms: u64,
    binding: Binding,
    is_reentrant: bool,
    /// The number of grants in that life of a server, less its releases.
    count: (u32, u32),
    /// The life of the server that was asked first.
    term: u32,
    /// It ignores replies to requests up to this one.
    begun: u32,
    state: State,
}

/// The progress of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It waits for a reply.
    Asked,
    /// It was redirected to the other shard: it does not hold the lock.
    SentOn,
    /// The reply was lost: it may hold the lock, or not.
    Unsure,
    /// It received the lock, until that time.
    Holds { token: Token, until: u64, is_asking: bool },
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Client {
    task: Option<Task>,
    /// Its last released task.
    last: Option<Task>,
    /// The server that it takes for the primary.
    pub(super) server: usize,
    pub(super) connection: u64,
}

impl Client {
    pub(super) fn new(connection: u64) -> Self {
        Self { connection, ..Self::default() }
    }
}

impl Task {
    /// Returns the state of a task when its connection is closed.
    fn alone(self, time: u64) -> Self {
        let state = match self.state {
            State::Holds { token, until, .. } => {
                let until = if until == u64::MAX { time + self.lease_ms * 1_000 } else { until };
                let cut = self.binding.ephemeral_ms.map_or(until, |ms| time + ms * 1_000);
                State::Holds { token, until: until.min(cut), is_asking: false }
            }
            State::Asked | State::Unsure => State::Unsure,
            State::SentOn => State::SentOn,
        };
        Self { state, ..self }
    }
}

impl Group {
    /// Closes a client's connection, and opens another one.
    pub(super) fn reconnect(&mut self, c: usize) {
        self.numbers.connections += 1;
        let client = &mut self.clients[c];
        self.judge.disconnected(client.connection, self.time);
        client.connection = self.numbers.connections;
        client.task = client.task.map(|task| task.alone(self.time));
    }

    /// Has one of the clients act.
    pub(super) fn client_acts(&mut self) -> Verdict {
        let c = self.random.below(CLIENTS as u64) as usize;
        self.find_server(c);
        let Some(task) = self.clients[c].task else {
            return self.begin_task(c);
        };
        match task.state {
            State::Asked if self.random.percent(15) => {
                self.see(Point::ReplyLost);
                self.hang_up(c);
                Ok(())
            }
            State::Asked => Ok(()),
            State::Unsure => self.ask_again(c, task),
            State::SentOn => self.ask_elsewhere(c, task),
            State::Holds { until, .. } if until <= self.time => self.outlive(c, task),
            State::Holds { is_asking: true, .. } => {
                if self.random.percent(15) {
                    self.hang_up(c);
                }
                Ok(())
            }
            State::Holds { token, .. } => self.use_hold(c, task, token),
        }
    }

    /// Connects to a server that may be the primary.
    fn find_server(&mut self, c: usize) {
        let server = self.clients[c].server;
        let answers = |node: &super::Node| node.runs() && !node.is_cut_off && node.decides();
        if answers(&self.nodes[server]) && !self.random.percent(1) {
            return;
        }
        // A frozen server does not close its connections: not every client reconnects at once.
        if self.nodes[server].is_frozen && self.random.percent(70) {
            return;
        }
        let next = self.random.below(self.plan.nodes() as u64) as usize;
        if next != server {
            self.hang_up(c);
            self.clients[c].server = next;
            if self.clients[c].task.is_some() {
                self.see(Point::AskedElsewhere);
            }
        }
    }

    /// Gives its connection up. The server finds that out later.
    fn hang_up(&mut self, c: usize) {
        let client = &mut self.clients[c];
        self.closing.push((client.server, client.connection));
        self.reconnect(c);
    }

    /// Turns to the shard that has its locks. Returns true if a server there answers.
    fn go_to_shard(&mut self, c: usize, keys: Keys) -> bool {
        let Some(shard) = self.shard_for(keys) else {
            return false;
        };
        if Shard::of(self.clients[c].server) != shard {
            let mut deciding =
                (0..self.plan.nodes()).filter(|&n| Shard::of(n) == shard && self.nodes[n].decides());
            let Some(server) = deciding.next() else {
                return false;
            };
            self.hang_up(c);
            self.clients[c].server = server;
        }
        true
    }

    /// Handles the move of a slot with the lock that the client waited for: it was granted nothing.
    fn ask_elsewhere(&mut self, c: usize, task: Task) -> Verdict {
        if !self.go_to_shard(c, task.keys) {
            return Ok(());
        }
        let (begun, term) = (self.numbers.requests, self.nodes[self.clients[c].server].term);
        self.acquire_as(c, Task { begun, term, state: State::Asked, ..task })
    }

    fn begin_task(&mut self, c: usize) -> Verdict {
        let begun = self.numbers.requests;
        let last = self.clients[c].last.filter(|_| !self.plan.is_careful && self.random.percent(40));
        if let Some(last) = last {
            let term = self.nodes[self.clients[c].server].term;
            return self.acquire_as(c, Task { begun, term, count: (0, 0), state: State::Asked, ..last });
        }
        let first = self.random.below(LOCKS.len() as u64) as usize;
        let keys = if first < 2 && self.random.percent(30) {
            Keys::of(&[LOCKS[first], LOCKS[1 - first]])
        } else {
            Keys::one(LOCKS[first])
        };
        // A client that is not careful reuses its name whatever happened.
        let owner = if self.plan.is_careful || self.random.percent(20) {
            self.numbers.owners += 1;
            OWNERS[(self.numbers.owners + CLIENTS * 2) % OWNERS.len()]
        } else {
            OWNERS[c * 2 + self.random.below(2) as usize]
        };
        let mode = mode_of(first, &mut self.random);
        let lease_ms = 1 + self.random.below(self.plan.lease_ms_max);
        let (binding, is_reentrant) =
            if keys.len() == 1 { self.choose_extras(mode) } else { (Binding::NONE, false) };
        self.go_to_shard(c, keys);
        let term = self.nodes[self.clients[c].server].term;
        let (count, state) = ((0, 0), State::Asked);
        self.acquire_as(
            c,
            Task { keys, owner, mode, lease_ms, binding, is_reentrant, count, term, begun, state },
        )
    }

    /// Chooses the binding of a hold to its connection, and whether it is counted.
    fn choose_extras(&mut self, mode: Mode) -> (Binding, bool) {
        let asks = self.plan.asks;
        // An owner that is not careful may have a hold with a binding that it has forgotten.
        let may_bind = asks.bindings && self.plan.is_careful;
        let ephemeral = may_bind && self.random.percent(20);
        let binding = Binding {
            ephemeral_ms: ephemeral.then(|| self.random.below(4)),
            // With confirmations it is refused.
            is_keepalive: may_bind && !self.plan.may_confirm() && self.random.percent(20),
            is_running: false,
        };
        let may_count = asks.counts && mode == Mode::Exclusive && !self.plan.may_confirm();
        (binding, may_count && self.random.percent(60))
    }

    fn acquire_as(&mut self, c: usize, task: Task) -> Verdict {
        let waits = [None, Some(0), Some(1 + self.random.below(60))];
        let wait_ms = self.random.of(&waits);
        // A reservation has an end: only a connection can wait without limit.
        let may_reserve = self.plan.asks.reserves && task.keys.len() == 1 && wait_ms.is_some_and(|ms| ms > 0);
        let is_reservation = may_reserve && self.random.percent(40);
        self.clients[c].task = Some(task);
        self.send(c, task, Kind::Acquire { wait_ms, is_reservation }, None)
    }

    /// Repeats a request, because the client does not know if it holds the lock.
    fn ask_again(&mut self, c: usize, task: Task) -> Verdict {
        // docs/reference/failover-guarantees.md: an owner repeats a request only for locks that it believes to hold.
        // If the same life of the same server continues, it may always repeat it (G9).
        if !self.go_to_shard(c, task.keys) {
            return Ok(());
        }
        let is_same = self.nodes[self.clients[c].server].term == task.term;
        match self.random.below(10) {
            0..7 if is_same || !self.plan.is_careful => {
                self.acquire_as(c, Task { state: State::Asked, ..task })
            }
            7 => {
                self.clients[c].task = None;
                self.send(c, task, Kind::Release { is_last: true }, None)
            }
            8 => {
                self.clients[c].task = None;
                Ok(())
            }
            _ if !is_same && self.plan.is_careful => {
                self.clients[c].task = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Handles a lease that has expired by the client's own clock.
    fn outlive(&mut self, c: usize, task: Task) -> Verdict {
        self.judge.give_up(task.keys, task.owner);
        self.clients[c].task = None;
        if !self.plan.is_careful && self.random.percent(40) {
            self.see(Point::CameBackLate);
            let begun = self.numbers.requests;
            return self.acquire_as(c, Task { state: State::Asked, begun, ..task });
        }
        Ok(())
    }

    fn use_hold(&mut self, c: usize, task: Task, token: Token) -> Verdict {
        if !self.go_to_shard(c, task.keys) {
            return Ok(());
        }
        // In a quarantine, clients that act reveal more.
        let dice = if self.is_quarantined(self.clients[c].server) { 5 } else { 10 };
        match self.random.below(dice) {
            0..3 if task.keys.len() == 1 => {
                let token = Some(token).filter(|_| self.random.percent(50));
                let raise = self.choose_raise(c);
                // The command accepts only one of the two.
                let token = token.filter(|_| raise.is_none());
                self.send(c, task, Kind::Renew { raise }, token)
            }
            // A reentrant client acquires again more often.
            n if n < 4 || (n < 7 && task.is_reentrant && self.random.percent(60)) => {
                self.send(c, task, Kind::Acquire { wait_ms: None, is_reservation: false }, None)
            }
            n if n < 7 => {
                let token = Some(token).filter(|_| self.random.percent(50));
                let (term, count) = task.count;
                if term == self.nodes[self.clients[c].server].term && count > 1 {
                    self.clients[c].task = Some(Task { count: (term, count - 1), ..task });
                    return self.send(c, task, Kind::Release { is_last: false }, token);
                }
                self.clients[c].task = None;
                self.clients[c].last = Some(task);
                self.send(c, task, Kind::Release { is_last: true }, token)
            }
            // It crashes, and no client acts for this owner any more.
            7 if self.random.percent(20) => {
                self.judge.give_up(task.keys, task.owner);
                self.clients[c].task = None;
                self.hang_up(c);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Chooses the token to raise to: that of another owner, or a little more than there can be.
    fn choose_raise(&mut self, c: usize) -> Option<Token> {
        if !self.plan.asks.raises || self.random.percent(60) {
            return None;
        }
        let node = &self.nodes[self.clients[c].server];
        let (last, wall_us) = (node.table(|table| table.last_token()), node.sim.wall_us());
        let lead_us = self.random.below(2_000);
        Token::new(if self.random.percent(60) { last } else { wall_us + lead_us })
    }

    /// Sends a request to the server that the client takes for the primary.
    fn send(&mut self, c: usize, task: Task, kind: Kind, token: Option<Token>) -> Verdict {
        let n = self.clients[c].server;
        let node = &self.nodes[n];
        let Task { keys, owner, mode, lease_ms, binding, is_reentrant, .. } = task;
        self.numbers.requests += 1;
        let request = Request {
            number: self.numbers.requests,
            kind,
            client: c,
            connection: self.clients[c].connection,
            keys,
            owner,
            token,
            mode,
            lease_ms,
            binding,
            is_reentrant,
            node: n,
            term: node.term,
            done: self.time,
            floor: None,
            renewed: None,
            decision: 0,
        };
        let is_ours = keys.iter().all(|at| self.is_ours(n, at));
        if !node.runs() || node.is_cut_off || !node.decides() || !is_ours {
            if kind == (Kind::Release { is_last: true }) {
                self.judge.give_up(keys, owner);
            }
            // It never arrives, or is refused there: nothing was done.
            if let Some(task) = self.clients[c].task.take_if(|task| task.state == State::Asked) {
                self.clients[c].task = Some(Task { state: State::Unsure, ..task });
            }
            return Ok(());
        }
        if let Some(Task { state: State::Holds { is_asking, .. }, .. }) = &mut self.clients[c].task {
            *is_asking = true;
        }
        self.note(|| format!("n{n} {owner} asks: {kind:?} {keys:?} {mode:?} {lease_ms} ms, {token:?}"));
        self.ask(request)
    }

    /// Delivers some replies.
    pub(super) fn deliver_some(&mut self) -> Verdict {
        let count = self.in_flight.len() as u64;
        let mut left = if self.random.percent(60) { count } else { self.random.below(3).min(count) };
        while left > 0 && !self.in_flight.is_empty() {
            let at = self.random.below(self.in_flight.len() as u64) as usize;
            let reply = self.in_flight.swap_remove(at);
            self.deliver(reply)?;
            left -= 1;
        }
        Ok(())
    }

    fn deliver(&mut self, InFlight { request, sent }: InFlight) -> Verdict {
        let c = request.client;
        if self.clients[c].connection != request.connection {
            return Ok(());
        }
        let task = self.clients[c].task.filter(|task| request.number > task.begun);
        match (request.kind, sent, task) {
            (Kind::Acquire { .. }, Sent::Granted(token), Some(task)) => {
                let until = self.judge.believe(&request, token, self.time)?;
                let (term, count) = task.count;
                let is_acknowledged =
                    matches!(task.state, State::Holds { token: known, .. } if known == token);
                let counts = request.is_reentrant && term == request.term && is_acknowledged;
                let count = (request.term, if counts { count + 1 } else { 1 });
                let state = State::Holds { token, until, is_asking: false };
                self.clients[c].task = Some(Task { state, count, ..task });
            }
            (Kind::Renew { .. }, Sent::Done(true), Some(Task { state: State::Holds { token, .. }, .. })) => {
                let until = self.judge.renewed(&request, self.time)?;
                let token = request.renewed.unwrap_or(token);
                let state = State::Holds { token, until, is_asking: false };
                self.clients[c].task = task.map(|task| Task { state, ..task });
            }
            (Kind::Renew { .. }, Sent::Done(false), Some(task)) => {
                self.judge.give_up(task.keys, task.owner);
                self.clients[c].task = None;
            }
            (Kind::Acquire { .. }, Sent::Moved, Some(task @ Task { state: State::Asked, .. })) => {
                self.clients[c].task = Some(Task { state: State::SentOn, ..task });
            }
            (
                Kind::Acquire { is_reservation: true, .. },
                Sent::No,
                Some(task @ Task { state: State::Asked, .. }),
            ) => {
                self.clients[c].task = Some(Task { state: State::Unsure, ..task });
            }
            (Kind::Acquire { .. }, _, Some(Task { state: State::Asked, .. })) => self.clients[c].task = None,
            (_, _, Some(Task { state: State::Holds { token, until, .. }, .. })) => {
                let state = State::Holds { token, until, is_asking: false };
                self.clients[c].task = task.map(|task| Task { state, ..task });
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets a server find that connections are closed.
    pub(super) fn notice_closed(&mut self) -> Verdict {
        let mut at = 0;
        while at < self.closing.len() {
            let (n, connection) = self.closing[at];
            if self.nodes[n].runs() && self.random.percent(60) {
                self.close(n, connection)?;
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Makes this client unable to reach that server.
    pub(super) fn lose_server(&mut self, c: usize, n: usize) {
        if self.clients[c].server == n {
            self.hang_up(c);
        }
    }

    /// Makes every client that holds this lock, or may still receive it, give it up.
    pub(super) fn give_up_all(&mut self, at: At) {
        self.judge.broken(at);
        for c in 0..CLIENTS {
            let connection = self.clients[c].connection;
            let is_waiting =
                |node: &super::Node| node.waits.iter().any(|wait| wait.request.connection == connection);
            if self.clients[c].task.is_some_and(|task| task.keys.contains(at))
                && !self.nodes.iter().any(is_waiting)
            {
                self.clients[c].task = None;
            }
        }
    }

    /// Notifies a client that holds this lock that no connection pauses the lease any more.
    pub(super) fn hear_of_move(&mut self, at: At) {
        let time = self.time;
        for task in self.clients.iter_mut().filter_map(|client| client.task.as_mut()) {
            if let State::Holds { until, .. } = &mut task.state
                && *until == u64::MAX
                && task.keys.contains(at)
            {
                *until = time + task.lease_ms * 1_000;
            }
        }
    }

    /// Stops all clients, and drops all beliefs.
    pub(super) fn stop_clients(&mut self) {
        for c in 0..CLIENTS {
            self.hang_up(c);
            if let Some(task) = self.clients[c].task.take() {
                self.judge.give_up(task.keys, task.owner);
            }
        }
        self.in_flight.clear();
    }
}
