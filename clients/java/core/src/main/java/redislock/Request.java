package redislock;

import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;

/** A request for the server that has a lock. It is repeated until its time is up. */
final class Request {
    /**
     * A reply, and the time when its request was sent.
     *
     * @param number the number of the request
     * @param link the number of the connection
     * @param isRepeated it was sent before and not answered: it may have been done then
     * @param mayComeLate the earlier one may still arrive
     */
    record Answer(Object reply, long sent, long number, long link, boolean isRepeated, boolean mayComeLate) {}

    private final Servers servers;
    private final String name;
    private final List<String> words;
    private final long until;
    /** The acquire that it is for; else null. */
    private final Wanted wanted;
    /** Called for each failed attempt; otherwise null. */
    private Consumer<Problem> onFailed;
    /** Returns the requests to send first if the server pushes changes; otherwise null. */
    private Function<Link, List<List<String>>> before;
    private final BiConsumer<Answer, Problem> then;
    private final long began = Clock.now();
    private long pause = Rules.PAUSE;
    private String node;
    /** True if the preceding reply to HELLO counts, of a primary that does not refuse it. */
    private boolean pings;
    private boolean isRepeated;
    private boolean mayComeLate;
    private Problem refused;
    private Problem lost;
    private boolean isOver;
    private Engine.Timer timer;

    /** Describes a request; {@code until} may be NEVER: as long as servers reply at all. */
    Request(Servers servers, String name, List<String> words, long until, Wanted wanted, BiConsumer<Answer, Problem> then) {
        this.servers = servers;
        this.name = name;
        this.words = words;
        this.until = until;
        this.wanted = wanted;
        this.then = then;
    }

    Request onFailed(Consumer<Problem> hears) {
        onFailed = hears;
        return this;
    }

    Request before(Function<Link, List<List<String>>> first) {
        before = first;
        return this;
    }

    Request pings() {
        pings = true;
        return this;
    }

    Request start() {
        if (servers.hasEnded()) {
            end(Problem.closed());
            return this;
        }
        servers.unanswered.add(this);
        attempt();
        return this;
    }

    /** Stops repeating it, and answers nothing. The request may still be in flight. */
    void cancel() {
        isOver = true;
        servers.unanswered.remove(this);
        servers.engine.cancel(timer);
    }

    /** Ends it, because the Locks are closed. */
    void close() {
        var problem = last();
        end(problem == null ? Problem.closed() : problem);
    }

    private void attempt() {
        if (isOver) {
            return;
        }
        long left = servers.patience(until, began);
        long most = Math.max(onFailed == null ? left : left / 2, 5 * Rules.PAUSE);
        String address = node == null ? servers.address(name) : node;
        servers.linkIn(name, node, Math.min(most, 2 * Rules.ATTEMPT), (link, failed) -> {
            if (isOver) {
                return;
            }
            if (failed != null) {
                failed(failed, address);
            } else {
                send(link, left);
            }
        });
    }

    private void send(Link link, long left) {
        var first = before;
        if (node != null) {
            // A node that the slot is still moving to pushes nothing. ASKING applies only to the very next command.
            first = over -> List.of(List.of("ASKING"));
        } else if (first != null && !link.tracks) {
            first = null;
        }
        long sent = Clock.now();
        if (wanted != null) {
            wanted.sends();
        }
        long limit = Math.min(Rules.ATTEMPT, Math.max(5 * Rules.PAUSE, left / 2));
        var hello = new Object[1];
        if (pings) {
            link.send(List.of("HELLO"), null, limit, (reply, failed) -> hello[0] = reply);
        }
        var call = new Link.Call[1];
        call[0] = link.send(words, first, limit, (answer, why) -> {
            if (why == null || why.isRefused()) {
                servers.hears();
            }
            if (isOver) {
                return;
            }
            boolean isPinged = pings && (why == null || why.isRefused());
            var failed = isPinged ? pinged(hello[0], why) : why;
            var reply = isPinged ? hello[0] : answer;
            if (failed == null) {
                answered(link, reply, sent, call[0].number);
                return;
            }
            if (!failed.isRefused()) {
                isRepeated = true;
                mayComeLate |= link.givenUp;
                if (wanted != null) {
                    wanted.doubtful = true;
                }
                failed(failed, link.address);
                return;
            }
            // A request that fails with NOREPLICAS has been executed, and may still be undone.
            if (wanted != null && !failed.text().startsWith("NOREPLICAS")) {
                wanted.gotNothing();
            }
            failed(leave(link, failed), link.address);
        });
    }

