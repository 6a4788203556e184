"""A lock of each kind at `door`, with more to say than a plain one."""

from .kinds import count_and_share, take, take_all


def alone(cli):
    """An exclusive lock with more to say than a plain one."""
    take(cli, "door", "alice", "REENTRANT")
    take(cli, "door", "alice", "REENTRANT")


def read(cli):
    """Readers with leases of their own. The first one was alone before, and counted."""
    count_and_share(cli, "door", "r0", 2, lease_ms=3_000_000)
    for n in range(1, 3):
        take(cli, "door", f"r{n}", "SHARED", lease_ms=3_000_000 + n * 200_000)


def limited(cli):
    """A semaphore with a permit left."""
    for n in range(3):
        take(cli, "door", f"p{n}", "LIMIT 4", lease_ms=3_000_000 + n * 200_000)


def crowded(cli):
    """More holders than fit into a short list."""
    cli.pipeline(*[f"LOCK.ACQUIRE door m{n} PX 3600000 LIMIT 1000000" for n in range(100)])


def one_of_several(cli):
    """A lock taken together with others."""
    take_all(cli, "door gate", "all")


LOCKS = {make.__name__: make for make in (alone, read, limited, crowded, one_of_several)}
