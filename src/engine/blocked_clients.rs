//! Blocked clients: one entry each, in one stage, until the server has released it.
//!
//! A client waits in a queue, then perhaps for replicas, then perhaps for its turn to be answered, and finally for
//! the server to send the answer. Whatever ends that, [`Clients::remove`] is the one way out.
//!
//! Replies are paced: a turn of the event loop answers only as many clients as it can in a few milliseconds.
//! Decisions are not delayed: the holds exist, and replicas and files have them. But sending a reply costs the server
//! about three times what a grant costs us, and it sends all queued replies before it reads the next command. So the
//! pump hands it some replies in each turn, first come first served.

use crate::lock::tuning::Bound;
use std::collections::VecDeque;
use std::hash::Hash;

use hashbrown::HashMap;

use crate::command::error::{GRANT_UNCONFIRMED, RENEWAL_UNCONFIRMED};
use crate::lock::confirm::WaitId;
use crate::lock::effect::{Answer, WaiterId};
use crate::lock::types::{ClientId, LockKey, LockKeyBuf, Token};

/// The most clients that one turn of the event loop answers.
pub(crate) const REPLIES_PER_TURN: Bound = Bound::of(128, 3);

/// The number of clients for which memory is kept after a storm.
const KEPT: Bound = Bound::of(64, 4);

/// The answer to a blocked client.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The outcome of its wait in a queue.
    Answer(Answer),
    /// A renewal of this hold succeeded.
    Renewed(Option<(LockKeyBuf, Token)>),
}

impl Reply {
    /// Returns the answer to send instead if replicas did not confirm the grant.
    #[must_use]
    pub const fn unconfirmed(&self) -> Self {
        let reason = if matches!(self, Self::Renewed(_)) { RENEWAL_UNCONFIRMED } else { GRANT_UNCONFIRMED };
        Self::Answer(Answer::Refused(reason))
    }

    /// Calls this for each hold that it reports to its owner.
    pub fn for_each_hold(&self, mut act: impl FnMut(LockKey<'_>, Token)) {
        match self {
            Self::Answer(Answer::Granted { lock_key, others, token, .. }) => {
                act(lock_key.as_key(), *token);
                others.iter().for_each(|other| act(other.as_key(), *token));
            }
            Self::Renewed(Some((lock_key, token))) => act(lock_key.as_key(), *token),
            Self::Renewed(None) | Self::Answer(_) => {}
        }
    }

    /// Returns true if it reports a hold to its owner.
    #[must_use]
    pub const fn tells_of_hold(&self) -> bool {
        matches!(self, Self::Answer(Answer::Granted { .. }) | Self::Renewed(_))
    }
}

/// The stage of a blocked client.
#[derive(Debug)]
pub enum Stage {
    /// Waits in a queue.
    InQueue(WaiterId),
    /// Waits for replicas, and then gets this reply.
    Confirming(WaitId, Reply),
    /// Waits for its turn to get this reply.
    Paced(Reply),
    /// Answered; the server has not sent the reply yet.
    Answered,
}

/// A blocked client.
#[derive(Debug)]
pub struct Client {
    /// Its connection.
    pub id: ClientId,
    /// Its stage.
    pub stage: Stage,
    /// Its number in the order of replies.
    number: u64,
}

/// All blocked clients. See the [module](self).
#[derive(Debug)]
pub struct Clients<B> {
    all: HashMap<B, Client>,
    in_queue: HashMap<WaiterId, B>,
    confirming: HashMap<WaitId, B>,
    /// Clients to answer, in order, with the numbers that distinguish clients which used the same handle one after
    /// the other. Some of them may have left.
    paced: VecDeque<(B, u64)>,
    /// The number of those that have not left.
    paced_len: usize,
    answered: usize,
    last_number: u64,
}

impl<B> Default for Clients<B> {
    fn default() -> Self {
        Self {
            all: HashMap::new(),
            in_queue: HashMap::new(),
            confirming: HashMap::new(),
            paced: VecDeque::new(),
            paced_len: 0,
            answered: 0,
            last_number: 0,
        }
    }
}

impl<B: Copy + Eq + Hash> Clients<B> {
    /// Records that this client waits in a queue.
    pub fn wait_in_queue(&mut self, blocked: B, id: ClientId, waiter: WaiterId) {
        self.in_queue.insert(waiter, blocked);
        self.insert(blocked, id, Stage::InQueue(waiter));
    }

    /// Records that this client waits for replicas.
    pub fn wait_for_replicas(&mut self, blocked: B, id: ClientId, wait: WaitId, reply: Reply) {
        self.confirming.insert(wait, blocked);
        self.insert(blocked, id, Stage::Confirming(wait, reply));
    }

    /// Records that this client will be answered in its turn.
    pub fn wait_for_turn(&mut self, blocked: B, id: ClientId, reply: Reply) {
        let number = self.insert(blocked, id, Stage::Paced(reply));
        self.paced.push_back((blocked, number));
        self.paced_len += 1;
    }

    /// Records that this client was answered.
    pub fn note_answered(&mut self, blocked: B, id: ClientId) {
        self.answered += 1;
        self.insert(blocked, id, Stage::Answered);
    }

    fn insert(&mut self, blocked: B, id: ClientId, stage: Stage) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        let before = self.all.insert(blocked, Client { id, stage, number });
        debug_assert!(before.is_none(), "a client is in one stage");
        number
    }

