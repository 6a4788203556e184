package redislock;

import org.jspecify.annotations.Nullable;

/** The lock is of another kind now, or a semaphore with another limit. */
public class LockKindMismatchException extends LockException {
    private static final long serialVersionUID = 1L;

    LockKindMismatchException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
