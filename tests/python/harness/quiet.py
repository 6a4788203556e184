"""The state of a server when all clients are done: the last line of a history."""

import time

from checkers.evidence import Request
from checkers.view import ENDS, NOW

from .kinds import count
from .limits import SLOW_FACTOR
from .mixture import KINDS

#: The counts that are reported at the end, and those that must be zero.
COUNTED = ("grants", *ENDS, "timeouts", "deadlocks", "fenced")
QUIET_SECONDS = 3.0 * SLOW_FACTOR
LEASE_MS, SHORT_MS = 1000, 5


def counters(cli):
    """The counts in INFO, from which `last_look` computes the difference."""
    return {name: count(cli, name) for name in COUNTED}


def last_look(server, before, replica=None, limit=QUIET_SECONDS):
    """Waits a while for the server to be quiet, and returns its state then."""
    sent, cli = time.monotonic(), server.connect()
    waits_for(lambda: not any(count(cli, name) for name in NOW), limit)
    left = {name: count(cli, name) for name in NOW}
    counted = {name: number - before[name] for name, number in counters(cli).items()}
    agrees = replica is None or hears_of_an_end(server, cli, replica, limit)
    permits = {lock: take_all_permits(cli, lock, modes[0]) for lock, modes in KINDS.items()}
    agrees = agrees and (replica is None or waits_for(lambda: has_equal(server, replica), limit))
    seen = {"left": left, "counted": counted, "permits": permits, "agrees": agrees}
    return Request("end", (), "", sent, time.monotonic(), seen)


def waits_for(condition, limit):
    """Returns whether it comes true in time."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def hears_of_an_end(server, cli, replica, limit):
    """Returns whether the replica is equal once a lease has expired: before others take the lock, which hides it."""
    cli("LOCK.ACQUIRE", "last.lease", "last", "PX", SHORT_MS)
    waits_for(lambda: not count(cli, "holds"), limit)
    return waits_for(lambda: has_equal(server, replica), limit)


def has_equal(server, replica):
    """Returns whether the replica has the same holds, down to the tokens, and no expired one."""
    same = server.admin("DEBUG DIGEST") == replica.admin("DEBUG DIGEST")
    return same and all(count(each.admin, "holds") == 0 for each in (server, replica))


def take_all_permits(cli, lock, mode):
    """Takes the lock as often as it can be taken, and one time more; releases all: (possible number, actual number)."""
    most = int(mode.split()[1]) if mode.startswith("limit") else 1
    options = mode.upper().split() if most > 1 else []
    owners = [f"last.{number}" for number in range(most + 1)]
    # A lock that is left over may be of another kind: that is an error, and not the test's.
    replies = cli.pipeline(*(("LOCK.ACQUIRE", lock, owner, "PX", LEASE_MS, *options) for owner in owners))
    taken = [owner for owner, reply in zip(owners, replies) if isinstance(reply, int)]
    for owner in taken:
        cli("LOCK.RELEASE", lock, owner)
    return [most, len(taken)]
