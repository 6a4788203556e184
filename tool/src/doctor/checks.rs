//! The checks, in the order in which they are shown.

use std::collections::BTreeSet;
use std::time::Duration;

use redislock_client::redis::Value;

use super::Level::{Error, Warning};
use super::facts::{Facts, Known};
use super::{Finding, Level, versions};
use crate::options::Doctor;
use crate::values::shown;

/// The difference between wall clocks, or tokens, above which it is reported.
const CLOCKS_APART_MS: i128 = 1000;
/// Above this part of a bound, a server is nearly full.
const FULL_PERCENT: u64 = 90;

const CONTRACT: &str = "docs/internals/contract.md";
const INSTALL: &str = "docs/operations/install-and-upgrade.md#install";
const FAILOVER: &str = "docs/reference/failover-guarantees.md#two-settings";
const QUARANTINE: &str = "docs/reference/failover-guarantees.md#with-a-quarantine";
const CONFIRM: &str = "docs/reference/failover-guarantees.md#with-confirmations";
const RESTARTS: &str = "docs/reference/guarantees.md#restarts";
const RENAMED: &str = "docs/reference/compatibility.md#renamed-commands";
const SETTINGS: &str = "redis.conf.example";
const SECURITY: &str = "docs/how-to/acl.md";
const TIME: &str = "docs/reference/guarantees.md#time";

const CONFIG: &str = "CONFIG GET";

pub fn all(known: &mut Known, options: &Doctor) -> Vec<Finding> {
    let mut found = vec![module(known)];
    if known.nodes.is_empty() {
        return found; // no server has answered: nothing else can be said of them
    }
    found.extend(known.nodes.iter().map(versions::server));
    found.push(settings(known));
    found.extend(primaries(known).map(eviction));
    found.extend(primaries(known).map(confirmed));
    found.extend(primaries(known).map(|node| quarantine(node, options)));
    found.extend(primaries(known).map(persistence));
    found.extend(
        known.nodes.iter_mut().filter(|node| node.is_primary).map(|node| rights(node, &options.prefix)),
    );
    found.extend(primaries(known).map(limits));
    found.extend(known.down_after_ms.map(|shown| sentinel(shown, options)));
    found.extend(primaries(known).map(|node| round_trips(node, options.lease)));
    found.extend(known.nodes.iter().map(one_server));
    found.extend(known.nodes.iter_mut().filter(|node| node.is_primary).map(renamed));
    found.push(clocks(known));
    found
}

fn primaries(known: &Known) -> impl Iterator<Item = &Facts> {
    known.nodes.iter().filter(|node| node.is_primary)
}

/// A setting that a check needs and does not know: the user may not read settings, or the module is missing.
fn unseen_setting(check: &'static str, node: &Facts, name: &str) -> Finding {
    match &node.config {
        Err(why) => Finding::refused(check, &node.address, CONFIG, why),
        Ok(_) if name.starts_with("redislock.") => Finding::without_module(check, &node.address),
        Ok(_) => Finding::skipped(check, format!("{} shows no setting {name}", node.address)),
    }
}

/// The module and its version on every node, also on those that may become the primary.
fn module(known: &Known) -> Finding {
    const CHECK: &str = "module";
    if let Some((address, why)) = known.silent.first() {
        let advice = ("Start it, or take it out of the group", FAILOVER);
        return Finding::new(Error, CHECK, format!("{address} does not answer: {why}"), advice);
    }
    let lacks_it = |node: &&Facts| node.info.is_ok() && node.field("redislock_version").is_none();
    if let Some(node) = known.nodes.iter().find(lacks_it) {
        let advice = ("Load it on every node, replicas too", INSTALL);
        return Finding::new(Error, CHECK, format!("{} has no module redislock", node.address), advice);
    }
    if let Some((node, why)) = known.nodes.iter().find_map(|node| Some((node, node.info.as_ref().err()?))) {
        return Finding::refused(CHECK, &node.address, "INFO", why);
    }
    let versions: BTreeSet<_> =
        known.nodes.iter().filter_map(|node| node.field("redislock_version")).collect();
    let names = versions.iter().copied().collect::<Vec<_>>().join(", ");
    if versions.len() > 1 {
        let advice = ("End the upgrade", "docs/operations/install-and-upgrade.md#upgrade");
        return Finding::new(Warning, CHECK, format!("several versions: {names}"), advice);
    }
    Finding::ok(CHECK, format!("redislock {names} on {} of {0} nodes", known.nodes.len()))
}

