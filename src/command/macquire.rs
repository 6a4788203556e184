//! `LOCK.MACQUIRE numkeys key [key ...] owner PX ms | EX seconds [BLOCK ms] [SHARED]`

use std::collections::HashSet;

use super::acquire::{self, Acquire};
use super::args::{Bounds, ranged};
use super::error::{Invalid, shown};

/// Most keys of one request.
pub const KEYS_MAX: u64 = 64;

/// The keys among the arguments behind the command, as many as their first says.
pub fn keys<A: AsRef<[u8]>>(args: &[A]) -> Result<&[A], Invalid> {
    let (count, rest) = args.split_first().ok_or(Invalid::NoKeys)?;
    let count = ranged("numkeys", "", count.as_ref(), 1, KEYS_MAX)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    rest.get(..count).ok_or(Invalid::NoKeys)
}

/// Parses the arguments behind the command: the keys, and the rest.
pub fn parse<'a, A: AsRef<[u8]>>(args: &'a [A], bounds: &Bounds) -> Result<(&'a [A], Acquire<'a>), Invalid> {
    let keys = keys(args)?;
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key.as_ref()) {
            return Err(Invalid::SameKey(shown(key.as_ref())));
        }
    }
    Ok((keys, acquire::parse_many(&args[1 + keys.len()..], bounds)?))
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
        for bad in ["0 w PX 9", "65 a w PX 9", "2 a a w PX 9", "9 a b", "1 a w PX 9 LIMIT 2", "x a w PX 9"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
