package redislock;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Supplier;
import javax.net.ssl.SSLSocketFactory;
import org.jspecify.annotations.Nullable;

/**
 * A client for the locks of one server, of a primary that Sentinel monitors, or of a cluster. Create one for a program,
 * and close it after everything that uses it. All threads may share it.
 *
 * <pre>{@code
 * try (Locks locks = Locks.open("redis://127.0.0.1:6379");
 *      Hold hold = locks.lock("invoice:42").waitFor(Duration.ofSeconds(5)).acquire()) {
 *   hold.check();
 *   jdbc.update("UPDATE invoice SET paid=1, fence=? WHERE id=42 AND fence<=?", hold.token(), hold.token());
 * }
 * }</pre>
 */
public final class Locks implements AutoCloseable {
    private final Core core;

    private Locks(Core core) {
        this.core = core;
    }

    /**
     * Returns a client for the locks of one server. It connects when it is first used.
     *
     * @param url redis://user:password@host:port/database, or rediss:// for TLS
     * @return the locks
     */
    public static Locks open(String url) {
        return builder().url(url).open();
    }

    /**
     * Returns a builder, for settings that a URL does not have.
     *
     * @return a builder with the defaults
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Describes an exclusive lock. Nothing is sent until it is acquired.
     *
     * @param name its name
     * @return the lock
     */
    public Lock lock(String name) {
        return describe(Wanted.Kind.EXCLUSIVE, 0, List.of(Rules.given(name, "name")));
    }

    /**
     * Describes an exclusive lock, as the counterpart of {@link #read}. It is the same as {@link #lock}.
     *
     * @param name its name
     * @return the lock
     */
    public Lock write(String name) {
        return lock(name);
    }

    /**
     * Describes a lock that readers share. {@link #write} and {@link #lock} exclude them.
     *
     * @param name its name
     * @return the lock
     */
    public Lock read(String name) {
        return describe(Wanted.Kind.SHARED, 0, List.of(Rules.given(name, "name")));
    }

    /**
     * Describes a lock that up to {@code limit} owners hold at once. All clients must use the same limit for a name.
     *
     * @param name its name
     * @param limit how many owners may hold it at once: from 1 to 1,000,000
     * @return the lock
     */
    public Lock semaphore(String name, int limit) {
        return describe(Wanted.Kind.LIMITED, limit, List.of(Rules.given(name, "name")));
    }

    /**
     * Describes exclusive locks that are acquired together, all or none, with one token. In a cluster, all names must
     * be in one slot: use a hash tag.
     *
     * @param names 1 to 64 names
     * @return the lock
     */
    public Lock many(List<String> names) {
        return describe(Wanted.Kind.EXCLUSIVE, 0, copied(names, "names"));
    }

    /**
     * Describes locks that readers share, and that are acquired together, all or none, with one token.
     *
     * @param names 1 to 64 names
     * @return the lock
     */
    public Lock readMany(List<String> names) {
        return describe(Wanted.Kind.SHARED, 0, copied(names, "names"));
    }

    private static List<String> copied(List<String> all, String what) {
        Rules.given(all, what).forEach(each -> Rules.given(each, "an element of " + what));
        return List.copyOf(all);
    }

    private Lock describe(Wanted.Kind kind, int limit, List<String> names) {
        return new Lock(core, kind, limit, names, core.options.prefix);
    }

    /**
     * Describes an election: the holder of the lock leads.
     *
     * @param lock an exclusive lock; its lease is how long a leader keeps it after the server last heard from that leader
     * @return the election; {@link Leader#start} stands for it
     */
    public Leader leader(Lock lock) {
        Rules.check(Rules.given(lock, "lock").core() == core, "lock must belong to these Locks");
        return new Leader(lock);
    }

