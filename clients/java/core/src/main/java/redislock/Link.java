package redislock;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.UnknownHostException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import javax.net.ssl.SSLSocket;

/**
 * A connection that pipelines the requests of many callers. One thread connects and reads, another writes: an interrupt
 * of a caller's thread reaches neither. All else is done by steps of the engine.
 */
final class Link {
    private static final String NO_HELLO = "NOPROTO this peer does not know HELLO 3, so it does not speak RESP3, like some proxies: "
            + "use the address of the server itself";

    /** Takes a reply, or the reason why there is none. */
    interface Then {
        void done(Object reply, Failure failed);
    }

    /** A request that was sent. */
    static final class Call {
        private final Then then;
        private Engine.Timer limit;
        long number;

        private Call(Then then) {
            this.then = then;
        }
    }

    /** The login: the credentials are requested for each connection. */
    record Login(Supplier<Credentials> credentials, int database) {}

    final Engine engine;
    final String address;
    final long number;
    final long born = Clock.now();
    /** Receives the names that have changed: null for any, for example after the end of the connection. */
    private final Consumer<List<?>> onChange;
    private final Servers.Config config;
    /** The version of the server's module; 0 without one. */
    long module;
    /** True if a reply did not arrive in time. */
    boolean givenUp;
    /** True if the server did what only a primary does. */
    boolean served;
    /** True if the server pushes changes of the keys that were read here. */
    boolean tracks;
    private Consumer<Failure> opened;
    private Failure why;
    private boolean greeting;
    private final ArrayDeque<Call> pending = new ArrayDeque<>();
    private volatile Socket socket;

    private final ReentrantLock writing = new ReentrantLock();
    private final Condition toWrite = writing.newCondition();
    private ByteArrayOutputStream out = new ByteArrayOutputStream();
    private boolean closed;

    /** Connects and logs in. {@code opened} takes null once that is done, or the reason why it failed. */
    Link(Engine engine, Servers.Config config, String address, Login login, Consumer<List<?>> onChange,
            Consumer<Failure> opened) {
        this.engine = engine;
        this.config = config;
        this.address = address;
        this.onChange = onChange;
        this.opened = opened;
        number = engine.number();
        var slow = engine.in(Rules.ATTEMPT, () -> end(Failure.broken(null,
                "could not connect within " + Rules.text(Rules.ATTEMPT)
                        + (config.tls() == null ? "" : ": is this a port that speaks TLS?"))));
        Engine.thread(() -> read(login, slow), "redislock-" + address).start();
    }

    private void read(Login login, Engine.Timer slow) {
        Credentials credentials;
        try {
            credentials = Objects.requireNonNull(login.credentials().get(), "it returned null");
        } catch (RuntimeException e) {
            engine.run(() -> end(Failure.broken(e, "could not get the credentials: " + e.getMessage())));
            return;
        }
        try {
            int colon = address.lastIndexOf(':');
            String host = address.substring(0, colon).replaceAll("^\\[|\\]$", "");
            int port = Integer.parseInt(address.substring(colon + 1));
            var talks = connect(host, port);
            var replies = new Resp(new BufferedInputStream(talks.getInputStream()));
            var requests = talks.getOutputStream();
            Engine.thread(() -> write(requests), "redislock-" + address + "-writer").start();
            engine.run(() -> {
                engine.cancel(slow);
                greet(credentials, login.database());
            });
            while (true) {
                Object reply = replies.read();
                engine.run(() -> take(reply));
            }
        } catch (UnknownHostException e) {
            engine.run(() -> end(Failure.broken(e, "unknown host")));
        } catch (IOException | RuntimeException | Error e) {
            engine.run(() -> end(Failure.broken(e, "the connection ended: " + e.getMessage())));
        }
    }

    private Socket connect(String host, int port) throws IOException {
        var own = config.connector();
        var plain = own == null ? new Socket() : own.connect(host, port);
        socket = plain;
        if (engine.get(() -> why != null)) {
            plain.close();
        }
        plain.setTcpNoDelay(true);
        plain.setKeepAlive(true);
        if (own != null) {
            plain.setSoTimeout(0); // requests have limits of their own, and a read has none
            return plain;
        }
        plain.connect(new InetSocketAddress(host, port), (int) (Rules.ATTEMPT / Rules.MILLISECOND));
        if (config.tls() == null) {
            return plain;
        }
        var secure = (SSLSocket) config.tls().createSocket(plain, host, port, true);
        var parameters = secure.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        secure.setSSLParameters(parameters);
        secure.startHandshake();
        return secure;
    }

    private void write(OutputStream to) {
        try {
            while (true) {
                byte[] bytes;
                writing.lock();
                try {
                    while (out.size() == 0 && !closed) {
                        toWrite.awaitUninterruptibly();
                    }
                    if (closed) {
                        return;
                    }
                    bytes = out.toByteArray();
                    out = bytes.length > 1 << 16 ? new ByteArrayOutputStream() : out;
                    out.reset();
                } finally {
                    writing.unlock();
                }
                to.write(bytes);
                to.flush();
            }
        } catch (IOException e) {
            engine.run(() -> end(Failure.broken(e, "the connection ended: " + e.getMessage())));
        }
    }

