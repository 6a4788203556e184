"""Locks of all kinds: short requests for them, and views of holders and waiters."""

from .limits import eventually
from .replies import as_map, lock_info, module_info

#: A lease that does not end while a test runs, in milliseconds.
LONG_MS = 3_600_000


def take(cli, key, owner, *options, lease_ms=LONG_MS):
    """LOCK.ACQUIRE; options may be written in one text."""
    words = [word for option in options for word in str(option).split()]
    return cli("LOCK.ACQUIRE", key, owner, "PX", lease_ms, *words)


def count_and_share(cli, key, owner, times, lease_ms=LONG_MS):
    """A shared hold that takes several releases: its owner counted while it was alone. Returns its token."""
    for _ in range(times):
        take(cli, key, owner, "REENTRANT", lease_ms=lease_ms)
    return take(cli, key, owner, "SHARED", lease_ms=lease_ms)


def ask(server, key, owner, *options, lease_ms=LONG_MS, block_ms=0, **more):
    """LOCK.ACQUIRE BLOCK on a connection of its own."""
    words = [word for option in options for word in str(option).split()]
    block = ["BLOCK", block_ms]
    return server.ask("LOCK.ACQUIRE", key, owner, "PX", lease_ms, *block, *words, **more)


def take_all(cli, keys, owner, *options, lease_ms=LONG_MS):
    """LOCK.MACQUIRE; keys in one text."""
    keys = keys.split()
    words = [word for option in options for word in str(option).split()]
    return cli("LOCK.MACQUIRE", len(keys), *keys, owner, "PX", lease_ms, *words)


def ask_all(server, keys, owner, *options, lease_ms=LONG_MS, block_ms=0, **more):
    """LOCK.MACQUIRE BLOCK on a connection of its own."""
    keys = keys.split()
    words = [word for option in options for word in str(option).split()]
    tail = [owner, "PX", lease_ms, "BLOCK", block_ms, *words]
    return server.ask("LOCK.MACQUIRE", len(keys), *keys, *tail, **more)


def release(cli, key, owner, *options):
    """LOCK.RELEASE of a known hold."""
    assert cli("LOCK.RELEASE", key, owner, *options) == 1, f"{owner} held {key}"


def owners_of(cli, key):
    """The owners that hold the lock, the oldest token first."""
    info = lock_info(cli, key, "FULL")
    return [] if info is None else [hold["owner"] for hold in info["holders"]]


def hold_of(cli, key, owner):
    """One hold as a map; None if this owner holds nothing here."""
    info = lock_info(cli, key, "FULL")
    holds = [] if info is None else info["holders"]
    found = [hold for hold in holds if hold["owner"] == owner]
    assert len(found) <= 1, "G9: one hold for one owner"
    return found[0] if found else None


def line_of(cli, key):
    """The owners that wait, first come first."""
    info = lock_info(cli, key, "FULL")
    return [] if info is None else [waiter["owner"] for waiter in info["queue"]]


def states_of(cli, key):
    """The owners that wait, and how: blocked or queued."""
    info = lock_info(cli, key, "FULL")
    return [] if info is None else [(waiter["owner"], waiter["state"]) for waiter in info["queue"]]


def kind_of(cli, key):
    """The mode of the lock: (kind, limit)."""
    info = lock_info(cli, key)
    return None if info is None else (info["kind"], info["limit"])


def count(cli, name):
    """A number of INFO redislock."""
    return int(module_info(cli)[name])


def held_by(cli, owner):
    """LOCK.HELDBY as sorted rows without the remaining leases."""
    rows = cli("LOCK.HELDBY", owner)
    for row in rows:
        assert len(row) == 5, row
    return sorted(tuple(row[:4]) for row in rows)


def close_and_settle(server, connection):
    """Closes a connection, and waits until the server has seen it."""
    client_id = connection("CLIENT ID")
    connection.close()
    gone(server, client_id)


def gone(server, client_id):
    """Waits until the server knows no such client."""
    eventually(
        lambda: not server.admin("CLIENT", "LIST", "ID", client_id).strip(),
        "the server has seen the connection close",
    )


def snapshot(cli, *keys):
    """The state that all readers of these locks must agree on."""
    seen = {}
    for key in keys:
        info = lock_info(cli, key, "FULL")
        holds = [] if info is None else info["holders"]
        names = ("owner", "token", "count", "keepalive", "ephemeral-ms")
        seen[key] = (
            None if not holds else (info["kind"], info["limit"]),
            [tuple(as_map(hold)[name] for name in names) for hold in holds],
        )
    return seen


def give_up_places(server):
    """Ends all waits, places in line too, which outlive their connections: a change of roles does that."""
    server.admin("REPLICAOF", "127.0.0.1", 1)
    server.admin("REPLICAOF", "NO", "ONE")
