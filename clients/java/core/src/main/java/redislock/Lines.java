package redislock;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The waiters of this process for each lock, in the order of the server's queue. */
final class Lines {
    private static final long UNASKED = Long.MAX_VALUE;
    private static final Comparator<Place> ORDER =
            Comparator.<Place>comparingLong(place -> place.number).thenComparingLong(place -> place.arrived);

    /** The answer to whether a waiter may ask the server. */
    enum May {
        ASK,
        /** Not before the waiters ahead of it have asked again. */
        AFTER_OTHERS,
        /** Not before fewer waiters stand ahead of it. */
        NOT_YET
    }

    private final Engine engine;
    private final Map<String, Line> lines = new HashMap<>();
    /** The number of waiters of each lock that the server queues. */
    private final int most;

    Lines(Engine engine, int most) {
        this.engine = engine;
        this.most = most;
    }

    /**
     * Joins the queue for this lock, by the number of its call. The server must see the deadlocks of an owner that the
     * program names, so the request of such an owner is sent at once.
     */
    Place join(String name, long arrived, boolean isNamed) {
        var place = new Place(lines.computeIfAbsent(name, Line::new), arrived, isNamed);
        place.line.add(place);
        return place;
    }

    /** Handles that these locks have changed: null for any. */
    void changed(List<?> names) {
        var all = names == null ? List.copyOf(lines.keySet()) : names;
        for (Object name : all) {
            var line = lines.get(name);
            if (line != null) {
                line.watched = 0;
                line.callFirst();
            }
        }
    }

    /**
     * The waiters of one lock. Waiters that have asked the server come first, by the number of their request; the
     * others follow by their arrival.
     */
    private final class Line {
        private final String name;
        private final List<Place> places = new ArrayList<>();
        /** The number of waiters whose owner the program names. */
        private int named;
        /**
         * The connection over which the server was asked to push the next change of the lock, if it has not done so
         * yet.
         */
        private long watched;
        /**
         * The connection of the latest request of any waiter, and the number of that request. Its server may have lost
         * the queue. So all that have asked over another connection ask again, one after the other.
         */
        private long link;
        private long latest;

        Line(String name) {
            this.name = name;
        }

        int index(Place place) {
            int at = Collections.binarySearch(places, place, ORDER);
            return at < 0 ? -at - 1 : at;
        }

        void add(Place place) {
            places.add(index(place), place);
            named += place.isNamed ? 1 : 0;
        }

        void callFirst() {
            if (!places.isEmpty()) {
                places.get(0).call();
            }
        }

        boolean isStale(Place place) {
            return place.number != UNASKED && place.link != link;
        }

        /**
         * Calls the next waiter that must ask again, after one that has just asked or left. Each then calls the next
         * one. After the last of them, waiters that have not asked yet are admitted.
         */
        void callNext(int after, boolean wasStale) {
            long due = Clock.now() - Rules.KEEP / Rules.ASKS_IN_KEEP / 2;
            for (int at = after; at < places.size() && places.get(at).number != UNASKED; at++) {
                var next = places.get(at);
                if (isStale(next) || next.askedAt < due) {
                    next.call();
                    return;
                }
            }
            if (wasStale) {
                for (var place : standing()) {
                    if (place.number == UNASKED) {
                        place.call();
                    }
                }
            }
        }

        /**
         * Returns the waiters that the server may queue: all that have asked, all with a name, and others up to the
         * limit.
         */
        List<Place> standing() {
            if (named == 0) {
                int end = Math.min(most, places.size());
                while (end < places.size() && places.get(end).number != UNASKED) {
                    end++; // one whose call was earlier has joined when this one's request was on its way
                }
                return places.subList(0, end);
            }
            var found = new ArrayList<Place>();
            int others = 0;
            for (var place : places) {
                if (place.isNamed || ++others <= most || place.number != UNASKED) {
                    found.add(place);
                }
            }
            return found;
        }

        void callUnsent() {
            standing().stream().filter(place -> !place.sent).findFirst().ifPresent(Place::call);
        }
    }

    /** The place of one waiter. */
    final class Place {
        private final Line line;
        private long number = UNASKED;
        private final long arrived;
        private final boolean isNamed;
        /** True once its first request is in flight: waiters after it ask after it. */
        private boolean sent;
        /** The connection over which it has asked, and the time. */
        private long link;
        private long askedAt = Clock.now();
        boolean called;
        private Runnable asleep;
        private Engine.Timer timer;

        private Place(Line line, long arrived, boolean isNamed) {
            this.line = line;
            this.arrived = arrived;
            this.isNamed = isNamed;
        }

        /** Wakes it up, now or when it falls asleep next. */
        private void call() {
            if (asleep == null) {
                called = true;
            } else {
                wake();
            }
        }

        private void wake() {
            engine.cancel(timer);
            var then = asleep;
            asleep = null;
            if (then != null) {
                engine.soon(then);
            }
        }

        /** Resets the call. */
        void clear() {
            called = false;
        }

        /** Sleeps for this time, or until it is called. */
        void sleep(long duration, Runnable then) {
            asleep = then;
            if (called) {
                wake();
            } else {
                timer = engine.in(duration, this::wake);
            }
        }

        May mayAsk() {
            var standing = line.standing();
            int at = standing.indexOf(this);
            if (at < 0) {
                return May.NOT_YET;
            }
            boolean isBehind = standing.subList(0, at).stream().anyMatch(other -> line.isStale(other) || !other.sent);
            return isBehind ? May.AFTER_OTHERS : May.ASK;
        }

        boolean isFirst() {
            return line.places.get(0) == this;
        }

        /** True if the server pushes the next change. */
        boolean isWatched() {
            return line.watched != 0 && line.watched == line.link;
        }

        /** Records that its first request is in flight, and calls the waiter after it. */
        void sends() {
            if (!sent) {
                sent = true;
                line.callUnsent();
            }
        }

        /**
         * Returns the requests that must first be sent over this connection, so that the server pushes the next change.
         */
        List<List<String>> watch(Link over) {
            if (line.watched == over.number) {
                return List.of();
            }
            line.watched = over.number;
            return List.of(List.of("LOCK.FENCE", line.name));
        }

        /** Records that the server queues it since the request of this number, over this connection. */
        void asked(long request, long over) {
            int at = line.index(this);
            boolean wasFirst = at == 0;
            boolean wasStale = line.isStale(this);
            line.places.remove(at);
            link = over;
            askedAt = Clock.now();
            if (number == UNASKED) {
                number = request;
            }
            at = line.index(this);
            line.places.add(at, this);
            if (request > line.latest) {
                line.link = over;
                line.latest = request;
            }
            // A call for the first waiter may have reached another one.
            if (wasFirst != (at == 0)) {
                line.callFirst();
            }
            line.callNext(at + 1, wasStale);
        }

        void leave() {
            engine.cancel(timer);
            asleep = null;
            int at = line.index(this);
            boolean wasStale = line.isStale(this);
            line.places.remove(at);
            line.named -= isNamed ? 1 : 0;
            if (!sent) {
                line.callUnsent();
            }
            if (line.places.isEmpty()) {
                lines.remove(line.name);
                return;
            }
            if (at == 0) {
                line.callFirst();
            }
            if (wasStale) {
                line.callNext(at, true);
            }
            // The waiter that moves up may join the server's queue now.
            var others = line.standing().stream().filter(place -> !place.isNamed).toList();
            if (!others.isEmpty() && others.get(others.size() - 1).number == UNASKED) {
                others.get(others.size() - 1).call();
            }
        }
    }
}
