package redislock;

import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import javax.net.ssl.SSLSocketFactory;

/** Finds the servers of one client, and keeps a connection to each. */
final class Servers {
    /**
     * The addresses of the servers, and the logins.
     *
     * @param addresses one server, or some of the sentinels or of the nodes of a cluster, as host:port
     * @param primary the name under which sentinels know the primary; null without sentinels
     * @param isCluster the addresses are those of nodes
     * @param login how to log in at servers
     * @param sentinelLogin how to log in at sentinels
     * @param tls makes connections by TLS; null for plain ones
     * @param connector makes all connections in place of the library; null without one
     */
    record Config(List<String> addresses, String primary, boolean isCluster, Link.Login login, Link.Login sentinelLogin,
            SSLSocketFactory tls, Connector connector) {
        boolean isSingle() {
            return !isCluster && primary == null;
        }
    }

    /** A door leads to one server: its connection is made once for all callers, who get it in order of arrival. */
    static final class Door {
        private Link link;
        private boolean isConnecting;
        private final ArrayDeque<Waiting> waiting = new ArrayDeque<>();
        /** Counts connections since the server last did what only a primary does. */
        private int tries;
        private boolean hasServed;
        /** True if it was logged that the module of this server is too old. */
        private boolean isOutdated;
        private Failure failed;
    }

    private record Waiting(BiConsumer<Link, Failure> then, Engine.Timer limit) {}

    final Config config;
    final Engine engine;
    private final long timeout;
    private final Consumer<List<?>> onChange;
    private final Consumer<String> onReconnect;
    /** The time of a data node's last reply. */
    private long heard = Clock.now();
    private boolean refuses;
    private boolean ended;
    private String primary;
    private String last;
    private String[] slots = new String[Rules.SLOTS];
    private List<String> nodes;
    private final Map<String, Door> doors = new HashMap<>();
    private boolean isFinding;
    private final ArrayDeque<Consumer<Failure>> finding = new ArrayDeque<>();

    Servers(Engine engine, Config config, long timeout, Consumer<List<?>> onChange, Consumer<String> onReconnect) {
        this.engine = engine;
        this.config = config;
        this.timeout = timeout;
        this.onChange = onChange;
        this.onReconnect = onReconnect;
        nodes = config.addresses();
        primary = config.isSingle() ? config.addresses().get(0) : null;
    }

    void hears() {
        heard = Clock.now();
    }

    /** Returns the time left for a request that began then: an unlimited one has as long as servers reply at all. */
    long patience(long until, long began) {
        return Clock.left(until == Clock.NEVER ? Clock.after(Math.max(began, heard), timeout) : until);
    }

    /** Returns the server of this lock, if known; otherwise null. */
    String address(String name) {
        return config.isCluster() ? slots[Rules.slot(name)] : primary;
    }

    /** Records that this server may no longer be the primary. */
    void forget(String address) {
        if (config.isCluster()) {
            for (int slot = 0; slot < slots.length; slot++) {
                if (address.equals(slots[slot])) {
                    slots[slot] = null;
                }
            }
        } else if (!config.isSingle() && address.equals(primary)) {
            primary = null;
        }
    }

    void moved(int slot, String address, String by) {
        slots[slot] = completed(address, by);
    }

    /** Returns the address; without a host, with that of the server which named it. */
    static String completed(String address, String by) {
        return address.startsWith(":") ? by.substring(0, by.lastIndexOf(':')) + address : address;
    }

    Link ready(String name) {
        String address = address(name);
        return address == null ? null : ready(door(address));
    }

    private static Link ready(Door door) {
        return door.link == null || door.link.hasEnded() ? null : door.link;
    }

    private Door door(String address) {
        return doors.computeIfAbsent(address, at -> new Door());
    }

    /** Finds the connection to the server of this lock, or to this node. */
    void linkIn(String name, String node, long most, BiConsumer<Link, Failure> then) {
        long until = Clock.after(Clock.now(), most);
        if (node != null) {
            linkTo(node, until, then);
            return;
        }
        findFor(name, until, (address, failed) -> {
            if (failed != null) {
                then.accept(null, failed);
            } else {
                linkTo(address, until, then);
            }
        });
    }

