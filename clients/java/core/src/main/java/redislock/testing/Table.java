package redislock.testing;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;
import redislock.testing.Server.Connection;

/** The locks of one server, and its commands. The caller must hold the server's lock. Times are milliseconds. */
final class Table {
    /** Increases over all servers of a process. */
    private static final AtomicLong TOKENS = new AtomicLong();
    private static final String NULL = "_\r\n";
    /** The version of the module whose commands these are: 300 is 0.3.0. */
    private static final int VERSION = 300;
    private static final long LONGEST_LEASE = 3_600_000;
    /** The number of holders and waiters that LOCK.INFO lists. */
    private static final int NAMED = 10;
    private static final int SHARED = -1;

    private static final class Hold {
        private final String name;
        private final String owner;
        private final long token;
        private final long granted = now();
        /** 0 for exclusive, {@link #SHARED}, or the limit of a semaphore. */
        private int kind;
        private long until;

        Hold(String name, Asked asked, long token) {
            this.name = name;
            this.owner = asked.owner;
            this.token = token;
            kind = asked.kind;
            until = granted + asked.lease;
        }
    }

    /** A place in the queues of some locks; {@code blocked} is the connection that waits for the reply. */
    private record Wait(Asked asked, long since, long until, @Nullable Connection blocked) {
        /** Replies that a newer request of the same owner takes this place. */
        boolean isOvertaken() {
            if (blocked != null) {
                blocked.send(refuse("UNBLOCKED a newer request of the same owner took over this place in the queue"));
            }
            return true;
        }
    }

    /** An owner that keeps another one from a lock, because it holds the lock or waits for it. */
    private record Other(String owner, int kind) {}

    private static final class Asked {
        private final List<String> names;
        private final String owner;
        private int kind;
        private long lease;
        private long token;
        /** The time that it waits; -1 if it does not wait. */
        private long queue = -1;
        private boolean isBlocking;

        Asked(List<String> names, String owner) {
            this.names = names;
            this.owner = owner;
        }

        boolean isRival(Asked other) {
            return owner.equals(other.owner) && other.names.stream().anyMatch(names::contains);
        }
    }

    private final List<Hold> holds = new ArrayList<>();
    /** In order of arrival, which is the order of each queue. */
    private final List<Wait> waits = new ArrayList<>();
    /** The connections to notify of the next change of a lock. */
    private final Map<String, Set<Connection>> watched = new HashMap<>();

    private static long now() {
        return System.nanoTime() / 1_000_000;
    }

    private static String integer(long number) {
        return ":" + number + "\r\n";
    }

    private static String bulk(String text) {
        return "$" + text.getBytes(StandardCharsets.UTF_8).length + "\r\n" + text + "\r\n";
    }

    private static String array(List<String> items) {
        return "*" + items.size() + "\r\n" + String.join("", items);
    }

    private static String map(String... items) {
        return "%" + items.length / 2 + "\r\n" + String.join("", items);
    }

    private static String refuse(String text) {
        return "-" + text.replaceAll("[\r\n]", " ") + "\r\n";
    }

    /** Ends the leases and waits whose time is up. */
    void tick() {
        drop(hold -> hold.until <= now());
        leave(wait -> wait.until <= now());
    }

    /** Returns the time until a lease or a wait ends. */
    long next() {
        long next = now() + LONGEST_LEASE;
        for (var hold : holds) {
            next = Math.min(next, hold.until);
        }
        for (var wait : waits) {
            next = Math.min(next, wait.until);
        }
        return Math.max(1, next - now());
    }

    void lose(String name) {
        drop(hold -> hold.name.equals(name));
    }

    void detach(Connection connection) {
        watched.values().forEach(each -> each.remove(connection));
        leave(wait -> wait.blocked == connection);
    }

    /** Ends these holds, which may admit others. */
    private void drop(Predicate<Hold> which) {
        var ended = holds.stream().filter(which).toList();
        holds.removeAll(ended);
        changes(ended.stream().map(hold -> hold.name).toList());
    }

    /** Ends these waits without a grant, which may admit others. */
    private void leave(Predicate<Wait> which) {
        var ended = waits.stream().filter(which).toList();
        waits.removeAll(ended);
        for (var wait : ended) {
            if (wait.blocked != null) {
                wait.blocked.send(NULL);
            }
            changes(wait.asked.names);
        }
    }

    /** Notifies the connections that watch these locks, and grants to the blocked requests whose turn it is. */
    private void changes(Collection<String> names) {
        for (var name : names) {
            var told = watched.remove(name);
            if (told != null) {
                told.forEach(each -> each.send(">2\r\n" + bulk("invalidate") + array(List.of(bulk(name)))));
            }
            var next = waits.stream().filter(wait -> wait.blocked != null && wait.asked.names.contains(name)
                    && fits(wait.asked)).findFirst().orElse(null);
            if (next != null && next.blocked != null) {
                waits.remove(next);
                next.blocked.send(integer(grant(next.asked))); // comes here again
            }
        }
    }

