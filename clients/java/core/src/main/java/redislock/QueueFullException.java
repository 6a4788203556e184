package redislock;

import org.jspecify.annotations.Nullable;

/** Too many wait already. */
public class QueueFullException extends LockException {
    private static final long serialVersionUID = 1L;

    QueueFullException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
