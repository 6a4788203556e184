"""Side by side with what people use: each lock as programs in its language use it, by its own library.

The programs are benches/rivals/go and benches/rivals/java. One process of each stays, and what it opens are up to ten
clients, as of ten instances of a service. All libraries have a lease of 2 s, and what else they leave to their users is
as their documentation has it. Each has a server of its own: redislock and the other Redis locks Redis 7.0, without
persistence; etcd one node with its defaults.

- A pair: one task takes and frees a lock that nobody else wants.
- Hand-over: 100 tasks take and free one lock, without a pause. A hand-over is a grant to another task than before. The
  window is 2 s, so no wait can be longer than that.
- Commands: what the server has executed meanwhile, in scripts too; of etcd the messages of its clients.
- Loss: from a `DEL` of the lock, or from the revocation of etcd's lease, until the library tells the holder.
- A dead holder: its process is killed 0.2 s after its grant; how long until another one that waits has the lock.

Then three systems with the same promise, that a lock survives the loss of one of three nodes: see `three_nodes`.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..context import Bench
from ..measure import OURS, Figure, in_turns
from ..peers import groups
from ..peers.worker import Worker
from ..servers import ROOT, Connection, Release, Server
from .handover import CACHE, executed

SCENARIO = "rivals"
LEASE_MS = 2_000
#: In groups. ZooKeeper with its default tick has no session below 4 s.
GROUP_LEASE_MS = 5_000
CONTENDERS = 100
MANY = 50

PAIRS, P50 = "pairs per second", "pair p50, us"
COMMANDS = "server commands per pair"
HAND_OVERS, HAND_OVER_COMMANDS = "hand-overs per second", "server commands per hand-over"
MEDIAN_WAIT, LONGEST_WAIT = "median wait, ms", "longest wait, ms"
SERVED = f"fairness: tasks of {CONTENDERS} that got the lock"
LOSS = "from the DEL to the loss, ms"
DEAD = "until a dead holder's lock is taken, ms"
MANY_PAIRS, MANY_P50 = f"{MANY} clients: pairs per second", f"{MANY} clients: pair p50, us"
GAP = "no lock after the leader is killed, ms"
GAP_FIRST = "the same, for the first that asked, ms"
FSYNC, NO_FSYNC = "three nodes, each grant on disk", "three nodes, no fsync"
FROM_JAVA = "redislock from Java"

#: The name in the table, and the name in the program.
IN_GO = {OURS: "redislock", "redsync": "redsync", "bsm/redislock": "bsm/redislock", "etcd concurrency": "etcd"}
SHEDLOCK = "ShedLock"
IN_JAVA = {
    OURS: "redislock",
    "Redisson RLock": "RLock",
    "Redisson RFencedLock": "RFencedLock",
    "RedisLockRegistry": "RedisLockRegistry",
    "RedisLockRegistry, PUB_SUB_LOCK": "RedisLockRegistry PUB_SUB",
    SHEDLOCK: "ShedLock",
}
#: The subjects that cannot be measured, with the reason.
NOT_HAD = {"rueidislock": "the proxy of Go modules does not have github.com/redis/rueidis/rueidislock"}


@dataclass(frozen=True)
class Built:
    """What benches/rivals/build makes."""

    go: Path
    etcd: Path
    classpath: str

    def command(self, language: str) -> list[str]:
        return [str(self.go)] if language == "Go" else ["java", "-Xmx256m", "-cp", self.classpath, "rivals.Main"]


def build() -> Built:
    folder = CACHE.expanduser() / "rivals"
    subprocess.run([ROOT / "benches" / "rivals" / "build", folder], check=True, stdout=subprocess.DEVNULL)
    return Built(folder / "rivals", folder / "etcd", (folder / "classpath").read_text().strip())


def versions() -> list[str]:
    """Of the languages and the libraries."""
    go_mod = (ROOT / "benches" / "rivals" / "go" / "go.mod").read_text()
    pom = (ROOT / "benches" / "rivals" / "java" / "pom.xml").read_text()
    found = re.findall(r"^\t([^/\s]+/\S+?)(?:/v\d+)? v([1-9]\S+)$", go_mod, re.MULTILINE)
    found += re.findall(r"<artifactId>(\S+)</artifactId>\s*<version>(\S+)</version>", pom)[1:]
    told = subprocess.run(["go", "version"], check=True, capture_output=True, text=True).stdout.split()[2]
    java = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True).stderr.split('"')[1]
    return [told.replace("go", "Go "), f"Java {java}", *(f"{name} {version}" for name, version in found)]


@dataclass
class Rival:
    """One library: its program, which stays, and how many commands its server has executed."""

    name: str
    label: str  # of its server
    command: list[str]
    start: Callable[[], Worker]
    commands: Callable[[], int]
    scale: float  # of the time that is measured
    worker: Worker = field(init=False)

    @property
    def waits(self) -> bool:
        return self.name != SHEDLOCK

    def warm_up(self) -> None:
        """Starts it. Java compiles what is used often."""
        self.worker = self.start()
        self._own()
        self._shared()

    def measure(self) -> Mapping[str, float]:
        found = self._own()
        if self.waits:
            found |= self._shared() | {DEAD: self._after_death()}
        return found

    def _own(self) -> dict[str, float]:
        self.worker.ask("open own 1")
        before = self.commands()
        seen = self.worker.ask(f"pairs {1_000 * self.scale:.0f}")
        found = {PAIRS: seen["pairs_per_second"], P50: seen["p50_us"]}
        found[COMMANDS] = (self.commands() - before) / seen["pairs"]
        told = self.worker.ask("loss")
        if told:
            found[LOSS] = told["loss_ms"]
        self.worker.ask("shut")
        return found

    def _shared(self) -> dict[str, float]:
        if not self.waits:
            return {}
        self.worker.ask(f"open shared {CONTENDERS}")
        before = self.commands()
        seen = self.worker.ask(f"handover {2_000 * self.scale:.0f}")
        executed_here = self.commands() - before
        self.worker.ask("shut")
        return handed_over(seen) | {HAND_OVER_COMMANDS: executed_here / max(seen["hand_overs"], 1)}

    def _after_death(self) -> float:
        with Worker(*self.command) as holder:
            holder.ask("open shared 1")
            self.worker.ask("open shared 1")
            holder.ask("take")
            self.worker.say("take")
            time.sleep(0.2)
            holder.processes[0].kill()
            killed = time.monotonic()
            self.worker.answer()
            took_ms = (time.monotonic() - killed) * 1e3
        self.worker.ask("free")
        self.worker.ask("shut")
        return took_ms


def handed_over(seen: Mapping[str, float]) -> dict[str, float]:
    found = {HAND_OVERS: seen["hand_overs_per_second"], SERVED: seen["served"]}
    return found | {MEDIAN_WAIT: seen["median_wait_ms"], LONGEST_WAIT: seen["longest_wait_ms"]}


def messages(address: str) -> int:
    """Returns the number of messages that the clients of etcd have sent to it."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return sum(int(float(value)) for value in re.findall(r"^grpc_server_msg_received_total\{.*\} (\S+)$", text, re.MULTILINE))


