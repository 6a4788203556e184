//! Replication: links that lag, break, are found to be broken late, and resynchronise.

use super::node::{Connection, Position, Synchronisation};
use super::points::Point;
use super::{GROUP, Group, NODES, Verdict};

impl Group {
    /// Lets a server's links to the others make progress.
    pub(super) fn links(&mut self) -> Verdict {
        let n = self.random.below(self.plan.nodes() as u64) as usize;
        if !self.nodes[n].is_up {
            return if self.random.percent(50) { self.restart(n) } else { Ok(()) };
        }
        if self.nodes[n].is_cut_off && self.random.percent(15) {
            self.let_back(n);
        }
        if !self.nodes[n].runs() {
            if self.random.percent(25) {
                self.thaw(n);
            }
            return Ok(());
        }
        if self.nodes[n].decides() {
            if self.random.percent(self.plan.finds_dead_percent()) {
                self.find_dead(n)?;
            }
            return self.heal_primaries(n);
        }
        match self.nodes[n].link {
            None if self.random.percent(60) => match self.some_primary() {
                Some(primary) => self.attach(n, primary),
                None => self.promote_somebody(n),
            },
            None => Ok(()),
            Some(_) if self.plan.changes_sides && self.random.percent(20) => self.change_sides(n),
            Some((_, link)) if self.nodes[n].synchronisation.is_some() && link % 8 == 5 => {
                self.give_up_synchronisation(n);
                Ok(())
            }
            Some(_) if self.nodes[n].synchronisation.is_some() => self.end_synchronisation(n),
            // Replicas that lag on purpose.
            Some(_) if self.plan.eager_percent == 0 && self.random.percent(80) => Ok(()),
            Some(_) => {
                let count = 1 + self.random.below(6) as usize;
                self.receive(n, count)?;
                if self.random.percent(70) {
                    self.acknowledge(n);
                }
                Ok(())
            }
        }
    }

    /// Returns a primary that works, the youngest more likely than others.
    fn some_primary(&mut self) -> Option<usize> {
        let mut working = (0..GROUP).filter(|&n| self.nodes[n].runs() && self.nodes[n].decides());
        let youngest = working.clone().max_by_key(|&n| self.nodes[n].term)?;
        if self.random.percent(80) { Some(youngest) } else { working.next_back() }
    }

    /// Connects a replica to a primary. It continues where it was, if it can, or resynchronizes.
    pub(super) fn attach(&mut self, n: usize, primary: usize) -> Verdict {
        self.stop_deciding(n)?;
        self.numbers.links += 1;
        let link = self.numbers.links;
        self.enter(primary);
        let Some(theirs) = self.nodes[primary].position else {
            return Err(format!("n{primary} has no stream"));
        };
        let own = self.nodes[n].position;
        let goes_on = own.is_some_and(|own| own.stream == theirs.stream);
        let is_heir = own.is_some() && self.streams[theirs.stream].heir_of == own;
        let is_online = goes_on || is_heir;
        if is_heir {
            self.see(Point::ContinuedWithHeir);
            self.nodes[n].position = Some(Position { stream: theirs.stream, read: 0 });
            self.nodes[n].may_count_less = true;
        } else if goes_on {
            self.see(Point::ContinuedStream);
        }
        let synchronisation = (!is_online)
            .then(|| Synchronisation { snapshot: self.nodes[primary].sim.save(), position: theirs });
        self.collect(primary)?;
        let node = &mut self.nodes[n];
        (node.link, node.synchronisation) = (Some((primary, link)), synchronisation);
        let connections = &mut self.nodes[primary].connections;
        if connections.iter().any(|connection| connection.replica == n) {
            self.seen.see(Point::ConnectedTwice);
        }
        connections.push(Connection { replica: n, link, is_online, said: 0, heard: 0 });
        self.note(|| format!("n{n} is a replica of n{primary}; goes on: {is_online}"));
        self.look(primary)
    }

