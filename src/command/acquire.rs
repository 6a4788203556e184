//! `LOCK.ACQUIRE key owner PX ms | EX seconds [BLOCK ms | QUEUE ms] [SHARED | LIMIT n | REENTRANT] [EPHEMERAL ms]
//! [KEEPALIVE]`

use super::args::{Bounds, LeaseOption, Options, WAIT_MS_MAX, integer, owner, ranged};
use super::error::Invalid;
use crate::lock::types::{Binding, LIMIT_MAX, Mode};

/// A parsed LOCK.ACQUIRE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquire<'a> {
    /// The owner that asks; `None`: the server mints one (`*`).
    pub owner: Option<&'a [u8]>,
    /// The lease.
    pub lease_ms: u64,
    /// How it waits; `None` if it may not.
    pub wait: Option<WaitFor>,
    /// The mode in which to hold the lock.
    pub mode: Mode,
    /// True if repeated requests are counted.
    pub is_reentrant: bool,
    /// The binding of the hold to the connection.
    pub binding: Binding,
}

/// The kind and the length of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitFor {
    /// On the connection, for this many milliseconds; 0: without limit.
    Block(u64),
    /// By a reservation that lasts for this many milliseconds.
    Queue(u64),
}

/// The options, as they come.
#[derive(Default)]
struct Given {
    lease: LeaseOption,
    block: Option<u64>,
    queue: Option<u64>,
    shared: bool,
    limit: Option<u32>,
    is_reentrant: bool,
    ephemeral: Option<u64>,
    is_keepalive: bool,
}

/// The grammar.
const USAGE: &str = "LOCK.ACQUIRE key owner PX milliseconds | EX seconds [BLOCK milliseconds | QUEUE milliseconds] \
                     [SHARED | LIMIT holders | REENTRANT] [EPHEMERAL milliseconds] [KEEPALIVE]";

/// Returns the owner and the lease, if the arguments after the key begin in the most common way: a name and `PX`.
/// `None` if [`parse`] must decide.
#[inline(always)]
pub fn plain<'a, A: AsRef<[u8]>>(args: &'a [A], bounds: &Bounds) -> Option<(&'a [u8], u64)> {
    let [who, px, lease] = args else {
        return None;
    };
    let lease_ms = usual_lease(px, lease, bounds)?;
    owner(who.as_ref()).ok().filter(|&who| who != b"*").map(|who| (who, lease_ms))
}

/// Parses the arguments after the key: the owner and the options.
pub fn parse<'a, A: AsRef<[u8]>>(args: &'a [A], bounds: &Bounds) -> Result<Acquire<'a>, Invalid> {
    let Some((who, rest)) = args.split_first() else {
        return Err(Invalid::Missing { what: "the owner", usage: USAGE });
    };
    let who = owner(who.as_ref())?;
    let (mut rest, mut given) = (rest, Given::default());
    if let [px, lease, more @ ..] = rest
        && let Some(lease_ms) = usual_lease(px, lease, bounds)
    {
        if let Some(mode) = usual_mode(more) {
            return Ok(usual(who, lease_ms, mode));
        }
        (rest, given.lease) = (more, LeaseOption::of_ms(lease_ms));
    }
    let expected = "PX, EX, BLOCK, QUEUE, SHARED, LIMIT, REENTRANT, EPHEMERAL or KEEPALIVE";
    let mut options = Options::new(rest, expected);
    while let Some(name) = options.take() {
        // The options of the lease have two letters, the others more.
        if name.len() != 2 || !given.lease.take(name, &mut options, bounds)? {
            given.take(name, &mut options, bounds)?;
        }
    }
    given.acquire(who, bounds)
}

#[inline(always)]
fn usual_lease<A: AsRef<[u8]>>(px: &A, lease: &A, bounds: &Bounds) -> Option<u64> {
    // Letters that differ only in this bit are the same letter in another case.
    if !matches!(*px.as_ref(), [p, x] if [p | 0x20, x | 0x20] == *b"px") {
        return None;
    }
    integer(lease.as_ref()).filter(|ms| (1..=bounds.lease_ms_max).contains(ms))
}

/// Returns a request without other options.
#[inline]
fn usual(who: &[u8], lease_ms: u64, mode: Mode) -> Acquire<'_> {
    let owner = (who != b"*").then_some(who);
    Acquire { owner, lease_ms, wait: None, mode, is_reentrant: false, binding: Binding::NONE }
}

/// Returns the mode, if it is the only option.
fn usual_mode<A: AsRef<[u8]>>(rest: &[A]) -> Option<Mode> {
    match rest {
        [shared] if shared.as_ref().eq_ignore_ascii_case(b"SHARED") => Some(Mode::Shared),
        [limit, holders] if limit.as_ref().eq_ignore_ascii_case(b"LIMIT") => {
            let holders = integer(holders.as_ref()).and_then(|holders| u32::try_from(holders).ok());
            holders.filter(|holders| (1..=LIMIT_MAX).contains(holders)).map(Mode::Limit)
        }
        _ => None,
    }
}

