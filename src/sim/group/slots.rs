//! Slots: the shard of each lock, and its move to the other one, key by key, as MIGRATE does it.
//!
//! While a slot moves, its source serves the locks that are still there, and its target those that are not. Time
//! passes between the last grant of a lock at the one and the first at the other. It is longer than the clocks differ
//! and the lead of tokens over them (docs/reference/guarantees.md, G4). Both shards keep their roles meanwhile, and a
//! slot leaves no shard that may have lost some of its locks ("Slots stay with their shard"). Every server knows at
//! once where a slot is: the gossip between servers is left out.

use super::points::Point;
use super::{GROUP, Group, LOCKS, OTHER, Verdict, lock_at};
use crate::sim::server::inside::Slot;
use crate::sim::server::sim::at as key_at;
use crate::sim::single::input::Keys;
use crate::sim::single::server::{At, Name};

/// The locks of each slot. One request may name the first two.
const SLOTS: [&[usize]; 3] = [&[0, 1], &[2], &[3]];

/// The least time from the last grant of a lock at one shard to the first at the other one. It is more than wall
/// clocks differ, and more than tokens lead them.
const MOVE_US: u64 = 6_000;

/// One of the two shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Shard {
    #[default]
    Group,
    Other,
}

impl Shard {
    /// Returns the shard of a server.
    pub(super) const fn of(n: usize) -> Self {
        if n == OTHER { Self::Other } else { Self::Group }
    }

    const fn opposite(self) -> Self {
        match self {
            Self::Group => Self::Other,
            Self::Other => Self::Group,
        }
    }
}

/// A moving slot.
#[derive(Clone, Copy, Debug)]
struct Move {
    from: usize,
    to: usize,
    begun: u64,
}

/// The locations of the slots.
#[derive(Default)]
pub(super) struct Slots {
    homes: [Shard; SLOTS.len()],
    moves: [Option<Move>; SLOTS.len()],
    /// The shard that minted the last token of each lock, and when.
    minted: [(Shard, u64); LOCKS.len()],
    /// The last time at which more than one server of the group decided.
    pub(super) rivalled: u64,
}

impl Slots {
    /// Notes that tokens of these locks come from this server now.
    pub(super) fn note_minted(&mut self, n: usize, keys: Keys, time: u64) {
        keys.iter().for_each(|at| self.minted[lock_at(at)] = (Shard::of(n), time));
    }

    /// Returns false while a slot is moving: then no replica is promoted.
    pub(super) fn may_change_roles(&self) -> bool {
        self.moves.iter().all(Option::is_none)
    }
}

/// Returns the slot of a lock.
pub(super) fn slot_of(at: At) -> usize {
    slot_with(lock_at(at))
}

/// Returns the slot of the lock with this number.
fn slot_with(lock: usize) -> usize {
    SLOTS.iter().position(|locks| locks.contains(&lock)).expect("each lock has a slot")
}

impl Group {
    /// Returns true if this server takes part in a move.
    pub(super) fn is_moving_at(&self, n: usize) -> bool {
        self.slots.moves.iter().flatten().any(|slot| slot.from == n || slot.to == n)
    }

    /// Returns true if this server serves the lock: the lock is at its shard, and not moving to the other one.
    pub(super) fn is_ours(&self, n: usize, at: At) -> bool {
        let lock = lock_at(at);
        let slot = slot_with(lock);
        let is_home = self.slots.homes[slot] == Shard::of(n);
        let has = |n: usize| self.nodes[n].has(at);
        let (shard, minted) = self.slots.minted[lock];
        let is_early = shard != Shard::of(n) && minted + MOVE_US >= self.time;
        match self.slots.moves[slot] {
            None => is_home && !is_early,
            // It may have arrived only just now, and begun to move back.
            Some(Move { from, .. }) if is_home => has(from) && !is_early,
            Some(Move { from, to, begun }) => {
                n == to && !has(from) && !is_early && begun + MOVE_US < self.time
            }
        }
    }

    /// Returns this server's knowledge of the slots that it does not fully own. A key of a moving slot may leave
    /// while the server does something, and from then on the server does not serve it.
    pub(super) fn slots_of(&self, n: usize) -> Vec<(&'static str, Slot)> {
        let slot = |at: At| {
            if !self.is_ours(n, at) {
                return Some((at.name, Slot::Elsewhere));
            }
            let is_leaving = self.slots.moves[slot_of(at)].is_some_and(|slot_move| slot_move.from == n);
            is_leaving.then_some((at.name, Slot::Leaving))
        };
        LOCKS.into_iter().filter_map(slot).collect()
    }

    /// Returns the shard to which a client with these locks is redirected. `None` if it must retry.
    pub(super) fn shard_for(&self, keys: Keys) -> Option<Shard> {
        let first = keys.first()?;
        let home = self.slots.homes[slot_of(first)];
        let Some(Move { from, to, .. }) = self.slots.moves[slot_of(first)] else {
            return Some(home);
        };
        let answering = [from, to].into_iter().find(|&n| keys.iter().all(|at| self.is_ours(n, at)));
        answering.map(Shard::of)
    }

    /// Begins or ends the move of a slot.
    pub(super) fn move_slots(&mut self) -> Verdict {
        let slot = self.random.below(SLOTS.len() as u64) as usize;
        match self.slots.moves[slot] {
            _ if !self.plan.has_moves => Ok(()),
            None => {
                self.begin_move(slot);
                Ok(())
            }
            Some(slot_move) if self.may_end(slot_move) => self.end_move(slot, slot_move),
            Some(_) => Ok(()),
        }
    }

