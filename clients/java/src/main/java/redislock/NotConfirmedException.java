package redislock;

import org.jspecify.annotations.Nullable;

/** Too few replicas have confirmed the grant, which was undone. */
public class NotConfirmedException extends LockException {
    private static final long serialVersionUID = 1L;

    NotConfirmedException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
