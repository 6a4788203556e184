//! Reports the cycle that a search has found to the request that would close it.

use std::collections::VecDeque;

use super::{Blocker, Edge, Graph, Link, count};

impl Graph<'_> {
    /// Returns the shortest path, of those that the search has seen, from a wait that cannot end back to itself. If
    /// there is none, returns the path to a cycle that it waits for. A grant can close such a cycle, for an owner
    /// that waited on several connections.
    pub(super) fn cycle(&self, start: usize) -> Vec<Link> {
        let mut came_by: Vec<Option<(usize, Edge)>> = vec![None; self.requests.len()];
        // All requests of an owner are reached together.
        let mut has_reached = vec![false; self.owners.len()];
        let mut reached = VecDeque::from([start]);
        while came_by[start].is_none()
            && let Some(from) = reached.pop_front()
        {
            for edge in self.edges(from) {
                count(1);
                let mut reach = |to: usize| {
                    if came_by[to].is_none() {
                        came_by[to] = Some((from, edge));
                        reached.push_back(to);
                    }
                };
                match edge.blocker {
                    Blocker::Request(other) => reach(other),
                    Blocker::Owner(owner) if !std::mem::replace(&mut has_reached[owner], true) => {
                        self.requests_of(owner).iter().for_each(|&request| reach(request));
                    }
                    Blocker::Owner(_) => {}
                }
            }
        }
        if came_by[start].is_none() {
            return self.any_cycle(start);
        }
        let (mut cycle, mut at) = (Vec::new(), start);
        while let Some((from, edge)) = came_by[at].take() {
            cycle.extend(self.link(edge));
            at = from;
        }
        cycle.reverse();
        cycle
    }

    /// Follows the waits that cannot end, from one to the next, until one repeats.
    fn any_cycle(&self, start: usize) -> Vec<Link> {
        let (mut path, mut request): (Vec<Edge>, usize) = (Vec::new(), start);
        let mut place_of: Vec<Option<usize>> = vec![None; self.requests.len()];
        while place_of[request].is_none() {
            count(1);
            let Some(edge) = self.edges(request).next() else {
                break;
            };
            place_of[request] = Some(path.len());
            path.push(edge);
            request = match edge.blocker {
                Blocker::Request(other) => other,
                Blocker::Owner(owner) => self.requests_of(owner).first().copied().unwrap_or(request),
            };
        }
        let first = place_of[request].unwrap_or(0);
        path.drain(first..).filter_map(|edge| self.link(edge)).collect()
    }

    fn requests_of(&self, owner: usize) -> &[usize] {
        &self.requests_of_owners[self.owners[owner].requests.clone()]
    }

    /// Returns the edges that show why this request waits.
    fn edges(&self, request: usize) -> impl Iterator<Item = Edge> {
        let conditions = self.conditions[self.requests[request].conditions.clone()].iter();
        let unmet = conditions.filter(|condition| condition.unmet > 0);
        unmet.flat_map(|condition| {
            let blockers = self.blockers[condition.blockers.clone()].iter();
            let stuck = blockers.filter(|blocker| match **blocker {
                Blocker::Owner(owner) => !self.owners[owner].can_go_on,
                Blocker::Request(other) => self.requests[other].unmet > 0,
            });
            stuck.map(|&blocker| Edge { at: condition.at, blocker })
        })
    }

    fn link(&self, edge: Edge) -> Option<Link> {
        let waiter = self.scope.queues.waiter(edge.at)?;
        let awaited = match edge.blocker {
            Blocker::Owner(owner) => *self.requests_of(owner).first()?,
            Blocker::Request(other) => other,
        };
        let awaited = self.scope.queues.waiter(self.requests[awaited].first_entry)?.request.owner.clone();
        let lock_key = self.scope.queues.queue(waiter.queue)?.lock_key.clone();
        Some(Link { owner: waiter.request.owner.clone(), lock_key, awaited })
    }
}
