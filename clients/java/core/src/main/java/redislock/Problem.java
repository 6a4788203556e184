package redislock;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * A failure inside the library. The caller's thread makes an exception of it, so that the stack trace is the caller's.
 */
record Problem(Kind kind, String lock, String text, Throwable cause) {

    enum Kind {
        TIMEOUT, LOST, DEADLOCK, ALREADY_HELD, FENCED, KIND_MISMATCH, QUEUE_FULL, QUARANTINE, NOT_CONFIRMED, MODULE_MISSING,
        CONNECTION_FAILED, SERVER_REFUSED, CLOSED, CANCELLED
    }

    static Problem unreachable(Throwable cause, String text) {
        return new Problem(Kind.CONNECTION_FAILED, "", text, cause);
    }

    static Problem closed() {
        return new Problem(Kind.CLOSED, "", "the Locks are closed", null);
    }

    /** Returns the problem for this reply of the server. */
    static Problem of(String text) {
        int space = text.indexOf(' ');
        String code = space < 0 ? text : text.substring(0, space);
        String rest = space < 0 ? "" : text.substring(space + 1);
        Kind kind = switch (code) {
            case "DEADLOCK" -> Kind.DEADLOCK;
            case "LOCKHELD" -> Kind.ALREADY_HELD;
            case "LOCKKIND" -> Kind.KIND_MISMATCH;
            case "LOCKQUEUE" -> Kind.QUEUE_FULL;
            case "NOREPLICAS" -> Kind.NOT_CONFIRMED;
            case "QUARANTINE" -> Kind.QUARANTINE;
            default -> Kind.SERVER_REFUSED;
        };
        switch (code) {
            case "MOVED" -> text += ": this server is a node of a cluster: use Builder.cluster";
            case "NOAUTH" -> text = "NOAUTH this server requires a password: redis://:password@host:port, or Builder.login";
            case "WRONGTYPE" -> text = "WRONGTYPE the key of this name holds another value, which is no lock: "
                    + "choose another name, or Builder.prefix; for locks of older clients, set redislock.legacy-strings";
            case "ERR" -> {
                if (rest.toLowerCase(Locale.ROOT).startsWith("unknown command")) {
                    kind = Kind.MODULE_MISSING;
                    int with = text.indexOf(", with args");
                    text = (with < 0 ? text : text.substring(0, with)) + ". The module redislock is not loaded on this "
                            + "server: start it with `loadmodule /path/to/libredislock.so` in its configuration, or MODULE "
                            + "LOAD it once";
                }
            }
            default -> { }
        }
        return new Problem(kind, "", text, null);
    }

    /** True if another value was written over the lock, so that no owner holds it. */
    boolean isOverwritten() {
        return kind == Kind.SERVER_REFUSED && text.startsWith("WRONGTYPE");
    }

    /** True if a server refused it, and would refuse another request likewise. */
    boolean isRefusal() {
        return switch (kind) {
            case CONNECTION_FAILED, CLOSED, CANCELLED, LOST, TIMEOUT -> false;
            default -> true;
        };
    }

    /** True if a server has refused a request, and has granted nothing for it. */
    boolean grantedNothing() {
        return isRefusal() && kind != Kind.NOT_CONFIRMED;
    }

    /** Returns the rest of a quarantine. */
    long left() {
        try {
            return Long.parseLong(text.split(" ")[1]) * Rules.MILLISECOND;
        } catch (NumberFormatException | ArrayIndexOutOfBoundsException e) {
            return 0;
        }
    }

    /** Adds the name of the lock, and the range of leases that the server accepts. */
    Problem named(String name, long lease) {
        if (!lock.isEmpty()) {
            return this;
        }
        long most = Rules.mostOf("PX", text);
        if (most < 0) {
            return new Problem(kind, name, text, cause);
        }
        return new Problem(kind, name, "lease (or minHold) must be from 100 ms to " + Rules.text(most)
                + " (the server's redislock.max-lease, or its redislock.quarantine if that is set and shorter), not "
                + Rules.text(lease), cause);
    }

    String message() {
        return lock.isEmpty() ? text : "lock '" + lock + "': " + text;
    }

    LockException exception() {
        return switch (kind) {
            case TIMEOUT -> new LockTimeoutException(message(), cause);
            case LOST -> new LockLostException(lock, 0, LockLostException.Reason.DEADLINE, cause);
            case DEADLOCK -> new DeadlockException(message(), cycle());
            case ALREADY_HELD -> new AlreadyHeldException(message());
            case FENCED -> new FencedException(message(), cause);
            case KIND_MISMATCH -> new LockKindMismatchException(message(), cause);
            case QUEUE_FULL -> new QueueFullException(message(), cause);
            case QUARANTINE -> new QuarantineException(message(), Duration.ofNanos(left()));
            case NOT_CONFIRMED -> new NotConfirmedException(message(), cause);
            case MODULE_MISSING -> new ModuleMissingException(message(), cause);
            case CONNECTION_FAILED -> new ConnectionFailedException(message(), cause);
            case CLOSED, CANCELLED -> new LocksClosedException(message(), cause);
            case SERVER_REFUSED -> new ServerRefusedException(message(), cause);
        };
    }

    /** Reads {@code 'ben' waits for 'left' and there for 'ann', 'ann' waits for ...}. */
    private List<DeadlockException.WaitStep> cycle() {
        var steps = new ArrayList<DeadlockException.WaitStep>();
        String[] words = text.split("'");
        for (int at = 1; at + 4 < words.length; at += 6) {
            steps.add(new DeadlockException.WaitStep(words[at], words[at + 2], words[at + 4]));
        }
        return List.copyOf(steps);
    }
}
