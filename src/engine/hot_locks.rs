//! The most contended locks, for INFO.
//!
//! The Space-Saving algorithm (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in
//! Data Streams", 2005) has a fixed number of counters. A name without a counter replaces the name with the lowest
//! count, and inherits that count. So a count is too high by at most the inherited part, which is shown with it. A
//! name with more than its share of all requests always has a counter.

use crate::lock::types::LockKey;

/// A longer name is counted and shown by its beginning.
const NAME_SHOWN_MAX: usize = 128;

/// The number of requests that found this lock taken.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Counter {
    db: u32,
    name: Box<[u8]>,
    count: u64,
    /// The most by which the count may be too high.
    error: u64,
}

/// The counters, as many as names are wanted.
#[derive(Default, Debug)]
pub struct HotLocks {
    names_max: usize,
    counters: Vec<Counter>,
}

impl HotLocks {
    /// Sets the number of names to keep. A lower number drops those with the lowest counts; 0 drops all.
    pub fn set_names_max(&mut self, names_max: usize) {
        self.names_max = names_max;
        self.sort();
        self.counters.truncate(names_max);
        if names_max == 0 {
            self.counters = Vec::new();
        }
    }

    /// Returns true if names are kept.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.names_max > 0
    }

    /// Counts a request that was not granted at once.
    pub fn note(&mut self, lock_key: LockKey<'_>) {
        let name = lock_key.name.get(..NAME_SHOWN_MAX).unwrap_or(lock_key.name);
        let is_it = |counter: &&mut Counter| counter.db == lock_key.db && *counter.name == *name;
        if let Some(known) = self.counters.iter_mut().find(is_it) {
            known.count = known.count.saturating_add(1);
        } else if self.counters.len() < self.names_max {
            self.counters.push(Counter { db: lock_key.db, name: name.into(), count: 1, error: 0 });
        } else if let Some(lowest) = self.counters.iter_mut().min_by_key(|counter| counter.count) {
            let error = lowest.count;
            *lowest = Counter { db: lock_key.db, name: name.into(), count: error.saturating_add(1), error };
        }
    }

    fn sort(&mut self) {
        self.counters.sort_by_key(|counter| std::cmp::Reverse(counter.count));
    }

    /// Returns `db=0,name=invoice%3A42,count=17,error=0;...`, the highest count first. Characters of a name other
    /// than letters, digits and `-._:/{}` are percent-encoded, so that each name is one word.
    #[must_use]
    pub fn shown(&mut self) -> String {
        self.sort();
        let one = |Counter { db, name, count, error }: &Counter| {
            format!("db={db},name={},count={count},error={error}", escaped(name))
        };
        self.counters.iter().map(one).collect::<Vec<_>>().join(";")
    }
}

fn escaped(name: &[u8]) -> String {
    let byte = |&byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' | b'/' | b'{' | b'}' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    name.iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::random::Random;

    fn note(contended: &mut HotLocks, name: &str, times: usize) {
        (0..times).for_each(|_| contended.note(LockKey { db: 0, name: name.as_bytes() }));
    }

    #[test]
    fn the_most_contended_lock_comes_first_and_0_forgets_all() {
        let mut contended = HotLocks::default();
        contended.set_names_max(2);
        note(&mut contended, "a", 1);
        note(&mut contended, "b", 3);
        assert_eq!(contended.shown(), "db=0,name=b,count=3,error=0;db=0,name=a,count=1,error=0");
        note(&mut contended, "c", 1);
        assert_eq!(contended.shown(), "db=0,name=b,count=3,error=0;db=0,name=c,count=2,error=1");
        contended.note(LockKey { db: 7, name: b"b" });
        assert_eq!(contended.shown(), "db=0,name=b,count=3,error=0;db=7,name=b,count=3,error=2");
        contended.set_names_max(1);
        assert_eq!(contended.shown(), "db=0,name=b,count=3,error=0");
        contended.set_names_max(0);
        assert!(contended.shown().is_empty() && !contended.is_on());
    }

    #[test]
    fn a_name_is_one_short_word_whatever_it_was() {
        let mut contended = HotLocks::default();
        contended.set_names_max(3);
        contended.note(LockKey { db: 0, name: b"a b;c=\r\n,\xff{x}:1" });
        assert_eq!(contended.shown(), "db=0,name=a%20b%3Bc%3D%0D%0A%2C%FF{x}:1,count=1,error=0");
        let long = vec![b'n'; 10 * NAME_SHOWN_MAX];
        contended.note(LockKey { db: 0, name: &long });
        contended.note(LockKey { db: 0, name: &long[..NAME_SHOWN_MAX] });
        assert!(contended.shown().starts_with(&format!("db=0,name={},count=2", "n".repeat(NAME_SHOWN_MAX))));
    }

    /// What the paper promises: no count is too low, none too high by more than is told, and a name that makes more
    /// than its share is there.
    #[test]
    fn counts_are_as_exact_as_they_say() {
        for seed in 0..50 {
            let (mut random, mut contended) = (Random::new(seed), HotLocks::default());
            contended.set_names_max(3);
            let mut exact = [0_u64; 12];
            for _ in 0..400 {
                let number = (random.below(12) * random.below(12) / 11) as usize;
                exact[number] += 1;
                note(&mut contended, &number.to_string(), 1);
            }
            for counter in &contended.counters {
                let number: usize =
                    std::str::from_utf8(&counter.name).expect("digits").parse().expect("digits");
                assert!(counter.count >= exact[number] && counter.count - counter.error <= exact[number]);
            }
            let frequent = exact.iter().enumerate().filter(|(_, count)| **count > 400 / 3);
            for (number, _) in frequent {
                let is_it = |counter: &Counter| *counter.name == *number.to_string().as_bytes();
                assert!(contended.counters.iter().any(is_it), "{number} of {exact:?}");
            }
        }
    }
}
