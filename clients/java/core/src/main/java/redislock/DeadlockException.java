package redislock;

import java.util.List;

/** The wait would never end: the owners that it waits for are themselves waiting for this owner. */
public class DeadlockException extends LockException {
    private static final long serialVersionUID = 1L;
    /** The steps, which are records of strings. */
    private final transient List<WaitStep> cycle;

    DeadlockException(String message, List<WaitStep> cycle) {
        super(message, null);
        this.cycle = cycle;
    }

    /**
     * Returns which owner waits for which lock and which holder.
     *
     * @return the steps of the cycle; empty unless the server refused the wait
     */
    public List<WaitStep> cycle() {
        return cycle == null ? List.of() : cycle;
    }

    /**
     * A step of a deadlock's cycle: the owner waits for the lock, which the holder has.
     *
     * @param owner the owner that waits
     * @param lock the lock that it waits for
     * @param holder the owner that holds the lock, or is before it in the queue
     */
    public record WaitStep(String owner, String lock, String holder) {}
}
