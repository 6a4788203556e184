package redislock;

/**
 * The login for a server.
 *
 * @param user the name of the user; empty for the default one
 * @param password the password; empty without one
 */
public record Credentials(String user, String password) {
    static final Credentials NONE = new Credentials("", "");

    /**
     * Creates a login.
     *
     * @param user the name of the user
     * @param password the password
     */
    public Credentials {
        Rules.given(user, "user");
        Rules.given(password, "password");
    }

    /** Returns a text without the user and the password. */
    @Override
    public String toString() {
        return "Credentials";
    }
}
