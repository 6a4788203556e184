//! The language of the [stories](crate::sim::stories::scenario): it parses inputs and prints outcomes.

use crate::lock::codec::SavedHold;
use crate::lock::deadlock::Link;
use crate::lock::effect::{Answer, Event};
use crate::lock::types::{Mode, Token};
use crate::sim::checkers::judge::Pending;
use crate::sim::server::inside::Told;
use crate::sim::single::input::{Answered, How, Keys, Writes};
use crate::sim::single::server::{At, Name};

/// Returns a hold as text: its owner, its token, and its remaining lease.
pub(crate) fn held(mode: Mode, hold: &SavedHold) -> String {
    let SavedHold { owner, token, left_ms, count, binding } = hold;
    let how = match mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => " shared".to_owned(),
        Mode::Limit(limit) => format!(", one of {limit},"),
    };
    let mut text = format!("{} holds it{how} with {token}", String::from_utf8_lossy(owner));
    if *count > 1 {
        text.push_str(&format!(", {count} times"));
    }
    text.push_str(&format!(", {left_ms} ms left"));
    if binding.is_paused() {
        text.push_str(", kept alive");
    }
    if let Some(ms) = binding.ephemeral_ms {
        text.push_str(&format!(", {ms} ms without its connection"));
    }
    text
}

/// Returns a queued request as text, with its owner.
pub(crate) fn stands(pending: &Pending) -> String {
    let mut text = pending.owner.to_owned();
    let how = match pending.mode {
        Mode::Shared => " shared",
        Mode::Exclusive | Mode::Limit(_) => "",
    };
    text.push_str(how);
    if pending.is_reservation() {
        text.push_str(" by a place");
    }
    if pending.keys.len() > 1 {
        let keys: Vec<String> = pending.keys.iter().map(|at| at.to_string()).collect();
        text.push_str(&format!(" for all of {}", keys.join(" ")));
    }
    text
}

/// Returns the locks that the answered client waited for.
pub(crate) fn awaited(told: &Answered) -> String {
    let Answer::Granted { lock_key, others, .. } = &told.answer else {
        return told.at.to_string();
    };
    let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    if others.is_empty() {
        return told.at.to_string();
    }
    let names: Vec<String> =
        std::iter::once(lock_key).chain(others).map(|lock_key| name(&lock_key.name)).collect();
    names.join(" ")
}

/// Returns a cycle of waits as text.
pub(crate) fn waits(cycle: &[Link]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let link = |link: &Link| {
        let (owner, name, awaited) = (text(&link.owner), text(&link.lock_key.name), text(&link.awaited));
        format!("\n  {owner} waits for {awaited} at {name}")
    };
    cycle.iter().map(link).collect()
}

pub(crate) const fn published(event: Event) -> &'static str {
    match event {
        Event::Acquired => "lock.acquired",
        Event::Released => "lock.released",
        Event::Expired => "lock.expired",
        Event::Broken => "lock.broken",
    }
}

pub(crate) fn answered(answer: &Answer) -> String {
    match answer {
        Answer::Granted { token, minted_owner: None, .. } => format!("granted {token}"),
        Answer::Granted { token, minted_owner: Some(owner), .. } => {
            format!("granted {token} as {}", String::from_utf8_lossy(owner))
        }
        Answer::Refused(why) => format!("refused: {why}"),
        Answer::Moved(where_to) => where_to.clone(),
        Answer::TimedOut | Answer::Withdrawn | Answer::Replaced | Answer::Demoted => format!("{answer:?}"),
    }
}

/// Returns a record as the stream has it.
pub(crate) fn told(Told { db, words }: &Told) -> String {
    let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
    if *db == 0 { words.join(" ") } else { format!("in {db}: {}", words.join(" ")) }
}

