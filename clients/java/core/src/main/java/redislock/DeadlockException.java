package redislock;

import java.util.List;

/** The wait would never end: the owners that it waits for wait, in turn, for this one. */
public class DeadlockException extends LockException {
    private static final long serialVersionUID = 1L;
    /** The steps, which are records of strings. */
    private final transient List<WaitStep> cycle;

    DeadlockException(String message, List<WaitStep> cycle) {
        super(message, null);
        this.cycle = cycle;
    }

    /**
     * Returns who waits for which lock, and there for whom.
     *
     * @return the steps of the cycle; empty if it was not the server that refused the wait
     */
    public List<WaitStep> cycle() {
        return cycle == null ? List.of() : cycle;
    }

    /**
     * A step of a deadlock's cycle: the owner waits for the lock, and there for the holder.
     *
     * @param owner the owner that waits
     * @param lock the lock that it waits for
     * @param holder the owner that holds the lock, or stands before it
     */
    public record WaitStep(String owner, String lock, String holder) {}
}
