//! Names, owners and choices that look random.

use crate::lock::types::{LEASE_MS_MAX, LockKeyBuf};

/// Numbers that look random and are the same in every run (Knuth's MMIX constants).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % bound
    }

    pub(super) fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }

    pub(super) fn digits(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| b'0' + self.below(10) as u8).collect()
    }

    /// Few enough words that they meet, enough that they do not all find a seat.
    pub(super) fn word(&mut self) -> Vec<u8> {
        match self.below(8) {
            0 => Vec::new(),
            1 => vec![0xff; self.below(3) as usize],
            2 => vec![b'w'; 62 + self.below(5) as usize],
            3 => b"caf\xc3\xa9".to_vec(),
            4 => b"9".repeat(self.below(4) as usize),
            _ => format!("word-{}:", self.below(600)).into_bytes(),
        }
    }

    pub(super) fn name(&mut self) -> Vec<u8> {
        let mut name = self.word();
        match self.below(10) {
            0 => name.extend(self.bytes(3)),
            1 => name.extend(b"0".repeat(self.below(22) as usize)),
            2 => name.extend(b"9".repeat(self.below(22) as usize)),
            3 => name.resize(100 + self.below(16) as usize, b'x'),
            4 => {
                let len = if self.below(50) == 0 { 8_000 + self.below(1_000) } else { 300 };
                name = self.bytes(len);
            }
            _ => {
                let len = self.below(21);
                name.extend(self.digits(len));
            }
        }
        name
    }

    pub(super) fn uuid(&mut self) -> Vec<u8> {
        uuid::Uuid::from_bytes(std::array::from_fn(|_| self.below(256) as u8)).to_string().into_bytes()
    }

    pub(super) fn owner(&mut self) -> Vec<u8> {
        match self.below(8) {
            0 => self.uuid().to_ascii_uppercase(),
            1 => {
                let mut owner = self.uuid();
                owner[self.below(36) as usize] = self.below(256) as u8;
                owner
            }
            2 => {
                let len = 1 + self.below(256);
                self.bytes(len)
            }
            3 => vec![0xff; 255 + self.below(2) as usize],
            4 => vec![self.below(256) as u8],
            _ => self.uuid(),
        }
    }

    pub(super) fn lock_key(&mut self) -> LockKeyBuf {
        let databases = if self.below(3) == 0 { 5_000 } else { 16 };
        LockKeyBuf { db: self.below(databases) as u32, name: self.name().into() }
    }

    pub(super) fn lease_ms(&mut self) -> u64 {
        match self.below(12) {
            0..=2 => self.below(4),
            3..=5 => self.below(LEASE_MS_MAX + 1),
            // No lease lasts until then, but the wheel has levels for it.
            6 => 1 << self.below(36),
            _ => 1 << self.below(22),
        }
    }
}
