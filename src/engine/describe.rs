//! The replies of LOCK.INFO, LOCK.HELDBY and INFO.

use super::key_step::{internal_error, invalid};
use super::server::{Part, Server, To};
use super::{confirm, drain, legacy, pump, schedule};
use crate::command::{error, heldby, info};
use crate::lock::effect::Existing;
use crate::lock::stats::{BUCKETS_MS, Durations};
use crate::lock::table::Description;
use crate::lock::tuning::Bound;
use crate::lock::types::{Mode, Token};

/// LOCK.INFO
pub fn info<S: Server>(server: &S, name: S::Name<'_>, args: &[S::Name<'_>]) {
    use super::server::Key;
    let shown_max = match info::parse(args) {
        Ok(shown_max) => shown_max,
        Err(error) => return invalid(server, &error),
    };
    let key = server.open(name, To::Read);
    let existing = legacy::find(server, &key, None);
    let lock_key = server.lock_key(name);
    let now = server.boot();
    let legacy_owner = if matches!(existing, Existing::Legacy(_)) { key.string() } else { Vec::new() };
    let shown =
        server.with(|state| match state.table.describe(now, lock_key, existing, &legacy_owner, shown_max) {
            Some(lock) => describe(server, &lock),
            None if existing == Existing::Other => server.reply(Part::Error(error::WRONG_TYPE)),
            None => server.reply(Part::Null),
        });
    if shown.is_none() {
        internal_error(server);
    }
}

/// Returns the name of a mode.
const fn kind(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Limit(_) => "limit",
    }
}

fn limit(mode: Mode) -> Option<u64> {
    match mode {
        Mode::Limit(limit) => Some(u64::from(limit)),
        Mode::Exclusive | Mode::Shared => None,
    }
}

/// Writes the reply of LOCK.INFO (CONTRACT 2).
fn describe<S: Server>(server: &S, lock: &Description<'_>) {
    let field = |name: &str| server.reply(Part::Bytes(name.as_bytes()));
    let maybe = |number: Option<u64>| server.reply(number.map_or(Part::Null, Part::Integer));
    server.reply(Part::Map(6));
    field("kind");
    // A lock with waiters alone is shown in their mode.
    field(kind(lock.mode));
    field("limit");
    maybe(limit(lock.mode));
    field("holds");
    server.reply(Part::Integer(lock.holders as u64));
    field("holders");
    server.reply(Part::Array(lock.holds.len()));
    for hold in &lock.holds {
        server.reply(Part::Map(8));
        field("owner");
        server.reply(Part::Bytes(&hold.owner));
        field("token");
        maybe(hold.token.map(Token::get));
        field("lease-left-ms");
        server.reply(Part::Integer(hold.left_ms));
        field("held-ms");
        maybe(hold.held_ms);
        field("count");
        server.reply(Part::Integer(u64::from(hold.count)));
        field("client-id");
        // A closed connection, or that of a script, helps no reader.
        maybe(hold.client.filter(|&client| server.is_connected(client)).map(|client| client.0));
        field("keepalive");
        server.reply(Part::Bool(hold.binding.is_paused()));
        field("ephemeral-ms");
        maybe(hold.binding.ephemeral_ms);
    }
    field("waiters");
    server.reply(Part::Integer(lock.waiters as u64));
    field("queue");
    server.reply(Part::Array(lock.queue.len()));
    for waiter in &lock.queue {
        server.reply(Part::Map(5));
        field("owner");
        server.reply(Part::Bytes(waiter.owner));
        field("mode");
        field(kind(waiter.mode));
        field("waited-ms");
        server.reply(Part::Integer(waiter.waited_ms));
        field("state");
        field(if waiter.client.is_some() { "blocked" } else { "queued" });
        field("client-id");
        maybe(waiter.client.map(|client| client.0));
    }
}

/// LOCK.HELDBY: everything that this owner holds and waits for, in all databases.
pub fn heldby<S: Server>(server: &S, owner: S::Name<'_>) {
    let owner = match heldby::parse(&owner) {
        Ok(owner) => owner,
        Err(error) => return invalid(server, &error),
    };
    let now = server.boot();
    let Some(all) = server.with(|state| state.table.held_by(now, owner)) else {
        return internal_error(server);
    };
    server.reply(Part::Array(all.len()));
    for one in all {
        server.reply(Part::Array(5));
        server.reply(Part::Bytes(&one.lock_key.name));
        server.reply(Part::Bytes(if one.held.is_some() { b"held" } else { b"waiting" }));
        server.reply(Part::Bytes(kind(one.mode).as_bytes()));
        match one.held {
            Some((token, left_ms)) => {
                server.reply(Part::Integer(token.get()));
                server.reply(Part::Integer(left_ms));
            }
            None => {
                server.reply(Part::Null);
                server.reply(Part::Null);
            }
        }
    }
}

