//! Leases that connections keep alive, while connections are forgotten and orphaned leases are let run in slices. The
//! visible state of each hold is as if all of that happened at once.

use super::Random;
use crate::lock::locks::{Due, LockId, Locks, NewHold};
use crate::lock::types::{Binding, ClientId, LockKey, Moment, Token};

const KEPT: Binding = Binding { ephemeral_ms: None, is_keepalive: true, is_running: false };
/// Never so short that it cuts.
const TIED: Binding = Binding { ephemeral_ms: Some(80_000_000), is_keepalive: false, is_running: false };
const NAMES: u64 = 5;
const CLIENTS: u64 = 3;

/// The expected state of a hold.
#[derive(Clone, Copy, Debug)]
struct Own {
    id: LockId,
    is_keepalive: bool,
    client: Option<ClientId>,
    lease: Lease,
}

#[derive(Clone, Copy, Debug)]
enum Lease {
    /// It does not run, and this is left of it.
    StandsStill(u64),
    Ends(Moment),
}

impl Own {
    const fn left_ms(&self, now: Moment) -> u64 {
        match self.lease {
            Lease::StandsStill(ms) => ms,
            Lease::Ends(at) => now.ms_until(at),
        }
    }

    /// No connection keeps it alive from here on.
    const fn runs(&mut self, now: Moment) {
        self.client = None;
        if let Lease::StandsStill(ms) = self.lease {
            self.lease = Lease::Ends(now.plus_ms(ms));
        }
    }

    fn is_orphaned(&self) -> bool {
        matches!(self.lease, Lease::StandsStill(_)) && self.client.is_none()
    }
}

struct World {
    locks: Locks,
    own: Vec<Option<Own>>,
    now: Moment,
    random: Random,
    tokens: u64,
}

impl World {
    fn client(&mut self) -> Option<ClientId> {
        self.random.below(CLIENTS + 1).checked_sub(1).map(ClientId)
    }

    fn binding(&mut self) -> Binding {
        if self.random.below(3) > 0 { KEPT } else { TIED }
    }

    fn begins(&mut self, number: usize) {
        let (client, binding, lease_ms) = (self.client(), self.binding(), 1 + self.random.below(50));
        self.tokens += 1;
        let token = Token::new(self.tokens).expect("valid");
        let new = NewHold { owner: b"ann", token, lease_ms, client, binding };
        let name = [b'a' + number as u8];
        let id =
            self.locks.insert(self.now, LockKey { db: 0, name: &name }, Some(&new)).expect("there is room");
        let lease = match binding.is_keepalive {
            true => Lease::StandsStill(lease_ms),
            false => Lease::Ends(self.now.plus_ms(lease_ms)),
        };
        self.own[number] = Some(Own { id, is_keepalive: binding.is_keepalive, client, lease });
    }

    fn is_bound_anew(&mut self, mut own: Own) -> Own {
        let (client, binding, now) = (self.client(), self.binding(), self.now);
        let _ = self.locks.rebind(own.id, now, binding, client);
        let runs = matches!(own.lease, Lease::Ends(_)) && own.is_keepalive && client.is_none();
        own.lease = match (binding.is_keepalive && !runs, own.lease) {
            (true, _) => Lease::StandsStill(own.left_ms(now)),
            (false, Lease::StandsStill(ms)) => Lease::Ends(now.plus_ms(ms)),
            (false, ends) => ends,
        };
        Own { client: client.or(own.client), is_keepalive: binding.is_keepalive, ..own }
    }

    fn closes(&mut self, client: ClientId) {
        for hold in self.locks.take_bound_to(client) {
            assert!(self.locks.unbind(hold, client, self.now));
        }
        let now = self.now;
        self.own.iter_mut().flatten().filter(|own| own.client == Some(client)).for_each(|own| own.runs(now));
    }

    fn forgets(&mut self) {
        // Some have closed, and were not worked off.
        let closed: Vec<_> =
            self.client().into_iter().map(|client| self.locks.take_bound_to(client)).collect();
        self.locks.forget_connections(closed.into_iter());
        self.own.iter_mut().flatten().for_each(|own| own.client = None);
    }

    fn lets_run(&mut self) {
        let (has_backlog, now) = (self.locks.has_running(), self.now);
        let _ = self.locks.let_orphaned_run(now);
        if !has_backlog {
            self.own.iter_mut().flatten().filter(|own| own.is_orphaned()).for_each(|own| own.runs(now));
        }
    }

