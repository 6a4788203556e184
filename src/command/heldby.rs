//! `LOCK.HELDBY owner`

use super::args::owner;
use super::error::Invalid;

/// Parses the argument: an owner.
pub fn parse<A: AsRef<[u8]>>(who: &A) -> Result<&[u8], Invalid> {
    owner(who.as_ref())
}
