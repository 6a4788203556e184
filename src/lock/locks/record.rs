//! The layout of a lock in its slot: a head of 31 bytes, then its name and its owner.
//!
//! With a name like `lock:order:123456` and a UUID as the owner, a record has 50 bytes, including the links of its
//! deadline on the wheel.

// Numbers are cut into the fields of a record on purpose; each comment says which part it keeps.
#![allow(clippy::cast_possible_truncation)]

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::name_codec::{self, DIGITS_MAX, NO_PREFIX, Prefixes};
use super::new_hold::NewHold;
use super::slab::{INDEX_BITS, Slab};
use super::timer_wheel::{Links, NONE};
use crate::lock::types::{ClientId, LockKey, LockKeyBuf, Moment, Token};

/// Bytes of a [`Head`].
pub(super) const HEAD: usize = size_of::<Head>();

/// The longest name that is stored in the slot.
const NAME_MAX: usize = 108;

/// Marks a name and an owner that are stored elsewhere.
pub(super) const SPILLED: u8 = 0;

pub(super) const UUID_OWNER: u8 = 0x80;
/// The latest end of a lease, in microseconds: 8.9 years after the clock's beginning.
pub(super) const UNTIL_MAX: u64 = (1 << 48) - 1;

/// The bits of a link word in addition to the link.
const LINK_EXTRA: u32 = !0 << INDEX_BITS;

const FLAGS_SHIFT: u32 = 8;
const TOKEN_SHIFT: u32 = 11;

/// The flags of a lock.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(super) enum Flag {
    /// An owner holds it.
    Held = 1 << FLAGS_SHIFT,
    /// The hold has data that does not fit the record.
    HoldExt = 2 << FLAGS_SHIFT,
}

/// The fixed part of a record. Unless the lock is held, only the links are meaningful.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Head {
    /// From the low end: 8 bits of generation, which is the slab's; 3 of flags; 53 of token.
    word: U64,
    /// When the lease ends, in microseconds: the low 40 bits. The links have the others.
    until_low: U32,
    until_middle: u8,
    since: U32,
    /// The low half of the connection's number; 0 if unknown.
    client: U32,
    next: U32,
    previous: U32,
    /// The seat in [`Prefixes`] of the word with which the name begins.
    pub(super) prefix: u8,
    /// The encoding of name and owner: see [`Tail`].
    pub(super) shape: u8,
}

impl Head {
    pub(super) fn generation(&self) -> u8 {
        self.word.get() as u8
    }

    pub(super) fn has(&self, flag: Flag) -> bool {
        self.word.get() & flag as u64 != 0
    }

    pub(super) fn set(&mut self, flag: Flag, on: bool) {
        let word = self.word.get();
        self.word = U64::new(if on { word | flag as u64 } else { word & !(flag as u64) });
    }

    pub(super) fn token(&self) -> Option<Token> {
        Token::new(self.word.get() >> TOKEN_SHIFT)
    }

    /// Returns the end of the lease, in microseconds.
    #[inline]
    pub(super) fn until_us(&self) -> u64 {
        let low = u64::from(self.until_low.get()) | u64::from(self.until_middle) << 32;
        let high = (self.next.get() & LINK_EXTRA) >> 4 | (self.previous.get() & LINK_EXTRA) >> 8;
        low | u64::from(high >> 20) << 40
    }

    #[inline]
    pub(super) fn set_until_us(&mut self, us: u64) {
        let us = us.min(UNTIL_MAX);
        self.until_low = U32::new(us as u32);
        self.until_middle = (us >> 32) as u8;
        let high = (us >> 40) as u32;
        self.next = U32::new(self.next.get() & !LINK_EXTRA | high >> 4 << INDEX_BITS);
        self.previous = U32::new(self.previous.get() & !LINK_EXTRA | high << INDEX_BITS);
    }

    /// Returns the connection, given the newest one that was ever stored: half of a number distinguishes four billion
    /// connections.
    pub(super) fn client(&self, newest: u64) -> Option<ClientId> {
        let low = u64::from(self.client.get());
        let id = newest & !u64::from(u32::MAX) | low;
        let id = if id > newest { id.saturating_sub(1 << 32) } else { id };
        (low != 0).then_some(ClientId(id))
    }

    pub(super) fn set_client(&mut self, client: Option<ClientId>) {
        self.client = U32::new(client.map_or(0, |client| client.0 as u32));
    }

    /// Returns how long it has been held, in milliseconds.
    pub(super) fn held_ms(&self, now: Moment) -> u64 {
        Since(self.since.get()).age_ms(now)
    }

    pub(super) fn set_token(&mut self, token: Token) {
        let low = self.word.get() & ((1 << TOKEN_SHIFT) - 1);
        self.word = U64::new(token.get() << TOKEN_SHIFT | low);
    }

