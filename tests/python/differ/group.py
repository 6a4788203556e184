"""The servers: a chain of three, changes of roles, and servers that load the primary's files."""

import random
import shutil
import time

from checkers.replication import differing
from harness.limits import SLOW_FACTOR, eventually
from harness.replicas import AT_ONCE, is_linked
from harness.server import Server

from .look import Eye
from .script import DBS

#: The time that replicas may take to catch up with the primary.
CATCH_UP_SECONDS = 3.0 * SLOW_FACTOR
DATABASES = len(DBS)


def options_of(seed):
    """The options of the servers of an episode."""
    chance = random.Random(f"{seed} servers")
    preamble = chance.choice(["yes", "no"])
    line = ["--hz", chance.choice([1, 1, 1, 10]), "--appendonly", "yes", "--appendfsync", "no"]
    line += ["--aof-use-rdb-preamble", preamble, "--repl-diskless-load", chance.choice(["disabled", "swapdb"])]
    return [*line, "--notify-keyspace-events", "KA", "--databases", DATABASES]


class Chain:
    """A primary, its replica, and the replica's replica: `nodes`, in this order."""

    def __init__(self, yard, seed, environment=None):
        self.options, self.environment = options_of(seed), environment or {}
        self.yard = yard
        self.nodes = [self.start(*AT_ONCE, *self.options) for _ in range(3)]
        self.eyes = {node: Eye(node) for node in self.nodes}
        self.link()

    @property
    def primary(self):
        """The one that grants."""
        return self.nodes[0]

    def start(self, *options):
        """A server of this episode."""
        return self.yard(*options, environment=self.environment)

    def link(self):
        """Makes a chain of them."""
        for node, source in zip(self.nodes[1:], self.nodes):
            node.admin("REPLICAOF", "127.0.0.1", source.port)
        for node in self.nodes[1:]:
            is_linked(node)

    def changes_roles(self):
        """The replica becomes the primary, by REPLICAOF alone."""
        self.nodes[:2] = self.nodes[1::-1]
        self.primary.admin("REPLICAOF", "NO", "ONE")
        self.link()

    def fails_over(self):
        """The replica becomes the primary by FAILOVER, which blocks all writes in between."""
        old, new = self.nodes[:2]
        # Up for the replica is not online yet for its primary.
        eventually(lambda: "state=online" in str(old.info("replication").get("slave0")), "it can take over")
        old.admin("FAILOVER", "TO", "127.0.0.1", new.port)
        eventually(lambda: new.info("replication")["role"] == "master", "the replica takes over")
        eventually(lambda: old.info("replication")["role"] == "slave", "the old primary follows")
        self.nodes[:2] = [new, old]
        self.link()

    def loads_anew(self):
        """The replicas load all that the primary has, as if they had missed too much of its stream."""

        def loads():
            return int(self.primary.info("stats")["sync_full"])

        before = loads()
        self.primary.admin("DEBUG", "CHANGE-REPL-ID")
        self.primary.admin("CLIENT", "KILL", "TYPE", "replica")
        eventually(lambda: loads() > before, "the replica loads")
        for node in self.nodes[1:]:
            is_linked(node)

    def faults(self, primary):
        """The differences between replicas and the primary, once they have had time to catch up."""
        names = dict(zip(("the replica", "its replica"), self.nodes[1:]))
        return [line for name, node in names.items() for line in lasting(primary, name, self.eyes[node])]

    def faults_of_files(self, primary):
        """The differences between the primary and servers that have loaded its files."""
        node = self.primary
        fields = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")
        eventually(lambda: all(node.info("persistence")[field] == "0" for field in fields), "no file is being written")
        node.admin("SAVE")
        snapshot = node.admin("CONFIG", "GET", "dbfilename")[1]
        log = node.admin("CONFIG", "GET", "appenddirname")[1]
        found = self.faults_of_file(primary, "a server with its RDB", snapshot, "no")
        return found + self.faults_of_file(primary, "a server with its append-only file", log, "yes")

    def faults_of_file(self, primary, name, file, is_log):
        """The differences between the primary and a server that is started with this file."""
        copy = Server("--appendonly", is_log, "--databases", DATABASES, environment=self.environment)
        source, target = self.primary.directory / file, copy.directory / file
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        copy.start()
        try:
            return lasting(primary, name, Eye(copy))
        finally:
            copy.close_connections()
            copy.finish()


def lasting(primary, name, eye):
    """The lasting differences between a server and the primary."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while True:
        found = differing(primary, {name: eye.view()})
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.01)
