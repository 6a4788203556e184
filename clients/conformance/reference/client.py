"""A correct, minimal client: it implements docs/internals/clients-and-kit.md over redis-py's connections."""

import asyncio
import contextvars
import functools
import json
import math
import os
import random
import socket
import time
import uuid
from collections import Counter

import redis

from breaks import is_broken
from errors import (
    AlreadyHeld, ConnectionFailed, Fenced, LockError, LockLost, LockTimeout, NotConfirmed, Other, Quarantine, translated,
)  # fmt: skip
from servers import (
    AGAIN, BROKEN, LOG, LONGEST_PAUSE, MARGIN, PATIENCE, PAUSE, SILENCE, Pushes, Servers, is_elsewhere, is_refusal,
)  # fmt: skip

#: The share of a lease by which a server's clock may be faster, and an allowance for rounding.
DRIFT, ROUNDING = 0.01, 0.002
#: The polling interval of the process's first waiter, and the time for which the server keeps its position.
ASK_EVERY, KEEP_MS = 0.2, 2000
#: The time after which a waiting acquire is first logged, and the interval of queries over another connection.
LONG_WAIT, PROBE_EVERY = 30.0, 3.0
#: The time that a close waits for releases, and then for other requests in flight.
CLOSES_IN = 2.0
#: The time that it waits for blocks that work under a lock.
BODIES_END_IN = 5.0
#: The rest of a lease if the waiter dies between the grant and the reply.
EPHEMERAL_MS = 0
#: A token that no hold ever has. A release with it ends only a wait.
NOBODYS = 1


def check_owner(owner):
    """Refuses the owner for which the server generates one, a new one at each repetition."""
    if owner == "*" and not is_broken("takes-the-owner-that-means-anybody"):
        raise Other("the owner must not be *")


#: The names that enclosing blocks of the same task hold.
INSIDE = contextvars.ContextVar("INSIDE", default=frozenset())


def new_owner(label=None):
    """Returns a new, unique owner."""
    return f"{label or f'{socket.gethostname()}:{os.getpid()}'}:{uuid.uuid4()}"


class Hold:
    """Locks that were acquired together; usually one."""

    def __init__(self, locks, names, owner, options):
        self.locks, self.names, self.owner = locks, names, owner
        self.kind, self.limit = options.get("kind", "exclusive"), options.get("limit")
        self.lease = options.get("lease_ms") or locks.lease_ms
        self.renews = options.get("renew", True)
        self.longest = options.get("longest")
        #: The shortest time for which the lock stays taken after its grant, and the time until which it does.
        self.min_hold, self.parked_until = options.get("min_hold_ms") or 0, 0.0
        #: True if an unanswered renewal may arrive late; and a lock that allows one renewal at a time.
        self.is_doubtful, self.renewing, self.has_body = False, asyncio.Lock(), False
        self.token, self.until, self.began, self.lost = None, 0.0, 0.0, None
        self.asked = time.monotonic()
        #: The number of consecutive failed renewals, and the error of the last one.
        self.failures, self.cause = 0, None
        #: True if the owner may already hold something; true if it was refused.
        self.is_named, self.got_nothing = False, False
        self.pid, self.next_renewal, self.told = os.getpid(), math.inf, None

    def counts_from(self, sent):
        """Starts a lease with a grant or a renewal that was sent then."""
        if is_broken("deadline-from-the-reply"):
            sent = time.monotonic()
        seconds = self.asks_ms() / 1000
        self.until = max(self.until, sent + seconds * (1 - DRIFT) - ROUNDING)
        self.next_renewal = sent + seconds / 3 if self.renews and not is_broken("no-renewal") else math.inf

    def parked_ms(self):
        """Returns the time for which the lock stays taken, whatever happens to the hold."""
        left = self.min_hold if self.token is None else 1000 * (self.parked_until - time.monotonic())
        return 0 if is_broken("a-least-hold-without-a-server") else max(0, math.ceil(left))

    def asks_ms(self):
        """Returns the lease that a request asks for now."""
        return max(self.lease, self.parked_ms())

    def remaining_ms(self):
        """Returns how long it certainly lasts; negative if it has ended."""
        return int(1000 * (self.until - time.monotonic()))

    def left_ms(self):
        """Returns the milliseconds that it certainly lasts; raises LockLost if it has ended."""
        if self.pid != os.getpid():
            raise LockLost("a child has no holds")
        if self.lost is None and time.monotonic() >= self.until and not is_broken("no-deadline"):
            self.locks.lose(self, "deadline")
        if self.lost is not None:
            raise LockLost(f"{self.names} lost by {self.lost}")
        return self.remaining_ms()

    def words(self, command, *more):
        """The request for it."""
        kind = {"read": ("SHARED",), "semaphore": ("LIMIT", self.limit)}.get(self.kind, ())
        if len(self.names) > 1 and is_broken("readers-of-several-are-writers"):
            kind = ()
        if command == "ACQUIRE" and len(self.names) > 1:
            return ("LOCK.MACQUIRE", len(self.names), *self.names, self.owner, "PX", self.asks_ms(), *more, *kind)
        return ("LOCK.ACQUIRE", self.names[0], self.owner, "PX", self.asks_ms(), *more, *kind)


