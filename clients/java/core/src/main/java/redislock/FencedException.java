package redislock;

import org.jspecify.annotations.Nullable;

/** The token does not belong to a live hold of the lock. */
public class FencedException extends LockException {
    private static final long serialVersionUID = 1L;

    FencedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