    fn may_end(&self, Move { from, to, begun }: Move) -> bool {
        begun + MOVE_US < self.time && self.nodes[from].runs() && self.nodes[to].runs()
    }

    fn begin_move(&mut self, slot: usize) {
        let home = self.slots.homes[slot];
        let (Some(from), Some(to)) = (self.chief_of(home), self.chief_of(home.opposite())) else {
            return;
        };
        for n in [from, to] {
            self.enter(n);
        }
        let may_lack_some = self.is_quarantined(from);
        if may_lack_some && !self.plan.moves_in_quarantine
            || self.cannot_confirm(from)
            || self.cannot_confirm(to)
            // The source may not know the grants of its rival.
            || self.plan.rule().is_some() && self.slots.rivalled + self.plan.quarantine_ms * 1_000 > self.time
        {
            return;
        }
        self.see(Point::MoveBegun);
        self.note(|| format!("slot {slot} begins to move from n{from} to n{to}"));
        self.slots.moves[slot] = Some(Move { from, to, begun: self.time });
    }

    /// Returns the one server of a shard that all take for its primary, if there is one and it works.
    fn chief_of(&self, shard: Shard) -> Option<usize> {
        let decides = |n: &usize| self.nodes[*n].is_up && self.nodes[*n].decides();
        let chief = match shard {
            Shard::Other => OTHER,
            Shard::Group if self.plan.has_one_primary => self.rightful,
            Shard::Group => {
                let mut deciding = (0..GROUP).filter(decides);
                deciding.next().filter(|_| deciding.next().is_none())?
            }
        };
        let node = &self.nodes[chief];
        (node.runs() && node.decides() && !node.is_cut_off).then_some(chief)
    }

    /// Moves the rest of the slot, which belongs to the other shard from here on.
    fn end_move(&mut self, slot: usize, Move { from, to, .. }: Move) -> Verdict {
        self.see(Point::Moved);
        for at in SLOTS[slot].iter().map(|&lock| LOCKS[lock]) {
            self.migrate(at, from, to)?;
        }
        self.note(|| format!("slot {slot} has moved from n{from} to n{to}"));
        self.slots.moves[slot] = None;
        self.slots.homes[slot] = Shard::of(to);
        let shard = |n: &usize| Shard::of(*n) == Shard::of(from);
        for n in (0..self.nodes.len()).filter(shard) {
            self.nodes[n].story.elsewhere.insert(slot);
            // The slot may be back before the next turn.
            self.note_sent_on(n);
        }
        Ok(())
    }

    /// Moves a lock, with all its holders.
    fn migrate(&mut self, at: At, from: usize, to: usize) -> Verdict {
        for n in [from, to] {
            self.enter(n);
        }
        let node = &self.nodes[from];
        let Some(payload) = node.sim.dump(&key_at(at.db, at.name)) else {
            return Ok(());
        };
        let (saved, until_ms) = (node.saved(at), node.until_ms(at));
        let holds = saved.as_ref().map_or(0, |saved| saved.holds.len());
        self.see(Point::MovedHeld);
        self.note(|| format!("{at} moves from n{from} to n{to}: {saved:?}"));
        let balance = &mut self.nodes[to].balance;
        *balance = balance.map(|balance| balance + holds as i64);
        let is_holder = |owner: Name| {
            let mut holds = saved.iter().flat_map(|saved| &saved.holds);
            holds.any(|hold| *hold.owner == *owner.as_bytes())
        };
        self.judge.queues.restored(to, at, is_holder);
        self.do_outside(to, &[b"RESTORE", at.name.as_bytes(), payload.as_bytes()])?;
        if let Some(until_ms) = until_ms {
            self.make_mortal(to, at, until_ms)?;
        }
        if self.nodes[from].table(|table| table.is_waited_for(at.lock_key())) {
            self.see(Point::MovedWaitedFor);
        }
        self.do_outside(from, &[b"DEL", at.name.as_bytes()])?;
        let terms = [from, to].map(|n| self.nodes[n].term);
        self.judge.moved(at, terms, self.time);
        self.hear_of_move(at);
        Ok(())
    }

    /// Deletes the keys of slots that moved away without this server's knowledge: they are not its own.
    pub(super) fn delete_strangers(&mut self, n: usize) -> Verdict {
        for at in LOCKS {
            if !self.is_ours(n, at) && self.nodes[n].has(at) {
                self.see(Point::StrangerDeleted);
                self.do_outside(n, &[b"DEL", at.name.as_bytes()])?;
            }
        }
        Ok(())
    }

    /// Moves all slots back, and leaves none in transit.
    pub(super) fn bring_slots_home(&mut self, chief: usize) -> Verdict {
        self.time += MOVE_US + 1;
        for slot in 0..SLOTS.len() {
            if let Some(slot_move) = self.slots.moves[slot].take() {
                self.end_move(slot, slot_move)?;
            }
        }
        for slot in 0..SLOTS.len() {
            if self.slots.homes[slot] == Shard::Other {
                self.end_move(slot, Move { from: OTHER, to: chief, begun: self.time })?;
            }
        }
        Ok(())
    }
}