    /// Sets since when it has been held.
    pub(super) fn set_since(&mut self, since: Moment) {
        self.since = U32::new(Since::at(since).0);
    }

    /// Returns the neighbors on the wheel.
    #[inline]
    pub(super) fn links(&self) -> (u32, u32) {
        (self.previous.get() & !LINK_EXTRA, self.next.get() & !LINK_EXTRA)
    }

    #[inline]
    pub(super) fn set_links(&mut self, previous: u32, next: u32) {
        self.next = U32::new(self.next.get() & LINK_EXTRA | next);
        self.previous = U32::new(self.previous.get() & LINK_EXTRA | previous);
    }

    /// Starts a hold, with these neighbors on the wheel.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        hold: &NewHold<'_>,
        now: Moment,
        until_us: u64,
        (previous, next): (u32, u32),
    ) {
        let generation = u64::from(self.generation());
        self.word = U64::new(hold.token.get() << TOKEN_SHIFT | Flag::Held as u64 | generation);
        self.since = U32::new(Since::at(now).0);
        (self.previous, self.next) = (U32::new(previous), U32::new(next));
        self.set_until_us(until_us);
        self.set_client(hold.client);
    }

    /// Empties the record.
    pub(super) fn clear(&mut self) {
        self.word = U64::new(u64::from(self.generation()));
        self.set_links(NONE, NONE);
    }

    /// Ends a hold. Returns the neighbors that it had on the wheel.
    #[inline]
    pub(super) fn end(&mut self) -> (u32, u32) {
        self.set(Flag::Held, false);
        let links = self.links();
        self.set_links(NONE, NONE);
        links
    }

    /// Must be called at least once in twelve days while the hold lasts. Each renewal does, and a lease is a day at
    /// most.
    pub(super) fn keep_since(&mut self, now: Moment) {
        self.since = U32::new(Since(self.since.get()).kept(now).0);
    }
}

/// A moment in the past in 32 bits: to the millisecond for 12 days, to the second after that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Since(u32);

impl Since {
    const IN_SECONDS: u32 = 1 << 31;

    const fn at(now: Moment) -> Self {
        // Rounded up, while the present is rounded down, so that a duration is never reported as longer than it is.
        Self(now.0.div_ceil(1_000) as u32 & !Self::IN_SECONDS)
    }

    const fn age_ms(self, now: Moment) -> u64 {
        let value = self.0 & !Self::IN_SECONDS;
        if self.0 & Self::IN_SECONDS == 0 {
            let age = ((now.0 / 1_000) as u32).wrapping_sub(value) & !Self::IN_SECONDS;
            // Within its first millisecond, the rounded moment is in the future.
            if age == !Self::IN_SECONDS { 0 } else { age as u64 }
        } else {
            (now.0 / 1_000_000).saturating_sub(value as u64) * 1_000
        }
    }

    const fn kept(self, now: Moment) -> Self {
        let age_ms = self.age_ms(now);
        if self.0 & Self::IN_SECONDS != 0 || age_ms < 1 << 30 {
            return self;
        }
        let then_s = (now.0 / 1_000).saturating_sub(age_ms) / 1_000;
        Self(then_s as u32 & !Self::IN_SECONDS | Self::IN_SECONDS)
    }
}

/// The encoded name and owner that follow the head.
///
/// The name: the bytes of its number, if it ends in one and its beginning has a seat; the shape is then the number of
/// digits. Otherwise the database (4 bytes) and the whole name, and the shape is 19 + the name's length. The owner:
/// the 16 bytes of a UUID, with the high bit of the shape set; otherwise its length less one, and the whole owner.
pub(super) struct Tail<'a> {
    lock_key: LockKey<'a>,
    prefix: u8,
    digits: usize,
    number: u64,
    owner: &'a [u8],
    /// The owner in 16 bytes, if it is a UUID.
    short_owner: Option<[u8; 16]>,
}

impl<'a> Tail<'a> {
    /// Packs name and owner, and takes a seat for the beginning of the name.
    #[inline(always)]
    pub(super) fn new(prefixes: &mut Prefixes, lock_key: LockKey<'a>, owner: &'a [u8]) -> Self {
        let number = name_codec::split_number(lock_key.name)
            .and_then(|(word, digits, number)| Some((prefixes.take(lock_key.db, word)?, digits, number)));
        let (prefix, digits, number) = number.unwrap_or_else(|| (prefixes.no_seat(lock_key.db), 0, 0));
        Self { lock_key, prefix, digits, number, owner, short_owner: name_codec::uuid_bytes(owner) }
    }

    const fn name_len(&self) -> usize {
        let plain = 4 + self.lock_key.name.len();
        if self.prefix == NO_PREFIX { plain } else { name_codec::bytes_of_digits(self.digits) }
    }

