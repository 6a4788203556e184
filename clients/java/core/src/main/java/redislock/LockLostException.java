package redislock;

import org.jspecify.annotations.Nullable;

/** The hold has ended, though its holder did not release it; or it is used after its release. */
public class LockLostException extends LockException {
    private static final long serialVersionUID = 1L;
    /** How the loss was noticed. */
    private final Reason reason;
    /** The token of the hold. */
    private final long token;

    LockLostException(String lock, long token, Reason reason, @Nullable Throwable cause) {
        super("lost lock '" + lock + "': " + reason.text() + (cause == null ? "" : ": " + cause.getMessage()), cause);
        this.reason = reason;
        this.token = token;
    }

    /**
     * Returns how the loss was noticed.
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

    /** How a loss was noticed. */
    public enum Reason {
        /** The server answered a renewal that the hold has ended. */
        RENEWAL("renewal", "the server answered a renewal that the hold has ended"),
        /** No renewal succeeded before the end of the lease. */
        DEADLINE("deadline", "no renewal succeeded before the end of the lease"),
        /** The server pushed that the hold has ended. */
        PUSH("push", "the server pushed that the hold has ended"),
        /** The server answered the release that the hold had ended. */
        RELEASE("release", "it had ended when it was released"),
        /** The hold has lasted as long as maxHold lets it. */
        MAX_HOLD("max_hold", "it has lasted as long as maxHold lets it"),
        /** The program dropped the Hold without a release. */
        FORGOTTEN("forgotten", "the program dropped the Hold without a release, so it was not renewed"),
        /** The Locks were closed. */
        CLOSE("close", "the Locks were closed"),
        /** The program released the hold, and uses it all the same. */
        RELEASED("released", "the program released it");

        private final String word;
        private final String text;

        Reason(String word, String text) {
            this.word = word;
            this.text = text;
        }

        /**
         * Returns the word for it that all the libraries share.
         *
         * @return as {@code push}
         */
        public String word() {
            return word;
        }

        String text() {
            return text;
        }
    }
}