    /** Returns the reply; an empty one if that comes later. */
    String command(Connection connection, List<String> words) {
        String command = words.isEmpty() ? "" : words.get(0).toUpperCase(Locale.ROOT);
        switch (command) {
            case "HELLO":
                return map(bulk("proto"), integer(3), bulk("role"), bulk("master"), bulk("modules"),
                        array(List.of(map(bulk("name"), bulk("redislock"), bulk("ver"), integer(VERSION)))));
            case "CLIENT":
                connection.tracks = true;
                return "+OK\r\n";
            case "SELECT":
                return "+OK\r\n";
            default:
                break;
        }
        if (words.size() < 2) {
            return refuse("ERR redislock.testing does not know these words of " + command);
        }
        switch (command) {
            case "LOCK.FENCE":
                return fence(connection, words.get(1), words.size() > 2 ? words.get(2) : null);
            case "LOCK.INFO":
                return info(words.get(1));
            case "LOCK.ACQUIRE", "LOCK.MACQUIRE", "LOCK.RENEW", "LOCK.RELEASE":
                break;
            default:
                return refuse("ERR redislock.testing has no command " + command);
        }
        var asked = parse(command, words);
        if (asked == null) {
            return refuse("ERR redislock.testing does not know these words of " + command);
        } else if (asked.lease > LONGEST_LEASE) {
            return refuse("ERR PX must be an integer from 1 to " + LONGEST_LEASE + " (milliseconds)");
        } else if (command.endsWith("ACQUIRE")) {
            return acquire(connection, asked);
        }
        if (command.equals("LOCK.RELEASE")) {
            leave(wait -> wait.asked.isRival(asked));
        }
        var hold = holds.stream().filter(each -> each.name.equals(asked.names.get(0)) && each.owner.equals(asked.owner)
                && (asked.token == 0 || asked.token == each.token)).findFirst();
        hold.ifPresent(each -> {
            if (command.equals("LOCK.RELEASE")) {
                drop(other -> other == each);
            } else {
                each.until = now() + asked.lease;
            }
        });
        return integer(hold.isPresent() ? 1 : 0);
    }

    private static @Nullable Asked parse(String command, List<String> words) {
        try {
            int first = command.equals("LOCK.MACQUIRE") ? 2 : 1;
            int count = first == 2 ? Integer.parseInt(words.get(1)) : 1;
            var asked = new Asked(List.copyOf(words.subList(first, first + count)), words.get(first + count));
            for (int at = first + count + 1; at < words.size(); at++) {
                String option = words.get(at);
                if (option.equals("SHARED")) {
                    asked.kind = SHARED;
                    continue;
                }
                long number = Long.parseLong(words.get(++at));
                switch (option) {
                    case "PX" -> asked.lease = number;
                    case "QUEUE" -> asked.queue = number;
                    case "BLOCK" -> {
                        asked.queue = number;
                        asked.isBlocking = true;
                    }
                    case "TOKEN" -> asked.token = number;
                    case "LIMIT" -> asked.kind = (int) number;
                    default -> {
                        return null;
                    }
                }
            }
            return asked;
        } catch (NumberFormatException | IndexOutOfBoundsException e) {
            return null;
        }
    }

    private String acquire(Connection connection, Asked asked) {
        for (var name : asked.names) {
            var kind = kindOf(name);
            if (kind != null && Math.max(0, kind) != Math.max(0, asked.kind)) {
                return refuse("LOCKKIND this lock is of another kind now; all its holders and waiters must use that kind");
            }
        }
        var held = holds.stream().filter(hold -> hold.owner.equals(asked.owner) && asked.names.contains(hold.name)).toList();
        if (!held.isEmpty()) {
            return again(held, asked);
        }
        boolean isWaiting = asked.queue >= 0;
        Predicate<Wait> isOther = wait -> wait.asked.isRival(asked)
                && (wait.asked.kind != asked.kind || !wait.asked.names.equals(asked.names));
        if (isWaiting) {
            leave(isOther); // which loses the position
        }
        // A request that does not wait stays behind its owner's wait in another mode.
        if (waits.stream().noneMatch(isOther) && fits(asked)) {
            waits.removeIf(wait -> wait.asked.isRival(asked) && wait.isOvertaken());
            return integer(grant(asked));
        }
        if (!isWaiting) {
            return NULL;
        }
        var steps = chain(asked, asked.owner, new HashSet<>(Set.of(asked.owner)));
        if (steps != null) {
            return refuse("DEADLOCK this wait would never end: " + String.join(", ", steps));
        }
        int at = 0;
        while (at < waits.size() && !waits.get(at).asked.isRival(asked)) {
            at++;
        }
        long since = at < waits.size() && waits.get(at).isOvertaken() ? waits.remove(at).since : now();
        waits.add(at, new Wait(asked, since, now() + asked.queue, asked.isBlocking ? connection : null));
        return asked.isBlocking ? "" : NULL;
    }

