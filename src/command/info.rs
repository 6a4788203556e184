//! `LOCK.INFO key [FULL [COUNT n]]`

use super::args::{Options, ranged};
use super::error::Invalid;

/// The number of holders, and of waiters, that LOCK.INFO shows without FULL (CONTRACT 2).
pub const SHOWN_SHORT: usize = 10;

/// The number of each that it shows with FULL.
pub const SHOWN_FULL: usize = 1_000;

/// The largest COUNT: more would delay other clients.
pub const SHOWN_MAX: usize = 2_000;

/// Parses the arguments after the key: the most holders, and waiters, to show.
pub fn parse<A: AsRef<[u8]>>(args: &[A]) -> Result<usize, Invalid> {
    let mut options = Options::new(args, "FULL or COUNT");
    let (mut is_full, mut count) = (false, None);
    while let Some(name) = options.take() {
        if name.eq_ignore_ascii_case(b"FULL") {
            if is_full {
                return Err(Invalid::Repeated("FULL"));
            }
            is_full = true;
        } else if name.eq_ignore_ascii_case(b"COUNT") {
            options.value("COUNT", &mut count, |n| ranged("COUNT", "", n, 1, SHOWN_MAX as u64))?;
        } else {
            return Err(options.unknown(name));
        }
    }
    match count {
        Some(_) if !is_full => Err(Invalid::Missing { what: "FULL", usage: "LOCK.INFO key FULL COUNT n" }),
        Some(count) => Ok(usize::try_from(count).unwrap_or(SHOWN_MAX)),
        None if is_full => Ok(SHOWN_FULL),
        None => Ok(SHOWN_SHORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_shows_more_and_count_says_how_many() {
        assert_eq!(parse::<&str>(&[]), Ok(10));
        assert_eq!(parse(&["full"]), Ok(1_000));
        for (count, shown) in [("1", 1), ("2000", 2_000)] {
            assert_eq!(parse(&["FULL", "COUNT", count]), Ok(shown));
            assert_eq!(parse(&["count", count, "full"]), Ok(shown));
        }
        let error = |args: &[&str]| parse(args).unwrap_err().to_string();
        assert_eq!(error(&["FULL", "FULL"]), "ERR syntax error: option FULL is given twice");
        assert_eq!(
            error(&["FULL", "COUNT", "1", "COUNT", "1"]),
            "ERR syntax error: option COUNT is given twice"
        );
        assert_eq!(error(&["x"]), "ERR syntax error: unknown option 'x', expected FULL or COUNT");
        assert_eq!(error(&["COUNT", "5"]), "ERR syntax error: FULL is missing: LOCK.INFO key FULL COUNT n");
        for count in ["0", "2001", "-1", "1x", ""] {
            assert_eq!(error(&["FULL", "COUNT", count]), "ERR COUNT must be an integer from 1 to 2000");
        }
        let wanted = "ERR syntax error: option COUNT needs a value: an integer from 1 to 2000";
        assert_eq!(error(&["FULL", "COUNT"]), wanted);
    }
}
