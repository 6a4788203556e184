//! Packs names and owners into few bytes.
//!
//! Most owners are UUIDs: 36 bytes of text for 16 of content. Most names are a word before a number,
//! `lock:order:123456`, and a server has few of these words. Each word is stored once, in a [`Prefixes`], and the
//! number takes as many bytes as its digits need. Anything else is stored as it is. Unpacking always returns the same
//! bytes.

// Bytes are cut out of words on purpose.
#![allow(clippy::cast_possible_truncation)]

use crate::lock::types::{LockKey, LockKeyBuf};

/// Bytes of a UUID's text.
pub(super) const UUID_TEXT: usize = 36;

/// The positions of the hyphens in the text of a UUID.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// Returns a word with this byte in each of its bytes.
const fn each(byte: u8) -> u64 {
    0x0101_0101_0101_0101 * byte as u64
}

/// Returns a UUID's text without its hyphens: eight digits to a word.
#[inline(always)]
fn words(text: &[u8; UUID_TEXT]) -> [u64; 4] {
    let four = |at: usize| text[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four));
    let eight = |first, second| u64::from(four(first)) | u64::from(four(second)) << 32;
    [eight(0, 4), eight(9, 14), eight(19, 24), eight(28, 32)]
}

/// Returns true if the text of a UUID has its hyphens.
#[inline(always)]
const fn has_hyphens(text: &[u8; UUID_TEXT]) -> bool {
    let [a, b, c, d] = HYPHENS;
    u32::from_le_bytes([text[a], text[b], text[c], text[d]]) == u32::from_le_bytes([b'-'; 4])
}

/// The distance from the value of a digit to its letter, in addition to '0': 'a' is '0' + 10 + 39.
const TO_LETTER: u64 = 39;

/// Returns the values of eight digits, a byte each. The second word is not 0 if a byte is no digit.
#[inline(always)]
const fn values(word: u64) -> (u64, u64) {
    // Bit 6 distinguishes a letter from a digit.
    let letter = (word >> 6) & each(1);
    let values = word.wrapping_sub(letter * TO_LETTER).wrapping_sub(each(b'0'));
    // A letter means at least 10, a digit less. Only bytes that are refused produce a sum that corrupts its
    // neighbor's.
    let is_wrong = (values.wrapping_add(each(6)) ^ (letter << 4)) & each(0x10) | values & each(0xf0);
    (values, is_wrong)
}

/// Returns the text of eight digits with these values.
#[inline(always)]
const fn written(values: u64) -> u64 {
    let letter = ((values + each(6)) >> 4) & each(1);
    values + each(b'0') + letter * TO_LETTER
}

/// Packs the values of two words of digits into one word.
#[inline(always)]
const fn half(low: u64, high: u64) -> Option<u64> {
    let ((low, is_low_wrong), (high, is_high_wrong)) = (values(low), values(high));
    if is_low_wrong | is_high_wrong != 0 {
        return None;
    }
    Some(low | high << 4)
}

/// Returns the two words of digits from which `half` makes this value.
#[inline(always)]
const fn halves(half: u64) -> (u64, u64) {
    (half & each(0x0f), half >> 4 & each(0x0f))
}

/// Returns the 16 bytes of the canonical text of a UUID: lower case, with hyphens. `None` if the text is anything
/// else.
///
/// They are not in the order of the UUID's own bytes. Each byte has a digit of one word of the text, and in its high
/// half the digit at the same place of the next word. So no digit moves past its neighbor, and eight are processed at
/// once: every acquire takes this path.
#[inline(always)]
pub(super) fn uuid_bytes(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; UUID_TEXT] = text.try_into().ok()?;
    if !has_hyphens(text) {
        return None;
    }
    let [a, b, c, d] = words(text);
    let (first, second) = (half(a, b)?, half(c, d)?);
    Some((u128::from(first) | u128::from(second) << 64).to_le_bytes())
}

/// Returns the two words that 16 bytes encode.
#[inline(always)]
fn both_halves(bytes: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*bytes);
    (both as u64, (both >> 64) as u64)
}

/// Returns true if this is the canonical text of that UUID. Takes half the work of reading it: nothing needs to be
/// checked.
#[inline(always)]
pub(super) fn is_uuid_text(bytes: &[u8; 16], text: &[u8]) -> bool {
    let Ok(text) = <&[u8; UUID_TEXT]>::try_from(text) else {
        return false;
    };
    let (first, second) = both_halves(bytes);
    let ((a, b), (c, d), found) = (halves(first), halves(second), words(text));
    // Compares word by word: the compiler would turn all of them into vectors, which take longer to fill.
    written(a) == found[0]
        && written(b) == found[1]
        && written(c) == found[2]
        && written(d) == found[3]
        && has_hyphens(text)
}