    /// Removes a client, whatever ended its wait. The one way out.
    pub fn remove(&mut self, blocked: B) -> Option<Client> {
        let client = self.all.remove(&blocked)?;
        match client.stage {
            Stage::InQueue(waiter) => _ = self.in_queue.remove(&waiter),
            Stage::Confirming(wait, _) => _ = self.confirming.remove(&wait),
            Stage::Paced(_) => self.paced_len -= 1,
            Stage::Answered => self.answered -= 1,
        }
        Some(client)
    }

    /// Removes the client that waits in a queue as this waiter.
    pub fn take_waiter(&mut self, waiter: WaiterId) -> Option<B> {
        let blocked = *self.in_queue.get(&waiter)?;
        self.remove(blocked).map(|_| blocked)
    }

    /// Removes the client that waits for replicas by this number.
    pub fn take_confirming(&mut self, wait: WaitId) -> Option<(B, ClientId, Reply)> {
        let blocked = *self.confirming.get(&wait)?;
        match self.remove(blocked)? {
            Client { id, stage: Stage::Confirming(_, reply), .. } => Some((blocked, id, reply)),
            _ => None,
        }
    }

    /// Removes the next client to be answered.
    pub fn take_paced(&mut self) -> Option<(B, ClientId, Reply)> {
        while let Some((blocked, number)) = self.paced.pop_front() {
            if self.all.get(&blocked).is_none_or(|client| client.number != number) {
                continue;
            }
            if let Some(Client { id, stage: Stage::Paced(reply), .. }) = self.remove(blocked) {
                return Some((blocked, id, reply));
            }
        }
        None
    }

    /// Returns true if a client waits for its turn to be answered.
    #[must_use]
    pub const fn has_paced(&self) -> bool {
        self.paced_len > 0
    }

    /// Returns how many clients may still be answered in this turn of the event loop.
    #[must_use]
    pub fn room(&self) -> usize {
        REPLIES_PER_TURN.get().saturating_sub(self.answered)
    }

    /// Returns how many clients that have not waited for a turn may be answered in this one. They overtake no client
    /// that has.
    #[must_use]
    pub fn room_behind_others(&self) -> usize {
        if self.has_paced() { 0 } else { self.room() }
    }

    /// The stage of this client. For tests.
    #[cfg(test)]
    pub fn stage(&self, blocked: B) -> Option<&Stage> {
        self.all.get(&blocked).map(|client| &client.stage)
    }

    /// The number of blocked clients. For tests.
    #[cfg(test)]
    pub fn blocked(&self) -> usize {
        self.all.len()
    }

    /// Frees the memory of a storm of clients, except for a few.
    pub fn give_back_memory(&mut self) {
        if self.all.is_empty() && self.capacity() > KEPT.get() {
            *self = Self { last_number: self.last_number, ..Self::default() };
        }
    }

    fn capacity(&self) -> usize {
        let maps = self.in_queue.capacity().max(self.confirming.capacity());
        self.all.capacity().max(maps).max(self.paced.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(clients: &mut Clients<u64>, number: u64) {
        clients.wait_for_turn(number, ClientId(number), Reply::Renewed(None));
    }

    fn next(clients: &mut Clients<u64>) -> Option<u64> {
        clients.take_paced().map(|(blocked, id, _)| {
            assert_eq!(blocked, id.0);
            blocked
        })
    }

    #[test]
    fn clients_are_answered_in_order_and_removed_ones_are_skipped() {
        let mut clients = Clients::default();
        for number in 1..=6 {
            push(&mut clients, number);
        }
        assert_eq!(next(&mut clients), Some(1));
        for gone in [2, 3, 6] {
            assert!(clients.remove(gone).is_some());
            assert!(clients.remove(gone).is_none(), "once");
        }
        assert!(clients.remove(1).is_none(), "it was answered");
        push(&mut clients, 7);
        // A server gives handles anew: a client that comes later by the same one waits for its own turn.
        push(&mut clients, 2);
        assert_eq!([(); 5].map(|()| next(&mut clients)), [Some(4), Some(5), Some(7), Some(2), None]);
        assert!(!clients.has_paced());
    }

    #[test]
    fn each_stage_has_its_way_in_and_all_have_one_way_out() {
        let mut clients = Clients::default();
        let (waiter, wait) = (WaiterId::from_number(7), WaitId::default());
        clients.wait_in_queue(1, ClientId(10), waiter);
        clients.wait_for_replicas(2, ClientId(20), wait, Reply::Renewed(None));
        clients.wait_for_turn(4, ClientId(40), Reply::Renewed(None));
        clients.note_answered(5, ClientId(50));
        assert!(clients.has_paced());
        assert_eq!((clients.room(), clients.room_behind_others()), (REPLIES_PER_TURN.get() - 1, 0));
        for (blocked, id) in [(1, 10), (2, 20), (4, 40), (5, 50)] {
            assert_eq!(clients.remove(blocked).map(|client| client.id), Some(ClientId(id)));
        }
        assert!(!clients.has_paced() && clients.room() == REPLIES_PER_TURN.get());
        assert_eq!(clients.take_waiter(waiter), None);
        assert!(clients.take_confirming(wait).is_none());
    }

    #[test]
    fn memory_of_clients_comes_back_when_nobody_is_blocked() {
        for count in [3, 1_000] {
            let mut clients = Clients::default();
            for number in 1..=count {
                push(&mut clients, number);
            }
            clients.give_back_memory();
            assert_eq!(clients.all.len() as u64, count);
            while next(&mut clients).is_some() {}
            clients.give_back_memory();
            assert_eq!(clients.capacity() == 0, count == 1_000, "{count}");
        }
    }
}
