"""LOCK.INFO and INFO redislock as dictionaries, whichever protocol they came in."""

from .server import parse_info


def as_map(reply):
    """A RESP3 map, or the flat array that replaces it in RESP2."""
    if reply is None or isinstance(reply, dict):
        return reply
    assert len(reply) % 2 == 0, f"not a map: {reply}"
    return dict(zip(reply[::2], reply[1::2]))


def lock_info(cli, key, *options):
    """LOCK.INFO, with its holders as maps; None if the lock is not held."""
    info = as_map(cli("LOCK.INFO", key, *options))
    if info is not None:
        info["holders"] = [as_map(holder) for holder in info["holders"]]
        info["queue"] = [as_map(waiter) for waiter in info["queue"]]
    return info


def holder(cli, key):
    """The one hold of an exclusive lock as a map; None if it is not held."""
    info = lock_info(cli, key)
    if info is None:
        return None
    assert len(info["holders"]) == 1, info
    return info["holders"][0]


def owner_of(cli, key):
    """The owner that holds the lock; None if there is none."""
    hold = holder(cli, key)
    return None if hold is None else hold["owner"]


def waiters_of(cli, key):
    """The number of requests that wait for the lock."""
    info = lock_info(cli, key)
    return 0 if info is None else info["waiters"]


def queue_of(cli, key):
    """The owners that wait for the lock, first come first."""
    return [waiter["owner"] for waiter in lock_info(cli, key, "FULL")["queue"]]


def module_info(cli):
    """INFO redislock without the prefix that the server gives each field."""
    fields = parse_info(cli("INFO redislock"))
    return {name.removeprefix("redislock_"): text for name, text in fields.items()}
