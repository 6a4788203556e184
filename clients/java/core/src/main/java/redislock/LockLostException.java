package redislock;

import org.jspecify.annotations.Nullable;

/** The hold ended before its release, or is used after its release. */
public class LockLostException extends LockException {
    private static final long serialVersionUID = 1L;
    /** The reason for the loss. */
    private final Reason reason;
    /** The token of the hold. */
    private final long token;

    LockLostException(String lock, long token, Reason reason, @Nullable Throwable cause) {
        super("lost lock '" + lock + "': " + reason.text() + (cause == null ? "" : ": " + cause.getMessage()), cause);
        this.reason = reason;
        this.token = token;
    }

    /**
     * Returns the reason for the loss.
     *
     * @return the reason
     */
    public Reason reason() {
        return reason;
    }

    /**
     * Returns the fencing token of the hold that was lost.
     *
     * @return the token
     */
    public long token() {
        return token;
    }

    /** The reason for a loss. */
    public enum Reason {
        /** The server rejected a renewal, because the hold had ended. */
        RENEWAL("renewal", "the server rejected a renewal, because the hold had ended"),
        /** The lease ended before it could be renewed. */
        DEADLINE("deadline", "its lease ended before it could be renewed"),
        /** A push message from the server reported the end of the hold. */
        PUSH("push", "the server reported the end of the hold"),
        /** The hold had already ended when it was released. */
        RELEASE("release", "it had already ended when it was released"),
        /** The hold reached its maxHold. */
        MAX_HOLD("max_hold", "it reached its maxHold"),
        /** The program dropped all references to the Hold without releasing it. */
        FORGOTTEN("forgotten", "the program dropped the Hold without releasing it, so it was not renewed"),
        /** The Locks were closed. */
        CLOSE("close", "the Locks were closed"),
        /** The program released the hold, but still uses it. */
        RELEASED("released", "the program released it before");

        private final String word;
        private final String text;

        Reason(String word, String text) {
            this.word = word;
            this.text = text;
        }

        /**
         * Returns the name of the reason that all client libraries use.
         *
         * @return for example {@code push}
         */
        public String word() {
            return word;
        }

        String text() {
            return text;
        }
    }
}