/// Returns the canonical text of a UUID.
pub(super) fn uuid_text(bytes: &[u8; 16]) -> [u8; UUID_TEXT] {
    let (first, second) = both_halves(bytes);
    let ((a, b), (c, d)) = (halves(first), halves(second));
    let [a, b, c, d] = [a, b, c, d].map(|values| written(values).to_le_bytes());
    let mut text = [b'-'; UUID_TEXT];
    text[..8].copy_from_slice(&a);
    text[9..13].copy_from_slice(&b[..4]);
    text[14..18].copy_from_slice(&b[4..]);
    text[19..23].copy_from_slice(&c[..4]);
    text[24..28].copy_from_slice(&c[4..]);
    text[28..].copy_from_slice(&d);
    text
}

/// The most digits of a number at the end of a name that are packed.
pub(super) const DIGITS_MAX: usize = 18;

/// Returns the number of bytes that a number of `digits` digits takes.
pub(super) const fn bytes_of_digits(digits: usize) -> usize {
    const BYTES: [u8; DIGITS_MAX + 1] = [0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8];
    BYTES[digits] as usize
}

/// Splits a name that ends in a number: returns the word before it, the number of its digits, and its value.
#[inline(always)]
pub(super) fn split_number(name: &[u8]) -> Option<(&[u8], usize, u64)> {
    if let Some(last) = name.last_chunk() {
        let word = u64::from_le_bytes(*last);
        // The high bit of each byte that is no digit. Sums of seven bits do not reach the next byte.
        let low = word & each(0x7f);
        let is_other = ((low + each(0x80 - b':')) | !(low + each(0x80 - b'0')) | word) & each(0x80);
        if is_other != 0 {
            let digits = is_other.leading_zeros() as usize / 8;
            if digits == 0 {
                return None;
            }
            return Some((name.get(..name.len() - digits)?, digits, eight_digits(word, digits)));
        }
    }
    split_long_number(name)
}

/// Parses the last `digits` bytes of a word as a number, 1 to 7 of them.
#[inline(always)]
fn eight_digits(word: u64, digits: usize) -> u64 {
    // Zeros replace the others in front.
    let shift = 64 - 8 * digits as u32;
    let digits = (word >> shift << shift) & each(0x0f);
    // Combines neighbors: into tens, hundreds, ten thousands.
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    (fours * 10_000 + (fours >> 32)) & 0xffff_ffff
}

#[inline(never)]
fn split_long_number(name: &[u8]) -> Option<(&[u8], usize, u64)> {
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

/// Returns true if two words are the same. Words of 8 to 16 bytes, the common case, take two comparisons of eight
/// bytes instead of a call.
#[inline(always)]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let ends = |word: &[u8]| Some((*word.first_chunk::<8>()?, *word.last_chunk::<8>()?));
    match (ends(one), ends(other)) {
        (Some(own), Some(others)) if one.len() <= 16 => own == others,
        _ => *one == *other,
    }
}

/// The longest word that is stored in [`Prefixes`].
const PREFIX_BYTES_MAX: usize = 64;

/// The number of words that are stored. One number of a byte is left to mean "none".
const PREFIXES: usize = 255;

/// Marks a name that is not packed.
pub(super) const NO_PREFIX: u8 = PREFIXES as u8;

/// A database, and a word with which names in it begin.
#[derive(Default)]
struct Prefix {
    db: u32,
    bytes: Box<[u8]>,
    /// The number of names that use it. At 0, another word may replace it.
    uses: u32,
}

/// The words with which names begin, each stored once: a table of a fixed number of seats, in which a word has one
/// possible seat. A word whose seat is taken is not packed. So the table never grows, whatever names clients choose.
pub(super) struct Prefixes {
    seats: Box<[Prefix; PREFIXES]>,
    /// The databases of names that are not packed.
    others: Databases,
}

/// A set of databases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Databases {
    #[default]
    None,
    One(u32),
    Several,
}

impl Default for Prefixes {
    fn default() -> Self {
        let seats = Box::new(std::array::from_fn(|_| Prefix::default()));
        Self { seats, others: Databases::None }
    }
}

impl Prefixes {
    /// Returns the seat of this word, with one more use. `None` if another word has it.
    #[inline(always)]
    pub(super) fn take(&mut self, db: u32, bytes: &[u8]) -> Option<u8> {
        if bytes.len() > PREFIX_BYTES_MAX {
            return None;
        }
        let seat = Self::seat_of(db, bytes);
        let prefix = &mut self.seats[usize::from(seat)];
        if prefix.uses == 0 {
            if !is_same(&prefix.bytes, bytes) {
                prefix.bytes = bytes.into();
            }
            prefix.db = db;
        } else if prefix.db != db || !is_same(&prefix.bytes, bytes) || prefix.uses == u32::MAX {
            return None;
        }
        prefix.uses += 1;
        Some(seat)
    }

    /// Counts one use less.
    #[inline(always)]
    pub(super) fn give_back(&mut self, seat: u8) {
        if let Some(prefix) = self.seats.get_mut(usize::from(seat)) {
            prefix.uses -= 1;
        }
    }

    /// Notes that a name in this database is not packed. Returns the number for "none".
    #[inline]
    pub(super) fn no_seat(&mut self, db: u32) -> u8 {
        self.others = match self.others {
            Databases::None => Databases::One(db),
            Databases::One(one) if one == db => Databases::One(one),
            _ => Databases::Several,
        };
        NO_PREFIX
    }

