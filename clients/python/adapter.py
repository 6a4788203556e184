"""The adapter for clients/conformance: requests as lines of JSON in, answers and events as lines of JSON out."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import importlib
import itertools
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import redislock
import redislock.redlock

DRIVERS = {
    "asyncio": "redis.asyncio",
    "redis-py": "redis",
    "valkey-asyncio": "valkey.asyncio",
    "valkey-py": "valkey",
}
FEATURES = [
    "sentinel", "cluster", "independent", "push", "leader", "fence", "stats", "fork", "log", "client",
    "provider", "min_hold", "nested", "ticket", "stubborn",
]  # fmt: skip
NAMES = {"redis": ("Redis", "RedisCluster"), "valkey": ("Valkey", "ValkeyCluster")}
KINDS = [
    "LockTimeout", "LockLost", "Deadlock", "Fenced", "LockKindMismatch", "QueueFull", "Quarantine", "NotConfirmed",
    "ModuleMissing", "ConnectionFailed", "AlreadyHeld",
]  # fmt: skip
#: The operations that both kinds of clients have.
OPS = [
    "acquire", "try", "check", "release", "run", "cycle", "fork", "lead", "resign", "quit", "info", "ping", "detach",
    "adopt",
]  # fmt: skip
_OUT = threading.Lock()


class BodyError(Exception):
    """The error that the body of a block raises on request."""


def say(line: dict[str, Any]) -> None:
    """Writes a line at once."""
    with _OUT:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Forward(logging.Handler):
    """Passes on what the library logs."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "info" if record.levelno < logging.WARNING else record.levelname.lower()
        say({"event": "log", "level": level, "message": record.getMessage()})


class ProviderError(Exception):
    """The error that the provider of credentials raises."""


def provider_of(login: dict[str, Any]) -> Any:
    """A provider of credentials that fails at these calls."""
    calls = itertools.count(1)

    class Provider(importlib.import_module("redis").CredentialProvider):  # type: ignore[misc]
        def get_credentials(self) -> tuple[str, str]:
            number, fails = next(calls), login.get("fails", [])
            if number > 1 if fails == "later" else number in fails:
                raise ProviderError(f"call {number} of the provider fails")
            return "default", login["password"]

        async def get_credentials_async(self) -> tuple[str, str]:
            return self.get_credentials()

    return Provider()


def failure(error: BaseException) -> dict[str, Any]:
    """An error as the kit wants it."""
    kind = type(error).__name__.removesuffix("Error")
    said: dict[str, Any] = {"kind": kind if kind in KINDS else "Other", "message": str(error)}
    if isinstance(error, asyncio.CancelledError | redislock.LocksClosedError):
        said["kind"] = "Cancelled"
    if isinstance(error, NotImplementedError):
        said["kind"] = "Unsupported"
    if isinstance(error, redislock.DeadlockError):
        said["cycle"] = [list(each) for each in error.cycle]
    if isinstance(error, redislock.QuarantineError):
        said["left_ms"] = round(1000 * error.left)
    if isinstance(error, redislock.LockLostError) and (body := getattr(error, "body", None)):
        said["body"] = body
    return said


def clients_of(request: dict[str, Any], driver: str) -> Any:
    """The client or the clients of this driver that a user would make."""
    package = DRIVERS[driver]
    module = importlib.import_module(package)
    single, cluster = NAMES[package.partition(".")[0]]
    places = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in request["addresses"])]
    pool: dict[str, Any] = {"max_connections": request["pool"]} if request.get("pool") else {}
    if "login" in request:
        pool["credential_provider"] = provider_of(request["login"])
    if request["mode"] == "sentinel":
        sentinel = importlib.import_module(f"{package}.sentinel").Sentinel(places)
        return sentinel.master_for(request["service"], **pool)
    if request["mode"] == "cluster":
        nodes = [importlib.import_module(f"{package}.cluster").ClusterNode(*place) for place in places]
        return getattr(importlib.import_module(f"{package}.cluster"), cluster)(startup_nodes=nodes, **pool)
    made = [getattr(module, single)(host=host, port=port, **pool) for host, port in places]
    return made if request["mode"] == "independent" else made[0]


