package redislock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import javax.net.ServerSocketFactory;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;

/** Another way to a server: by TLS, or a sentinel that knows where it is. */
final class Door implements AutoCloseable {
    static final String PASSWORD = "of the store";

    private interface Served {
        void serve(Socket from) throws IOException;
    }

    private final ServerSocket listening;
    final int port;

    private Door(ServerSocketFactory sockets, Served served) {
        try {
            listening = sockets.createServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        } catch (IOException e) {
            throw new AssertionError(e);
        }
        port = listening.getLocalPort();
        start(() -> {
            while (true) {
                var from = listening.accept();
                start(() -> served.serve(from));
            }
        });
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void start(Work work) {
        var thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException e) {
                return; // the other side has gone, or the door was closed
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    /** Makes a key for these names, in a store that has its certificate, too. */
    static Path store(Path directory, String names) throws Exception {
        var store = directory.resolve("store.p12");
        var tool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
        var process = new ProcessBuilder(tool, "-genkeypair", "-alias", "door", "-keyalg", "EC", "-dname", "CN=localhost", "-ext",
                "SAN=" + names, "-storetype", "PKCS12", "-keystore", store.toString(), "-storepass", PASSWORD)
                .redirectErrorStream(true).redirectOutput(directory.resolve("log").toFile()).start();
        if (!process.waitFor(4 * Server.SLACK.toSeconds(), TimeUnit.SECONDS) || process.exitValue() != 0) {
            throw new AssertionError(Files.readString(directory.resolve("log")));
        }
        return store;
    }

    /** Returns a store with the certificate alone, as a client trusts it. */
    static Path trusted(Path store) throws Exception {
        var own = KeyStore.getInstance(store.toFile(), PASSWORD.toCharArray());
        var trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        trusted.setCertificateEntry("door", own.getCertificate("door"));
        var file = store.resolveSibling("trusted.p12");
        try (var out = Files.newOutputStream(file)) {
            trusted.store(out, PASSWORD.toCharArray());
        }
        return file;
    }

    /** Opens a way by TLS to the server at this port. */
    static Door secure(int to, Path store) throws IOException, GeneralSecurityException {
        var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(KeyStore.getInstance(store.toFile(), PASSWORD.toCharArray()), PASSWORD.toCharArray());
        var context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        return new Door(context.getServerSocketFactory(), from -> {
            try (from; var there = new Socket("127.0.0.1", to)) {
                start(() -> there.getInputStream().transferTo(from.getOutputStream()));
                from.getInputStream().transferTo(there.getOutputStream());
            }
        });
    }

    /** Starts what answers as a sentinel does, for any name: with these primaries, and with the last one again. */
    static Door sentinel(Integer... primaries) {
        var left = new ArrayDeque<>(List.of(primaries));
        return played(command -> {
            synchronized (left) {
                return command.equals("SENTINEL") ? "*2\r\n+127.0.0.1\r\n+" + (left.size() > 1 ? left.poll() : left.peek()) : "+OK";
            }
        });
    }

    /** Starts what replies so to the first word of each command, but for the end of the last line. */
    static Door played(UnaryOperator<String> reply) {
        return new Door(ServerSocketFactory.getDefault(), from -> {
            try (from) {
                var requests = new Resp(from.getInputStream());
                while (true) {
                    var words = (List<?>) requests.read();
                    var answer = reply.apply(String.valueOf(words.get(0))) + "\r\n";
                    from.getOutputStream().write(answer.getBytes(StandardCharsets.UTF_8));
                }
            }
        });
    }

    @Override
    public void close() throws IOException {
        listening.close();
    }
}