/// The grammar.
pub const MANY_USAGE: &str = "LOCK.MACQUIRE numkeys key [key ...] owner PX milliseconds | EX seconds \
                         [BLOCK milliseconds] [SHARED]";

/// Parses the arguments after the keys of LOCK.MACQUIRE, which has fewer options.
pub fn parse_many<'a, A: AsRef<[u8]>>(args: &'a [A], bounds: &Bounds) -> Result<Acquire<'a>, Invalid> {
    let missing = Invalid::Missing { what: "the owner after the keys", usage: MANY_USAGE };
    let (who, rest) = args.split_first().ok_or(missing)?;
    let who = owner(who.as_ref())?;
    let mut options = Options::new(rest, "PX, EX, BLOCK or SHARED");
    let mut given = Given::default();
    while let Some(name) = options.take() {
        if given.lease.take(name, &mut options, bounds)? {
            continue;
        }
        if !name.eq_ignore_ascii_case(b"BLOCK") && !name.eq_ignore_ascii_case(b"SHARED") {
            return Err(given.lease.unknown(name, &options));
        }
        given.take(name, &mut options, bounds)?;
    }
    given.acquire(who, bounds)
}

impl Given {
    fn take<A: AsRef<[u8]>>(
        &mut self,
        name: &[u8],
        options: &mut Options<'_, A>,
        bounds: &Bounds,
    ) -> Result<(), Invalid> {
        const MS: &str = "milliseconds";
        let is = |option: &str| name.eq_ignore_ascii_case(option.as_bytes());
        if is("SHARED") {
            flag("SHARED", &mut self.shared)
        } else if is("LIMIT") {
            options.value("LIMIT", &mut self.limit, |v| {
                let limit = ranged("LIMIT", "holders", v, 1, u64::from(LIMIT_MAX))?;
                Ok(u32::try_from(limit).unwrap_or(LIMIT_MAX))
            })
        } else if is("BLOCK") {
            let max = bounds.wait_ms_max.unwrap_or(WAIT_MS_MAX);
            options.value("BLOCK", &mut self.block, |v| ranged("BLOCK", MS, v, 0, max))
        } else if is("QUEUE") {
            // An owner can reserve a lock for no longer than it could hold it.
            let max = bounds.wait_ms_max.unwrap_or(bounds.lease_ms_max);
            options.value("QUEUE", &mut self.queue, |v| ranged("QUEUE", MS, v, 1, max))
        } else if is("REENTRANT") {
            flag("REENTRANT", &mut self.is_reentrant)
        } else if is("EPHEMERAL") {
            let max = bounds.lease_ms_max;
            options.value("EPHEMERAL", &mut self.ephemeral, |v| ranged("EPHEMERAL", MS, v, 0, max))
        } else if is("KEEPALIVE") {
            flag("KEEPALIVE", &mut self.is_keepalive)
        } else {
            Err(self.lease.unknown(name, options))
        }
    }

    fn acquire<'a>(&self, who: &'a [u8], bounds: &Bounds) -> Result<Acquire<'a>, Invalid> {
        let wait = match (self.block, self.queue) {
            (Some(_), Some(_)) => return Err(Invalid::Both("BLOCK", "QUEUE")),
            // Without a limit means as long as the setting allows.
            (Some(0), None) => Some(WaitFor::Block(bounds.wait_ms_max.unwrap_or(0))),
            (Some(ms), None) => Some(WaitFor::Block(ms)),
            // No client could ever ask for it again.
            (None, Some(_)) if who == b"*" => return Err(Invalid::PlaceOfNobody),
            (None, queue) => queue.map(WaitFor::Queue),
        };
        let mode = match (self.shared, self.limit) {
            (true, Some(_)) => return Err(Invalid::Both("SHARED", "LIMIT")),
            (true, None) => Mode::Shared,
            (false, Some(limit)) => Mode::Limit(limit),
            (false, None) => Mode::Exclusive,
        };
        match mode {
            Mode::Exclusive => {}
            _ if !self.is_reentrant => {}
            Mode::Shared => return Err(Invalid::Both("REENTRANT", "SHARED")),
            Mode::Limit(_) => return Err(Invalid::Both("REENTRANT", "LIMIT")),
        }
        Ok(Acquire {
            owner: (who != b"*").then_some(who),
            lease_ms: self.lease.ms()?,
            wait,
            mode,
            is_reentrant: self.is_reentrant,
            binding: Binding {
                ephemeral_ms: self.ephemeral,
                is_keepalive: self.is_keepalive,
                is_running: false,
            },
        })
    }
}

