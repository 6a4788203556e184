//! Publishes what could not be published at once, in its order (G15), and tells the log of locks that were broken.

use super::api::{Ctx, Str, place_of};
use super::{carry_out, cluster, host, state};
use crate::command::error::shown;
use crate::lock::effect::Event;
use crate::lock::table::Notice;
use crate::lock::types::PlaceBuf;
use crate::sabotage::{self, Rule};

/// How much is published between two looks at the time.
const AT_ONCE: usize = 64;

/// Whether this event has to wait because an earlier one does. Then it will be published behind that.
pub(super) fn holds_back(ctx: &Ctx, name: Str<'_>, event: Event) -> bool {
    if sabotage::removes(Rule::EventOrder) {
        return false;
    }
    let held_back = state::with(|state| {
        let has_notices = state.table.has_notices();
        if has_notices {
            state.table.publish_later(place_of(ctx, name), event);
        }
        has_notices
    });
    held_back == Some(true)
}

/// Publishes until all is published, or until the time of this turn `is_spent`, but something in any case. `false`:
/// there is more.
pub(super) fn publish_some(ctx: &Ctx, is_spent: impl Fn() -> bool) -> bool {
    for count in 1_usize.. {
        let Some(step) = state::with(|state| state.table.next_notice()).flatten() else {
            break;
        };
        if let Some(notice) = step {
            publish(ctx, notice);
        }
        if count.is_multiple_of(AT_ONCE) && is_spent() {
            return false;
        }
    }
    let broken = state::with(|state| std::mem::take(&mut state.pump.broken));
    broken.unwrap_or_default().write(ctx);
    true
}

fn publish(ctx: &Ctx, Notice { place, event }: Notice) {
    let is_broken = event == Event::Broken;
    if host::events_are_heard() || is_broken && ctx.flags().is_cluster() {
        let Some(name) = ctx.new_str(&place.name).filter(|_| ctx.select_db(place.db)) else {
            return;
        };
        // A lock that left with its slot is not broken.
        if is_broken && !cluster::is_ours(ctx, name.as_str()) {
            return;
        }
        carry_out::publish_now(ctx, name.as_str(), event);
    }
    if is_broken {
        let _ = state::with(|state| state.pump.broken.add(place));
    }
}

/// Tells the log about locks that were broken from outside: the first by name, the others by count, so
/// that a flush of a million locks is one line.
#[derive(Default)]
pub(crate) struct BrokenLog {
    first: Option<PlaceBuf>,
    others: u64,
}

impl BrokenLog {
    fn add(&mut self, place: PlaceBuf) {
        if self.first.is_some() {
            self.others += 1;
        } else {
            self.first = Some(place);
        }
    }

    fn write(&self, ctx: &Ctx) {
        let Some(place) = &self.first else {
            return;
        };
        let (name, db) = (shown(&place.name), place.db);
        let others = match self.others {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let text = format!(
            "broken from outside: lock '{name}' in database {db}{others}: the key was deleted, \
             overwritten, renamed or moved while the lock was held"
        );
        ctx.log(super::ffi::SERVER_LOG_NOTICE, &text);
    }
}
