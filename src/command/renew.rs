//! `LOCK.RENEW key owner PX ms | EX seconds [TOKEN token | RAISE token]`

use super::args::{Bounds, LeaseOption, Options, owner, token};
use super::error::Invalid;
use crate::lock::types::Token;

/// A parsed LOCK.RENEW.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renew<'a> {
    /// The owner of the hold.
    pub owner: &'a [u8],
    /// The new lease, from now.
    pub lease_ms: u64,
    /// The token that the hold must have, if any.
    pub token: Option<Token>,
    /// The lowest token that the hold must have from now on, if any.
    pub raise: Option<Token>,
}

/// Parses the arguments after the key.
pub fn parse<'a, A: AsRef<[u8]>>(args: &'a [A], bounds: &Bounds) -> Result<Renew<'a>, Invalid> {
    const USAGE: &str = "LOCK.RENEW key owner PX milliseconds | EX seconds [TOKEN token | RAISE token]";
    let (who, rest) = args.split_first().ok_or(Invalid::Missing { what: "the owner", usage: USAGE })?;
    let who = owner(who.as_ref())?;
    let mut options = Options::new(rest, "PX, EX, TOKEN or RAISE");
    let mut lease = LeaseOption::default();
    let (mut named, mut raise) = (None, None);
    while let Some(name) = options.take() {
        if lease.take(name, &mut options, bounds)? {
            continue;
        }
        if name.eq_ignore_ascii_case(b"TOKEN") {
            options.value("TOKEN", &mut named, |v| token("TOKEN", v))?;
        } else if name.eq_ignore_ascii_case(b"RAISE") {
            options.value("RAISE", &mut raise, |v| token("RAISE", v))?;
        } else {
            return Err(lease.unknown(name, &options));
        }
    }
    if named.is_some() && raise.is_some() {
        return Err(Invalid::Both("TOKEN", "RAISE"));
    }
    Ok(Renew { owner: who, lease_ms: lease.ms()?, token: named, raise })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_required_and_a_token_is_not() {
        let bounds = Bounds { lease_ms_max: 1_000, wait_ms_max: None };
        let of = |args| parse::<&str>(args, &bounds).map(|r| (r.lease_ms, r.token));
        assert_eq!(of(&["w", "EX", "1"]), Ok((1_000, None)));
        assert_eq!(of(&["w", "TOKEN", "3", "PX", "5"]), Ok((5, Token::new(3))));
        assert_eq!(of(&["w", "TOKEN", "3"]), Err(Invalid::NoLease));
        let raise = |args| parse::<&str>(args, &bounds).map(|r| r.raise);
        assert_eq!(raise(&["w", "raise", "3", "PX", "5"]), Ok(Token::new(3)));
        assert_eq!(
            raise(&["w", "PX", "5", "RAISE", "3", "TOKEN", "2"]),
            Err(Invalid::Both("TOKEN", "RAISE"))
        );
        assert!(raise(&["w", "PX", "5", "RAISE", "0"]).is_err());
    }
}
