//! Grammar that the commands share: numbers, owners, options.

use super::error::{Invalid, shown};
use crate::lock::types::{LEASE_MS_MAX, OWNER_BYTES_MAX, TOKEN_MAX, Token};

/// The settings that parsing needs (CONTRACT 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The longest lease, in milliseconds.
    pub lease_ms_max: u64,
    /// The longest wait, in milliseconds; `None` if unbounded.
    pub wait_ms_max: Option<u64>,
}

impl Bounds {
    /// The bounds of facts from a primary: the widest that any primary's settings allow.
    pub const WIDEST: Self = Self { lease_ms_max: LEASE_MS_MAX, wait_ms_max: None };
}

/// The longest wait without a setting: the largest integer that every client can represent.
pub const WAIT_MS_MAX: u64 = TOKEN_MAX;

/// Parses a decimal integer as Redis writes it: digits only, without sign, leading zero or space.
#[inline(always)]
#[must_use]
pub fn integer(bytes: &[u8]) -> Option<u64> {
    match several_digits(bytes) {
        Some(number) if bytes[0] != b'0' => number,
        _ => any_integer(bytes),
    }
}

#[inline(never)]
fn any_integer(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [b'0'] => return Some(0),
        [b'1'..=b'9', ..] if bytes.len() <= 20 => {}
        _ => return None,
    }
    // Up to 18 digits cannot overflow, so no digit needs a check.
    if bytes.len() <= 18 {
        let mut sum = 0;
        for &digit in bytes {
            if !digit.is_ascii_digit() {
                return None;
            }
            sum = sum * 10 + u64::from(digit - b'0');
        }
        return Some(sum);
    }
    bytes.iter().try_fold(0_u64, |sum, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses four to eight digits at once; `Some(None)` if they are no digits.
#[inline(always)]
const fn several_digits(bytes: &[u8]) -> Option<Option<u64>> {
    let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) else {
        return None;
    };
    if bytes.len() > 8 {
        return None;
    }
    // The first four and the last four overlap if there are fewer than eight; zeros go in front.
    let unused = 64 - 8 * bytes.len();
    let first = (u32::from_le_bytes(*first) as u64) << unused;
    let last = (u32::from_le_bytes(*last) as u64) << 32;
    let digits = (first | last) ^ 0x3030_3030_3030_3030 << unused;
    // The high half of a byte is zero, and stays so after adding 6, exactly if it is a digit.
    if (digits | digits.wrapping_add(0x0606_0606_0606_0606)) & 0xf0f0_f0f0_f0f0_f0f0 != 0 {
        return Some(None);
    }
    // Combines neighbors: into tens, hundreds, ten thousands.
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some(Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff))
}

/// Parses the value of the option or argument `what`: an integer from `min` to `max`.
pub fn ranged(
    what: &'static str,
    unit: &'static str,
    bytes: &[u8],
    min: u64,
    max: u64,
) -> Result<u64, Invalid> {
    integer(bytes).filter(|number| (min..=max).contains(number)).ok_or(Invalid::Number {
        what,
        unit,
        min,
        max,
    })
}

/// Parses a fencing token.
pub fn token(what: &'static str, bytes: &[u8]) -> Result<Token, Invalid> {
    let number = ranged(what, "", bytes, 1, TOKEN_MAX)?;
    Token::new(number).ok_or(Invalid::Number { what, unit: "", min: 1, max: TOKEN_MAX })
}

/// Checks an owner.
pub const fn owner(bytes: &[u8]) -> Result<&[u8], Invalid> {
    if bytes.is_empty() || bytes.len() > OWNER_BYTES_MAX {
        return Err(Invalid::Owner);
    }
    Ok(bytes)
}

/// The options after the positional arguments: in any order, in any case, each at most once.
///
/// A command walks through them with [`Options::take`] and takes values with [`Options::value`].
pub struct Options<'a, A> {
    rest: &'a [A],
    expected: &'static str,
}

impl<'a, A: AsRef<[u8]>> Options<'a, A> {
    /// Reads the options in `rest`; `expected` names those of the command, for errors.
    pub const fn new(rest: &'a [A], expected: &'static str) -> Self {
        Self { rest, expected }
    }

    /// Takes the name of the next option, as written.
    pub fn take(&mut self) -> Option<&'a [u8]> {
        let (name, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(name.as_ref())
    }

