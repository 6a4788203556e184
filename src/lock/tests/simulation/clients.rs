//! Clients: each does one thing at a time under one owner, loses replies, asks again, and gives up.

use std::sync::LazyLock;

use super::super::input::Keys;
use super::super::server::Name;
use super::asks::{InFlight, Kind, Request, Sent};
use super::points::Point;
use super::{CLIENTS, Group, LOCKS, NODES, Numbers, Verdict, mode_of};
use crate::lock::types::{Mode, Token};

/// More owners than a life needs.
static OWNERS: LazyLock<Vec<Name>> = LazyLock::new(|| {
    let owner = |number| -> Name { Box::leak(format!("owner-{number}").into_boxed_str()) };
    (0..4096).map(owner).collect()
});

/// What a client is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    keys: Keys,
    owner: Name,
    mode: Mode,
    lease_ms: u64,
    /// The life of the server that was asked first.
    term: u32,
    /// Replies to requests up to this one are nothing to it.
    begun: u32,
    state: State,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It waits for a reply.
    Asked,
    /// The reply was lost: it may hold the lock, or not.
    Unsure,
    /// It was told that it holds the lock, until then.
    Holds { token: Token, until: u64, is_asking: bool },
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Client {
    task: Option<Task>,
    /// What it gave up last.
    last: Option<Task>,
    /// Whom it takes for the primary.
    server: usize,
    pub(super) connection: u64,
}

impl Client {
    /// Its connection to this server is gone.
    pub(super) fn lose_connection_to(&mut self, n: usize, numbers: &mut Numbers) {
        if self.server == n {
            self.reconnect(numbers);
        }
    }

    fn reconnect(&mut self, numbers: &mut Numbers) {
        numbers.connections += 1;
        self.connection = numbers.connections;
        if let Some(task) = &mut self.task {
            task.state = match task.state {
                State::Holds { token, until, .. } => State::Holds { token, until, is_asking: false },
                State::Asked | State::Unsure => State::Unsure,
            };
        }
    }
}

impl Group {
    /// One of the clients does something.
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

    /// It connects to somebody who may be the primary.
    fn find_server(&mut self, c: usize) {
        let server = self.clients[c].server;
        let answers = |node: &super::Node| node.runs() && !node.is_cut_off && node.decides();
        if answers(&self.nodes[server]) && !self.random.percent(1) {
            return;
        }
        // A frozen server does not close its connections: not every client goes on at once.
        if self.nodes[server].is_frozen && self.random.percent(70) {
            return;
        }
        let next = self.random.below(NODES as u64) as usize;
        if next != server {
            self.hang_up(c);
            self.clients[c].server = next;
            if self.clients[c].task.is_some() {
                self.see(Point::AskedElsewhere);
            }
        }
    }

    /// It gives its connection up. The server finds that out later.
    fn hang_up(&mut self, c: usize) {
        let client = &mut self.clients[c];
        self.closing.push((client.server, client.connection));
        client.reconnect(&mut self.numbers);
    }

    fn begin_task(&mut self, c: usize) -> Verdict {
        let begun = self.numbers.requests;
        let term = self.nodes[self.clients[c].server].term;
        let last = self.clients[c].last.filter(|_| !self.plan.is_careful && self.random.percent(40));
        if let Some(last) = last {
            return self.acquire_as(c, Task { begun, term, state: State::Asked, ..last });
        }
        let first = self.random.below(LOCKS.len() as u64) as usize;
        let keys = if first < 2 && self.random.percent(15) {
            Keys::of(&[LOCKS[first], LOCKS[1 - first]])
        } else {
            Keys::one(LOCKS[first])
        };
        // One that is not careful comes back under the same name whatever happened.
        let owner = if self.plan.is_careful || self.random.percent(20) {
            self.numbers.owners += 1;
            OWNERS[(self.numbers.owners + CLIENTS * 2) % OWNERS.len()]
        } else {
            OWNERS[c * 2 + self.random.below(2) as usize]
        };
        let mode = mode_of(first, &mut self.random);
        let lease_ms = 1 + self.random.below(self.plan.lease_ms_max);
        self.acquire_as(c, Task { keys, owner, mode, lease_ms, term, begun, state: State::Asked })
    }

