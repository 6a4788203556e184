package redislock;

import java.util.List;

/**
 * The owner already holds the lock, so it would wait for itself. Either the body of a run or a call acquires the lock
 * that it runs under, or an owner that holds a read lock asks for the write lock.
 */
public class AlreadyHeldException extends DeadlockException {
    private static final long serialVersionUID = 1L;

    AlreadyHeldException(String message) {
        super(message, List.of());
    }
}