/// Takes an option without a value.
fn flag(name: &'static str, given: &mut bool) -> Result<(), Invalid> {
    if std::mem::replace(given, true) {
        return Err(Invalid::Repeated(name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { lease_ms_max: 3_600_000, wait_ms_max: None };

    fn of(line: &str) -> Result<Acquire<'_>, String> {
        let args: Vec<&str> = line.split(' ').collect();
        parse(args.leak(), &BOUNDS).map_err(|e| e.to_string())
    }

    fn plain(owner: Option<&[u8]>, lease_ms: u64) -> Acquire<'_> {
        Acquire {
            owner,
            lease_ms,
            wait: None,
            mode: Mode::Exclusive,
            is_reentrant: false,
            binding: Binding::NONE,
        }
    }

    #[test]
    fn options_come_in_any_order_and_case() {
        let want = Acquire { wait: Some(WaitFor::Block(5)), ..plain(Some(b"w"), 30_000) };
        assert_eq!(of("w PX 30000 BLOCK 5"), Ok(want));
        assert_eq!(of("w block 5 ex 30"), Ok(want));
        assert_eq!(of("* Px 1"), Ok(plain(None, 1)));
        assert_eq!(of("PX PX 1").map(|a| a.owner), Ok(Some(b"PX".as_slice())));
        let all = Acquire {
            wait: Some(WaitFor::Queue(7)),
            mode: Mode::Limit(1_000_000),
            binding: Binding { ephemeral_ms: Some(0), is_keepalive: true, is_running: false },
            ..plain(Some(b"w"), 9)
        };
        assert_eq!(of("w keepalive limit 1000000 PX 9 EPHEMERAL 0 queue 7"), Ok(all));
        assert_eq!(of("w Reentrant px 9"), Ok(Acquire { is_reentrant: true, ..plain(Some(b"w"), 9) }));
        assert_eq!(of("w shared px 9"), Ok(Acquire { mode: Mode::Shared, ..plain(Some(b"w"), 9) }));
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
            ("w PX 1 FOO", "ERR syntax error: unknown option 'FOO', expected PX, EX, BLOCK, QUEUE, SHARED"),
            ("w PX x FOO", "ERR PX must be an integer"),
            ("w PX 1 BLOCK 1 QUEUE 1", "ERR syntax error: give BLOCK or QUEUE, not both"),
            ("* PX 1 QUEUE 9", "ERR QUEUE needs an owner of your own"),
            ("w PX 1 QUEUE 0", "ERR QUEUE must be an integer from 1 to 3600000 (milliseconds)"),
            ("w PX 1 SHARED LIMIT 1", "ERR syntax error: give SHARED or LIMIT, not both"),
            ("w PX 1 SHARED REENTRANT", "ERR syntax error: give REENTRANT or SHARED, not both"),
            ("w PX 1 REENTRANT LIMIT 1", "ERR syntax error: give REENTRANT or LIMIT, not both"),
            ("w PX 1 LIMIT 0", "ERR LIMIT must be an integer from 1 to 1000000 (holders)"),
            ("w PX 1 LIMIT 1000001", "ERR LIMIT must be an integer from 1 to 1000000"),
            ("w PX 1 SHARED SHARED", "ERR syntax error: option SHARED is given twice"),
            ("w PX 1 EPHEMERAL", "ERR syntax error: option EPHEMERAL needs a value"),
            ("w PX 1 EPHEMERAL 3600001", "ERR EPHEMERAL must be an integer from 0 to 3600000 (milliseconds)"),
            (" PX 1", "ERR owner must be 1 to 256 bytes long"),
        ];
        for (line, error) in cases {
            let got = of(line).expect_err(line);
            assert!(got.starts_with(error), "{line}: {got}");
        }
    }

    #[test]
    fn seconds_without_their_number_are_refused_like_any_where_leases_are_shorter() {
        let bounds = Bounds { lease_ms_max: 500, ..BOUNDS };
        let error = |args: &[&str]| parse(args, &bounds).map_err(|e| e.to_string()).unwrap_err();
        let wanted =
            "ERR EX cannot be used where a lease lasts at most 500 milliseconds: use PX, from 1 to 500";
        assert_eq!(error(&["w", "EX", "1"]), wanted);
        assert_eq!(error(&["w", "EX"]), wanted);
    }

    #[test]
    fn a_bound_on_waiting_also_bounds_waiting_without_limit() {
        let bounds = Bounds { wait_ms_max: Some(1_000), ..BOUNDS };
        let block = |value| parse(&["w", "PX", "1", "BLOCK", value], &bounds).map(|a| a.wait);
        assert_eq!(block("0"), Ok(Some(WaitFor::Block(1_000))));
        assert_eq!(block("1000"), Ok(Some(WaitFor::Block(1_000))));
        assert!(block("1001").is_err());
        assert!(parse(&["w", "PX", "1", "QUEUE", "1001"], &bounds).is_err());
    }
}