    /**
     * Asks the server whether the token belongs to a live hold of the lock.
     *
     * @param name the name of the lock
     * @param token a token: from 1 to 2^53 - 1
     * @throws FencedException if it does not
     * @throws InterruptedException if the thread is interrupted before the answer
     */
    public void checkToken(String name, long token) throws InterruptedException {
        Rules.check(!Rules.given(name, "name").isEmpty() && token > 0 && token < 1L << 53,
                "checkToken needs a name and a token from 1 to 2^53 - 1, not '%s' and %d", name, token);
        boolean isLive = ask(name, then -> core.fence(core.options.prefix + name, token, then));
        if (!isLive) {
            throw new Problem(Problem.Kind.FENCED, name, "the token " + token + " does not belong to a live hold",
                    null).exception();
        }
    }

    /**
     * Returns the holders and the waiters of a lock.
     *
     * @param name the name of the lock
     * @return empty if there are none
     * @throws InterruptedException if the thread is interrupted before the answer
     */
    public Optional<LockInfo> info(String name) throws InterruptedException {
        Rules.check(!Rules.given(name, "name").isEmpty(), "the name of a lock must not be empty");
        return Optional.ofNullable(ask(name, then -> core.info(core.options.prefix + name, then)));
    }

    /**
     * Checks that a primary with the module answers, and returns the module's version. It calls {@code LOCK.FENCE} on
     * redislock:ping (with the prefix in front), which changes nothing, so the user needs the right to do that.
     *
     * @return the version, for example 0.3.0
     * @throws ModuleMissingException if the server does not have the module
     * @throws ConnectionFailedException if no primary answers, or the server is loading its data
     * @throws ServerRefusedException for any other error of the server, for example if the user lacks the right
     * @throws InterruptedException if the thread is interrupted before the answer
     */
    public String ping() throws InterruptedException {
        return ask("redislock:ping", core::version);
    }

    private <T> T ask(String name, Consumer<BiConsumer<T, Problem>> question) throws InterruptedException {
        if (core.isClosing) {
            throw Problem.closed().exception();
        }
        return core.engine.ask(name, question);
    }

    /** Closes, within 5 s, as {@link #close(Duration)} does. */
    @Override
    public void close() {
        close(Rules.FAREWELL.minusMillis(500));
    }

    /**
     * Ends all holds, waits and connections: acquires fail with {@link LocksClosedException}, holders are notified by
     * {@link Hold#lost}, and holds are released. It waits at most this long for the bodies of run and call in other
     * threads, and then for the server. A body that runs longer keeps its lease. It never throws, and a second call
     * does nothing. On an interrupted thread it waits for a quarter of a second at most, and keeps the interrupt flag.
     *
     * @param most how long it may take; with 0 it asks no server
     */
    public void close(Duration most) {
        core.close(Rules.given(most, "most").isNegative() ? Duration.ZERO : most);
    }

    /** Collects the settings that differ from their defaults. */
    public static final class Builder {
        static final LockListener SILENT = new LockListener() { };

        long lease = Rules.DEFAULT_LEASE;
        LockListener listener = SILENT;
        String label = defaultLabel();
        String prefix = "";
        long serverTimeout = Rules.SERVER_TIMEOUT;
        int maxQueued = Rules.MAX_QUEUED;
        private List<String> addresses = List.of("127.0.0.1:6379");
        private @Nullable String primary;
        private boolean isCluster;
        private Link.Login login = new Link.Login(() -> Credentials.NONE, 0);
        private Link.Login sentinelLogin = login;
        private @Nullable SSLSocketFactory tls;
        private @Nullable Connector connector;

        private Builder() {}

        private static String defaultLabel() {
            String host;
            try { // without a look-up of the name, which may take long
                host = Files.readString(Path.of("/proc/sys/kernel/hostname")).trim();
            } catch (IOException e) {
                host = System.getenv().getOrDefault("COMPUTERNAME", System.getenv().getOrDefault("HOSTNAME", "unknown"));
            }
            return host + ":" + ProcessHandle.current().pid();
        }

