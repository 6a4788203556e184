//! The records of the replication stream and of append-only files. No client can use them.
//!
//! ```text
//! LOCK.APPLY key HOLD token lease-ms owner    this owner holds, whatever was there
//! LOCK.APPLY key ENDED token                  the hold with this token ended by itself
//! LOCK.APPLY key EMPTY                        an empty lock stands here (AOF rewrite only)
//! LOCK.TICK last told                         how far the clock of tokens is (AOF only)
//! ```
//!
//! A granted ACQUIRE, a RELEASE and a RENEW travel in their own words where a reader must come to the
//! same result; see `docs/ARCHITECTURE.md`, "What travels".

use super::args::{integer, owner};
use crate::lock::codec::SavedHold;
use crate::lock::types::{LEASE_MS_MAX, Token};

/// A parsed LOCK.APPLY, without its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Apply {
    /// This owner holds.
    Hold(SavedHold),
    /// The hold with this token ended.
    Ended(Token),
    /// An empty lock.
    Empty,
}

/// Parses LOCK.APPLY behind its key. A record is written by this module: what it does not know, it
/// does not guess.
#[must_use]
pub fn parse_apply<A: AsRef<[u8]>>(args: &[A]) -> Option<Apply> {
    let words: Vec<&[u8]> = args.iter().take(5).map(AsRef::as_ref).collect();
    let token = |bytes| integer(bytes).and_then(Token::new);
    match *words.as_slice() {
        [b"HOLD", number, left, who] => Some(Apply::Hold(SavedHold {
            token: token(number)?,
            left_ms: integer(left).filter(|&left| left <= LEASE_MS_MAX)?,
            owner: owner(who).ok()?.into(),
        })),
        [b"ENDED", number] => token(number).map(Apply::Ended),
        [b"EMPTY"] => Some(Apply::Empty),
        _ => None,
    }
}

/// Parses LOCK.TICK: last and told.
#[must_use]
pub fn parse_tick<A: AsRef<[u8]>>(args: &[A]) -> Option<(u64, u64)> {
    match args {
        [last, told] => Some((integer(last.as_ref())?, integer(told.as_ref())?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_exactly() {
        let hold = SavedHold { owner: (*b"w").into(), token: Token::new(5).expect("valid"), left_ms: 9 };
        assert_eq!(parse_apply(&["HOLD", "5", "9", "w"]), Some(Apply::Hold(hold)));
        assert_eq!(parse_apply(&["ENDED", "5"]), Token::new(5).map(Apply::Ended));
        assert_eq!(parse_apply(&["EMPTY"]), Some(Apply::Empty));
        let bad: [&[&str]; 7] = [
            &[],
            &["HOLD", "0", "9", "w"],
            &["HOLD", "5", "86400001", "w"],
            &["HOLD", "5", "9", ""],
            &["HOLD", "5", "9", "w", "x"],
            &["ENDED"],
            &["hold", "5", "9", "w"],
        ];
        for args in bad {
            assert_eq!(parse_apply(args), None, "{args:?}");
        }
        assert_eq!(parse_tick(&["7", "5"]), Some((7, 5)));
        assert_eq!(parse_tick(&["7"]), None);
    }
}
