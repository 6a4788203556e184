//! One step at several keys.

use super::server::{Key, Server};
use super::{legacy, step};
use crate::lock::effect::{Effects, Found};
use crate::lock::table::{Spot, Steps, Table};

/// One step at several keys of the selected database, which all stay open until all are changed. `before` is done
/// before anything is carried out.
pub fn at_all<S: Server, R>(
    server: &S,
    names: &[S::Name<'_>],
    is_decided_here: bool,
    decide: impl FnOnce(&mut Table, &[Spot<'_>], &mut [Effects]) -> Steps<R>,
    before: impl FnOnce(&R),
) -> Option<R> {
    let keys: Vec<S::Key<'_>> = names.iter().map(|&name| server.open(name)).collect();
    let spots: Vec<Spot<'_>> = names
        .iter()
        .zip(&keys)
        .map(|(&name, key)| {
            let found = if is_decided_here { legacy::find(server, key, None) } else { key.found() };
            Spot { place: server.place(name), found }
        })
        .collect();
    let mut effects: Vec<Effects> = names.iter().map(|_| Effects::default()).collect();
    let (reply, steps) = server.with(|state| {
        let (reply, steps) = decide(&mut state.table, &spots, &mut effects);
        for (step, spot) in steps.iter().zip(&spots) {
            state.settle(step.change, spot.found);
        }
        (reply, steps)
    })?;
    before(&reply);
    let found: Vec<Found> = spots.iter().map(|spot| spot.found).collect();
    for ((key, found), step) in keys.into_iter().zip(found).zip(&steps) {
        step::change(server, key, found, step.change);
    }
    for ((&name, step), fx) in names.iter().zip(&steps).zip(effects) {
        step::tell(server, name, step.record, fx);
    }
    Some(reply)
}
