package redislock;

import java.util.function.BiConsumer;

/** Waits for several locks at once, over a connection of its own. */
final class BlockedWait {
    private final Core core;
    private final Acquire acquire;
    private final Wanted wanted;
    private int tries;
    private boolean hasSlot;
    private Link own;
    /** Has a request that a newer one has replaced, as long as it is not answered. */
    private Link replaced;
    private Engine.Timer limit;
    private Engine.Timer probe;
    private Engine.Timer takeOver;

    BlockedWait(Core core, Acquire acquire) {
        this.core = core;
        this.acquire = acquire;
        wanted = acquire.wanted;
    }

    /** Asks over the shared connection, which finds the primary and pauses between two attempts for all waiters. */
    void begin() {
        acquire.attempt((got, problem) -> {
            if (problem != null && problem.kind() == Problem.Kind.QUARANTINE) {
                core.servers.isRefused(wanted, problem); // one that waits is let in when it ends
            } else if (got != null || problem != null) {
                acquire.settle(got, problem);
                return;
            }
            if (acquire.isLate()) {
                acquire.last();
                return;
            }
            acquire.waits();
            // The server must see the deadlock of an owner that holds another lock, so such an owner does not wait for
            // a connection.
            if (core.keeper.all().stream().anyMatch(held -> isOf(held.wanted))) {
                enter(false);
                return;
            }
            limit = core.engine.at(acquire.until, () -> {
                core.blocking.remove(this);
                acquire.last();
            });
            core.blocking.add(this);
            core.enterBlocking();
        });
    }

    /** True if the program names the owner, and the same owner made this request. */
    boolean isOf(Wanted other) {
        return wanted.isNamed && other.owner.equals(wanted.owner);
    }

    /** Takes a connection, which counts towards the limit or not. */
    void enter(boolean isCounted) {
        core.engine.cancel(limit);
        hasSlot = isCounted;
        limit = core.engine.in(Math.min(Rules.backOff(tries), Clock.left(acquire.until)), this::block);
    }

    /** Ends the wait, however far it has got. */
    void leave() {
        core.engine.cancel(limit);
        core.engine.cancel(probe);
        core.engine.cancel(takeOver);
        core.blocking.remove(this);
        if (own != null) {
            own.end(Failure.broken(null, "the wait has ended"));
            own = null;
        }
        if (replaced != null) {
            replaced.end(Failure.broken(null, "the wait has ended"));
            replaced = null;
        }
        if (hasSlot) {
            hasSlot = false;
            core.blockingNow--;
            core.enterBlocking();
        }
    }

    private void again(boolean isBroken) {
        if (acquire.isOver()) {
            return;
        }
        leave();
        tries = isBroken ? tries + 1 : 0;
        begin();
    }

    /** Sends one waiting request. */
    private void block() {
        long linking = Math.min(Clock.left(acquire.until), 2 * Rules.ATTEMPT);
        core.servers.findFor(wanted.name(), Clock.after(Clock.now(), linking), (address, failed) -> {
            if (acquire.isOver()) {
                return;
            }
            if (failed != null) {
                again(true);
                return;
            }
            own = core.servers.dial(address, core.servers.config.login(), null, (link, refused) -> {
                if (acquire.isOver()) {
                    link.end(Failure.broken(null, "the wait has ended"));
                } else if (refused != null) {
                    again(true);
                } else {
                    blockOver(link, address, wanted.doubtful);
                }
            });
        });
    }

    private void blockOver(Link link, String address, boolean wasDoubtful) {
        long lease = Math.min(wanted.lease, wanted.firstLease);
        // If it is cancelled or cut, the request may have been granted without a reply.
        wanted.doubtful = true;
        long most = Math.min(Clock.left(acquire.until), core.longestBlock);
        link.send(wanted.acquire(lease, "BLOCK", most), null, most + Rules.WAIT_MARGIN, (reply, failed) -> {
            if (own != link) {
                link.end(Failure.broken(null, "a newer request waits"));
                if (replaced == link && (failed == null || failed.isRefused())) {
                    replaced = null;
                }
            } else if (!acquire.isOver()) {
                unblocked(reply, failed, address, wasDoubtful, lease);
            }
        });
        probe(core.servers.ready(wanted.name()));
        if (most < Clock.left(acquire.until)) {
            takeOver = core.engine.in(most / 3 * 2, () -> takeOver(address, wasDoubtful));
        }
    }

    /** Has a newer request take over the positions in the queues, before the older one ends and loses them. */
    private void takeOver(String address, boolean wasDoubtful) {
        var older = own;
        core.servers.dial(address, core.servers.config.login(), null, (link, failed) -> {
            if (failed != null) {
                return;
            }
            if (acquire.isOver() || own != older) {
                link.end(Failure.broken(null, "the wait has ended"));
                return;
            }
            own = link;
            replaced = older;
            core.engine.cancel(probe);
            blockOver(link, address, wasDoubtful);
        });
    }

    /**
     * Asks at intervals over the shared connection whether it was granted: the network may have lost the grant, or the
     * request. A plain request leaves the queue position unchanged, and gets the token if the lock was granted.
     */
    private void probe(Link asked) {
        probe = core.engine.in(Rules.PROBE, () -> {
            var link = own;
            acquire.attempt((got, problem) -> {
                if (own != link) {
                    return;
                }
                if (got != null || problem != null && problem.kind() != Problem.Kind.QUARANTINE) {
                    acquire.settle(got, problem);
                } else if (core.servers.ready(wanted.name()) != asked) {
                    again(true);
                } else {
                    probe(asked);
                }
            });
        });
    }

    private void unblocked(Object reply, Failure failed, String address, boolean wasDoubtful, long lease) {
        core.engine.cancel(probe);
        core.engine.cancel(takeOver);
        if (failed == null) {
            core.servers.hears();
            wanted.doubtful = wasDoubtful || replaced != null; // that one may be granted yet
            if (reply instanceof Long token) {
                // It was granted at some time during the wait, and not after this moment.
                acquire.begin(token, Clock.after(Clock.now(), Rules.sure(lease)), lostOrBegun());
            } else {
                again(false);
            }
            return;
        }
        if (!failed.isRefused()) {
            again(true);
            return;
        }
        wanted.doubtful = wasDoubtful || replaced != null;
        long most = Rules.longestWait(failed.text());
        var verdict = Rules.judge(failed.text());
        if (most >= 0) {
            core.longestBlock = most;
            again(false);
        } else if (verdict.next() == Rules.Next.MOVED && !core.servers.config.isSingle()) {
            core.servers.moved(verdict.slot(), verdict.address(), address);
            again(false);
        } else if (verdict.next() == Rules.Next.FAIL || verdict.next() == Rules.Next.MOVED) {
            acquire.settle(null, Problem.of(failed.text()));
        } else {
            again(true); // the shared connection learns the same
        }
    }

    private BiConsumer<Acquire.Grant, Problem> lostOrBegun() {
        return (got, problem) -> {
            if (got != null || problem != null) {
                acquire.settle(got, problem);
            } else if (acquire.isLate()) {
                acquire.settle(null, new Problem(Problem.Kind.LOST, wanted.label(), "", null));
            } else {
                again(false);
            }
        };
    }
}
