package redislock;

import org.jspecify.annotations.Nullable;

/** No server answered in time, or none that grants locks. */
public class ConnectionFailedException extends LockException {
    private static final long serialVersionUID = 1L;

    ConnectionFailedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