def rivals(bench: Bench, built: Built, release: Release, language: str, stack: contextlib.ExitStack) -> Iterator[Rival]:
    for name, known_as in (IN_GO if language == "Go" else IN_JAVA).items():
        if known_as == "etcd":
            server = stack.enter_context(OneEtcd(built.etcd, 0, [groups.free_port()], syncs=True))
            address, label = server.address, server.label
            commands = lambda address=address: messages(address)  # noqa: E731
        else:
            redis = stack.enter_context(Server(release))
            asker = stack.enter_context(redis.connect())
            address, label = f"127.0.0.1:{redis.port}", release.label
            commands = lambda asker=asker: executed(asker)  # noqa: E731
        command = [*built.command(language), known_as, str(LEASE_MS), address]
        start = lambda command=command: stack.enter_context(Worker(*command))  # noqa: E731
        yield Rival(name, label, command, start, commands, 0.2 if bench.is_quick else 1)


class OneEtcd(groups.EtcdNode):
    """A node that is alone, and ready when it serves."""

    _wait = groups.Daemon._wait


def three_nodes(bench: Bench, built: Built, release: Release) -> dict[str, dict[str, Callable[[], Mapping[str, float]]]]:
    """Subjects by setting. Each turn starts a group and ends it. The lease, the session and the quarantine are 5 s.

    - redislock: a primary and two replicas with `confirm majority`, and three sentinels, which see a dead primary after
      1 s. With fsync, all have `appendfsync always`: a replica confirms after it has written to its disk.
    - etcd: `concurrency.Mutex`, with its defaults, or with `--unsafe-no-fsync`.
    - ZooKeeper: Curator's `InterProcessMutex`, with `forceSync` yes or no.
    """
    scale = 0.2 if bench.is_quick else 1

    def ours(*, syncs: bool) -> dict[str, float]:
        with contextlib.ExitStack() as stack:
            group = groups.Redislock(release, stack, GROUP_LEASE_MS, syncs=syncs)
            java = in_group(built.command("Java"), "redislock", group.addresses, scale)
            found = in_group(built.command("Go"), "redislock", group.addresses, scale, group.leader())
        return found | {f"{FROM_JAVA}: {metric}": value for metric, value in java.items()}

    def others(start: Callable, language: str, name: str) -> Callable[[], Mapping[str, float]]:
        def once() -> dict[str, float]:
            with contextlib.ExitStack() as stack:
                group = start(stack)
                return in_group(built.command(language), name, group.addresses, scale, group.leader())

        return once

    return {
        setting: {
            OURS: lambda syncs=syncs: ours(syncs=syncs),
            "etcd": others(lambda stack, syncs=syncs: groups.etcd(built.etcd, stack, syncs=syncs), "Go", "etcd"),
            "ZooKeeper": others(
                lambda stack, syncs=syncs: groups.zookeeper(built.classpath, stack, syncs=syncs), "Java", "Curator"
            ),
        }
        for setting, syncs in ((FSYNC, True), (NO_FSYNC, False))
    }