        /**
         * Sets the URL of one server, with its login and database.
         *
         * @param url redis://user:password@host:port/database, or rediss:// for TLS
         * @return this
         */
        public Builder url(String url) {
            Rules.check(!Rules.given(url, "url").isBlank(),
                    "the URL must be redis://user:password@host:port/database, not empty: '%s'", url);
            URI parsed = null;
            try {
                parsed = new URI(url);
            } catch (URISyntaxException e) { // its text contains the password
            }
            Rules.check(parsed != null && parsed.getRawFragment() == null, "the URL must be redis://user:password@host:port"
                    + "/database: percent-encode special characters, for example %%25 for %% and %%23 for # in a password");
            String scheme = parsed.getScheme() == null ? "" : parsed.getScheme();
            Rules.check(scheme.equals("redis") || scheme.equals("rediss"),
                    "the URL must begin with redis:// or rediss://, not with the scheme '%s'", scheme);
            String authority = String.valueOf(parsed.getRawAuthority()); // URI finds no host that has an underscore
            int at = authority.lastIndexOf('@');
            String host = authority.substring(at + 1);
            Rules.check(parsed.getRawAuthority() != null && host.matches("([^:\\[\\]]+|\\[[^\\]]+\\])(:[0-9]+)?"),
                    "the URL must have a host: redis://user:password@host:port/database");
            Rules.check(parsed.getQuery() == null, "the URL must have no parameters, such as '?%s': "
                    + "set options with the methods of Builder",
                    parsed.getQuery());
            String path = parsed.getPath() == null ? "" : parsed.getPath().replaceFirst("^/", "");
            Rules.check(path.matches("[0-9]{0,6}"), "the database in the URL must be a number, not '%s'", path);
            address(host.matches(".*:[0-9]+") ? host : host + ":6379");
            String[] parts = authority.substring(0, Math.max(at, 0)).split(":", 2);
            var who = new Credentials(decoded(parts[0]), parts.length > 1 ? decoded(parts[1]) : "");
            login = new Link.Login(() -> who, path.isEmpty() ? 0 : Integer.parseInt(path));
            if (scheme.equals("rediss") && tls == null) {
                tls = (SSLSocketFactory) SSLSocketFactory.getDefault();
            }
            return this;
        }

        private static String decoded(String text) {
            return java.net.URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
        }

        private static String checked(String address) {
            Rules.check(address.matches(".+:[0-9]{1,5}"), "an address must be host:port, not '%s'", address);
            int port = Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
            Rules.check(port >= 1 && port <= 65535, "a port must be from 1 to 65535, not %d", port);
            return address;
        }

        /**
         * Sets the address of one server.
         *
         * @param server its address, as host:port
         * @return this
         */
        public Builder address(String server) {
            named(List.of(Rules.given(server, "server")), "server");
            primary = null;
            isCluster = false;
            return this;
        }

        /**
         * Sets the addresses of some sentinels.
         *
         * @param name the primary's name in Sentinel
         * @param sentinels their addresses, as host:port
         * @return this
         */
        public Builder sentinel(String name, List<String> sentinels) {
            Rules.check(!Rules.given(name, "name").isEmpty(), "sentinel needs the name of the primary, for example mymaster");
            named(sentinels, "sentinels");
            primary = name;
            isCluster = false;
            return this;
        }

        /**
         * Sets the addresses of some nodes of a cluster.
         *
         * @param nodes their addresses, as host:port
         * @return this
         */
        public Builder cluster(List<String> nodes) {
            named(nodes, "nodes");
            primary = null;
            isCluster = true;
            return this;
        }

        private void named(List<String> all, String what) {
            var checked = copied(all, what).stream().map(Builder::checked).toList();
            Rules.check(!checked.isEmpty(), "at least one address is needed, for example 127.0.0.1:6379");
            addresses = checked;
        }

        /**
         * Sets the login for servers.
         *
         * @param user the name of the user; empty for the default one
         * @param password the password
         * @return this
         */
        public Builder login(String user, String password) {
            var who = new Credentials(user, password);
            return login(() -> who);
        }

        /**
         * Sets a provider of the login for servers, for credentials that change. A thread of the library asks it before
         * each connection, and waits for 2 s. If it fails, it is asked again for the next connection.
         *
         * @param provider returns the credentials
         * @return this
         */
        public Builder login(Supplier<Credentials> provider) {
            login = new Link.Login(Rules.given(provider, "provider"), login.database());
            return this;
        }

