//! Faults of servers, and the reactions of others.

use super::node::Files;
use super::points::Point;
use super::{CLIENTS, GROUP, Group, OTHER, Verdict};
use crate::engine::server::Server;
use crate::engine::server_events;

impl Group {
    /// Causes a fault, or ends one.
    pub(super) fn fault(&mut self) -> Verdict {
        let n = self.random.below(self.plan.nodes() as u64) as usize;
        if self.plan.switches_confirm && self.random.percent(25) {
            return self.switch_confirm(n);
        }
        match self.random.below(20) {
            0..3 => self.break_link(n),
            3..6 => self.kill_some(n),
            6 | 7 => self.freeze(n),
            8 | 9 => self.thaw(n),
            10 => self.cut_off(n),
            11 | 12 => self.let_back(n),
            13..16 => self.promote(n)?,
            16 => self.demote(n)?,
            17 => self.set_wall_clock(n),
            18 if self.nodes[n].runs() => {
                // A child is forked: a file begins.
                self.write_file_anew(n)?;
            }
            _ if !self.nodes[n].is_up => self.restart(n)?,
            _ => self.find_dead_of_running(n)?,
        }
        Ok(())
    }

    /// Switches to another confirmation rule from here on, or to none.
    fn switch_confirm(&mut self, n: usize) -> Verdict {
        if !self.nodes[n].runs() {
            return Ok(());
        }
        let is_waited_for = self.nodes[n].sim.with(|state| !state.confirm.all.is_empty()) == Some(true);
        // Pending confirmations then end in another way.
        let is_off = is_waited_for && self.random.percent(60);
        let setting = if is_off { 0 } else { self.random.of(&[0, 0, 1, 2]) };
        if self.nodes[n].confirms() != (setting > 0) {
            self.see(if setting > 0 { Point::ConfirmSwitchedOn } else { Point::ConfirmSwitchedOff });
        }
        if is_waited_for && setting == 0 {
            self.see(Point::ConfirmSwitchedOffBefore);
        }
        self.note(|| format!("n{n}: confirm is {setting}"));
        self.enter(n);
        let sim = &self.nodes[n].sim;
        sim.shared().settings.set_confirm(setting);
        server_events::settings_changed(sim, true);
        self.collect(n)
    }

    fn find_dead_of_running(&mut self, n: usize) -> Verdict {
        if self.nodes[n].runs() && self.nodes[n].decides() { self.find_dead(n) } else { Ok(()) }
    }

    fn break_link(&mut self, n: usize) {
        if self.nodes[n].link.take().is_some() {
            self.nodes[n].synchronisation = None;
            self.see(Point::LinkBroken);
            self.note(|| format!("n{n} loses its primary"));
        }
    }

    fn kill_some(&mut self, n: usize) {
        // Without files, and with a memory that is never lost, a server is slow at worst.
        if self.nodes[n].is_up && (self.plan.forgets || self.plan.has_files) && !self.is_moving_at(n) {
            self.see(Point::Killed);
            self.note(|| format!("n{n} is killed"));
            self.kill(n);
            if self.random.percent(20) {
                self.see(Point::MachineRestarted);
                self.nodes[n].restart_machine(self.time);
            }
        }
    }

    fn freeze(&mut self, n: usize) {
        if self.nodes[n].runs() {
            self.see(Point::Frozen);
            self.note(|| format!("n{n} is frozen"));
            self.nodes[n].is_frozen = true;
        }
    }

    pub(super) fn thaw(&mut self, n: usize) {
        if self.nodes[n].is_frozen {
            self.note(|| format!("n{n} goes on"));
            self.nodes[n].is_frozen = false;
        }
    }

    /// Cuts this server off: no client reaches it, nor does it reach any.
    fn cut_off(&mut self, n: usize) {
        if !self.nodes[n].is_cut_off {
            self.see(Point::CutOff);
            self.note(|| format!("n{n} is cut off from its clients"));
            self.nodes[n].is_cut_off = true;
            for c in 0..CLIENTS {
                self.lose_server(c, n);
            }
        }
    }

    pub(super) fn let_back(&mut self, n: usize) {
        // A server that was replaced comes back as a replica.
        let is_stale = n < GROUP && self.nodes[n].is_up && self.nodes[n].decides() && n != self.rightful;
        if self.nodes[n].is_cut_off && !(self.plan.has_one_primary && is_stale) {
            self.note(|| format!("n{n} is not cut off any more"));
            self.nodes[n].is_cut_off = false;
        }
    }