/// A value of a field of INFO.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A word, or several numbers.
    Text(String),
}

/// Returns the fields of `INFO redislock` (CONTRACT 8) in order, except for version and commit.
pub fn fields<S: Server>(server: &S) -> Vec<(&'static str, Value)> {
    bury(server);
    let decides = server.flags().decides();
    let (now, wall_us, shared) = (server.boot(), server.wall_us(), server.shared());
    let replicas_too_many = confirm::replicas_too_many(server, now);
    let fields = server.with(|state| {
        let locks = state.table.locks();
        let obstacle = drain::obstacle(shared, locks, state.table.clock());
        let (table, confirm, settings) = (&state.table, &state.confirm, &shared.settings);
        let stats = table.stats();
        let number = |name, number| (name, Value::Number(number));
        let word = |name, word: &str| (name, Value::Text(word.to_owned()));
        let mut fields = vec![
            word("role", if decides { "primary" } else { "replica" }),
            number("locks", table.held() as u64),
            number("holds", table.holds() as u64),
            number("waiters", table.waiters() as u64),
            number("grants", stats.grants),
            number("contended_grants", stats.contended_grants),
            number("releases", stats.releases),
            number("expirations", stats.expirations),
            number("broken", stats.broken),
            number("timeouts", stats.timeouts),
            number("deadlocks", stats.deadlocks),
            number("fenced", stats.fenced),
        ];
        let names = ["wait_ms_p50", "wait_ms_p99", "wait_ms_max", "wait_ms_histogram"];
        fields.extend(durations(names, &stats.waits));
        let names = ["hold_ms_p50", "hold_ms_p99", "hold_ms_max", "hold_ms_histogram"];
        fields.extend(durations(names, &stats.holds));
        let quarantine_left_ms = table.quarantine_left_ms(now).filter(|_| decides);
        let (replicas, stable) = confirm.all.replicas(now, settings.stable_ms());
        let missing =
            confirm.rule.filter(|_| decides).map_or(0, |rule| confirm.all.replicas_missing(now, rule));
        fields.extend([
            number("quarantine_left_ms", quarantine_left_ms.unwrap_or(0)),
            word("confirm", settings.confirm_word()),
            number("group_size", settings.group_size()),
            number("confirm_replicas", replicas as u64),
            number("confirm_replicas_seasoned", stable as u64),
            number("confirm_replicas_missing", missing as u64),
            number("confirm_replicas_too_many", replicas_too_many),
            number("confirm_waits", confirm.all.len() as u64),
            number("confirm_successes", confirm.confirmed),
            number("confirm_failures", confirm.failed),
            word("leaving", obstacle.word()),
            number("last_token", table.last_token()),
            number("token_lead_us", table.token_lead_us(wall_us)),
            ("top_contended", Value::Text(state.contended.shown())),
        ]);
        fields
    });
    fields.unwrap_or_default()
}

/// Forgets locks whose values the server has freed, so that INFO does not count what a flush has removed. Forgets
/// only as many as cost no client any time; the pump forgets the rest.
fn bury<S: Server>(server: &S) {
    const ROUNDS: Bound = Bound::of(16, 2);
    if pump::has_dead(server) {
        let decides = server.flags().decides();
        let _is_done = (0..ROUNDS.get()).any(|_| pump::free_dead_locks(server, decides));
        let _ = schedule::after(server, |_| ());
    }
}

fn durations(names: [&'static str; 4], durations: &Durations) -> [(&'static str, Value); 4] {
    let counts = BUCKETS_MS.iter().zip(durations.buckets());
    let buckets: String = counts.map(|(bound, count)| format!("le_{bound}={count},")).collect();
    let (count, sum_ms) = (durations.count(), durations.sum_ms());
    [
        (names[0], Value::Number(durations.quantile_ms(0.5))),
        (names[1], Value::Number(durations.quantile_ms(0.99))),
        (names[2], Value::Number(durations.max_ms())),
        (names[3], Value::Text(format!("{buckets}le_inf={count},sum={sum_ms}"))),
    ]
}