    const fn owner_len(&self) -> usize {
        if self.short_owner.is_some() { 16 } else { 1 + self.owner.len() }
    }

    /// Returns the number of bytes that it takes. `None` if the name is too long for a slot.
    #[inline(always)]
    pub(super) const fn len(&self) -> Option<usize> {
        if self.prefix == NO_PREFIX && self.lock_key.name.len() > NAME_MAX {
            return None;
        }
        Some(self.name_len() + self.owner_len())
    }

    /// Writes it into a slot. Returns false if there is not enough room; then nothing was written.
    #[inline(always)]
    pub(super) fn write(&self, head: &mut Head, tail: &mut [u8]) -> bool {
        let Some(len) = self.len() else {
            return false;
        };
        if len > tail.len() {
            return false;
        }
        // Writes the number in one piece if there is room, and then the owner over its surplus bytes.
        match tail.first_chunk_mut() {
            Some(word) => *word = self.number.to_le_bytes(),
            None => tail.iter_mut().zip(self.number.to_le_bytes()).for_each(|(byte, part)| *byte = part),
        }
        let (name, owner) = tail[..len].split_at_mut(self.name_len());
        let mut shape = self.digits;
        if self.prefix == NO_PREFIX {
            name[..4].copy_from_slice(&self.lock_key.db.to_le_bytes());
            name[4..].copy_from_slice(self.lock_key.name);
            shape = DIGITS_MAX + 1 + self.lock_key.name.len();
        }
        match self.short_owner {
            Some(short) => {
                owner.copy_from_slice(&short);
                shape |= usize::from(UUID_OWNER);
            }
            None => {
                // An owner has at least one byte. A lock without a hold has none.
                owner[0] = self.owner.len().saturating_sub(1) as u8;
                owner[1..].copy_from_slice(self.owner);
            }
        }
        (head.prefix, head.shape) = (self.prefix, shape as u8);
        true
    }

    /// Returns the seat of the prefix that it took.
    pub(super) const fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// A name as encoded.
pub(super) enum Name<'a> {
    /// The seat of the prefix, the number of digits, and their value.
    Packed(u8, usize, u64),
    /// The name itself.
    Plain(LockKey<'a>),
}

/// An owner as encoded.
#[derive(Clone, Copy)]
pub(super) enum Owner<'a> {
    /// The bytes of a UUID.
    Uuid(&'a [u8; 16]),
    /// The owner itself.
    Plain(&'a [u8]),
}

/// Returns the number of bytes of the name in the tail of a record that is not spilled.
#[inline]
pub(super) fn name_len(shape: u8) -> usize {
    let shape = usize::from(shape & !UUID_OWNER);
    if shape <= DIGITS_MAX { name_codec::bytes_of_digits(shape) } else { 4 + shape - DIGITS_MAX - 1 }
}

/// Reads the name of a record that is not spilled.
pub(super) fn name<'a>(head: &Head, tail: &'a [u8]) -> Option<Name<'a>> {
    let shape = usize::from(head.shape & !UUID_OWNER);
    let name = tail.get(..name_len(head.shape))?;
    if shape <= DIGITS_MAX {
        let number = name.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        return Some(Name::Packed(head.prefix, shape, number));
    }
    let (db, name) = name.split_first_chunk()?;
    Some(Name::Plain(LockKey { db: u32::from_le_bytes(*db), name }))
}

/// Reads the owner of a record that is not spilled.
#[inline(always)]
pub(super) fn owner<'a>(head: &Head, tail: &'a [u8]) -> Option<Owner<'a>> {
    let rest = tail.get(name_len(head.shape)..)?;
    if head.shape & UUID_OWNER != 0 {
        return Some(Owner::Uuid(rest.first_chunk()?));
    }
    let (&len, rest) = rest.split_first()?;
    Some(Owner::Plain(rest.get(..=usize::from(len)).unwrap_or(rest)))
}

/// The records in their slots.
#[derive(Default)]
pub(super) struct Records(pub(super) Slab);

impl Records {
    #[inline]
    pub(super) fn head(&self, index: u32) -> Option<(&Head, &[u8])> {
        Head::ref_from_prefix(self.0.get(index)?).ok()
    }

    #[inline]
    pub(super) fn head_mut(&mut self, index: u32) -> Option<&mut Head> {
        Some(self.both_mut(index)?.0)
    }

    #[inline]
    pub(super) fn both_mut(&mut self, index: u32) -> Option<(&mut Head, &mut [u8])> {
        Head::mut_from_prefix(self.0.get_mut(index)?).ok()
    }
}

