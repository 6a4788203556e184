//! Names and owners in few bytes.
//!
//! Most owners are UUIDs: 36 bytes of text for 16 of content. Most names are a word in front of a number,
//! `lock:order:123456`, and a server has few such words: each is kept once, in a [`Prefixes`], and the
//! number takes as many bytes as its digits need. Whatever is written otherwise is kept as it is. Unpacked, both are
//! the same bytes again, always.

use crate::lock::types::{Place, PlaceBuf};

/// Bytes of a UUID's text.
pub(super) const UUID_TEXT: usize = 36;

/// Where the text of a UUID has its hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// A byte in each byte of a word.
const fn each(byte: u8) -> u64 {
    0x0101_0101_0101_0101 * byte as u64
}

/// The value of eight lower-case hexadecimal digits, the first one most significant, as four bytes. All eight at
/// once: digit by digit it would cost four times as much, and this is in the path of every command.
#[inline]
fn hex_digits(text: [u8; 8]) -> Option<[u8; 4]> {
    let text = u64::from_le_bytes(text);
    // 1 where there is a letter: bit 6 tells 'a'..='f' (0x61..=0x66) from '0'..='9' (0x30..=0x39).
    let letter = (text >> 6) & each(1);
    let low = text & each(0x0f);
    let is_high_right = text & each(0xf0) == each(0x30) + letter * 0x30;
    // A digit is at most 9, a letter at most 6: with 6 or 9 more they stay below 16.
    let is_low_enough = (low + each(6) + letter * 3) & each(0xf0) == 0;
    // A letter is at least 1: with 15 more it reaches 16.
    let is_not_zero = ((low + each(0x0f)) >> 4) & letter == letter;
    if !(is_high_right && is_low_enough && is_not_zero) {
        return None;
    }
    let digits = low + letter * 9;
    // Two digits to a byte, then the four bytes next to one another.
    let pairs = (digits << 4 | digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let pairs = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    let all = pairs | pairs >> 16;
    Some(((all & 0xffff_ffff) as u32).to_le_bytes())
}

/// The 16 bytes of a UUID in its canonical text: lower case, with hyphens. `None`: it is something else.
#[inline]
pub(super) fn uuid_bytes(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; UUID_TEXT] = text.try_into().ok()?;
    if HYPHENS.iter().any(|&at| text[at] != b'-') {
        return None;
    }
    let join = |first: usize, second: usize| {
        let mut word = [0; 8];
        word[..4].copy_from_slice(&text[first..first + 4]);
        word[4..].copy_from_slice(&text[second..second + 4]);
        hex_digits(word)
    };
    let (a, b, c, d) = (join(0, 4)?, join(9, 14)?, join(19, 24)?, join(28, 32)?);
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&a);
    bytes[4..8].copy_from_slice(&b);
    bytes[8..12].copy_from_slice(&c);
    bytes[12..].copy_from_slice(&d);
    Some(bytes)
}

