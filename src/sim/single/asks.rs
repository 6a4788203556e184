//! Parses the commands of the clients of the [world](crate::sim::single::world), and the replies that they receive.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::error;
use crate::lock::deadlock::Link;
use crate::lock::effect::Answer;
use crate::lock::table::{NO_TOKENS, Refusal, TOO_MANY_LOCKS, WRONG_TYPE};
use crate::lock::types::{Mode, Token};
use crate::sim::single::driven::{Progress, Replied};
use crate::sim::single::input::{Answered, How, InFlight, Input, Keys, Outcome, Reply};
use crate::sim::single::server::{At, Name, name_of};
use crate::sim::single::world::{Blocked, World};

/// The client that releases locks: an unnamed connection, which never waits.
const ANYBODY: u64 = u64::MAX;

/// Returns the number that follows a word of an error.
fn number_in<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split_whitespace().find_map(|word| word.parse().ok())
}

/// Returns the reason why a request is refused, as its client reads it.
fn refusal(keys: Keys, text: &str) -> Option<Refusal> {
    Some(match text.split(' ').next()? {
        "LOCKQUEUE" if text.contains("for this lock") => Refusal::QueueIsFull(number_in(text)?),
        "LOCKQUEUE" => Refusal::ServerIsFull(number_in(text)?),
        "LOCKKIND" if text.contains("LIMIT") => {
            Refusal::OtherKind(Mode::Limit(number_in(&text.replace(';', " "))?))
        }
        "LOCKKIND" => Refusal::OtherKind(Mode::Shared),
        "LOCKHELD" => Refusal::Held(keys.iter().position(|at| text.contains(&format!("'{}'", at.name)))?),
        "QUARANTINE" => Refusal::Quarantine(number_in(text)?),
        "DEADLOCK" => Refusal::Deadlock,
        _ if text == WRONG_TYPE => Refusal::WrongType,
        _ if text == error::CANNOT_CONFIRM => Refusal::Unconfirmable,
        _ if text == error::LEAVING => Refusal::Leaving,
        _ if text == NO_TOKENS => Refusal::NoTokens,
        _ if text == TOO_MANY_LOCKS => Refusal::TooManyLocks,
        _ if text.starts_with("ERR this owner holds the lock") => Refusal::TooManyTimes,
        _ if text.starts_with("ERR RAISE is for exclusive locks: this one is SHARED") => {
            Refusal::Several(Mode::Shared)
        }
        _ if text.starts_with("ERR RAISE is for exclusive locks") => {
            Refusal::Several(Mode::Limit(number_in(&text.replace(',', " "))?))
        }
        _ => return None,
    })
}

/// Returns the waits that an error lists. No name here has a quotation mark in it.
fn cycle(db: u32, text: &str) -> Vec<Link> {
    let names: Vec<&str> = text.split('\'').skip(1).step_by(2).collect();
    let link = |names: &[&str]| Link {
        owner: names[0].as_bytes().into(),
        lock_key: At::new(db, name_of(names[1].as_bytes())).lock_key().to_owned(),
        awaited: names[2].as_bytes().into(),
    };
    names.chunks_exact(3).map(link).collect()
}

impl World {
    pub(crate) fn acquire(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        let Input::Acquire { at, owner, lease_ms, wait, client, minted, how } = *input else {
            return Err(format!("{input:?} is no acquire"));
        };
        let How { mode, is_reentrant, binding, is_reservation } = how;
        let mut words = words(&["LOCK.ACQUIRE", at.name, if minted { "*" } else { owner }]);
        options(&mut words, lease_ms, mode, wait, is_reservation);
        words.extend(is_reentrant.then(|| "REENTRANT".to_owned()));
        if let Some(ms) = binding.ephemeral_ms {
            words.extend(["EPHEMERAL".to_owned(), ms.to_string()]);
        }
        words.extend(binding.is_keepalive.then(|| "KEEPALIVE".to_owned()));
        out.reply = self.ask(Keys::one(at), owner, client, &words, out)?;
        Ok(())
    }

    pub(crate) fn acquire_many(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        let Input::AcquireMany { keys, owner, lease_ms, wait, client, minted, is_shared } = *input else {
            return Err(format!("{input:?} is no acquire of several"));
        };
        let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
        let mut words = words(&["LOCK.MACQUIRE", &keys.len().to_string()]);
        words.extend(keys.iter().map(|at| at.name.to_owned()));
        words.push(if minted { "*" } else { owner }.to_owned());
        options(&mut words, lease_ms, mode, wait, false);
        out.reply = self.ask(keys, owner, client, &words, out)?;
        Ok(())
    }

