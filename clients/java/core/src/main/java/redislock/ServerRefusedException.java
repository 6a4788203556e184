package redislock;

import org.jspecify.annotations.Nullable;

/** Any other error of the server. */
public class ServerRefusedException extends LockException {
    private static final long serialVersionUID = 1L;

    ServerRefusedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