    /// Moves a replica to another primary, without notice to its own.
    fn change_sides(&mut self, n: usize) -> Verdict {
        let own = self.nodes[n].link.map(|(primary, _)| primary);
        let decides = |p: &usize| self.nodes[*p].runs() && self.nodes[*p].decides();
        let Some(other) = (0..GROUP).filter(|&p| Some(p) != own).find(decides) else {
            return Ok(());
        };
        self.see(Point::ChangedSides);
        self.attach(n, other)?;
        if self.random.percent(70) {
            self.end_synchronisation(n)?;
            self.receive(n, usize::MAX)?;
            self.acknowledge(n);
        }
        Ok(())
    }

    /// Ends a synchronization: the snapshot has arrived.
    pub(super) fn end_synchronisation(&mut self, n: usize) -> Verdict {
        let Some((primary, link)) = self.nodes[n].link else {
            return Ok(());
        };
        let Some(synchronisation) = self.nodes[n].synchronisation.take() else {
            return Ok(());
        };
        self.see(Point::Synchronised);
        self.note(|| format!("n{n} has loaded the snapshot of n{primary}"));
        self.load(n, synchronisation)?;
        if let Some(connection) = self.connection(primary, link) {
            connection.is_online = true;
        }
        if self.nodes[primary].runs() {
            self.look(primary)?;
        }
        Ok(())
    }

    /// Breaks the link before the whole snapshot has arrived: the replica keeps its data.
    fn give_up_synchronisation(&mut self, n: usize) {
        self.see(Point::GivenUpSynchronisation);
        self.note(|| format!("n{n} has received a part of a snapshot"));
        (self.nodes[n].link, self.nodes[n].synchronisation) = (None, None);
    }

    /// Returns a replica's connection, as its primary sees it.
    fn connection(&mut self, primary: usize, link: u32) -> Option<&mut Connection> {
        self.nodes[primary].connections.iter_mut().find(|connection| connection.link == link)
    }

    /// Reads at most `count` commands of the primary's stream into a replica.
    pub(super) fn receive(&mut self, n: usize, count: usize) -> Verdict {
        let node = &mut self.nodes[n];
        let (Some(position), Some(_), None) = (&mut node.position, node.link, &node.synchronisation) else {
            return Ok(());
        };
        let facts = &self.streams[position.stream].facts;
        let end = facts.len().min(position.read.saturating_add(count));
        if position.read == end {
            return Ok(());
        }
        let new = &facts[position.read..end];
        position.read = end;
        node.tell_time(self.time);
        for fact in new {
            node.sim.obeys(fact).map_err(|wrong| format!("n{n}: {wrong}"))?;
        }
        self.collect(n)
    }

    /// Reports how far a replica has read. The report may arrive later, and after the connection is closed.
    pub(super) fn acknowledge(&mut self, n: usize) {
        let node = &self.nodes[n];
        let (Some((primary, link)), Some(position), None) = (node.link, node.position, &node.synchronisation)
        else {
            return;
        };
        let is_late = self.random.percent(20);
        if let Some(connection) = self.connection(primary, link) {
            connection.said = position.read;
            if is_late {
                self.see(Point::LateAcknowledgement);
            } else {
                connection.heard = position.read;
                self.nodes[primary].news = true;
            }
        }
    }

    /// Lets a primary find dead connections. Commands that were sent before arrive first, or not at all.
    pub(super) fn find_dead(&mut self, n: usize) -> Verdict {
        let has_arrived = self.random.percent(50);
        if has_arrived {
            for connection in &mut self.nodes[n].connections {
                connection.heard = connection.said;
            }
            self.nodes[n].news = true;
        }
        let links: [_; NODES] = std::array::from_fn(|node| self.nodes[node].link);
        let connections = &mut self.nodes[n].connections;
        connections.retain(|connection| links[connection.replica] == Some((n, connection.link)));
        self.look(n)
    }
}
