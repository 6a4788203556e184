//! The clock of tokens (G4).
//!
//! A hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014) reduced to one number: it follows the
//! wall clock in microseconds and never goes back. It has two hands:
//!
//! * `last`: the newest token that this server knows of. Never lowered, by anything.
//! * `replicated`: the newest token that readers of the replication stream and the append-only file can compute for
//!   themselves: the last one of the stream, counted on from there.
//!
//! While the two agree, a grant can be replicated as the client's own request: the reader mints `replicated + 1`,
//! which is the same token. They may differ after one of these: the clock jumped to wall time, a RESTORE brought a
//! higher token, a new append-only file was begun. They may also differ where the stream that this server applied
//! lags the tokens that it had seen, or where a grant failed after its token was minted. Then the record of the next
//! grant names its token, and the two agree again. So the decision is local, and a reader never guesses.

use super::types::{TOKEN_MAX, Token};

/// The distance by which the wall clock may lead the tokens before the clock jumps to it, in microseconds.
///
/// A jump costs a longer record. Ten milliseconds keep the tokens of an idle server equal to wall time and make jumps
/// rare on a busy one. Lagging is harmless: only a lead could outlive a failover.
pub const JUMP_US: u64 = 10_000;

/// The latest wall clock that is trusted, in the year 2219. It leaves 36 years of tokens. A later clock is wrong, and
/// a token from it could leave none for others.
const WALL_US_MAX: u64 = TOKEN_MAX - (1 << 50);

/// The way in which a minted token reaches replicas and files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Travel {
    /// The reader of the stream derives the same token by counting.
    Implicit,
    /// The record must name the token.
    Explicit,
}

/// The clock of tokens. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct TokenClock {
    last: u64,
    replicated: u64,
    /// True if some reader starts from nothing (a new append-only file): the next grant must name its token.
    must_be_explicit: bool,
    /// True if the clock never lags behind wall time.
    is_close: bool,
}

impl TokenClock {
    /// Never lags the wall clock from now on. If locks move between servers, this server must never issue a token
    /// that another one has issued. It may not know of that token, if the lock was already free when its slot moved.
    pub const fn follow_closely(&mut self) {
        self.is_close = true;
    }

    /// Returns the newest known token, 0 if there was none.
    #[must_use]
    pub const fn last_token(&self) -> u64 {
        self.last
    }

    /// Returns the token from which readers of the stream count.
    #[must_use]
    pub const fn replicated_token(&self) -> u64 {
        self.replicated
    }

    /// Returns the microseconds by which tokens lead the wall clock.
    #[must_use]
    pub const fn lead_us(&self, wall_us: u64) -> u64 {
        self.last.saturating_sub(wall_us)
    }

    /// Returns the highest token that is accepted from outside (RESTORE, RAISE): this far ahead of the wall clock, or
    /// known already.
    #[must_use]
    pub const fn highest_from_outside(&self, wall_us: u64, lead_us_max: u64) -> u64 {
        let believed = if wall_us < WALL_US_MAX { wall_us } else { WALL_US_MAX };
        let ahead = believed.saturating_add(lead_us_max);
        let highest = if ahead > self.last { ahead } else { self.last };
        if highest < TOKEN_MAX { highest } else { TOKEN_MAX }
    }

    /// Mints the next token. `None` if none is left below 2^53, after the year 2255.
    pub fn mint(&mut self, wall_us: u64) -> Option<(Token, Travel)> {
        let lag_us_max = if self.is_close { 1 } else { JUMP_US };
        let jump = wall_us >= self.last.saturating_add(lag_us_max) && wall_us <= WALL_US_MAX;
        let token = Token::new(if jump { wall_us } else { self.last + 1 })?;
        let agree = !jump && self.replicated == self.last;
        Some((token, self.travel(token, agree)))
    }

    /// Counts a token as a reader of the stream: that of a grant that was replicated as the client's request.
    pub fn count(&mut self) -> Option<(Token, Travel)> {
        let token = Token::new(self.replicated + 1)?;
        Some((token, self.travel(token, true)))
    }

    fn travel(&mut self, token: Token, agree: bool) -> Travel {
        let travel = if agree && !self.must_be_explicit { Travel::Implicit } else { Travel::Explicit };
        self.hear(token);
        travel
    }