/// The same settings everywhere: a failover must change no rule.
fn settings(known: &Known) -> Finding {
    const CHECK: &str = "settings";
    if let Some((node, why)) = known.nodes.iter().find_map(|node| Some((node, node.config.as_ref().err()?))) {
        return Finding::refused(CHECK, &node.address, CONFIG, why);
    }
    let (with, without): (Vec<_>, Vec<_>) =
        known.nodes.iter().partition(|node| node.module_settings().next().is_some());
    let names: BTreeSet<_> = with.iter().flat_map(|node| node.module_settings()).collect();
    for name in &names {
        let values: BTreeSet<_> = with.iter().map(|node| node.setting(name).unwrap_or("-")).collect();
        if values.len() > 1 {
            let values = values.into_iter().collect::<Vec<_>>().join(", ");
            let advice = ("Set it alike on every node, with CONFIG REWRITE", SETTINGS);
            return Finding::new(Error, CHECK, format!("{name} differs between nodes: {values}"), advice);
        }
    }
    if let Some(node) = without.first() {
        return Finding::without_module(CHECK, &node.address);
    }
    Finding::ok(CHECK, format!("{} settings are the same on every node", names.len()))
}

fn eviction(node: &Facts) -> Finding {
    const CHECK: &str = "eviction";
    let (Some(most), Some(policy)) = (node.number("maxmemory"), node.setting("maxmemory-policy")) else {
        return unseen_setting(CHECK, node, "maxmemory");
    };
    if most == 0 || policy == "noeviction" {
        return Finding::ok(CHECK, format!("{} evicts no lock", node.address));
    }
    let advice = ("Set maxmemory-policy noeviction", SETTINGS);
    let text = format!("{} may evict keys ({policy})", node.address);
    let is_allowed = node.setting("redislock.allow-eviction") == Some("yes");
    let (level, rest) = if is_allowed { (Warning, "and so locks") } else { (Error, "and so grants no lock") };
    Finding::new(level, CHECK, format!("{text}, {rest}"), advice)
}

fn confirmed(node: &Facts) -> Finding {
    const CHECK: &str = "confirm";
    let address = &node.address;
    let confirm = match (&node.info, node.field("redislock_confirm")) {
        (Err(why), _) => return Finding::refused(CHECK, address, "INFO", why),
        (_, None) => return Finding::without_module(CHECK, address),
        (_, Some(confirm)) => confirm,
    };
    let missing = node.count("redislock_confirm_replicas_missing");
    let unseasoned = node
        .count("redislock_confirm_replicas")
        .saturating_sub(node.count("redislock_confirm_replicas_seasoned"));
    if missing > 0 && confirm == "majority" && missing <= unseasoned {
        let advice = ("Wait for one redislock.quarantine: until then it grants nothing", CONFIRM);
        let text = format!(
            "{missing} replicas of {address} connected less than a quarantine ago (confirm majority)"
        );
        return Finding::new(Error, CHECK, text, advice);
    }
    if missing > 0 {
        let advice = ("Connect them: until then it grants nothing", CONFIRM);
        return Finding::new(
            Error,
            CHECK,
            format!("{address} lacks {missing} replicas (confirm {confirm})"),
            advice,
        );
    }
    if node.count("redislock_confirm_replicas_too_many") > 0 {
        let advice = ("Set redislock.group-size to the number of data nodes", CONFIRM);
        return Finding::new(
            Error,
            CHECK,
            format!("{address} has more replicas than its group-size says"),
            advice,
        );
    }
    let replicas = node.count("connected_slaves");
    if confirm == "local" && replicas > 0 {
        let advice = ("Pass the fencing token on, or set redislock.confirm", FAILOVER);
        let text = format!("a failover of {address} can lose the last grants (confirm local)");
        return Finding::new(Warning, CHECK, text, advice);
    }
    Finding::ok(CHECK, format!("{address}: confirm {confirm}, {replicas} replicas"))
}