/// The words of an input.
pub(crate) struct Words<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        Self { words: line.split_whitespace().peekable() }
    }

    pub(crate) fn next(&mut self) -> Result<&'a str, String> {
        self.words.next().ok_or_else(|| "a word is missing".to_owned())
    }

    pub(crate) fn is(&mut self, word: &str) -> bool {
        self.words.next_if_eq(&word).is_some()
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.words.peek().is_none()
    }

    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.words.next().map_or(Ok(()), |word| Err(format!("what is {word:?}?")))
    }

    /// Takes the next word if it is a number.
    pub(crate) fn number(&mut self) -> Result<u64, String> {
        let word = self.words.peek().ok_or("a number is missing")?;
        let number = word.parse().map_err(|_| format!("{word} is no number"))?;
        self.words.next();
        Ok(number)
    }

    pub(crate) fn size(&mut self) -> Result<usize, String> {
        usize::try_from(self.number()?).map_err(|error| error.to_string())
    }

    pub(crate) fn db(&mut self) -> Result<u32, String> {
        u32::try_from(self.number()?).map_err(|error| error.to_string())
    }

    /// Takes a name. The few short names are leaked, so that inputs can be copied.
    pub(crate) fn name(&mut self) -> Result<Name, String> {
        Ok(self.next()?.to_owned().leak())
    }

    pub(crate) fn at(&mut self) -> Result<At, String> {
        let word: &'static str = self.next()?.to_owned().leak();
        match word.split_once(':') {
            Some((db, name)) => Ok(At::new(db.parse().map_err(|_| format!("{db}?"))?, name)),
            None => Ok(At::new(0, word)),
        }
    }

    /// Takes all keys of a request for several locks, separated by commas.
    pub(crate) fn keys(&mut self) -> Result<Keys, String> {
        let ats: Result<Vec<At>, String> =
            self.next()?.split(',').map(|word| Words::new(word).at()).collect();
        Ok(Keys::of(&ats?))
    }

    /// Takes the mode and options of a request.
    pub(crate) fn how(&mut self) -> Result<How, String> {
        let mut how = How::PLAIN;
        loop {
            if self.is("shared") {
                how.mode = Mode::Shared;
            } else if self.is("limit") {
                how.mode = Mode::Limit(u32::try_from(self.number()?).map_err(|error| error.to_string())?);
            } else if self.is("reentrant") {
                how.is_reentrant = true;
            } else if self.is("ephemeral") {
                how.binding.ephemeral_ms = Some(self.number()?);
            } else if self.is("keepalive") {
                how.binding.is_keepalive = true;
            } else {
                return Ok(how);
            }
        }
    }

    /// Takes the time to wait; 0 means without limit.
    pub(crate) fn wait(&mut self) -> Option<u64> {
        if self.is("wait") { Some(self.number().unwrap_or(0)) } else { None }
    }

    pub(crate) fn token(&mut self) -> Result<Option<Token>, String> {
        if self.is("token") { Ok(Token::new(self.number()?)) } else { Ok(None) }
    }

    pub(crate) fn raise(&mut self) -> Result<Option<Token>, String> {
        if self.is("raise") { Ok(Token::new(self.number()?)) } else { Ok(None) }
    }

    pub(crate) fn wall_us(&mut self, now_us: u64) -> Result<u64, String> {
        let word = self.next()?;
        let step_ms: i64 = word.parse().map_err(|_| format!("{word} is no step"))?;
        Ok(now_us.saturating_add_signed(step_ms * 1000))
    }

    pub(crate) fn is_on(&mut self) -> Result<bool, String> {
        match self.next()? {
            "on" => Ok(true),
            "off" => Ok(false),
            word => Err(format!("{word} is neither on nor off")),
        }
    }

    pub(crate) fn writes(&mut self) -> Result<Writes, String> {
        match self.next()? {
            "allowed" => Ok(Writes::Allowed),
            "refused" => Ok(Writes::Refused),
            "paused" => Ok(Writes::Paused),
            word => Err(format!("writes are never {word}")),
        }
    }
}