        /**
         * Sets the database. In a cluster it must be 0.
         *
         * @param number its number
         * @return this
         */
        public Builder database(int number) {
            Rules.check(number >= 0, "database must be 0 or more, not %d", number);
            login = new Link.Login(login.credentials(), number);
            return this;
        }

        /**
         * Sets the login for sentinels.
         *
         * @param user the name of the user; empty for the default one
         * @param password the password
         * @return this
         */
        public Builder sentinelLogin(String user, String password) {
            var who = new Credentials(user, password);
            return sentinelLogin(() -> who);
        }

        /**
         * Sets a provider of the login for sentinels, for credentials that change.
         *
         * @param provider returns the credentials
         * @return this
         */
        public Builder sentinelLogin(Supplier<Credentials> provider) {
            sentinelLogin = new Link.Login(Rules.given(provider, "provider"), 0);
            return this;
        }

        /**
         * Enables TLS. Each server's certificate must have the name of its address.
         *
         * @param factory creates the sockets, for example {@code SSLContext.getSocketFactory()}
         * @return this
         */
        public Builder tls(SSLSocketFactory factory) {
            tls = Rules.given(factory, "factory");
            return this;
        }

        /**
         * Sets what opens the connections, including TLS, in place of the library.
         *
         * @param connects returns a connected socket
         * @return this
         */
        public Builder connector(Connector connects) {
            connector = Rules.given(connects, "connector");
            return this;
        }

        /**
         * Sets the lease of locks that set none: 30 s by default.
         *
         * @param lasts 100 ms or more
         * @return this
         */
        public Builder lease(Duration lasts) {
            lease = Rules.checkLease("lease", lasts);
            return this;
        }

        /**
         * Sets the listener for lock events.
         *
         * @param hears the listener, which is called for each event
         * @return this
         */
        public Builder listener(LockListener hears) {
            listener = Rules.given(hears, "listener");
            return this;
        }

        /**
         * Names this process for operators, as in {@code LOCK.INFO}: host:pid by default. The owner of each hold is the
         * label and a UUID.
         *
         * @param who 1 to 216 bytes
         * @return this
         */
        public Builder label(String who) {
            int bytes = Rules.given(who, "label").getBytes(StandardCharsets.UTF_8).length;
            Rules.check(bytes >= 1 && bytes <= Rules.LONGEST_OWNER - 40, "label must have from 1 to %d bytes, not %d",
                    Rules.LONGEST_OWNER - 40, bytes);
            label = who;
            return this;
        }

        /**
         * Sets a prefix that is prepended to each lock name on the server: empty by default.
         *
         * @param before the prefix, for example {@code lock:}
         * @return this
         */
        public Builder prefix(String before) {
            prefix = Rules.given(before, "prefix");
            return this;
        }

        /**
         * Sets after how long without an answer of any server a wait without a limit fails: 10 s by default.
         *
         * @param most 2 s or more
         * @return this
         */
        public Builder serverTimeout(Duration most) {
            Rules.check(Rules.given(most, "serverTimeout").toMillis() >= 2000, "serverTimeout must be 2 s or more, not %s", most);
            serverTimeout = Rules.nanos(most);
            return this;
        }

        /**
         * Sets how many requests of these locks the server queues for one lock: 16 by default. The others wait in the
         * process, in order. It also limits the connections that wait for several locks. Requests with an explicit
         * {@link Lock#owner} do not count, because the server must see them to detect deadlocks. A wait of theirs for
         * several locks counts only until the owner holds a lock.
         *
         * @param most 1 or more
         * @return this
         */
        public Builder maxQueuedPerLock(int most) {
            Rules.check(most >= 1, "maxQueuedPerLock must be 1 or more, not %d", most);
            maxQueued = most;
            return this;
        }

        /**
         * Returns the client. It connects when it is first used.
         *
         * @return the locks
         */
        public Locks open() {
            Rules.check(!isCluster || login.database() == 0, "the database must be 0 in a cluster, not %d", login.database());
            return new Locks(new Core(this, new Servers.Config(addresses, primary, isCluster, login, sentinelLogin, tls,
                    connector)));
        }
    }
}