fn quarantine(node: &Facts, options: &Doctor) -> Finding {
    const CHECK: &str = "leases";
    let (Some(quarantine), Some(most)) =
        (node.number("redislock.quarantine"), node.number("redislock.max-lease"))
    else {
        return unseen_setting(CHECK, node, "redislock.max-lease");
    };
    if node.setting("redislock.leaving") == Some("yes") {
        let advice =
            ("Set it to no, or wait for the end of the removal", "docs/operations/uninstall.md#uninstall");
        let text = format!("{} grants no lock any more (redislock.leaving yes)", node.address);
        return Finding::new(Error, CHECK, text, advice);
    }
    let bound = Duration::from_millis(if quarantine > 0 { quarantine.min(most) } else { most });
    for (option, asked) in [("--lease", options.lease), ("--min-hold", options.min_hold)] {
        if asked > bound {
            let advice = ("Ask for less, or raise redislock.max-lease and redislock.quarantine", CONTRACT);
            let text = format!(
                "{option} {} is above the longest lease of {}, {}",
                shown(asked),
                node.address,
                shown(bound)
            );
            return Finding::new(Error, CHECK, text, advice);
        }
    }
    if let Err(why) = &node.info {
        return Finding::refused(CHECK, &node.address, "INFO", why);
    }
    let left = node.count("redislock_quarantine_left_ms");
    if left > 0 {
        let left = shown(Duration::from_millis(left));
        let advice = ("Wait for its end", QUARANTINE);
        return Finding::new(Warning, CHECK, format!("{} is in quarantine for {left}", node.address), advice);
    }
    Finding::ok(CHECK, format!("{} takes leases of up to {}", node.address, shown(bound)))
}

/// Checks what a restart loses, unless a quarantine covers it.
fn persistence(node: &Facts) -> Finding {
    const CHECK: &str = "persistence";
    let (Some(file), Some(sync), Some(quarantine)) =
        (node.setting("appendonly"), node.setting("appendfsync"), node.number("redislock.quarantine"))
    else {
        return unseen_setting(CHECK, node, "redislock.quarantine");
    };
    let advice = ("Set redislock.quarantine to the longest lease", RESTARTS);
    match (quarantine, file, sync) {
        (1.., ..) => Finding::ok(CHECK, format!("a quarantine covers a restart of {}", node.address)),
        (0, "yes", "always") => Finding::ok(CHECK, format!("{} writes each grant to its file", node.address)),
        (0, "yes", _) => {
            let text = format!("a crash of {} forgets the last grants (appendfsync {sync})", node.address);
            Finding::new(Warning, CHECK, text, advice)
        }
        _ => {
            let text =
                format!("a restart of {} can forget locks (appendonly no, no quarantine)", node.address);
            Finding::new(Warning, CHECK, text, advice)
        }
    }
}

/// The rights of this user, for each command that the tool and the client libraries send.
fn rights(node: &mut Facts, prefix: &str) -> Finding {
    const CHECK: &str = "rights";
    let user = match node.node.text(&["ACL", "WHOAMI"]) {
        Ok(user) => user,
        Err(why) => return Finding::refused(CHECK, &node.address, "ACL WHOAMI", why.text()),
    };
    let key = format!("{prefix}doctor");
    let needed: [(&[&str], Level); 8] = [
        (&["LOCK.ACQUIRE", &key, "owner", "PX", "1000"], Error),
        (&["LOCK.RENEW", &key, "owner", "PX", "1000"], Error),
        (&["LOCK.RELEASE", &key, "owner"], Error),
        (&["LOCK.FENCE", &key], Warning),
        (&["LOCK.INFO", &key], Warning),
        (&["LOCK.HELDBY", "owner"], Warning),
        (&["CLIENT", "TRACKING", "ON"], Warning),
        (&["SCAN", "0"], Warning),
    ];
    let mut worst: Option<(Level, String)> = None;
    let mut knows_all = true;
    for (words, level) in needed {
        let asked: Vec<&str> = ["ACL", "DRYRUN", &user].into_iter().chain(words.iter().copied()).collect();
        match node.node.text(&asked) {
            Ok(text) if text == "OK" => {}
            Ok(text) => {
                if worst.as_ref().is_none_or(|(known, _)| *known < level) {
                    worst = Some((level, format!("{}: {text}", words[0])));
                }
            }
            // The module is missing; or the command is renamed, which `renamed` reports.
            Err(refusal) if refusal.text().contains("not found") => {
                knows_all &= !words[0].starts_with("LOCK.");
            }
            Err(why) => return Finding::refused(CHECK, &node.address, "ACL DRYRUN", why.text()),
        }
    }
    match worst {
        Some((level, text)) => {
            let advice = ("Give the right to the user", SECURITY);
            Finding::new(level, CHECK, format!("{}: user {user}: {text}", node.address), advice)
        }
        None if !knows_all => Finding::without_module(CHECK, &node.address),
        None => Finding::ok(CHECK, format!("{}: user {user} may run all commands", node.address)),
    }
}