    private void linkTo(String address, long until, BiConsumer<Link, Failure> then) {
        var door = door(address);
        var link = ready(door);
        if (link != null) {
            then.accept(link, null);
            return;
        }
        var waiting = new Waiting[1];
        waiting[0] = new Waiting(then, engine.at(until, () -> {
            door.waiting.remove(waiting[0]);
            then.accept(null, door.failed != null ? door.failed : Failure.tooLate());
        }));
        door.waiting.add(waiting[0]);
        if (!door.isConnecting) {
            door.isConnecting = true;
            engine.in(Rules.backOff(door.tries++), () -> connectTo(door, address));
        }
    }

    private void connectTo(Door door, String address) {
        if (ended) {
            enter(door, null, Failure.broken(null, "the locks were closed"));
            return;
        }
        dial(address, config.login(), onChange, (link, failed) -> {
            door.failed = failed;
            if (failed == null) {
                door.link = link;
                hears();
                checkVersion(door, link);
            }
            enter(door, link, failed);
        });
    }

    /** Logs that the module of this server is too old. A missing module is reported by the first request. */
    private void checkVersion(Door door, Link link) {
        if (link.module != 0 && link.module < Rules.MODULE_VERSION_MIN && !door.isOutdated) {
            door.isOutdated = true;
            engine.log(Level.WARNING, "the module redislock on " + link.address + " is version "
                    + LockInfo.shown(link.module) + ", and this client needs " + LockInfo.shown(Rules.MODULE_VERSION_MIN)
                    + " or later: upgrade the module");
        }
    }

    private void enter(Door door, Link link, Failure failed) {
        door.isConnecting = false;
        var all = List.copyOf(door.waiting);
        door.waiting.clear();
        for (var each : all) {
            engine.cancel(each.limit());
            each.then().accept(failed == null ? link : null, failed);
        }
    }

    /** Makes a connection and logs in, within a bound. With {@code onChange} the server pushes changes, if it may. */
    Link dial(String address, Link.Login login, Consumer<List<?>> changed, BiConsumer<Link, Failure> then) {
        var made = new Link[1];
        var limit = engine.in(2 * Rules.ATTEMPT, () -> made[0].end(Failure.broken(null,
                "no login within " + Rules.text(2 * Rules.ATTEMPT))));
        made[0] = new Link(engine, config, address, login, changed, failed -> {
            engine.cancel(limit);
            if (ended && failed == null) {
                made[0].end(Failure.broken(null, "the locks were closed"));
            }
            then.accept(made[0], failed);
        });
        open.add(made[0]);
        open.removeIf(Link::hasEnded);
        return made[0];
    }

    private final List<Link> open = new ArrayList<>();
    /** The requests that are not answered yet. */
    final Set<Request> unanswered = new LinkedHashSet<>();

    /** Finds the server of this lock, once for all callers. */
    void findFor(String name, long until, BiConsumer<String, Failure> then) {
        if (address(name) != null) {
            then.accept(address(name), null);
            return;
        }
        var timer = new Engine.Timer[1];
        Consumer<Failure> found = failed -> {
            engine.cancel(timer[0]);
            if (failed == null && address(name) == null) {
                failed = Failure.broken(null, "the primary is unknown: no node of the cluster serves this slot");
            }
            then.accept(address(name), failed);
        };
        timer[0] = engine.at(until, () -> {
            finding.remove(found);
            then.accept(null, Failure.tooLate());
        });
        finding.add(found);
        if (!isFinding) {
            isFinding = true;
            find(new ArrayDeque<>(nodes), Failure.tooLate());
        }
    }