/// The canonical text of a UUID.
pub(super) fn uuid_text(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(UUID_TEXT);
    for &byte in bytes {
        if HYPHENS.contains(&text.len()) {
            text.push(b'-');
        }
        text.extend([byte >> 4, byte & 0x0f].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
    text
}

/// Most digits of a number at the end of a name that are packed.
pub(super) const DIGITS_MAX: usize = 18;

/// How many bytes a number of so many digits takes.
pub(super) const fn bytes_of_digits(digits: usize) -> usize {
    const BYTES: [u8; DIGITS_MAX + 1] = [0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8];
    BYTES[digits] as usize
}

/// A name that ends in a number: what stands before it, how many digits it has, its value.
#[inline]
pub(super) fn split_number(name: &[u8]) -> Option<(&[u8], usize, u64)> {
    let mut value = 0;
    let mut unit = 1;
    let mut start = name.len();
    while start > 0 && name.len() - start < DIGITS_MAX && name[start - 1].is_ascii_digit() {
        start -= 1;
        value += u64::from(name[start] - b'0') * unit;
        unit *= 10;
    }
    (start < name.len()).then(|| (&name[..start], name.len() - start, value))
}

/// Longest word that is kept in [`Prefixes`].
const PREFIX_BYTES_MAX: usize = 64;

/// How many words are kept. One number of a byte is left to say "none".
const PREFIXES: usize = 255;

/// Says that a name is not packed.
pub(super) const NO_PREFIX: u8 = PREFIXES as u8;

/// A database and what names in it begin with.
#[derive(Default)]
struct Prefix {
    db: u32,
    bytes: Box<[u8]>,
    /// How many names use it; 0: another may take its seat.
    uses: u32,
}

/// The words that names begin with, each once: a table of a fixed number of seats, in which a word has
/// one seat it may take. One that finds it taken is not packed. So the table never grows, whatever names
/// somebody thinks of.
pub(super) struct Prefixes(Box<[Prefix; PREFIXES]>);

impl Default for Prefixes {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| Prefix::default())))
    }
}

impl Prefixes {
    /// The seat of this word, with one more use. `None`: another one has it.
    #[inline]
    pub(super) fn take(&mut self, db: u32, bytes: &[u8]) -> Option<u8> {
        if bytes.len() > PREFIX_BYTES_MAX {
            return None;
        }
        let seat = Self::seat_of(db, bytes);
        let prefix = &mut self.0[usize::from(seat)];
        if prefix.uses == 0 {
            if *prefix.bytes != *bytes {
                prefix.bytes = bytes.into();
            }
            prefix.db = db;
        } else if prefix.db != db || *prefix.bytes != *bytes || prefix.uses == u32::MAX {
            return None;
        }
        prefix.uses += 1;
        Some(seat)
    }

    /// One use less.
    #[inline]
    pub(super) fn give_back(&mut self, seat: u8) {
        if let Some(prefix) = self.0.get_mut(usize::from(seat)) {
            prefix.uses -= 1;
        }
    }

    /// The name that was packed.
    pub(super) fn name(&self, seat: u8, digits: usize, value: u64) -> Option<PlaceBuf> {
        let prefix = self.0.get(usize::from(seat))?;
        let mut name = Vec::with_capacity(prefix.bytes.len() + digits);
        name.extend_from_slice(&prefix.bytes);
        name.extend_from_slice(format!("{value:0digits$}").as_bytes());
        Some(PlaceBuf { db: prefix.db, name: name.into() })
    }

    /// Whether the name that was packed is this one.
    pub(super) fn is_name(&self, seat: u8, digits: usize, value: u64, place: Place<'_>) -> bool {
        let prefix = self.0.get(usize::from(seat));
        split_number(place.name).is_some_and(|(word, own_digits, own)| {
            (own_digits, own) == (digits, value)
                && prefix.is_some_and(|prefix| prefix.db == place.db && *prefix.bytes == *word)
        })
    }

    /// The database of a packed name.
    pub(super) fn db(&self, seat: u8) -> Option<u32> {
        self.0.get(usize::from(seat)).map(|prefix| prefix.db)
    }

