package redislock;

import org.jspecify.annotations.Nullable;

/** What can go wrong with a lock. The message names the lock; the cause is that of the network or of the user's code. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    LockException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
