//! The records of the replication stream and of append-only files. No client can use them.
//!
//! ```text
//! LOCK.APPLY key 1 HOLD token lease-ms owner  this owner holds, alone, whatever was there
//! LOCK.APPLY key 1 HOLD token lease-ms owner mode count cut kept
//!                                             the same for all kinds: mode is EXCLUSIVE, SHARED (beside others who
//!                                             hold so) or a limit; cut are milliseconds or NO (EPHEMERAL); kept is
//!                                             YES, NO, or RUNS: its connection has closed (KEEPALIVE)
//! LOCK.APPLY key 1 ENDED token                the hold with this token ended by itself
//! LOCK.APPLY key 1 EMPTY                      an empty lock stands here (AOF rewrite only)
//! LOCK.APPLY key                              nothing: asks whether the server would write this key
//! LOCK.TICK 1 last told                       how far the clock of tokens is (AOF only)
//! ```
//!
//! The 1 is the record's version: the lowest that can express it. The edge adds and removes it ([`unversioned`]), so
//! the engine and its tests see only what follows.
//!
//! A granted ACQUIRE, a RELEASE and a RENEW are replicated in the words of the client where a reader must reach the
//! same result; see `docs/internals/replication.md`.

use std::fmt;

use super::args::{integer, owner};
use crate::lock::codec::{NEWEST_VERSION, SavedHold};
use crate::lock::types::COUNT_MAX;
use crate::lock::types::{Binding, LEASE_MS_MAX, LIMIT_MAX, Mode, TOKEN_MAX, Token};

/// A parsed LOCK.APPLY, without its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Apply {
    /// This owner holds in this mode.
    Hold(Mode, SavedHold),
    /// The hold with this token ended.
    Ended(Token),
    /// An empty lock.
    Empty,
}

/// Returns the part after the version of a record. `None` if this module does not know the version.
#[must_use]
pub fn unversioned<A: AsRef<[u8]>>(args: &[A]) -> Option<&[A]> {
    let (version, rest) = args.split_first()?;
    let version = integer(version.as_ref())?;
    ((1..=u64::from(NEWEST_VERSION)).contains(&version) && !rest.is_empty()).then_some(rest)
}

/// Parses LOCK.APPLY after its version. The module wrote the record, so unknown parts are refused, never guessed.
#[must_use]
pub fn parse_apply<A: AsRef<[u8]>>(args: &[A]) -> Option<Apply> {
    let words: Vec<&[u8]> = args.iter().take(9).map(AsRef::as_ref).collect();
    let token = |bytes| integer(bytes).and_then(Token::new);
    let ms = |bytes| integer(bytes).filter(|&ms| ms <= LEASE_MS_MAX);
    let hold = |number, left, who| {
        let (token, left_ms, owner) = (token(number)?, ms(left)?, owner(who).ok()?.into());
        Some(SavedHold { owner, token, left_ms, count: 1, binding: Binding::NONE })
    };
    match *words.as_slice() {
        [b"HOLD", number, left, who] => Some(Apply::Hold(Mode::Exclusive, hold(number, left, who)?)),
        [b"HOLD", number, left, who, how, count, cut, keepalive] => {
            let mode = match how {
                b"EXCLUSIVE" => Mode::Exclusive,
                b"SHARED" => Mode::Shared,
                limit => {
                    Mode::Limit(u32::try_from(integer(limit)?).ok().filter(|n| (1..=LIMIT_MAX).contains(n))?)
                }
            };
            let count =
                u32::try_from(integer(count)?).ok().filter(|count| (1..=COUNT_MAX).contains(count))?;
            let ephemeral_ms = if cut == b"NO" { None } else { Some(ms(cut)?) };
            let (is_keepalive, is_running) = match keepalive {
                b"YES" => (true, false),
                b"RUNS" => (true, true),
                b"NO" => (false, false),
                _ => return None,
            };
            let binding = Binding { ephemeral_ms, is_keepalive, is_running };
            Some(Apply::Hold(mode, SavedHold { count, binding, ..hold(number, left, who)? }))
        }
        [b"ENDED", number] => token(number).map(Apply::Ended),
        [b"EMPTY"] => Some(Apply::Empty),
        _ => None,
    }
}

