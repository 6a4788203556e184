//! `redislock`: runs a command while it holds a lock in Redis or Valkey.
//!
//! # Layout
//!
//! - [`options`]: the command line; [`values`]: its values; [`target`]: the servers; [`exit`]: the exit codes.
//! - [`run`], [`holder`], [`signals`]: the tool while it waits and holds. [`timing`]: the arithmetic of deadlines.
//! - [`guard`], [`channel`], [`processes`]: the process that ends the command. [`os`]: the only unsafe code.
//! - [`look`], [`break_hold`]: who holds what. [`nodes`], [`show`]: what is asked without the client.
//! - [`doctor`]: what is wrong beforehand. [`report`]: events. [`generate`]: the man page and completions.

mod break_hold;
mod channel;
mod doctor;
mod exit;
mod generate;
mod guard;
mod holder;
mod look;
mod nodes;
mod options;
mod os;
mod processes;
mod report;
mod run;
mod show;
mod signals;
mod target;
mod timing;
mod values;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

use crate::exit::{Code, Failure};
use crate::options::{Action, Options};

fn main() -> ExitCode {
    match act(std::env::args_os()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // The exit code is enough if the line has no reader.
            drop(writeln!(std::io::stderr(), "redislock: {failure}"));
            failure.code.into()
        }
    }
}

fn act(words: impl IntoIterator<Item = OsString>) -> Result<u8, Failure> {
    let matches = match Options::command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            print(error.render().to_string().as_bytes());
            return Ok(0);
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return Err(Failure::usage(format!("COMMAND: expected {}; see redislock --help", names())));
        }
        Err(error) => return Err(one_line(&error)),
    };
    let is_from_environment = matches.subcommand().is_some_and(|(_, matches)| {
        matches.try_contains_id("url").is_ok()
            && matches.value_source("url") == Some(ValueSource::EnvVariable)
    });
    let options = Options::from_arg_matches(&matches).map_err(|error| one_line(&error))?;
    match options.action {
        Action::Run(options) => run::run(*options, is_from_environment),
        Action::Ls(options) => look::ls(&options, is_from_environment),
        Action::Info(options) => look::info(&options, is_from_environment),
        Action::HeldBy(options) => look::held_by(&options, is_from_environment),
        Action::Break(options) => break_hold::break_hold(&options, is_from_environment),
        Action::Doctor(options) => doctor::doctor(&options, is_from_environment),
        Action::Manual => {
            print(&generate::manual()?);
            Ok(0)
        }
        Action::Completions { shell } => {
            print(&generate::completions(shell));
            Ok(0)
        }
    }
}

/// Prints. Returns whether somebody reads: a reader that has gone is no error.
fn print(text: &[u8]) -> bool {
    let mut output = std::io::stdout();
    output.write_all(text).and_then(|()| output.flush()).is_ok()
}

/// The names of the commands.
fn names() -> String {
    let command = Options::command();
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(clap::Command::get_name);
    shown.collect::<Vec<_>>().join(", ")
}

/// The first line of an error of the command line: it names the option, and what it takes.
fn one_line(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let parts: Vec<_> = text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim).collect();
    let parts: Vec<_> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    let line = parts.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    Failure::new(Code::Usage, line.split(" For more information").next().unwrap_or(line))
}
