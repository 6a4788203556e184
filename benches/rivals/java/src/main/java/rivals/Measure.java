package rivals;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** The measurements, as in benches/rivals/go/measure.go. */
final class Measure {
    private static final long LINE_UP_NS = 200_000_000;
    private static final int LOSS_MOST_S = 20;
    /** How old a hold is that is taken away: a library of redislock asks to be told 20 ms after a grant. */
    private static final int SETTLED_MS = 100;
    private static final long BETWEEN_MS = 100;
    private static final long PAUSE_MS = 10;
    private static final long PATIENCE_NS = 60_000_000_000L;

    private Measure() {}

    /** When a taker asked for the lock and when it got it. */
    private record Turn(int who, long asked, long got) {}

    /** What each taker does. */
    private interface Work {
        void run(int who, Client.Taker taker) throws Exception;
    }

    /** Each taker works in a thread of its own. */
    private static void all(List<Client.Taker> takers, Work work) throws Exception {
        var threads = Executors.newFixedThreadPool(takers.size());
        try {
            var tasks = new ArrayList<Callable<Void>>();
            for (int number = 0; number < takers.size(); number++) {
                int who = number;
                tasks.add(() -> {
                    work.run(who, takers.get(who));
                    return null;
                });
            }
            for (Future<Void> each : threads.invokeAll(tasks, PATIENCE_NS, TimeUnit.NANOSECONDS)) {
                each.get();
            }
        } finally {
            threads.shutdownNow();
        }
    }

    static Map<String, Double> pairs(List<Client.Taker> takers, Duration window) throws Exception {
        List<Long> times = Collections.synchronizedList(new ArrayList<>());
        long start = System.nanoTime();
        all(takers, (who, taker) -> {
            List<Long> own = new ArrayList<>();
            for (long begin = start; begin - start < window.toNanos(); ) {
                taker.take();
                taker.free();
                long end = System.nanoTime();
                own.add(end - begin);
                begin = end;
            }
            times.addAll(own);
        });
        double took = (System.nanoTime() - start) / 1e9;
        Collections.sort(times);
        return Map.of(
                "pairs", (double) times.size(),
                "pairs_per_second", times.size() / took,
                "p50_us", times.get(times.size() / 2) / 1e3);
    }

    static Map<String, Double> handOver(List<Client.Taker> takers, Duration window) throws Exception {
        List<Turn> turns = Collections.synchronizedList(new ArrayList<>());
        long start = System.nanoTime() + LINE_UP_NS;
        long end = start + window.toNanos();
        // After the end each waits for its turn once more, so that the queue empties.
        all(takers, (who, taker) -> {
            for (long asked = System.nanoTime(); asked - end < 0; asked = System.nanoTime()) {
                taker.take();
                turns.add(new Turn(who, asked, System.nanoTime()));
                taker.free();
            }
        });
        return handedOver(turns, start, end);
    }

    /** Counts the grants to another taker than the one before, and the waits within the window. */
    private static Map<String, Double> handedOver(List<Turn> turns, long start, long end) {
        int within = 0;
        int all = 0;
        Set<Integer> served = new HashSet<>();
        List<Long> waits = new ArrayList<>();
        for (int number = 0; number < turns.size(); number++) {
            Turn one = turns.get(number);
            boolean isWithin = one.got - start >= 0 && one.got - end < 0;
            if (isWithin) {
                served.add(one.who);
            }
            if (number > 0 && turns.get(number - 1).who != one.who) {
                all++;
                within += isWithin ? 1 : 0;
            }
            long wait = Math.min(one.got - start, end - start) - Math.max(one.asked - start, 0);
            if (wait > 0) {
                waits.add(wait);
            }
        }
        Map<String, Double> found = new HashMap<>();
        found.put("hand_overs", (double) all);
        found.put("served", (double) served.size());
        found.put("hand_overs_per_second", within / ((end - start) / 1e9));
        if (!waits.isEmpty()) {
            Collections.sort(waits);
            found.put("median_wait_ms", waits.get(waits.size() / 2) / 1e6);
            found.put("longest_wait_ms", waits.get(waits.size() - 1) / 1e6);
        }
        return found;
    }

    /** No figure for a library that does not tell. */
    static Map<String, Double> loss(Client.Taker taker) throws Exception {
        taker.take();
        var lost = taker.lost();
        if (lost == null) {
            taker.free();
            return Map.of();
        }
        Thread.sleep(SETTLED_MS);
        long start = System.nanoTime();
        taker.takeAway();
        lost.get(LOSS_MOST_S, TimeUnit.SECONDS);
        return Map.of("loss_ms", (System.nanoTime() - start) / 1e6);
    }

    /** Kills the process, and then each taker asks for its own lock, one after the other, until one has it. */
    static Map<String, Double> probe(List<Client.Taker> takers, long pid) throws Exception {
        all(takers, (who, taker) -> {
            taker.take();
            taker.free();
        });
        ProcessHandle.of(pid).orElseThrow().destroyForcibly();
        long start = System.nanoTime();
        Thread.sleep(BETWEEN_MS); // until it serves nobody any more
        Map<Integer, Double> gaps = new ConcurrentHashMap<>();
        all(takers, (who, taker) -> {
            Thread.sleep(who * BETWEEN_MS);
            if (who > 0 && !gaps.isEmpty()) {
                return;
            }
            granted(taker, start + PATIENCE_NS);
            gaps.put(who, (System.nanoTime() - start) / 1e6);
            taker.free();
        });
        return Map.of("gap_ms", Collections.min(gaps.values()), "first_ms", gaps.get(0));
    }

    /** Asks again after each error. */
    private static void granted(Client.Taker taker, long until) throws Exception {
        for (; ; Thread.sleep(PAUSE_MS)) {
            try {
                taker.take();
                return;
            } catch (Exception e) {
                if (System.nanoTime() - until > 0) {
                    throw e;
                }
            }
        }
    }
}
