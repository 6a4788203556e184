//! `doctor`: finds beforehand what an operator would find out at night. It only reads, unless `--active` is given.

mod active;
mod checks;
mod facts;
mod versions;

use serde_json::json;

use crate::exit::Failure;
use crate::options::Doctor;
use crate::print;
use crate::target::Place;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Warning,
    /// The check could not be made, so it might have found an error.
    Skipped,
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The result of a check.
#[derive(Debug)]
pub struct Finding {
    pub check: &'static str,
    pub level: Level,
    pub text: String,
    /// The remedy, and the section of the page that explains it.
    pub advice: Option<(&'static str, &'static str)>,
}

impl Finding {
    pub fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, text: text.into(), advice: None }
    }

    pub fn skipped(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, level: Level::Skipped, text: text.into(), advice: None }
    }

    /// A server refused a command that the check needs.
    pub fn refused(check: &'static str, address: &str, command: &str, why: &str) -> Self {
        const RIGHTS: &str = "docs/reference/tool.md#redislock-doctor";
        let text = format!("{address} refused {command} ({why})");
        Self::new(Level::Skipped, check, text, ("Allow this user to run it", RIGHTS))
    }

    /// The check is about the module, which a server does not have.
    pub fn without_module(check: &'static str, address: &str) -> Self {
        Self::skipped(check, format!("{address} has no module redislock"))
    }

    pub fn new(
        level: Level,
        check: &'static str,
        text: impl Into<String>,
        advice: (&'static str, &'static str),
    ) -> Self {
        Self { check, level, text: text.into(), advice: Some(advice) }
    }
}

/// Makes all checks. Returns 0, 1 if there are warnings, 2 if there are errors, and otherwise 3 if any was skipped.
pub fn doctor(options: &Doctor, is_from_environment: bool) -> Result<u8, Failure> {
    let place = Place::of(&options.server, is_from_environment)?;
    let mut facts = facts::gather(&place)?;
    let mut findings = checks::all(&mut facts, options);
    if options.active {
        findings.extend(active::all(&mut facts, &options.prefix));
    }
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    print(if options.json { as_json(&findings) } else { as_lines(&findings) }.as_bytes());
    Ok(match worst {
        Level::Ok => 0,
        Level::Warning => 1,
        Level::Error => 2,
        Level::Skipped => 3,
    })
}

fn as_lines(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, level, text: found, advice } in findings {
        text += &format!("{:<8} {check}: {found}", level.word());
        if let Some((what, page)) = advice {
            text += &format!(". {what} ({page})");
        }
        text.push('\n');
    }
    text
}

fn as_json(findings: &[Finding]) -> String {
    let rows = findings.iter().map(|finding| {
        json!({
            "check": finding.check, "level": finding.level.word(), "text": finding.text,
            "advice": finding.advice.map(|(what, _)| what), "page": finding.advice.map(|(_, page)| page),
        })
    });
    json!(rows.collect::<Vec<_>>()).to_string() + "\n"
}
