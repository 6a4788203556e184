//! How a step of the core is carried out: the keys, then for each what is told and answered, as `src/redis` does it.

use super::super::input::Keys;
use super::super::reader::Fact;
use super::{Group, Verdict};
use crate::lock::effect::{Effect, Effects, Record, Step};
use crate::lock::table::{Spot, Table};
use crate::lock::types::Now;

impl Group {
    /// Carries out a step about several keys.
    pub(super) fn decide_all<R>(
        &mut self,
        n: usize,
        keys: Keys,
        asked: Option<Fact>,
        step: impl FnOnce(&mut Table, Now, &[Spot<'_>], &mut [Effects]) -> (R, Vec<Step<()>>),
    ) -> Result<R, String> {
        let server = &mut self.nodes[n].server;
        let spots: Vec<Spot<'_>> =
            keys.iter().map(|at| Spot { place: at.place(), found: server.found(at) }).collect();
        let mut effects = vec![Effects::default(); spots.len()];
        let now = server.now;
        let (reply, steps) = step(&mut server.table, now, &spots, &mut effects);
        self.carry_out(n, keys, asked, &steps, &mut effects)?;
        Ok(reply)
    }

    /// Carries out a step about one key.
    pub(super) fn carry_out_one<R>(
        &mut self,
        n: usize,
        keys: Keys,
        asked: Option<Fact>,
        step: Step<R>,
        mut fx: Effects,
    ) -> Result<R, String> {
        let Step { reply, change, record } = step;
        let step = Step { reply: (), change, record };
        self.carry_out(n, keys, asked, &[step], std::slice::from_mut(&mut fx))?;
        self.fx = fx;
        Ok(reply)
    }

    /// The keys, then for each what is told and answered.
    fn carry_out(
        &mut self,
        n: usize,
        keys: Keys,
        mut asked: Option<Fact>,
        steps: &[Step<()>],
        effects: &mut [Effects],
    ) -> Verdict {
        for (at, step) in keys.iter().zip(steps) {
            self.nodes[n].server.carry_out(at, step.change);
        }
        for ((at, step), fx) in keys.iter().zip(steps).zip(effects) {
            for record in std::iter::once(step.record).chain(fx.told()) {
                let server = &self.nodes[n].server;
                let fact = match record {
                    Record::Nothing => continue,
                    Record::AsAsked => {
                        asked.take().ok_or("G13: told as asked, and nobody asked, or twice")?
                    }
                    // A hold that the same step has replaced by another one needs not be told of.
                    _ => match server.fact(at, record) {
                        Ok(fact) => fact,
                        Err(_) => continue,
                    },
                };
                self.write(n, fact);
            }
            fx.take_first();
            if !fx.is_drained() {
                let answers: Vec<Effect> = fx.drain().collect();
                answers.into_iter().try_for_each(|effect| self.effect(n, effect))?;
            }
        }
        Ok(())
    }

    /// Into the stream, and into the server's own log.
    pub(super) fn write(&mut self, n: usize, fact: Fact) {
        let node = &mut self.nodes[n];
        if self.plan.has_logs {
            node.files.log.push(fact.clone());
        }
        if let Some(place) = &mut node.place {
            let facts = &mut self.streams[place.stream].facts;
            facts.push(fact);
            place.read = facts.len();
        }
    }
}