/// A word of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Letters.
    Letters(&'static str),
    /// The digits of a number.
    Number(u64),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Letters(letters) => f.write_str(letters),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// Returns what LOCK.APPLY says of a hold after its owner: mode, count, cut and kept; nothing for a plain exclusive
/// hold.
#[must_use]
pub fn words_of(mode: Mode, hold: &SavedHold) -> Option<[Word; 4]> {
    use Word::{Letters, Number};
    if mode == Mode::Exclusive && hold.count == 1 && hold.binding.is_none() {
        return None;
    }
    let mode = match mode {
        Mode::Exclusive => Letters("EXCLUSIVE"),
        Mode::Shared => Letters("SHARED"),
        Mode::Limit(limit) => Number(limit.into()),
    };
    let cut = hold.binding.ephemeral_ms.map_or(Letters("NO"), Number);
    let kept = match (hold.binding.is_keepalive, hold.binding.is_running) {
        (false, _) => "NO",
        (true, false) => "YES",
        (true, true) => "RUNS",
    };
    Some([mode, Number(hold.count.into()), cut, Letters(kept)])
}

/// Parses LOCK.TICK after its version: last and told.
#[must_use]
pub fn parse_tick<A: AsRef<[u8]>>(args: &[A]) -> Option<(u64, u64)> {
    let number = |arg: &A| integer(arg.as_ref()).filter(|&number| number <= TOKEN_MAX);
    match args {
        [last, told] => Some((number(last)?, number(told)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_of_a_hold_is_what_is_read() {
        let token = Token::new(5).expect("valid");
        let bindings = [
            Binding::NONE,
            Binding { ephemeral_ms: Some(7), ..Binding::NONE },
            Binding { is_keepalive: true, ..Binding::NONE },
            Binding { ephemeral_ms: Some(0), is_keepalive: true, is_running: true },
        ];
        for (mode, binding) in
            [Mode::Exclusive, Mode::Shared, Mode::Limit(3)].iter().flat_map(|m| bindings.map(|t| (*m, t)))
        {
            for count in [1, 2] {
                let hold = SavedHold { owner: b"w"[..].into(), token, left_ms: 9, count, binding };
                let said = words_of(mode, &hold);
                let is_plain = mode == Mode::Exclusive && count == 1 && binding.is_none();
                assert_eq!(said.is_none(), is_plain);
                let mut words = ["HOLD", "5", "9", "w"].map(str::to_owned).to_vec();
                words.extend(said.into_iter().flatten().map(|word| word.to_string()));
                assert_eq!(parse_apply(&words), Some(Apply::Hold(mode, hold)));
            }
        }
    }

    #[test]
    fn a_record_of_an_unknown_version_is_refused() {
        assert_eq!(unversioned(&["1", "HOLD", "5"]), Some(&["HOLD", "5"][..]));
        for args in
            [&["1"][..], &["2", "HOLD"], &["0", "HOLD"], &["HOLD", "5", "9", "w"], &["01", "HOLD"], &[]]
        {
            assert_eq!(unversioned(args), None, "{args:?}");
        }
    }

    #[test]
    fn records_are_read_exactly() {
        let token = Token::new(5).expect("valid");
        let hold = SavedHold { owner: b"w"[..].into(), token, left_ms: 9, count: 1, binding: Binding::NONE };
        let plain = Some(Apply::Hold(Mode::Exclusive, hold.clone()));
        assert_eq!(parse_apply(&["HOLD", "5", "9", "w"]), plain);
        assert_eq!(parse_apply(&["HOLD", "5", "9", "w", "EXCLUSIVE", "1", "NO", "NO"]), plain);
        let binding = Binding { ephemeral_ms: Some(0), is_keepalive: true, is_running: false };
        assert_eq!(
            parse_apply(&["HOLD", "5", "9", "w", "7", "3", "0", "YES"]),
            Some(Apply::Hold(Mode::Limit(7), SavedHold { count: 3, binding, ..hold }))
        );
        assert_eq!(parse_apply(&["ENDED", "5"]), Token::new(5).map(Apply::Ended));
        assert_eq!(parse_apply(&["EMPTY"]), Some(Apply::Empty));
        let bad: [&[&str]; 11] = [
            &["HOLD", "5", "9", "w", "0", "1", "NO", "NO"],
            &["HOLD", "5", "9", "w", "SHARED", "0", "NO", "NO"],
            &["HOLD", "5", "9", "w", "SHARED", "1", "86400001", "NO"],
            &["HOLD", "5", "9", "w", "SHARED", "1", "NO", "no"],
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

    #[test]
    fn the_clock_of_tokens_is_not_told_beyond_the_last_token() {
        let (last, beyond) = (TOKEN_MAX.to_string(), (TOKEN_MAX + 1).to_string());
        assert_eq!(parse_tick(&[&last, &last]), Some((TOKEN_MAX, TOKEN_MAX)));
        for args in [[&beyond, &last], [&last, &beyond]] {
            assert_eq!(parse_tick(&args), None);
        }
    }
}
