package redislock;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Releases, in the background, what a request got or may still get. */
final class Errands {
    private final Core core;
    private final Map<String, List<Errand>> same = new HashMap<>();
    private int running;

    Errands(Core core) {
        this.core = core;
    }

    boolean areDone() {
        return running == 0;
    }

    /**
     * Releases all that this request got or may still get; with a token, the hold that has it. It sends a release at
     * once, after all earlier requests, and repeats it in the background until a server has answered.
     */
    void abandon(Wanted wanted, long token) {
        for (String name : wanted.names) {
            new Errand(wanted, name, token).begin();
        }
    }

    /** Stops giving up earlier requests of this owner. */
    void callOff(Wanted by) {
        for (String name : by.names) {
            var earlier = same.remove(key(name, by));
            if (earlier != null) {
                earlier.forEach(each -> each.callOff(by));
            }
        }
    }

    private static String key(String name, Wanted wanted) {
        return name + '\0' + wanted.owner;
    }

    private final class Errand {
        private final Wanted wanted;
        private final String name;
        private final List<String> words;
        private final boolean hasToken;
        private final long began = Clock.now();
        /** True if the release was sent once, after the request that it gives up. */
        private boolean isSent;
        private boolean isOff;
        private boolean isDone;
        private long pause = 2 * Rules.LONGEST_PAUSE;
        private Engine.Timer timer;
        private Request request;

        Errand(Wanted wanted, String name, long token) {
            this.wanted = wanted;
            this.name = name;
            words = wanted.release(name, token);
            hasToken = token != 0;
        }

        void begin() {
            running++;
            var link = core.servers.ready(name);
            // A late release would end the owner's next hold, too: an owner that asks again while a server still has
            // its hold gets the same token. So the next request calls the errand off, and so does the later of two
            // releases.
            if (!hasToken) {
                var earlier = same.remove(key(name, wanted));
                if (earlier != null) {
                    earlier.forEach(each -> each.callOff(wanted));
                }
            }
            same.computeIfAbsent(key(name, wanted), key -> new ArrayList<>()).add(this);
            if (link == null) {
                again();
                return;
            }
            isSent = true;
            link.send(words, null, Rules.ATTEMPT, (reply, failed) -> {
                if (failed != null && !failed.isRefused()) {
                    wanted.doubtful = true;
                }
                if (failed == null && !wanted.doubtful) {
                    done();
                } else {
                    again();
                }
            });
        }

        /** An unanswered request may still arrive, so its grant is released a little later, and again. */
        private void again() {
            if (isDone) {
                return;
            }
            if (isOff || Clock.age(began) >= Math.min(wanted.lease, 3 * Rules.SERVER_TIMEOUT)) {
                done();
                return;
            }
            request = new Request(core.servers, name, words, Clock.after(Clock.now(), Rules.ATTEMPT), null, (got, problem) -> {
                if (core.isClosing || problem == null && !wanted.doubtful) {
                    done();
                    return;
                }
                timer = core.engine.in(pause, this::again);
                pause *= 2;
            }).start();
        }

        /**
         * Stops it. The server executes earlier requests before later ones. A request that was not given up may still
         * arrive, even after the one that calls this off, so the newer request inherits its doubt.
         */
        void callOff(Wanted by) {
            isOff = true;
            if (!isSent || wanted.doubtful) {
                by.doubtful = true;
            }
            if (request != null) {
                request.cancel();
                done();
            }
        }

        /** Releases once more at once, because the Locks are closed. */
        void hurry() {
            if (timer != null && !isDone) {
                core.engine.cancel(timer);
                timer = null;
                again();
            }
        }

        private void done() {
            if (isDone) {
                return;
            }
            isDone = true;
            core.engine.cancel(timer);
            running--;
            var all = same.get(key(name, wanted));
            if (all != null) {
                all.remove(this);
                if (all.isEmpty()) {
                    same.remove(key(name, wanted));
                }
            }
            core.checkIdle();
        }
    }

    void hurry() {
        List.copyOf(same.values()).forEach(all -> List.copyOf(all).forEach(Errand::hurry));
    }
}
