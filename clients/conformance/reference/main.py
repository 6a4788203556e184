"""The adapter of the reference (PROTOCOL.md)."""

import asyncio
import ctypes
import json
import logging
import os
import sys
import threading

import redis

from breaks import is_broken
from client import INSIDE, Locks
from errors import LockError, LockLost, LockTimeout
from majority import Majority
from servers import Client

FEATURES = [
    "sentinel", "cluster", "independent", "push", "cancel", "body", "tasks", "leader", "held", "fence", "stats", "fork",
    "log", "client", "provider", "min_hold", "nested", "ticket", "stubborn",
]  # fmt: skip


class BodyRaised(Exception):
    """The error that a body raises."""


class LoginFailed(Exception):
    """The error that a provider of credentials raises."""


class Login(redis.CredentialProvider):
    """Returns the password of `login`, and fails at the calls that it names."""

    def __init__(self, login):
        self.password, self.fails, self.calls = login["password"], login["fails"], 0

    def get_credentials(self):
        """The user and the password."""
        self.calls += 1
        if self.calls > 1 if self.fails == "later" else self.calls in self.fails:
            raise LoginFailed(f"call {self.calls}")
        return "default", self.password


class LogEvents(logging.Handler):
    """Reports log lines."""

    def __init__(self, write):
        super().__init__(logging.INFO)
        self.write = write

    def emit(self, record):
        """One line of the log."""
        self.write(event="log", level=record.levelname.lower(), message=record.getMessage())