    /**
     * Returns the reason why locks cannot be acquired at this server; null if they can. It may have other slots than
     * that of the given name.
     */
    private Failure pinged(Object hello, Failure refused) {
        Object role = hello instanceof Map<?, ?> fields ? fields.get("role") : null;
        if (!"master".equals(role)) {
            return Failure.refused("READONLY this server has the role " + role);
        }
        var next = refused == null ? Rules.Next.MOVED : Rules.judge(refused.text()).next();
        if (next == Rules.Next.MOVED || next == Rules.Next.ASKING) {
            return null;
        }
        return refused.text().startsWith("NOPERM") ? Failure.refused(refused.text() + ": a ping asks LOCK.FENCE " + name) : refused;
    }

    private void answered(Link link, Object reply, long sent, long number) {
        isOver = true;
        servers.unanswered.remove(this);
        if (wanted != null || onFailed != null) {
            servers.grantsAgain();
            if (!link.served) {
                link.served = true;
                servers.isServed(link.address);
            }
        }
        if (wanted != null && reply == null) {
            wanted.gotNothing();
        }
        then.accept(new Answer(reply, sent, number, link.number, isRepeated, mayComeLate), null);
    }

    private void failed(Failure failed, String at) {
        node = null;
        String address = at != null ? at : servers.address(name) != null ? servers.address(name)
                : String.join(", ", servers.config.addresses());
        var verdict = failed.isRefused() ? Rules.judge(failed.text()) : new Rules.Verdict(Rules.Next.AGAIN, 0, "");
        var problem = failed.problem(address);
        if (verdict.next() == Rules.Next.MOVED && servers.config.isSingle()) {
            end(Problem.of(failed.text()));
            return;
        }
        if (onFailed != null && (!failed.isTooLate() || lost == null && refused == null)) {
            onFailed.accept(problem);
        }
        switch (verdict.next()) {
            case FAIL -> {
                end(problem);
                return;
            }
            case MOVED -> servers.moved(verdict.slot(), verdict.address(), address);
            case ASKING -> node = Servers.completed(verdict.address(), address);
            default -> servers.forget(address);
        }
        if (failed.isRefused()) {
            servers.isRefused(wanted, problem);
            refused = problem;
            lost = null;
        } else if (lost == null || !failed.isTooLate()) {
            lost = problem;
        }
        long left = servers.patience(until, began);
        if (left <= 0 || servers.hasEnded()) {
            end(last());
            return;
        }
        timer = servers.engine.in(Math.min(pause, left), () -> {
            if (servers.patience(until, began) <= 0) {
                end(last());
            } else {
                attempt();
            }
        });
        pause = Math.min(2 * pause, Rules.LONGEST_PAUSE);
    }

    /** Returns a server's answer, if there is one, rather than a lost connection. */
    private Problem last() {
        if (refused != null && lost != null) {
            return Problem.unreachable(lost.cause(), refused.text() + "; then " + lost.text());
        }
        return refused != null ? refused : lost;
    }

    private void end(Problem problem) {
        if (!isOver) {
            isOver = true;
            servers.unanswered.remove(this);
            then.accept(null, problem);
        }
    }

    /**
     * Closes the connection over which a server refused what only a primary does, if its address may now lead
     * elsewhere.
     */
    private static Failure leave(Link link, Failure failed) {
        boolean isLong = failed.text().startsWith("LOADING") && Clock.age(link.born) > Rules.LONGEST_RECONNECT;
        if (isLong || Rules.judge(failed.text()).next() == Rules.Next.ELSEWHERE) {
            link.end(failed);
        } else if (failed.text().startsWith("QUARANTINE") && (link.served || Clock.age(link.born) > 3 * Rules.KEEP)) {
            // It was the primary, and its address may lead to another server by now.
            link.end(Failure.broken(null, "the server that was the primary has restarted"));
            return Failure.broken(null, failed.text());
        }
        return failed;
    }
}
