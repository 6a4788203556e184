//! The words of a command, compared with a second grammar, without any short path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::RangeInclusive;

use super::{reading, split};
use crate::command::acquire::{self, Acquire, WaitFor};
use crate::command::args::{Bounds, WAIT_MS_MAX, integer};
use crate::command::error::Invalid;
use crate::command::{exec, fence, heldby, info, internal, macquire, release, renew};
use crate::lock::table::Release;
use crate::lock::types::COUNT_MAX;
use crate::lock::types::{Binding, LEASE_MS_MAX, LIMIT_MAX, Mode, TOKEN_MAX, Token};

/// More than the 64 keys of a request, its owner and its options.
const WORDS_MAX: usize = 80;

const OWNER_BYTES: RangeInclusive<usize> = 1..=256;
const TOKENS: RangeInclusive<u64> = 1..=TOKEN_MAX;
const CLOCKS: RangeInclusive<u64> = 0..=TOKEN_MAX;

/// The first byte chooses the command and the bounds; the queues after it are its words.
pub(crate) fn run(data: &[u8]) {
    reading(|| read(data));
}

fn read(data: &[u8]) {
    let Some((&which, rest)) = data.split_first() else { return };
    let words = if rest.is_empty() { Vec::new() } else { split(rest, b'\n', WORDS_MAX) };
    for word in &words {
        assert_eq!(integer(word), number(word), "{word:?}");
    }
    let lease_ms_max = [3_600_000, LEASE_MS_MAX, 1_000, 999][usize::from(which >> 4 & 3)];
    let bounds = Bounds { lease_ms_max, wait_ms_max: (which & 128 != 0).then_some(5_000) };
    match which % 16 {
        0..=3 => same(acquire::parse(&words, &bounds), acquire_of(&words, &bounds, false)),
        4 | 5 => same(macquire::parse(&words, &bounds), macquire_of(&words, &bounds)),
        6 | 7 => same(renew::parse(&words, &bounds), renew_of(&words, &bounds)),
        8 => same(release::parse(&words), release_of(&words)),
        9 => same(info::parse(&words), info_of(&words)),
        10 => same(fence::parse(&words), fence_of(&words)),
        11 => same(heldby::parse(words.first().unwrap_or(&&b""[..])), owner_of(&words)),
        12 | 13 => same(exec::parse(&words).map(|exec| (exec.token, exec.words)), exec_of(&words)),
        14 => check_record(&words),
        _ => assert_eq!(internal::parse_tick(&words), tick_of(&words)),
    }
    let _ = exec::would_block(&words);
}

/// Both read the same, or the refusal is one queue of printable letters (CONTRACT 9).
fn same<T: PartialEq + Debug>(parsed: Result<T, Invalid>, expected: Option<T>) {
    if let Err(error) = &parsed {
        let text = error.to_string();
        let is_line = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        assert!(text.starts_with("ERR ") && is_line && text.len() < 500, "{text:?}");
    }
    assert_eq!(parsed.as_ref().ok(), expected.as_ref(), "{parsed:?}");
}

/// A number as Redis writes it, by way of the standard library.
fn number(word: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == word).then_some(number)
}

fn number_in(word: &[u8], range: &RangeInclusive<u64>) -> Option<u64> {
    number(word).filter(|number| range.contains(number))
}

fn owner_of<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    words.first().copied().filter(|owner| OWNER_BYTES.contains(&owner.len()))
}

fn token_of(word: &[u8]) -> Option<Token> {
    number_in(word, &TOKENS).and_then(Token::new)
}

/// The options and their values, 1 for those without; each at most once.
fn options<'n>(
    words: &[&[u8]],
    known: &[(&'n str, Option<RangeInclusive<u64>>)],
) -> Option<BTreeMap<&'n str, u64>> {
    let mut given = BTreeMap::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let is_it = |(name, _): &&(&str, _)| name.as_bytes() == word.to_ascii_uppercase();
        let (name, range) = known.iter().find(is_it)?;
        let value = match range {
            None => 1,
            Some(range) => number_in(words.next()?, range)?,
        };
        if given.insert(*name, value).is_some() {
            return None;
        }
    }
    Some(given)
}