    /// Returns true if this replica may be promoted under the promises of the plan.
    fn may_promote(&self, n: usize) -> bool {
        let is_alive = |node: &super::Node| node.is_up && node.decides() && !node.is_cut_off;
        self.nodes[n].runs()
            && !self.nodes[n].decides()
            && self.slots.may_change_roles()
            && !(self.plan.has_one_primary && self.nodes[..OTHER].iter().any(is_alive))
    }

    pub(super) fn promote(&mut self, n: usize) -> Verdict {
        if !self.may_promote(n) {
            return Ok(());
        }
        self.see(Point::Promoted);
        if self.nodes[n].synchronisation.is_some() {
            self.see(Point::PromotedWhileSynchronising);
        }
        let read = |position: Option<super::node::Position>| {
            position.map_or((0, 0), |position| (position.stream, position.read))
        };
        let own = read(self.nodes[n].position);
        if (0..GROUP).any(|other| !self.nodes[other].decides() && read(self.nodes[other].position) > own) {
            self.see(Point::PromotedTheWrongOne);
        }
        self.rightful = n;
        self.note(|| format!("n{n} is promoted"));
        self.begin_to_decide(n)
    }

    /// Promotes a server if no primary works.
    pub(super) fn promote_somebody(&mut self, n: usize) -> Verdict {
        if self.random.percent(40) { self.promote(n) } else { Ok(()) }
    }

    fn may_demote(&self, n: usize) -> bool {
        n < GROUP && !self.is_moving_at(n) && !(self.plan.has_one_primary && n == self.rightful)
    }

    fn demote(&mut self, n: usize) -> Verdict {
        let other = (n + 1 + self.random.below(2) as usize) % GROUP;
        let is_primary = |n: usize| self.nodes[n].runs() && self.nodes[n].decides();
        if is_primary(n) && is_primary(other) && self.may_demote(n) {
            self.see(Point::Demoted);
            self.note(|| format!("n{n} is demoted"));
            self.attach(n, other)?;
            self.promote_again(n)?;
        }
        Ok(())
    }

    /// Perhaps promotes a server that was demoted just now, and has not rejected all its waiters yet.
    fn promote_again(&mut self, n: usize) -> Verdict {
        let has_waiters = !self.nodes[n].waits.is_empty();
        if has_waiters && self.random.percent(50) { self.promote(n) } else { Ok(()) }
    }

    /// Demotes the older one of two working primaries, sooner or later.
    pub(super) fn heal_primaries(&mut self, n: usize) -> Verdict {
        let is_newer = |other: &usize| {
            let (own, other) = (&self.nodes[n], &self.nodes[*other]);
            other.runs() && other.decides() && other.term > own.term
        };
        match (0..GROUP).find(is_newer) {
            Some(other) if self.may_demote(n) && self.random.percent(self.plan.gives_in_percent()) => {
                self.see(Point::Demoted);
                self.attach(n, other)?;
                self.promote_again(n)
            }
            _ => Ok(()),
        }
    }

    fn set_wall_clock(&mut self, n: usize) {
        if self.plan.sets_wall_clocks {
            self.see(Point::WallClockSet);
            let us = self.random.of(&[40_000, 3_000_000, 3_600_000_000]);
            let us = self.random.below(us) as i64;
            let us = if self.random.percent(50) { us } else { -us };
            self.note(|| format!("n{n}: the wall clock is set by {us} us"));
            self.nodes[n].step_wall_clock(us);
        }
    }

    /// Restarts a server that was killed: with nothing, with a file, or with a log.
    pub(super) fn restart(&mut self, n: usize) -> Verdict {
        let has_file = self.plan.has_files && self.nodes[n].files.snapshot.is_some();
        let mut files = std::mem::take(&mut self.nodes[n].files);
        if has_file && !(self.plan.forgets && self.random.percent(40)) {
            if self.plan.has_logs {
                self.see(Point::RestartedFromLog);
                if self.random.percent(60) && !files.log.is_empty() {
                    self.see(Point::LogLacksItsEnd);
                    let kept = self.random.below(files.log.len() as u64) as usize;
                    files.log.truncate(kept);
                }
            } else {
                self.see(Point::RestartedFromSnapshot);
            }
        } else {
            self.see(Point::RestartedEmpty);
            files = Files::default();
        }
        let may_decide = self.slots.may_change_roles() && (!self.plan.has_one_primary || n == self.rightful);
        let decides = may_decide && self.random.percent(if self.plan.has_one_primary { 70 } else { 25 });
        let decides = decides || n == OTHER;
        self.note(|| format!("n{n} starts; decides: {decides}"));
        if decides {
            self.see(Point::RestartedAsPrimary);
        }
        self.start(n, &files, decides)?;
        self.nodes[n].files.snapshot = files.snapshot;
        self.nodes[n].files.log.splice(..0, files.log);
        Ok(())
    }
}