    /// Takes a token that the stream names. A token older than the last one belongs to a hold that continues in
    /// another way: readers do not count from it.
    pub fn hear(&mut self, token: Token) {
        if token.get() > self.replicated {
            self.replicated = token.get();
            self.must_be_explicit = false;
        }
        self.last = self.last.max(token.get());
    }

    /// Takes a token that readers of the stream do not count from (RESTORE). Never lowers `last`.
    pub fn raise(&mut self, token: Token) {
        self.last = self.last.max(token.get());
    }

    /// Notes that a new append-only file begins, whose readers know no token yet.
    pub const fn begin_file(&mut self) {
        self.must_be_explicit = true;
    }

    /// Discards the token that was minted last: readers do not count it, so the next grant names its own.
    pub const fn waste(&mut self) {
        self.must_be_explicit = true;
    }

    /// Makes readers of the stream count from nothing: the next grant, if there is one, names its token.
    pub const fn replicate_fresh_start(&mut self) {
        self.replicated = 0;
    }

    /// Notes that a data set begins to load: only its stream determines the token to count from.
    pub const fn begin_load(&mut self) {
        self.replicated = 0;
    }

    /// Takes the clock of the writer from the head of a snapshot or of a file. Never lowers `last`.
    pub fn adopt(&mut self, last: u64, replicated: u64) {
        self.last = self.last.max(last.min(TOKEN_MAX));
        self.replicated = replicated.min(TOKEN_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mint(clock: &mut TokenClock, wall_us: u64) -> (u64, Travel) {
        clock.mint(wall_us).map(|(token, travel)| (token.get(), travel)).expect("tokens are left")
    }

    #[test]
    fn an_idle_server_mints_the_wall_clock_and_names_it() {
        let mut clock = TokenClock::default();
        assert_eq!(mint(&mut clock, 5_000_000), (5_000_000, Travel::Explicit));
        assert_eq!(mint(&mut clock, 5_020_000), (5_020_000, Travel::Explicit));
    }

    #[test]
    fn a_clock_that_follows_closely_never_lags_the_wall_clock() {
        let mut clock = TokenClock::default();
        clock.follow_closely();
        assert_eq!(mint(&mut clock, 5_000_000), (5_000_000, Travel::Explicit));
        assert_eq!(mint(&mut clock, 5_000_001), (5_000_001, Travel::Explicit));
        assert_eq!(mint(&mut clock, 5_000_001), (5_000_002, Travel::Implicit));
        assert_eq!(mint(&mut clock, 4_000_000), (5_000_003, Travel::Implicit));
        assert_eq!(mint(&mut clock, 5_000_009), (5_000_009, Travel::Explicit));
    }

    #[test]
    fn a_busy_server_mints_tokens_by_counting() {
        let mut clock = TokenClock::default();
        mint(&mut clock, 5_000_000);
        assert_eq!(mint(&mut clock, 5_000_900), (5_000_001, Travel::Implicit));
        assert_eq!(mint(&mut clock, 5_000_950), (5_000_002, Travel::Implicit));
    }

    #[test]
    fn a_wall_clock_that_steps_back_does_not_lower_tokens() {
        // G4
        let mut clock = TokenClock::default();
        mint(&mut clock, 3_600_000_000);
        assert_eq!(mint(&mut clock, 1).0, 3_600_000_001);
        assert_eq!(clock.lead_us(1), 3_600_000_000);
    }

    #[test]
    fn a_token_that_the_stream_did_not_carry_is_named_next_time() {
        let mut clock = TokenClock::default();
        mint(&mut clock, 5_000_000);
        clock.raise(Token::new(6_000_000).expect("valid"));
        assert_eq!(mint(&mut clock, 5_000_000), (6_000_001, Travel::Explicit));
        assert_eq!(mint(&mut clock, 5_000_000), (6_000_002, Travel::Implicit));
        clock.raise(Token::new(1).expect("valid"));
        assert_eq!(mint(&mut clock, 5_000_000), (6_000_003, Travel::Implicit));
    }

    #[test]
    fn a_reader_counts_with_its_stream_and_mints_above_all_it_knew() {
        // A replica that was once ahead of its primary: it must agree with the primary's tokens and yet,
        // promoted, never mint below its own past.
        let mut clock = TokenClock::default();
        clock.raise(Token::new(9_000_000).expect("valid"));
        clock.begin_load();
        clock.hear(Token::new(100).expect("valid"));
        assert_eq!(clock.count().map(|counted| counted.0.get()), Some(101));
        assert_eq!(clock.replicated_token(), 101);
        assert_eq!(mint(&mut clock, 200), (9_000_001, Travel::Explicit));
    }

    #[test]
    fn a_replica_names_the_first_token_in_its_own_new_file_and_keeps_counting_its_stream() {
        let mut clock = TokenClock::default();
        clock.raise(Token::new(900).expect("valid"));
        clock.hear(Token::new(100).expect("valid"));
        clock.begin_file();
        let next = |clock: &mut TokenClock| clock.count().map(|(t, travel)| (t.get(), travel));
        assert_eq!(next(&mut clock), Some((101, Travel::Explicit)));
        assert_eq!(next(&mut clock), Some((102, Travel::Implicit)));
    }

    #[test]
    fn a_snapshot_never_lowers_the_clock() {
        let mut clock = TokenClock::default();
        clock.adopt(700, 600);
        clock.adopt(300, 200);
        assert_eq!((clock.last_token(), clock.replicated_token()), (700, 200));
        clock.adopt(u64::MAX, u64::MAX);
        assert_eq!((clock.last_token(), clock.replicated_token()), (TOKEN_MAX, TOKEN_MAX));
        assert_eq!(clock.count(), None);
    }

    #[test]
    fn from_outside_come_no_tokens_too_far_ahead_unless_they_are_known() {
        let mut clock = TokenClock::default();
        assert_eq!(clock.highest_from_outside(5_000, 700), 5_700);
        clock.raise(Token::new(5_700).expect("valid"));
        assert_eq!(clock.highest_from_outside(5_000, 700), 5_700);
        assert_eq!(clock.highest_from_outside(5_001, 700), 5_701);
        assert_eq!(clock.highest_from_outside(4_000, 700), 5_700);
        assert_eq!(clock.highest_from_outside(WALL_US_MAX, 700), WALL_US_MAX + 700);
        // A clock that cannot be right leaves tokens for others, and none is minted from it.
        for wall_us in [WALL_US_MAX + 1, TOKEN_MAX - 1, TOKEN_MAX, TOKEN_MAX + 1, u64::MAX] {
            assert_eq!(clock.highest_from_outside(wall_us, 700), WALL_US_MAX + 700);
            assert_eq!(mint(&mut clock.clone(), wall_us).0, 5_701);
        }
        assert_eq!(mint(&mut clock, WALL_US_MAX).0, WALL_US_MAX);
    }

    #[test]
    fn what_a_stream_counts_from_is_forgotten_when_a_data_set_begins_to_load() {
        let mut clock = TokenClock::default();
        mint(&mut clock, 5_000_000);
        clock.begin_load();
        assert_eq!((clock.last_token(), clock.replicated_token()), (5_000_000, 0));
        // The token that was named last, again: it is neither older nor newer.
        clock.begin_file();
        clock.hear(Token::new(100).expect("valid"));
        clock.begin_file();
        clock.hear(Token::new(100).expect("valid"));
        assert_eq!(clock.count().map(|(token, travel)| (token.get(), travel)), Some((101, Travel::Explicit)));
    }

    #[test]
    fn a_new_file_makes_the_next_grant_named() {
        let mut clock = TokenClock::default();
        mint(&mut clock, 5_000_000);
        clock.begin_file();
        assert_eq!(mint(&mut clock, 5_000_001), (5_000_001, Travel::Explicit));
    }

    #[test]
    fn tokens_end_below_two_to_the_53() {
        let mut clock = TokenClock::default();
        clock.raise(Token::new(TOKEN_MAX).expect("valid"));
        assert_eq!(clock.mint(5), None);
        assert_eq!(clock.last_token(), TOKEN_MAX);
        // A wall clock beyond the last token is no token either.
        let mut clock = TokenClock::default();
        assert_eq!(mint(&mut clock, u64::MAX).0, 1);
    }
}
