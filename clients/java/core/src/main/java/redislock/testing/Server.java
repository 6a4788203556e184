package redislock.testing;

import java.io.BufferedInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import redislock.Locks;

/**
 * An in-memory server for tests, at a port of 127.0.0.1. The rest is the library's own code, so waits, renewals, losses
 * and errors are as with a real server. Its clock is the real one. It has no quarantine, no replicas and no queue
 * limits.
 *
 * <pre>{@code
 * try (var server = Server.start(); var ours = Locks.open(server.url()); var theirs = Locks.open(server.url())) {
 *     var hold = ours.lock("invoice:42").acquire();
 *     assertTrue(theirs.lock("invoice:42").tryAcquire().isEmpty());
 *     server.lose("invoice:42"); // as an operator's DEL
 *     hold.lost().get(10, TimeUnit.SECONDS);
 * }
 * }</pre>
 */
public final class Server implements AutoCloseable {
    private static final int LONGEST_WORD = 1 << 20;

    private final ServerSocket listening;
    private final List<Connection> connections = new ArrayList<>();
    private final Table table = new Table();
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();

    private Server(ServerSocket listening) {
        this.listening = listening;
    }

    /**
     * Starts a server that has no locks yet.
     *
     * @return the server
     */
    public static Server start() {
        try {
            var server = new Server(new ServerSocket(0, 128, InetAddress.getByAddress(new byte[] {127, 0, 0, 1})));
            thread("listens", server::listen);
            thread("keeps-time", server::keepTime);
            return server;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /**
     * Returns the URL for {@link Locks#open(String)}. Each {@code Locks} of it acts like another process.
     *
     * @return a URL
     */
    public String url() {
        return "redis://127.0.0.1:" + listening.getLocalPort();
    }

    /**
     * Ends all holds of this lock, as an operator's DEL does. Their holders are notified a moment later.
     *
     * @param name the name on the server, with the prefix if there is one
     */
    public void lose(String name) {
        Objects.requireNonNull(name, "name must not be null");
        with(() -> table.lose(name));
    }

    /** Ends all connections, and accepts no new ones. */
    @Override
    public void close() {
        with(() -> {
            end(listening);
            connections.forEach(each -> end(each.socket));
        });
    }

    /** Changes the table, after expired leases and waits have ended. */
    private void with(Runnable change) {
        lock.lock();
        try {
            table.tick();
            change.run();
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private static void thread(String name, Runnable work) {
        var thread = new Thread(work, "redislock-testing-" + name);
        thread.setDaemon(true);
        thread.start();
    }

    private static void end(AutoCloseable closed) {
        try {
            closed.close();
        } catch (Exception e) {
            return; // it has ended
        }
    }

    private void listen() {
        try {
            while (true) {
                var connection = new Connection(listening.accept());
                with(() -> {
                    connections.add(connection);
                    if (listening.isClosed()) {
                        end(connection.socket);
                    }
                });
                thread("serves", () -> serve(connection));
            }
        } catch (IOException e) {
            return; // it was closed
        }
    }

    /** Ends leases and waits when their time is up. */
    private void keepTime() {
        lock.lock();
        try {
            while (!listening.isClosed()) {
                table.tick();
                changed.await(table.next(), TimeUnit.MILLISECONDS);
            }
        } catch (InterruptedException e) {
            return; // which nobody does
        } finally {
            lock.unlock();
        }
    }

    private void serve(Connection connection) {
        try {
            connection.socket.setTcpNoDelay(true);
            var from = new BufferedInputStream(connection.socket.getInputStream());
            while (true) {
                var words = request(from);
                with(() -> connection.send(table.command(connection, words)));
            }
        } catch (IOException e) {
            end(connection.socket);
        }
        with(() -> {
            connections.remove(connection);
            table.detach(connection);
        });
    }

    private static List<String> request(InputStream from) throws IOException {
        var words = new ArrayList<String>();
        for (int left = length(from, '*'); left > 0; left--) {
            int length = length(from, '$');
            byte[] word = from.readNBytes(length + 2);
            if (word.length < length + 2) {
                throw new EOFException();
            }
            words.add(new String(word, 0, length, StandardCharsets.UTF_8));
        }
        return words;
    }

    private static int length(InputStream from, char kind) throws IOException {
        int length = 0;
        int next = from.read();
        if (next != kind) {
            throw new EOFException();
        }
        while ((next = from.read()) != '\r') {
            length = 10 * length + next - '0';
            if (next < '0' || next > '9' || length > LONGEST_WORD) {
                throw new IOException("this is no request");
            }
        }
        from.read();
        return length;
    }

    /** A connection of a client, which receives pushes if it asks for them. */
    static final class Connection {
        private final Socket socket;
        boolean tracks;

        private Connection(Socket socket) {
            this.socket = socket;
        }

        void send(String reply) {
            try {
                socket.getOutputStream().write(reply.getBytes(StandardCharsets.UTF_8));
            } catch (IOException e) {
                end(socket); // the thread that reads from it notes that
            }
        }
    }
}