fn lease_options(bounds: &Bounds) -> [(&'static str, Option<RangeInclusive<u64>>); 2] {
    [("PX", Some(1..=bounds.lease_ms_max)), ("EX", Some(1..=bounds.lease_ms_max / 1000))]
}

fn lease_of(given: &BTreeMap<&str, u64>) -> Option<u64> {
    match (given.get("PX"), given.get("EX")) {
        (Some(&ms), None) => Some(ms),
        (None, Some(&seconds)) => Some(seconds * 1000),
        _ => None,
    }
}

fn acquire_of<'a>(words: &[&'a [u8]], bounds: &Bounds, is_many: bool) -> Option<Acquire<'a>> {
    let owner = owner_of(words)?;
    let mut known = lease_options(bounds).to_vec();
    known.push(("BLOCK", Some(0..=bounds.wait_ms_max.unwrap_or(WAIT_MS_MAX))));
    known.push(("SHARED", None));
    if !is_many {
        known.push(("QUEUE", Some(1..=bounds.wait_ms_max.unwrap_or(bounds.lease_ms_max))));
        known.push(("LIMIT", Some(1..=u64::from(LIMIT_MAX))));
        known.push(("EPHEMERAL", Some(0..=bounds.lease_ms_max)));
        known.extend([("REENTRANT", None), ("KEEPALIVE", None)]);
    }
    let given = options(&words[1..], &known)?;
    let has = |name| given.contains_key(name);
    let wait = match (given.get("BLOCK"), given.get("QUEUE")) {
        (Some(_), Some(_)) => return None,
        (None, Some(_)) if owner == b"*" => return None,
        (None, None) => None,
        (None, Some(&ms)) => Some(WaitFor::Queue(ms)),
        (Some(0), None) => Some(WaitFor::Block(bounds.wait_ms_max.unwrap_or(0))),
        (Some(&ms), None) => Some(WaitFor::Block(ms)),
    };
    let mode = match (has("SHARED"), given.get("LIMIT")) {
        (true, Some(_)) => return None,
        (false, Some(&limit)) => Mode::Limit(limit as u32),
        (is_shared, None) => [Mode::Exclusive, Mode::Shared][usize::from(is_shared)],
    };
    if has("REENTRANT") && mode != Mode::Exclusive {
        return None;
    }
    let ephemeral_ms = given.get("EPHEMERAL").copied();
    Some(Acquire {
        owner: Some(owner).filter(|owner| *owner != b"*"),
        lease_ms: lease_of(&given)?,
        wait,
        mode,
        is_reentrant: has("REENTRANT"),
        binding: Binding { ephemeral_ms, is_keepalive: has("KEEPALIVE"), is_running: false },
    })
}

fn macquire_of<'w, 'a>(words: &'w [&'a [u8]], bounds: &Bounds) -> Option<(&'w [&'a [u8]], Acquire<'a>)> {
    let count = number_in(words.first()?, &(1..=64))? as usize;
    let keys = words.get(1..=count)?;
    let different: BTreeSet<_> = keys.iter().collect();
    (different.len() == count).then_some(())?;
    Some((keys, acquire_of(&words[count + 1..], bounds, true)?))
}

fn renew_of<'a>(words: &[&'a [u8]], bounds: &Bounds) -> Option<renew::Renew<'a>> {
    let owner = owner_of(words)?;
    let mut known = lease_options(bounds).to_vec();
    known.extend([("TOKEN", Some(TOKENS)), ("RAISE", Some(TOKENS))]);
    let given = options(&words[1..], &known)?;
    let token = |name| given.get(name).and_then(|&number| Token::new(number));
    let (token, raise) = (token("TOKEN"), token("RAISE"));
    let is_contradiction = token.is_some() && raise.is_some();
    (!is_contradiction).then_some(renew::Renew { owner, lease_ms: lease_of(&given)?, token, raise })
}

fn release_of<'a>(words: &[&'a [u8]]) -> Option<Release<'a>> {
    let owner = owner_of(words)?;
    let given = options(&words[1..], &[("TOKEN", Some(TOKENS))])?;
    Some(Release { owner, token: given.get("TOKEN").and_then(|&number| Token::new(number)) })
}

fn info_of(words: &[&[u8]]) -> Option<usize> {
    let given = options(words, &[("FULL", None), ("COUNT", Some(1..=2_000))])?;
    match (given.contains_key("FULL"), given.get("COUNT")) {
        (true, Some(&count)) => Some(count as usize),
        (true, None) => Some(1_000),
        (false, Some(_)) => None,
        (false, None) => Some(10),
    }
}

/// The server's table of commands limits the number of words.
fn fence_of(words: &[&[u8]]) -> Option<Option<Token>> {
    match words {
        [] => Some(None),
        [word] => token_of(word).map(Some),
        _ => None,
    }
}

fn exec_of<'w, 'a>(words: &'w [&'a [u8]]) -> Option<(Token, &'w [&'a [u8]])> {
    let token = token_of(words.first()?)?;
    let name = words.get(1)?.to_ascii_lowercase();
    (!name.starts_with(b"lock.")).then_some((token, &words[1..]))
}

fn tick_of(words: &[&[u8]]) -> Option<(u64, u64)> {
    match words {
        [last, told] => Some((number_in(last, &CLOCKS)?, number_in(told, &CLOCKS)?)),
        _ => None,
    }
}

/// A record that is understood is in all bounds, and has the meaning of its words.
fn check_record(words: &[&[u8]]) {
    match internal::parse_apply(words) {
        None => {}
        Some(internal::Apply::Empty) => assert_eq!(words, [b"EMPTY"]),
        Some(internal::Apply::Ended(token)) => {
            assert_eq!((words.len(), words[0], Some(token)), (2, &b"ENDED"[..], token_of(words[1])));
        }
        Some(internal::Apply::Hold(mode, hold)) => {
            assert!(words[0] == b"HOLD" && [4, 8].contains(&words.len()), "{words:?}");
            assert_eq!(token_of(words[1]), Some(hold.token));
            assert_eq!(number_in(words[2], &(0..=LEASE_MS_MAX)), Some(hold.left_ms));
            assert!(*hold.owner == *words[3] && OWNER_BYTES.contains(&hold.owner.len()), "{words:?}");
            assert!((1..=COUNT_MAX).contains(&hold.count), "{words:?}");
            assert!(hold.binding.ephemeral_ms.is_none_or(|ms| ms <= LEASE_MS_MAX), "{words:?}");
            assert!(!matches!(mode, Mode::Limit(0) | Mode::Limit(1_000_001..)), "{words:?}");
        }
    }
}