fn limits(node: &Facts) -> Finding {
    const CHECK: &str = "limits";
    let (Some(timeout), Some(keepalive)) = (node.number("timeout"), node.number("tcp-keepalive")) else {
        return unseen_setting(CHECK, node, "timeout");
    };
    let (address, warn) =
        (&node.address, |text: String, what| Finding::new(Warning, CHECK, text, (what, SETTINGS)));
    if timeout > 0 {
        return warn(format!("{address} cuts idle connections after {timeout} s"), "Set timeout 0");
    }
    if keepalive == 0 {
        let text = format!("{address} never notices that a client's machine is gone (tcp-keepalive 0)");
        return warn(text, "Set tcp-keepalive 60");
    }
    if let Err(why) = &node.info {
        return Finding::refused(CHECK, address, "INFO", why);
    }
    let nearly = |used: u64, most: u64| most > 0 && used.saturating_mul(100) / most >= FULL_PERCENT;
    let (clients, most) = (node.count("connected_clients"), node.number("maxclients").unwrap_or_default());
    if nearly(clients, most) {
        return warn(format!("{address} has {clients} of at most {most} clients"), "Raise maxclients");
    }
    let (used, most) = (node.count("used_memory"), node.number("maxmemory").unwrap_or_default());
    if nearly(used, most) {
        return warn(
            format!("{address} uses {used} of {most} bytes"),
            "Raise maxmemory: a full server grants nothing",
        );
    }
    Finding::ok(CHECK, format!("{address} has room, and cuts no idle connection"))
}

/// A failover begins after `down-after-milliseconds`. A lease is renewed at its third, and no server answers meanwhile.
fn sentinel(down_after_ms: Option<u64>, options: &Doctor) -> Finding {
    const CHECK: &str = "sentinel";
    let Some(down_after_ms) = down_after_ms else {
        return Finding::skipped(CHECK, "no sentinel answers SENTINEL MASTER");
    };
    let (down_after, third) = (Duration::from_millis(down_after_ms), options.lease / 3);
    let text = format!("down-after-milliseconds is {}", shown(down_after));
    if down_after > third {
        let advice = ("Lower it below a third of the lease, or each failover ends all commands", FAILOVER);
        return Finding::new(Warning, CHECK, text, advice);
    }
    if down_after >= options.server_timeout {
        let text = format!("{text}, and the clients' server_timeout {}", shown(options.server_timeout));
        let advice = ("Lower it, or each failover ends all waits without an end", FAILOVER);
        return Finding::new(Warning, CHECK, text, advice);
    }
    Finding::ok(CHECK, text)
}

fn round_trips(node: &Facts, lease: Duration) -> Finding {
    const CHECK: &str = "round-trips";
    let text = format!("p99 to {} is {:.1} ms", node.address, node.round_trip.as_secs_f64() * 1000.0);
    if node.round_trip > lease / 30 {
        let advice = ("Take a longer lease, or a server that is nearer", "docs/reference/tool.md");
        return Finding::new(Warning, CHECK, text + ", above a thirtieth of the lease", advice);
    }
    Finding::ok(CHECK, text)
}

