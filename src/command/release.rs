//! `LOCK.RELEASE key owner [TOKEN token]`

use super::args::{Options, owner, token};
use super::error::Invalid;
use crate::lock::table::Release;

/// Returns the owner, if it is the only argument after the key, as is most common. `None` if [`parse`] must decide.
#[inline(always)]
pub fn plain<A: AsRef<[u8]>>(args: &[A]) -> Option<&[u8]> {
    match args {
        [who] => owner(who.as_ref()).ok(),
        _ => None,
    }
}

/// Parses the arguments after the key.
pub fn parse<A: AsRef<[u8]>>(args: &[A]) -> Result<Release<'_>, Invalid> {
    const USAGE: &str = "LOCK.RELEASE key owner [TOKEN token]";
    let Some((who, rest)) = args.split_first() else {
        return Err(Invalid::Missing { what: "the owner", usage: USAGE });
    };
    let who = owner(who.as_ref())?;
    let mut options = Options::new(rest, "TOKEN");
    let mut named = None;
    while let Some(name) = options.take() {
        if !name.eq_ignore_ascii_case(b"TOKEN") {
            return Err(options.unknown(name));
        }
        options.value("TOKEN", &mut named, |v| token("TOKEN", v))?;
    }
    Ok(Release { owner: who, token: named })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::types::Token;

    #[test]
    fn the_token_is_optional_and_named_once() {
        assert_eq!(parse(&["w"]), Ok(Release { owner: b"w", token: None }));
        assert_eq!(plain(&["w"]), Some(b"w".as_slice()));
        assert!(
            plain(&[""]).is_none() && plain(&["w", "TOKEN", "7"]).is_none() && plain::<&str>(&[]).is_none()
        );
        assert_eq!(parse(&["w", "token", "7"]), Ok(Release { owner: b"w", token: Token::new(7) }));
        for bad in [&["w", "TOKEN"][..], &["w", "TOKEN", "0"], &["w", "7"], &["", "TOKEN", "7"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse(&["w", "TOKEN", "1", "TOKEN", "1"]).is_err());
        assert!(parse::<&str>(&[]).is_err());
    }
}
