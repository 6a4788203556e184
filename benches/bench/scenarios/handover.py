"""Hand-over under contention: contenders who take one lock, hold it, free it, and take it again.

Wherever a server can be spoken to in a few lines, one program in Rust does it (benches/contend), by one loop for all.
It keeps a connection for each contender, and one thread drives them. It and its server share *one processor*. On two, a
hand-over in a virtual machine is mostly the waking up of a processor that had gone to sleep. That takes 80 microseconds
for any server, and swings by half from one moment to the next. On one, what counts is the work that is done. All of
these servers hand over faster and steadier there, also those with many processes and threads. The setting "two processors"
is the other way around it: the program polls, so that nothing sleeps. That suits servers of one thread only.

- redislock: `LOCK.ACQUIRE ... BLOCK 0` and `LOCK.RELEASE`, RESP2.
- A bare token: a list with one element, `BLPOP` and `RPUSH`. No owner, no lease: the floor of a wait.
- A module's bare token (tests/server/floor.c): a blocked client, and another's command that unblocks it. It keeps
  nothing and checks no owner: the floor of a wait that a module can offer.
- A module's token with the promises: the same module, on a server of its own. It takes the words of a lock, and asks
  the server for what a lock's promises need it for: the key, the rights of the next client, replicas, events. It takes
  hardly an instruction of its own, so no module that promises the same hands over faster.
- PostgreSQL `pg_advisory_lock` and MariaDB `GET_LOCK`: prepared statements, a round trip each. The servers have their
  defaults, with more connections allowed.

The others have both processors, and a number of processes where Python needs it:

- etcd: its own lock service, by the JSON gateway, from the same program in Rust. ZooKeeper: kazoo's recipe. Both with
  their defaults, one node, which writes to the disk before it answers. These are for what survives a machine.
- redis-py's `Lock` with its default, to ask every 0.1 s, and with 0.01 s; python-redis-lock, which waits with `BLPOP`;
  node-redlock with its defaults, but without giving up after ten attempts. Libraries as they are, and in their own
  language: what they show is what their users get, of which their server is the smaller part.

In each round all of them take turns. Servers and clients are started once and kept. A run begins with a queue that has
formed after a holder. The window of the counts is 0.18 s, or 0.3 s for the slow ones. So no wait can be longer than
about that, and one that comes near it is that of a contender that was not served at all.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..context import Bench
from ..floor import PROMISES, TOKEN, WITH_PROMISES, floor
from ..measure import OURS, Figure, in_turns
from ..peers.daemon import Daemon
from ..peers.etcd import Etcd
from ..peers.mariadb import MariaDB
from ..peers.postgres import Postgres
from ..peers.turns import COMMANDS, COMMANDS_PER_GRANT
from ..peers.worker import Worker
from ..peers.zookeeper import ZooKeeper
from ..servers import ROOT, Connection, Release, Server

BLPOP = "BLPOP token"
CONTENDERS = (2, 10, 100, 1000)
HOLDS_MS = (0, 1)
#: The setting that is measured on every release, and by the slow ones also with a hold.
MIDDLE = 100

#: The contenders in Rust: the name in the table, and the name in the program.
IN_RUST = {
    OURS: "redislock",
    BLPOP: "blpop",
    TOKEN: "floor",
    PROMISES: "floor-promises",
}

PEERS = Path(__file__).resolve().parents[1] / "peers"
CACHE = Path(os.environ.get("REDISLOCK_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "redislock"))


@dataclass(frozen=True)
class Peer:
    name: str
    server: str  # its label
    worker: Worker
    commands: Callable[[], int] | None = None  # how many the server has executed so far
    is_slow: bool = False  # hands over some hundred times a second, and needs a longer look
    lines_up_s: float = 0.03  # a thousand contenders do within this time
    can_stay: bool = False  # a thousand contenders take seconds to line up and to leave, so they stay between rounds
    is_variant: bool = False  # of another peer, and told in the middle setting only

    def takes_part(self, contenders: int, hold_ms: int) -> bool:
        if self.is_variant:
            return (contenders, hold_ms) == (MIDDLE, 0)
        return not self.is_slow or hold_ms == 0 or contenders == MIDDLE

    def measure(self, contenders: int, hold_ms: int) -> dict[str, float]:
        """One run."""
        self.worker.open(contenders)
        line_up, warm_up, window = (0.03, 0.05, 0.3) if self.is_slow else (0.01, 0.03, 0.18)
        if contenders > MIDDLE:
            line_up = line_up if self.worker.standing == contenders else self.lines_up_s
        elif contenders == MIDDLE and hold_ms:
            window = 0.36  # three turns for each
        stay = self.can_stay and contenders > MIDDLE
        before = self.commands() if self.commands else 0
        run = self.worker.run(contenders, hold_ms * 1000, line_up, warm_up, window, stay=stay)
        found = run.figures()
        if self.commands:
            executed_here = self.commands() - before
            found[COMMANDS] = executed_here / run.hand_overs()
            found[COMMANDS_PER_GRANT] = executed_here / len(run.turns)
        return found


def run(bench: Bench) -> list[Figure]:
    program = contend()
    first = next((release for release in bench.releases if release.name == "redis-7.0"), bench.releases[0])
    figures: list[Figure] = []
    with contextlib.ExitStack() as stack, family(first, program) as server:
        peers = [*server.peers(), *databases(bench, stack, program), *slow_peers(bench, stack, first, program)]
        for contenders, hold_ms in settings(bench.is_quick):
            taking_part = [peer for peer in peers if peer.takes_part(contenders, hold_ms)]
            bench.say(f"handover: {contenders} contenders, hold {hold_ms} ms, {len(taking_part)} peers")
            figures += measure(bench, taking_part, contenders, hold_ms)
    for release in bench.releases:
        with family(release, program) as server:
            if release != first:
                bench.say(f"handover: {release.label}")
                figures += measure(bench, list(server.peers()), MIDDLE, 0)
            bench.say(f"handover: {release.label}, two processors")
            figures += measure(bench, list(server.on_two_processors()), MIDDLE, 0, ", two processors")
    return figures


def settings(is_quick: bool) -> list[tuple[int, int]]:
    """Contenders and hold. The many come last: their connections stay."""
    if is_quick:
        return [(2, 0), (MIDDLE, 0)]
    return [(contenders, hold_ms) for contenders in CONTENDERS for hold_ms in HOLDS_MS]


def measure(bench: Bench, peers: Sequence[Peer], contenders: int, hold_ms: int, more: str = "") -> list[Figure]:
    setting = f"{contenders} contenders, hold {hold_ms} ms{more}"

    def once(peer: Peer) -> Callable[[], Mapping[str, float]]:
        return lambda: peer.measure(contenders, hold_ms)

    # Open everything before the first round: a thousand sessions take a second to begin.
    for peer in peers:
        peer.worker.open(contenders)
    seen = in_turns(bench.rounds, {peer.name: once(peer) for peer in peers})
    return [
        Figure("handover", peer.server, setting, peer.name, metric, values)
        for peer in peers
        for metric, values in seen[peer.name].items()
        if len(values) == bench.rounds  # what could not be told in some round is not told
    ]


def contend() -> Path:
    """Builds the program in Rust."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "contend"
    manifest = ROOT / "benches" / "contend" / "Cargo.toml"
    command = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--release", "--locked"]
    subprocess.run([*command, "--manifest-path", manifest, "--target-dir", target], check=True)
    return target / "release" / "redislock-contend"


