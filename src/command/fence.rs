//! `LOCK.FENCE key [token]`

use super::args::token;
use super::error::{Invalid, shown};
use crate::lock::types::Token;

/// Parses the arguments after the key: the token to check, if any.
pub fn parse<A: AsRef<[u8]>>(args: &[A]) -> Result<Option<Token>, Invalid> {
    if let [_, more, ..] = args {
        return Err(Invalid::Unknown { name: shown(more.as_ref()), expected: "one token at most" });
    }
    args.first().map(|number| token("token", number.as_ref())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_number_below_two_to_the_53() {
        assert_eq!(parse::<&str>(&[]), Ok(None));
        assert_eq!(parse(&["12"]), Ok(Token::new(12)));
        for bad in ["0", "-1", "9007199254740992", "x", ""] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }
}
