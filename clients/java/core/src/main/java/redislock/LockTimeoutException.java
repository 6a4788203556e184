package redislock;

import org.jspecify.annotations.Nullable;

/** Another owner held the lock for all of the wait. */
public class LockTimeoutException extends LockException {
    private static final long serialVersionUID = 1L;

    LockTimeoutException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
