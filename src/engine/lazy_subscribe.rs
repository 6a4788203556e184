//! Subscribes to the server's events when the first lock is used. On every turn of its event loop, a server goes
//! through the subscriptions of all modules, so an unused module has none.

use super::flags::Level;
use super::server::{Server, Topic};
use crate::command::error::MAY_EVICT;

/// This module and those built into newer servers: they listen to no keyspace events.
const QUIET_MODULES: [&str; 3] = ["redislock", "lua", "vectorset"];

/// Subscribes to events at the first command, or at the first value that is loaded.
#[inline]
pub fn begin<S: Server>(server: &S) {
    if !server.shared().hears_events.is_set() {
        begin_first(server);
    }
}

#[cold]
fn begin_first<S: Server>(server: &S) {
    // The log names what the server does not report.
    let _is_all_told = server.listen(Topic::Locks);
    let shared = server.shared();
    shared.hears_events.set(true);
    let flags = server.flags();
    shared.note_role(flags);
    let _ = server.with(|state| state.pump.decides = flags.decides());
    // The end of a load that is running now will be reported.
    if !flags.is_loading {
        look_around(server);
    }
}

/// Reads the server's own settings that matter to the module.
pub fn look_around<S: Server>(server: &S) {
    look_at_eviction(server);
    look_for_listeners(server);
}

/// Checks whether the server may evict locks: at load, and when its configuration changes.
pub fn look_at_eviction<S: Server>(server: &S) {
    let shared = server.shared();
    shared.may_evict.set(server.may_evict());
    shared.eviction_is_logged.set(false);
    // Where grants are refused, in the middle of a step, the log cannot be written.
    if shared.grants_none_for_eviction()
        && server.with(|state| state.table.waiters()).is_some_and(|all| all > 0)
    {
        refuses_for_eviction(server);
    }
}

/// Returns true if no lock may be granted because it might be evicted. Logs that once.
#[inline]
pub fn refuses_for_eviction<S: Server>(server: &S) -> bool {
    let shared = server.shared();
    let refuses = shared.grants_none_for_eviction();
    if refuses && !shared.eviction_is_logged.set(true) {
        server.log(Level::Warning, MAY_EVICT);
    }
    refuses
}

/// Checks whether anything listens to keyspace events: at load, when the configuration changes, and when a module is
/// loaded or unloaded.
pub fn look_for_listeners<S: Server>(server: &S) {
    server.shared().events_are_heard.set(server.has_listeners());
}

/// Returns true if a server may evict keys without a time to live, by its `maxmemory-policy` and `maxmemory`. Unknown
/// settings count as yes.
#[must_use]
pub fn may_evict(policy: Option<&str>, memory_max: Option<&str>) -> bool {
    policy.is_none_or(|policy| policy.starts_with("allkeys-")) && memory_max.is_none_or(|max| max != "0")
}

/// Returns true if anything could listen to keyspace events, by `notify-keyspace-events` and the names of the
/// modules. Unknown settings count as yes.
pub fn has_listeners(events: Option<&str>, modules: impl FnOnce() -> Option<Vec<String>>) -> bool {
    let is_silent = events.is_some_and(str::is_empty);
    let is_quiet = |name: &String| QUIET_MODULES.contains(&name.as_str());
    !is_silent || !modules().is_some_and(|names| names.iter().all(is_quiet))
}

/// Logs, once at load, that no lock is granted because it could be evicted.
pub fn warn_of_eviction<S: Server>(server: &S) {
    let shared = server.shared();
    if shared.grants_none_for_eviction() {
        let text = "maxmemory-policy is allkeys-*: locks could be evicted, so none is granted \
             (see redislock.allow-eviction)";
        server.log(Level::Warning, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_locks_by_a_policy_for_all_keys_and_with_a_bound() {
        assert!(may_evict(Some("allkeys-lru"), Some("100")));
        assert!(!may_evict(Some("allkeys-lru"), Some("0")));
        assert!(!may_evict(Some("volatile-lru"), Some("100")) && !may_evict(Some("noeviction"), None));
        assert!(
            may_evict(None, None) && may_evict(None, Some("100")) && may_evict(Some("allkeys-lfu"), None)
        );
    }

    #[test]
    fn events_are_heard_by_clients_or_by_a_module_that_may_listen() {
        let modules = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(has_listeners(Some("KEA"), || unreachable!("the modules do not matter")));
        assert!(has_listeners(None, || unreachable!("the modules do not matter")));
        assert!(has_listeners(Some(""), || None));
        assert!(has_listeners(Some(""), || modules(&["redislock", "search"])));
        assert!(!has_listeners(Some(""), || modules(&["vectorset", "lua", "redislock"])));
        assert!(!has_listeners(Some(""), || modules(&[])), "we are being loaded");
    }
}
