package redislock;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** A server of REDISLOCK_SERVER with the module of REDISLOCK_MODULE, in a process that the tests start and end. */
final class Server implements AutoCloseable {
    /** The tolerance of timed assertions, since the machine may be busy. */
    static final Duration SLACK = Duration.ofSeconds(30);

    final int port;
    /**
     * Keeps the port as long as the server may come back: it is bound without listening. A server asks for SO_REUSEADDR and
     * may listen there all the same, and a search for a free port passes it over.
     */
    private final Socket reserved = new Socket();
    private final Path directory;
    private Process process;

    Server() {
        try {
            reserved.setReuseAddress(true);
            reserved.bind(new InetSocketAddress("127.0.0.1", 0));
            port = reserved.getLocalPort();
            directory = Files.createTempDirectory("redislock-java-");
            start();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static String given(String name) {
        String value = System.getenv(name);
        if (value == null) {
            throw new AssertionError(name + " must be set: see clients/java/check");
        }
        return value;
    }

    void start() {
        var words = List.of(given("REDISLOCK_SERVER").split(" ")[2], "--port", "" + port, "--bind", "127.0.0.1", "--save", "",
                "--dir", directory.toString(), "--loadmodule", given("REDISLOCK_MODULE"));
        try {
            process = new ProcessBuilder(words).redirectErrorStream(true).redirectOutput(directory.resolve("log").toFile()).start();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
        eventually("the server that was started answers", () -> isOurs());
    }

    /** True if the process that was started answers: another one may listen there. */
    private boolean isOurs() {
        if (!process.isAlive()) {
            throw new AssertionError("the server has ended: see " + directory);
        }
        try {
            return String.valueOf(ask("INFO", "server")).contains("process_id:" + process.pid() + "\r\n");
        } catch (IOException e) {
            return false;
        }
    }

    String address() {
        return "127.0.0.1:" + port;
    }

    Locks locks() {
        return Locks.open("redis://" + address());
    }

    /** Sends a command over a connection of its own. */
    Object ask(String... words) throws IOException {
        try (var socket = new Socket()) {
            socket.connect(new InetSocketAddress("127.0.0.1", port), (int) SLACK.toMillis());
            socket.setSoTimeout((int) SLACK.toMillis());
            var replies = new Resp(socket.getInputStream());
            socket.getOutputStream().write(Resp.command(List.of("HELLO", "3")));
            replies.read();
            socket.getOutputStream().write(Resp.command(List.of(words)));
            return replies.read();
        }
    }

    Object command(String... words) {
        try {
            return ask(words);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    boolean isHeld(String name) {
        return command("LOCK.FENCE", name) != null;
    }

    int waiters(String name) {
        return command("LOCK.INFO", name) instanceof java.util.Map<?, ?> info ? LockInfo.of(info).waiters() : 0;
    }

    /** Counts the calls of commands whose names begin so. */
    long calls(String start) {
        long count = 0;
        for (String line : String.valueOf(command("INFO", "commandstats")).split("\r\n")) {
            if (line.toLowerCase().startsWith("cmdstat_" + start)) {
                count += Long.parseLong(line.replaceAll("[^:]*:calls=([0-9]+).*", "$1"));
            }
        }
        return count;
    }

    void signal(String name) {
        try {
            int ended = new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
            if (ended != 0) {
                throw new AssertionError("kill -" + name + " ended with " + ended);
            }
        } catch (IOException | InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    void kill() {
        process.destroyForcibly();
        try {
            if (!process.waitFor(SLACK.toSeconds(), TimeUnit.SECONDS)) {
                throw new AssertionError("the server does not end");
            }
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    @Override
    public void close() {
        kill();
        try {
            reserved.close();
            var files = new ArrayList<Path>();
            try (var found = Files.walk(directory)) {
                found.forEach(files::add);
            }
            for (int at = files.size() - 1; at >= 0; at--) {
                Files.delete(files.get(at));
            }
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** Polls until it is so. */
    static void eventually(String what, BooleanSupplier isSo) {
        long end = System.nanoTime() + SLACK.toNanos();
        while (!isSo.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new AssertionError("not within " + SLACK + ": " + what);
            }
            try {
                Thread.sleep(5);
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
        }
    }
}