class Adapter:
    """Answers requests."""

    def __init__(self):
        self.locks, self.holds, self.requests, self.leaders = None, {}, {}, {}
        #: The last hold of each lock object. It has no lock objects: each request stands alone.
        self.objects, self.client = {}, None
        #: Requests whose body continues, whatever happens.
        self.stubborn = set()
        log = logging.getLogger("reference")
        log.setLevel(logging.INFO)
        log.addHandler(LogEvents(self.write))

    def write(self, **message):
        """One line."""
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def take(self, message):
        """Begins a request."""
        task = asyncio.create_task(self.answer(message))
        self.requests[message["id"]] = task

    async def answer(self, message):
        """Executes a request and reports the outcome."""
        number = message["id"]
        try:
            ok = await getattr(self, "do_" + message["op"])(message)
            self.write(id=number, ok=ok or {})
        except LockError as error:
            kind = type(error).__name__
            self.write(id=number, error={"kind": kind, "message": str(error), **error.more})
        except asyncio.CancelledError:
            self.write(id=number, error={"kind": "Cancelled", "message": "cancelled"})
        except Exception as error:
            self.write(id=number, error={"kind": "Other", "message": f"{type(error).__name__} {error}"})
        finally:
            self.requests.pop(number, None)

    async def do_open(self, message):
        """Opens the servers."""
        more = {name: message[name] for name in ("lease_ms", "pool", "waiting_connections") if name in message}
        self.client = Client(Login(message["login"]) if "login" in message else None)
        if message["mode"] == "independent":
            self.locks = Majority(self.client, message["addresses"], **more)
        else:
            more |= {name: message[name] for name in ("label", "prefix") if name in message}
            more["service"] = message.get("service")
            self.locks = Locks(self.client, message["mode"], message["addresses"], **more)
        return {"drivers": ["redis-py"], "features": FEATURES}

    async def acquired(self, message):
        """The hold of a request."""
        options = {
            {"longest_ms": "longest"}.get(name, name): message[name]
            for name in ("kind", "limit", "lease_ms", "renew", "wait_ms", "owner", "min_hold_ms") if name in message
        }  # fmt: skip
        names = message.get("names") or [message["name"]]
        if "lock" in message and is_broken("one-owner-for-an-object"):
            options["owner"] = f"owner of {message['lock']}"
        hold = await self.locks.acquire(names, **options, longest=message.get("longest_ms"))
        hold.id, hold.told = message.get("hold"), self.lost
        self.objects[message.get("lock")] = hold
        return hold

    def lost(self, hold, reason):
        """Reports a loss."""
        if hold.id is not None:
            cause = {"cause": hold.cause} if hold.cause and not is_broken("a-loss-without-a-cause") else {}
            self.write(event="lost", hold=hold.id, reason=reason, **cause)

    async def do_acquire(self, message):
        """Acquires it."""
        return self.keep(message, await self.acquired(message))

    def keep(self, message, hold):
        """A new hold."""
        self.holds[message["hold"]] = hold
        return {"token": hold.token, "remaining_ms": hold.remaining_ms(), "owner": hold.owner}

    async def do_try(self, message):
        """Acquires it if it is free."""
        try:
            return await self.do_acquire({**message, "wait_ms": 0})
        except LockError as error:
            if not isinstance(error, LockTimeout) and not is_broken("a-refusal-is-nothing"):
                raise
            return {}

    async def do_info(self, message):
        """The holders of a lock and its waiters."""
        return await self.locks.info(message["name"])

    async def do_ping(self, message):
        """The version of the module."""
        return {"version": await self.locks.ping()}

    async def do_detach(self, message):
        """Detaches it."""
        return {"ticket": await self.locks.detach(self.holds[message["hold"]], message.get("lease_ms"))}

    async def do_adopt(self, message):
        """Adopts it."""
        hold = await self.locks.adopt(message["ticket"], message.get("lease_ms"))
        hold.id, hold.told = message["hold"], self.lost
        return self.keep(message, hold)

    async def do_check(self, message):
        """Asks the library."""
        return {"remaining_ms": self.holds[message["hold"]].left_ms()}

    async def do_release(self, message):
        """Releases it."""
        await self.locks.release(self.holds.pop(message["hold"]))

    async def do_run(self, message):
        """A block around a body that sleeps."""
        hold = await self.acquired(message)
        INSIDE.set(INSIDE.get() | set(hold.names))
        hold.has_body, self.locks.bodies = True, self.locks.bodies + 1
        if message.get("stubborn"):
            self.stubborn.add(message["id"])
        try:
            return await self.worked(message, hold)
        finally:
            self.locks.bodies -= 1

    async def worked(self, message, hold):
        """Does the work of a block, and releases its lock."""
        nested = {"nested": await self.nested(message)} if "nested" in message else {}
        body = asyncio.create_task(self.body(message))
        hold.told = lambda hold, reason: body.cancel()
        raised = ended = None
        try:
            await asyncio.shield(body)
        except BodyRaised as error:
            raised = error
        except asyncio.CancelledError:
            ended = "cancelled"
            body.cancel()
        if "lock" in message and is_broken("one-hold-for-an-object"):
            hold = self.objects[message["lock"]]
        try:
            await self.locks.release(hold)
        except LockLost as lost:
            lost.more["body"] = ended or "finished"
            raise
        except LockError:
            if raised is None or is_broken("release-hides-the-body"):
                raise
        if ended:
            raise asyncio.CancelledError
        return {"token": hold.token, "body": "raised" if raised else "finished", **nested}

    async def nested(self, message):
        """Returns the outcome if the body acquires the block's lock."""
        try:
            await self.locks.acquire([message["name"]], wait_ms=300, kind=message["nested"])
        except LockError as error:
            return type(error).__name__
        return "ok"

    async def body(self, message):
        """The body's work under the lock."""
        if message.get("stubborn"):
            self.write(event="begun", hold=message["hold"])
        loop = asyncio.get_running_loop()
        end = loop.time() + message.get("body_ms", 0) / 1000
        while (left := end - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if not message.get("stubborn"):
                    raise
        if message.get("raise"):
            raise BodyRaised

    async def do_cycle(self, message):
        """Acquires and releases, again and again."""
        for _ in range(message["times"]):
            await self.locks.release(await self.acquired(message))
        return {"times": message["times"]}

    async def do_cancel(self, message):
        """Cancels another request."""
        task = self.requests.get(message["of"])
        if task is not None:
            task.cancel()

    async def do_fence(self, message):
        """Asks about a token."""
        await self.locks.fence(message["name"], message["token"])

    async def do_held(self, message):
        """Returns the locks of an owner."""
        return {"names": await self.locks.held(message["owner"])}

    async def do_lead(self, message):
        """Stands for election."""
        self.leaders[message["leader"]] = asyncio.create_task(self.lead(message))

    async def lead(self, message):
        """Leads again and again until it resigns."""
        name = message["leader"]
        while True:
            hold = await self.locks.acquire([message["name"]], lease_ms=message["lease_ms"])
            hold.id, over = None, asyncio.get_running_loop().create_future()
            hold.told = lambda hold, reason, over=over: over.done() or over.set_result(reason)
            self.write(event="elected", leader=name, token=hold.token)
            try:
                await self.leads(message, hold, over)
                await over
            except asyncio.CancelledError:
                await self.locks.release(hold)
                raise
            except LockLost as lost:
                if is_broken("a-leader-that-lost-stands-no-more"):
                    return
                if is_broken("a-loss-is-a-failure-of-the-work"):
                    self.write(event="failed", leader=name, message=str(lost))
            except BodyRaised:
                if not is_broken("a-leader-that-fails-says-nothing"):
                    self.write(event="failed", leader=name, message="the leader's own error")
                return await self.locks.release(hold)
            self.write(event="deposed", leader=name, reason=over.result())

    async def leads(self, message, hold, over):
        """Does the work of the leader."""
        if message.get("fail") and not is_broken("a-leader-that-fails-leads-on"):
            raise BodyRaised
        until = message.get("until_lost")
        if until is None:
            return
        try:
            if until == "signal":
                await over
            while True:
                hold.left_ms()
                if until == "check":
                    await asyncio.sleep(0.005)
        finally:
            self.write(event="ended", leader=message["leader"])

    async def do_resign(self, message):
        """Ends the candidacy."""
        task = self.leaders.pop(message["leader"])
        task.cancel()
        await asyncio.wait([task])

    async def do_fork(self, message):
        """Lets a child try to use and release the hold."""
        hold = self.holds[message["hold"]]
        child = os.fork()
        if child == 0:
            os._exit(self.be_a_child(hold))
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            await asyncio.sleep(0.01)
            continue
        return {"child": "refused" if not is_broken("child-releases") else "used"}

    def be_a_child(self, hold):
        """Tries the hold in a forked child. Returns 0 if the library refuses."""
        if is_broken("child-releases"):
            host, port = self.locks.servers.addresses[0]
            redis.Redis(host, port).execute_command("LOCK.RELEASE", hold.names[0], hold.owner)
            return 1
        for use in (hold.left_ms, lambda: self.locks.release(hold).send(None)):
            try:
                use()
                return 1
            except LockLost:
                continue
        return 0

    async def do_stats(self, message):
        """What was counted."""
        names = ("grants", "timeouts", "losses", "releases", "waits")
        return {name: 0 if is_broken("counts-nothing") else self.locks.counts[name] for name in names}

    async def do_threads(self, message):
        """Returns the resources of the process, after freed memory was returned to the system."""
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[1])
        lines = sum(len(locks.servers.lines) for locks in [self.locks, *getattr(self.locks, "nodes", [])])
        lines += sum(pushes.line is not None for pushes in self.locks.pushes.values())
        return {"threads": threading.active_count(), "connections": lines, "memory_kb": pages * 4}

    async def do_quit(self, message):
        """Closes the client that the library was given."""
        self.client.is_closed = True

    async def do_close(self, message):
        """Closes the locks."""
        await self.close(besides=message["id"])

    async def close(self, besides=None):
        """Ends all running requests, then the locks."""
        spared = {besides, *self.stubborn}
        tasks = [task for number, task in self.requests.items() if number not in spared] + list(self.leaders.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        if self.locks is not None:
            await self.locks.close()


async def main():
    """Until standard input ends."""
    adapter, reader = Adapter(), asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        adapter.take(json.loads(line))
    await adapter.close()


if __name__ == "__main__":
    asyncio.run(main())
