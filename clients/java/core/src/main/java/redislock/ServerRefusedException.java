package redislock;

import org.jspecify.annotations.Nullable;

/** The server refused the request, for a reason that has no exception of its own. */
public class ServerRefusedException extends LockException {
    private static final long serialVersionUID = 1L;

    ServerRefusedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
