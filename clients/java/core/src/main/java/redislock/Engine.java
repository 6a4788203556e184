package redislock;

import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.TreeSet;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Runs all steps of a Locks, one at a time: those of callers, of replies and of timers. A step never waits and does no
 * I/O. So any thread may run one, even an interrupted or a virtual one.
 */
final class Engine {
    static final System.Logger LOGGER = System.getLogger("redislock");
    private static final int MOST_LINES = 10_000;

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition due = lock.newCondition();
    private final ArrayDeque<Runnable> soon = new ArrayDeque<>();
    private final TreeSet<Timer> timers = new TreeSet<>();
    /** The time at which the timer thread wakes up. */
    private long wakesAt = Clock.NEVER;
    private Thread timing;
    private boolean ended;
    private long numbers;
    private final ThreadPoolExecutor logging = pool("redislock-logger", new ArrayBlockingQueue<>(MOST_LINES));
    /** Calls listeners, and lets callers continue after them. */
    private final ThreadPoolExecutor telling = pool("redislock-listener", new LinkedBlockingQueue<>());
    /** Completes the futures of the user, and so runs the stages that depend on them. */
    final ThreadPoolExecutor completing = pool("redislock-async", new LinkedBlockingQueue<>());
    private volatile Thread teller;

    /**
     * Returns a pool whose threads end when they are idle. After the end of the engine, its tasks run in the caller's
     * thread.
     */
    private ThreadPoolExecutor pool(String name, BlockingQueue<Runnable> queue) {
        var pool = new ThreadPoolExecutor(1, 1, 2, TimeUnit.SECONDS, queue, work -> thread(work, name), (work, full) -> {
            if (full.isShutdown()) {
                work.run();
            }
        });
        pool.allowCoreThreadTimeOut(true);
        return pool;
    }

    /** A step that is due at a moment. */
    static final class Timer implements Comparable<Timer> {
        private final long at;
        private final long number;
        private final Runnable task;

        private Timer(long at, long number, Runnable task) {
            this.at = at;
            this.number = number;
            this.task = task;
        }

        @Override
        public int compareTo(Timer other) {
            return at != other.at ? Long.compare(at, other.at) : Long.compare(number, other.number);
        }
    }

    static Thread thread(Runnable work, String name) {
        var thread = new Thread(null, work, name, 0, false);
        thread.setDaemon(true);
        // The thread must not retain the class loader of a redeployed application.
        thread.setContextClassLoader(null);
        return thread;
    }

    /** Runs a step, and the tasks that it has scheduled. */
    void run(Runnable task) {
        get(() -> {
            guarded(task);
            return null;
        });
    }

    <T> T get(Supplier<T> task) {
        lock.lock();
        try {
            return task.get();
        } finally {
            if (lock.getHoldCount() == 1) {
                drain();
            }
            lock.unlock();
        }
    }

    /** Runs a step that sends a query about this lock, and waits for its answer: for threads of users. */
    <T> T ask(String lock, Consumer<BiConsumer<T, Problem>> question) throws InterruptedException {
        record End<T>(T value, Problem problem) {}
        var done = new CompletableFuture<End<T>>();
        run(() -> question.accept((value, problem) -> done.complete(new End<>(value, problem))));
        try {
            var end = done.get();
            if (end.problem() != null) {
                throw end.problem().named(lock, 0).exception();
            }
            return end.value();
        } catch (ExecutionException e) {
            throw new AssertionError(e); // it is only ever completed
        }
    }

    /** Runs this once the current step has ended. */
    void soon(Runnable task) {
        soon.add(task);
    }

    private void drain() {
        for (Runnable next = soon.poll(); next != null; next = soon.poll()) {
            guarded(next);
        }
    }

    private static void guarded(Runnable task) {
        try {
            task.run();
        } catch (RuntimeException | Error e) { // the next steps must be taken all the same
            LOGGER.log(Level.ERROR, "a step of the library failed, which is a fault of it", e);
        }
    }

    /** Returns a number that is higher than all earlier ones. */
    long number() {
        return ++numbers;
    }

    Timer at(long moment, Runnable task) {
        var timer = new Timer(moment, number(), task);
        if (ended || moment == Clock.NEVER) {
            return timer;
        }
        timers.add(timer);
        if (timing == null) {
            timing = thread(this::time, "redislock-timer");
            timing.start();
        } else if (moment < wakesAt) {
            due.signal();
        }
        return timer;
    }

    Timer in(long duration, Runnable task) {
        return at(Clock.after(Clock.now(), duration), task);
    }

    void cancel(Timer timer) {
        if (timer != null) {
            timers.remove(timer);
        }
    }

    private void time() {
        lock.lock();
        try {
            while (!ended) {
                long now = Clock.now();
                while (!timers.isEmpty() && timers.first().at <= now) {
                    guarded(timers.pollFirst().task);
                    drain();
                }
                long next = timers.isEmpty() ? Clock.NEVER : timers.first().at;
                // It wakes up at intervals even if nothing is due: the system's timers stop while the machine sleeps.
                long sleep = Math.min(Rules.NAP, Math.max(0, next - Clock.now()));
                wakesAt = next == Clock.NEVER ? Clock.NEVER : Clock.now() + sleep;
                if (next == Clock.NEVER) {
                    due.await();
                } else if (sleep > 0) {
                    due.awaitNanos(sleep);
                }
            }
        } catch (InterruptedException e) {
            ended = true; // only the end of the process interrupts this thread
        } finally {
            lock.unlock();
        }
    }

    /** Calls the user's code in another thread: in the order of these calls, and without dropping any. */
    void tell(Runnable work) {
        telling.execute(() -> {
            teller = Thread.currentThread();
            try {
                work.run();
            } catch (RuntimeException e) {
                LOGGER.log(Level.WARNING, "a listener failed", e);
            } finally {
                teller = null;
            }
        });
    }

    /** True in a listener, which cannot wait for what comes after it. */
    boolean isInListener() {
        return Thread.currentThread() == teller;
    }

    /** Logs in another thread. A line is dropped if very many wait for a logger that blocks. */
    void log(Level level, String text) {
        logging.execute(() -> LOGGER.log(level, text));
    }

    /** Ends the timers, and the threads of the engine once they are idle. */
    void end() {
        ended = true;
        timers.clear();
        due.signalAll();
        logging.shutdown();
        telling.shutdown();
        completing.shutdown();
    }

    Thread timing() {
        return timing;
    }
}
