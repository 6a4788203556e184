package redislock;

import java.util.List;

/** The body of a run or a call acquires the lock that it runs under: it would wait for itself. */
public class AlreadyHeldException extends DeadlockException {
    private static final long serialVersionUID = 1L;

    AlreadyHeldException(String message) {
        super(message, List.of());
    }
}
