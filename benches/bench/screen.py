"""The conclusions on one screen: a few figures of the first server, and of the alternatives that people use."""

from __future__ import annotations

from dataclasses import dataclass, field

from .measure import OURS, Figure
from .report import number, table
from .scenarios import rivals, tool

WAITING = f"{tool.WAITERS} that wait"
ALONE = "1 connection, one command at a time, no persistence"
MANY = "pipelined by 16, no persistence"
CROWD = "100 contenders, hold 0 ms"


@dataclass(frozen=True)
class Column:
    """One figure of each subject."""

    head: str
    scenario: str
    setting: str
    metric: str


@dataclass(frozen=True)
class Panel:
    """A table: a row for each subject, ours first."""

    title: str
    columns: tuple[Column, ...]
    #: Subjects by what a reader knows them as.
    subjects: dict[str, str]
    #: The text in place of a figure that cannot be measured, by subject and metric.
    instead: dict[tuple[str, str], str] = field(default_factory=dict)


PANELS = (
    Panel(
        "**A lock that nobody else wants**, acquired and released",
        (
            Column("half of them take at most, us", "uncontended", ALONE, "latency p50 of a pair, us"),
            Column("processor of the server, us, pipelined", "uncontended", f"50 connections, {MANY}", "server CPU per pair, us"),
            Column("instructions of the server", "instructions", MANY, "instructions per pair"),
        ),
        {
            OURS: "redislock",
            "SET NX PX + DEL": "`SET NX PX` and `DEL`, which deletes anybody's lock",
            "SET NX PX + EVALSHA": "`SET NX PX` and a script that compares and deletes",
            "EVALSHA with INCR + EVALSHA": "two scripts, with a fencing counter",
        },
    ),
    Panel(
        "**100 clients that want one lock**, each of which takes it and gives it away at once",
        (
            Column("hand-overs a second", "handover", CROWD, "hand-overs per second"),
            Column("half of them take at most, us", "handover", CROWD, "hand-over p50, microseconds"),
            Column("longest wait, ms", "handover", CROWD, "longest wait, milliseconds"),
            Column("commands for each", "handover", CROWD, "server commands per hand-over"),
        ),
        {
            OURS: "redislock",
            "BLPOP token": "a bare `BLPOP`: no lease, no owner, no token",
            "MariaDB GET_LOCK": "MariaDB `GET_LOCK`",
            "PostgreSQL pg_advisory_lock": "PostgreSQL `pg_advisory_lock`",
            "python-redis-lock": "python-redis-lock",
            "etcd lock service": "etcd",
            "redis-py Lock": "redis-py's `Lock`",
            "node-redlock": "node-redlock",
            "ZooKeeper kazoo Lock": "ZooKeeper (kazoo)",
        },
    ),
    Panel(
        "**A million locks**",
        (
            Column("bytes for each, with its key", "memory", "1,000,000 locks, 1 round", "bytes per held lock"),
            Column("a PING while all their leases end, p99.9, ms", "scale", "1,000,000 leases end within 1 s, 3 rounds", "PING p99.9, ms"),
        ),
        {OURS: "redislock", "SET NX PX": "strings with `PX`", "Redisson's hash": "Redisson's hashes"},
    ),
    Panel(
        "**A command under a lock**, for which 50 others wait",
        (
            Column("from the end of one to the start of the next, half of them at most, ms", "tool", WAITING, tool.P50),
            Column("99 of 100 at most, ms", "tool", WAITING, tool.P99),
            Column("start-up where nobody waits, ms", "tool", tool.ALONE, tool.START),
            Column("memory of one that waits, MiB", "tool", WAITING, tool.MEMORY),
        ),
        {OURS: "`redislock run`", "flock": "`flock`, on one machine", "etcdctl lock": "`etcdctl lock`"},
    ),
)  # fmt: skip


def of_language(language: str, subjects: dict[str, str], instead: dict[tuple[str, str], str]) -> Panel:
    """The libraries of one language, one server each."""
    columns = (
        ("pairs a second", rivals.PAIRS),
        ("half take at most, us", rivals.P50),
        ("commands", rivals.COMMANDS),
        ("hand-overs a second", rivals.HAND_OVERS),
        ("commands for each", rivals.HAND_OVER_COMMANDS),
        ("half wait at most, ms", rivals.MEDIAN_WAIT),
        ("longest wait, ms", rivals.LONGEST_WAIT),
        ("of 100 tasks got it", rivals.SERVED),
        ("`DEL` to the loss, ms", rivals.LOSS),
        ("dead holder, ms", rivals.DEAD),
    )
    title = f"**In {language}**: a lock that nobody else wants, and 100 tasks that want one lock"
    return Panel(title, of_rivals(language, columns), subjects, instead)