class Locks:
    """The locks of some servers."""

    def __init__(
        self, client, mode, addresses, lease_ms=30_000, service=None, pool=8, waiting_connections=16, label=None, prefix=""
    ):
        self.servers = Servers(client, mode, addresses, service, pool, waiting_connections)
        self.lease_ms, self.prefix, self.bodies = lease_ms, prefix, 0
        self.label = None if is_broken("no-label") else label
        self.counts = Counter()
        self.holds, self.to_follow, self.gates, self.pushes, self.tasks = set(), set(), {}, {}, set()
        self.changed, self.scheduler = asyncio.Event(), None
        self.keeps = []
        if is_broken("keeps-a-kilobyte"):
            # Only the last stays allocated: memory freed before it stays with the process, and hides later leaks.
            self.keeps = [bytearray(1024) for _ in range(16_000)][-1:]

    # Acquiring

    async def acquire(self, names, wait_ms=None, owner=None, **options):
        """Acquires them; LockTimeout if they are not granted in time."""
        check_owner(owner)
        names = [self.key(name, number) for number, name in enumerate(names)]
        if not INSIDE.get().isdisjoint(names) and not is_broken("waits-for-itself"):
            raise AlreadyHeld(f"{names}: this very task holds it, and would wait for itself")
        self._begin()
        until = math.inf if wait_ms is None else time.monotonic() + wait_ms / 1000
        report = self._background(self._report(names))
        try:
            hold = await self._try(names, owner, options, until, wait_ms)
        except LockTimeout:
            self.counts["timeouts"] += 1
            raise
        finally:
            report.cancel()
        self.counts["grants"] += 1
        return self._keep(hold)

    def key(self, name, number=0):
        """Returns the name on the server."""
        return name if number and is_broken("a-prefix-for-the-first-name") else self.prefix + name

    def _begin(self):
        if self.scheduler is None:
            self.scheduler = asyncio.create_task(self._schedule())

    def _keep(self, hold):
        hold.began = time.monotonic()
        hold.parked_until = hold.began + hold.min_hold / 1000
        self.holds.add(hold)
        self.changed.set()
        self._background(self._follow(hold))
        return hold

    async def _try(self, names, owner, options, until, wait_ms):
        """Returns a hold. A grant that came too late is released, and requested again while there is time to wait."""
        while True:
            hold = Hold(self, names, owner or new_owner(self.label), options)
            hold.is_named = owner is not None
            try:
                await self._take(hold, until, wait_ms)
                if hold.remaining_ms() > 0 or is_broken("a-late-grant-is-a-hold"):
                    return hold
                raise LockLost(f"{names}: the lease was over when the reply came")
            except BaseException as error:
                is_refused = isinstance(error, LockError) and error.granted_nothing
                if is_refused and not is_broken("refused-and-all-is-over"):
                    hold.got_nothing = True
                if is_broken("cancelled-and-forgotten"):
                    raise
                if is_broken("in-vain-and-in-the-queue") and isinstance(error, LockTimeout):
                    raise
                if not isinstance(error, LockTimeout) or wait_ms != 0:
                    await self._give_up_soon(hold, 0.1 if isinstance(error, ConnectionFailed) else PATIENCE)
                is_over = wait_ms == 0 or time.monotonic() >= until or is_broken("a-late-grant-is-a-loss")
                if not isinstance(error, LockLost) or is_over:
                    raise

    async def _give_up_soon(self, hold, seconds):
        try:
            async with asyncio.timeout(seconds):
                await self._shielded(self._give_up(hold))
        except (asyncio.TimeoutError, LockError):
            pass  # it goes on in the background; the answer does not wait for it

    async def _report(self, names):
        """Logs that an acquire waits for long, and who holds the lock."""
        seconds = waited = LONG_WAIT
        while not is_broken("waits-without-a-word"):
            await asyncio.sleep(seconds)
            try:
                found = [await self.servers.ask(name, "LOCK.INFO", name) for name in names]
                owners = [holder[1] for each in found if each for holder in dict(zip(each[::2], each[1::2]))["holders"]]
            except LockError as error:
                owners = [f"an unknown owner ({error})"]
            LOG.warning("%s could not be acquired for %d s: held by %s", ", ".join(names), waited, ", ".join(owners))
            seconds, waited = waited, 2 * waited

    async def _take(self, hold, until, wait_ms):
        gate = self.gates.setdefault(hold.names[0], asyncio.Lock())
        # First come, first served: a later request waits at the gate until this one's request is sent.
        if is_broken("last-come-first"):
            await asyncio.sleep(random.uniform(0, 0.2))
        if wait_ms == 0 and gate.locked():
            raise LockTimeout(f"others wait for {hold.names}")
        await self._in_time(gate.acquire(), until)
        try:
            sent, at_once = time.monotonic(), until
            if wait_ms == 0:
                at_once = time.monotonic() + 1
            try:
                reply = await self._ask_at_once(hold, at_once)
            except Quarantine as refused:
                is_silent = is_broken("quarantine-is-a-timeout") and wait_ms != 0
                if not is_silent and time.monotonic() + refused.more["left_ms"] / 1000 >= until:
                    raise
                reply = None  # a longer wait lasts beyond the quarantine
            if reply is None and wait_ms == 0:
                raise LockTimeout(f"{self._shown(hold)} could not be acquired at once: another owner holds it")
            if reply is None:
                hold.got_nothing = True
                self.counts["waits"] += 1
                sent, reply = await self._stand_in_line(hold, until)
            if reply is not None:
                hold.token = reply
                return hold.counts_from(sent)
            try:
                line = await self._begin_to_wait(hold, until)
            except BaseException:
                self.servers.waiting.release()
                raise
        finally:
            gate.release()
        try:
            began = time.monotonic()
            line = await self._wait(hold, until, line)
            if is_broken("counts-from-before-the-wait") and len(hold.names) > 1:
                return hold.counts_from(began)
            # The waiting connection stays open until then: the hold is tied to it.
            await self._count_anew(hold, until)
        finally:
            await self.servers.discard(line)
            (self.servers.slots if is_broken("waits-in-the-pool") else self.servers.waiting).release()

    async def _ask_at_once(self, hold, until):
        """Returns the token, or None; each attempt has the same owner."""
        if is_broken("unconfirmed-is-held"):
            try:
                return await self.servers.ask(hold.names[0], *hold.words("ACQUIRE"), until=until)
            except NotConfirmed:
                return 1
        if not is_broken("new-owner-for-each-try"):
            place = ("QUEUE", KEEP_MS) if is_broken("learns-no-limit") else ()
            return await self.servers.ask(hold.names[0], *hold.words("ACQUIRE", *place), until=until, since=hold.asked)
        while time.monotonic() < until:
            try:
                return await self.servers.ask(hold.names[0], *hold.words("ACQUIRE"), until=time.monotonic())
            except ConnectionFailed:
                hold.owner = new_owner()
                await asyncio.sleep(PAUSE)
        raise ConnectionFailed("no server")

    async def _stand_in_line(self, hold, until):
        """Waits until a connection is free for the wait. Other waits may block all of them in vain, so it asks
        meanwhile."""
        if is_broken("waits-in-the-pool"):
            return 0, await self.servers.slots.acquire() and None
        while True:
            try:
                await self._in_time(self.servers.waiting.acquire(), min(until, time.monotonic() + ASK_EVERY))
                return 0, None
            except LockTimeout:
                if time.monotonic() >= until:
                    raise
            keep = 10 * KEEP_MS if is_broken("in-vain-and-in-the-queue") else KEEP_MS
            sent, place = time.monotonic(), ("QUEUE", keep) if len(hold.names) == 1 else ()
            hold.got_nothing = False
            reply = await self.servers.ask(hold.names[0], *hold.words("ACQUIRE", *place), until=until)
            hold.got_nothing = reply is None
            if reply is not None:
                return sent, reply

    async def _begin_to_wait(self, hold, until):
        """Sends the waiting request; returns None if no connection could be made, which is retried later."""
        line = None
        try:
            line = await self.servers.new_line(hold.names[0])
            left = max(1, int(1000 * (until - time.monotonic()))) if until < math.inf else 0
            is_tied = len(hold.names) == 1 and not is_broken("not-ephemeral")
            tie = ("EPHEMERAL", EPHEMERAL_MS) if is_tied and not is_broken("cancelled-and-forgotten") else ()
            hold.got_nothing = False
            await line.send(*hold.words("ACQUIRE", "BLOCK", left, *tie))
            return line
        except (*BROKEN, redis.RedisError) as error:
            await self.servers.failed(error, hold.names[0], line)
            await self.servers.discard(line)
            return None
        except BaseException:
            await self.servers.discard(line)
            raise

    async def _wait(self, hold, until, line):
        """Reads the reply. If the connection is lost, it starts again with the time that is left."""
        began, whole, pause = time.monotonic(), until - time.monotonic(), PAUSE
        is_doubtful = False
        while True:
            try:
                if line is not None:
                    hold.token = await self._read(hold, until, line)
                    self.servers.answered(hold.names[0], line)
                if hold.token is not None:
                    return line
                hold.got_nothing = hold.got_nothing or line is not None
            except asyncio.CancelledError:
                # The connection is closed now, which ends a grant over it.
                hold.got_nothing = len(hold.names) == 1
                raise
            except (*BROKEN, redis.RedisError) as error:
                if is_broken("first-error-ends-the-wait") or not is_elsewhere(error):
                    raise translated(error, is_doubtful) from error
                is_doubtful = is_doubtful or line is not None and not is_refusal(error) and len(hold.names) > 1
                await self.servers.failed(error, hold.names[0], line)
            finally:
                if hold.token is None:
                    await self.servers.discard(line)
                    line = None
            if is_broken("wait-begins-anew"):
                until = time.monotonic() + whole
            if time.monotonic() >= until and (
                not self.servers.was_lost or is_broken("a-lost-server-is-another-holder")
            ):
                names = self._shown(hold)
                raise LockTimeout(f"{names} could not be acquired within {time.monotonic() - began:.1f} s")
            if time.monotonic() >= until or self.servers.is_in_vain(until, hold.asked):
                raise self.servers.gives_up(hold.names[0])
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, LONGEST_PAUSE) if line is None else PAUSE
            line = await self._begin_to_wait(hold, until)

    async def _read(self, hold, until, line):
        """Returns the reply to a waiting request.

        Meanwhile it asks over another connection whether that was granted.
        """
        reading = asyncio.create_task(line.read(until - time.monotonic() + MARGIN))
        try:
            while not (await asyncio.wait([reading], timeout=PROBE_EVERY))[0] and not is_broken("a-wait-is-not-probed"):
                if is_broken("loses-patience-while-it-waits") and time.monotonic() - hold.asked > SILENCE - PROBE_EVERY:
                    raise ConnectionFailed(f"{hold.names}: no reply in {SILENCE:.0f} s")
                if self.servers.is_in_vain(until, hold.asked):
                    raise self.servers.gives_up(hold.names[0])
                # The reply may be in flight. If it is not, the connection is dead. The request that was sent there may
                # still reach the server, and tie the hold to that connection: so another owner must ask.
                if await self._is_granted(hold) and not (await asyncio.wait([reading], timeout=MARGIN))[0]:
                    raise LockLost(f"{hold.names}: the grant was not answered")
            return await reading
        finally:
            reading.cancel()

    async def _is_granted(self, hold):
        try:
            until = time.monotonic() + PATIENCE
            return await self.servers.ask(hold.names[0], *hold.words("ACQUIRE"), until=until) is not None
        except (Quarantine, ConnectionFailed):
            return False

    async def _count_anew(self, hold, until):
        """After a wait: asks again over the main connections, which renews the hold and detaches it from the other
        connection."""
        sent = time.monotonic()
        if is_broken("stays-ephemeral"):
            await self.servers.ask(hold.names[0], "LOCK.RENEW", hold.names[0], hold.owner, "PX", hold.lease)
            return hold.counts_from(sent)
        tie = ("EPHEMERAL", hold.asks_ms()) if len(hold.names) == 1 else ()
        token = await self.servers.ask(hold.names[0], *hold.words("ACQUIRE", *tie), until=max(until, sent + MARGIN))
        if token is None:
            raise LockLost(f"{hold.names} was lost just after its grant")
        hold.token = token
        hold.counts_from(sent)

    def _shown(self, hold):
        return ", ".join(name.removeprefix(self.prefix) for name in hold.names)

    async def _in_time(self, waiting, until):
        try:
            # Not wait_for: before Python 3.12 it can forget a cancellation that comes with the result.
            async with asyncio.timeout(None if until == math.inf else max(0.001, until - time.monotonic())):
                await waiting
        except asyncio.TimeoutError:
            raise LockTimeout("not to be had in time") from None

    # Keeping

    async def _schedule(self):
        """Renews the holds that are due, and ends those that have expired: one task for all holds."""
        while True:
            now, due = time.monotonic(), math.inf
            self.changed.clear()
            for hold in list(self.holds):
                if now >= hold.until and not is_broken("no-deadline"):
                    self.lose(hold, "deadline")
                    continue
                if hold.longest and now >= hold.began + hold.longest / 1000 and not is_broken("no-longest-hold"):
                    hold.next_renewal = math.inf
                if now >= hold.next_renewal:
                    hold.next_renewal = now + hold.lease / 3000
                    self._background(self._renew(hold))
                due = min(due, hold.until if not is_broken("no-deadline") else math.inf, hold.next_renewal)
            left = None if due == math.inf else max(0.001, due - time.monotonic())
            try:
                async with asyncio.timeout(left):
                    await self.changed.wait()
            except asyncio.TimeoutError:
                pass

    async def _renew(self, hold):
        async with hold.renewing:
            if hold in self.holds:
                await self._renew_now(hold)

    async def _renew_now(self, hold):
        sent = time.monotonic()
        for name in hold.names:
            words = ("LOCK.RENEW", name, hold.owner, "PX", hold.asks_ms(), "TOKEN", hold.token)
            try:
                failed = functools.partial(self._renewal_failed, hold)
                reply = await self.servers.ask(name, *words, until=hold.until, told=failed)
            except ConnectionFailed:
                return  # the deadline will tell
            if reply != 1:
                return self.lose(hold, "renewal")
        if hold in self.holds:
            hold.counts_from(sent)
            self.changed.set()
            self._renewed(hold)

    def _renewal_failed(self, hold, text):
        """Records the reason. The first failure of an outage is logged."""
        hold.failures, hold.cause, hold.is_doubtful = hold.failures + 1, text, True
        if hold.failures == 1 and not is_broken("fails-to-renew-without-a-word"):
            LOG.warning("could not renew %s: %s", ", ".join(hold.names), text)

    def _renewed(self, hold):
        if hold.failures:
            LOG.warning("renewed %s again, after %d renewals that failed", ", ".join(hold.names), hold.failures)
        hold.failures, hold.cause = 0, None

    async def _follow(self, hold):
        """Subscribes to its changes; a change was reported, or may have been missed."""
        if is_broken("no-push"):
            return
        for name in hold.names:
            address = await self.servers.address(name)
            if address not in self.pushes:
                self.pushes[address] = Pushes(self.servers.client, address, self._told)
            live = await self.pushes[address].is_live(name, hold.token)
            if live == 0 and hold in self.holds:
                return self.lose(hold, "push")
            if live is None:  # not reached, or refused: renewals tell meanwhile
                return self._background(self._follow_soon(hold, AGAIN))

    def _told(self, names, again=0):
        for hold in list(self.holds):
            if names is None or set(names) & set(hold.names):
                self._background(self._follow_soon(hold, again))

    async def _follow_soon(self, hold, seconds):
        if hold in self.to_follow:
            return
        self.to_follow.add(hold)
        await asyncio.sleep(seconds)
        self.to_follow.discard(hold)
        if hold in self.holds:
            await self._follow(hold)

    def lose(self, hold, reason):
        """Reports the loss, once."""
        if hold in self.holds or (is_broken("told-twice") and hold.lost):
            self.holds.discard(hold)
            self.counts["losses"] += 1
            hold.lost = reason
            LOG.warning("lost %s: %s", ", ".join(hold.names), hold.cause or reason)
            if is_broken("gives-away-what-it-lost"):
                self._background(self._give_up(hold))
            if hold.told is not None:
                hold.told(hold, reason)
                if is_broken("told-twice"):
                    hold.told(hold, reason)

    # Releasing

    async def release(self, hold):
        """Releases it."""
        if hold.pid != os.getpid() and not is_broken("child-releases"):
            raise LockLost("a child has no holds")
        if hold.lost is not None:
            try:
                if hold.lost != "detached" or is_broken("a-detached-hold-is-released"):
                    await self._give_up(hold)
            except LockError:  # as where another value was written over the lock: it is lost all the same
                if is_broken("refused-release-hides-the-loss"):
                    return
            raise LockLost(f"{hold.names} was lost by {hold.lost}")
        self.holds.discard(hold)
        self.counts["releases"] += 1
        if is_broken("keeps-a-kilobyte"):
            self.keeps.append(bytearray(1024))
        if is_broken("own-release-is-a-loss") and hold.told is not None:
            hold.told(hold, "push")
        await self._shielded(self._give_up(hold))

    async def _give_up(self, hold):
        for name in hold.names:
            token = hold.token or (NOBODYS if hold.is_named and hold.got_nothing else None)
            which = ("TOKEN", token) if token else ()
            rest = hold.parked_ms() if hold.token else 0
            if is_broken("a-least-hold-for-the-whole-lease") and rest:
                continue
            if rest and not is_broken("a-least-hold-is-released"):
                await self.servers.ask(name, "LOCK.RENEW", name, hold.owner, "PX", rest, *which)
            else:
                await self.servers.ask(name, "LOCK.RELEASE", name, hold.owner, *which)

    # Detaching

    async def detach(self, hold, lease_ms=None):
        """Renews it once more, and ends it here. Returns a ticket with which another process adopts it."""
        hold.left_ms()
        async with hold.renewing:
            hold.lease = lease_ms or hold.lease
            await self._renew_now(hold)
        hold.left_ms()
        if hold.is_doubtful and not is_broken("detaches-in-doubt"):
            raise ConnectionFailed(f"a renewal of {self._shown(hold)} went unanswered, and may still come late")
        self.holds.discard(hold)
        hold.lost = "detached"
        cut = 0 if is_broken("a-ticket-with-the-prefix") else len(self.prefix)
        kind = "exclusive" if hold.kind == "write" else hold.kind
        names = [name[cut:] for name in hold.names]
        return json.dumps({"names": names, "kind": kind, "limit": hold.limit, "owner": hold.owner, "token": hold.token})

    async def adopt(self, ticket, lease_ms=None):
        """Adopts a hold that another process has detached."""
        told = json.loads(ticket)
        options = {"kind": told["kind"], "limit": told["limit"], "lease_ms": lease_ms}
        hold = Hold(self, [self.key(name) for name in told["names"]], told["owner"], options)
        self._begin()
        hold.token, sent = told["token"], time.monotonic()
        for name in hold.names:
            words = ("LOCK.RENEW", name, hold.owner, "PX", hold.lease, "TOKEN", hold.token)
            if await self.servers.ask(name, *words) != 1 and not is_broken("adopts-what-is-over"):
                raise LockLost(f"{self._shown(hold)} had ended before it was adopted")
        hold.counts_from(sent)
        return self._keep(hold)

    async def _shielded(self, work):
        """Completes the work, even if the task is cancelled."""
        await asyncio.shield(self._background(work))

    def _background(self, work):
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task):
        self.tasks.discard(task)
        task.cancelled() or task.exception()  # what awaits it is told; in the background the deadline tells

    # Queries

    async def fence(self, name, token):
        """Fenced if the token is not that of a live hold."""
        name = self.key(name)
        if await self.servers.ask(name, "LOCK.FENCE", name, token) != 1:
            raise Fenced(f"{token} is not live")

    async def info(self, name):
        """The holders of a lock, and how many wait for it."""
        name = self.key(name)
        reply = await self.servers.ask(name, "LOCK.INFO", name, "FULL") or []
        found = dict(zip(reply[::2], reply[1::2]))
        holders = [dict(zip(each[::2], each[1::2])) for each in found.get("holders", [])]
        told = [{"owner": each["owner"], "token": each["token"], "left_ms": each["lease-left-ms"]} for each in holders]
        return {"holders": told, "waiters": 0 if is_broken("info-without-waiters") else found.get("waiters", 0)}

    async def ping(self):
        """The version of the module, if the server grants locks now."""
        name = self.key("redislock:ping")
        until = time.monotonic() + (20.0 if is_broken("pings-without-a-bound") else PATIENCE)
        await self.servers.ask(name, "LOCK.FENCE", name, until=until)
        # A replica answers that as well.
        role = await self.servers.ask(name, "ROLE", until=until)
        if role[0] != "master" and not is_broken("pings-a-server-that-grants-nothing"):
            raise ConnectionFailed(f"the address leads to a replica, which grants nothing: its primary is {role[1]}:{role[2]}")
        info = await self.servers.ask(name, "INFO", "redislock", until=until)
        return dict(line.partition(":")[::2] for line in info.splitlines())["redislock_version"]

    async def held(self, owner):
        """The names of all that this owner holds."""
        if self.servers.mode != "cluster":
            rows = await self.servers.ask("", "LOCK.HELDBY", owner)
        else:
            await self.servers.address("")
            cluster = self.servers.cluster
            found = await cluster.execute_command("LOCK.HELDBY", owner, target_nodes=cluster.get_primaries())
            rows = [row for rows in found.values() for row in rows]
        return [row[0] for row in rows if row[1] == "held"]

    async def close(self):
        """Releases all, and closes all connections."""
        if self.scheduler is not None:
            self.scheduler.cancel()
        if self.bodies and not is_broken("closes-under-a-body"):
            for hold in [hold for hold in self.holds if hold.has_body]:
                self.lose(hold, "close")
            end = time.monotonic() + BODIES_END_IN
            while self.bodies and time.monotonic() < end:
                await asyncio.sleep(0.005)
        releases = [self.release(hold) for hold in self.holds] if not is_broken("closes-and-keeps") else []
        if is_broken("closes-one-after-the-other"):
            for release in releases:
                await asyncio.wait([asyncio.create_task(release)], timeout=CLOSES_IN)
        elif releases:
            # A lock whose release is not answered in time ends with its lease.
            await asyncio.wait(list(map(self._background, releases)), timeout=CLOSES_IN)
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=CLOSES_IN)
        for pushes in self.pushes.values():
            await pushes.close()
        await self.servers.close()
