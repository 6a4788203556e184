//! `LOCK.ACQUIRE key owner PX ms | EX seconds [BLOCK ms]`

use super::args::{Bounds, LeaseOption, Options, WAIT_MS_MAX, integer, owner, ranged};
use super::error::Invalid;

/// A parsed LOCK.ACQUIRE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquire<'a> {
    /// Who asks; `None`: the server mints an owner (`*`).
    pub owner: Option<&'a [u8]>,
    /// For how long.
    pub lease_ms: u64,
    /// How long to wait; 0: without limit.
    pub block_ms: Option<u64>,
}

/// Parses the arguments behind the key: the owner and the options.
pub fn parse<'a, A: AsRef<[u8]>>(args: &'a [A], bounds: &Bounds) -> Result<Acquire<'a>, Invalid> {
    let (who, rest) = args.split_first().ok_or(Invalid::Owner)?;
    let who = owner(who.as_ref())?;
    // What most requests look like, without going through the options.
    if let [px, lease] = rest
        && px.as_ref().eq_ignore_ascii_case(b"PX")
        && let Some(lease_ms) = integer(lease.as_ref()).filter(|ms| (1..=bounds.lease_ms_max).contains(ms))
    {
        return Ok(Acquire { owner: (who != b"*").then_some(who), lease_ms, block_ms: None });
    }
    let mut options = Options::new(rest, "PX, EX or BLOCK");
    let mut lease = LeaseOption::default();
    let mut block_ms = None;
    while let Some(name) = options.take() {
        if lease.take(name, &mut options, bounds)? {
            continue;
        }
        if !name.eq_ignore_ascii_case(b"BLOCK") {
            return Err(options.unknown(name));
        }
        let max = bounds.wait_ms_max.unwrap_or(WAIT_MS_MAX);
        options.value("BLOCK", &mut block_ms, |v| ranged("BLOCK", "milliseconds", v, 0, max))?;
    }
    Ok(Acquire {
        owner: (who != b"*").then_some(who),
        lease_ms: lease.ms()?,
        // Without limit means: as long as the user's bound allows.
        block_ms: match (block_ms, bounds.wait_ms_max) {
            (Some(0), Some(max)) => Some(max),
            (block_ms, _) => block_ms,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { lease_ms_max: 3_600_000, wait_ms_max: None };

    fn of(line: &str) -> Result<Acquire<'_>, String> {
        let args: Vec<&str> = line.split(' ').collect();
        parse(args.leak(), &BOUNDS).map_err(|e| e.to_string())
    }

    #[test]
    fn options_come_in_any_order_and_case() {
        let want = Acquire { owner: Some(b"w"), lease_ms: 30_000, block_ms: Some(5) };
        assert_eq!(of("w PX 30000 BLOCK 5"), Ok(want));
        assert_eq!(of("w block 5 ex 30"), Ok(want));
        assert_eq!(of("* Px 1"), Ok(Acquire { owner: None, lease_ms: 1, block_ms: None }));
        assert_eq!(of("PX PX 1").map(|a| a.owner), Ok(Some(b"PX".as_slice())));
    }

    #[test]
    fn bad_input_is_told_in_the_order_of_the_arguments() {
        let cases = [
            ("w", "ERR syntax error: a lease is required"),
            ("w PX", "ERR syntax error: option PX needs a value"),
            ("w PX 0", "ERR PX must be an integer from 1 to 3600000 (milliseconds)"),
            ("w PX 3600001", "ERR PX must be an integer from 1 to 3600000"),
            ("w EX 3601", "ERR EX must be an integer from 1 to 3600 (seconds)"),
            ("w PX 1 EX 1", "ERR syntax error: give the lease by PX or by EX"),
            ("w PX 1 px 1", "ERR syntax error: option PX is given twice"),
            ("w PX 1 BLOCK -1", "ERR BLOCK must be an integer from 0 to 9007199254740991"),
            ("w PX 1 BLOCK 1 BLOCK 1", "ERR syntax error: option BLOCK is given twice"),
            ("w PX 1 SHARED", "ERR syntax error: unknown option 'SHARED', expected PX, EX or BLOCK"),
            ("w PX x FOO", "ERR PX must be an integer"),
            (" PX 1", "ERR owner must be 1 to 256 bytes long"),
        ];
        for (line, error) in cases {
            let got = of(line).expect_err(line);
            assert!(got.starts_with(error), "{line}: {got}");
        }
    }

    #[test]
    fn a_bound_on_waiting_also_bounds_waiting_without_limit() {
        let bounds = Bounds { wait_ms_max: Some(1_000), ..BOUNDS };
        let block = |value| parse(&["w", "PX", "1", "BLOCK", value], &bounds).map(|a| a.block_ms);
        assert_eq!(block("0"), Ok(Some(1_000)));
        assert_eq!(block("1000"), Ok(Some(1_000)));
        assert!(block("1001").is_err());
    }
}