    /// Takes the value of that option into `slot`, which must be empty.
    pub fn value<T>(
        &mut self,
        name: &'static str,
        slot: &mut Option<T>,
        parse: impl FnOnce(&'a [u8]) -> Result<T, Invalid>,
    ) -> Result<(), Invalid> {
        if slot.is_some() {
            return Err(Invalid::Repeated(name));
        }
        let Some(value) = self.take() else {
            // The error for an empty value names the accepted values, or says why no value is accepted.
            return match parse(b"") {
                Ok(_) => Err(Invalid::Missing { what: "a value", usage: name }),
                Err(wanted @ Invalid::Number { .. }) => {
                    Err(Invalid::NoValue { name, wanted: Box::new(wanted) })
                }
                Err(impossible) => Err(impossible),
            };
        };
        *slot = Some(parse(value)?);
        Ok(())
    }

    /// Returns the error for an option that the command does not have.
    #[must_use]
    pub fn unknown(&self, name: &[u8]) -> Invalid {
        Invalid::Unknown { name: shown(name), expected: self.expected }
    }
}

/// The lease of an acquire or a renewal: `PX ms | EX seconds`, in milliseconds.
#[derive(Default)]
pub struct LeaseOption {
    px: Option<u64>,
    ex: Option<u64>,
}

impl LeaseOption {
    /// Returns true if PX was given.
    #[must_use]
    pub const fn of_ms(ms: u64) -> Self {
        Self { px: Some(ms), ex: None }
    }

    /// Takes the option if it is `PX` or `EX`. Returns true if it was.
    pub fn take<A: AsRef<[u8]>>(
        &mut self,
        name: &[u8],
        options: &mut Options<'_, A>,
        bounds: &Bounds,
    ) -> Result<bool, Invalid> {
        let max_ms = bounds.lease_ms_max;
        if name.eq_ignore_ascii_case(b"PX") {
            options.value("PX", &mut self.px, |v| ranged("PX", "milliseconds", v, 1, max_ms))?;
        } else if name.eq_ignore_ascii_case(b"EX") {
            options.value("EX", &mut self.ex, |v| seconds(v, max_ms))?;
        } else {
            return Ok(false);
        }
        if self.px.is_some() && self.ex.is_some() {
            return Err(Invalid::TwoLeases);
        }
        Ok(true)
    }

    /// Returns the error for an unknown option, which may be a lease without its unit.
    #[must_use]
    pub fn unknown<A: AsRef<[u8]>>(&self, name: &[u8], options: &Options<'_, A>) -> Invalid {
        let is_lease = self.px.or(self.ex).is_none() && integer(name).is_some();
        if is_lease { Invalid::BareLease { number: shown(name) } } else { options.unknown(name) }
    }

    /// Returns the lease in milliseconds.
    pub fn ms(&self) -> Result<u64, Invalid> {
        self.px.or(self.ex).ok_or(Invalid::NoLease)
    }
}

/// Parses a lease in whole seconds. Returns milliseconds.
fn seconds(bytes: &[u8], max_ms: u64) -> Result<u64, Invalid> {
    if max_ms < 1000 {
        return Err(Invalid::LeaseBelowSecond { max_ms });
    }
    ranged("EX", "seconds", bytes, 1, max_ms / 1000).map(|seconds| seconds * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_plain_decimal() {
        let good: [(&str, u64); 5] = [
            ("0", 0),
            ("1", 1),
            ("30000", 30_000),
            ("9007199254740993", (1 << 53) + 1),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, number) in good {
            assert_eq!(integer(text.as_bytes()), Some(number), "{text}");
        }
        let bad = [
            "",
            "-1",
            "+1",
            " 1",
            "1 ",
            "01",
            "00",
            "1e3",
            "1.0",
            "0x1",
            "18446744073709551616",
            "99999999999999999999",
            "184467440737095516150",
            "\u{661}",
            "1\0",
        ];
        for text in bad {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn digits_at_once_are_the_digits_one_by_one() {
        for len in 1..=10 {
            for (at, byte) in (0..len).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                let mut text = b"9182736450"[..len].to_vec();
                text[at] = byte;
                let is_plain = text.iter().all(u8::is_ascii_digit) && (len == 1 || text[0] != b'0');
                let number = text.iter().fold(0, |number, &digit| number * 10 + u64::from(digit & 0x0f));
                assert_eq!(integer(&text), is_plain.then_some(number), "{text:?}");
            }
        }
    }

    #[test]
    fn owners_are_1_to_256_bytes() {
        assert_eq!(owner(b""), Err(Invalid::Owner));
        assert!(owner(&[0; 1]).is_ok());
        assert!(owner(&[255; 256]).is_ok());
        assert_eq!(owner(&[0; 257]), Err(Invalid::Owner));
    }

    #[test]
    fn seconds_are_bounded_by_the_longest_lease() {
        assert_eq!(seconds(b"3", 3_999), Ok(3_000));
        assert!(seconds(b"4", 3_999).is_err());
        assert_eq!(seconds(b"1", 999), Err(Invalid::LeaseBelowSecond { max_ms: 999 }));
    }
}
