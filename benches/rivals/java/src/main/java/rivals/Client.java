package rivals;

import java.util.concurrent.CompletableFuture;

/** One instance of a program, with its library. */
@FunctionalInterface
interface Client {
    /** A task that takes a lock and frees it, both in one thread. */
    interface Taker {
        void take() throws Exception;

        void free() throws Exception;

        /** Completes when the library tells the holder of a loss; null if it never does. */
        default CompletableFuture<?> lost() {
            return null;
        }

        /** Ends the hold, as an operator does. */
        default void takeAway() throws Exception {
            throw new UnsupportedOperationException();
        }
    }

    Taker taker(String name) throws Exception;
}
