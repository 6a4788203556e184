//! The bounds that the tests of the core and of the engine lower, each with its shipped and its smallest value.
//!
//! Models and random lives are small, and get to a bound only if it is small as well. All of these are constants, and
//! so a server that ships pays nothing for them.

/// One value for each of these bounds. The constant that uses it says what it is for.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// Bytes of the longest block of a payload.
    pub(crate) block_bytes_max: usize,
    /// Entries of a small hash table before there is one more.
    pub(crate) hash_mean_max: usize,
    /// Places of the smallest queue that counts reservations.
    pub(crate) rank_slots_min: usize,
    /// Bytes of the longest owner that is kept without an allocation of its own.
    pub(crate) owner_inline: usize,
    /// Holders up to which a search for deadlocks first asks whether all of them can go on.
    pub(crate) holders_looked_at: usize,
    /// Sets of locks that are set aside before a swap of databases looks at each lock.
    pub(crate) epochs_with_values_max: u32,
    /// Reservations that have lapsed and are given up in one step of the pump.
    pub(crate) lapsed_a_step: usize,
    /// Holds whose leases are over and that INFO passes over.
    pub(crate) passed_max: usize,
    /// Tasks, notices, effects or clients for which room is kept after a storm.
    pub(crate) kept: usize,
    /// Notes of requests that have left, and that one run of the pump looks at.
    pub(crate) notes_looked_at: usize,
    /// Bytes of the first pages of a size.
    pub(crate) small_page_bytes: usize,
    /// Pages of a size that are small.
    pub(crate) small_pages: u32,
    /// Lists of holders that are kept for the next lock with several holders.
    pub(crate) spare_lists_max: usize,
    /// Keys that are waited for and that one run of the pump looks at.
    pub(crate) keys_looked_at: usize,
    /// Holds that are checked for a forgotten connection between two looks at the time.
    pub(crate) sorted_at_once: usize,
    /// Turns without a grant that end the listening to turns.
    pub(crate) quiet_turns: u32,
    /// Clients that are answered in one turn of the event loop.
    pub(crate) replies_per_turn: usize,
    /// Events that are published between two looks at the time.
    pub(crate) published_at_once: usize,
    /// Rounds in which INFO forgets locks that the server has freed elsewhere.
    pub(crate) burial_rounds: usize,
    /// Steps and grants between two looks at the time.
    pub(crate) steps_between_looks: usize,
    /// Waiters that are sent away in one turn.
    pub(crate) sent_away_at_once: usize,
    /// Freed values that are forgotten between two looks at the time.
    pub(crate) buried_at_once: usize,
}

/// As a module ships them.
const SHIPPED: Tuning = Tuning {
    block_bytes_max: 16 * 1024,
    hash_mean_max: 440,
    rank_slots_min: 64,
    owner_inline: 40,
    holders_looked_at: 8,
    epochs_with_values_max: 4_000_000,
    lapsed_a_step: 16,
    passed_max: 1_000,
    kept: 64,
    notes_looked_at: 4096,
    small_page_bytes: 16 * 1024,
    small_pages: 8,
    spare_lists_max: 16,
    keys_looked_at: 256,
    sorted_at_once: 256,
    quiet_turns: 16,
    replies_per_turn: 128,
    published_at_once: 64,
    burial_rounds: 16,
    steps_between_looks: 64,
    sent_away_at_once: 128,
    buried_at_once: 64,
};

/// As small as they can be.
const SMALLEST: Tuning = Tuning {
    block_bytes_max: 320,
    hash_mean_max: 4,
    rank_slots_min: 3,
    owner_inline: 2,
    holders_looked_at: 2,
    epochs_with_values_max: 4,
    lapsed_a_step: 2,
    passed_max: 2,
    kept: 4,
    notes_looked_at: 8,
    small_page_bytes: 2 * 1024,
    small_pages: 2,
    spare_lists_max: 2,
    keys_looked_at: 2,
    sorted_at_once: 2,
    quiet_turns: 3,
    replies_per_turn: 3,
    published_at_once: 2,
    burial_rounds: 2,
    steps_between_looks: 3,
    sent_away_at_once: 2,
    buried_at_once: 2,
};

/// The ones that apply.
pub(crate) const TUNING: Tuning = if cfg!(test) { SMALLEST } else { SHIPPED };
