//! A load generator: pairs of commands that take and free a lock, from many connections.
//!
//! It must cost less than the server that it loads, which has the other core. So one thread serves all connections,
//! and every batch is encoded before the clock starts. A reply is looked at only as far as to see that it is the
//! wanted one. A wrong reply ends the run: a lock that was not granted is not a pair.
//!
//! It prints one line of JSON. See `load --help`.

mod client;
mod commands;
mod cpu;
mod drive;
mod options;
mod replies;

use std::process::ExitCode;
use std::time::Duration;

use client::Client;
use drive::{Outcome, drive};
use options::{HELP, Options};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(&words).and_then(|options| run(&options)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("load: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Warms up, measures, and returns what was seen.
fn run(options: &Options) -> Result<String, String> {
    let connect = |number| Client::connect(options, number);
    let mut clients = (0..options.connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    if !options.warm_up.is_zero() {
        drive(&mut clients, options.warm_up)?;
    }
    let before = server_cpu(options)?;
    let outcome = drive(&mut clients, options.seconds)?;
    let cpu = server_cpu(options)?.saturating_sub(before);
    Ok(told(&outcome, options.server_pid.map(|_| cpu)))
}

/// The processor time that the server has used; zero if it was not requested.
fn server_cpu(options: &Options) -> Result<Duration, String> {
    options.server_pid.map_or(Ok(Duration::ZERO), cpu::used_by)
}

/// The outcome as one line of JSON.
fn told(outcome: &Outcome, cpu: Option<Duration>) -> String {
    let (pairs, seconds) = (outcome.pairs() as f64, outcome.elapsed.as_secs_f64());
    let cpu = cpu.map(|cpu| format!(", \"server_cpu_us_per_pair\": {:.4}", micros(cpu) / pairs));
    format!(
        "{{\"pairs\": {pairs}, \"seconds\": {seconds:.6}, \"pairs_per_second\": {:.1}, \"p50_us\": {:.2}, \
         \"p99_us\": {:.2}{}}}",
        pairs / seconds,
        micros(outcome.quantile(0.50)),
        micros(outcome.quantile(0.99)),
        cpu.unwrap_or_default()
    )
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
