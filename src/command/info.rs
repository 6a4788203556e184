//! `LOCK.INFO key [FULL]`

use super::args::Options;
use super::error::Invalid;

/// How many waiters INFO shows without FULL (CONTRACT 2).
pub const SHOWN_WAITERS: usize = 10;

/// Parses the arguments behind the key: how many waiters to show at most.
pub fn parse<A: AsRef<[u8]>>(args: &[A]) -> Result<usize, Invalid> {
    let mut options = Options::new(args, "FULL");
    let mut shown = SHOWN_WAITERS;
    while let Some(name) = options.take() {
        if !name.eq_ignore_ascii_case(b"FULL") {
            return Err(options.unknown(name));
        }
        if shown != SHOWN_WAITERS {
            return Err(Invalid::Repeated("FULL"));
        }
        shown = usize::MAX;
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_shows_all() {
        assert_eq!(parse::<&str>(&[]), Ok(10));
        assert_eq!(parse(&["full"]), Ok(usize::MAX));
        assert!(parse(&["FULL", "FULL"]).is_err());
        assert!(parse(&["x"]).is_err());
    }
}
