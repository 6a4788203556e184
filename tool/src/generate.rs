//! The man page and the completions, made from the command line's own definitions.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::Failure;
use crate::options::Options;

/// The man page: the tool, and a section for each of its commands.
pub fn manual() -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::internal(error.to_string());
    let mut command = Options::command();
    command.build();
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).map_err(failed)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let man = Man::new(sub.clone());
        page.extend(format!(".SH \"REDISLOCK {}\"\n", sub.get_name().to_uppercase()).bytes());
        man.render_synopsis_section(&mut page).map_err(failed)?;
        man.render_options_section(&mut page).map_err(failed)?;
    }
    Ok(page)
}

/// The completions for this shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "redislock", &mut script);
    script
}
