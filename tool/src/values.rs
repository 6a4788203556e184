//! Values of options: durations, names, labels, and their accepted forms.

use std::time::Duration;

/// The longest duration that any option takes: it keeps the arithmetic far from its bounds.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// The shortest lease: its third leaves time for a renewal, and the margins fit.
const SHORTEST_LEASE: Duration = Duration::from_secs(3);
/// The longest label: the owner has at most 256 bytes.
const LONGEST_LABEL: usize = 100;

/// The longest wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    For(Duration),
    Forever,
}

impl Wait {
    /// As the client takes it: `None` has no end.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::For(duration) => Some(duration),
            Self::Forever => None,
        }
    }
}

/// Parses a duration: a number with a unit, or 0.
pub fn duration(text: &str) -> Result<Duration, String> {
    const FORM: &str = "a number with a unit, as 500ms, 30s, 5m or 1h30m";
    let units = || text.split(|letter: char| !letter.is_ascii_alphabetic());
    if units().any(|unit| unit.starts_with(['M', 'y']) || unit.starts_with("mo")) {
        // A month would surprise those who mean a minute.
        return Err(format!("expected {FORM}; no months or years"));
    }
    let parsed = humantime::parse_duration(text).map_err(|_| format!("expected {FORM}"))?;
    if parsed > LONGEST {
        return Err("expected at most 366d".to_owned());
    }
    Ok(parsed)
}

/// Parses a duration that must not be 0.
pub fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected more than 0, as 30s".to_owned()),
        parsed => Ok(parsed),
    }
}

/// Parses a lease.
pub fn lease(text: &str) -> Result<Duration, String> {
    let parsed = duration(text)?;
    if parsed < SHORTEST_LEASE {
        return Err("expected at least 3s".to_owned());
    }
    Ok(parsed)
}

/// Parses a wait: a duration or `forever`.
pub fn wait(text: &str) -> Result<Wait, String> {
    if text == "forever" {
        return Ok(Wait::Forever);
    }
    duration(text).map(Wait::For).map_err(|error| format!("{error}, or forever"))
}

/// Parses a number of this range.
pub fn number<T: TryFrom<u64>>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("expected a number from {least} to {most}"))
    }
}

/// Parses a label for the owner.
pub fn label(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_graphic() && c != ':';
    if text.is_empty() || text.len() > LONGEST_LABEL || !text.chars().all(is_plain) {
        return Err(format!(
            "expected 1 to {LONGEST_LABEL} visible ASCII characters without a colon or a blank"
        ));
    }
    Ok(text.to_owned())
}

/// Writes a duration in whole milliseconds below ten seconds, else in whole seconds.
pub fn shown(duration: Duration) -> String {
    let rounded = if duration < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(duration.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("2days 1min"), Ok(Duration::from_secs(2 * 86_400 + 60)));
        for text in
            ["30", "", "s", "-5s", "5 parsecs", "1.5.2s", "99999999999999999999s", "5M", "1 month", "1y"]
        {
            let error = duration(text).unwrap_err();
            assert!(error.contains("30s, 5m or 1h30m"), "{text}: {error}");
        }
        assert_eq!(duration("367d").unwrap_err(), "expected at most 366d");
    }

    #[test]
    fn ranges_are_checked() {
        assert!(positive("0s").is_err() && positive("1ms").is_ok());
        assert!(lease("2999ms").is_err() && lease("3s").is_ok());
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        assert_eq!(wait("5s").unwrap().limit(), Some(Duration::from_secs(5)));
        assert!(wait("never").unwrap_err().ends_with("or forever"));
    }

    #[test]
    fn labels_are_visible_and_short() {
        assert!(label("nightly-backup").is_ok() && label(&"x".repeat(100)).is_ok());
        for text in ["", "two words", "a:b", "caf\u{e9}", &"x".repeat(101)] {
            assert!(label(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_shortly() {
        assert_eq!(shown(Duration::from_micros(1_234_567)), "1s 234ms");
        assert_eq!(shown(Duration::from_millis(83_999)), "1m 23s");
    }
}