    /// Eight bytes at a time; nobody gains by words that share a seat, they are merely not packed.
    fn seat_of(db: u32, bytes: &[u8]) -> u8 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let (words, rest) = bytes.as_chunks::<8>();
        let mut hash = u64::from(db) ^ (bytes.len() as u64) << 32;
        for word in words {
            hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(29);
        }
        for &byte in rest {
            hash = (hash ^ u64::from(byte)).wrapping_mul(FACTOR).rotate_left(29);
        }
        ((hash.wrapping_mul(FACTOR) >> 32) % PREFIXES as u64) as u8
    }

    /// How many names use each seat.
    pub(super) fn uses(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|prefix| prefix.uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_uuids_come_back_as_they_were() {
        for number in 0..10_000_u128 {
            let bytes = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)).to_be_bytes();
            let text = uuid::Uuid::from_bytes(bytes).hyphenated().to_string();
            assert_eq!(uuid_bytes(text.as_bytes()), Some(bytes), "{text}");
            assert_eq!(uuid_text(&bytes), text.as_bytes());
        }
    }

    #[test]
    fn only_canonical_uuids_are_packed() {
        let good = b"01234567-89ab-cdef-0123-456789abcdef";
        assert!(uuid_bytes(good).is_some());
        // Each byte replaced by each other byte: packed if and only if it comes back the same.
        for at in 0..UUID_TEXT {
            for byte in 0..=255 {
                let mut text = *good;
                text[at] = byte;
                let should = if HYPHENS.contains(&at) {
                    byte == b'-'
                } else {
                    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
                };
                let packed = uuid_bytes(&text);
                assert_eq!(packed.is_some(), should, "{byte:#x} at {at}");
                assert!(packed.is_none_or(|bytes| uuid_text(&bytes) == text));
            }
        }
        assert_eq!(uuid_bytes(&good[1..]), None);
        assert_eq!(uuid_bytes(b"0123456789abcdef0123456789abcdef0123"), None);
    }

    #[test]
    fn numbers_at_the_end_of_names_are_split_off() {
        let split = |name: &'static str| split_number(name.as_bytes()).map(|(w, d, v)| (w.len(), d, v));
        assert_eq!(split("lock:order:000123"), Some((11, 6, 123)));
        assert_eq!(split("7"), Some((0, 1, 7)));
        assert_eq!(split("a0"), Some((1, 1, 0)));
        assert_eq!(split("a"), None);
        assert_eq!(split(""), None);
        assert_eq!(split("12a"), None);
        assert_eq!(split("9999999999999999999999"), Some((4, 18, 999_999_999_999_999_999)));
        for digits in 1..=DIGITS_MAX {
            let largest = 10_u64.pow(digits as u32) - 1;
            assert!(largest >> (8 * bytes_of_digits(digits) - 1) >> 1 == 0, "{digits} digits");
        }
    }

    #[test]
    fn a_word_keeps_its_seat_while_a_name_uses_it() {
        let mut prefixes = Prefixes::default();
        let seat = prefixes.take(3, b"lock:order:").expect("empty");
        assert_eq!(prefixes.take(3, b"lock:order:"), Some(seat));
        let place = prefixes.name(seat, 6, 42).expect("taken");
        assert_eq!((place.db, &*place.name), (3, &b"lock:order:000042"[..]));
        assert!(prefixes.is_name(seat, 6, 42, place.as_place()));
        assert!(!prefixes.is_name(seat, 6, 42, Place { db: 4, ..place.as_place() }));
        assert!(!prefixes.is_name(seat, 5, 42, place.as_place()));
        // Another word of the same seat has to wait until nobody uses the first.
        let others = (0..).map(|n| format!("word-{n}:"));
        let other = others.into_iter().find(|word| Prefixes::seat_of(0, word.as_bytes()) == seat);
        let other = other.expect("there are few seats");
        assert_eq!(prefixes.take(0, other.as_bytes()), None);
        prefixes.give_back(seat);
        assert_eq!(prefixes.take(0, other.as_bytes()), None);
        prefixes.give_back(seat);
        assert_eq!(prefixes.take(0, other.as_bytes()), Some(seat));
        assert_eq!(prefixes.uses().sum::<u32>(), 1);
    }

    #[test]
    fn the_table_does_not_grow_whatever_words_come() {
        let mut prefixes = Prefixes::default();
        let taken = (0..100_000).filter(|n| prefixes.take(0, format!("w{n}:").as_bytes()).is_some()).count();
        assert!((200..=PREFIXES).contains(&taken), "{taken}");
        assert_eq!(prefixes.take(0, &[b'x'; PREFIX_BYTES_MAX + 1]), None);
    }
}
