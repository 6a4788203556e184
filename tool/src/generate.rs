//! The man page and the completions, made from the command line's own definitions.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::Failure;
use crate::options::{EXAMPLES, EXIT_CODES, Options, SERVER};

/// The man page: the tool, a section for each of its commands, and one for the options that all of them take.
pub fn manual() -> Result<Vec<u8>, Failure> {
    written().map_err(|error: io::Error| Failure::internal(error.to_string()))
}

fn written() -> io::Result<Vec<u8>> {
    let mut command = Options::command();
    command.build();
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    section(&mut page, "SYNOPSIS", "redislock COMMAND [OPTIONS] ...");
    section(&mut page, "EXAMPLES", EXAMPLES);
    let is_of_all = |argument: &clap::Arg| argument.get_help_heading() == Some(SERVER);
    let commands: Vec<Command> =
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    for sub in &commands {
        let usage = sub.clone().render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
        section(&mut page, &format!("REDISLOCK {}", sub.get_name().to_uppercase()), usage);
        for text in [sub.get_about(), sub.get_after_help()].into_iter().flatten() {
            page.extend(format!(".PP\n{}\n", escaped(&text.to_string())).bytes());
        }
        options(&mut page, sub, |argument| !is_of_all(argument))?;
    }
    section(&mut page, "OPTIONS OF ALL COMMANDS", "");
    if let Some(first) = commands.first() {
        options(&mut page, first, is_of_all)?;
    }
    section(&mut page, "EXIT STATUS", EXIT_CODES);
    section(&mut page, "SEE ALSO", "flock(1), crontab(5)");
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// Adds a section whose lines stay as they are.
fn section(page: &mut Vec<u8>, title: &str, text: &str) {
    page.extend(format!(".SH \"{title}\"\n.nf\n{}\n.fi\n", escaped(text)).bytes());
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Adds the options that are chosen, without a heading.
fn options(page: &mut Vec<u8>, command: &Command, is_chosen: impl Fn(&clap::Arg) -> bool) -> io::Result<()> {
    let chosen = command.clone().mut_args(|argument| {
        let is_hidden = argument.is_hide_set() || argument.get_id() == "help" || !is_chosen(&argument);
        argument.hide(is_hidden).help_heading(None)
    });
    let mut text = Vec::new();
    Man::new(chosen).render_options_section(&mut text)?;
    let lines = String::from_utf8_lossy(&text);
    page.extend(
        lines
            .lines()
            .filter(|line| !line.starts_with(".SH "))
            .flat_map(|line| [line, "\n"])
            .flat_map(str::bytes),
    );
    Ok(())
}

/// The completions for this shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "redislock", &mut script);
    script
}
