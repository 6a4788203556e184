//! `break`: ends a hold that was shown, by its token, so that it never ends the next one.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use std::os::unix::ffi::OsStrExt;

use redislock_client::redis::{Value, cmd};

use crate::exit::{Code, Failure};
use crate::look::{described, find};
use crate::nodes::ask_for;
use crate::options::Break;
use crate::print;
use crate::show::{Holder, Shown, printable};
use crate::target::Place;

/// Shows the lock, asks, and ends one hold, or with `--force` all.
pub fn break_hold(options: &Break, is_from_environment: bool) -> Result<u8, Failure> {
    let place = Place::of(&options.server, is_from_environment)?;
    let key = options.name.as_bytes();
    let name = printable(key);
    let Some(lock) = find(&place, key)? else {
        print(format!("nobody holds '{name}'\n").as_bytes());
        return Ok(0);
    };
    print(described(&lock).as_bytes());
    if options.force {
        ask(options, &format!("delete '{name}' with all its holds?"))?;
        let mut request = cmd("DEL");
        request.arg(key);
        let was_there = ask_for(&place, &request)? == Value::Int(1);
        print(if was_there { "deleted\n" } else { "it was free already\n" }.as_bytes());
        return Ok(0);
    }
    let holder = choose(options, &lock)?;
    ask(options, &format!("end the hold of {} with token {}?", holder.owner, holder.token))?;
    let mut request = cmd("LOCK.RELEASE");
    request.arg(key).arg(&holder.raw_owner).arg("TOKEN").arg(holder.token);
    let is_ended = ask_for(&place, &request)? == Value::Int(1);
    let said = if is_ended { "ended" } else { "that hold has ended already; nothing was done" };
    print(format!("{said}\n").as_bytes());
    Ok(0)
}

/// The one hold that is meant.
fn choose<'a>(options: &Break, lock: &'a Shown) -> Result<&'a Holder, Failure> {
    if let Some(owner) = &options.owner {
        let found = lock.holders.iter().find(|holder| holder.raw_owner == owner.as_bytes());
        return found.ok_or_else(|| Failure::usage("--owner: expected one of the holders that are shown"));
    }
    match &lock.holders[..] {
        [holder] if lock.holds <= 1 => Ok(holder),
        [] => Err(Failure::new(Code::Usage, "NAME: nobody holds it; it is only waited for")),
        _ => Err(Failure::usage("--owner: several hold it; expected one of the holders that are shown")),
    }
}

/// Asks, unless `--yes` was said.
fn ask(options: &Break, question: &str) -> Result<(), Failure> {
    if options.yes {
        return Ok(());
    }
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(Failure::usage("--yes: expected where there is no terminal to ask on"));
    }
    drop(write!(stderr(), "{question} [y/N] "));
    let mut answer = String::new();
    let read = stdin().lock().read_line(&mut answer);
    match read.map(|_| answer.trim().to_ascii_lowercase()).as_deref() {
        Ok("y" | "yes") => Ok(()),
        _ => Err(Failure::usage("--yes: nothing was done")),
    }
}
