package redislock;

import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.ThreadLocalRandom;

/** The decisions without I/O: constants in nanoseconds, deadlines, and the consequences of a reply. */
final class Rules {
    private Rules() {}

    static final long MILLISECOND = 1_000_000;
    static final long SECOND = 1000 * MILLISECOND;
    /** A token that no hold ever has. A release with it ends a wait but no hold. */
    static final long NOBODYS = 1;
    static final long DEFAULT_LEASE = 30 * SECOND;
    static final long SHORTEST_LEASE = 100 * MILLISECOND;
    /** A holder does not rely on this part of a lease, nor on the margin, because clocks run at different speeds. */
    static final int DRIFT_PART = 100;
    static final long MARGIN = 2 * MILLISECOND;
    /** A hold is renewed after this part of its lease, less up to a tenth at random. */
    static final int RENEW_PART = 3;
    /**
     * The number of waiters of this process that the server queues for one lock, and of connections that wait for
     * several.
     */
    static final int MAX_QUEUED = 16;
    /** The time beyond its wait for which a request may go unanswered: less than the 2 s in the docs. */
    static final long WAIT_MARGIN = 1800 * MILLISECOND;
    static final long SERVER_TIMEOUT = 10 * SECOND;
    /** The time limit of a release; an unanswered one continues in the background. */
    static final long RELEASE_TIME = 5 * SECOND;
    /** The time after which an unanswered request is sent again, over a new connection. */
    static final long ATTEMPT = 2 * SECOND;
    /** The delay with which an unanswered request may still reach the server. */
    static final long STRAY_TIME = 30 * SECOND;
    /** The time for which the server keeps a queue position. The client asks {@link #ASKS_IN_KEEP} times in it. */
    static final long KEEP = 5 * SECOND;
    static final int ASKS_IN_KEEP = 3;
    /** The lease of a client that has waited: if it dies before it renews, others wait no longer. */
    static final long FIRST_LEASE = 5 * SECOND;
    /** The time from a grant until the client subscribes to its end: most holds end earlier. */
    static final long WATCH_AFTER = 20 * MILLISECOND;
    /** The pause between two attempts; it doubles up to {@link #LONGEST_PAUSE}. */
    static final long PAUSE = 10 * MILLISECOND;
    static final long LONGEST_PAUSE = 250 * MILLISECOND;
    static final long RECONNECT = 50 * MILLISECOND;
    static final long LONGEST_RECONNECT = SECOND;
    /** The interval at which the shared connection asks about a blocked request. */
    static final long PROBE = 1500 * MILLISECOND;
    /**
     * The time after which a wait is logged, and again whenever it has doubled; {@link #OWN_WAIT} for a lock of this
     * Locks.
     */
    static final long LONG_WAIT = 30 * SECOND;
    static final long OWN_WAIT = SECOND;
    /** The time for which an unlimited wait is requested at once. */
    static final long LONG_BLOCK = 60 * SECOND;
    /** The polling interval of a waiter, if the server does not push changes. */
    static final long POLL = 100 * MILLISECOND;
    static final Duration FAREWELL = Duration.ofSeconds(5);
    /** The longest sleep of a timer: the clock of the system's timers may stop while the machine sleeps. */
    static final long NAP = SECOND;
    static final int SLOTS = 16384;
    /** The oldest module that has everything this library needs, in the form of HELLO: 300 is 0.3.0. */
    static final long MODULE_VERSION_MIN = 300;
    static final int LONGEST_OWNER = 256;
    static final int MOST_NAMES = 64;
    static final int HIGHEST_LIMIT = 1_000_000;

    /** Returns the time for which a hold of this lease is certain, counted from before its request was sent. */
    static long sure(long lease) {
        return Math.max(0, lease - lease / DRIFT_PART - MARGIN);
    }

    /** Returns the time of the renewal of a hold of this lease, counted from before its last request was sent. */
    static long renewal(long lease) {
        long third = lease / RENEW_PART;
        return third - atRandom(third / 10);
    }

    static long atRandom(long most) {
        return ThreadLocalRandom.current().nextLong(most + 1);
    }

