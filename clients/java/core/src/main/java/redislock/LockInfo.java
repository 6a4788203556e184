package redislock;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * The holders and the waiters of a lock.
 *
 * @param kind {@code exclusive}, {@code shared} or {@code limit}
 * @param limit how many owners may hold a lock of the kind {@code limit}; otherwise 0
 * @param holders the first ten holders, oldest token first
 * @param holds the number of all holders
 * @param queue the first ten waiters, the next one first
 * @param waiters the number of all waiters
 */
public record LockInfo(String kind, int limit, List<Holder> holders, int holds, List<Waiter> queue, int waiters) {

    /**
     * An owner that holds a lock.
     *
     * @param owner the owner
     * @param token the fencing token of the hold
     * @param left the rest of the lease
     * @param held the time since the grant
     */
    public record Holder(String owner, long token, Duration left, Duration held) {}

    /**
     * An owner that waits for a lock.
     *
     * @param owner the owner
     * @param waited how long it has waited
     */
    public record Waiter(String owner, Duration waited) {}

    static LockInfo of(Map<?, ?> fields) {
        var holders = new ArrayList<Holder>();
        for (Map<?, ?> row : rows(fields.get("holders"))) {
            holders.add(new Holder(text(row.get("owner")), number(row.get("token")),
                    Duration.ofMillis(number(row.get("lease-left-ms"))), Duration.ofMillis(number(row.get("held-ms")))));
        }
        var queue = new ArrayList<Waiter>();
        for (Map<?, ?> row : rows(fields.get("queue"))) {
            queue.add(new Waiter(text(row.get("owner")), Duration.ofMillis(number(row.get("waited-ms")))));
        }
        return new LockInfo(text(fields.get("kind")), (int) number(fields.get("limit")), List.copyOf(holders),
                (int) number(fields.get("holds")), List.copyOf(queue), (int) number(fields.get("waiters")));
    }

    /** Returns the version of the module in the reply to HELLO; 0 if the server has no such module. */
    static long version(Object hello) {
        for (Map<?, ?> module : rows(hello instanceof Map<?, ?> fields ? fields.get("modules") : null)) {
            if (text(module.get("name")).equals("redislock")) {
                return number(module.get("ver"));
            }
        }
        return 0;
    }

    static String shown(long version) {
        return version / 10_000 + "." + version / 100 % 100 + "." + version % 100;
    }

    private static List<Map<?, ?>> rows(Object field) {
        var found = new ArrayList<Map<?, ?>>();
        if (field instanceof List<?> items) {
            for (Object item : items) {
                if (item instanceof Map<?, ?> row) {
                    found.add(row);
                }
            }
        }
        return found;
    }

    private static long number(Object field) {
        return field instanceof Long found ? found : 0;
    }

    private static String text(Object field) {
        return field instanceof String found ? found : "";
    }
}
