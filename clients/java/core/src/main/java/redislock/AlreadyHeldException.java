package redislock;

import java.util.List;

/**
 * The owner holds the lock already, and not as it is asked for now: it would wait for itself. The body of a run or a call
 * acquires the lock that it runs under, or an owner who reads asks to write.
 */
public class AlreadyHeldException extends DeadlockException {
    private static final long serialVersionUID = 1L;

    AlreadyHeldException(String message) {
        super(message, List.of());
    }
}
