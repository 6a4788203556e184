package redislock;

import org.jspecify.annotations.Nullable;

/** The lock was not granted in time: another owner held it during the whole wait. */
public class LockTimeoutException extends LockException {
    private static final long serialVersionUID = 1L;

    LockTimeoutException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
