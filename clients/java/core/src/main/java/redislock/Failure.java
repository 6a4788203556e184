package redislock;

/**
 * The reason why there is no reply.
 *
 * @param isRefused the server replied the text as an error
 * @param isTooLate no time was left to connect: an earlier failure says more
 */
record Failure(boolean isRefused, boolean isTooLate, String text, Throwable cause) {

    static Failure broken(Throwable cause, String text) {
        return new Failure(false, false, text, cause);
    }

    static Failure refused(String text) {
        return new Failure(true, false, text, null);
    }

    static Failure tooLate() {
        return new Failure(false, true, "connecting took too long", null);
    }

    /** Returns the problem for the caller. A temporary refusal names the server. */
    Problem problem(String address) {
        boolean fails = Rules.judge(text).next() == Rules.Next.FAIL;
        if (!isRefused && fails) {
            return Problem.unreachable(cause, "no server answered in time: " + address + ": " + text);
        }
        if (isRefused && fails) {
            return Problem.of(text);
        }
        if (text.startsWith("READONLY")) {
            return Problem.unreachable(cause, text + " (" + address + " is a replica: its address must lead to the primary)");
        }
        return Problem.unreachable(cause, text + " (" + address + " said so)");
    }
}