    fn acquire_as(&mut self, c: usize, task: Task) -> Verdict {
        let waits = [None, Some(0), Some(1 + self.random.below(60))];
        let wait_ms = self.random.of(&waits);
        self.clients[c].task = Some(task);
        self.send(c, task, Kind::Acquire { wait_ms }, None)
    }

    /// It does not know whether it holds the lock.
    fn ask_again(&mut self, c: usize, task: Task) -> Verdict {
        // docs/GUARANTEES.md: an owner comes back only for what it believes to hold. Where the same life of the same
        // server goes on, it may ask again (G9).
        let is_same = self.nodes[self.clients[c].server].term == task.term;
        match self.random.below(10) {
            0..7 if is_same || !self.plan.is_careful => {
                self.acquire_as(c, Task { state: State::Asked, ..task })
            }
            7 => {
                self.clients[c].task = None;
                self.send(c, task, Kind::Release, None)
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

    /// Its lease is over, by its own clock.
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
        match self.random.below(10) {
            0..3 if task.keys.len() == 1 => {
                let token = Some(token).filter(|_| self.random.percent(50));
                self.send(c, task, Kind::Renew, token)
            }
            0..4 => self.send(c, task, Kind::Acquire { wait_ms: None }, None),
            4..7 => {
                let token = Some(token).filter(|_| self.random.percent(50));
                self.clients[c].task = None;
                self.clients[c].last = Some(task);
                self.send(c, task, Kind::Release, token)
            }
            // It crashes, and nobody acts for this owner any more.
            7 if self.random.percent(20) => {
                self.judge.give_up(task.keys, task.owner);
                self.clients[c].task = None;
                self.hang_up(c);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A request goes to the server that the client takes for the primary.
    fn send(&mut self, c: usize, task: Task, kind: Kind, token: Option<Token>) -> Verdict {
        let n = self.clients[c].server;
        let node = &self.nodes[n];
        let Task { keys, owner, mode, lease_ms, .. } = task;
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
            node: n,
            term: node.term,
            done: self.time,
            floor: None,
        };
        if !node.runs() || node.is_cut_off || !node.decides() {
            if kind == Kind::Release {
                self.judge.give_up(keys, owner);
            }
            // It never gets there, or is refused there: nothing was done.
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

    /// Some replies arrive.
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
                self.judge.believe(&request, token, self.time)?;
                let before = if let State::Holds { until, .. } = task.state { until } else { 0 };
                let until = before.max(request.done + request.lease_ms * 1_000);
                let state = State::Holds { token, until, is_asking: false };
                self.clients[c].task = Some(Task { state, ..task });
            }
            (Kind::Renew, Sent::Done(true), Some(Task { state: State::Holds { token, until, .. }, .. })) => {
                self.judge.renewed(&request, self.time)?;
                let until = until.max(request.done + request.lease_ms * 1_000);
                let state = State::Holds { token, until, is_asking: false };
                self.clients[c].task = task.map(|task| Task { state, ..task });
            }
            (Kind::Renew, Sent::Done(false), Some(task)) => {
                self.judge.give_up(task.keys, task.owner);
                self.clients[c].task = None;
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

    /// A server finds that connections are closed.
    pub(super) fn notice_closed(&mut self) -> Verdict {
        let mut at = 0;
        while at < self.closing.len() {
            let (n, connection) = self.closing[at];
            if self.nodes[n].runs() && self.random.percent(60) {
                self.closing.swap_remove(at);
                self.close(n, connection);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// This client cannot reach that server any more.
    pub(super) fn lose_server(&mut self, c: usize, n: usize) {
        if self.clients[c].server == n {
            self.hang_up(c);
        }
    }

    /// All clients stop, and nobody believes anything any more.
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
