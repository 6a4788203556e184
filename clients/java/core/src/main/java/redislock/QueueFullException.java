package redislock;

import org.jspecify.annotations.Nullable;

/** The queue of the lock, or of the server, is full. */
public class QueueFullException extends LockException {
    private static final long serialVersionUID = 1L;

    QueueFullException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
