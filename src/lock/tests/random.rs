//! Numbers that look random and are the same in every run.

/// A linear congruential generator (Knuth's MMIX constants); its high half is good enough for tests. Or given bytes,
/// as long as there are any.
pub(crate) struct Random {
    state: u64,
    given: Option<std::vec::IntoIter<u8>>,
}

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), given: None }
    }

    /// Takes its choices from these bytes; 0 when they are used up.
    pub(crate) fn given(bytes: &[u8]) -> Self {
        Self { state: 0, given: Some(Vec::from(bytes).into_iter()) }
    }

    /// Returns true if no bytes are left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.given.as_ref().is_some_and(|given| given.as_slice().is_empty())
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if let Some(given) = &mut self.given {
            let bytes = if bound > 1 << 16 { 4 } else { 1 + usize::from(bound > 1 << 8) };
            return given.take(bytes).fold(0, |sum, byte| sum << 8 | u64::from(byte)) % bound;
        }
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 32) % bound
    }

    /// Returns true with this chance in percent.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns one of these.
    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