def seconds(request: dict[str, Any], name: str) -> float:
    """A time of the request."""
    return float(request[name]) / 1000


def lease_of(request: dict[str, Any]) -> float | None:
    """The lease that the request names."""
    return seconds(request, "lease_ms") if "lease_ms" in request else None


def nested_of(request: dict[str, Any]) -> dict[str, Any]:
    """The request that a body makes for what its block holds."""
    return {"name": request["name"], "kind": request["nested"]}


def lock_of(locks: Any, request: dict[str, Any]) -> Any:
    """The lock that the request asks for."""
    options: dict[str, Any] = {}
    for name, ours in (
        ("lease_ms", "lease"),
        ("wait_ms", "wait"),
        ("longest_ms", "max_hold"),
        ("min_hold_ms", "min_hold"),
    ):
        if request.get(name) is not None:
            options[ours] = seconds(request, name)
    for name in ("renew", "owner"):
        if request.get(name) is not None:
            options[name] = request[name]
    kind = request.get("kind", "exclusive")
    if "names" in request:
        return (locks.read_many if kind == "read" else locks.many)(request["names"], **options)
    if kind == "semaphore":
        return locks.semaphore(request["name"], request["limit"], **options)
    return {"exclusive": locks.lock, "read": locks.read, "write": locks.write}[kind](request["name"], **options)


def told_of(info: Any) -> dict[str, Any]:
    """The answer to an info request."""
    if info is None:
        return {"holders": [], "waiters": 0}
    holders = [{"owner": each.owner, "token": each.token, "left_ms": int(1000 * each.left)} for each in info.holders]
    return {"holders": holders, "waiters": info.waiters}


def told(hold: Any) -> dict[str, Any]:
    """The answer to an acquire request."""
    return {"token": hold.token, "remaining_ms": int(1000 * hold.remaining), "owner": hold.owner}


def usage() -> dict[str, int]:
    """Threads, connections and memory of this process, after freed memory was returned to the system."""
    ctypes.CDLL(None).malloc_trim(0)
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{number}").removeprefix("socket:[").rstrip("]"))
        except OSError:
            continue
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "connections": sum(row[3] == "01" and row[9] in inodes for row in rows),
        "memory_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
    }


def child_of(use: Any, release: Any) -> str:
    """Returns whether a forked child is refused to use and to release its parent's hold."""
    pid = os.fork()
    if pid == 0:
        refused = 0
        for work in (use, release):
            try:
                work()
            except redislock.LockLostError:
                refused += 1
            except BaseException:
                break
        os._exit(0 if refused == 2 else 1)
    return "refused" if os.waitpid(pid, 0)[1] == 0 else "used"


