package redislock;

import org.jspecify.annotations.Nullable;

/** The Locks are closed. */
public class LocksClosedException extends LockException {
    private static final long serialVersionUID = 1L;

    LocksClosedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