    /// Sends a client's request for locks.
    fn ask(
        &mut self,
        keys: Keys,
        owner: Name,
        client: u64,
        words: &[String],
        out: &mut Outcome,
    ) -> Result<Reply, String> {
        if self.is_blocked(client) {
            return Err(format!("client {client} is blocked, and no server would hear {words:?}"));
        }
        self.owners.insert(owner);
        let at = keys.first().ok_or("a request for nothing")?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match self.server.ask(client, at.db, &words)? {
            Replied::Integer(token) => granted(token),
            Replied::Owner(minted, token) if *minted == *owner.as_bytes() => granted(token),
            Replied::Null => Ok(Reply::Busy),
            Replied::Later(handle) => self.blocks(handle, at, owner, client),
            Replied::Error(text) => {
                out.cycle = cycle(at.db, &text);
                refusal(keys, &text).map(Reply::Refused).ok_or(format!("{words:?} is replied {text}"))
            }
            other => Err(format!("{words:?} is replied {other:?}")),
        }
    }

    /// Notes that the client is blocked: it waits in a queue, or it has its locks and waits for replicas.
    fn blocks(&mut self, handle: u64, at: At, owner: Name, client: u64) -> Result<Reply, String> {
        let (number, reply) = match self.server.progress(handle) {
            Progress::Confirming(Some(Answer::Granted { token, .. })) => (0, Reply::Granted(token)),
            Progress::Confirming(None) => (0, Reply::Bool(true)),
            _ => {
                self.wait_count += 1;
                (self.wait_count, Reply::Waiting(self.wait_count))
            }
        };
        let is_open = number > 0;
        self.blocked.insert(handle, Blocked { number, at, owner, client, is_open });
        Ok(reply)
    }

    pub(crate) fn release(
        &mut self,
        at: At,
        owner: Name,
        token: Option<Token>,
        out: &mut Outcome,
    ) -> Result<(), String> {
        let mut words = words(&["LOCK.RELEASE", at.name, owner]);
        words.extend(token.into_iter().flat_map(|token| ["TOKEN".to_owned(), token.to_string()]));
        out.reply = self.ask_for_truth(at, owner, ANYBODY, &words)?;
        Ok(())
    }

    pub(crate) fn renew(&mut self, input: &Input, out: &mut Outcome) -> Result<(), String> {
        let Input::Renew { at, owner, token, raise, lease_ms, client } = *input else {
            return Err(format!("{input:?} is no renewal"));
        };
        let mut words = words(&["LOCK.RENEW", at.name, owner, "PX", &lease_ms.to_string()]);
        words.extend(token.into_iter().flat_map(|token| ["TOKEN".to_owned(), token.to_string()]));
        words.extend(raise.into_iter().flat_map(|raise| ["RAISE".to_owned(), raise.to_string()]));
        out.reply = self.ask_for_truth(at, owner, client, &words)?;
        Ok(())
    }