def in_group(command: list[str], name: str, addresses: str, scale: float, leader: int | None = None) -> dict[str, float]:
    """The measurements of one client of a group; with the last the leader is killed."""
    with Worker(*command, name, GROUP_LEASE_MS, addresses) as worker:
        worker.ask(f"open own {MANY}")
        worker.ask(f"pairs {3_000 * scale:.0f}")  # Java compiles what is used often
        many = worker.ask(f"pairs {1_000 * scale:.0f}")
        worker.ask("shut")
        worker.ask("open own 1")
        one = worker.ask(f"pairs {1_000 * scale:.0f}")
        worker.ask("shut")
        worker.ask(f"open shared {CONTENDERS}")
        shared = worker.ask(f"handover {2_000 * scale:.0f}")
        worker.ask("shut")
        found = {PAIRS: one["pairs_per_second"], P50: one["p50_us"]}
        found |= {MANY_PAIRS: many["pairs_per_second"], MANY_P50: many["p50_us"]} | handed_over(shared)
        if leader is not None:
            worker.ask(f"open own {CONTENDERS}")
            seen = worker.ask(f"probe {leader}")
            found |= {GAP: seen["gap_ms"], GAP_FIRST: seen["first_ms"]}
    return found


def run(bench: Bench) -> list[Figure]:
    for name, reason in NOT_HAD.items():
        bench.say(f"{SCENARIO}: error: {name} could not be had: {reason}")
    built, release = build(), bench.releases[0]
    figures = []
    with contextlib.ExitStack() as stack:
        found = {language: list(rivals(bench, built, release, language, stack)) for language in ("Go", "Java")}
        everybody = {(language, rival.name): rival for language, group in found.items() for rival in group}
        for (language, name), rival in everybody.items():
            rival.warm_up()
            bench.say(f"{SCENARIO}: {language}, {name} is warm")
        # Go and Java take turns, too.
        turns = {f"{language}/{name}": again(bench, rival.measure, rival.warm_up) for (language, name), rival in everybody.items()}
        seen = in_turns(bench.rounds, turns)
        for (language, name), rival in everybody.items():
            measured = seen[f"{language}/{name}"].items()
            figures += [Figure(SCENARIO, rival.label, language, name, metric, values) for metric, values in measured]
    bench.say(f"{SCENARIO}: three nodes")
    return figures + groups_in_turns(bench, three_nodes(bench, built, release), labels(built, release))


def again(bench: Bench, once: Callable[[], Mapping[str, float]], restart: Callable[[], None] = lambda: None) -> Callable[[], Mapping[str, float]]:
    """Measures a second time if the first failed, and says so: on a busy machine a lease can end under its holder."""

    def measured() -> Mapping[str, float]:
        try:
            return once()
        except RuntimeError as reason:
            bench.say(f"{SCENARIO}: once more, after: {str(reason)[-300:]}")
            restart()
            return once()

    return measured


def labels(built: Built, release: Release) -> dict[str, str]:
    told = subprocess.run([built.etcd, "--version"], check=True, capture_output=True, text=True).stdout
    zookeeper = re.search(r"/zookeeper-(3[0-9.]+)\.jar", built.classpath)[1]
    return {OURS: release.label, "etcd": f"etcd {told.split()[2]}", "ZooKeeper": f"ZooKeeper {zookeeper}"}


def groups_in_turns(
    bench: Bench, settings: dict[str, dict[str, Callable[[], Mapping[str, float]]]], told: Mapping[str, str]
) -> list[Figure]:
    turns = {f"{setting}/{name}": again(bench, once) for setting, subjects in settings.items() for name, once in subjects.items()}
    figures = []
    for key, measured in in_turns(bench.rounds, turns).items():
        setting, name = key.split("/")
        for metric, values in measured.items():
            subject, what = (FROM_JAVA, metric[len(FROM_JAVA) + 2 :]) if metric.startswith(FROM_JAVA) else (name, metric)
            figures.append(Figure(SCENARIO, told[name], setting, subject, what, values))
    return sorted(figures, key=lambda figure: figure.setting != FSYNC)
