package redislock;

import java.lang.System.Logger.Level;
import java.lang.ref.Reference;
import java.lang.ref.ReferenceQueue;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** Tracks holds, and the time at which each must be renewed, checked or ended. */
final class Keeper {
    private final Core core;
    private final TreeSet<Held> holds = new TreeSet<>();
    private final Map<String, Set<Held>> names = new HashMap<>();
    private final ReferenceQueue<Hold> dropped = new ReferenceQueue<>();
    private final Map<Reference<? extends Hold>, Held> references = new HashMap<>();
    private Engine.Timer timer;
    private long wakesAt = Clock.NEVER;

    Keeper(Core core) {
        this.core = core;
    }

    /** Tracks the hold from now on. */
    void register(Held held, Hold hold) {
        held.hold = new WeakReference<>(hold, dropped);
        references.put(held.hold, held);
        held.due = held.nextDue();
        holds.add(held);
        for (String name : held.wanted.names) {
            names.computeIfAbsent(name, each -> new HashSet<>()).add(held);
        }
        core.enterHolding(held.wanted);
        arm();
    }

    /** Files it under another moment, because its next action has changed. */
    void refile(Held held) {
        if (holds.remove(held)) {
            held.due = held.nextDue();
            holds.add(held);
            arm();
        }
    }

    private void arm() {
        long next = holds.isEmpty() ? Clock.NEVER : Math.min(holds.first().due, Clock.now() + Rules.NAP);
        if (next == Clock.NEVER || wakesAt > next || timer == null) {
            core.engine.cancel(timer);
            timer = next == Clock.NEVER ? null : core.engine.at(next, this::schedule);
            wakesAt = next;
        }
    }

    /** Ends the hold. Returns true if this call ended it, and no earlier one. */
    boolean finish(Held held, LockLostException.Reason reason) {
        if (held.hasEnded) {
            return false;
        }
        if (reason != null) {
            held.lost = held.loss(reason);
        }
        held.hasEnded = true;
        holds.remove(held);
        references.remove(held.hold);
        for (String name : held.wanted.names) {
            var same = names.get(name);
            same.remove(held);
            if (same.isEmpty()) {
                names.remove(name);
            }
        }
        arm();
        if (reason != null) {
            tellLoss(held, held.lost);
            core.engine.tell(() -> core.engine.completing.execute(() -> held.lostFuture.complete(held.lost)));
        }
        return true;
    }

    /** Ends the hold as lost. The server's hold is released once the holder releases it. */
    void lose(Held held, LockLostException.Reason reason) {
        finish(held, reason);
    }

    void tellLoss(Held held, LockLostException lost) {
        boolean isForgotten = lost.reason() == LockLostException.Reason.FORGOTTEN;
        core.engine.log(isForgotten ? Level.ERROR : Level.WARNING,
                lost.getMessage() + (isForgotten ? "; nothing in the program is notified" : ""));
        var lasted = held.age();
        core.tell(held.wanted.listener, listener -> listener.lost(held.wanted.label(), lasted, lost));
    }

    List<Held> all() {
        return new ArrayList<>(holds);
    }

    /** Returns the time since when this very Locks has held any of these locks; NEVER if it holds none. */
    long heldSince(List<String> of) {
        return of.stream().flatMap(name -> names.getOrDefault(name, Set.of()).stream()).mapToLong(held -> held.grantedAt)
                .min().orElse(Clock.NEVER);
    }

    /** Handles that these locks have changed: null for any. Their holders check them. */
    void changed(List<?> changed) {
        var found = new ArrayList<Held>();
        if (changed == null) {
            found.addAll(holds);
        } else {
            changed.forEach(name -> found.addAll(names.getOrDefault(String.valueOf(name), Set.of())));
        }
        for (var held : found) {
            held.watchAt = Clock.now();
            refile(held);
        }
    }

    /** Renews, checks or ends the holds that are due, now or a little later. */
    private void schedule() {
        timer = null;
        wakesAt = Clock.NEVER;
        core.takenByThread.keySet().removeIf(thread -> !thread.isAlive());
        for (var gone = dropped.poll(); gone != null; gone = dropped.poll()) {
            var held = references.remove(gone);
            if (held != null) {
                forget(held);
            }
        }
        long soon = Clock.now() + Rules.PAUSE;
        for (var held : holds.stream().takeWhile(each -> each.due <= soon).toList()) {
            handle(held, soon);
        }
        arm();
    }

    private void handle(Held held, long soon) {
        var reason = held.overdue();
        if (reason != null) {
            lose(held, reason);
            return;
        }
        boolean renews = held.renewAt <= soon;
        boolean looks = held.watchAt <= soon;
        if (renews) {
            held.renewAt = Clock.NEVER;
        }
        if (looks) {
            held.watchAt = Clock.NEVER;
        }
        refile(held);
        if (renews) {
            core.renew(held, 0, -1, problem -> { });
        }
        if (looks) {
            look(held);
        }
    }

    private void forget(Held held) {
        if (held.hasEnded || held.hasBody) {
            return;
        }
        held.forget();
        refile(held);
        core.engine.log(Level.WARNING, "a Hold of lock '" + held.wanted.label() + "' was dropped without a release, so it is "
                + "no longer renewed, and ends in " + Rules.text(Clock.left(held.deadline)) + ": keep it, and close it");
    }

    /** Asks whether the hold is live, and subscribes to its next change. It sends one request at a time. */
    private void look(Held held) {
        held.looksAgain = held.isLooking;
        if (held.isLooking) {
            return;
        }
        held.isLooking = true;
        look(held, 0);
    }

    private void look(Held held, int at) {
        if (at == held.wanted.names.size() || held.hasEnded) {
            looked(held);
            return;
        }
        core.fence(held.wanted.names.get(at), held.token, (isLive, problem) -> {
            boolean isGone = problem == null ? !isLive : problem.isOverwritten();
            if (isGone) {
                lose(held, LockLostException.Reason.PUSH);
                looked(held);
            } else if (problem != null && !problem.isRefusal()) {
                held.watchAt = Clock.now() + Rules.LONGEST_PAUSE;
                looked(held);
            } else {
                look(held, at + 1);
            }
        });
    }

    private void looked(Held held) {
        held.isLooking = false;
        if (held.looksAgain) {
            held.looksAgain = false;
            held.watchAt = Clock.now();
        }
        refile(held);
    }
}