    /** Handles another request of the same owner: it gets the same token, and the longer lease. */
    private String again(List<Hold> held, Asked asked) {
        for (var hold : held) {
            // A writer may continue as a reader.
            boolean isLowered = asked.names.size() == 1 && hold.kind == 0 && asked.kind == SHARED;
            if (held.size() < asked.names.size() || hold.token != held.get(0).token || hold.kind != asked.kind && !isLowered) {
                return refuse("LOCKHELD '" + asked.names.get(0) + "' is held by this owner already, but not in the "
                        + "requested way: release every key that this request names, then ask again");
            }
        }
        for (var hold : held) {
            hold.kind = asked.kind;
            hold.until = Math.max(hold.until, now() + asked.lease);
        }
        changes(asked.names);
        return integer(held.get(0).token);
    }

    private long grant(Asked asked) {
        long token = TOKENS.incrementAndGet();
        asked.names.forEach(name -> holds.add(new Hold(name, asked, token)));
        changes(asked.names);
        return token;
    }

    private String fence(Connection connection, String name, @Nullable String token) {
        if (connection.tracks) {
            watched.computeIfAbsent(name, each -> new LinkedHashSet<>()).add(connection);
        }
        var live = holds.stream().filter(hold -> hold.name.equals(name)).map(hold -> hold.token).toList();
        if (token != null) {
            return integer(live.stream().anyMatch(each -> token.equals(Long.toString(each))) ? 1 : 0);
        }
        return live.stream().max(Comparator.naturalOrder()).map(Table::integer).orElse(NULL);
    }

    private String info(String name) {
        var kind = kindOf(name);
        if (kind == null) {
            return NULL;
        }
        var holders = holds.stream().filter(hold -> hold.name.equals(name)).sorted(Comparator.comparingLong(hold -> hold.token))
                .map(hold -> map(bulk("owner"), bulk(hold.owner), bulk("token"), integer(hold.token), bulk("lease-left-ms"),
                        integer(hold.until - now()), bulk("held-ms"), integer(now() - hold.granted))).toList();
        var queue = waits.stream().filter(wait -> wait.asked.names.contains(name))
                .map(wait -> map(bulk("owner"), bulk(wait.asked.owner), bulk("waited-ms"), integer(now() - wait.since))).toList();
        return map(bulk("kind"), bulk(kind == SHARED ? "shared" : kind > 0 ? "limit" : "exclusive"),
                bulk("limit"), kind > 0 ? integer(kind) : NULL,
                bulk("holders"), array(holders.subList(0, Math.min(NAMED, holders.size()))), bulk("holds"), integer(holders.size()),
                bulk("queue"), array(queue.subList(0, Math.min(NAMED, queue.size()))), bulk("waiters"), integer(queue.size()));
    }

    /** Returns the mode in which the lock is held or waited for; null if it is neither. */
    private @Nullable Integer kindOf(String name) {
        return holds.stream().filter(hold -> hold.name.equals(name)).map(hold -> hold.kind).findFirst().orElseGet(() ->
                waits.stream().filter(wait -> wait.asked.names.contains(name)).map(wait -> wait.asked.kind).findFirst().orElse(null));
    }

    private List<Other> others(String name, String owner) {
        var found = new ArrayList<Other>();
        holds.stream().filter(hold -> hold.name.equals(name) && !hold.owner.equals(owner))
                .forEach(hold -> found.add(new Other(hold.owner, hold.kind)));
        waits.stream().filter(wait -> wait.asked.names.contains(name)).takeWhile(wait -> !wait.asked.owner.equals(owner))
                .forEach(wait -> found.add(new Other(wait.asked.owner, wait.asked.kind)));
        return found;
    }

    /** True if holders and earlier waiters leave room for this owner. */
    private boolean fits(Asked asked) {
        return asked.names.stream().allMatch(name -> fits(name, asked));
    }

    private boolean fits(String name, Asked asked) {
        var others = others(name, asked.owner);
        return others.isEmpty() || others.size() < asked.kind
                || asked.kind == SHARED && others.stream().allMatch(other -> other.kind == SHARED);
    }

    /** Returns the steps by which this wait depends on the owner that begins; null if it does not. */
    private @Nullable List<String> chain(Asked asked, String begins, Set<String> seen) {
        for (var name : asked.names) {
            if (asked.kind > 0 || fits(name, asked)) {
                continue; // a permit may come from any of the holders
            }
            for (var other : others(name, asked.owner)) {
                String step = "'" + asked.owner + "' waits for '" + name + "' and there for '" + other.owner + "'";
                if (other.owner.equals(begins)) {
                    return List.of(step);
                }
                var rest = seen.add(other.owner) ? waitsOf(other.owner, begins, seen) : null;
                if (rest != null) {
                    rest = new ArrayList<>(rest);
                    rest.add(0, step);
                    return rest;
                }
            }
        }
        return null;
    }

    /**
     * Returns the steps of the first wait of this owner, if all depend on the first: an owner continues once any wait
     * ends.
     */
    private @Nullable List<String> waitsOf(String owner, String begins, Set<String> seen) {
        List<String> first = null;
        for (var wait : waits) {
            if (wait.asked.owner.equals(owner)) {
                var rest = chain(wait.asked, begins, seen);
                if (rest == null) {
                    return null;
                }
                first = first == null ? rest : first;
            }
        }
        return first;
    }
}
