//! Clients whose requests were not confirmed: undone first, told then.

use super::super::blocking::{self, Told};
use super::super::state;
use crate::command::error::{GRANT_UNCONFIRMED, GRANT_UNDONE_LATER, RENEWAL_UNCONFIRMED};
use crate::lock::effect::Answer;

/// Tells those whose requests were not confirmed, when what they began is undone: nobody is to see a hold of theirs
/// that they are told they do not have. Where it cannot be undone now, because the server accepts no writes, they are
/// told that instead of having to wait.
pub(crate) fn tell_unconfirmed() {
    loop {
        let next = state::with(|state| {
            let is_undone = !state.confirm.has_undo();
            state.confirm.undone_first.pop().map(|next| (next, is_undone))
        });
        let Some(((handle, client, told), is_undone)) = next.flatten() else {
            return;
        };
        let told = match told {
            Told::Answer(Answer::Refused(GRANT_UNCONFIRMED)) if !is_undone => {
                Told::Answer(Answer::Refused(GRANT_UNDONE_LATER))
            }
            told => told,
        };
        blocking::tell(handle, client, told);
    }
}

/// What a client is told instead.
pub(super) const fn unconfirmed(told: &Told) -> Told {
    let reason = if matches!(told, Told::Renewed) { RENEWAL_UNCONFIRMED } else { GRANT_UNCONFIRMED };
    Told::Answer(Answer::Refused(reason))
}
