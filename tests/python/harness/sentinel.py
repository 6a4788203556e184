"""Sentinels of the server under test, in a hurry."""

from .limits import SLOW_FACTOR, eventually
from .server import BINARY, Server

#: The name of the group that they monitor.
GROUP = "group"
DOWN_AFTER_MS = 700 * SLOW_FACTOR
#: Their periods in milliseconds, which are made for networks and people. A server that takes itself for a primary is
#: corrected after four times the time between two reports; by then all must know of a change that has been made.
PERIODS = {
    "INFO-PERIOD": 200, "PING-PERIOD": 300, "PUBLISH-PERIOD": 500,
    "SLAVE-RECONF-TIMEOUT": 2000, "MIN-LINK-RECONNECT-PERIOD": 1000, "ELECTION-TIMEOUT": 2000,
}  # fmt: skip
#: One sees it a little later, and asks the others more often: three that ask at once may vote each for itself.
FIRST_TO_ASK = {"down_after_ms": 800 * SLOW_FACTOR, "ask_period_ms": 100 * SLOW_FACTOR}


class Sentinel(Server):
    """One of several that watch a primary and agree on another one."""

    def start(self):
        """Starts it; it monitors no group yet."""
        super().start()
        for name, period_ms in PERIODS.items():
            self.admin("SENTINEL", "DEBUG", name, period_ms * SLOW_FACTOR)
        return self

    def watch(self, port, down_after_ms=DOWN_AFTER_MS, ask_period_ms=1000 * SLOW_FACTOR):
        """Watches this primary and its replicas from now on."""
        self.admin("SENTINEL", "DEBUG", "ASK-PERIOD", ask_period_ms)
        self.admin("SENTINEL", "MONITOR", GROUP, "127.0.0.1", port, 2)
        self.set("down-after-milliseconds", down_after_ms)
        self.set("failover-timeout", 2000 * SLOW_FACTOR)
        self.set("parallel-syncs", 2)

    def keep_silent_links(self):
        """Opens no new link in place of a silent one for 15 s, as by default.

        A server that answers on each new link, and on none for long, is alive again once per link.
        """
        self.admin("SENTINEL", "DEBUG", "MIN-LINK-RECONNECT-PERIOD", 15_000 * SLOW_FACTOR)

    def set(self, name, value):
        """One of its settings for the group."""
        self.admin("SENTINEL", "SET", GROUP, name, value)

    def sees(self, replicas, sentinels):
        """Returns whether it has found `replicas` replicas and `sentinels` other sentinels, and can talk to all of
        them."""
        flags = [self.flags("MASTERS"), self.flags("SLAVES", GROUP), self.flags("SENTINELS", GROUP)]
        return flags == [["master"], ["slave"] * replicas, ["sentinel"] * sentinels]

    def flags(self, *what):
        """The states of the servers that it knows, in its view."""
        found = self.admin("SENTINEL", *what)
        return [dict(zip(words[::2], words[1::2]))["flags"] for words in found]

    def primary(self):
        """The port of the primary, as it knows."""
        return int(self.admin("SENTINEL", "GET-MASTER-ADDR-BY-NAME", GROUP)[1])

    def _command_line(self):
        path = self.directory / "sentinel.conf"
        if not path.exists():
            path.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\nlogfile {self.log}\n")
        return [BINARY, str(path), "--sentinel"]


def watched(start_server, port, replicas=2, sentinels=3):
    """Sentinels that watch this primary and have found each other."""
    found = [start_server(kind=Sentinel) for _ in range(sentinels)]
    for number, sentinel in enumerate(found):
        sentinel.watch(port, **(FIRST_TO_ASK if number == 0 else {}))
    for sentinel in found:
        eventually(lambda sentinel=sentinel: sentinel.sees(replicas, sentinels - 1), "they know of all")
    return found