def of_group(setting: str, title: str) -> Panel:
    """Three nodes that keep a lock though one is lost."""
    columns = (
        ("1 client: pairs a second", rivals.PAIRS),
        ("half take at most, us", rivals.P50),
        ("50 clients: pairs a second", rivals.MANY_PAIRS),
        ("half take at most, us", rivals.MANY_P50),
        ("100 tasks: hand-overs a second", rivals.HAND_OVERS),
        ("longest wait, ms", rivals.LONGEST_WAIT),
        ("leader killed: no lock for, ms", rivals.GAP),
        ("for a task that asked at once, ms", rivals.GAP_FIRST),
    )
    subjects = {
        OURS: "redislock, from Go",
        rivals.FROM_JAVA: "redislock, from Java",
        "etcd": "etcd, from Go",
        "ZooKeeper": "ZooKeeper, from Java (Curator)",
    }
    instead = {(rivals.FROM_JAVA, metric): "not measured again" for metric in (rivals.GAP, rivals.GAP_FIRST)}
    return Panel(title, of_rivals(setting, columns), subjects, instead)


def of_rivals(setting: str, columns: tuple[tuple[str, str], ...]) -> tuple[Column, ...]:
    return tuple(Column(head, rivals.SCENARIO, setting, metric) for head, metric in columns)


def not_told(*subjects: str) -> dict[tuple[str, str], str]:
    return {(subject, rivals.LOSS): "not told" for subject in subjects}


WAITS = (rivals.HAND_OVERS, rivals.HAND_OVER_COMMANDS, rivals.MEDIAN_WAIT, rivals.LONGEST_WAIT, rivals.SERVED, rivals.DEAD)

#: Side by side with what people use.
RIVALS = (
    of_language(
        "Go",
        {
            OURS: "redislock",
            "redsync": "redsync",
            "bsm/redislock": "bsm/redislock",
            "etcd concurrency": "etcd `concurrency`, one node",
            "rueidislock": "rueidislock",
        },
        not_told("redsync", "bsm/redislock") | {("rueidislock", rivals.PAIRS): f"not measured: {rivals.NOT_HAD['rueidislock']}"},
    ),
    of_language(
        "Java",
        {
            OURS: "redislock",
            "Redisson RLock": "Redisson `RLock`",
            "Redisson RFencedLock": "Redisson `RFencedLock`",
            "RedisLockRegistry": "Spring `RedisLockRegistry`",
            "RedisLockRegistry, PUB_SUB_LOCK": "the same with `PUB_SUB_LOCK`",
            rivals.SHEDLOCK: "ShedLock over Redis",
        },
        not_told(*(name for name in rivals.IN_JAVA if name != OURS))
        | {(rivals.SHEDLOCK, metric): "does not wait" for metric in WAITS},
    ),
    of_group(rivals.FSYNC, "**Three nodes, each grant on disk**: a lock survives the loss of one of them"),
    of_group(rivals.NO_FSYNC, "**Three nodes, no fsync**: the same while two of them do not lose their power at once"),
)


def cell(column: Column, subject: str, figures: list[Figure]) -> str:
    """The figure of this subject: on the server on which ours was measured first, or on its own."""
    block = [f for f in figures if (f.scenario, f.setting, f.metric) == (column.scenario, column.setting, column.metric)]
    first = next((f.server for f in block if f.subject == OURS), None)
    found = [f for f in block if f.subject == subject]
    here = [f for f in found if f.server == first] or found
    return number(here[0].median) if here else ""


def panel(one: Panel, figures: list[Figure]) -> str:

    def told(subject: str, column: Column) -> str:
        return cell(column, subject, figures) or one.instead.get((subject, column.metric), "")

    rows = [(name, *(told(subject, column) for column in one.columns)) for subject, name in one.subjects.items()]
    measured = [row for row in rows if any(row[1:])]
    if not measured or measured[0][0] != one.subjects[OURS]:
        raise RuntimeError(f"the run has nothing for the table on {one.title}")
    return f"{one.title}:\n\n{table(('', *(column.head for column in one.columns)), measured)}"


def screen(figures: list[Figure], panels: tuple[Panel, ...] = PANELS) -> str:
    """The tables of the page's first screen, or others."""
    return "\n\n".join(panel(one, figures) for one in panels)