def place(process: int, processors: set[int]) -> None:
    """Binds the threads that a process has now, and what they will start."""
    for thread in os.listdir(f"/proc/{process}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), processors)


def one_processor() -> set[int]:
    """The last one: the first has more to do for others."""
    return {max(os.sched_getaffinity(0))}


class Family:
    """A server of the Redis family, and its clients in Rust."""

    def __init__(self, release: Release, program: Path, stack: contextlib.ExitStack) -> None:
        self.release, self.program, self.stack = release, program, stack
        self.server = stack.enter_context(Server(release, "--loadmodule", str(floor())))
        self.asker = stack.enter_context(self.server.connect())
        promising = ("--loadmodule", str(floor()), WITH_PROMISES)
        self.promising = stack.enter_context(Server(release, *promising, with_module=False))

    def peers(self) -> Iterator[Peer]:
        for server in (self.server, self.promising):
            place(server.process.pid, one_processor())
        for name, known_as in IN_RUST.items():
            port = self.promising.port if name == PROMISES else self.server.port
            worker = on_one_processor(self.stack, self.program, known_as, f"127.0.0.1:{port}")
            yield Peer(name, self.release.label, worker, None if name == PROMISES else lambda: executed(self.asker))

    def on_two_processors(self) -> Iterator[Peer]:
        """Ours and the tokens, where the clients keep one processor awake, and the server the other."""
        place(self.server.process.pid, os.sched_getaffinity(0))
        for name in (OURS, BLPOP, TOKEN):
            worker = self.stack.enter_context(Worker(self.program, IN_RUST[name], f"127.0.0.1:{self.server.port}"))
            yield Peer(name, self.release.label, worker, lambda: executed(self.asker))


@contextlib.contextmanager
def family(release: Release, program: Path) -> Iterator[Family]:
    with contextlib.ExitStack() as stack:
        yield Family(release, program, stack)


def executed(connection: Connection) -> int:
    """All commands that the server has executed, in scripts too, but for asking this."""
    lines = connection.call("INFO", "commandstats").decode().splitlines()
    counts = (line.split("calls=")[1].split(",")[0] for line in lines if "calls=" in line and "cmdstat_info:" not in line)
    return sum(map(int, counts))


def on_one_processor(stack: contextlib.ExitStack, program: Path, peer: str, address: str) -> Worker:
    worker = stack.enter_context(Worker(program, peer, address, "sleep"))
    place(worker.processes[0].pid, one_processor())
    return worker


def started(bench: Bench, stack: contextlib.ExitStack, kind: type[Daemon]) -> Daemon | None:
    """A server of another kind; None if it is not to be had here."""
    try:
        return stack.enter_context(kind())
    except (OSError, RuntimeError, subprocess.SubprocessError) as reason:
        bench.say(f"handover: not possible: {kind.product}: {reason}")
        return None


def databases(bench: Bench, stack: contextlib.ExitStack, program: Path) -> Iterator[Peer]:
    for kind, known_as, name in ((Postgres, "postgres", "pg_advisory_lock"), (MariaDB, "mariadb", "GET_LOCK")):
        if server := started(bench, stack, kind):
            place(server.process.pid, one_processor())
            worker = on_one_processor(stack, program, known_as, server.address)
            yield Peer(f"{kind.product} {name}", server.label, worker)


def slow_peers(bench: Bench, stack: contextlib.ExitStack, release: Release, program: Path) -> Iterator[Peer]:
    """The peers that take both processors. They have a Redis of their own, so that their thousands of connections cost
    the other one nothing."""
    if server := started(bench, stack, Etcd):
        worker = stack.enter_context(Worker(program, "etcd", server.address, "sleep"))
        yield Peer("etcd lock service", server.label, worker, is_slow=True, lines_up_s=4.0, can_stay=True)
    if server := started(bench, stack, ZooKeeper):
        worker = stack.enter_context(python("kazoo_lock", server.port))
        yield Peer("ZooKeeper kazoo Lock", server.label, worker, is_slow=True, lines_up_s=2.3)
    redis = stack.enter_context(Server(release))
    asker = stack.enter_context(redis.connect())
    workers = {
        "redis-py Lock": lambda: python("redis_py", redis.port),
        "redis-py Lock, sleep=0.01": lambda: python("redis_py", redis.port, "0.01"),
        "python-redis-lock": lambda: python("python_redis_lock", redis.port),
        "node-redlock": lambda: node("node_redlock.cjs", redis.port),
    }
    for name, start in workers.items():
        worker = stack.enter_context(start())
        is_variant = "=" in name
        yield Peer(name, release.label, worker, lambda: executed(asker), True, lines_up_s=0.3, is_variant=is_variant)


def python(module: str, port: int, *options: str) -> Worker:
    """Two processes, one for each processor: threads of Python share one."""
    interpreter = CACHE.expanduser() / "venv-bench" / "bin" / "python"
    return Worker(interpreter, "-m", "bench.peers.threads", module, port, *options, processes=2, cwd=ROOT / "benches")


def node(script: str, port: int) -> Worker:
    return Worker("node", PEERS / script, port, cwd=CACHE.expanduser() / "node-bench")