    /** Asks nodes one at a time for the primary, or the primaries of a cluster. */
    private void find(ArrayDeque<String> left, Failure why) {
        String node = left.poll();
        if (node == null || ended) {
            found(why);
            return;
        }
        Consumer<Failure> next = failed -> find(left, Failure.broken(failed.cause(),
                "the primary is unknown: " + node + ": " + failed.text()));
        var login = config.primary() == null ? config.login() : config.sentinelLogin();
        dial(node, login, null, (link, failed) -> {
            if (failed != null) {
                next.accept(failed);
                return;
            }
            var question = config.primary() == null ? List.of("CLUSTER", "SLOTS")
                    : List.of("SENTINEL", "GET-MASTER-ADDR-BY-NAME", config.primary());
            link.send(question, null, Rules.ATTEMPT, (reply, refused) -> {
                link.end(Failure.broken(null, "it is done"));
                String wrong = refused != null ? refused.text()
                        : config.primary() == null ? takeSlots(reply, node) : takePrimary(reply);
                if (wrong != null) {
                    next.accept(Failure.broken(null, wrong));
                    return;
                }
                // The node that answers is asked first the next time.
                var order = new ArrayList<>(List.of(node));
                nodes.stream().filter(other -> !other.equals(node)).forEach(order::add);
                nodes = order;
                found(null);
            });
        });
    }

    private void found(Failure failed) {
        isFinding = false;
        var all = List.copyOf(finding);
        finding.clear();
        all.forEach(each -> each.accept(failed));
    }

    /** Returns the fault in the reply; null if there is none. */
    private String takePrimary(Object reply) {
        if (!(reply instanceof List<?> words) || words.size() != 2) {
            return "this sentinel does not monitor a primary named " + config.primary();
        }
        String host = String.valueOf(words.get(0));
        primary = (host.contains(":") ? "[" + host + "]" : host) + ":" + words.get(1);
        if (last != null && !last.equals(primary)) {
            engine.log(Level.INFO, "the primary changed: " + primary + ", before " + last);
        }
        last = primary;
        return null;
    }

    private String takeSlots(Object reply, String by) {
        var found = new String[Rules.SLOTS];
        var all = new ArrayList<>(nodes);
        boolean any = false;
        for (Object row : reply instanceof List<?> rows ? rows : List.of()) {
            if (!(row instanceof List<?> columns) || columns.size() < 3 || !(columns.get(0) instanceof Long first)
                    || !(columns.get(1) instanceof Long to)) {
                continue;
            }
            for (int number = 2; number < columns.size(); number++) {
                String address = nodeAddress(columns.get(number), by);
                if (address == null) {
                    continue;
                }
                if (!all.contains(address)) {
                    all.add(address);
                }
                for (long at = Math.max(0, first); number == 2 && at <= Math.min(to, Rules.SLOTS - 1); at++) {
                    found[(int) at] = address;
                    any = true;
                }
            }
        }
        if (!any) {
            return "it knows no node that serves slots";
        }
        slots = found;
        nodes = all;
        return null;
    }

    /** Parses a node from CLUSTER SLOTS; without a host, it is the node that answered. */
    private static String nodeAddress(Object column, String by) {
        if (!(column instanceof List<?> words) || words.size() < 2 || !(words.get(1) instanceof Long port)
                || "?".equals(words.get(0))) {
            return null;
        }
        String host = words.get(0) == null ? "" : String.valueOf(words.get(0));
        return completed((host.contains(":") ? "[" + host + "]" : host) + ":" + port, by);
    }

    /** Records that a server does what only a primary does, for the first time over a new connection. */
    void isServed(String address) {
        var door = door(address);
        door.tries = 0;
        if (door.hasServed) {
            engine.log(Level.INFO, "reconnected to " + address);
            engine.tell(() -> onReconnect.accept(address));
        }
        door.hasServed = true;
    }

    /** Logs a temporary refusal, once until the server grants again. */
    void isRefused(Wanted wanted, Problem problem) {
        if (wanted != null && !refuses) {
            refuses = true;
            engine.log(Level.WARNING, "waiting for lock '" + wanted.label() + "', which the server cannot grant for now: "
                    + problem.text());
        }
    }

    void grantsAgain() {
        refuses = false;
    }

    /** Ends all connections, and makes no new ones. */
    void end() {
        ended = true;
        for (var link : List.copyOf(open)) {
            link.end(Failure.broken(null, "the locks were closed"));
        }
        engine.soon(() -> List.copyOf(unanswered).forEach(Request::close)); // no timer will end them
    }

    boolean hasEnded() {
        return ended;
    }
}
