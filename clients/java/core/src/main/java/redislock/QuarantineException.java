package redislock;

import java.time.Duration;

/** The server grants no new locks yet, because it may have lost some. */
public class QuarantineException extends LockException {
    private static final long serialVersionUID = 1L;
    /** The time for which the server grants nothing. */
    private final Duration left;

    QuarantineException(String message, Duration left) {
        super(message, null);
        this.left = left;
    }

    /**
     * Returns how much longer the server grants no new locks.
     *
     * @return the rest of the quarantine
     */
    public Duration left() {
        return left;
    }
}