    /// Returns true if any name is in one of these databases. Also true if a name that was not packed may have been
    /// there.
    pub(super) fn may_be_in(&self, is_concerned: impl Fn(u32) -> bool) -> bool {
        let may_others_be = match self.others {
            Databases::None => false,
            Databases::One(db) => is_concerned(db),
            Databases::Several => true,
        };
        may_others_be || self.seats.iter().any(|prefix| prefix.uses > 0 && is_concerned(prefix.db))
    }

    /// Returns the name that was packed.
    pub(super) fn name(&self, seat: u8, digits: usize, value: u64) -> Option<LockKeyBuf> {
        let prefix = self.seats.get(usize::from(seat))?;
        let mut name = Vec::with_capacity(prefix.bytes.len() + digits);
        name.extend_from_slice(&prefix.bytes);
        name.extend_from_slice(format!("{value:0digits$}").as_bytes());
        Some(LockKeyBuf { db: prefix.db, name: name.into() })
    }

    /// Returns true if the packed name is this one.
    pub(super) fn is_name(&self, seat: u8, digits: usize, value: u64, lock_key: LockKey<'_>) -> bool {
        let prefix = self.seats.get(usize::from(seat));
        split_number(lock_key.name).is_some_and(|(word, own_digits, own)| {
            (own_digits, own) == (digits, value)
                && prefix.is_some_and(|prefix| prefix.db == lock_key.db && *prefix.bytes == *word)
        })
    }

    /// Returns the database of a packed name.
    pub(super) fn db(&self, seat: u8) -> Option<u32> {
        self.seats.get(usize::from(seat)).map(|prefix| prefix.db)
    }

    /// Hashes the length and the first and last eight bytes, which words in use at the same time seldom share. An
    /// attacker gains nothing by words that share a seat: they are merely not packed.
    #[inline(always)]
    fn seat_of(db: u32, bytes: &[u8]) -> u8 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let (first, last) = match (bytes.first_chunk(), bytes.last_chunk()) {
            (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
            _ => (bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)), 0),
        };
        let end = last.rotate_left(17) ^ u64::from(db) ^ (bytes.len() as u64) << 32;
        let hash = (first.wrapping_mul(FACTOR) ^ end).wrapping_mul(FACTOR);
        ((hash >> 32) % PREFIXES as u64) as u8
    }

    /// Returns the number of names that use each seat.
    pub(super) fn uses(&self) -> impl Iterator<Item = u32> {
        self.seats.iter().map(|prefix| prefix.uses)
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
            let packed = uuid_bytes(text.as_bytes()).expect("canonical");
            assert_eq!(uuid_text(&packed), text.as_bytes());
            assert!(is_uuid_text(&packed, text.as_bytes()));
            let mut other = packed;
            other[number as usize % 16] ^= 1 << (number % 8);
            assert!(!is_uuid_text(&other, text.as_bytes()));
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
                let original = uuid_bytes(good).expect("good");
                assert_eq!(is_uuid_text(&original, &text), text == *good);
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
        // Every length, every value that is all of one digit, every byte before it.
        for (digits, digit, before) in (1..=20)
            .flat_map(|n| (b'0'..=b'9').map(move |d| (n, d)))
            .flat_map(|(n, d)| (0..=255_u8).map(move |before| (n, d, before)))
        {
            let mut name = b"some-word".to_vec();
            name.push(before);
            name.extend(std::iter::repeat_n(digit, digits));
            assert_eq!(split_number(&name), split_long_number(&name), "{name:?}");
            let short = &name[9..];
            assert_eq!(split_number(short), split_long_number(short), "{short:?}");
        }
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
        let lock_key = prefixes.name(seat, 6, 42).expect("taken");
        assert_eq!((lock_key.db, &*lock_key.name), (3, &b"lock:order:000042"[..]));
        assert!(prefixes.is_name(seat, 6, 42, lock_key.as_key()));
        assert!(!prefixes.is_name(seat, 6, 42, LockKey { db: 4, ..lock_key.as_key() }));
        assert!(!prefixes.is_name(seat, 5, 42, lock_key.as_key()));
        // Another word of the same seat is not packed while names use the first.
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

    #[test]
    fn words_that_differ_in_the_middle_only_do_not_share_a_seat() {
        for length in 1..20 {
            let word =
                |middle: u8| [b"tenants:".to_vec(), vec![middle; length], b":orders:".to_vec()].concat();
            let (first, second) = (word(b'1'), word(b'2'));
            let mut prefixes = Prefixes::default();
            let seat = prefixes.take(0, &first).expect("all are empty");
            assert_eq!(prefixes.take(0, &second), None, "their names would be those of one lock");
            assert_eq!(prefixes.take(0, &first), Some(seat));
            prefixes.give_back(seat);
            prefixes.give_back(seat);
            let seat = prefixes.take(0, &second).expect("it is free");
            assert_eq!(
                prefixes.name(seat, 1, 7).map(|lock_key| lock_key.name),
                Some([second, b"7".to_vec()].concat().into())
            );
        }
    }
}
