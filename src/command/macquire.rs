//! `LOCK.MACQUIRE numkeys key [key ...] owner PX ms | EX seconds [BLOCK ms] [SHARED]`

use std::collections::HashSet;
use std::ops::Range;

use super::acquire::{self, Acquire, MANY_USAGE};
use super::args::{Bounds, ranged};
use super::error::{Invalid, shown, shown_shortly};

/// The most keys of one request.
pub const KEYS_MAX: u64 = 64;

/// Returns the keys among the arguments after the command: as many as the first argument says.
pub fn keys<A: AsRef<[u8]>>(args: &[A]) -> Result<&[A], Invalid> {
    let (count, rest) = args.split_first().ok_or(Invalid::Missing { what: "numkeys", usage: MANY_USAGE })?;
    let count = ranged("numkeys", "", count.as_ref(), 1, KEYS_MAX)?;
    let keys = rest.get(..usize::try_from(count).unwrap_or(usize::MAX));
    keys.ok_or(Invalid::NoKeys { count, given: rest.len() })
}

/// Returns the positions of the keys among the words of the command; none if the arguments are invalid.
pub fn key_positions<A: AsRef<[u8]>>(args: &[A]) -> Range<usize> {
    let count = keys(args).map_or(0, <[_]>::len);
    // After the command and the number of keys.
    2..2 + count
}

/// Parses the arguments after the command: the keys, and the rest.
pub fn parse<'a, A: AsRef<[u8]>>(args: &'a [A], bounds: &Bounds) -> Result<(&'a [A], Acquire<'a>), Invalid> {
    let keys = keys(args)?;
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key.as_ref()) {
            return Err(Invalid::SameKey(shown(key.as_ref())));
        }
    }
    let rest = &args[1 + keys.len()..];
    let request =
        acquire::parse_many(rest, bounds).map_err(|invalid| perhaps_miscounted(keys, rest, invalid))?;
    Ok((keys, request))
}

/// Returns the error after the keys, together with the arguments that were taken for the last key and the owner, if a
/// wrong number of keys may be the cause.
fn perhaps_miscounted<A: AsRef<[u8]>>(keys: &[A], rest: &[A], invalid: Invalid) -> Invalid {
    let is_of_options =
        matches!(invalid, Invalid::Unknown { .. } | Invalid::BareLease { .. } | Invalid::NoLease);
    match (keys.last(), rest.first()) {
        (Some(last), Some(owner)) if is_of_options => Invalid::BehindKeys {
            count: keys.len() as u64,
            last: shown_shortly(last.as_ref()),
            owner: shown_shortly(owner.as_ref()),
            invalid: Box::new(invalid),
        },
        _ => invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::types::Mode;

    const BOUNDS: Bounds = Bounds { lease_ms_max: 3_600_000, wait_ms_max: None };

    fn of(line: &str) -> Result<(usize, Mode), String> {
        let args: Vec<&str> = line.split(' ').collect();
        parse(&args, &BOUNDS).map(|(keys, rest)| (keys.len(), rest.mode)).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_are_counted_and_differ() {
        assert_eq!(of("2 a b w PX 9"), Ok((2, Mode::Exclusive)));
        assert_eq!(of("1 a w PX 9 shared BLOCK 0"), Ok((1, Mode::Shared)));
        let many: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
        assert_eq!(of(&format!("64 {} w PX 9", many.join(" "))), Ok((64, Mode::Exclusive)));
        let error = |line| of(line).unwrap_err();
        assert_eq!(
            error("2 a o PX 100"),
            "ERR syntax error: numkeys is 2, so 'o' is the last key and 'PX' is the owner; a lease needs its unit: \
             PX 100 (milliseconds) or EX 100 (seconds)"
        );
        assert_eq!(
            error("1 a b o PX 100"),
            "ERR syntax error: numkeys is 1, so 'a' is the last key and 'b' is the owner; unknown option 'o', \
             expected PX, EX, BLOCK or SHARED"
        );
        assert_eq!(
            error("3 a b"),
            "ERR syntax error: numkeys is 3, but 2 argument(s) follow: give that many keys, then the owner"
        );
        assert!(
            error("2 a b")
                .starts_with("ERR syntax error: the owner after the keys is missing: LOCK.MACQUIRE ")
        );
        assert_eq!(error("0 o PX 100"), "ERR numkeys must be an integer from 1 to 64");
        for bad in ["0 w PX 9", "65 a w PX 9", "2 a a w PX 9", "9 a b", "1 a w PX 9 LIMIT 2", "x a w PX 9"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_server_is_told_which_arguments_are_keys() {
        let positions = |line: &str| key_positions(&line.split(' ').collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(positions("2 a b alice PX 30000"), [2, 3]);
        assert_eq!(positions("1 a"), [2]);
        for bad in ["3 a b", "0 a", "x a", "65 a"] {
            assert_eq!(positions(bad), [0; 0], "{bad}");
        }
    }
}