impl Links for Records {
    #[inline]
    fn links(&self, index: u32) -> (u32, u32) {
        self.head(index).map_or((NONE, NONE), |(head, _)| head.links())
    }
    #[inline]
    fn set_links(&mut self, index: u32, previous: u32, next: u32) {
        if let Some(head) = self.head_mut(index) {
            head.set_links(previous, next);
        }
    }
    #[inline]
    fn set_next(&mut self, index: u32, next: u32) {
        if let Some(head) = self.head_mut(index) {
            head.next = U32::new(head.next.get() & LINK_EXTRA | next);
        }
    }
    #[inline]
    fn set_previous(&mut self, index: u32, previous: u32) {
        if let Some(head) = self.head_mut(index) {
            head.previous = U32::new(head.previous.get() & LINK_EXTRA | previous);
        }
    }
    fn tick(&self, index: u32) -> u64 {
        self.head(index).map_or(0, |(head, _)| head.until_us().div_ceil(1_000))
    }
}

impl Name<'_> {
    /// Returns the lock key that it names.
    pub(super) fn lock_key(&self, prefixes: &Prefixes) -> Option<LockKeyBuf> {
        match *self {
            Self::Packed(seat, digits, number) => prefixes.name(seat, digits, number),
            Self::Plain(lock_key) => Some(lock_key.to_owned()),
        }
    }

    pub(super) fn is(&self, prefixes: &Prefixes, lock_key: LockKey<'_>) -> bool {
        match *self {
            Self::Packed(seat, digits, number) => prefixes.is_name(seat, digits, number, lock_key),
            Self::Plain(own) => own == lock_key,
        }
    }

    pub(super) fn db(&self, prefixes: &Prefixes) -> Option<u32> {
        match *self {
            Self::Packed(seat, ..) => prefixes.db(seat),
            Self::Plain(lock_key) => Some(lock_key.db),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::INDEX_END;
    use super::*;

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn a_usual_record_is_50_bytes() {
        let mut prefixes = Prefixes::default();
        let lock_key = LockKey { db: 0, name: b"lock:order:123456" };
        let tail = Tail::new(&mut prefixes, lock_key, b"01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(HEAD + tail.len().expect("short"), 50);
    }

    #[test]
    fn the_age_of_a_hold_is_right_for_years() {
        for start_ms in [0, 1, (1 << 31) - 1, 1 << 31, 1 << 40] {
            let mut since = Since::at(Moment(start_ms * 1_000));
            for day in 1..=800_u64 {
                for age in [1, DAY_MS / 2, DAY_MS].map(|part| (day - 1) * DAY_MS + part) {
                    let shown = since.age_ms(Moment((start_ms + age) * 1_000));
                    let wrong = shown.abs_diff(age);
                    assert!(wrong == 0 || (day > 12 && wrong <= 1_000), "{age} is shown as {shown}");
                }
                since = since.kept(Moment((start_ms + day * DAY_MS) * 1_000));
            }
        }
    }

    #[test]
    fn the_age_of_a_hold_that_is_renewed_for_months_is_kept() {
        let mut head = Head::new_zeroed_for_tests();
        head.set_since(Moment(5_000_000));
        for day in 1..=90 {
            let now = Moment(5_000_000 + day * DAY_MS * 1_000);
            head.keep_since(now);
            assert!(head.held_ms(now).abs_diff(day * DAY_MS) <= 1_000, "{day}");
        }
    }

    #[test]
    fn an_end_and_its_links_do_not_touch_each_other() {
        let mut head = Head::new_zeroed_for_tests();
        for us in [0, 1, 0xff_ffff_ffff, 0x1234_5678_9abc, UNTIL_MAX] {
            for link in [0, 5, INDEX_END, NONE] {
                head.set_until_us(us);
                head.next = U32::new(head.next.get() & LINK_EXTRA | link);
                head.previous = U32::new(head.previous.get() & LINK_EXTRA | (NONE - link));
                assert_eq!(head.until_us(), us);
                head.set_until_us(us ^ UNTIL_MAX);
                assert_eq!(head.until_us(), us ^ UNTIL_MAX);
                assert_eq!(head.next.get() & !LINK_EXTRA, link);
                assert_eq!(head.previous.get() & !LINK_EXTRA, NONE - link);
            }
        }
    }

    #[test]
    fn connections_are_distinguished_across_the_half_number() {
        let mut head = Head::new_zeroed_for_tests();
        for (stored, newest) in
            [(1, 1), (7, 1 << 31), ((1 << 32) - 1, (1 << 32) + 5), ((5 << 32) + 9, (6 << 32) + 8)]
        {
            head.set_client(Some(ClientId(stored)));
            assert_eq!(head.client(newest), Some(ClientId(stored)), "{stored} of {newest}");
        }
        head.set_client(None);
        assert_eq!(head.client(9), None);
    }

    impl Head {
        fn new_zeroed_for_tests() -> Self {
            zerocopy::FromZeros::new_zeroed()
        }
    }
}
