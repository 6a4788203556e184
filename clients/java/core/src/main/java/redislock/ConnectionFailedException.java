package redislock;

import org.jspecify.annotations.Nullable;

/** No server that grants locks answered in time. */
public class ConnectionFailedException extends LockException {
    private static final long serialVersionUID = 1L;

    ConnectionFailedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