    fn ask_for_truth(&mut self, at: At, owner: Name, client: u64, words: &[String]) -> Result<Reply, String> {
        if self.is_blocked(client) {
            return Err(format!("client {client} is blocked, and no server would hear {words:?}"));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match self.server.ask(client, at.db, &words)? {
            Replied::Integer(truth) => Ok(Reply::Bool(truth == 1)),
            Replied::Later(handle) => self.blocks(handle, at, owner, client),
            Replied::Error(text) => refusal(Keys::one(at), &text)
                .map(Reply::Refused)
                .ok_or(format!("{words:?} is replied {text}")),
            other => Err(format!("{words:?} is replied {other:?}")),
        }
    }

    pub(crate) fn fence(&mut self, at: At, out: &mut Outcome) -> Result<(), String> {
        out.reply = match self.server.ask(ANYBODY, at.db, &["LOCK.FENCE", at.name])? {
            Replied::Integer(token) => Reply::Token(Token::new(token)),
            Replied::Null => Reply::Token(None),
            Replied::Error(text) if text == WRONG_TYPE => Reply::Token(None),
            other => return Err(format!("LOCK.FENCE is replied {other:?}")),
        };
        Ok(())
    }

    /// Returns true if no server reads from this client now.
    pub(crate) fn is_blocked(&self, client: u64) -> bool {
        self.blocked.values().any(|blocked| blocked.client == client)
    }

    /// Returns this connection or, if it is blocked, another one of the same client.
    pub(crate) fn one_that_is_heard(&self, client: u64) -> u64 {
        let mut client = client;
        while self.is_blocked(client) {
            client += 100_000;
        }
        client
    }

    /// Collects the clients that were answered in this step, and the replies that are under way now.
    pub(crate) fn answers(&mut self, out: &mut Outcome) -> Result<(), String> {
        let single = &self.server;
        for (&handle, blocked) in &mut self.blocked {
            let answer = match single.progress(handle) {
                Progress::InQueue if blocked.is_open => continue,
                Progress::Confirming(answer) | Progress::Answered(answer) => answer,
                progress @ Progress::InQueue => {
                    return Err(format!("G7: {blocked:?} was answered, and is {progress:?}"));
                }
            };
            if std::mem::take(&mut blocked.is_open) {
                let answer = answer.ok_or_else(|| format!("G7: {blocked:?} is told nothing"))?;
                let Blocked { number, at, client, .. } = *blocked;
                out.answers.push(Answered { wait: number, at, client, answer });
            }
        }
        // Sorted by tokens, which show the order of the grants.
        out.answers.sort_by_key(|answered| match answered.answer {
            Answer::Granted { token, .. } => token.get(),
            _ => 0,
        });
        self.in_flight = self.owed(false).into_values().flatten().collect();
        Ok(())
    }

    /// Delivers all answers that are under way.
    pub(crate) fn send_answers(&mut self) {
        let (granted, owed) = (self.granted(), self.owed(false));
        self.server.send(None);
        self.in_flight.clear();
        self.let_go_of_answered(&granted);
        let left = self.owed(false);
        let sent = owed.into_iter().filter(|(handle, _)| !left.contains_key(handle));
        self.delivered.extend(sent.flat_map(|(_, holds)| holds).map(|hold| (hold.at, hold.token)));
    }

    /// Returns the blocked clients that are about to read a grant.
    fn granted(&self) -> BTreeSet<u64> {
        let is_granted = |handle: &u64| {
            let progress = self.server.progress(*handle);
            matches!(progress, Progress::Answered(Some(Answer::Granted { .. })))
        };
        self.blocked.keys().copied().filter(is_granted).collect()
    }

    /// Releases the clients that were answered: they are no longer blocked.
    fn let_go_of_answered(&mut self, granted: &BTreeSet<u64>) {
        let (single, refused) = (&self.server, &mut self.refused);
        self.blocked.retain(|handle, blocked| {
            let is_blocked = single.is_blocked(*handle);
            if !is_blocked && !granted.contains(handle) {
                refused.insert((blocked.client, blocked.owner));
            }
            is_blocked
        });
    }

    /// Runs `act`, which may cause replies never to be sent.
    pub(crate) fn drops_replies(&mut self, out: &mut Outcome, act: impl FnOnce(&mut Self)) {
        let before = self.all_owed();
        act(self);
        let after = self.all_owed();
        let dropped = before.into_iter().filter(|(handle, _)| !after.contains_key(handle));
        out.undelivered.extend(dropped.flat_map(|(_, holds)| holds).map(|hold| (hold.at, hold.token)));
    }

    pub(crate) fn close(&mut self, client: u64) {
        let granted = self.granted();
        self.server.close(client);
        let refused = &mut self.refused;
        self.blocked.retain(|handle, blocked| {
            if blocked.client == client && !granted.contains(handle) {
                refused.insert((client, blocked.owner));
            }
            blocked.client != client
        });
    }

    pub(crate) fn unblock(&mut self, client: u64, out: &mut Outcome) {
        let granted = self.granted();
        let (confirming, answered) = (self.owed(true), self.owed(false));
        self.server.unblock(client);
        self.let_go_of_answered(&granted);
        let of_gone = |owed: BTreeMap<u64, Vec<InFlight>>| {
            let gone = owed.into_iter().filter(|(handle, _)| !self.blocked.contains_key(handle));
            gone.flat_map(|(_, holds)| holds).map(|hold| (hold.at, hold.token)).collect::<Vec<_>>()
        };
        out.undelivered.extend(of_gone(confirming));
        // An answer that waited for its turn is sent sooner.
        out.delivered.extend(of_gone(answered));
    }

    /// Returns the clients that wait for replicas, and the holds that their replies will name.
    pub(crate) fn confirming(&self) -> Vec<(u64, Vec<InFlight>)> {
        self.owed(true).into_iter().map(|(handle, holds)| (self.blocked[&handle].client, holds)).collect()
    }

    fn all_owed(&self) -> BTreeMap<u64, Vec<InFlight>> {
        self.owed(true).into_iter().chain(self.owed(false)).collect()
    }

    /// Returns the holds that the replies to blocked clients will name, by the numbers of their blocks: for clients
    /// that wait for replicas, or for those that are answered.
    fn owed(&self, is_confirming: bool) -> BTreeMap<u64, Vec<InFlight>> {
        let mut all = BTreeMap::new();
        for (&handle, &Blocked { owner, client, .. }) in &self.blocked {
            let (waits, holds) = self.server.owed(handle);
            if waits == is_confirming && !holds.is_empty() {
                let hold = |(lock_key, token)| InFlight { at: Self::at_of(&lock_key), owner, token, client };
                all.insert(handle, holds.into_iter().map(hold).collect());
            }
        }
        all
    }
}

fn granted(token: u64) -> Result<Reply, String> {
    Token::new(token).map(Reply::Granted).ok_or_else(|| format!("{token} is no token"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The options of a request for locks.
fn options(words: &mut Vec<String>, lease_ms: u64, mode: Mode, wait: Option<u64>, is_reservation: bool) {
    words.extend(["PX".to_owned(), lease_ms.to_string()]);
    match mode {
        Mode::Exclusive => {}
        Mode::Shared => words.push("SHARED".to_owned()),
        Mode::Limit(limit) => words.extend(["LIMIT".to_owned(), limit.to_string()]),
    }
    if let Some(ms) = wait {
        let word = if is_reservation { "QUEUE" } else { "BLOCK" };
        words.extend([word.to_owned(), ms.to_string()]);
    }
}