/// Checks that the address leads to one server: a proxy or a moving address may lead to several, or to a
/// replica.
fn one_server(node: &Facts) -> Finding {
    const CHECK: &str = "address";
    if node.is_primary && node.field("role") == Some("slave") {
        let advice = ("Name its primary, or use a URL of Sentinel", FAILOVER);
        let text = format!("{} is a replica, which grants nothing", node.address);
        return Finding::new(Error, CHECK, text, advice);
    }
    if let Err(why) = &node.info {
        return Finding::refused(CHECK, &node.address, "INFO", why);
    }
    match (node.run_ids.len(), &node.unknown_run_id) {
        (0, _) => Finding::skipped(CHECK, "INFO shows no run_id"),
        (1, None) => Finding::ok(CHECK, format!("{} leads to one server", node.address)),
        (1, Some(why)) => {
            let text = format!("{} answered one connection and failed another one ({why})", node.address);
            Finding::skipped(CHECK, text)
        }
        (many, _) => {
            let advice = ("Connect to the primary itself, or through Sentinel", FAILOVER);
            Finding::new(Error, CHECK, format!("{} leads to {many} servers", node.address), advice)
        }
    }
}

fn renamed(node: &mut Facts) -> Finding {
    const CHECK: &str = "commands";
    const LOST: (&str, &str) = ("Restrict commands by ACL rules, not by rename-command", RENAMED);
    let names = ["SCAN", "DEL", "CLIENT", "CONFIG", "INFO", "DBSIZE", "TIME", "MODULE", "ROLE", "REPLCONF"];
    let words: Vec<&str> = ["COMMAND", "INFO"].into_iter().chain(names).collect();
    let found = match node.node.words(&words) {
        Ok(Value::Array(found)) => found,
        Err(refusal) if refusal.text().to_ascii_lowercase().contains("unknown command") => {
            return Finding::new(Warning, CHECK, format!("{} lacks COMMAND", node.address), LOST);
        }
        Err(why) => return Finding::refused(CHECK, &node.address, "COMMAND INFO", why.text()),
        Ok(_) => return Finding::skipped(CHECK, format!("{} answers COMMAND INFO otherwise", node.address)),
    };
    let missing = |found: &Value| match found {
        Value::Nil => true,
        Value::Array(words) => words.is_empty(),
        _ => false,
    };
    let lacking: Vec<_> =
        names.iter().zip(&found).filter(|(_, found)| missing(found)).map(|(name, _)| *name).collect();
    if lacking.is_empty() {
        return Finding::ok(CHECK, format!("{} knows all commands by their names", node.address));
    }
    Finding::new(Warning, CHECK, format!("{} lacks {}", node.address, lacking.join(", ")), LOST)
}

fn clocks(known: &Known) -> Finding {
    const CHECK: &str = "clocks";
    for node in &known.nodes {
        let lead_us = node.count("redislock_token_lead_us");
        if i128::from(lead_us / 1000) > CLOCKS_APART_MS {
            let lead = shown(Duration::from_micros(lead_us));
            let advice = ("Find out which clock was wrong", TIME);
            return Finding::new(
                Warning,
                CHECK,
                format!("tokens of {} are {lead} ahead of its clock", node.address),
                advice,
            );
        }
    }
    let ahead = || known.nodes.iter().filter_map(|node| node.clock_ahead_ms.as_ref().ok().copied());
    let apart = ahead().max().unwrap_or_default() - ahead().min().unwrap_or_default();
    let farthest = ahead().map(i128::abs).max().unwrap_or_default();
    if farthest.max(apart) > CLOCKS_APART_MS {
        let advice = ("Run an NTP client on every machine: --min-hold counts on it", TIME);
        return Finding::new(Warning, CHECK, format!("clocks differ by up to {farthest} ms"), advice);
    }
    for node in &known.nodes {
        if let Err(why) = &node.info {
            return Finding::refused(CHECK, &node.address, "INFO", why);
        }
        if node.field("redislock_version").is_none() {
            return Finding::without_module(CHECK, &node.address);
        }
        if let Err(why) = &node.clock_ahead_ms {
            return Finding::refused(CHECK, &node.address, "TIME", why);
        }
    }
    Finding::ok(CHECK, "wall clocks agree within a second")
}
