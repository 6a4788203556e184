//! Locks that came other than by a grant, and end all waits at their keys: for the
//! [judge](crate::sim::checkers::judge) and the [oracle](crate::sim::oracle).

use crate::lock::effect::Answer;
use crate::lock::table::ARRIVED;
use crate::sim::checkers::judge::Judge;
use crate::sim::oracle::Oracle;
use crate::sim::single::input::{Answered, Input, Outcome, Reply, Writes};
use crate::sim::single::server::At;
use crate::sim::single::world::World;

impl Judge {
    /// Ends the waits at the keys of restored locks, before anything else in a step that decides. Reservations end
    /// without an answer.
    pub(crate) fn end_for_arrived(&mut self, input: &Input, out: &Outcome, world: &World) {
        let keys: Vec<At> = match *input {
            _ if matches!(out.reply, Reply::None) && !matches!(input, Input::Pump) => Vec::new(),
            Input::Acquire { at, .. } | Input::Release { at, .. } | Input::Renew { at, .. } => vec![at],
            Input::AcquireMany { keys, .. } => keys.iter().collect(),
            Input::Pump if world.writes == Writes::Allowed => {
                self.arrived.iter().copied().filter(|&at| !world.is_left_alone(at)).collect()
            }
            // While writes are refused the pump decides only for expired leases.
            Input::Pump => {
                let is_told = |told: &&Answered| told.answer == Answer::Refused(ARRIVED);
                let told = out.answers.iter().filter(is_told).filter_map(|told| {
                    self.queues.values().flatten().find(|pending| pending.wait == told.wait)
                });
                told.flat_map(|pending| pending.keys.iter()).collect()
            }
            _ => Vec::new(),
        };
        self.ended.clear();
        for at in keys {
            if self.arrived.remove(&at) && self.live(at, world).next().is_some() {
                self.ended.insert(at);
                self.see("ended where a lock had arrived");
                self.queues.entry(at).or_default().retain(|pending| !pending.is_reservation());
            }
        }
    }
}

impl Oracle {
    /// Returns true if a restored lock is here, which ends all waits at the next decision.
    pub(crate) fn is_arrived(&self, at: At) -> bool {
        self.arrived.contains(&at) && self.holds(at).iter().any(|hold| hold.is_live(self.time))
    }

    /// Ends all waits after a RESTORE of a lock, if the lock is still there at the next decision.
    pub(crate) fn end_for_arrived(&mut self, at: At) {
        let ends = self.is_arrived(at);
        self.arrived.remove(&at);
        if ends {
            self.strike_all(at, "arrived");
        }
    }
}