    /** Names the likely cause of a plain connection that ends in its greeting: TLS servers close it, or send an alert. */
    private Failure suspectTls(Failure cause) {
        boolean likely = greeting && opened != null && !cause.isRefused() && cause.cause() instanceof IOException;
        if (!likely || config.tls() != null || config.connector() != null) {
            return cause;
        }
        return Failure.broken(cause.cause(), cause.text() + ": is this a port for TLS? Its address begins with rediss://");
    }

    private void greet(Credentials who, int database) {
        greeting = true;
        var requests = new ArrayDeque<List<String>>();
        requests.add(who.user().isEmpty() && who.password().isEmpty() ? List.of("HELLO", "3")
                : List.of("HELLO", "3", "AUTH", who.user().isEmpty() ? "default" : who.user(), who.password()));
        if (database != 0) {
            requests.add(List.of("SELECT", Integer.toString(database)));
        }
        if (onChange != null) {
            requests.add(List.of("CLIENT", "TRACKING", "ON"));
        }
        greet(requests);
    }

    private void greet(ArrayDeque<List<String>> requests) {
        var words = requests.poll();
        if (words == null) {
            var then = opened;
            opened = null;
            if (then != null) {
                then.accept(null);
            }
            return;
        }
        send(words, null, Rules.ATTEMPT, (reply, failed) -> {
            String first = words.get(0);
            if (failed == null && first.equals("HELLO")) {
                module = LockInfo.version(reply);
            } else if (failed == null && first.equals("CLIENT")) {
                tracks = true;
            } else if (failed != null && failed.isRefused() && !first.equals("CLIENT")) {
                boolean unknown = first.equals("HELLO") && (failed.text().startsWith("NOPROTO")
                        || failed.text().toLowerCase(Locale.ROOT).startsWith("err unknown command"));
                end(Failure.refused(unknown ? NO_HELLO : failed.text() + " (" + address + ")"));
                return;
            } else if (failed != null && !failed.isRefused()) {
                return; // it has ended
            }
            greet(requests);
        });
    }

    boolean hasEnded() {
        return why != null;
    }

    /** Sends this after all earlier requests, and first the requests that {@code before} returns. */
    Call send(List<String> words, Function<Link, List<List<String>>> before, long limit, Then then) {
        var call = new Call(then);
        call.number = engine.number();
        if (why != null) {
            engine.soon(() -> then.done(null, why));
            return call;
        }
        var bytes = new ArrayList<byte[]>();
        var first = before == null ? null : before.apply(this);
        if (first != null) {
            for (var each : first) {
                bytes.add(Resp.command(each));
                pending.add(new Call((reply, failed) -> { }));
            }
        }
        bytes.add(Resp.command(words));
        pending.add(call);
        writing.lock();
        try {
            bytes.forEach(out::writeBytes);
            toWrite.signal();
        } finally {
            writing.unlock();
        }
        call.limit = engine.in(limit, () -> {
            givenUp = true;
            end(Failure.broken(null, "no reply for " + Rules.text(limit)));
        });
        return call;
    }

    private void take(Object reply) {
        if (why != null) {
            return;
        }
        if (reply instanceof Resp.Push push) {
            if (push.items().size() > 1 && "invalidate".equals(push.items().get(0)) && onChange != null) {
                onChange.accept(push.items().get(1) instanceof List<?> names ? names : null);
            }
            return;
        }
        var call = pending.poll();
        if (call == null) {
            end(Failure.broken(null, "the connection ended: the server sent a reply without a request"));
            return;
        }
        engine.cancel(call.limit);
        if (reply instanceof Resp.Refusal refusal) {
            call.then.done(null, Failure.refused(refusal.text()));
        } else {
            call.then.done(reply, null);
        }
    }

    /** Ends the connection. All who wait for a reply get the reason. */
    void end(Failure reason) {
        if (why != null) {
            return;
        }
        var cause = suspectTls(reason);
        why = Failure.broken(cause.cause(), cause.text()); // they were not refused themselves
        writing.lock();
        try {
            closed = true;
            toWrite.signal();
        } finally {
            writing.unlock();
        }
        var calls = List.copyOf(pending);
        pending.clear();
        var then = opened;
        opened = null;
        engine.soon(() -> {
            for (var call : calls) {
                engine.cancel(call.limit);
                call.then.done(null, why);
            }
            if (then != null) {
                then.accept(cause);
            } else if (onChange != null) {
                onChange.accept(null);
            }
        });
        try {
            var made = socket;
            if (made != null) {
                made.close();
            }
        } catch (IOException e) {
            return; // nothing is left to be said over it
        }
    }
}
