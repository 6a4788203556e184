//! A server whose locks nobody uses yet need not tell of what happens to it: with every turn of its event loop it goes
//! through all subscriptions of all modules.

use super::server::{Server, Topic};

/// There is, or is about to be, something to know about: the first command or the first value that is loaded.
#[inline]
pub fn begin<S: Server>(server: &S) {
    if !server.shared().hears_events.is_set() {
        begin_first(server);
    }
}

#[cold]
fn begin_first<S: Server>(server: &S) {
    // What the server does not tell is in its log.
    let _is_all_told = server.listen(Topic::Locks);
    let shared = server.shared();
    shared.hears_events.set(true);
    let flags = server.flags();
    shared.note_role(flags);
    let _ = server.with(|state| state.pump.decides = flags.decides());
    // Whatever is being loaded now will be followed by its end.
    if !flags.is_loading {
        look_around(server);
    }
}

/// What the server's own configuration says that matters to us.
pub fn look_around<S: Server>(server: &S) {
    look_at_eviction(server);
    look_for_listeners(server);
}

/// Whether the server may evict locks: at load, and whenever its configuration changes.
pub fn look_at_eviction<S: Server>(server: &S) {
    server.shared().may_evict.set(server.may_evict());
    server.shared().eviction_is_logged.set(false);
}

/// Who hears keyspace events: at load, when the configuration changes, when a module comes or goes.
pub fn look_for_listeners<S: Server>(server: &S) {
    server.shared().events_are_heard.set(server.has_listeners());
}
