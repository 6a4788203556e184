package redislock;

import org.jspecify.annotations.Nullable;

/** The base class of all lock errors. The message names the lock; the cause comes from the network or your own code. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    LockException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
