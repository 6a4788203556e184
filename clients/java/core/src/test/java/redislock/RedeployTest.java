package redislock;

import static org.junit.jupiter.api.Assertions.assertNotSame;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import java.lang.ref.WeakReference;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class RedeployTest extends OneServer {
    /**
     * Deploys a program, which loads the library for itself and takes locks in a thread of its container, one of which it never
     * unlocks. It is undeployed then.
     */
    private static WeakReference<ClassLoader> deployed(ExecutorService container) throws Exception {
        var library = new URL[] {Locks.class.getProtectionDomain().getCodeSource().getLocation()};
        var loader = new URLClassLoader(library, ClassLoader.getPlatformClassLoader());
        var type = loader.loadClass("redislock.Locks");
        assertNotSame(Locks.class, type);
        var own = (AutoCloseable) type.getMethod("open", String.class).invoke(null, "redis://" + server.address());
        for (var name : new String[] {"unlocked", "left"}) {
            var lock = type.getMethod("lock", String.class).invoke(own, name);
            var taken = (java.util.concurrent.locks.Lock) lock.getClass().getMethod("asLock").invoke(lock);
            container.submit(taken::lock).get(SLACK.toSeconds(), TimeUnit.SECONDS);
            if (name.equals("unlocked")) {
                container.submit(taken::unlock).get(SLACK.toSeconds(), TimeUnit.SECONDS);
            }
        }
        own.close();
        loader.close();
        return new WeakReference<>(loader);
    }

    @Test
    void redeployLeavesNoClassLoader() throws Exception {
        var container = Executors.newSingleThreadExecutor();
        try {
            var loader = deployed(container);
            eventually("nothing refers to the class loader", () -> {
                System.gc();
                return loader.get() == null;
            });
        } finally {
            container.shutdown();
        }
    }
}
