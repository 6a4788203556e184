//! Who holds.

use super::deadline::{Seat, Timed};
use super::types::{ClientId, Moment, Place, PlaceBuf, Token};

/// One owner's possession of one lock (SPEC 1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Who, 1 to 256 bytes.
    pub owner: Box<[u8]>,
    /// The fencing token.
    pub token: Token,
    /// When it began, as far as this server knows.
    pub since: Moment,
    /// When its lease ends.
    pub until: Moment,
    /// The connection that acquired or renewed it last, where known.
    pub client: Option<ClientId>,
    /// Whether its owner has heard of it by another answer than the one to its wait.
    pub is_known: bool,
}

impl Hold {
    /// Whether the lease has ended. The hold is over, even if nothing has cleared it away yet.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.until <= now
    }
}

/// What a key of our type stands for.
#[derive(Debug)]
pub struct Lock {
    /// Where the key is. A hold is tied to its name: a lock that was renamed has none.
    pub place: PlaceBuf,
    /// Who holds it; `None` for an empty lock, which counts as free (SPEC 5).
    pub hold: Option<Hold>,
    /// Whether it may have been read from a payload that no key came to hold.
    pub(super) is_doubtful: bool,
    pub(super) seat: Seat,
}

impl Lock {
    /// A lock at this place.
    #[must_use]
    pub fn new(place: Place<'_>, hold: Option<Hold>) -> Self {
        Self { place: place.to_owned(), hold, is_doubtful: false, seat: Seat::NONE }
    }

    /// The hold if its lease has not ended.
    #[must_use]
    pub fn live(&self, now: Moment) -> Option<&Hold> {
        self.hold.as_ref().filter(|hold| !hold.is_over(now))
    }
}

impl Timed for Lock {
    fn seat(&mut self) -> &mut Seat {
        &mut self.seat
    }
}
