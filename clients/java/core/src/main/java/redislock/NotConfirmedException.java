package redislock;

import org.jspecify.annotations.Nullable;

/** Too few replicas confirmed the grant: the owner may or may not hold the lock. */
public class NotConfirmedException extends LockException {
    private static final long serialVersionUID = 1L;

    NotConfirmedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