class Common:
    """The common base of both kinds of clients."""

    def __init__(self) -> None:
        self.locks: Any = None
        self.holds: dict[str, Any] = {}
        self.leaders: dict[str, Any] = {}
        self.objects: dict[str, Any] = {}
        self.counters = redislock.Counters()

    def make(self, request: dict[str, Any], driver: str, kind: Any) -> dict[str, Any]:
        """Opens."""
        options: dict[str, Any] = {"hooks": self.counters}
        if request.get("lease_ms"):
            options["lease"] = seconds(request, "lease_ms")
        for name in ("prefix", "label"):
            if name in request:
                options[name] = request[name]
        if request.get("waiting_connections"):
            options["max_queued_per_lock"] = request["waiting_connections"]
        self.client = clients_of(request, driver)
        if request["mode"] == "independent":
            kind = redislock.redlock.AsyncRedlock if kind is redislock.AsyncLocks else redislock.redlock.Redlock
        self.locks = kind(self.client, **options)
        more = ["cancel", "body", "tasks"] if issubclass(kind, redislock.AsyncLocks) else []
        return {"drivers": list(DRIVERS), "features": [*FEATURES, *more]}

    @property
    def clients(self) -> list[Any]:
        """The clients of the driver."""
        return self.client if isinstance(self.client, list) else [self.client]

    def lock(self, request: dict[str, Any]) -> Any:
        """The lock that is asked for: the same object for requests that name one."""
        made = lock_of(self.locks, request)
        return self.objects.setdefault(request["lock"], made) if "lock" in request else made

    def keep(self, request: dict[str, Any], hold: Any) -> dict[str, Any]:
        """A new hold."""
        name = request["hold"]
        self.holds[name] = hold

        def lost(reason: str) -> None:
            cause = {"cause": hold.cause} if hold.cause else {}
            say({"event": "lost", "hold": name, "reason": reason, **cause})

        hold.on_lost(lost)
        return told(hold)

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"remaining_ms": int(1000 * self.holds[request["hold"]].check())}

    def stats(self) -> dict[str, Any]:
        names = ("grants", "timeouts", "losses", "releases", "waits")
        return {name: getattr(self.counters, name) for name in names}

    def leader(self, request: dict[str, Any], elected: Any, deposed: Any, failed: Any) -> Any:
        lease = seconds(request, "lease_ms") if request.get("lease_ms") else None
        made = self.locks.leader(request["name"], on_elected=elected, on_deposed=deposed, on_error=failed, lease=lease)
        self.leaders[request["leader"]] = made
        return made