    /** Formats a duration for the server: at least one millisecond. */
    static String milliseconds(long nanos) {
        return Long.toString(Math.max(1, nanos / MILLISECOND));
    }

    /** Formats a duration for people. */
    static String text(long nanos) {
        return nanos % SECOND == 0 ? nanos / SECOND + " s" : String.format("%.3f s", nanos / 1e9);
    }

    static long nanos(Duration duration) {
        return duration.compareTo(Duration.ofDays(36500)) > 0 ? Clock.NEVER : duration.toNanos();
    }

    /** Returns the pause before another attempt to connect, which grows with each failure. */
    static long backOff(int tries) {
        return tries == 0 ? 0 : atRandom(Math.min(LONGEST_RECONNECT, RECONNECT << Math.min(tries - 1, 8)));
    }

    /** Returns the slot of a name in a cluster. */
    static int slot(String name) {
        int open = name.indexOf('{');
        if (open >= 0) {
            int close = name.indexOf('}', open);
            if (close > open + 1) {
                name = name.substring(open + 1, close);
            }
        }
        int crc = 0;
        for (byte each : name.getBytes(java.nio.charset.StandardCharsets.UTF_8)) {
            crc ^= (each & 0xff) << 8;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
            }
        }
        return (crc & 0xffff) % SLOTS;
    }

    /** The client's next step after an error reply. */
    enum Next {
        /** The caller gets the error. */
        FAIL,
        /** It asks again after a pause, at the server that is then the primary. */
        AGAIN,
        /** The same over a new connection: the address may now lead to another server. */
        ELSEWHERE,
        /** It asks the node that has the slot now. */
        MOVED,
        /** It asks this node, once. */
        ASKING
    }

    /** The next step after an error of the server, with the slot and the address of a redirection. */
    record Verdict(Next next, int slot, String address) {}

    private static final Verdict FAIL = new Verdict(Next.FAIL, 0, "");

    static Verdict judge(String text) {
        String[] words = text.trim().split("\\s+");
        switch (words[0]) {
            case "READONLY", "UNBLOCKED", "MASTERDOWN":
                return new Verdict(Next.ELSEWHERE, 0, "");
            case "LOADING", "TRYAGAIN", "CLUSTERDOWN":
                return new Verdict(Next.AGAIN, 0, "");
            case "MOVED", "ASK":
                break;
            default:
                return FAIL;
        }
        if (words.length < 3 || words[2].indexOf(':') < 0) {
            return FAIL;
        }
        try {
            int slot = Integer.parseInt(words[1]);
            return slot < 0 || slot >= SLOTS
                    ? FAIL : new Verdict(words[0].equals("MOVED") ? Next.MOVED : Next.ASKING, slot, words[2]);
        } catch (NumberFormatException e) {
            return FAIL;
        }
    }

    /** Returns the longest time that this server allows for an option, if the error names it; otherwise -1. */
    static long mostOf(String option, String text) {
        String start = "ERR " + option + " must be an integer from ";
        int to = text.indexOf(" to ", Math.min(start.length(), text.length()));
        if (!text.startsWith(start) || to < 0) {
            return -1;
        }
        try {
            long most = Long.parseLong(text.substring(to + 4).split(" ")[0]);
            return most < 0 || most > 86_400_000 ? -1 : most * MILLISECOND;
        } catch (NumberFormatException e) {
            return -1;
        }
    }

    /** Returns the longest wait that this server allows (redislock.max-wait), if the error names it; otherwise -1. */
    static long longestWait(String text) {
        return Math.max(mostOf("QUEUE", text), mostOf("BLOCK", text));
    }

    static void check(boolean isRight, String format, Object... values) {
        if (!isRight) {
            throw new IllegalArgumentException(String.format(format, values));
        }
    }

    static <T> T given(T value, String what) {
        return Objects.requireNonNull(value, what + " must not be null");
    }

    static long checkLease(String what, Duration lease) {
        check(given(lease, what).compareTo(Duration.ofMillis(100)) >= 0, "%s must be 100 ms or more, not %s", what, lease);
        return nanos(lease);
    }

    static String label(List<String> names, int prefix) {
        return String.join(", ", names.stream().map(name -> name.substring(prefix)).toList());
    }
}
