"""A row of the table, and the bounds that most rows have.

SPEC: no turn of the event loop spends more than 5 ms in the module on its own account, whatever is stored. The
server's immediate work on any value (FLUSHALL SYNC, DUMP, SAVE) costs at most 1.2 of its cost with as many strings,
or members of a set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .fit import Bound

TURN_MS = 5.0
RATIO = 1.2

#: Of instructions. A cost that does not grow repeats to some per cent. With 0.05 it is a quarter more at a hundred
#: times as many: a logarithm passes, and no walk over all of them.
CONSTANT = Bound(0.05)
#: Operations on all things: in proportion.
LINEAR = Bound(1.1)
#: Of processor time, which grows with misses of the cache too.
CONSTANT_TIME = Bound(0.35)
LINEAR_TIME = Bound(1.3)
TURN = Bound(2 * TURN_MS, TURN_MS, "a busy machine takes twice as long")
AS_SERVERS_OWN = Bound(RATIO)

#: Of things that can be many without a connection each.
MANY = (1_000, 10_000, 100_000, 1_000_000)
TO_100_000 = MANY[:3]
TO_300_000 = (3_000, 30_000, 300_000)
#: Of connections: there are never more at once, also where two servers run at the same time.
CLIENTS = (100, 300, 900)

SHORT = (1_000, 10_000, 30_000)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    bounds: Mapping[str, Bound]


@dataclass(frozen=True)
class Command(Row):
    """Commands that leave everything as it was, so that they can be repeated.

    A step is a command and, after `->`, the beginning of its reply. `{i}` is a number that each round has for its own,
    `{j}` the next, `{n}` their count, `{token}` the value that the scene learnt.
    """

    steps: tuple[str, ...]
    times: int = 200


@dataclass(frozen=True)
class Scene:
    """A given number of something, and commands in its presence."""

    many: str
    build: Callable
    commands: tuple[Command, ...]
    sizes: tuple[int, ...] = MANY
    options: Callable = lambda count: ()


def nothing_more(stage):
    """Checks nothing after the event."""


@dataclass(frozen=True)
class Event(Row):
    """An event that happens once to many things: they are built, it happens, and all of it is measured."""

    many: str
    build: Callable
    act: Callable
    sizes: tuple[int, ...] = MANY
    #: The comparison of the row, with values of the server's own: the functions that build them, and that act on them.
    beside: tuple[Callable, Callable] | None = None
    #: Fails as long as not all is done.
    then: Callable = nothing_more
    options: Callable = lambda count: ()
    #: The divisor of the cost, for work that was done `act` by `act`.
    times: int = 1
    replicas: Callable = lambda count: 0


def command(what, *steps, times=200, **bounds):
    """A command in the presence of many things: its cost is constant, and its turn short, unless other bounds are
    given."""
    return Command(what, {"exponent": CONSTANT, "turn": TURN, **bounds}, steps, times)


def short(sizes):
    """The sizes of the short form."""
    return SHORT if len(sizes) >= 3 and sizes[2] > SHORT[2] else sizes[:3]


@dataclass
class Found:
    """The measurements of a row: points by size, in the order of the rounds, and the cost of the same with one."""

    row: Row
    many: str
    unit: str
    floor: float = 0.0
    points: list = field(default_factory=list)

    @property
    def key(self):
        """The text by which a row is found again."""
        return f"{self.row.what} | {self.many}"
