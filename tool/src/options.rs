//! The command line, from which the man page and the completions are made, too.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::values::{self, Wait};

pub const EXAMPLES: &str = "\
Run a job once on many machines:
  * * * * * redislock run --on-busy skip --min-hold 30s nightly /usr/local/bin/job";

pub const EXIT_CODES: &str = "\
Exit codes of run: the command's own. 64 usage, 69 no server grants, 75 busy, 77 not allowed,
78 set-up, 79 lost. 124 --max-hold, 125 failed itself, 126 cannot run, 127 not found.
Works on Linux.";

/// The heading of the options that all commands take.
pub const SERVER: &str = "Server";

/// Runs a command while it holds a lock in Redis or Valkey, and shows who holds what.
#[derive(Parser)]
#[command(name = "redislock", version, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), disable_help_subcommand = true, max_term_width = 100)]
pub struct Options {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Subcommand)]
pub enum Action {
    /// Run a command while holding a lock
    Run(Box<Run>),
    /// List locks, those with the longest waits first
    Ls(Ls),
    /// Show who holds a lock, and who waits for it
    Info(Info),
    /// List what an owner holds and waits for
    HeldBy(HeldBy),
    /// End a hold, after showing it
    Break(Break),
    /// Check a set-up for faults
    Doctor(Doctor),
    /// Print the man page
    #[command(hide = true)]
    Manual,
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions { shell: Shell },
}

/// The servers, and the login.
#[derive(Args, Clone)]
#[command(next_help_heading = SERVER)]
pub struct Server {
    /// Address of the servers: redis[s]://[user@]host:port[/db], redis+sentinel://host:port,.../service,
    /// redis+cluster://host:port,..., unix:///path
    #[arg(long, env = "REDISLOCK_URL", default_value = "redis://127.0.0.1:6379", hide_env_values = true)]
    pub url: String,
    /// Read the password from this file, which only its owner may read
    #[arg(long, value_name = "FILE", env = "REDISLOCK_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,
    /// The authority that signed the server's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// The client's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The client's private key (PEM)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnBusy {
    /// Exit with --busy-code
    Fail,
    /// Exit with 0, silently
    Skip,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLoss {
    /// SIGTERM, then SIGKILL after --kill-after
    Term,
    /// SIGKILL
    Kill,
    /// Let the command run
    Warn,
}

#[derive(Args)]
#[command(
    override_usage = "redislock run [OPTIONS] NAME [--] COMMAND [ARG...]",
    after_help = "Everything after NAME is the command. Its environment has REDISLOCK_NAME, REDISLOCK_TOKEN, REDISLOCK_OWNER."
)]
pub struct Run {
    /// How long to wait for the lock: a duration, or forever
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::wait)]
    pub wait: Wait,
    /// What to do if another owner holds the lock
    #[arg(long, value_name = "fail|skip", default_value = "fail", hide_possible_values = true)]
    pub on_busy: OnBusy,
    /// Exit code if another owner holds the lock
    #[arg(long, value_name = "N", default_value = "75", value_parser = values::number::<u8>(1, 255))]
    pub busy_code: u8,
    /// How long the lock stays taken if this machine dies
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::lease)]
    pub lease: Duration,
    /// Keep the lock taken at least this long, even if the command ends sooner
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::duration)]
    pub min_hold: Duration,
    /// End the command after this time
    #[arg(long, value_name = "TIME", value_parser = values::positive)]
    pub max_hold: Option<Duration>,
    /// Time between SIGTERM and SIGKILL, at most a third of the lease
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub kill_after: Duration,
    /// What to do when the lock is lost
    #[arg(long, value_name = "term|kill|warn", default_value = "term", hide_possible_values = true)]
    pub on_loss: OnLoss,
    /// Be one of at most N holders
    #[arg(long, value_name = "N", conflicts_with = "shared", value_parser = values::number::<u32>(1, 1_000_000))]
    pub semaphore: Option<u32>,
    /// Share the lock with other --shared holders
    #[arg(long)]
    pub shared: bool,
    /// Prepend P to NAME
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    pub prefix: OsString,
    /// A word in the owner, for operators
    #[arg(long, value_name = "L", value_parser = values::label)]
    pub label: Option<String>,
    /// Do not wait for processes that the command leaves behind
    #[arg(long)]
    pub leave_children: bool,
    /// Print errors only
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Also print grants, renewals and releases
    #[arg(long, short)]
    pub verbose: bool,
    /// Print events as lines of JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
    /// The lock, and the command with its arguments
    #[arg(
        value_name = "NAME [--] COMMAND [ARG]",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        hide = true
    )]
    pub words: Vec<OsString>,
}

#[derive(Args)]
pub struct Ls {
    /// Pattern of names, as for SCAN
    #[arg(default_value = "*", hide_default_value = true)]
    pub pattern: OsString,
    /// Repeat the list at this interval, by default 2s
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", require_equals = true,
          value_parser = values::positive)]
    pub watch: Option<Duration>,
    /// Examine at most this many keys on each server
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = values::number::<u64>(1, 1_000_000_000))]
    pub budget: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
}

#[derive(Args)]
pub struct Info {
    /// The lock
    pub name: OsString,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
}

#[derive(Args)]
pub struct HeldBy {
    /// The owner
    pub owner: OsString,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
}

#[derive(Args)]
pub struct Break {
    /// The lock
    pub name: OsString,
    /// End the hold of this owner, if there are several
    #[arg(long, conflicts_with = "force")]
    pub owner: Option<OsString>,
    /// Delete the key, and with it all holds
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub server: Server,
}

#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 all is well, 1 warnings, 2 errors, 3 no errors but a check was skipped.
It only reads, unless --active is given."
)]
pub struct Doctor {
    /// Also acquire, renew, check and release a lock on each primary
    #[arg(long)]
    pub active: bool,
    /// Prepend P to lock names
    #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// The lease that you will use
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::lease)]
    pub lease: Duration,
    /// The --min-hold that you will use
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::duration)]
    pub min_hold: Duration,
    /// The server_timeout of clients that wait without a limit
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::positive)]
    pub server_timeout: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
}
