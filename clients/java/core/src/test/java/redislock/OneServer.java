package redislock;

import static redislock.Server.SLACK;

import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;

/** Tests of one class share a server; each has locks of its own. */
@Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
abstract class OneServer {
    static Server server;
    Locks locks;

    @BeforeAll
    static void start() {
        server = new Server();
    }

    @AfterAll
    static void end() {
        server.close();
    }

    @BeforeEach
    void open() {
        locks = server.locks();
    }

    @AfterEach
    void close() {
        locks.close();
    }

    /** Calls it in a thread of its own. */
    static <T> T elsewhere(Callable<T> work) throws Exception {
        var done = new CompletableFuture<T>();
        new Thread(() -> {
            try {
                done.complete(work.call());
            } catch (Exception e) {
                done.completeExceptionally(e);
            }
        }).start();
        return done.get(SLACK.toSeconds(), TimeUnit.SECONDS);
    }
}
