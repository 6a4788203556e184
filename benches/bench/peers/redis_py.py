"""redis-py's `Lock`: asks again every 0.1 s, which is its default, or as often as the option says."""

from __future__ import annotations

import redis

#: A lease that does not end during a run.
LEASE_S = 60


class Contender:
    def __init__(self, port: int, who: int, sleep: str = "0.1") -> None:
        del who  # the library makes a name for itself
        client = redis.Redis(port=port)
        client.ping()
        self.lock = client.lock("lock:redis-py", timeout=LEASE_S, sleep=float(sleep))

    def take(self, patience_s: float) -> bool:
        return self.lock.acquire(blocking_timeout=patience_s)

    def free(self) -> None:
        self.lock.release()