    fn step(&mut self) {
        let number = self.random.below(NAMES) as usize;
        match (self.random.below(16), self.own[number]) {
            (0..=3, None) => self.begins(number),
            (0, Some(own)) => {
                self.locks.remove(own.id, self.now);
                self.own[number] = None;
            }
            (1 | 2, Some(own)) => self.own[number] = Some(self.is_bound_anew(own)),
            (3, Some(mut own)) => {
                let lease_ms = 1 + self.random.below(50);
                self.locks.extend(own.id, self.now, lease_ms);
                own.lease = match own.lease {
                    Lease::StandsStill(_) => Lease::StandsStill(lease_ms),
                    Lease::Ends(_) => Lease::Ends(self.now.plus_ms(lease_ms)),
                };
                self.own[number] = Some(own);
            }
            (4, _) => {
                let client = ClientId(self.random.below(CLIENTS));
                self.closes(client);
            }
            (5, _) => self.forgets(),
            (6 | 7, _) => self.lets_run(),
            (8 | 9, _) => _ = self.locks.next_running(),
            (10, _) => self.locks.sort_unbound(1),
            (11, Some(own)) => self.locks.set_count(own.id, 1 + (number as u32 % 3)),
            _ => self.now = self.now.plus_ms(self.random.below(5)),
        }
        self.check();
    }

    fn check(&self) {
        for own in self.own.iter().flatten() {
            let hold = self.locks.hold(own.id).expect("it is held");
            let is_paused = matches!(own.lease, Lease::StandsStill(_));
            let left_ms = own.left_ms(self.now);
            assert_eq!((hold.left_ms(self.now), hold.binding().is_paused()), (left_ms, is_paused), "{own:?}");
            assert_eq!(hold.is_over(self.now), left_ms == 0 && !is_paused, "{own:?}");
            for ms in [left_ms, left_ms + 1] {
                let ends_before = match own.lease {
                    Lease::StandsStill(left) => left < ms,
                    Lease::Ends(at) => at < self.now.plus_ms(ms),
                };
                assert_eq!(hold.ends_before(self.now, ms), ends_before, "{own:?}");
            }
            assert_eq!(self.locks.hold_exts.bound_to(own.id.index()), own.client, "{own:?}");
            assert!(!own.is_orphaned() || self.locks.has_orphaned(), "{own:?}");
        }
        self.locks.check().expect("all is in its place");
    }

    /// Runs all pending work, after which the orphaned holds are known.
    fn rests(&mut self) {
        while self.locks.has_running() {
            let _ = self.locks.next_running();
        }
        while self.locks.has_unbound() {
            self.locks.sort_unbound(1);
        }
        self.check();
        let mut orphaned: Vec<_> = self.locks.orphaned(0).collect();
        let mut own: Vec<_> =
            self.own.iter().flatten().filter(|own| own.is_orphaned()).map(|own| own.id).collect();
        orphaned.sort_unstable();
        own.sort_unstable();
        assert_eq!((orphaned, self.locks.has_orphaned()), (own.clone(), !own.is_empty()));
    }

    /// Every lease that runs is found when it expires, and no other.
    fn ends(mut self) {
        self.rests();
        let now = self.now.plus_ms(100);
        loop {
            match self.locks.due(now) {
                Due::Nothing => break,
                Due::AskAgain => {}
                Due::Lease(id) => {
                    assert!(self.locks.hold(id).is_some_and(|hold| hold.is_over(now)));
                    let _ = self.locks.end(id, now);
                }
            }
        }
        for own in self.own.iter().flatten() {
            let runs = matches!(own.lease, Lease::Ends(_));
            assert_eq!(self.locks.hold(own.id).is_none(), runs, "{own:?}");
        }
    }
}

#[test]
fn what_is_worked_off_in_slices_is_seen_at_once() {
    for life in 0..400 {
        let mut world = World {
            locks: Locks::default(),
            own: vec![None; NAMES as usize],
            now: Moment(9_000_000),
            random: Random(life),
            tokens: 0,
        };
        for step in 0..120 {
            world.step();
            if step % 40 == 39 && life % 2 == 0 {
                world.rests();
            }
        }
        world.ends();
    }
}