class Tasks(Common):
    """Requests as tasks, for asyncio."""

    async def do(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request["op"]
        if op in OPS:
            return await getattr(self, f"do_{op}")(request)  # type: ignore[no-any-return]
        if op == "fence":
            await self.locks.check_token(request["name"], request["token"])
            return {}
        if op == "stats":
            return self.stats()
        if op == "threads":
            return usage()
        if op == "close":
            await self.close()
            return {}
        raise NotImplementedError(op)

    async def do_acquire(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.keep(request, await self.lock(request).acquire())

    async def do_try(self, request: dict[str, Any]) -> dict[str, Any]:
        hold = await self.lock(request).try_acquire()
        return {} if hold is None else self.keep(request, hold)

    async def do_info(self, request: dict[str, Any]) -> dict[str, Any]:
        return told_of(await self.locks.info(request["name"]))

    async def do_ping(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"version": await self.locks.ping()}

    async def do_detach(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"ticket": await self.holds[request["hold"]].detach(lease_of(request))}

    async def do_adopt(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.keep(request, await self.locks.adopt(request["ticket"], lease_of(request)))

    async def do_check(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.check(request)

    async def do_release(self, request: dict[str, Any]) -> dict[str, Any]:
        await self.holds[request["hold"]].release()
        return {}

    async def do_run(self, request: dict[str, Any]) -> dict[str, Any]:
        body, answer = "", {}
        try:
            async with self.lock(request) as hold:
                if "nested" in request:
                    try:
                        await lock_of(self.locks, nested_of(request)).acquire()
                    except redislock.RedislockError as error:
                        answer["nested"] = failure(error)["kind"]
                if request.get("stubborn"):
                    say({"event": "begun", "hold": request["hold"]})
                end = time.monotonic() + seconds(request, "body_ms")
                while (left := end - time.monotonic()) > 0:
                    try:
                        await asyncio.sleep(left)
                    except asyncio.CancelledError:
                        body = "cancelled"
                        if not request.get("stubborn"):
                            raise
                body = "finished"
                if request.get("raise"):
                    raise BodyError
        except BodyError:
            body = "raised"
        except redislock.LockLostError as error:
            error.body = body  # type: ignore[attr-defined]
            raise
        return {"token": hold.token, "body": body, **answer}

    async def do_cycle(self, request: dict[str, Any]) -> dict[str, Any]:
        for _ in range(request["times"]):
            async with self.lock(request):
                pass
        return {"times": request["times"]}

    async def do_fork(self, request: dict[str, Any]) -> dict[str, Any]:
        hold = self.holds[request["hold"]]
        return {"child": child_of(hold.check, lambda: hold.release().send(None))}

    async def do_lead(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["leader"]

        async def elected(hold: Any) -> None:
            say({"event": "elected", "leader": name, "token": hold.token})
            if request.get("fail"):
                raise BodyError
            if until := request.get("until_lost"):
                try:
                    await until_lost(hold, until)
                finally:
                    say({"event": "ended", "leader": name})

        async def until_lost(hold: Any, until: str) -> None:
            if until == "signal":
                await hold.until_lost()
            while True:
                hold.check()
                if until == "check":
                    await asyncio.sleep(0.005)

        async def deposed(reason: str) -> None:
            say({"event": "deposed", "leader": name, "reason": reason})

        async def failed(error: Exception) -> None:
            say({"event": "failed", "leader": name, "message": str(error)})

        self.leader(request, elected, deposed, failed).start()
        return {}

    async def do_resign(self, request: dict[str, Any]) -> dict[str, Any]:
        await self.leaders.pop(request["leader"]).resign()
        return {}

    async def do_quit(self, _: dict[str, Any]) -> dict[str, Any]:
        for client in self.clients:
            await client.aclose()
        return {}

    async def close(self) -> None:
        for leader in list(self.leaders.values()):
            await leader.resign()
        self.leaders.clear()
        if self.locks is not None:
            await self.locks.close()


class Threads(Common):
    """Requests as threads."""

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request["op"]
        if op in OPS:
            return getattr(self, f"do_{op}")(request)  # type: ignore[no-any-return]
        if op == "fence":
            self.locks.check_token(request["name"], request["token"])
            return {}
        if op == "stats":
            return self.stats()
        if op == "threads":
            return usage()
        if op == "close":
            self.close()
            return {}
        raise NotImplementedError(op)

    def do_acquire(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.keep(request, self.lock(request).acquire())

    def do_try(self, request: dict[str, Any]) -> dict[str, Any]:
        hold = self.lock(request).try_acquire()
        return {} if hold is None else self.keep(request, hold)

    def do_info(self, request: dict[str, Any]) -> dict[str, Any]:
        return told_of(self.locks.info(request["name"]))

    def do_ping(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"version": self.locks.ping()}

    def do_detach(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"ticket": self.holds[request["hold"]].detach(lease_of(request))}

    def do_adopt(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.keep(request, self.locks.adopt(request["ticket"], lease_of(request)))

    def do_check(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.check(request)

    def do_release(self, request: dict[str, Any]) -> dict[str, Any]:
        self.holds[request["hold"]].release()
        return {}

    def do_run(self, request: dict[str, Any]) -> dict[str, Any]:
        body, answer = "finished", {}
        try:
            with self.lock(request) as hold:
                if "nested" in request:
                    try:
                        lock_of(self.locks, nested_of(request)).acquire()
                    except redislock.RedislockError as error:
                        answer["nested"] = failure(error)["kind"]
                if request.get("stubborn"):
                    say({"event": "begun", "hold": request["hold"]})
                time.sleep(seconds(request, "body_ms"))
                if request.get("raise"):
                    raise BodyError
        except BodyError:
            body = "raised"
        except redislock.LockLostError as error:
            error.body = body  # type: ignore[attr-defined]
            raise
        return {"token": hold.token, "body": body, **answer}

    def do_cycle(self, request: dict[str, Any]) -> dict[str, Any]:
        for _ in range(request["times"]):
            with self.lock(request):
                pass
        return {"times": request["times"]}

    def do_fork(self, request: dict[str, Any]) -> dict[str, Any]:
        hold = self.holds[request["hold"]]
        return {"child": child_of(hold.check, hold.release)}

    def do_lead(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["leader"]

        def elected(hold: Any) -> None:
            say({"event": "elected", "leader": name, "token": hold.token})
            if request.get("fail"):
                raise BodyError
            if until := request.get("until_lost"):
                try:
                    until_lost(hold, until)
                finally:
                    say({"event": "ended", "leader": name})

        def until_lost(hold: Any, until: str) -> None:
            if until == "signal":
                hold.wait_until_lost()
            while True:
                hold.check()
                if until == "check":
                    time.sleep(0.005)

        def deposed(reason: str) -> None:
            say({"event": "deposed", "leader": name, "reason": reason})

        def failed(error: Exception) -> None:
            say({"event": "failed", "leader": name, "message": str(error)})

        self.leader(request, elected, deposed, failed).start()
        return {}

    def do_resign(self, request: dict[str, Any]) -> dict[str, Any]:
        self.leaders.pop(request["leader"]).resign()
        return {}

    def do_quit(self, _: dict[str, Any]) -> dict[str, Any]:
        for client in self.clients:
            client.close()
        return {}

    def close(self) -> None:
        for leader in list(self.leaders.values()):
            leader.resign()
        self.leaders.clear()
        if self.locks is not None:
            self.locks.close()


async def serve_tasks(lines: asyncio.Queue[str], first: dict[str, Any], driver: str) -> None:
    """Answers requests by tasks until the input ends."""
    side, running = Tasks(), dict[int, asyncio.Task[dict[str, Any]]]()

    def answer(number: int, task: asyncio.Task[dict[str, Any]]) -> None:
        del running[number]
        error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        say({"id": number, "ok": task.result()} if error is None else {"id": number, "error": failure(error)})

    try:
        say({"id": first["id"], "ok": side.make(first, driver, redislock.AsyncLocks)})
    except Exception as error:
        say({"id": first["id"], "error": failure(error)})
    while line := await lines.get():
        request = json.loads(line)
        if request["op"] == "cancel":
            if task := running.get(request["of"]):
                task.cancel()
            say({"id": request["id"], "ok": {}})
        else:
            running[request["id"]] = task = asyncio.create_task(side.do(request))
            task.add_done_callback(functools.partial(answer, request["id"]))
    await side.close()
    if running:
        await asyncio.wait(list(running.values()), timeout=5)


def serve_threads(first: dict[str, Any], driver: str) -> None:
    """Answers requests by threads until the input ends."""
    side = Threads()

    def answer(request: dict[str, Any]) -> None:
        try:
            say({"id": request["id"], "ok": side.do(request)})
        except Exception as error:
            say({"id": request["id"], "error": failure(error)})

    try:
        say({"id": first["id"], "ok": side.make(first, driver, redislock.Locks)})
    except Exception as error:
        say({"id": first["id"], "error": failure(error)})
    for line in sys.stdin:
        threading.Thread(target=answer, args=[json.loads(line)], daemon=True).start()
    side.close()


async def read_and_serve(first: dict[str, Any], driver: str) -> None:
    """Reads lines in a thread, for a pipe need not be one that an event loop can read."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    await serve_tasks(lines, first, driver)


def main() -> None:
    """Serves one case."""
    line = sys.stdin.readline()
    if not line:
        return
    first = json.loads(line)
    log = logging.getLogger("redislock")
    log.setLevel(logging.INFO)
    log.addHandler(Forward())
    driver = first.get("driver") or next(iter(DRIVERS))
    if driver not in DRIVERS:
        say({"id": first["id"], "error": {"kind": "Unsupported", "message": f"there is no driver {driver}"}})
    elif driver.endswith("asyncio"):
        asyncio.run(read_and_serve(first, driver))
    else:
        serve_threads(first, driver)


if __name__ == "__main__":
    main()
