package redislock;

import java.util.ArrayList;
import java.util.List;

/** The request of one acquire, with an owner of its own. */
final class Wanted {
    enum Kind { EXCLUSIVE, SHARED, LIMITED }

    final List<String> names;
    /** The length of each name's prefix in characters. */
    private final int prefix;
    final Kind kind;
    private final int limit;
    final long lease;
    /** The longest lease that a request asks for after a wait. */
    final long firstLease;
    final String owner;
    /** True if the program names the owner, which may then hold other locks. */
    final boolean isNamed;
    final LockListener listener;
    /** True if a request went unanswered, and may reach the server late. */
    boolean doubtful;
    /** True if the latest request is in flight or was granted. */
    private boolean grantable;
    /** True if any request was sent. */
    boolean sent;

    Wanted(List<String> names, int prefix, Kind kind, int limit, long lease, long firstLease, String owner,
            boolean isNamed, LockListener listener) {
        this.names = names;
        this.prefix = prefix;
        this.kind = kind;
        this.limit = limit;
        this.lease = lease;
        this.firstLease = firstLease;
        this.owner = owner;
        this.isNamed = isNamed;
        this.listener = listener;
    }

    String name() {
        return names.get(0);
    }

    /** Returns the names without their prefix, for people. */
    String label() {
        return Rules.label(names, prefix);
    }

    boolean mayBeGranted() {
        return doubtful || grantable;
    }

    void sends() {
        sent = true;
        grantable = true;
    }

    void gotNothing() {
        grantable = false;
    }

    /** Returns the request for the lock or for all of the locks. {@code how} is BLOCK, QUEUE or null. */
    List<String> acquire(long requested, String how, long most) {
        var words = new ArrayList<String>();
        words.add(names.size() > 1 ? "LOCK.MACQUIRE" : "LOCK.ACQUIRE");
        if (names.size() > 1) {
            words.add(Integer.toString(names.size()));
        }
        words.addAll(names);
        words.addAll(List.of(owner, "PX", Rules.milliseconds(requested)));
        if (how != null) {
            words.addAll(List.of(how, Rules.milliseconds(most)));
        }
        if (kind == Kind.SHARED) {
            words.add("SHARED");
        } else if (kind == Kind.LIMITED) {
            words.addAll(List.of("LIMIT", Integer.toString(limit)));
        }
        return words;
    }

    List<String> renew(String name, long requested, long token) {
        return List.of("LOCK.RENEW", name, owner, "PX", Rules.milliseconds(requested), "TOKEN", Long.toString(token));
    }

    /** Returns the request that releases the hold; without a token (0), it also ends the wait. */
    List<String> release(String name, long token) {
        return token == 0 ? List.of("LOCK.RELEASE", name, owner)
                : List.of("LOCK.RELEASE", name, owner, "TOKEN", Long.toString(token));
    }
}
