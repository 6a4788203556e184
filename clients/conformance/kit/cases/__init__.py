"""The cases: functions of a stage, each with a name, the points that it covers and the features that it needs."""

import importlib

#: By name.
CASES = {}
MODULES = (
    "owner", "deadline", "renewal", "loss", "waiting", "many_waiters", "leaving", "failover", "cluster", "errors",
    "harm", "outside", "kinds", "leader", "independent", "objects", "moved", "silence", "logs",
    "words",
)  # fmt: skip


class Case:
    """The data of a case before it runs."""

    def __init__(self, story, points, needs, seconds, weight):
        self.story, self.points, self.needs, self.seconds, self.weight = story, points, needs, seconds, weight
        self.name = story.__name__.replace("_", "-")
        self.title = story.__doc__.strip().splitlines()[0]
        #: Additional environment of the adapter's process: REDISLOCK_BREAK, in the kit's own tests.
        self.environment = {}


def case(*points, needs=(), seconds=60, weight=1):
    """Makes a function a case: for these points, with this time limit in seconds. Heavy and long cases begin first."""
    def add(story):
        new = Case(story, points, needs, seconds, weight)
        assert new.name not in CASES, new.name
        CASES[new.name] = new
        return story

    return add


def load():
    """Returns all cases."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}")
    return CASES
